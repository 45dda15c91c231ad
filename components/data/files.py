"""Which files a source reads: one, those of a folder, or those that a glob names, on any fsspec URL."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from components import storage
from components.errors import ConfigError

WILD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Found:
    """One file that matched."""

    url: str

    path: str
    """Below the folder that was searched; of a file that was named itself, its name."""


def matching(url: str, patterns: Sequence[str], *, without: Sequence[str] = ()) -> list[Found]:
    """Files at a URL in the order of their paths; none at all is an error that says what was looked for.

    `*` stands for anything inside one folder, `**` for any folders. A URL with wild cards brings its own
    pattern, which then counts instead of the given ones.
    """
    if WILD.search(url) and not storage.exists(url):
        url, pattern = _root_and_pattern(url)
        patterns = [pattern]
    there = storage.walk(url)
    if there == [""]:
        return [Found(url, url.rpartition("/")[2])]
    wanted, unwanted = _matcher(patterns), _matcher(without)
    found = [path for path in there if wanted(path) and not unwanted(path)]
    if not found:
        but = f" but not {', '.join(without)}" if without else ""
        there_are = f"{len(there)} others, the first is {there[0]}" if there else "no files at all"
        raise ConfigError(
            f"nothing at {url} matches {', '.join(patterns)}{but}; there are {there_are}; "
            f"correct the URL or the pattern"
        )
    folder = url if url.endswith("/") else f"{url}/"
    return [Found(folder + path, path) for path in found]


def _root_and_pattern(url: str) -> tuple[str, str]:
    """`s3://bucket/raw/*/a.txt` is `*/a.txt` below `s3://bucket/raw/`."""
    before_the_first_wild_card = WILD.split(url, maxsplit=1)[0]
    root = url[: before_the_first_wild_card.rfind("/") + 1]
    return root or ".", url[len(root) :]


def _matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    from fsspec.utils import glob_translate

    try:
        compiled = [re.compile(glob_translate(pattern)) for pattern in patterns]
    except ValueError as error:
        raise ConfigError(f"{', '.join(patterns)}: {error}; write '**' as a folder of its own") from error
    return lambda path: any(one.match(path) for one in compiled)
