"""Run and profile: what fits, what does not, and what a user is told."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from components import plugins
from components.config import Profile, Run, check, configure, profile_names
from components.errors import ConfigError


@pytest.mark.parametrize("profile", profile_names())
def test_the_default_run_fits_every_shipped_profile(profile: str) -> None:
    run, chosen = configure(profile)
    check(run, chosen)
    assert chosen.name == profile


def test_a_run_survives_a_round_trip_through_json() -> None:
    run, profile = configure("laptop", ["training.steps=50", "data.source.max_documents=9"])
    assert Run.model_validate(run.model_dump(mode="json")) == run
    assert Profile.model_validate(profile.model_dump(mode="json")) == profile


def test_the_same_configuration_has_the_same_run_id_and_another_one_has_another() -> None:
    first, _ = configure("laptop", ["training.steps=50"])
    again, _ = configure("laptop", ["training.steps=50"])
    other, _ = configure("laptop", ["training.steps=51"])
    assert first.id == again.id != other.id


def test_an_edition_keeps_the_configuration_and_changes_the_folder() -> None:
    first, _ = configure("laptop")
    second, _ = configure("laptop", ["edition=second"])
    assert second.id == f"{first.id}-second"


def test_a_bare_profile_name_stands_for_its_file() -> None:
    assert Profile.model_validate("laptop").processes == 2


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("training.stepps=3", "did you mean 'steps'"),
        ("training.steps=0", "greater than or equal to 1"),
        ("data.source.kind=python_stlib", "did you mean 'python_stdlib'"),
        ("training.batch_size=3", "pass --set training.batch_size=4"),
        ("profile.launcher.kind=slrum", "did you mean 'slurm'"),
        ("model.num_heads=3", "not a multiple"),
        ("gates.checkpoint.weights_are_finit={}", "did you mean 'weights_are_finite'"),
        ("training.steps", "key=value"),
    ],
)
def test_a_bad_setting_is_answered_with_what_is_allowed(setting: str, expected: str) -> None:
    with pytest.raises(ConfigError) as error:
        configure("laptop", [setting])
    assert expected in str(error.value)


MIXTURE = ["data.source={kind: mixture, parts: {code: {kind: python_stdlib}, more: {kind: python_stdlib}}}"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (["training.mixture={code: 1}"], "data.source is 'python_stdlib', which has no parts"),
        ([*MIXTURE, "training.mixture={code: 1, prose: 2}"], "names prose; the parts are code, more"),
        ([*MIXTURE, "training.mixture={code: 1, more: 99}"], "raise training.batch_size to 100"),
        ([*MIXTURE, "training.mixture={code: 0}"], "greater than 0"),
    ],
)
def test_a_mixture_that_its_source_or_batch_cannot_serve_is_refused(
    settings: list[str], expected: str
) -> None:
    with pytest.raises(ConfigError) as error:
        configure("laptop", settings)
    assert expected in str(error.value)


def test_a_mixture_of_the_parts_of_its_source_fits() -> None:
    run, _ = configure("laptop", [*MIXTURE, "training.mixture={code: 1, more: 2}"])
    assert run.training.mixture == {"code": 1, "more": 2}


def test_a_wrong_profile_name_is_answered_with_the_right_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'laptop'"):
        configure("latop")


def test_a_profile_of_ones_own_is_a_yaml_file(tmp_path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("processes: 4\nstorage: {root: elsewhere}\n")
    _, profile = configure(str(mine))
    assert (profile.name, profile.processes, profile.storage.root) == ("mine", 4, "elsewhere")


def test_a_gate_named_alone_joins_the_default_ones() -> None:
    run, _ = configure("laptop", ["gates.checkpoint.beats_a_unigram_model={}"])
    assert set(Run().gates.checkpoint) <= set(run.gates.checkpoint)


def test_a_plug_in_is_named_by_its_file() -> None:
    assert plugins.name_of(Run().data.source) == "python_stdlib"


@pytest.mark.parametrize("group", ["checkpoint", "alignment", "deployment"])
def test_nothing_passes_because_no_gate_was_asked(group: str) -> None:
    with pytest.raises(ValueError, match="name at least one"):
        Run.model_validate({"gates": {group: {}}})


def test_a_scheduled_run_is_named_after_its_time_and_one_by_hand_after_its_settings(monkeypatch) -> None:
    from tasks.date_run import date_run

    run = Run()
    assert date_run(run).id == run.id
    scheduled = SimpleNamespace(scheduled_start_time=datetime(2026, 12, 1, 1, tzinfo=UTC))
    by_schedule = SimpleNamespace(deployment=SimpleNamespace(id="a-deployment"), flow_run=scheduled)
    monkeypatch.setattr("tasks.date_run.runtime", by_schedule)
    assert date_run(run).id == f"{run.id}-20261201-010000"
    assert date_run(Run(edition="mine")).edition == "mine"
