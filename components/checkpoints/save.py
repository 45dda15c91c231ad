"""Saving from all ranks at once, beside training: a copy in memory, the files, the manifest, the name.

    saver = Saver(engine, folder=..., scratch=..., tokenizer=..., config=Config())
    before = saver.save(engine, draft)   # all ranks; returns at once
    saver.poll()                         # each step: what was published since, or the error of a save
    saver.close()                        # waits for the last one

DeepSpeed's `latest` file is never written: it appears before other ranks have finished.

Pattern: Staged Commit
Problem: a save that training waits for is made rarely, and one that it does not wait for may never be whole.
Answer: copy in memory during the next forward and backward pass; the optimizer waits for the copy and for
nothing else. A thread writes, hashes, flushes and reads back, with what training leaves of the cores; rank 0
names the checkpoint once every rank has reported. One save at a time; its error comes up at the next step.
Trade-off: a second copy of the state in memory, and up to one save more is lost when a machine dies.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch.distributed as dist

from components import storage
from components.checkpoints import commit, rank_files
from components.checkpoints.commit import free_name as free_name
from components.checkpoints.config import Config
from components.checkpoints.manifest import Manifest
from components.checkpoints.snapshot import TAG as TAG
from components.checkpoints.snapshot import Memory, Snapshot
from components.checkpoints.snapshot import weights_of as weights_of
from components.errors import CheckpointError
from components.reliability.faults import inject

NICE = 15
"""Of the thread that writes: it gives way to a trainer that computes on the same cores."""
logger = logging.getLogger(__name__)
Waits = Callable[[str], AbstractContextManager[None]]
"""What training is in while it waits: `snapshot` for the copy, `flush` for the writer. See `phases.py`."""


@dataclass(frozen=True)
class Saved:
    """What became of one save, on rank 0; on the others it has no URL."""

    step: int
    url: str = ""
    copy: str = ""
    """On the second tier, where there is one."""
    stalled: float = 0.0
    """Seconds that training waited."""
    seconds: float = 0.0
    """From the call to the name."""
    seconds_hashing: float = 0.0
    error: str = ""

    def event(self) -> dict[str, Any]:
        """What a rank's log says of it."""
        told = {
            "kind": "checkpoint_failed" if self.error else "checkpoint",
            "step": self.step,
            "checkpoint": self.url,
            "seconds_stalled": round(self.stalled, 6),
            "seconds_to_save": round(self.seconds, 6),
            "seconds_hashing": round(self.seconds_hashing, 6),
        }
        more = {"copy": self.copy, "error": self.error}
        return told | {name: value for name, value in more.items() if value}


class Saver:
    """One rank's saver. All ranks make one together, once the engine is there."""

    def __init__(
        self,
        engine: Any,
        *,
        folder: str,
        scratch: Path,
        tokenizer: Path,
        config: Config,
        waits: Waits = lambda phase: nullcontext(),
    ) -> None:
        self.folder, self.scratch, self.config = folder, scratch, config
        self._waits = waits
        self.url: str | None = None
        """The newest that this saver has published."""
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._memory, self._model = Memory(), scratch / "model"
        self._thread: Thread | None = None
        self._done: list[Saved] = []
        self._ended: Saved | None = None
        self._last_step, self._stalled = -1, 0.0
        self._copied = Event()
        self._copied.set()
        optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
        optimizer.register_step_pre_hook(lambda *_: self._settle())
        if self._rank == 0:
            rank_files.sweep(scratch)
            self._keep_model(engine, tokenizer)
        dist.barrier()

    def save(self, engine: Any, draft: Manifest) -> Saved | None:
        """Save the state as it is now; all ranks together, between two steps, once a step.

        CheckpointError, as from `poll`, when the save before failed: no other one is begun then.

        The newest save that this rank has done with, which is the same on every rank, whichever of them is
        slow: a decision that ranks take together may rest on it, as it may not on what `poll` returns.
        """
        if draft.step == self._last_step:
            raise CheckpointError(f"step {draft.step} is saved already, and a state is saved once")
        started, self._last_step = time.perf_counter(), draft.step
        before = self._wait()  # for the buffers of the save before
        if before is not None and before.error and self.config.on_failure == "stop":
            raise CheckpointError(before.error)
        staged = self.scratch / f"step-{draft.step:06d}.partial"
        staged.mkdir(parents=True, exist_ok=True)
        snapshot = self._memory.take(engine, staged, rank=self._rank)
        self._copied.clear()
        work = (snapshot, draft, staged, started)
        self._thread = Thread(target=self._finish, args=work, name="checkpoint", daemon=True)
        self._thread.start()
        if not self.config.asynchronous:
            before = self._wait()
        self._stalled = time.perf_counter() - started
        return before

    def poll(self) -> list[Saved]:
        """What has come to an end since the last call, whole or not.

        CheckpointError when a save failed and `on_failure` is "stop".
        """
        done, self._done = self._done, []
        for one in done:
            if one.error and self.config.on_failure == "stop":
                raise CheckpointError(one.error)
        return done

    def close(self) -> list[Saved]:
        """Wait for the last save, which must not have failed; then as `poll`."""
        self._wait()
        if self._done and self._done[-1].error and not self._done[-1].url:
            raise CheckpointError(self._done[-1].error)
        return self.poll()

    def _settle(self) -> None:
        """Before anything changes: the copy is whole."""
        if self._copied.is_set():
            return
        started = time.perf_counter()
        with self._waits("snapshot"):
            self._copied.wait()
        self._stalled += time.perf_counter() - started

    def _wait(self) -> Saved | None:
        if self._thread is not None:
            with self._waits("flush"):
                self._thread.join()
            self._thread = None
        return self._ended

    def _finish(self, snapshot: Snapshot, draft: Manifest, staged: Path, started: float) -> None:
        """In the thread: the copy and all behind it. No error gets lost, and none stays in the thread."""
        report = self._write(snapshot, draft.step, staged)
        url = copied = error = ""
        try:
            rank_files.tell(report, staged)
            self._reached(draft.step, "reported")
            if self._rank == 0:
                url = self._commit(draft, staged)
                if self.config.copy_to:
                    source = storage.local_path(url) if storage.is_local(url) else staged
                    copied = self._copy(source, url, draft.step)
        except CheckpointError as met:
            error = str(met)
        except Exception as met:
            cause = report.error or f"{type(met).__name__}: {met}"
            error = f"{staged.stem} could not be saved: rank {self._rank}: {cause}"
        if self._rank == 0:
            shutil.rmtree(staged, ignore_errors=True)
            shutil.rmtree(rank_files.reports_of(staged), ignore_errors=True)
        spent = time.perf_counter() - started
        hashing = report.seconds_hashing
        error = error or (
            report.error and f"{staged.stem} could not be saved: rank {self._rank}: {report.error}"
        )
        if error:
            logger.error("checkpoint of step %d: %s", draft.step, error)
        self._ended = Saved(draft.step, url, copied, self._stalled, spent, hashing, error)
        self._done.append(self._ended)

    def _write(self, snapshot: Snapshot, step: int, staged: Path) -> rank_files.Report:
        try:
            try:
                self._memory.fill()
            finally:
                self._copied.set()
            if self.config.asynchronous:
                _step_aside()
            self._reached(step, "copied")
            return rank_files.write(
                snapshot,
                staged,
                self._model,
                rank=self._rank,
                read_back=self.config.read_back,
                reached=lambda point: self._reached(step, point),
            )
        except Exception as met:
            rank_files.drop(snapshot, staged, rank=self._rank)  # on a full disk, room for the report
            return rank_files.Report(rank=self._rank, error=f"{type(met).__name__}: {met}")

    def _commit(self, draft: Manifest, staged: Path) -> str:
        reports = commit.gather(staged, self._ranks, self.config.timeout_seconds)
        self._reached(draft.step, "gathered")
        url = commit.publish(
            staged, draft, reports, self.folder, lambda point: self._reached(draft.step, point)
        )
        self.url = url
        self._reached(draft.step, "published")
        return url

    def _copy(self, source: Path, url: str, step: int) -> str:
        name = url.rstrip("/").rpartition("/")[2]
        assert self.config.copy_to is not None, "asked before"
        try:
            return commit.copy(source, name, self.config.copy_to, lambda point: self._reached(step, point))
        except Exception as met:
            raise CheckpointError(
                f"{url} is whole, but its copy in {self.config.copy_to} failed: {type(met).__name__}: {met}; "
                'training.checkpoints.on_failure="continue" would go on with one tier'
            ) from met

    def _reached(self, step: int, point: str) -> None:
        inject(self._rank, step, f"save: {point}")

    def _keep_model(self, engine: Any, tokenizer: Path) -> None:
        """What no step changes: configuration and tokenizer, once."""
        self._model.mkdir(parents=True, exist_ok=True)
        engine.module.config.save_pretrained(self._model)
        engine.module.generation_config.save_pretrained(self._model)
        for name in rank_files.TOKENIZER:
            shutil.copyfile(tokenizer / name, self._model / name)


def _step_aside() -> None:
    """Lower the priority of this thread; only Linux knows one for each thread."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
