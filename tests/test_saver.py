"""What a saver tells its rank, whichever rank's disk is slow."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SAVES = """
import json, sys
from pathlib import Path
import torch
from components.checkpoints import save
from components.checkpoints.config import Config
from components.checkpoints.manifest import HeldOut, Manifest
from components.training import engine as engines, model as models
from components.training.config import Model

class Quick(save.Thread):
    def start(self):  # has done with it before anyone can look
        super().start()
        self.join()

class Slow(save.Thread):
    def start(self):  # not begun before someone waits
        pass

    def join(self):
        super().start()
        super().join()

shards, place, pace = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
save.Thread = {"quick": Quick, "slow": Slow}[pace]
engines.join("cpu", 60)
model = models.build(Model(hidden_size=32, num_layers=1, num_heads=2), 512, torch.bfloat16)
engine = engines.start(model, rate=1e-3, batch_size_per_rank=1, precision="bf16", parallelism={})
saver = save.Saver(
    engine, folder=str(place), scratch=place / "scratch", tokenizer=shards, config=Config()
)
held_out = HeldOut(loss=1.0, sequences=1, sequence_length=1, precision="bf16", device="cpu", threads=1)
told = []
for step in (1, 2, 3):
    draft = Manifest(
        stage="any", step=step, world_size=1, held_out=held_out, shards="", shards_digest="", config_digest=""
    )
    before = saver.save(engine, draft)
    told.append(before and before.step)
saver.close()
engines.leave()
print(json.dumps(told))
"""


@pytest.mark.slow
@pytest.mark.parametrize("pace", ["quick", "slow"])
def test_ranks_agree_which_save_they_have_done_with_however_slow_one_is(
    small_shards: Path, tmp_path: Path, pace: str
) -> None:
    """Or one of them would wait in a collective for another that does not take part."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "localhost"}
    done = subprocess.run(
        [sys.executable, "-c", SAVES, str(small_shards), str(tmp_path), pace],
        cwd=ROOT,
        env={**os.environ, **alone, "MASTER_PORT": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [None, 1, 2]
