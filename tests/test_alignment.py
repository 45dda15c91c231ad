"""Alignment: pairs are cut right, rewards parse and never run, cheats are refused, kills are survived."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from components import plugins
from components.alignment import comparison, pairs, programs
from components.alignment.comparison import Outcome
from components.alignment.config import Alignment, Pairs
from components.alignment.reward import advantages, reward
from components.alignment.summary import as_markdown
from components.checkpoints import manifest, state
from components.checkpoints.restore import open_checkpoint
from components.config import Profile, Run, configure, run_folder
from components.errors import ConfigError, GateRefused
from components.jobs import Job
from components.judgement import Subject, judge
from components.launchers import local
from components.observability import events
from components.reliability.faults import Drill
from components.reliability.finding import Attempt
from components.reliability.supervisor import supervise
from components.reliability.watchdog import Limits
from components.storage import Config as Storage

REWARDS = plugins.names("components.alignment.rewards")
MODULE = '''
class Box:
    @property
    def size(self):
        """How much fits in."""
        # an estimate
        return self.width * self.height

    def open(self): self.is_open = True

def outer(a, b):
    @cached
    def inner(x):
        return x + a
    return inner(b)
'''


def alignment(**rl: Any) -> Alignment:
    return Alignment.model_validate({"rl": rl})


def test_a_pair_splits_a_function_between_signature_and_body() -> None:
    found = list(pairs.extract([MODULE], Pairs()))
    prompts = [prompt for prompt, _ in found]
    assert prompts == ['def size(self):\n    """How much fits in."""', "def outer(a, b):", "def inner(x):"]
    assert found[0][1] == "\n    # an estimate\n    return self.width * self.height"
    assert found[1][1].startswith("\n    @cached\n    def inner")


def test_no_prompt_ends_in_a_newline_and_every_completion_begins_with_one() -> None:
    for prompt, completion in pairs.extract([Path(pairs.__file__).read_text()], Pairs()):
        assert prompt == prompt.rstrip()
        assert completion.startswith("\n")
        assert programs.read(prompt + completion) is not None


def test_a_text_that_is_not_python_and_a_function_seen_before_give_no_pair() -> None:
    assert list(pairs.extract(["def f(:", "\0", MODULE], Pairs())) == list(
        pairs.extract([MODULE, MODULE], Pairs())
    )


@pytest.mark.parametrize(
    "text",
    [
        "def f(:\n    pass",
        "def f():",
        'def f():\n    """Only a docstring."""',
        "def f():\n    return 1\nprint(2)",
        "def f():\n    return '\0'",
        "def f():\n    return " + "(" * 3000 + ")" * 3000,
        "def f():\n    return " + "-" * 15_000 + "1",
        "def f():\n" + "    x = 1\n" * 10_000,
    ],
    ids=["syntax", "no body", "docstring", "two statements", "null", "parentheses", "minus", "long"],
)
def test_a_text_that_is_not_one_function_with_a_body_is_worth_nothing(text: str) -> None:
    assert programs.read(text) is None
    for name in REWARDS:
        assert plugins.load("components.alignment.rewards", name).score(text, "", "\n    pass") == 0.0


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_one_for_the_human_body_and_never_leaves_zero_to_one(name: str) -> None:
    score = plugins.load("components.alignment.rewards", name).score
    human = "\n    if a:\n        return a + b\n    return b"
    assert score("def f(a, b):", human, human) == 1.0
    assert 0.0 <= score("def f(a, b):", "\n    pass", human) <= 1.0


def test_generated_code_is_never_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    body = f"\n    return open({str(trap)!r}, 'w')\n"
    prompt = f"def f(a=open({str(trap)!r}, 'w')):"
    assert reward(alignment().rl.rewards, prompt, body, body, ended=True) > 0
    assert not trap.exists()


def test_the_default_reward_is_the_weighted_mean_and_a_cut_off_completion_is_worth_nothing() -> None:
    rewards, human = alignment().rl.rewards, "\n    return a + b"
    half = "\n    return a"
    nodes = [programs.size(programs.read("def f(a, b):" + text)) for text in (half, human)]
    expected = 0.3 + 0.5 * nodes[0] / nodes[1] + 0.2 * 0.5
    assert reward(rewards, "def f(a, b):", half, human, ended=True) == pytest.approx(expected)
    assert reward(rewards, "def f(a, b):", human, human, ended=True) == pytest.approx(1.0)
    assert reward(rewards, "def f(a, b):", human, human, ended=False) == 0.0


def test_a_reward_for_parsing_alone_can_be_asked_for() -> None:
    run, _ = configure("laptop", ["alignment.rl.rewards={parses: {}}", "alignment.rl.kl_weight=0"])
    rewards = run.alignment.rl.rewards
    assert (list(rewards), run.alignment.rl.kl_weight) == (["parses"], 0)
    assert reward(rewards, "def f(a):", "\n    pass", "\n    return a", ended=True) == 1.0


def test_a_run_that_pays_for_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="name at least one reward"):
        configure("laptop", ["alignment.rl.rewards={}"])


@pytest.mark.parametrize(
    ("body", "has_substance"),
    [
        ("pass", False),
        ("return None", False),
        ("raise NotImplementedError", False),
        ("return a", False),
        ("return other(1, 2, 3)", False),
        ("return a.strip() + b", True),
    ],
)
def test_substance_is_more_than_a_trivial_body_and_reads_the_arguments(
    body: str, has_substance: bool
) -> None:
    function = programs.read(f"def f(a, b):\n    {body}")
    assert function is not None
    assert programs.has_substance(function) is has_substance


def test_advantages_compare_each_sample_with_the_others_of_its_prompt() -> None:
    assert advantages([1.0, 0.0, 0.0, 0.5, 0.5, 0.5], 3) == pytest.approx([1.0, -0.5, -0.5, 0, 0, 0])


def outcome(**changes: Any) -> Outcome:
    usual = {"text": "x", "parses": True, "substance": True, "nodes": 10, "ended": True, "tokens": 20}
    measured = {"reward": 0.5, "drift": 0.0, "human_nats": 50.0, "human_tokens": 20}
    return Outcome(**{**usual, **measured, **changes})


def test_a_rise_on_the_same_prompts_has_an_interval_that_excludes_zero() -> None:
    before = [outcome(parses=i % 4 == 0, text=str(i)) for i in range(200)]
    after = [outcome(parses=i % 4 != 3, text=str(i // 2), drift=4.0) for i in range(200)]
    found = comparison.compare(before, after, seed=0)
    rise = found["rise"]["parse_share"]
    assert rise["mean"] == pytest.approx(0.5)
    assert 0.4 < rise["low"] < rise["mean"] < rise["high"] < 0.6
    assert found["after"]["kl_per_token"]["mean"] == pytest.approx(0.2)
    assert (found["before"]["distinct_share"], found["after"]["distinct_share"]) == (1.0, 0.5)


def test_no_change_has_an_interval_that_holds_zero() -> None:
    generator = np.random.default_rng(0)
    before, after = ([outcome(parses=bool(b)) for b in generator.integers(0, 2, 200)] for _ in range(2))
    rise = comparison.compare(before, after, seed=0)["rise"]["parse_share"]
    assert rise["low"] < 0 < rise["high"]


def compared(**changes: float) -> dict[str, Any]:
    """Figures in the shape that `evaluate` leaves, those of the aligned policy changed."""
    usual = {
        "parse_share": 0.7, "substance_share": 0.5, "distinct_share": 0.98, "tokens": 25.0,
        "human_nll": 2.7, "kl_per_token": 0.15, "reward": 0.5, "nodes": 11.0, "ended_share": 0.95,
    }  # fmt: skip
    start = usual | {"parse_share": 0.4, "substance_share": 0.25, "human_nll": 2.5, "kl_per_token": 0.0}
    start |= {"tokens": 32.0, "reward": 0.25, "nodes": 10.0}
    after = usual | changes

    def spread(values: dict[str, float]) -> dict[str, Any]:
        plain = values["distinct_share"]
        found = {n: {"mean": v, "low": v - 0.05, "high": v + 0.05} for n, v in values.items()}
        return {**found, "distinct_share": plain}

    rise = spread({name: after[name] - start[name] for name in start})
    del rise["distinct_share"]
    return {"before": spread(start), "after": spread(after), "rise": rise, "prompts": 256, "samples": []}


def asked(figures: dict[str, Any]) -> dict[str, Any]:
    gates = plugins.ManyOf("components.gates")._validate({"reward_improved": {}, "policy_did_not_cheat": {}})
    return {verdict.gate: verdict for verdict in judge(Subject(Path(), figures=figures), gates)}


def test_an_honest_policy_passes_both_gates() -> None:
    verdicts = asked(compared())
    assert all(verdict.passed for verdict in verdicts.values()), verdicts


def test_a_policy_that_was_only_paid_for_parsing_improves_and_is_refused() -> None:
    hacked = compared(
        parse_share=0.977,
        substance_share=0.004,
        distinct_share=0.184,
        tokens=4.2,
        nodes=2.04,
        human_nll=3.5,
        kl_per_token=1.28,
    )
    verdicts = asked(hacked)
    assert verdicts["reward_improved"].passed
    assert not verdicts["policy_did_not_cheat"].passed
    for said in ("distinct", "length", "syntax nodes", "substance", "human text", "drift"):
        assert said in verdicts["policy_did_not_cheat"].reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"distinct_share": 0.89}, "distinct"),
        ({"tokens": 11.0}, "length"),
        ({"nodes": 7.0}, "syntax nodes"),
        ({"substance_share": 0.2}, "substance"),
        ({"human_nll": 2.9}, "human text"),
        ({"kl_per_token": 0.31}, "drift"),
    ],
)
def test_each_way_to_cheat_is_enough_to_be_refused(change: dict[str, float], said: str) -> None:
    verdict = asked(compared(**change))["policy_did_not_cheat"]
    assert not verdict.passed
    assert said in verdict.reason
    assert ";" not in verdict.reason


def test_a_rise_within_the_margin_is_no_improvement() -> None:
    assert not asked(compared(parse_share=0.47))["reward_improved"].passed


def test_figures_that_are_missing_refuse_and_say_so() -> None:
    verdicts = asked({})
    assert not any(verdict.passed for verdict in verdicts.values())
    assert all("evaluate both first" in verdict.reason for verdict in verdicts.values())


def test_the_summary_shows_before_after_and_a_fence_that_cannot_be_broken_out_of() -> None:
    figures = compared()
    figures["samples"] = [{"prompt": "def f():", "before": "\n    '```'", "after": "\n    pass"}]
    page = as_markdown(figures)
    assert "| parses | 0.400 | 0.700 | +0.300 (+0.250 to +0.350) |" in page
    assert page.count("```") == 4


@pytest.fixture(scope="module")
def model() -> Any:
    import torch

    from components.training.config import Model
    from components.training.model import build

    torch.manual_seed(0)
    small = Model(hidden_size=32, num_layers=2, intermediate_size=64, context_length=64)
    return build(small, 300, torch.float32).eval()


def test_generation_gives_each_choice_the_probability_that_training_sees(model: Any) -> None:
    import torch

    from components.alignment import generate, sequences

    prompts = [[5, 6, 7], [8, 9], [10, 11, 12, 13]] * 4
    samples = generate.sample(
        model, prompts, longest=40, generator=torch.Generator().manual_seed(1), temperature=1.0
    )
    assert any(s.ended for s in samples), "some rows leave the batch early"
    written = [[*s.ids, 0] if s.ended else s.ids for s in samples]
    batch = sequences.pack(prompts, written, torch.device("cpu"))
    with torch.no_grad():
        read = sequences.of_chosen(sequences.logprobs(model, batch), batch)
    said = torch.tensor([value for s in samples for value in s.logprobs])
    assert torch.allclose(read, said, atol=1e-4)


def test_the_same_dice_write_the_same_text(model: Any) -> None:
    import torch

    from components.alignment import generate

    first, again = (
        generate.sample(model, [[1, 2]] * 3, longest=8, generator=torch.Generator().manual_seed(3))
        for _ in range(2)
    )
    assert first == again


def test_a_policy_has_not_diverged_from_itself(model: Any) -> None:
    import torch

    from components.alignment import sequences

    batch = sequences.pack([[1, 2], [3]], [[4, 0], [5, 6, 0]], torch.device("cpu"))
    with torch.no_grad():
        found = sequences.logprobs(model, batch)
    assert sequences.divergence(found, found).abs().max() == 0
    assert (sequences.divergence(found, found.roll(1, -1)) > 0).all()


def test_batches_are_alike_in_length_and_every_epoch_mixes_them_anew() -> None:
    from components.alignment.sft import Batches

    lengths = list(np.random.default_rng(0).integers(4, 200, 1000))
    batches = Batches(lengths, 32, seed=0)
    spread = [np.ptp([lengths[i] for i in batches.batch(step)]) for step in range(batches.per_epoch)]
    assert np.mean(spread) < 40
    epoch = [index for step in range(batches.per_epoch) for index in batches.batch(step)]
    assert len(set(epoch)) == len(epoch) == 31 * 32
    assert batches.batch(0) == Batches(lengths, 32, seed=0).batch(0)
    assert batches.batch(0) != batches.batch(batches.per_epoch)


@pytest.fixture(scope="session")
def small_pairs(small_shards: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = str(tmp_path_factory.mktemp("pairs") / "functions.json")
    found = pairs.collect(small_shards, target, Pairs(longest_prompt=160, longest_completion=200))
    assert min(found.values()) > 3
    return target


def test_collected_pairs_are_short_end_in_the_end_and_share_nothing_between_the_splits(
    small_pairs: str, small_shards: Path
) -> None:
    from components.data import tokenizer

    train, held_out = pairs.load(small_pairs, "train"), pairs.load(small_pairs, "held_out")
    encoder = tokenizer.load(small_shards)
    for pair in [*train, *held_out]:
        assert len(pair.prompt_ids) <= 160
        assert len(pair.completion_ids) <= 200
        assert pair.completion_ids[-1] == pairs.END
        assert encoder.decode(list(pair.completion_ids[:-1])) == pair.completion
    assert not {(p.prompt, p.completion) for p in train} & {(p.prompt, p.completion) for p in held_out}


@pytest.fixture(scope="session")
def launch(small_pairs: str, small_shards: Path) -> Callable[..., Any]:
    """Run a job of alignment on real ranks under the supervisor."""
    from components.checkpoints.check import resumable

    def run(target: str, folder: Path, settings: dict[str, Any], *, processes: int, drill: Any = None) -> Any:
        def job_for(attempt: Attempt) -> Job:
            if "checkpoints" in settings:
                settings["resume_from"] = resumable(settings["checkpoints"])
            environment = drill.environment if drill else {}
            return Job(
                folder.name,
                f"components.alignment.{target}",
                {"pairs": small_pairs, **settings},
                folder,
                processes,
                environment=environment,
            )

        return supervise(job_for, local.Config(), Limits(backoff_seconds=0.0))

    return run


def trainer_settings(shards: Path, start: str, folder: Path, **chosen: Any) -> dict[str, Any]:
    return {
        "shards": str(shards),
        "start_from": start,
        "checkpoints": str(folder / "checkpoints"),
        "scratch": str(folder),
        "model": {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64},
        "training": {"held_out_sequences": 12, "timeout_seconds": 60, "precision": "fp32"},
        "alignment": chosen,
        "parallelism": {"zero": {"stage": 2}},
    }


@pytest.fixture(scope="session")
def small_tuned(
    launch: Callable[..., Any],
    small_checkpoints: Path,
    small_shards: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """A small policy after supervised fine-tuning, validated."""
    base = str(
        shutil.copytree(small_checkpoints / "step-000004", tmp_path_factory.mktemp("base") / "step-000004")
    )
    shutil.copy(state.url_of(str(small_checkpoints / "step-000004")), state.url_of(base))
    state.validate(base, [])
    folder = tmp_path_factory.mktemp("sft")
    sft = {"steps": 200, "batch_size": 16, "learning_rate": 1e-2, "checkpoint_every": 200}
    outcome = launch("sft", folder, trainer_settings(small_shards, base, folder, sft=sft), processes=1)
    assert outcome.result["body_nll_after"] < outcome.result["body_nll_before"] - 1.0
    state.validate(outcome.result["checkpoint"], [])
    return str(outcome.result["checkpoint"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_reinforcement_learning_that_was_killed_ends_with_the_weights_of_one_that_was_not(
    launch: Callable[..., Any], small_tuned: str, small_shards: Path, tmp_path: Path
) -> None:
    rl = {"steps": 4, "checkpoint_every": 2, "prompts_per_step": 8, "samples_per_prompt": 8}
    rl |= {"max_new_tokens": 32, "warmup_steps": 1, "learning_rate": 1e-3}
    ended = {}
    for name, drill in (
        ("whole", None),
        ("killed", Drill(kind="kill", rank=1, step=4, phase="rollout", once=str(tmp_path / "marker"))),
    ):
        settings = trainer_settings(small_shards, small_tuned, tmp_path / name, rl=rl)
        ended[name] = launch("rl", tmp_path / name, settings, processes=2, drill=drill)
    assert (ended["whole"].restarts, ended["killed"].restarts) == (0, 1)
    whole, killed = (manifest.read(Path(ended[name].result["checkpoint"])) for name in ("whole", "killed"))
    assert whole.tensors == killed.tensors
    assert whole.partitions == killed.partitions
    updates = events.read(tmp_path / "whole" / "events", "update", rank=0)
    assert sum(update["reward"] for update in updates) > 0, "nothing was learned from"
    assert set(updates[0]) >= {
        "reward",
        "parse_share",
        "kl",
        "entropy",
        "length",
        "distinct_share",
        "seconds",
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_comparison_is_the_same_on_one_rank_and_on_two(
    launch: Callable[..., Any], small_tuned: str, small_pairs: str, tmp_path: Path
) -> None:
    many = tmp_path / "many.json"
    many.write_text(json.dumps({"held_out": json.loads(Path(small_pairs).read_text())["train"]}))
    settings = {
        "pairs": str(many),
        "before": small_tuned,
        "after": small_tuned,
        "precision": "fp32",
        "alignment": {"rl": {"max_new_tokens": 32}, "evaluation": {"prompts": 80, "samples_shown": 4}},
    }
    one, two = (launch("evaluate", tmp_path / str(n), dict(settings), processes=n).result for n in (1, 2))
    assert one["before"] == two["before"] == two["after"]
    assert one["rise"]["parse_share"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    assert one["after"]["kl_per_token"]["mean"] == pytest.approx(0, abs=1e-6)
    assert len(one["samples"]) == 4


def small_run(tmp_path: Path) -> tuple[Run, Profile]:
    """A run on the laptop profile, everything of it very small."""
    run = Run.model_validate(
        {
            "data": {
                "source": {"kind": "python_stdlib", "max_documents": 60},
                "tokenizer": {"vocab_size": 400},
                "shards": {"held_out_share": 0.2},
            },
            "model": {"hidden_size": 32, "num_layers": 2, "intermediate_size": 64, "context_length": 64},
            "training": {"steps": 4, "held_out_sequences": 8},
            "alignment": {
                "sft": {"steps": 4, "batch_size": 16},
                "rl": {"steps": 2, "prompts_per_step": 4, "samples_per_prompt": 2, "max_new_tokens": 16},
                "evaluation": {"prompts": 16},
            },
            "gates": {"checkpoint": {"files_match_manifest": {}, "weights_are_finite": {}}},
        }
    )
    profile = Profile.model_validate("laptop")
    return run, profile.model_copy(update={"storage": Storage(root=str(tmp_path))})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("prefect_server")
def test_a_policy_that_learned_nothing_is_quarantined_and_stops_the_flow(tmp_path: Path) -> None:
    from flows.align import align
    from flows.pretrain import pretrain
    from flows.shard_dataset import shard_dataset

    run, profile = small_run(tmp_path)
    shard_dataset(run, profile)
    pretrain(run, profile)
    with pytest.raises(GateRefused, match="reward_improved"):
        align(run, profile)
    folder = run_folder(run, profile)
    tuned, refused = folder.completed("sft"), folder.read("rl")
    assert refused is not None
    assert (refused.status, refused.outputs) == ("refused", [])
    assert [v.gate for v in refused.verdicts if not v.passed] == ["reward_improved"]
    assert [v.gate for v in tuned.verdicts] == ["files_match_manifest", "weights_are_finite"]
    left = state.read(refused.metrics["checkpoint"])
    assert left is not None
    assert left.state == "quarantined"
    assert "reward_improved" in (left.reason or "")
    assert refused.metrics["prompts"] == 16
    assert refused.metrics["kl"] == refused.metrics["after"]["kl_per_token"]["mean"]
    assert len(events.read(Path(folder.path("events", "rl")), "update", rank=0)) == 2
    assert open_checkpoint(tuned.output("sft_policy").url).manifest.stage == "sft"
