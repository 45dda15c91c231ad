"""Training goes on after an interruption as if nothing had happened, and says where its time goes."""

from __future__ import annotations

import base64
import json
import shutil
import urllib.request
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families as families

from components import storage
from components.checkpoints import manifest, state
from components.checkpoints.check import default_gates
from components.checkpoints.restore import open_checkpoint
from components.config import Profile, Run, run_folder
from components.data import manifest as datasets
from components.data.packing import Config as Packing
from components.data.reader import Reader
from components.data.stream import PADDING, TokenStream
from components.errors import ConfigError, ShardIntegrityError
from components.jobs import Rank
from components.observability import events
from components.observability.metrics.exporter import serving
from components.parallelism import zero
from components.records import Artifact, Record
from components.reliability.faults import Drill
from components.reliability.finding import Attempt
from components.remote import options
from components.training import curve
from components.training.config import Model
from components.training.job import job_for
from components.training.phases import Phases
from components.training.schedule import learning_rate


@pytest.mark.slow
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_resumed_job_repeats_the_uninterrupted_one_to_the_last_bit(
    small_job: Callable[..., Any], tmp_path: Path, stage: int
) -> None:
    whole = small_job(tmp_path / "whole", processes=2, stage=stage)
    assert whole.returncode == 0, whole.stderr
    halfway = tmp_path / "whole" / "checkpoints" / "step-000002"
    state.validate(str(halfway), [])
    resumed = small_job(tmp_path / "resumed", processes=2, stage=stage, resume_from=halfway)
    assert resumed.returncode == 0, resumed.stderr
    assert losses(tmp_path / "resumed") == losses(tmp_path / "whole")[2:]
    one, other = (
        manifest.read(tmp_path / name / "checkpoints" / "step-000004") for name in ("whole", "resumed")
    )
    assert one.tensors == other.tensors
    assert one.partitions == other.partitions
    assert one.held_out == other.held_out
    for rank in (0, 1):
        every_step_is_told_in_full(events.read(tmp_path / "whole" / "job" / "events", rank=rank))


def every_step_is_told_in_full(written: list[dict[str, Any]]) -> None:
    steps = [event for event in written if event["kind"] == "step"]
    assert [event["step"] for event in steps] == [1, 2, 3, 4]
    for event in steps:
        waited, seconds = event["communication"], event["seconds"]
        assert set(seconds) == set(waited) >= {"data", "forward", "backward", "optimizer"}
        assert 0 < waited["optimizer"] <= seconds["optimizer"]
        assert all(waited[phase] <= seconds[phase] for phase in seconds)
        assert event["tokens"] / event["tokens_per_second"] >= sum(seconds.values()) - 1e-4
        assert 0 < event["mfu"] < 1
        assert event["memory_bytes"] > 10**8
    for kind, phase in (("evaluate", "evaluate"), ("save", "checkpoint")):
        assert [phase in event["seconds"] for event in written if event["kind"] == kind] == [True] * 2


@pytest.mark.slow
def test_an_optimizer_that_is_not_the_one_in_memory_is_named_by_its_tensor(
    small_job: Callable[..., Any], small_checkpoints: Path, tmp_path: Path
) -> None:
    """The files match a manifest that was made after the damage, as when a write itself went wrong."""
    import torch

    folder = Path(shutil.copytree(small_checkpoints / "step-000002", tmp_path / "step-000002"))
    part = folder / "deepspeed" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
    content = torch.load(part, weights_only=False)
    content["optimizer_state_dict"]["base_optimizer_state"]["state"][0]["exp_avg"][7] += 1e-3
    torch.save(content, part)
    manifest.seal(folder, manifest.read(folder))
    state.commit(str(folder), manifest.digest(folder))
    state.validate(str(folder), [])
    open_checkpoint(str(folder))
    refused = small_job(tmp_path / "job", resume_from=folder)
    assert refused.returncode != 0
    assert "CheckpointCorrupt" in refused.stderr
    assert "rank 0's optimizer tensor 'exp_avg.0'" in refused.stderr


WHOLE = {"kind": "whole_documents", "mask_documents": True}


@pytest.mark.slow
def test_one_rank_and_two_have_the_same_losses_when_their_targets_are_not_equally_many(
    small_job: Callable[..., Any], short_shards: Path, tmp_path: Path
) -> None:
    """With two ranks a worker process of each reads, with one rank the rank itself."""
    mixture = {"code": 3.0, "mail": 1.0}
    for name, processes in (("one", 1), ("two", 2)):
        done = small_job(
            tmp_path / name,
            processes=processes,
            shards=short_shards,
            precision="fp32",
            mixture=mixture,
            packing=WHOLE,
            loader_workers=processes - 1,
        )
        assert done.returncode == 0, done.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), abs=1e-4)
    one, two = (result_of(tmp_path / name) for name in ("one", "two"))
    assert one["tokens_seen"] == two["tokens_seen"] < 4 * 4 * 64
    assert 0 < one["padded_share"] == two["padded_share"] < 0.5
    assert one["rows_per_batch"] == two["rows_per_batch"] == {"code": 3, "mail": 1}
    with Reader(str(short_shards)) as reader:
        stream = TokenStream(
            reader,
            "train",
            sequence_length=64,
            batch_size=4,
            seed=0,
            packing=Packing.model_validate(WHOLE),
            mixture=mixture,
        )
        targets = [[stream.batch(step, rank, 2).num_targets for rank in (0, 1)] for step in range(4)]
    assert any(first != second for first, second in targets), "so the weights have something to do"
    assert two["held_out_loss"] == pytest.approx(one["held_out_loss"], abs=1e-4)


def test_a_mean_of_means_would_be_another_loss() -> None:
    """What the weights are for: two ranks with 1 and 3 targets that count."""
    import torch

    from components.training.batch_loss import weighted

    few, many = torch.tensor([4.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 1.0])
    mean = sum(weighted(each, world_size=2, targets=4) for each in (few, many)) / 2
    assert mean == pytest.approx(7 / 4)
    assert (few.sum() / 1 + many.sum() / 3) / 2 == pytest.approx(2.5)


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [1, 0])
def test_a_damaged_sample_is_left_out_within_the_budget_and_ends_the_job_beyond_it(
    small_job: Callable[..., Any], short_shards: Path, tmp_path: Path, allowed: int
) -> None:
    shards = Path(shutil.copytree(short_shards, tmp_path / "shards"))
    with Reader(str(shards)) as reader:
        first = TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=0).origin(0, 3)
        place = int(reader.index(first.shard)[first.pieces[0].row]["npy"]["start"]) + 150
        key = reader.key(first.shard, first.pieces[0].row)
    with (shards / first.shard.name).open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 4]))
    policy = {"on_fault": "skip", "max_documents": allowed, "max_share": 0.5}
    done = small_job(
        tmp_path / "job", processes=2, shards=shards, steps=2, damaged_samples=policy, loader_workers=1
    )
    dropped = events.read(tmp_path / "job" / "job" / "events", "drop")
    assert [event["found"]["key"] for event in dropped] == [key]
    if allowed:
        assert done.returncode == 0, done.stderr
        assert result_of(tmp_path / "job")["dropped_samples"] == 1
        assert result_of(tmp_path / "job")["tokens_seen"] < 2 * 4 * 64
    else:
        assert done.returncode != 0
        assert "could not be read; allowed are max_documents=0" in done.stderr


@pytest.mark.slow
def test_shards_in_a_store_are_trained_on_as_those_on_a_disk_are(
    small_job: Callable[..., Any], small_checkpoints: Path, small_shards: Path, s3_root: str, tmp_path: Path
) -> None:
    url = storage.publish_folder(small_shards, f"{s3_root}/shards", last="manifest.json")
    config = storage.Config(cache=str(tmp_path / "cache"))
    environment = {options.VARIABLE: config.model_dump_json()}
    done = small_job(tmp_path, shards=url, environment=environment, loader_workers=1)
    assert done.returncode == 0, done.stderr
    assert losses(tmp_path) == losses(small_checkpoints.parent)
    whole = {shard.sha256 for shard in datasets.read(url).shards}
    copied = {path.name for path in (tmp_path / "cache").glob("??/*")}
    assert copied
    assert copied <= whole


@pytest.mark.slow
def test_a_checkpoint_says_in_which_order_its_data_was_and_no_other_goes_on_from_it(
    small_job: Callable[..., Any], small_checkpoints: Path, small_shards: Path, tmp_path: Path
) -> None:
    checkpoint = Path(shutil.copytree(small_checkpoints, tmp_path / "one")) / "step-000002"
    state.validate(str(checkpoint), [])
    refused = small_job(tmp_path / "job", resume_from=checkpoint, packing=WHOLE)
    assert refused.returncode != 0
    assert "was trained on another order of samples: packing was" in refused.stderr


def test_any_world_size_goes_on_with_the_rows_that_a_checkpoint_has_not_seen(
    small_checkpoints: Path, small_shards: Path
) -> None:
    """The position of a real checkpoint, halfway; rows are told apart by where they come from."""
    position = manifest.read(small_checkpoints / "step-000002").data_position
    assert position is not None
    assert len(position.model_dump_json()) < 1024
    assert position.manifest_sha256 == datasets.digest(str(small_shards))
    with Reader(str(small_shards)) as reader:
        stream = TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=0)
        position.refuse_another(stream.position(0))
        whole = [row for step in range(9) for row in stream.batch(step).inputs.tolist()]
        for ranks in (1, 2, 4):
            seen = whole[: position.samples_consumed]
            for step in range(position.step, 9):
                seen += [row for r in range(ranks) for row in stream.batch(step, r, ranks).inputs.tolist()]
            assert seen == whole


@pytest.mark.parametrize("length", [64, 1100])
@pytest.mark.parametrize("mask_documents", [True, False])
def test_nothing_of_another_document_reaches_a_token_behind_its_mask(
    short_shards: Path, mask_documents: bool, length: int
) -> None:
    """Without the mask the same change does reach it, so this test can fail."""
    logits, gradients = {}, {}
    for changed in (False, True):
        logits[changed], gradients[changed] = of_the_last_document(
            short_shards, length, mask_documents, changed
        )
    (own, others), (own_after, _) = gradients[False], gradients[True]
    assert bool((logits[False] == logits[True]).all()) is mask_documents
    assert bool((own == own_after).all()) is mask_documents
    assert bool((others == 0).all()) is mask_documents
    assert float(own.abs().sum()) > 0


def of_the_last_document(shards: Path, length: int, mask_documents: bool, change_others: bool) -> Any:
    """Logits at the last document of a row; gradients of its loss at its own and at all other inputs."""
    import torch

    from components.training.batch_loss import document_view
    from components.training.model import build

    packing = Packing(kind="whole_documents", mask_documents=mask_documents)
    with Reader(str(shards)) as reader:
        stream = TokenStream(reader, "train", sequence_length=length, batch_size=64, seed=0, packing=packing)
        batch, row = next(
            (batch, row)
            for batch in map(stream.batch, range(99))
            for row, documents in enumerate(batch.documents)
            if (documents == 0).sum() > 1 and (documents == documents.max()).sum() > 1 and documents.max() > 0
        )
    ours = torch.from_numpy(batch.documents[row] == batch.documents[row].max())
    others = torch.from_numpy(batch.documents[row] != PADDING) & ~ours
    torch.manual_seed(1)
    model = build(
        Model(hidden_size=32, num_layers=2, intermediate_size=64, context_length=length), 320, torch.float32
    )
    inputs = torch.from_numpy(batch.inputs[row : row + 1])
    if change_others:
        inputs = torch.where(others, (inputs + 7) % 320, inputs)
    embedded = model.get_input_embeddings()(inputs).detach().requires_grad_()
    view = document_view(batch, torch.device("cpu")) if mask_documents else {}
    seen = {name: value[row : row + 1] for name, value in view.items()}
    logits = model(inputs_embeds=embedded, use_cache=False, **seen).logits[0]
    logits[ours].logsumexp(dim=-1).sum().backward()
    assert embedded.grad is not None
    assert bool(torch.isfinite(embedded.grad).all())
    return logits[ours].detach(), (embedded.grad[0][ours], embedded.grad[0][others])


@pytest.mark.parametrize("mask_documents", [True, False])
def test_padding_has_no_loss_and_no_gradient_is_nan(short_shards: Path, mask_documents: bool) -> None:
    import torch

    from components.training.batch_loss import batch_losses
    from components.training.model import build

    packing = Packing(kind="whole_documents", mask_documents=mask_documents)
    with Reader(str(short_shards)) as reader:
        stream = TokenStream(reader, "train", sequence_length=64, batch_size=64, seed=0, packing=packing)
        batch = next(b for b in map(stream.batch, range(99)) if (b.documents == PADDING).any())
    model = build(
        Model(hidden_size=32, num_layers=1, intermediate_size=64, context_length=64), 320, torch.float32
    )
    losses = batch_losses(model, batch, torch.device("cpu"), packing)
    padding = torch.from_numpy(batch.documents == PADDING)
    assert int(padding.sum()) > 0
    assert int(losses[padding].count_nonzero()) == 0
    assert int(losses.count_nonzero()) == batch.num_targets
    losses.sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_a_concatenated_batch_has_the_loss_of_plain_windows(small_shards: Path) -> None:
    import numpy as np
    import torch

    from components.training.batch_loss import batch_losses
    from components.training.evaluate import token_losses
    from components.training.model import build

    with Reader(str(small_shards)) as reader:
        batch = TokenStream(reader, "train", sequence_length=64, batch_size=4, seed=0).batch(0)
    model = build(
        Model(hidden_size=32, num_layers=1, intermediate_size=64, context_length=64), 320, torch.float32
    )
    windows = torch.from_numpy(np.concatenate([batch.inputs, batch.targets[:, -1:]], axis=1))
    ours = batch_losses(model, batch, torch.device("cpu"), Packing())
    assert torch.equal(ours, token_losses(model, windows))


def test_only_the_tokenizer_of_a_data_set_is_copied_and_only_as_it_was_written(
    small_shards: Path, tmp_path: Path
) -> None:
    from components.data import tokenizer

    folder = tokenizer.fetch(str(small_shards), datasets.read(str(small_shards)), tmp_path / "tokenizer")
    assert {path.name for path in folder.iterdir()} == {"tokenizer.json", "tokenizer_config.json"}
    copy = Path(shutil.copytree(small_shards, tmp_path / "copy"))
    (copy / "tokenizer.json").write_bytes((copy / "tokenizer.json").read_bytes()[:-2] + b" }")
    with pytest.raises(ShardIntegrityError, match=r"tokenizer\.json of .* has SHA-256"):
        tokenizer.fetch(str(copy), datasets.read(str(copy)), tmp_path / "refused")


def test_a_job_leaves_events_of_every_step_and_a_whole_result(small_checkpoints: Path) -> None:
    folder = small_checkpoints.parent
    steps = events.read(folder / "job" / "events", "step")
    assert [event["step"] for event in steps] == [1, 2, 3, 4]
    assert set(steps[-1]["seconds"]) == {"data", "forward", "backward", "optimizer"}
    result = json.loads((folder / "job" / "result.json").read_text())
    assert result["checkpoint"] == str(small_checkpoints / "step-000004")
    assert result["held_out_loss"] == manifest.read(small_checkpoints / "step-000004").held_out_loss
    assert result["unigram_cross_entropy"] > 0
    assert (result["tokens_seen"], result["padded_share"], result["dropped_samples"]) == (4 * 4 * 64, 0.0, 0)
    assert result["rows_per_batch"] == {"all": 4}
    assert 0 < result["epochs"]["all"] < 1
    assert 0 < result["data_share"] < 1
    assert set(result["seconds_by_phase"]) >= {
        "start",
        "data",
        "forward",
        "backward",
        "optimizer",
        "checkpoint",
    }


def test_a_checkpoint_loads_in_transformers_as_it_stands(small_checkpoints: Path) -> None:
    import torch
    import transformers

    folder = small_checkpoints / "step-000004"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    assert isinstance(model, transformers.LlamaForCausalLM)
    assert model.dtype == torch.bfloat16
    assert model.config.max_position_embeddings == 4 * 64
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("def f():\n    pass")["input_ids"]) == "def f():\n    pass"


def test_rotary_frequencies_stay_exact_when_the_weights_are_bf16() -> None:
    import torch

    from components.training.model import build, parameters

    shape = Model(hidden_size=32, num_layers=1, intermediate_size=64)
    model = build(shape, 320, torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert {buffer.dtype for buffer in model.buffers()} == {torch.float32}
    assert parameters(model) == 320 * 32 + 4 * 32 * 32 + 3 * 32 * 64 + 3 * 32


def test_the_learning_rate_warms_up_peaks_and_ends_at_its_floor() -> None:
    rates = [learning_rate(step, steps=100, peak=1.0, warmup=10) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert rates[54] == pytest.approx(0.55, abs=0.01)
    assert rates[-1] == pytest.approx(0.1)


@pytest.mark.parametrize(("shape", "last"), [("linear", 0.1), ("constant", 1.0)])
def test_other_shapes_of_the_schedule(shape: Any, last: float) -> None:
    assert learning_rate(50, steps=50, peak=1.0, shape=shape) == pytest.approx(last)


def test_strategies_are_merged_into_one_deepspeed_configuration() -> None:
    from components.training.engine import _merged, parallelism_of

    strategies = parallelism_of({"zero": {"stage": 3}})
    assert strategies == {"zero": zero.Config(stage=3)}
    merged = _merged({"zero_optimization": {"overlap_comm": False}}, zero.deepspeed(strategies["zero"]))
    assert merged["zero_optimization"]["stage"] == 3
    assert merged["zero_optimization"]["overlap_comm"] is False
    with pytest.raises(ConfigError, match="no 'zeros' in"):
        parallelism_of({"zeros": {}})


def test_phases_beat_and_add_up(tmp_path: Path) -> None:
    from components.reliability import heartbeat

    rank = Rank(0, 1, tmp_path)
    phases = Phases(rank)
    for step in (1, 2):
        phases.begin(step)
        with phases("forward"):
            (beat,) = heartbeat.read(tmp_path / "beats")
            assert (beat.step, beat.phase) == (step, "forward")
    assert set(phases.seconds()) == {"forward"}
    assert phases.total["forward"] >= phases.seconds()["forward"]


def test_a_step_that_was_repeated_counts_as_it_was_done_last(tmp_path: Path) -> None:
    done = [(1, 9.0), (2, 8.0), (3, 7.0), (2, 6.0), (3, 5.0)]
    lines = [{"at": at, "kind": "step", "step": s, "loss": loss} for at, (s, loss) in enumerate(done)]
    lines.append({"at": 9, "kind": "evaluate", "step": 3, "held_out_loss": 5.5})
    (tmp_path / "rank-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = curve.course(tmp_path)
    assert found["loss_curve"] == [(1, 9.0), (2, 6.0), (3, 5.0)]
    assert (found["loss_first"], found["loss_last"], found["held_out_curve"]) == (9.0, 5.0, [(3, 5.5)])


def test_a_long_curve_is_thinned_and_keeps_its_end() -> None:
    points = [(step, float(1000 - step)) for step in range(1, 1001)]
    thin = curve.thinned(points, 60)
    assert len(thin) == 60
    assert thin[-1][0] == 1000


def test_the_course_is_shown_with_its_picture() -> None:
    points = [(1, 7.0), (2, 5.0), (3, 4.0)]
    measured = {"loss_curve": points, "held_out_curve": [(3, 4.5)], "unigram_cross_entropy": 6.2}
    measured |= {"loss_first": 7.0, "tokens_per_second": 20_000.0, "world_size": 2}
    measured |= {"tokens_seen": 6144, "padded_share": 0.025, "data_share": 0.01, "dropped_samples": 2}
    measured |= {"epochs": {"code": 0.5, "mail": 2.0}, "rows_per_batch": {"code": 6, "mail": 2}}
    page = curve.as_markdown(measured)
    picture = base64.b64decode(page.partition("base64,")[2].partition(")")[0]).decode()
    assert picture.lstrip().startswith("<")
    assert "unigram 6.20" in picture
    assert "from 7.000 to 4.000" in page
    assert "6,144 tokens (code 6 rows a batch and 0.50 epochs, mail 2 rows a batch and 2.00 epochs)" in page
    assert "2.5% of its slots were padding" in page
    assert "2 damaged samples were left out" in page


def test_the_first_attempt_starts_fresh_and_a_later_one_from_what_may_be_trusted(
    small_checkpoints: Path, tmp_path: Path
) -> None:
    run = Run()
    profile = Profile(name="here", storage={"root": str(tmp_path)})
    shards = Artifact(name="shards", url="somewhere", digest="0" * 64)
    assert job_for(run, profile, shards).settings["resume_from"] is None
    checkpoints = tmp_path / run.id / "checkpoints" / "pretrain"
    shutil.copytree(small_checkpoints, checkpoints, dirs_exist_ok=True)
    again = job_for(run, profile, shards, Attempt(1))
    assert again.settings["resume_from"] == str(checkpoints / "step-000004")
    assert set(default_gates("loss_reproduces")) == {"loss_reproduces"}


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_flow_survives_a_killed_rank_and_does_nothing_the_second_time(
    small_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.pretrain import pretrain

    run, profile = small_run(), Profile(name="here", storage={"root": str(tmp_path / "runs")})
    folder = run_folder(run, profile)
    folder.write(record_of_shards(folder.run_id, small_shards))
    drill = Drill(kind="kill", rank=1, step=50, phase="backward", once=str(tmp_path / "struck"))
    for name, value in drill.environment.items():
        monkeypatch.setenv(name, value)
    record = pretrain(run, profile)
    assert record.status == "completed", record.reason
    assert all(verdict.passed for verdict in record.verdicts)
    assert len(record.verdicts) == 4
    assert record.metrics["restarts"] == 1
    assert record.metrics["first_step"] == 40, "went on from the newest checkpoint"
    assert record.metrics["held_out_loss"] < record.metrics["unigram_cross_entropy"]
    assert [fault.kind for fault in record.faults] == ["crash"]
    checkpoint = record.output("checkpoint")
    assert checkpoint.digest == manifest.digest(Path(checkpoint.url))
    assert open_checkpoint(checkpoint.url).manifest.step == 80
    assert pretrain(run, profile).ended_at == record.ended_at, "not run again"
    scraped_of_the_whole(tmp_path / "runs", record)


def scraped_of_the_whole(runs: Path, record: Record) -> None:
    """What an exporter tells of that job, from the folder that its ranks and supervisor wrote."""
    with serving(runs, port=0) as port:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    told = {(one.name, *sorted(one.labels.items())): one.value for f in families(page) for one in f.samples}
    job = ("job", f"{record.run_id}/pretrain")
    assert told["stanchion_job_running", job] == told["stanchion_job_failed", job] == 0
    assert told["stanchion_restarts_total", job] == 1
    assert told["stanchion_incidents_total", job, ("kind", "crash")] == 1
    assert told["stanchion_checkpoint_step", job] == 80
    for rank in (("rank", "0"), ("rank", "1")):
        assert told["stanchion_step", job, rank] == 80
        assert told["stanchion_steps_total", job, rank] in (88, 89, 90)  # killed at 50, again from 40
        assert 0 < told["stanchion_mfu_ratio", job, rank] < 1
    causes = {dict(key[1:])["cause"]: value for key, value in told.items() if "goodput" in key[0]}
    assert causes == pytest.approx(record.metrics["goodput"], abs=0.01)
    assert sum(causes.values()) == pytest.approx(record.metrics["job_seconds"], rel=0.01)


def small_run() -> Run:
    return Run(
        model={"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64},
        training={"steps": 80, "batch_size": 4, "checkpoint_every": 20, "held_out_sequences": 12},
        gates={
            "checkpoint": {
                "files_match_manifest": {},
                "weights_are_finite": {},
                "loss_reproduces": {},
                "beats_a_unigram_model": {"margin_nats": 0.0},
            }
        },
    )


def record_of_shards(run_id: str, shards: Path) -> Record:
    now = datetime.now(UTC)
    return Record(
        stage="shard_dataset",
        run_id=run_id,
        status="completed",
        profile="here",
        git_commit=None,
        config_digest="",
        outputs=[Artifact(name="shards", url=str(shards), digest=datasets.digest(str(shards)))],
        started_at=now,
        ended_at=now,
    )


def result_of(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "job" / "result.json").read_text())
    return result


def losses(folder: Path) -> list[float]:
    return [event["loss"] for event in events.read(folder / "job" / "events", "step", rank=0)]
