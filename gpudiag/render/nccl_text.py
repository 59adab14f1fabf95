"""What NCCL's own lines in logs show, as text: what is wrong first, then how the ranks reach each other."""

from collections import Counter
from collections.abc import Iterable

from gpudiag.model.nccl_log import LogPlace, NcclCommunicator, NcclFinding, NcclLog, NcclPath, NcclProcess
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing
from gpudiag.render.style import PLAIN, Style, one_line, wrapped
from gpudiag.units import format_size

_MAX_NAMES = 4  # names in one line
_MAX_CHOICES = 8
_MAX_PATHS = 6
_MAX_EVIDENCE = 2
_MAX_CHARACTERS = 800  # of one fact
_LABEL_WIDTH = 16
_QUIET_SETTINGS = ("NCCL_DEBUG",)  # why these lines are there at all


def render_nccl(log: NcclLog, style: Style = PLAIN) -> list[str]:
    """The lines of the part about NCCL: its findings, then what it found and chose."""
    lines = _heading(log, style)
    for place, finding in enumerate(log.findings, 1):
        lines += _finding(place, finding, style)
    if not log.findings:
        lines += wrapped("No fault that its INFO lines can show.", first="  ", indent="  ")
    return [*lines, *_facts(log)]


def _heading(log: NcclLog, style: Style) -> list[str]:
    version = _names(log.versions) or "of unknown version"
    largest = log.communicators[0] if log.communicators else None
    ranks = f", {count_of(largest.size, 'rank')}" if largest else ""
    hosts = f" on {_names(log.hosts)}" if log.hosts else ""
    found = f": {count_of(len(log.findings), 'thing')} to fix" if log.findings else ""
    heading = wrapped(f"NCCL {version}{ranks}{hosts}{found}", indent="  ")
    heading[0] = heading[0].replace("NCCL", style.paint("NCCL", "bold"), 1)
    return heading


def _finding(place: int, finding: NcclFinding, style: Style) -> list[str]:
    outcome = finding.outcome.value.upper()
    heading = wrapped(f"N{place}. {outcome} {finding.code}: {one_line(finding.message, 400)}", indent="    ")
    heading[0] = heading[0].replace(outcome, style.paint(outcome, "yellow"), 1)
    lines = heading
    for evidence in finding.evidence[:_MAX_EVIDENCE]:
        lines += _evidence(evidence)
    lines += _labelled("Means", finding.meaning)
    return [*lines, *_labelled("Do", f"{finding.remedy} ({finding.owner.value} must act)")]


def _evidence(evidence: LogPlace) -> list[str]:
    lines = wrapped(one_line(evidence.text, 220), first="    | ", indent="    | ")
    return [*lines, f"      {one_line(evidence.log, 60)}:{evidence.line}"]


def _facts(log: NcclLog) -> list[str]:
    lines = _labelled("network", _networks(log.processes))
    lines += _labelled("first meeting", _names({_meeting(process) for process in log.processes} - {""}))
    for communicator in log.communicators[:1]:
        lines += _communicator(communicator)
    if len(log.communicators) > 1:
        sizes = Counter(one.size for one in log.communicators[1:])
        counts = [f"{count} of {size}" for size, count in sorted(sizes.items(), reverse=True)[:_MAX_NAMES]]
        lines += _labelled("smaller ones", f"{', '.join(counts)} ranks")
    lines += _labelled("chosen", _choices(log))
    return [*lines, *_labelled("variables", _settings(log.processes))]


def _communicator(communicator: NcclCommunicator) -> list[str]:
    lines: list[str] = []
    missing = communicator.size - len(communicator.ranks)
    if missing > 0:
        lines += _labelled("ranks", f"{len(communicator.ranks)} of {communicator.size} have lines here")
    stuck = [str(rank.rank) for rank in communicator.ranks if not rank.completed]
    if stuck:
        lines += _labelled(
            "not made by", f"rank{'s' * (len(stuck) > 1)} {_names(stuck)}: no line has Init COMPLETE"
        )
    for path in communicator.paths[:_MAX_PATHS]:
        lines += _labelled(
            _scope(path), f"{path.transport}: {path.pairs:,} pairs, {path.channels:,} channels"
        )
    if not isinstance(communicator.channels, Missing):
        channels = communicator.channels
        lines += _labelled(
            "channels", f"{channels.collective} collective, {channels.nvls} NVLS, {channels.p2p} p2p"
        )
    if not isinstance(communicator.init_seconds, Missing):
        lines += _labelled(
            "made in", f"{communicator.init_seconds:g} s, by rank {communicator.slowest_rank} last"
        )
    return lines


def _scope(path: NcclPath) -> str:
    if isinstance(path.between_hosts, Missing):
        return "sends"
    return "between hosts" if path.between_hosts else "inside hosts"


def _networks(processes: Iterable[NcclProcess]) -> str:
    """The networks with their cards or interfaces, the most common first."""
    counts: Counter[str] = Counter()
    for process in processes:
        if isinstance(process.network, Missing):
            continue
        names = (
            [interface.name for interface in process.interfaces]
            if process.network == "Socket"
            else [f"{nic.name}:{nic.port}/{nic.link}" for nic in process.nics]
        )
        counts[f"{process.network}{' over ' if names else ''}{_names(names)}"] += 1
    return "; ".join(name for name, _ in counts.most_common(3))


def _meeting(process: NcclProcess) -> str:
    return "" if isinstance(process.bootstrap, Missing) else f"over {process.bootstrap.name}"


def _choices(log: NcclLog) -> str:
    """What was chosen for each operation; sizes as NCCL counts them."""
    choices = [
        f"{choice.operation} {choice.algorithm}/{choice.protocol} {choice.count:,} times"
        f" ({format_size(choice.smallest_bytes)} to {format_size(choice.largest_bytes)})"
        for choice in sorted(log.choices, key=lambda choice: -choice.count)[:_MAX_CHOICES]
    ]
    return "; ".join(choices)


def _settings(processes: Iterable[NcclProcess]) -> str:
    """The variables that every process has alike; what differs is a finding."""
    counts = Counter(f"{name}={value}" for process in processes for name, value in process.settings.items())
    return ", ".join(one_line(pair, 60) for pair in sorted(counts) if not pair.startswith(_QUIET_SETTINGS))


def _names(names: Iterable[str]) -> str:
    ordered = sorted(names) if isinstance(names, set) else [*names]
    more = f" and {len(ordered) - _MAX_NAMES} more" if len(ordered) > _MAX_NAMES else ""
    return one_line(", ".join(ordered[:_MAX_NAMES]) + more, 300)


def _labelled(label: str, text: str) -> list[str]:
    if not text:
        return []
    first = f"  {label + ':':<{_LABEL_WIDTH}}"
    return wrapped(one_line(text, _MAX_CHARACTERS), first=first, indent=" " * len(first))
