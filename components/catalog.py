"""The catalog in README.md, generated from docstrings: patterns, case studies, flows, plug-ins, criteria.

`python -m components.catalog README.md` rewrites what stands between the markers, `--check` says whether it
is up to date. Files are parsed, never imported, so nothing heavy is needed. A hole is shown as a dash.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- catalog:begin -->", "<!-- catalog:end -->"
HOLE = "—"
CODE_FOLDERS = ("components", "flows", "tasks", "maturity", "case_studies")
PLUGINS = {
    "source": "components/data/sources",
    "parallelism": "components/parallelism",
    "launcher": "components/launchers",
    "reward": "components/alignment/rewards",
    "gate": "components/gates",
    "detector": "components/reliability/detectors",
}


@dataclass(frozen=True)
class Module:
    """What the catalog needs to know of one Python file."""

    path: str
    doc: str
    constants: dict[str, object] = field(default_factory=dict)
    mentions: frozenset[str] = frozenset()
    """Dotted names that the file imports, and the strings it holds."""

    @property
    def name(self) -> str:
        """File name without its ending."""
        return Path(self.path).stem

    @property
    def dotted(self) -> str:
        """How the module is imported."""
        return self.path.removesuffix(".py").replace("/", ".")

    @property
    def claim(self) -> str:
        """First sentence of the docstring, without its full stop."""
        paragraph = " ".join(self.doc.split("\n\n")[0].split())
        return re.split(r"(?<=[.?!])\s", paragraph)[0].rstrip(".") or HOLE

    @property
    def link(self) -> str:
        """Markdown link to the file."""
        return f"[{self.name}]({self.path})"


@dataclass(frozen=True)
class Pattern:
    """A named answer to a recurring problem, and the file that is it."""

    name: str
    problem: str
    code: Module


def collect(root: Path, *folders: str) -> list[Module]:
    """Every module under some folders, by path; packages' empty `__init__` and private files are left out."""
    paths = sorted(path for folder in folders for path in (root / folder).rglob("*.py"))
    return [_module(root, path) for path in paths if not path.name.startswith("_")]


def patterns(modules: Iterable[Module]) -> list[Pattern]:
    """Every `Pattern:` block there is, by name."""
    return sorted((one for module in modules for one in _patterns(module)), key=lambda one: one.name)


def render(root: Path) -> str:
    """The generated part of the README."""
    modules = collect(root, *CODE_FOLDERS)
    tests = collect(root, "tests")
    parts = [
        _pattern_table(modules, tests),
        _table("Case studies", ["incident", "what it shows", "pattern"], _study_rows(modules)),
        _table("Flows", ["flow", "what it does"], _flow_rows(modules)),
        _table("Plug-ins", ["kind", "name", "what it is"], _plugin_rows(modules)),
        _table(
            "Maturity criteria", ["claim", "dimension", "level", "risk", "pattern"], _criterion_rows(modules)
        ),
    ]
    return "\n\n".join(part for part in parts if part)


def replaced(text: str, catalog: str) -> str:
    """A page with its catalog replaced; without the two markers there is no place for one."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"no place for the catalog: add the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{catalog}\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Rewrite the catalog of a page, or with `--check` only compare it."""
    parser = argparse.ArgumentParser(prog="python -m components.catalog", description=__doc__)
    parser.add_argument("page", type=Path, help="Markdown file with the two markers")
    parser.add_argument("--check", action="store_true", help="exit with 1 when the page is out of date")
    parser.add_argument("--root", type=Path, default=ROOT, help="checkout to read")
    asked = parser.parse_args(arguments)
    old = asked.page.read_text()
    new = replaced(old, render(asked.root))
    if asked.check and old != new:
        sys.stdout.write(f"the catalog in {asked.page} is out of date; run `make docs`\n")
        return 1
    if old != new:
        asked.page.write_text(new)
    return 0


def _module(root: Path, path: Path) -> Module:
    tree = ast.parse(path.read_text())
    doc = ast.get_docstring(tree) or ""
    return Module(path.relative_to(root).as_posix(), doc, _constants(tree), frozenset(_mentions(tree)))


def _constants(tree: ast.Module) -> dict[str, object]:
    """Upper-case names that a module sets to a literal."""
    found: dict[str, object] = {}
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and target.id.isupper() and value is not None:
            try:
                found[target.id] = ast.literal_eval(value)
            except ValueError:
                continue  # not a literal, so nothing that a table could show
    return found


def _mentions(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _patterns(module: Module) -> Iterator[Pattern]:
    for block in re.split(r"(?m)^Pattern: ", module.doc)[1:]:
        name = block.splitlines()[0].strip()
        problem = re.search(r"(?ms)^Problem: (.+?)(?=^\w[\w-]*: |^\s*$|\Z)", block)
        yield Pattern(name, " ".join(problem.group(1).split()) if problem else HOLE, module)


def _in(modules: Iterable[Module], folder: str) -> list[Module]:
    return [one for one in modules if str(Path(one.path).parent) == folder]


def _names(module: Module) -> list[str]:
    """Patterns that a case study or a criterion says it is about."""
    said = module.constants.get("PATTERNS", module.constants.get("PATTERN"))
    if isinstance(said, (list, tuple)):
        return [str(one) for one in said]
    return [said] if isinstance(said, str) else []


def _test_of(module: Module, tests: Iterable[Module]) -> str:
    """The test file that names a module: its namesake first, then its folder's, then any other."""
    kin = [module.name, *reversed(Path(module.path).parent.parts)]

    def distance(test: Module) -> tuple[int, str]:
        near = (steps for steps, name in enumerate(kin) if name in test.name)
        return next(near, len(kin)), test.path

    found = sorted((test for test in tests if _tests(test, module)), key=distance)
    return found[0].link if found else HOLE


def _tests(test: Module, module: Module) -> bool:
    package, _, name = module.dotted.rpartition(".")
    return module.dotted in test.mentions or {package, name} <= test.mentions


def _pattern_table(modules: list[Module], tests: list[Module]) -> str:
    studies, claims = _in(modules, "case_studies"), _in(modules, "maturity/criteria")
    rows = [
        [
            f"**{one.name}**",
            one.problem,
            one.code.link,
            _test_of(one.code, tests),
            _links(module for module in studies if one.name in _names(module)),
            _links(module for module in claims if one.name in _names(module)),
        ]
        for one in patterns(modules)
    ]
    return _table("Patterns", ["pattern", "problem", "code", "test", "case study", "criterion"], rows)


def _links(modules: Iterable[Module]) -> str:
    return ", ".join(module.link for module in modules) or HOLE


def _study_rows(modules: list[Module]) -> list[list[str]]:
    return [[m.link, m.claim, ", ".join(_names(m)) or HOLE] for m in _in(modules, "case_studies")]


def _flow_rows(modules: list[Module]) -> list[list[str]]:
    return [[m.link, m.claim] for m in _in(modules, "flows") if m.name != "cli"]


def _plugin_rows(modules: list[Module]) -> list[list[str]]:
    return [[kind, m.link, m.claim] for kind, folder in PLUGINS.items() for m in _in(modules, folder)]


def _criterion_rows(modules: list[Module]) -> list[list[str]]:
    def row(module: Module) -> list[str]:
        said = [str(module.constants.get(name, HOLE)) for name in ("DIMENSION", "LEVEL", "RISK", "PATTERN")]
        return [f"[{module.claim}]({module.path})", said[0], f"L{said[1]}", *said[2:]]

    return [row(module) for module in _in(modules, "maturity/criteria")]


def _table(title: str, columns: list[str], rows: Iterable[list[str]]) -> str:
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    if not lines:
        return ""
    head = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return "\n".join([f"### {title}", "", *head, *lines])


if __name__ == "__main__":
    sys.exit(main())
