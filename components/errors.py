"""What can go wrong, as one tree; every message says what was wrong, what is allowed, what to do next.

StanchionError
├── ConfigError              a value or a name the user gave does not fit
├── DataError                documents or shards are not what their manifest says
│   └── ShardIntegrityError  bytes of a shard differ from what was written
├── StorageError             an object store did not answer well, however often it was asked
│   └── Conflict             someone else wrote there since it was read
├── CheckpointError          a checkpoint may not be used
│   ├── CheckpointCorrupt    its bytes differ from its manifest
│   └── NotValidated         no gate has vouched for it
│       └── NotSigned        nobody with our key has
├── GateRefused              a gate said no; carries the verdicts
├── JobError                 a launched job ended badly
│   ├── JobFailed            a rank exited with an error
│   └── JobStalled           ranks are alive but the step count stands still
├── TrainingError            training cannot go on: gradients stay bad, replicas differ
├── ServingError             the server is not fit to take traffic
└── StageMissing             a stage was asked for before the one it rests on
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from components.records import Verdict


class StanchionError(Exception):
    """Root of everything that Stanchion raises on purpose."""


class ConfigError(StanchionError, ValueError):
    """A value or a name that the user gave does not fit."""


class DataError(StanchionError):
    """Documents or shards are not what they should be."""


class ShardIntegrityError(DataError):
    """Bytes of a shard differ from what was written; it names shard, key and offset where they are known."""

    def __init__(self, message: str, *, shard: str = "", key: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.shard, self.key, self.offset = shard, key, offset

    def __reduce__(self) -> tuple[Any, ...]:
        """It crosses from loader workers to the trainer whole."""
        return _rebuilt, (str(self), self.shard, self.key, self.offset)


def _rebuilt(message: str, shard: str, key: str, offset: int | None) -> ShardIntegrityError:
    return ShardIntegrityError(message, shard=shard, key=key, offset=offset)


class StorageError(StanchionError):
    """A store did not give or take what was asked; the message names url, attempts and last cause."""

    def __init__(self, message: str, *, url: str = "", attempts: int = 1) -> None:
        super().__init__(message)
        self.url, self.attempts = url, attempts


class Conflict(StorageError):
    """What was to be replaced is no longer what was read: read it again, then decide again."""


class CheckpointError(StanchionError):
    """A checkpoint may not be used."""


class CheckpointCorrupt(CheckpointError):
    """A checkpoint's bytes differ from its manifest; the message names the file."""


class NotValidated(CheckpointError):
    """No gate has vouched for this checkpoint, or one has refused it."""


class NotSigned(NotValidated):
    """A key is configured and did not sign this one: refused, not quarantined, for keys get mixed up."""


class JobError(StanchionError):
    """A launched job ended badly."""


class JobFailed(JobError):
    """A rank exited with an error; the message carries the end of its log."""


class JobStalled(JobError):
    """Every rank is alive but the step count stands still; the message names the suspect."""

    def __init__(self, message: str, *, rank: int, step: int, phase: str) -> None:
        super().__init__(message)
        self.rank, self.step, self.phase = rank, step, phase


class TrainingError(StanchionError):
    """Training cannot go on from what is in memory; an earlier checkpoint may be good."""


class ServingError(StanchionError):
    """The server is not fit to take traffic."""


class StageMissing(StanchionError):
    """A stage was asked for before the one it rests on has completed."""


class GateRefused(StanchionError):
    """At least one gate said no; `verdicts` holds the figures of all that were asked."""

    def __init__(self, subject: str, verdicts: list[Verdict]) -> None:
        reasons = "; ".join(f"{v.gate}: {v.reason}" for v in verdicts if not v.passed)
        super().__init__(f"{subject} refused by {reasons}")
        self.subject, self.verdicts = subject, verdicts
