"""The bare `gpudiag`: the machine in five lines."""

from collections import Counter

from gpudiag.checks.gpu.availability import Candidate
from gpudiag.checks.gpu.devices import gpu_count
from gpudiag.checks.gpu.state import count_states
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.traces import gpu_traces
from gpudiag.installed import has_module
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.finding import Finding, JoinedFinding, Outcome
from gpudiag.model.reading import Missing
from gpudiag.model.report import Report
from gpudiag.render.devices_text import (
    computing,
    describe_free,
    describe_index,
    describe_name,
    describe_processes,
    name_gpus,
    simulated_lines,
)
from gpudiag.render.joined_findings import join_findings
from gpudiag.render.style import PLAIN, Style, next_lines, sentence, wrapped
from gpudiag.units import format_size

_MAX_FINDINGS = 3
_MAX_CHECKS_NAMED = 4  # of checks that could not look for the same reason
# What `gpudiag preflight` judges beside `checks.on_machine`: with tests, a second look, and the job's Python.
_NOT_TESTED = "speed, data, network, torch, history"
_WITHOUT_GPU = ("gpudiag nccl-test --backend gloo", "gpudiag simulate h100x8 -- gpudiag")
_WITHOUT_TORCH = "doctor"  # lists the commands that need torch, and how to install it


def render_overview(
    report: Report,
    findings: tuple[Finding, ...],
    candidates: tuple[Candidate, ...],
    seconds: float,
    style: Style = PLAIN,
) -> str:
    """The overview: verdict, faults, busy GPUs, free GPUs, next commands.

    `findings` come worst first; `seconds` is how long gathering and judging took.
    """
    snapshot = report.snapshot
    word = report.verdict.value.upper()
    lines = wrapped(
        f"{word} {snapshot.host}: {_machine(snapshot, findings)} (in {seconds:.1f} s)",
        indent="  ",
    )
    lines[0] = style.paint_outcome(lines[0], report.verdict.value)
    lines += simulated_lines(snapshot)
    faults = tuple(finding for finding in findings if finding.outcome is not Outcome.PASS)
    joined = _one_per_subject(join_findings(faults))[:_MAX_FINDINGS]
    for one in joined:
        message = one.finding.message if one.count == 1 else f"{one.subject}: {one.message}"
        lines += wrapped(
            f"{sentence(message)} -> {one.finding.remedy if one.count == 1 else one.remedy}",
            first="  ",
            indent="    ",
        )
    left = len(faults) - sum(one.count for one in joined)
    if left:
        lines.append(f"  and {left} more: gpudiag list")
    lines += _unlooked(report, explained=bool(faults))
    lines += _use(snapshot, candidates)
    return "\n".join([*lines, *_next(snapshot, faults)]) + "\n"


def _one_per_subject(joined: tuple[JoinedFinding, ...]) -> list[JoinedFinding]:
    """The worst fault of each subject (a GPU, several GPUs, another): one must not hide the next."""
    worst: dict[str, JoinedFinding] = {}
    for one in joined:
        worst.setdefault(one.subject, one)
    return list(worst.values())


def _machine(snapshot: Snapshot, findings: tuple[Finding, ...]) -> str:
    """The machine as `8x H100 80GB, driver 580.105.08: 7 healthy, 1 lost`."""
    if not _works(snapshot):
        return NO_TRACE if not findings else "no working GPU"
    names = Counter(_name(device) for device in snapshot.devices)
    models = ", ".join(f"{count}x {name}" for name, count in names.items())
    driver = "" if isinstance(snapshot.driver_version, Missing) else f", driver {snapshot.driver_version}"
    return f"{models}{driver}: {count_states(snapshot, findings)}"


def _works(snapshot: Snapshot) -> bool:
    """Whether any GPU answers, or sleeps: one that was not woken is no trouble."""
    return any(device.responding is True or device.is_asleep for device in snapshot.devices)


def _name(device: Device) -> str:
    name = describe_name(device.name)
    if isinstance(name, Missing):
        return "sleeping GPU" if device.is_asleep else "GPU of unknown model"
    return name


def _unlooked(report: Report, *, explained: bool) -> list[str]:
    """The lines of checks that should have looked and could not; `explained`: a fault above is why."""
    reasons: dict[str, list[str]] = {}
    # Without a trace of a GPU the verdict has it.
    shown = () if gpu_traces(report.snapshot) else (gpu_count.name,)
    for result in report.results:
        if result.outcome is Outcome.ERROR and not result.findings and result.check not in shown:
            reason = "" if explained else f": {result.reason or 'no reason given'}"
            reasons.setdefault(reason, []).append(result.check)
    return [
        line
        for reason, checks in reasons.items()
        for line in wrapped(f"Not judged: {_named(checks)}{reason}", first="  ", indent="    ")
    ]


def _named(checks: list[str]) -> str:
    more = len(checks) - _MAX_CHECKS_NAMED
    return ", ".join(checks[:_MAX_CHECKS_NAMED]) + (f" and {more} more" if more > 0 else "")


def _use(snapshot: Snapshot, candidates: tuple[Candidate, ...]) -> list[str]:
    """The lines of busy and free GPUs, and of what was not tested."""
    if not _works(snapshot):
        return []
    users: dict[str, list[Device]] = {}
    for device in snapshot.devices:
        if not isinstance(device.processes, Missing) and computing(device.processes):
            user = describe_processes(computing(device.processes), snapshot.taken_at)
            users.setdefault(user, []).append(device)
    busy = "; ".join(_busy(user, devices) for user, devices in users.items()) or "none"
    text = f"Busy {busy}. {describe_free(candidates)} Not tested: {_NOT_TESTED}"
    return wrapped(text, first="  ", indent="    ")


def _busy(user: str, devices: list[Device]) -> str:
    """`GPUs 0-3 (ann train.py 6h, 12.5 GiB left)`: who uses them, and the least memory left on one."""
    left = [one.memory_free_bytes for one in devices if not isinstance(one.memory_free_bytes, Missing)]
    some = f", {format_size(min(left))} left" if left else ""
    return f"{name_gpus(_ranges([describe_index(device) for device in devices]))} ({user}{some})"


def _ranges(indices: list[str]) -> list[str]:
    """`0-3` and `5` for 0, 1, 2, 3, 5."""
    runs: list[list[str]] = []
    for index in indices:
        if runs and index.isdecimal() and runs[-1][-1].isdecimal() and int(index) == int(runs[-1][-1]) + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return [run[0] if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]


def _next(snapshot: Snapshot, faults: tuple[Finding, ...]) -> list[str]:
    working = _works(snapshot)
    if not working and not faults:
        plain = (
            "No GPU to train on, so no PASS. If this machine should have no GPU:"
            " gpudiag preflight --expect-gpus 0"
        )
        test = _WITHOUT_GPU[0] if has_module("torch") else f"gpudiag {_WITHOUT_TORCH}"
        return [*wrapped(plain), *next_lines(test, *_WITHOUT_GPU[1:])]
    if not working:
        return next_lines("gpudiag list --sources all", f"explain {faults[0].code}", "--help")
    explain = [f"explain {faults[0].code}"] if faults else []
    test = "nccl-test" if has_module("torch") else _WITHOUT_TORCH
    return next_lines("gpudiag list", "preflight", test, "serve", *explain, "--help")
