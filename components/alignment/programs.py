"""Reading generated code without ever running it: one function, its body, how much of it there is.

Pattern: Parse, Never Execute
Problem: the reward of a code model asks what untrusted text would do, and running it is the shortest answer.
Answer: only the parser sees the text, bounded in length, and any way it breaks counts as "does not parse".
Trade-off: the reward knows the form of a program and nothing of its result.
"""

from __future__ import annotations

import ast
import warnings
from functools import lru_cache

LONGEST_TEXT = 20_000
"""Characters; longer text is not read at all."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@lru_cache(maxsize=16)
def read(text: str) -> Function | None:
    """The one function that the whole text is, with a statement beside its docstring; else None."""
    if len(text) > LONGEST_TEXT:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a model's odd escapes are its own affair
            statements = ast.parse(text).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(statements) != 1 or not isinstance(statements[0], Function):
        return None
    return statements[0] if body(statements[0]) else None


def body(function: Function) -> list[ast.stmt]:
    """Statements without the docstring."""
    return function.body[1:] if ast.get_docstring(function, clean=False) is not None else function.body


def size(function: Function) -> int:
    """Nodes of the body's syntax tree; load and store marks count for nothing."""
    return sum(not isinstance(node, ast.expr_context) for part in body(function) for node in ast.walk(part))


def arguments(function: Function) -> set[str]:
    """Names of everything that can be passed."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in named if one is not None}


def argument_use(function: Function) -> float:
    """Share of the arguments that the body reads; 1 when there are none."""
    given = arguments(function)
    nodes = (node for part in body(function) for node in ast.walk(part))
    read_names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    return len(given & read_names) / len(given) if given else 1.0


def is_trivial(function: Function) -> bool:
    """Whether the body is one statement that any function could have: `pass`, a constant, a bare `raise`."""
    statements = body(function)
    return len(statements) == 1 and _says_nothing(statements[0])


def has_substance(function: Function, *, smallest: int = 5) -> bool:
    """Not trivial, at least `smallest` nodes, and at least half of the arguments are read."""
    return not is_trivial(function) and size(function) >= smallest and argument_use(function) >= 0.5


def _says_nothing(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Return | ast.Expr):
        return statement.value is None or isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Pass | ast.Raise | ast.Break | ast.Continue | ast.Global)
