"""Several sources under names, read one after the other; each document remembers which part it came from.

Use it when a corpus has parts that deserve their own share of training, their own figures or their own fate:
code beside prose, a crawl beside licensed text. It costs nothing beyond its parts. All of every part is
read; how often each is drawn from in training stands in `training.mixture`, so shares change without new
shards. A text that stands in two parts is given twice: curation keeps the first and lists the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

from pydantic import Field, StringConstraints, field_validator

from components import plugins
from components.data.document import Document

SOURCES = "components.data.sources"
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+$")]


class Config(plugins.Config):
    """The parts, by name."""

    parts: dict[Name, Annotated[plugins.Config, plugins.OneOf(SOURCES)]] = Field(min_length=2)
    """Two or more sources in reading order: `{code: {kind: jsonl, path: ...}, prose: {kind: ...}}`."""

    @field_validator("parts")
    @classmethod
    def _flat(cls, parts: dict[str, plugins.Config]) -> dict[str, plugins.Config]:
        for name, part in parts.items():
            if isinstance(part, cls):
                raise ValueError(f"part '{name}' is a mixture itself; name its parts here instead")
        return parts


def read(config: Config) -> Iterator[Document]:
    """Every document of every part, tagged with the part's name."""
    for name, part in config.parts.items():
        source = plugins.load(SOURCES, plugins.name_of(part))
        yield from (replace(document, source=name) for document in source.read(part))
