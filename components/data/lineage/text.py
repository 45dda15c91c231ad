"""The answer of `explain` as a table for a terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict

from components.data.lineage.explain import Origins, Validation
from components.data.lineage.pieces import Piece

TEXT_WIDTH = 60


def as_text(found: Origins) -> str:
    """Some lines about the row, then a line or more for each piece of it."""
    return "\n".join([*_row(found), "", *_table(found.pieces), "", *_details(found.pieces)]).rstrip()


def as_json(found: Origins) -> str:
    """All that is known, for a program."""
    return json.dumps(asdict(found), indent=2)


def _row(found: Origins) -> Iterator[str]:
    reached = "" if found.trained else "   (not reached at the newest checkpoint)"
    yield f"step       {found.step}{reached}"
    yield f"row        {found.row} of rank {found.rank} of {found.ranks}: row {found.global_row} of all ranks"
    yield f"data set   {found.data_set}   manifest {found.manifest_sha256[:12]}"
    yield f"shard      {found.shard}   SHA-256 {found.shard_sha256[:12]}"
    yield f"source     {found.source}   epoch {found.epoch}, sequence {found.sequence} of the shard"
    yield from _validation(found.validation)


def _validation(said: Validation | None) -> Iterator[str]:
    if said is None:
        yield "validated  no record of it beside the run"
        return
    of = "" if said.same_data_set else "   OF ANOTHER DATA SET"
    yield f"validated  {said.status} {said.ended_at[:19]} by run {said.run_id} at {said.git_commit}{of}"
    for verdict in said.verdicts:
        yield f"           {'pass' if verdict['passed'] else 'FAIL'}  {verdict['gate']}: {verdict['reason']}"


def _table(pieces: list[Piece]) -> list[str]:
    head = ["slots", "document", "tokens", "of", "offset", "bytes", "sha256", "path"]
    rows = [
        [
            f"{one.slots[0]}-{one.slots[1] - 1}",
            one.key,
            f"{one.document_tokens[0]}-{one.document_tokens[1] - 1}",
            str(one.document_length),
            str(one.offset),
            str(one.bytes),
            one.sha256[:12],
            one.path or "?",
        ]
        for one in pieces
    ]
    widths = [max(len(row[place]) for row in [head, *rows]) for place in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in [head, *rows]
    ]


def _details(pieces: list[Piece]) -> Iterator[str]:
    for one in pieces:
        yield f"{one.key}  {_shortened(one.text)!r}"
        if one.damage:
            yield f"  damaged: {one.damage}"
        for copy in one.copies:
            yield f"  {copy['reason']}, set aside: {copy['key']}  {copy['path']}"


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_WIDTH else text[: TEXT_WIDTH - 3] + "..."
