"""Every answer, by section: a name and its text, the same each time that the same code runs."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click

from gpudiag.checks import BUILTIN
from gpudiag.checks.job.verdict import judge_job
from gpudiag.checks.runner import findings_worst_first, run_checks
from gpudiag.cli.commands import gpudiag
from gpudiag.explain.recipe import explain_text
from gpudiag.model.codec import dumps, encode
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from gpudiag.render.metrics_dcgm import render_dcgm
from gpudiag.render.metrics_native import ServiceNumbers, render_metrics
from gpudiag.simulate.loader import base_machines, load_scenario
from gpudiag.simulate.session import open_session
from tests.corpus.explained import texts
from tests.corpus.jobs_explained import explain_case, job_cases, recorded_cases
from tests.corpus.linted import corpus_files
from tests.recorded_hangs import (
    CORPUS,
    ON_GPUS,
    looked_at_again,
    recorded,
    recorded_on_gpus,
    with_native,
    with_ras,
)
from tests.scenarios.situations import Case, look_at_machine
from tests.scenarios.test_catalogue import CASES
from tests.unit.render.simulated_snapshots import simulated_snapshot

Answers = Iterator[tuple[str, str]]

_ROOT = Path(__file__).parents[2]
# One GPU with each fault, the machine with each, and pairs of which one hides the other.
FAULTS = tuple(
    """
    busy:3 idle-holder:3 zombie:3 hot:3 throttle:3 power-cap:3 ecc:3 ecc-corrected:3 row-remap-pending:3
    row-remap-failed:3 ecc-off:3 mig-pending:3 compute-prohibited:3 recovery:3:gpu_reset
    recovery:3:node_reboot pcie-width:3 pcie-gen:3 nvlink-down:3 nvlink-errors:3 xid:3:79 xid:3:48
    xid:3:13 xid:3:94 hang:3 lost:3 gone:3 old-driver no-driver nouveau no-library version-mismatch
    no-permission zero-gpus cuda-broken cpu-torch no-torch visible:0,1 order lost:3+ecc:5
    gone:3+no-driver
    """.split()
)
SPECS = (*sorted(base_machines()), *(f"h100x8+{fault}" for fault in FAULTS), "v100x8+retired-pages:3")
# Time enough on a busy machine, where an answer that comes too late would differ; a GPU that hangs takes all
# of it.
_DEADLINE_SECONDS = 15
_COMMAND_SECONDS = (
    600.0  # for a command that would never end: that one is slow on a busy machine is no answer
)
_TRIES = 5
_UNREAD = "the history was not read in time"
_PATIENT = ("--deadline", str(_DEADLINE_SECONDS))
_COMMANDS = {
    "bare": (),
    "list.json": ("list", "--json", *_PATIENT),
    "list-wide": ("list", "--wide", *_PATIENT),
    "preflight": ("preflight", "--level", "instant", *_PATIENT),
}
_FORMATS = ("json", "junit", "markdown", "prometheus", "github")
_NUMBERS = ServiceNumbers("ok", True, 1_790_000_000.125, 0.1, 0, 0, 0, "ok")

# What is of the moment and of this machine: it is blanked.
_VOLATILE = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|\+00:00)?"
    r"|\b\d\d:\d\d UTC|\b\d+(?:\.\d+)?(?:e-?\d+)?(?: | )?(?:ms|us|s|min|h|MiB/s)\b|\bpid \d+"
    r'|"(?:pid|\w*seconds\w*|\w*_at|age|load\w*|\w*free_bytes|\w*used_bytes|\w*available_bytes|boot_id|'
    r'run_id|id|machine_id)": [^,\n}\]]+'
    r'|time="[^"]*"|timestamp="[^"]*"|(?<=seconds )[\d.e-]+|(seconds\{[^}\n]*\} )[\d.e+-]+|/tmp/[^\s"\',)]*|'
    r'/dev/shm/[^\s"\',)]*'
)


def blanked(text: str) -> str:
    """The text with what changes from run to run replaced by a mark."""
    return _VOLATILE.sub(r"\1#", text.replace(str(_ROOT), "ROOT"))


def machines(looks: Path) -> Answers:
    """What the commands print on every simulated machine."""
    for spec in SPECS:
        with open_session(load_scenario(spec)) as session, TemporaryDirectory() as nothing_stored:
            environment = {**session.environment, "GPUDIAG_STATE_DIR": nothing_stored}
            for name, words in _COMMANDS.items():
                written = {form: looks.parent / f"now.{form}" for form in _FORMATS if name == "preflight"}
                flags = (word for form, path in written.items() for word in ("--report", f"{form}={path}"))
                yield f"{spec}/{name}", _run_in_time((*words, *flags), environment)
                for form, path in written.items():
                    if path.is_file():
                        yield f"{spec}/preflight.{form}", blanked(path.read_text())
                        path.unlink()


def cases(looks: Path) -> Answers:
    """The findings of each case of the catalogue, and of its near miss."""
    for number, case in enumerate(CASES):
        base = _kept_look(looks, case)
        for name, situation in (("fires", case.fires), ("near", case.near)):
            findings = findings_worst_first(run_checks(situation.context(base), BUILTIN))
            yield (
                f"{number:03}-{case.code}-{name}",
                blanked("\n".join(json.dumps(encode(one)) for one in findings) + "\n"),
            )


def metrics(looks: Path) -> Answers:
    """Both dialects of the metrics, as text and as OpenMetrics."""
    for spec in SPECS:
        snapshot = simulated_snapshot(spec)
        for form in (False, True):
            kind = "openmetrics" if form else "text"
            yield f"{spec}/native.{kind}", render_metrics(snapshot, _NUMBERS, full=True, openmetrics=form)
            yield f"{spec}/dcgm.{kind}", render_dcgm(snapshot, (), openmetrics=form)


def logs(looks: Path) -> Answers:
    """What `explain` answers to the texts and jobs of the corpora."""
    for number, text in enumerate(texts()):
        yield f"{text.kind}-{number:04}", _pretty(encode(explain_text(text.text)))
    for number, case in enumerate((*job_cases(), *recorded_cases())):
        yield f"job-{case.kind}-{number:04}", _pretty(encode(explain_case(case)))


def scripts(looks: Path) -> Answers:
    """What `lint` finds in the scripts of the corpus, as JSON."""
    for path in corpus_files():
        yield f"{path.parent.name}-{path.name}", _run(("lint", "--json", str(path)), None)


def jobs(looks: Path) -> Answers:
    """The verdict of every recorded look at a job."""
    for path in sorted(CORPUS.glob("*.json.gz")):
        name = path.name.removesuffix(".json.gz")
        yield name, _pretty(encode(judge_job(recorded(name))))
    for path in sorted(ON_GPUS.glob("*.job.json.gz")):
        name = path.name.removesuffix(".job.json.gz")
        yield f"gpu-{name}", _pretty(encode(judge_job(recorded_on_gpus(name))))
        if (ON_GPUS / f"{name}.facts.json.gz").is_file():
            job = looked_at_again(recorded_on_gpus(name), name)
            yield f"gpu-{name}-whole", _pretty(encode(judge_job(with_native(with_ras(job, name), name))))


def commands(looks: Path) -> Answers:
    """The help of every command, and every schema."""
    yield "help", _run(("--help",), None)
    with click.Context(gpudiag) as context:
        for name in gpudiag.list_commands(context):
            command = gpudiag.get_command(context, name)
            yield f"help-{name}", _run((name, "--help"), None)
            for child in sorted(getattr(command, "commands", ())):
                yield f"help-{name}-{child}", _run((name, child, "--help"), None)
    for path in sorted((_ROOT / "docs/schemas").glob("*.json")):
        yield path.name, path.read_text()


SECTIONS: dict[str, Callable[[Path], Answers]] = {
    one.__name__: one for one in (machines, cases, metrics, logs, scripts, jobs, commands)
}


def _run(words: tuple[str, ...], environment: dict[str, str] | None) -> str:
    """What the command prints, and its exit status."""
    done = subprocess.run(
        (sys.executable, "-m", "gpudiag", *words),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_COMMAND_SECONDS,
        check=False,
        cwd=_ROOT,
    )
    return blanked(f"exit status {done.returncode}\n{done.stdout}{done.stderr}")


def _run_in_time(words: tuple[str, ...], environment: dict[str, str]) -> str:
    """The same, run again where a busy machine kept the history from being read."""
    for _ in range(_TRIES):
        text = _run(words, environment)
        if _UNREAD not in text:
            break
    return text


def _kept_look(looks: Path, case: Case) -> Snapshot:
    """The look at the case's machine: the recorded one, else one that is made and kept now."""
    path = looks / f"{case.base}.json"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dumps(look_at_machine(case.base)))
    snapshot: Snapshot = loads(path.read_text())
    return replace(snapshot)


def _pretty(document: Any) -> str:
    """The document with a line for each value, so that a difference is one line."""
    return blanked(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
