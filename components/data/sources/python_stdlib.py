"""The standard library's own source files: always there, real, and free to read.

Use it for demos and tests: no account, no download. The corpus differs a little between Python versions.
Nothing is vendored: files are read from the interpreter that runs.
"""

from __future__ import annotations

from pydantic import Field

from components import plugins


class Config(plugins.Config):
    """Which files are taken."""

    include_tests: bool = False
    """Take the library's own test suites too, where they are installed."""

    max_documents: int | None = Field(default=None, ge=1)
    """Stop after so many files; None takes all."""
