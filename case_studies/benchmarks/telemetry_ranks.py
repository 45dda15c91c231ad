"""Two ranks train one model: a step bare, one with telemetry, one as the trainer does it. A torchrun target.

The sides take turns in one process pair, on one engine and one stream of batches, so that whatever else the
machine does hits all alike. `bare` is the loop of DeepSpeed's own examples. `telemetry` is that loop with
beats, phases, waits, readout and event. `trainer` is `_update` of pre-training: telemetry, and the guard that
looks at every gradient, on whose one small collective the mean of the loss over ranks rides.
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from components.jobs import Rank, this_rank
from components.training import engine as engines
from components.training.batch_loss import batch_losses
from components.training.communication import CLOCK
from components.training.pretrain import Settings, Trainer

SIDES = ("bare", "telemetry", "trainer")
Seconds = dict[str, float]


class Sides:
    """One trainer, which can leave things out."""

    def __init__(self, rank: Rank, settings: Settings) -> None:
        self.trainer = Trainer(rank, settings)
        self.rate = settings.training.learning_rate
        self.packing = settings.training.packing

    def bare(self) -> None:
        """Nothing but the step."""
        trainer = self.trainer
        fed = trainer.feed.next()
        loss = batch_losses(trainer.engine, fed.batch, trainer.device, self.packing).mean()
        trainer.engine.backward(loss)
        engines.step(trainer.engine, rate=self.rate)

    def telemetry(self) -> None:
        """The same step, and everything that a rank tells of it."""
        trainer, phases = self.trainer, self.trainer.phases
        phases.begin(trainer.step + 1)
        with phases("data"):
            fed = trainer.feed.next()
        with phases("forward"):
            loss = batch_losses(trainer.engine, fed.batch, trainer.device, self.packing).mean()
        with phases("backward"):
            trainer.engine.backward(loss)
        with phases("optimizer"):
            norm = engines.step(trainer.engine, rate=self.rate)
            own = float(loss.item())
        told = trainer.readout.of_step(fed.tokens)
        step = trainer.step + 1
        trainer.rank.events.write(
            "step", step=step, loss=own, gradient_norm=norm, learning_rate=self.rate, **told
        )

    def whole(self) -> None:
        """As pre-training does it."""
        self.trainer.phases.begin(self.trainer.step + 1)
        self.trainer._update()

    def measured(self, side: str) -> Seconds:
        """One step of a side, from a barrier to a barrier: wall time, and the CPU time of this rank."""
        do: Callable[[], None] = {"bare": self.bare, "telemetry": self.telemetry, "trainer": self.whole}[side]
        with self._left_out(side):
            dist.barrier()
            wall, cpu = time.perf_counter(), _cpu_seconds()
            do()
            cpu = _cpu_seconds() - cpu
            dist.barrier()
        self.trainer.step += 1
        return {"wall": time.perf_counter() - wall, "cpu": cpu}

    @contextmanager
    def _left_out(self, side: str) -> Iterator[None]:
        """Without the clock of waits in a bare step, and without the guard's look at each gradient but in the
        trainer's own; their hooks would run unasked."""
        taken = [] if side == "trainer" else list(self._guarded())
        for hooks, number, _ in taken:
            del hooks[number]
        if side == "bare":
            CLOCK.stop()
        yield
        CLOCK.start()
        for hooks, number, hook in taken:
            hooks[number] = hook

    def _guarded(self) -> Iterator[tuple[Any, int, Any]]:
        for parameter in self.trainer.engine.module.parameters():
            hooks = parameter._backward_hooks or {}
            for number, hook in list(hooks.items()):
                if getattr(hook, "__self__", None) is self.trainer.own_gradient:
                    yield hooks, number, hook


def main() -> None:
    """As `settings.json` of the job's folder says: what a trainer needs, and how many rounds."""
    rank = this_rank()
    settings = dict(rank.settings)
    rounds = settings.pop("rounds")
    sides = Sides(rank, Settings.model_validate(settings))
    dice = random.Random(0)  # the same order on all ranks
    for _ in range(3):
        for side in SIDES:
            sides.measured(side)
    found = [{side: sides.measured(side) for side in dice.sample(SIDES, 3)} for _ in range(rounds)]
    sides.trainer.feed.close()
    parameters, alone = sides.trainer.parameters, _alone(sides)
    engines.leave()
    result = {"rounds": found, "parameters": parameters, "seconds_alone": alone}
    rank.finish({**result, "world_size": rank.world_size, "event_bytes": _event_bytes(rank)})


def _alone(sides: Sides, times: int = 500) -> float:
    """Seconds of a step's telemetry with nothing in the step: its own work."""
    trainer = sides.trainer
    started = time.perf_counter()
    for _ in range(times):
        trainer.phases.begin(trainer.step)
        for phase in ("data", "forward", "backward", "optimizer"):
            with trainer.phases(phase):
                pass
        told = trainer.readout.of_step(1)
        trainer.rank.events.write("alone", step=0, loss=1.0, gradient_norm=1.0, learning_rate=1.0, **told)
    return (time.perf_counter() - started) / times


def _event_bytes(rank: Rank) -> float:
    steps = [
        line for line in rank.folder.joinpath("events", "rank-00000.jsonl").open() if '"kind":"step"' in line
    ]
    return sum(map(len, steps)) / len(steps)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
