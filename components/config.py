"""What runs (`Run`) and where (`Profile`): two axes that never mix, each composed of what its parts own.

Any run fits any profile, or `check` says which value of which does not. Defaults are laptop-sized: `Run()`
is the demo.
"""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, Field, GetJsonSchemaHandler, ValidationError, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from components import storage
from components.alignment.config import Alignment
from components.checkpoints import sign
from components.checkpoints.retention import Retention
from components.checkpoints.sign import Secrets
from components.data.curation.curate import Config as Checks
from components.data.mixture import counts_per_batch
from components.data.shards import Config as Shards
from components.data.tokenizer import Config as Tokenizer
from components.errors import ConfigError
from components.plugins import Config, ManyOf, OneOf, load, name_of
from components.records import RunFolder, digest
from components.reliability import timeouts
from components.reliability.config import Reliability
from components.serving.config import Serving
from components.storage import Config as Storage
from components.training.config import Model, Training

Settings = TypeVar("Settings", bound=BaseModel)
PROFILES = Path(__file__).parent.parent / "infra" / "profiles"


class Data(Config):
    """From raw text to shards."""

    source: Annotated[Config, OneOf("components.data.sources")] = Field(
        default={"kind": "python_stdlib"}, validate_default=True
    )
    """Where documents come from."""

    checks: Checks = Checks()
    """What a document must be to be kept."""

    tokenizer: Tokenizer = Tokenizer()
    """How text becomes token ids."""

    shards: Shards = Shards()
    """How samples are laid out in tar files."""


class Gates(Config):
    """Which claims must hold before a thing is used; one file a claim, `{name: settings}`."""

    checkpoint: Annotated[dict[str, Config], ManyOf("components.gates")] = Field(
        default={
            "files_match_manifest": {},
            "tensors_match_digests": {},
            "weights_are_finite": {},
            "norms_within_bounds": {},
            "loss_reproduces": {},
            "loss_is_no_worse": {},
            "beats_a_unigram_model": {},
        },
        validate_default=True,
    )
    """Asked of a pre-training checkpoint before anything loads it."""

    during: Annotated[dict[str, Config], ManyOf("components.gates")] = Field(
        default={
            "files_match_manifest": {},
            "tensors_match_digests": {},
            "weights_are_finite": {},
            "norms_within_bounds": {},
        },
        validate_default=True,
    )
    """Asked of each checkpoint while its job trains on; a refusal ends the attempt. None: only at the end."""

    alignment: Annotated[dict[str, Config], ManyOf("components.gates")] = Field(
        default={
            "files_match_manifest": {},
            "tensors_match_digests": {},
            "weights_are_finite": {},
            "norms_within_bounds": {},
            "reward_improved": {},
            "policy_did_not_cheat": {},
        },
        validate_default=True,
    )
    """Asked of an aligned policy before it may be deployed."""

    deployment: Annotated[dict[str, Config], ManyOf("components.gates")] = Field(
        default={"answers_are_known": {}, "logprobs_match_trainer": {}, "load_is_served": {}},
        validate_default=True,
    )
    """Asked of a started server before it takes traffic."""

    @field_validator("checkpoint", "alignment", "deployment")
    @classmethod
    def _someone_must_vouch(cls, chosen: dict[str, Config]) -> dict[str, Config]:
        if not chosen:
            raise ValueError("no gate at all would let everything pass; name at least one")
        return chosen


class Run(Config):
    """What runs: data, model, training, alignment, gates and serving. Says nothing about machines."""

    name: str = Field(default="demo", pattern=r"^[a-z0-9][a-z0-9-]{0,40}$")
    """First half of the run id."""

    edition: str = Field(default="", pattern=r"^[a-z0-9-]{0,40}$")
    """Another word here runs the same configuration anew; scheduled runs take their date."""

    seed: int = Field(default=0, ge=0)
    """Every random choice derives from it."""

    data: Data = Data()
    model: Model = Model()
    parallelism: Annotated[dict[str, Config], ManyOf("components.parallelism")] = Field(
        default={"zero": {"stage": 2}}, validate_default=True
    )
    """Strategies by name, composed; their degrees multiply to the processes one copy of the model needs."""

    training: Training = Training()
    alignment: Alignment = Alignment()
    gates: Gates = Gates()
    serving: Serving = Serving()

    @property
    def id(self) -> str:
        """The run's folder name: the same configuration has the same id, so running it again continues it."""
        parts = [
            self.name,
            digest(self.model_dump(mode="json", exclude={"edition"}))[:8],
            self.edition,
        ]
        return "-".join(part for part in parts if part)


class Prices(Config):
    """What a device costs, for the ledger."""

    device_hour: float = Field(default=0.02, ge=0)
    """Money for one device for one hour; the laptop's default is about a cloud CPU core's."""

    currency: str = "USD"
    """Unit of every cost in the records."""


class Devices(Config):
    """What each process computes on."""

    kind: Literal["cpu", "cuda"] = "cpu"
    """`cpu` trains over gloo, `cuda` over NCCL."""

    threads_per_process: int = Field(default=1, ge=1)
    """OpenMP threads of one rank; one each is fastest when ranks share a small machine."""


class Sharding(Config):
    """Who writes shards, and how many at once."""

    runner: Literal["processes", "threads", "ray", "dask"] = "processes"
    """`processes` on this machine; `ray` and `dask` on a cluster whose machines all see storage.scratch."""

    workers: int | None = Field(default=None, ge=1)
    """Shards written at once; null takes every core, or fewer for little text."""


class Profile(Config):
    """Where it runs: launcher, processes, devices, who shards, storage, prices. Nothing of models or data."""

    name: str
    """File name under `infra/profiles/`."""

    launcher: Annotated[Config, OneOf("components.launchers")] = Field(
        default={"kind": "local"}, validate_default=True
    )
    """Who starts the processes."""

    processes: int = Field(default=2, ge=1)
    """Ranks of a training job."""

    devices: Devices = Devices()
    sharding: Sharding = Sharding()
    storage: Storage = Storage()
    reliability: Reliability = Reliability()
    retention: Retention = Retention()
    secrets: Secrets = Secrets()
    prices: Prices = Prices()

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, value: Any) -> Any:
        """A bare name stands for the file, so `profile: laptop` is enough in a deployment."""
        return read_profile(value) if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The form of a deployment accepts a name as well."""
        reference = handler(schema)
        definition = handler.resolve_ref_schema(reference)
        whole = dict(definition)
        definition.clear()
        definition["anyOf"] = [{"type": "string", "title": "Name", "examples": profile_names()}, whole]
        return reference


def profile_names() -> list[str]:
    """The shipped profiles."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def read_profile(name: str) -> dict[str, Any]:
    """The settings of a shipped profile, or of a YAML file when given a path."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else PROFILES / f"{name}.yaml"
    if not path.is_file():
        known = profile_names()
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(
            f"no profile '{name}'; {hint}choose one of {', '.join(known)}, or a YAML file's path"
        )
    content: dict[str, Any] = yaml.safe_load(path.read_text())
    return {"name": path.stem, **content}


def configure(profile: str, settings: list[str] | None = None) -> tuple[Run, Profile]:
    """A run and a profile from what a user typed: a profile's name and `key=value` settings.

    `training.steps=50` changes the run, `profile.processes=4` the profile. Values are YAML.
    """
    what: dict[str, Any] = {}
    where = read_profile(profile)
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise ConfigError(f"--set {setting}: write it as key=value, for example training.steps=50")
        parts = key.split(".")
        tree = where if parts[0] == "profile" else what
        _put(tree, parts[1:] if parts[0] == "profile" else parts, yaml.safe_load(value), key)
    what = _with_default_kinds(what)
    run, chosen = _validated(Run, what), _validated(Profile, where)
    check(run, chosen)
    return run, chosen


def check(run: Run, profile: Profile) -> None:
    """Refuse what does not fit together, with both values and what to do."""
    processes = profile.processes
    sizes = {
        name: degree
        for name, config in run.parallelism.items()
        if (degree := load("components.parallelism", name).degree(config)) > 1
    }
    needed = 1
    for degree in sizes.values():
        needed *= degree
    if processes % needed:
        product = " x ".join(f"{name}={degree}" for name, degree in sizes.items())
        raise ConfigError(
            f"{product} needs a multiple of {needed} processes, profile '{profile.name}' has {processes}; "
            f"lower a degree or pass --set profile.processes={needed}"
        )
    for where, batch in (
        ("training.batch_size", run.training.batch_size),
        ("alignment.sft.batch_size", run.alignment.sft.batch_size),
        ("alignment.rl.prompts_per_step", run.alignment.rl.prompts_per_step),
    ):
        if batch % (processes // needed):
            fits = batch + (-batch) % (processes // needed)
            raise ConfigError(
                f"{where}={batch} does not divide over {processes // needed} data-parallel ranks of profile "
                f"'{profile.name}'; pass --set {where}={fits}"
            )
    timeouts.check(
        profile.reliability.limits,
        collective_seconds=run.training.timeout_seconds,
        launcher=profile.launcher,
    )
    _check_mixture(run)


def _check_mixture(run: Run) -> None:
    """Proportions name parts of the source, and a batch has a row for each."""
    mixture, source = run.training.mixture, run.data.source
    if not mixture:
        return
    parts = getattr(source, "parts", {})
    if not parts:
        raise ConfigError(
            f"training.mixture names {', '.join(mixture)}, data.source is '{name_of(source)}', which has no "
            "parts; pass --set data.source.kind=mixture with parts, or leave training.mixture out"
        )
    if unknown := sorted(set(mixture) - set(parts)):
        raise ConfigError(
            f"training.mixture names {', '.join(unknown)}; the parts are {', '.join(parts)}, use those"
        )
    counts_per_batch(mixture, run.training.batch_size)


def run_folder(run: Run, profile: Profile) -> RunFolder:
    """The folder of this run under this profile's storage, which behaves as the profile says from here on."""
    storage.use(profile.storage)
    sign.use(profile.secrets)
    return RunFolder(profile.storage.root, run.id, profile.storage.scratch)


def _put(tree: dict[str, Any], parts: list[str], value: Any, key: str) -> None:
    for part in parts[:-1]:
        tree = tree.setdefault(part, {})
        if not isinstance(tree, dict):
            raise ConfigError(f"--set {key}: '{part}' was already set to a plain value")
    tree[parts[-1]] = value


def _with_default_kinds(what: dict[str, Any]) -> dict[str, Any]:
    """`data.source.x=1` without a kind means the default source; a gate named alone joins the defaults."""
    defaults = Run().model_dump(mode="json")
    source = what.get("data", {}).get("source")
    if isinstance(source, dict) and "kind" not in source:
        source["kind"] = defaults["data"]["source"]["kind"]
    for group, chosen in what.get("gates", {}).items():
        if isinstance(chosen, dict):
            what["gates"][group] = {**defaults["gates"].get(group, {}), **chosen}
    return what


def _validated(model: type[Settings], content: dict[str, Any]) -> Settings:
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(model, detail) for detail in error.errors())) from None


def _explain(model: type[BaseModel], detail: Any) -> str:
    """One line: field, value, what is allowed, what to do next."""
    where = ".".join(str(part) for part in detail["loc"])
    prefix = "profile." if model is Profile else ""
    if detail["type"] == "extra_forbidden":
        fields = _fields_at(model, detail["loc"][:-1])
        near = difflib.get_close_matches(str(detail["loc"][-1]), fields, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        return f"{prefix}{where}: no such setting; {hint}there are {', '.join(fields)}"
    message = detail["msg"].removeprefix("Value error, ")
    return f"{prefix}{where}={detail['input']!r}: {message}; change it with --set {prefix}{where}=VALUE"


def _fields_at(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Names of the settings at a place in the tree, as far as the types tell."""
    for part in path:
        field = model.model_fields.get(str(part))
        inner = field.annotation if field else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return []
        model = inner
    return sorted(model.model_fields)
