"""The verdict on running jobs as text: what hangs and why, where each rank is, what was ruled out."""

from gpudiag.model.evidence import RankSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job import SERVER, HangReport, JobVerdict, Place
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.reading import Missing
from gpudiag.render.style import PLAIN, Style, next_lines, one_line, wrapped

_MOST_FINDINGS = 6
_MOST_PLACES = 12
_MOST_FACTS = 9
_MOST_FRAMES = 4
_MOST_MACHINES = 8


def render_hang(report: HangReport, style: Style = PLAIN) -> str:
    """The whole report, as wide as the terminal."""
    lines: list[str] = []
    for verdict in report.jobs:
        lines += [*_job(verdict, style), ""]
    for finding in report.machine:
        lines += _painted(
            wrapped(f"{_word(finding.outcome)} {finding.code}: {one_line(finding.message)}", indent="  "),
            finding.outcome,
            style,
        )
    seen = f"looked for {report.seconds:.1f} s on {_where(report, style)}"
    for machine in report.machines:
        if machine.reason:
            lines += wrapped(
                f"{one_line(machine.name)}: {one_line(machine.reason)}", first="No look: ", indent="  "
            )
    lines += wrapped("; ".join([seen, *report.notes]) + ".")
    return "\n".join([*lines, *_next(report)]) + "\n"


def _where(report: HangReport, style: Style) -> str:
    names = [one_line(machine.name) for machine in report.machines if not machine.reason]
    if not report.machines:
        return one_line(report.host)
    if not names:
        return "no machine that has a job"
    most = style.most(_MOST_MACHINES)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{len(names)} of {len(report.machines)} machines ({', '.join(names[:most])}{more})"


def _job(verdict: JobVerdict, style: Style) -> list[str]:
    word = _word(verdict.outcome)
    lines = _painted(wrapped(f"{word} {_headline(verdict)}", indent="  "), verdict.outcome, style)
    lines += _on_machine(verdict)
    for finding in verdict.findings[1 : style.most(_MOST_FINDINGS)]:
        lines += _painted(
            wrapped(f"{_word(finding.outcome)} {one_line(finding.message)}", indent="  "),
            finding.outcome,
            style,
        )
    lines += ["", *wrapped(f"{one_line(verdict.name)}, {_counted(verdict, style)}", indent="  ")]
    for place in verdict.places[: style.most(_MOST_PLACES)]:
        lines += _place(place, style)
    left = len(verdict.places) - style.most(_MOST_PLACES)
    if left > 0:
        lines.append(f"  and {left} more places: --verbose has all")
    if verdict.findings:
        lines += ["", *_evidence(verdict.findings[0], style)]
    for reason in verdict.unseen:
        lines += wrapped(one_line(reason), first="Not seen: ", indent="  ")
    if verdict.ruled_out:
        lines += wrapped("; ".join(verdict.ruled_out) + ".", first="Ruled out: ", indent="  ")
    if verdict.findings:
        lines += wrapped(_remedy(verdict), first="Do: ", indent="    ")
    return lines


def _on_machine(verdict: JobVerdict) -> list[str]:
    """Where the rank to blame is, of a job on several machines."""
    if len(verdict.job.machines) < 2 or not verdict.findings:
        return []
    subject = verdict.findings[0].subject
    if not isinstance(subject, RankSubject):
        return []
    pid = _pid_of(verdict)
    process = f", pid {pid}" if pid is not None else ""
    return wrapped(f"rank {subject.rank} is on {one_line(subject.host)}{process}", first="  ", indent="  ")


def _headline(verdict: JobVerdict) -> str:
    code = (
        f" [{verdict.findings[0].code}]"
        if verdict.findings and verdict.outcome in (Outcome.FAIL, Outcome.WARN)
        else ""
    )
    return one_line(verdict.headline) + code


def _counted(verdict: JobVerdict, style: Style) -> str:
    here, size = len(verdict.job.ranks), verdict.job.world_size
    of = "" if isinstance(size, Missing) or size == here else f" of {size}"
    if len(verdict.job.machines) > 1:
        places = "; ".join(
            f"{one_line(host)} has {name_ranks(ranks) if ranks else 'none'}"
            for host, ranks in verdict.job.machines[: style.most(_MOST_MACHINES)]
        )
        more = len(verdict.job.machines) - style.most(_MOST_MACHINES)
        return f"{here}{of} rank{'s' * (here != 1)} ({places}{f'; {more} more' if more > 0 else ''}):"
    return f"{here}{of} rank{'s' * (here != 1)} here:"


def _place(place: Place, style: Style) -> list[str]:
    name = _name_place(place)
    state = "moves" if place.moves else "takes a processor, still" if place.busy else "still"
    since = (
        "" if isinstance(place.since_seconds, Missing) or place.moves else f" for {place.since_seconds:.0f} s"
    )
    lines = wrapped(f"{name}: {one_line(place.words)} ({state}{since})", first="  ", indent="    ")
    for frame in place.stack[: style.most(_MOST_FRAMES)]:
        lines += wrapped(one_line(frame, 200), first="      ", indent="        ")
    return lines


def _name_place(place: Place) -> str:
    """`ranks 0 and 1`, `rank 0; rank unknown: pid 12`, `server, pid 12`."""
    pids = f"{'pid' if len(place.pids) == 1 else 'pids'} {', '.join(map(str, place.pids[:8]))}"
    if place.kind == SERVER:
        return f"server, {pids}"
    unknown = [f"rank unknown, {pids}"] if place.pids else []
    known = [name_ranks(place.ranks)] if place.ranks else []
    return "; ".join([*known, *unknown]) or "a process without a known rank"


def _evidence(finding: Finding, style: Style) -> list[str]:
    lines = []
    for fact in finding.evidence[: style.most(_MOST_FACTS)]:
        unit = f" {fact.unit}" if fact.unit else ""
        lines += wrapped(f"{fact.name}: {one_line(str(fact.value))}{unit}", first="  - ", indent="    ")
    return lines


def _remedy(verdict: JobVerdict) -> str:
    finding = verdict.findings[0]
    pid = _pid_of(verdict)
    return finding.remedy.replace("PID", str(pid)) if pid is not None else finding.remedy


def _pid_of(verdict: JobVerdict) -> int | None:
    subject = verdict.findings[0].subject
    if not isinstance(subject, RankSubject):
        return None
    return next((rank.pid for rank in verdict.job.ranks if rank.rank == subject.rank), None)


def _next(report: HangReport) -> list[str]:
    codes = list(dict.fromkeys(finding.code for verdict in report.jobs for finding in verdict.findings))
    if not codes:
        return []
    return next_lines(f"gpudiag explain {codes[0]}", "gpudiag hang --json")


def _word(outcome: Outcome) -> str:
    return outcome.value.upper()


def _painted(lines: list[str], outcome: Outcome, style: Style) -> list[str]:
    return [style.paint_outcome(lines[0], outcome.value), *lines[1:]]
