"""The one entry point: `stanchion run | list | check | promote | quarantine | scrub | sign | rebuild | ...`.

Nothing heavy is imported before a verb needs it, so `--help` is instant. The process that runs a flow owns
everything it starts: when it ends, for whatever reason, nothing is left running.
"""

from __future__ import annotations

import atexit
import contextlib
import difflib
import logging
import os
import re
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from components import quiet
from components.errors import ConfigError, GateRefused, StanchionError

if TYPE_CHECKING:
    from components.config import Profile, Run
    from components.records import Record

app = App(
    name="stanchion",
    help="A reference platform for distributed machine learning: raw text to a served, scored model.",
    version_flags=["--version"],
    help_flags=["--help", "-h"],
)

NO_LINKS = {"run_case_study": "case NAME", "scrub": "scrub PATH"}
"""Flows that have a verb of their own."""

Where = Annotated[
    str, Parameter(name="--profile", help="Where it runs: a name under infra/profiles/, or a YAML file.")
]
Set = Annotated[
    list[str] | None,
    Parameter(name="--set", help="Change a setting: training.steps=50, profile.processes=4.", negative=()),
]
DryRun = Annotated[bool, Parameter(name="--dry-run", help="Say what would run, and stop.", negative=())]


@app.command
def run(flow: str, /, *, profile: Where = "laptop", set: Set = None, dry_run: DryRun = False) -> int:
    """Run a flow; run again, it continues where it stopped and repeats no finished stage.

    Parameters
    ----------
    flow
        Its name: `stanchion list` shows them.
    """
    from components import storage
    from components.config import configure, run_folder

    call = _flow(flow)
    if flow in NO_LINKS:
        raise ConfigError(f"'{flow}' is no link in the chain of a run; use `stanchion {NO_LINKS[flow]}`")
    what, where = configure(profile, set)
    if dry_run:
        return _show_plan(flow, what, where)
    started = time.monotonic()
    record: Record = _in_prefect(call, what, where)
    folder = run_folder(what, where)
    print(f"\n{flow} {record.status} in {time.monotonic() - started:.0f} s")
    print(f"  run        {folder.url}")
    print(f"  record     {folder.path('records', record.stage + '.json')}")
    for artifact in record.outputs:
        print(f"  {artifact.name:<10} {artifact.url}")
    if storage.exists(report := folder.path("report", "index.html")):
        print(f"  report     {Path(report).absolute() if storage.is_local(report) else report}")
    print(f"next: {_next_command(flow, profile, set or [])}")
    return 0


@app.command(name="list")
def list_(what: str = "", where: str = "", /, *, profile: Where = "laptop") -> int:
    """List flows, case studies, profiles, plug-ins and runs; or the checkpoints of a run.

    Parameters
    ----------
    what
        Nothing, or `checkpoints`: their state, loss, size, age, ranks, and the reason.
    where
        A run, by its folder, URL or name under runs/, or a folder of checkpoints; else all runs.
    """
    if what:
        return _list_checkpoints(what, where, profile)
    from components import plugins
    from components.config import Profile, profile_names

    print(_columns("flows", _flow_names()))
    print(_columns("case studies", plugins.names("case_studies")))
    print(_columns("profiles", profile_names()))
    for folder in ("data.sources", "parallelism", "gates", "alignment.rewards", "launchers"):
        print(_columns(folder.rpartition(".")[2], plugins.names(f"components.{folder}")))
    for title, folder in (("detectors", "detectors"), ("faults", "fault_kinds")):
        print(_columns(title, plugins.names(f"components.reliability.{folder}")))
    print(_columns("criteria", plugins.names("maturity.criteria")))
    print(_columns("runs", _runs(Profile.model_validate(profile).storage.root)))
    return 0


@app.command
def check(path: str, /) -> int:
    """Verify a data set, checkpoint, release or whole run against its digests and gates.

    Parameters
    ----------
    path
        Its folder or URL.
    """
    from components.verification import damaged_data_sets, verify
    from flows._progress import Progress

    said = []
    with Progress("checks") as progress:
        for subject, verdicts in verify(path, progress):
            progress.clear()
            for verdict in verdicts:
                said.append(verdict)
                print(f"{'pass' if verdict.passed else 'FAIL'}  {subject}  {verdict.gate}: {verdict.reason}")
    for url in damaged_data_sets(said):
        print(f"next: stanchion rebuild {url}")
    return 0 if all(verdict.passed for verdict in said) else 1


@app.command
def promote(checkpoint: str, /) -> int:
    """Ask the gates about a checkpoint; when all agree, resume and deployment take it.

    Parameters
    ----------
    checkpoint
        Its folder or URL: `stanchion list checkpoints` shows them.
    """
    from components.checkpoints import by_hand, names, pointer

    verdicts = by_hand.promote(checkpoint)
    for verdict in verdicts:
        print(f"pass  {verdict.gate}: {verdict.reason}")
    print(f"{pointer.url_of(names.folder_of(checkpoint))} names {names.name_of(checkpoint)}")
    return 0


@app.command
def quarantine(
    checkpoint: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="What is wrong with it; it stays in its state.")],
) -> int:
    """Set a checkpoint aside for ever: nothing resumes from it or deploys it again.

    Parameters
    ----------
    checkpoint
        Its folder or URL: `stanchion list checkpoints` shows them.
    """
    from components.checkpoints import by_hand, names, pointer

    known = by_hand.quarantine(checkpoint, reason)
    left = pointer.read(names.folder_of(checkpoint))
    print(f"{checkpoint} is quarantined: {known.reason}")
    print(f"resume and deployment take {(left and left.url) or 'none: no other is validated'}")
    return 0


@app.command
def sign(checkpoint: str, /) -> int:
    """Sign a checkpoint with the key in the file that STANCHION_CHECKPOINT_KEY_FILE names.

    Parameters
    ----------
    checkpoint
        One that was saved without a key, or with another; it must still be what was committed.
    """
    from components.checkpoints import by_hand

    by_hand.sign_with_our_key(checkpoint)
    print(f"{checkpoint} is signed")
    return 0


@app.command
def scrub(
    path: str,
    /,
    *,
    every: Annotated[str, Parameter(help="Again and again: 30min, 1h, 2d from start to start.")] = "",
    rate: Annotated[float | None, Parameter(help="Read at most so many MB a second.")] = None,
) -> int:
    """Read again what is stored of checkpoints, oldest read first; quarantine what has rotted.

    Parameters
    ----------
    path
        A folder of checkpoints, a run, or the root of all runs; or a URL.
    """
    from components.checkpoints import scrub

    wait = _seconds(every) if every else None
    if rate is not None and rate <= 0:
        raise ConfigError(f"--rate {rate:g}: give MB a second above 0, or leave it out to read at full speed")
    while True:
        started, found = time.monotonic(), []
        for one in scrub.scrub(_run_or_folder(path), megabytes_per_second=rate):
            found.append(one)
            print(one.line, flush=True)
        print(scrub.summary(found), flush=True)
        if wait is None:
            return 0 if all(one.verdict == "whole" for one in found) else 1
        time.sleep(max(0.0, started + wait - time.monotonic()))


@app.command
def rebuild(
    path: str,
    /,
    *,
    shard: Annotated[
        list[str] | None,
        Parameter(help="Only these: train-000003.tar; all that are damaged when none is named.", negative=()),
    ] = None,
    scratch: Annotated[
        str, Parameter(help="Local folder for what is written aside, and for what was damaged.")
    ] = "",
) -> int:
    """Build damaged shards of a data set again from their source, bit by bit the same.

    Parameters
    ----------
    path
        The data set's folder or URL, or its run's.
    """
    from components.data.mending.rebuild import data_set_in, rebuild, scratch_of
    from components.verification import verify

    url = data_set_in(path)
    aside = Path(scratch) if scratch else scratch_of(url)
    if not rebuild(url, shard, scratch=aside, tell=print):
        print(f"nothing to build again in {url}")
    if (kept := aside / "quarantine").is_dir():
        print(f"what was damaged is kept in {kept}")
    verdicts = [verdict for _, judged in verify(url) for verdict in judged]
    for verdict in verdicts:
        print(f"{'pass' if verdict.passed else 'FAIL'}  {verdict.gate}: {verdict.reason}")
    return 0 if all(verdict.passed for verdict in verdicts) else 1


@app.command
def explain(
    path: str,
    /,
    *,
    step: Annotated[int, Parameter(help="Of training, counted from 1, as in its events.")],
    rank: Annotated[int, Parameter(help="Which rank's batch.")] = 0,
    row: Annotated[int, Parameter(help="Which sequence of that batch.")] = 0,
    json: Annotated[bool, Parameter(help="Everything that is known, as JSON.", negative=())] = False,
) -> int:
    """Say where the tokens of one training sequence came from: documents, shards, offsets, validation.

    Parameters
    ----------
    path
        A run, by its folder, URL or name under runs/, or one checkpoint.
    """
    from components.data.lineage.explain import explain
    from components.data.lineage.text import as_json, as_text
    from components.data.lineage.trained_order import trained_order

    found = explain(trained_order(_run_or_folder(path), step), step=step, rank=rank, row=row)
    print(as_json(found) if json else as_text(found))
    return 0


@app.command
def assess(*, profile: Where = "laptop", set: Set = None) -> int:
    """Score what the records of a run prove, against the maturity model."""
    from components import storage
    from components.config import configure, run_folder

    what, where = configure(profile, set)
    _in_prefect(_flow("assess"), what, where)
    print(storage.read_text(run_folder(what, where).path("report", "scorecard.txt")))
    return 0


@app.command
def case(
    name: str = "",
    /,
    *,
    profile: Where = "laptop",
    every: Annotated[bool, Parameter(name="--all", help="Run every case study.", negative=())] = False,
    keep: Annotated[bool, Parameter(help="Keep figures under case_studies/results/.", negative=())] = False,
) -> int:
    """Break the real thing, run it without and with the pattern, and print the verdict.

    Parameters
    ----------
    name
        Which incident: `stanchion list` shows them.
    """
    from components import plugins
    from components.config import configure

    chosen = plugins.names("case_studies") if every else [name]
    for one in chosen:
        plugins.load("case_studies", one)
    _, where = configure(profile)
    call = _flow("run_case_study")
    records = [_in_prefect(call, one, where, keep_results=keep) for one in chosen]
    for record in records:
        print(f"\n{record.stage}: {record.metrics.get('verdict', record.status)}")
        for artifact in record.outputs:
            print(f"  {artifact.name:<10} {artifact.url}")
    return 0 if all(record.status == "completed" for record in records) else 1


@app.command
def fault(
    kind: str = "",
    /,
    *,
    job: Annotated[str, Parameter(help="Folder of a job that runs: the one that holds beats/.")] = "",
    rank: Annotated[int, Parameter(help="Which rank.")] = 0,
    after: Annotated[int, Parameter(help="Strike once the rank is past this step.")] = 0,
    show: Annotated[bool, Parameter(name="--list", help="Say what each kind does.", negative=())] = False,
) -> int:
    """Break a rank on purpose: a running one by a signal, else print what to start a job with.

    Parameters
    ----------
    kind
        What breaks: `stanchion fault --list` shows them.
    """
    from components import plugins
    from components.reliability import live_faults
    from components.reliability.faults import KINDS, Drill

    if show or not kind:
        for name, what in live_faults.kinds().items():
            print(f"{name:<23}{'live  ' if live_faults.signal_of(name) else 'drill '}{what}")
        return 0
    if job:
        beat = live_faults.strike(kind, Path(job), rank=rank, after_step=after)
        print(f"{kind} struck rank {rank}, process {beat.pid}, in {beat.phase} of step {beat.step}")
    else:
        plugins.load(KINDS, kind)  # a typo is answered with the right name
        drill = Drill(kind=kind, rank=rank, step=after + 1)
        print("start the job with:", *(f"{key}={shlex.quote(v)}" for key, v in drill.environment.items()))
    return 0


@app.command
def metrics(
    path: str = "runs",
    /,
    *,
    port: Annotated[int, Parameter(help="Where /metrics is served; 0 takes a free one.")] = 9464,
    address: Annotated[str, Parameter(help="0.0.0.0 lets other machines scrape.")] = "127.0.0.1",
) -> int:
    """Serve Prometheus metrics of all jobs of a run, or of all runs, until it is interrupted.

    Parameters
    ----------
    path
        A run, by its folder or name under runs/, a job's folder, or the root of all runs.
    """
    from components.observability.metrics.exporter import serving

    root = Path(_run_or_folder(path))
    if not root.is_dir():
        raise ConfigError(f"no folder {root}; name a run, a job's folder (it holds beats/) or the runs' root")
    with serving(root, port=port, address=address) as taken, contextlib.suppress(KeyboardInterrupt):
        print(f"http://{address}:{taken}/metrics tells of the jobs in {root}; Ctrl-C ends it", flush=True)
        while True:
            time.sleep(3600)
    return 0


def main() -> None:
    """Parse, run, and turn what users can cause into one clear message and an exit code."""
    quiet.apply()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        code = app(result_action="return_value")
    except ConfigError as error:
        print(f"stanchion: {error}", file=sys.stderr)
        code = 2
    except GateRefused as error:
        print(f"stanchion: blocked: {error}", file=sys.stderr)
        code = 3
    except StanchionError as error:
        print(f"stanchion: {error}", file=sys.stderr)
        code = 1
    except KeyboardInterrupt:
        print("stanchion: interrupted; run the same command again to continue", file=sys.stderr)
        code = 130
    sys.exit(code)


def _list_checkpoints(what: str, where: str, profile: str) -> int:
    from components.checkpoints import overview
    from components.config import Profile

    if what != "checkpoints":
        near = "did you mean 'checkpoints'? " if difflib.get_close_matches(what, ["checkpoints"]) else ""
        raise ConfigError(f"cannot list '{what}'; {near}say nothing, or checkpoints and where they are")
    url = _run_or_folder(where) if where else Profile.model_validate(profile).storage.root
    print(overview.as_text(list(overview.rows(url))))
    return 0


def _seconds(text: str) -> float:
    """Of `30min`, `1h` or `2d`."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)", text.strip())
    if found is None or not float(found[1]):
        raise ConfigError(f"--every {text}: write a number and its unit, for example 30min, 1h or 2d")
    return float(found[1]) * {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}[found[2]]


def _flow_names() -> list[str]:
    from components import plugins

    return [name for name in plugins.names("flows") if name != "cli"]


def _flow(name: str) -> Callable[..., Any]:
    """The flow called `name`; a wrong name is answered with the right ones."""
    import importlib

    known = _flow_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'? " if near else ""
        raise ConfigError(f"no flow '{name}'; {hint}choose one of {', '.join(known)}")

    def call(*arguments: Any, **options: Any) -> Any:
        return getattr(importlib.import_module(f"flows.{name}"), name)(*arguments, **options)

    return call


def _in_prefect(call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Run a flow against the server named by PREFECT_API_URL, or a temporary one that ends with us."""
    home = Path(os.environ.setdefault("PREFECT_HOME", str(Path("runs/.prefect").absolute())))
    home.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("PREFECT_LOGGING_EXTRA_LOGGERS", "components,maturity")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")
    atexit.register(_end_children)  # before Prefect is imported, so it comes after Prefect's own goodbye
    _let_components_speak()
    return call(*arguments, **options)


def _let_components_speak() -> None:
    """Progress of ours is worth a line, and what we raise on purpose is worth only one."""
    for name in ("components", "maturity"):
        logging.getLogger(name).setLevel(logging.INFO)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logging.getLogger(name).addFilter(_without_a_traceback)


def _without_a_traceback(record: logging.LogRecord) -> bool:
    """What we raise on purpose says all there is to say in its message; a bug keeps its traceback."""
    if record.exc_info and isinstance(record.exc_info[1], StanchionError):
        record.exc_info, record.exc_text = None, None
    return True


def _end_children() -> None:
    """Whatever a flow started and did not end, the temporary server included, ends with this process."""
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        child.terminate()
    for child in psutil.wait_procs(children, timeout=5)[1]:
        child.kill()


def _show_plan(flow: str, what: Run, where: Profile) -> int:
    import yaml

    from components.config import run_folder
    from components.reliability import timeouts

    folder = run_folder(what, where)
    print(f"{flow} on profile '{where.name}' -> {folder.url}")
    for record in folder.records():
        print(f"  {record.stage:<16} {record.status}, {record.seconds:.0f} s")
    waits = timeouts.order(
        where.reliability.limits, collective_seconds=what.training.timeout_seconds, launcher=where.launcher
    )
    print(f"  waits: {timeouts.told(waits)}")
    settings = {"run": what.model_dump(mode="json"), "profile": where.model_dump(mode="json")}
    print(yaml.safe_dump(settings, sort_keys=False))
    return 0


def _run_or_folder(path: str) -> str:
    """A place, or the name of a run where profiles keep runs unless they say otherwise."""
    from components import storage

    if not storage.exists(path) and storage.exists(there := storage.join("runs", path)):
        return there
    return path


def _runs(root: str) -> list[str]:
    from components import storage

    others = ("case-studies", "deployments")
    return [name for name in storage.listing(root) if not name.startswith(".") and name not in others]


def _columns(title: str, names: list[str]) -> str:
    return f"{title:<14}{', '.join(names) or 'none yet'}"


def _next_command(flow: str, profile: str, settings: list[str]) -> str:
    """With the same settings: others would be another run."""
    order = ["shard_dataset", "pretrain", "align", "deploy", "assess"]
    if flow in order[:-1]:
        chosen = ["--profile", profile] if profile != "laptop" else []
        chosen += [word for setting in settings for word in ("--set", setting)]
        return shlex.join(["stanchion", "run", order[order.index(flow) + 1], *chosen])
    return "open the report, then: stanchion case silent_stall"
