"""Run the steps one after the other, and write the report after each."""

from __future__ import annotations

import json
import os
import platform
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import gpudiag
from gpudiag.compat import UTC
from gpudiag.model.codec import dumps
from gpudiag.model.finding import Outcome, worst
from tools.confirm_on_gpu.child import run_child
from tools.confirm_on_gpu.machine import (
    first_gpu,
    gpus_of,
    has_module,
    is_met,
    is_stand_in,
    loaded_nccl,
    missing_modules,
    why_not,
)
from tools.confirm_on_gpu.markdown import render_report
from tools.confirm_on_gpu.plan import LIMIT_SECONDS, LOOK
from tools.confirm_on_gpu.reading import read_progress, speeds_of
from tools.confirm_on_gpu.report import Confirmation, Speed, StepSeen
from tools.confirm_on_gpu.step import Need, Output, Step, StepResult

REPOSITORY = Path(__file__).resolve().parents[2]

# What a machine with a GPU should have; without it nothing is confirmed, and that is not in order.
_OUGHT_TO_BE = (Need.CLICK, Need.PYNVML, Need.CUDA)


@dataclass(slots=True)
class Run:
    """One run: its folder, its clock, and the results of its steps so far."""

    folder: Path
    limit_seconds: float
    nccl_library: Path | None = None  # that the steps of two ranks on one GPU load
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    started: float = field(default_factory=time.monotonic)
    snapshot: Mapping[str, Any] = field(default_factory=dict)
    seen: list[StepSeen] = field(default_factory=list)
    results: list[StepResult] = field(default_factory=list)
    _groups: set[int] = field(default_factory=set)  # process groups of the steps that were started

    def take(self, step: Step) -> StepSeen:
        """Run one step, keep its result, and write the report."""
        return self._keep(step, *self._run(step))

    def _keep(self, step: Step, seen: StepSeen, result: StepResult) -> StepSeen:
        self.seen.append(seen)
        self.results.append(result)
        if step.name == LOOK.name and result.outcome is not Outcome.ERROR:
            self.snapshot = _read_json(self.folder / "machine.json")
        self.write(finished=False)
        return seen

    def take_all(self, steps: Sequence[Step]) -> None:
        """Run the steps in order, or at the side of another, and print how each ended."""
        for together in _grouped(steps):
            first, *beside = together
            self._groups.clear()
            with ThreadPoolExecutor(max_workers=len(together)) as pool:
                others = [pool.submit(self._run, step) for step in beside]
                try:
                    ended = [self._run(first), *(other.result() for other in others)]
                except BaseException:  # a signal: the steps in other threads end too
                    self._end_all()
                    raise
            for step, (seen, result) in zip(together, ended, strict=True):
                print(self.line_of(self._keep(step, seen, result)), flush=True)
        self.write(finished=True)

    def _end_all(self) -> None:
        for group in self._groups:
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)

    @staticmethod
    def line_of(seen: StepSeen) -> str:
        """One line on how a step ended."""
        return f"{seen.name:<24}{seen.outcome.value.upper():<6}{seen.seconds:6.1f} s  {seen.sentence}"

    def write(self, *, finished: bool) -> Confirmation:
        """Put the report of what is known by now in the place of the one before."""
        report = self.report(finished=finished)
        for name, text in (("report.json", dumps(report, indent=1)), ("report.md", render_report(report))):
            fresh = self.folder / f".{name}"
            fresh.write_text(text if text.endswith("\n") else f"{text}\n")
            fresh.replace(self.folder / name)
        return report

    def report(self, *, finished: bool) -> Confirmation:
        """What the run confirmed so far."""
        torch = self.snapshot.get("torch") or {}
        return Confirmation(
            outcome=worst(tuple(seen.outcome for seen in self.seen)),
            host=self.snapshot.get("host") or socket.gethostname(),
            started_at=self.started_at,
            seconds=round(time.monotonic() - self.started, 1),
            finished=finished,
            simulated=self.snapshot.get("simulated")
            or ("by the stand-in for CUDA" if is_stand_in(self.snapshot) else None),
            gpudiag_version=_version(),
            python=sys.executable,
            python_version=platform.python_version(),
            torch_version=torch.get("version"),
            cuda_runtime_version=torch.get("cuda_runtime_version"),
            nccl_version=loaded_nccl(self.folder) or torch.get("nccl_version"),
            driver_version=self.snapshot.get("driver_version"),
            gpus=gpus_of(self.snapshot),
            not_here=missing_modules(),
            steps=tuple(self.seen),
            speeds=_joined([speed for result in self.results for speed in result.speeds]),
            checks=tuple(check for result in self.results for check in result.checks),
            readings=tuple(reading for result in self.results for reading in result.readings),
            costs=tuple(cost for result in self.results for cost in result.costs),
            starts=tuple(start for result in self.results for start in result.starts),
            hangs=tuple(hang for result in self.results for hang in result.hangs),
        )

    def _run(self, step: Step) -> tuple[StepSeen, StepResult]:
        left = self.limit_seconds - (time.monotonic() - self.started)
        refused = self._refuse(step, left)
        if refused is not None:
            return _seen(step, refused, None, 0.0, None), refused
        stdout, stderr = (self.folder / f"{step.name}.{kind}" for kind in ("out", "err"))
        # A run that may take longer, as on a machine without a GPU, gives each step more.
        deadline = min(step.deadline_seconds * max(1.0, self.limit_seconds / LIMIT_SECONDS), left)
        command = [self._fill(word) for word in step.command]
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="confirm-", ignore_cleanup_errors=True) as state:
            filled = {name: self._fill(value) for name, value in step.environment.items()}
            environment = child_environment(Path(state)) | {
                name: text for name, text in filled.items() if text
            }
            try:
                output = run_child(
                    command,
                    deadline_seconds=deadline,
                    stdout=stdout,
                    stderr=stderr,
                    environment=environment,
                    folder=REPOSITORY,
                    started_as=self._groups.add,
                )
            except OSError as error:
                result = StepResult(Outcome.ERROR, f"it cannot be started: {error}")
                return _seen(step, result, command, time.monotonic() - begun, None), result
        events = self.folder / step.events if step.events else None
        result = _result_of(step, output, deadline, self.snapshot, events)
        if step.leaves and output.status is not None:
            output = replace(output, stdout=stdout.replace(self.folder / step.leaves))
        return _seen(step, result, command, output.seconds, output), result

    def _refuse(self, step: Step, left: float) -> StepResult | None:
        """Why a step does not run here, if so."""
        for need in step.needs:
            if not is_met(need, self.snapshot, self.folder):
                outcome = Outcome.ERROR if need in _OUGHT_TO_BE else Outcome.SKIP
                return StepResult(outcome, f"not run: it needs {need.value}; {why_not(need, self.snapshot)}")
        if left <= 0:
            return StepResult(
                Outcome.ERROR, f"not run: the {self.limit_seconds:.0f} s of the whole run are over"
            )
        return None

    def _fill(self, word: str) -> str:
        """The word with what is known by now in the place of the names in braces."""
        if word == "{sizes}":
            return json.dumps(
                _sizes(self.folder / "preflight.json") or _sizes(self.folder / "bandwidth.json")
            )
        if word == "{strategies}":
            return ",".join(
                ["ddp", "fsdp2", *(("zero1", "zero2", "zero3") if has_module("deepspeed") else ())]
            )
        if word == "{nccl}":
            return str(self.nccl_library or "")
        word = word.replace("{python}", sys.executable).replace("{folder}", str(self.folder))
        return word.replace("{first_gpu}", first_gpu(self.snapshot))


def child_environment(state: Path) -> dict[str, str]:
    """This environment, with gpudiag from the source tree, and without what earlier runs remember."""
    paths = [str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "XDG_STATE_HOME": str(state / "state"),
        "XDG_CACHE_HOME": str(state / "cache"),
    }


def _grouped(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps in order; those that run at the same time together."""
    groups: list[list[Step]] = []
    for step in steps:
        if groups and step.beside == groups[-1][0].name:
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _result_of(
    step: Step, output: Output, deadline: float, snapshot: Mapping[str, Any], events: Path | None
) -> StepResult:
    """The result of the step's output; a hang or unreadable output is one."""
    if output.status is None:
        return _cut(step, output, deadline, snapshot, events)
    try:
        return step.read(output, snapshot)
    except (ValueError, LookupError, TypeError, AttributeError, SyntaxError, OSError) as error:
        ended = f"it ended with {output.status}: {output.last_words()}"
        return StepResult(Outcome.FAIL, f"{ended} ({type(error).__name__} in reading its output)")


def _cut(
    step: Step, output: Output, deadline: float, snapshot: Mapping[str, Any], events: Path | None
) -> StepResult:
    """What a step that was killed had done by then: what it measured stays in the report."""
    end = "was killed" if output.killed else "could not be killed: look for it in state D"
    words = f"it did not end within {deadline:.0f} s, and {end}"
    if step.lines:
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            result = step.read(output, snapshot)
            return replace(result, outcome=Outcome.FAIL, sentence=f"{words}; until then: {result.sentence}")
    progress = ""
    if events is not None:
        with suppress(OSError, LookupError, TypeError):
            progress = read_progress(events.read_text(errors="replace"))
    return StepResult(
        Outcome.FAIL, f"{words}; it had done {progress}" if progress else f"{words}; {output.last_words()}"
    )


def _seen(
    step: Step, result: StepResult, command: list[str] | None, seconds: float, output: Output | None
) -> StepSeen:
    return StepSeen(
        name=step.name,
        confirms=step.confirms,
        command=shlex.join(command if command is not None else step.command),
        outcome=result.outcome,
        sentence=result.sentence,
        seconds=round(seconds, 2),
        deadline_seconds=step.deadline_seconds,
        stdout=output.stdout.name if output else None,
        stderr=output.stderr.name if output else None,
    )


def _joined(speeds: list[Speed]) -> tuple[Speed, ...]:
    """The speeds of all steps by name: gpudiag's runs beside the loop's rounds, with their ratio."""
    joined: dict[str, Speed] = {}
    for speed in speeds:
        before = joined.get(speed.name, Speed(speed.name, speed.unit, (), ()))
        joined[speed.name] = replace(
            before,
            gpudiag=before.gpudiag + speed.gpudiag,
            loop=before.loop + speed.loop,
            best=before.best + speed.best,
            meanwhile=speed.meanwhile or before.meanwhile,
        )
    return tuple(_with_ratio(speed) for speed in joined.values())


def _with_ratio(speed: Speed) -> Speed:
    if not speed.loop or not speed.gpudiag:
        return speed
    loop = statistics.median(speed.loop)
    spread = (max(speed.loop) - min(speed.loop)) / loop
    return replace(
        speed, ratio=round(statistics.median(speed.gpudiag) / loop, 4), loop_spread=round(spread, 4)
    )


def _sizes(report: Path) -> dict[str, int]:
    """The size of each test of one GPU in a report of gpudiag's; none where it has no speeds."""
    with suppress(LookupError, TypeError):
        return {name: size for name, (_, _, size) in speeds_of(_read_json(report)).items()}
    return {}


def _read_json(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        document = json.loads(path.read_text())
        return document if isinstance(document, dict) else {}
    return {}


def _version() -> str:
    """The version of gpudiag, and the commit of the source tree where git has it."""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "describe", "--always", "--dirty"]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=5, check=True)
        return f"{gpudiag.__version__} ({done.stdout.strip()})"
    return gpudiag.__version__
