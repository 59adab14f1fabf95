"""`gpudiag list` as a table: one row per GPU, healthy ones first to last, the late ones at the end."""

from collections.abc import Sequence

from gpudiag.checks.availability import Candidate
from gpudiag.checks.gpu_state import GpuState, findings_about, judge_state
from gpudiag.model.device import Device, GpuProcess, MigInstance, Snapshot
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, Reading
from gpudiag.render.device_words import (
    NO_VALUE,
    say_index,
    say_instance_name,
    say_memory_gib,
    say_missing,
    say_name,
    say_power_watts,
    say_processes,
    say_state,
    say_suffixed,
)
from gpudiag.render.style import PLAIN, Column, Footnotes, Style, render_table, sentence, wrapped

_COLUMNS = (
    Column("GPU", right=True),
    Column("NAME", gives_way=True),
    Column("MEM GiB", right=True),
    Column("UTIL", right=True),
    Column("TEMP", right=True),
    Column("POWER W", right=True),
    Column("USER/COMMAND", gives_way=True),
    Column("STATE"),
)
_MEMORY, _STATE = 1, 7  # _MEMORY: among the cells behind the index


def render_devices(
    snapshot: Snapshot,
    findings: tuple[Finding, ...],
    candidates: tuple[Candidate, ...],
    style: Style = PLAIN,
) -> str:
    """The table of a machine that has at least one GPU row, its notes, and which GPUs are free."""
    notes = Footnotes()
    rows = [row for device in snapshot.devices for row in _rows(snapshot, device, findings, notes)]
    heading, *lines = render_table(_COLUMNS, [cells for cells, _ in rows])
    painted = [style.paint(line, colour) for line, (_, colour) in zip(lines, rows, strict=True)]
    parts = [*simulated_lines(snapshot), style.paint(heading, "bold"), *painted, *notes.lines()]
    parts += _other_lines(snapshot, findings, style)
    return "\n".join([*parts, *_free_line(candidates)]) + "\n"


def simulated_lines(snapshot: Snapshot) -> list[str]:
    """The line that says that no real GPU was read; none on a real machine."""
    if snapshot.simulated is None:
        return []
    return wrapped(f"SIMULATED {snapshot.simulated}: no real GPU was read", indent="  ")


def _rows(
    snapshot: Snapshot, device: Device, findings: tuple[Finding, ...], notes: Footnotes
) -> list[tuple[Sequence[str], str]]:
    """The rows of one GPU, each with its colour: its own, then its MIG instances."""
    about = findings_about(device, findings)
    judged = judge_state(snapshot, device, about)
    state = say_state(judged)
    boards = [_board(device), *[""] * len(about)]  # which board it is stands in its first note only
    marks = "".join(notes.mark(_note(finding, board)) for finding, board in zip(about, boards, strict=False))
    colour = {GpuState.HEALTHY: "", GpuState.SUSPECT: "yellow"}.get(judged, "red")
    if isinstance(device.responding, Missing):
        cells: list[str] = [NO_VALUE] * 5 + [NO_VALUE]
        cells[0] = _plain(say_name(device))
    else:
        cells = [_cell(notes, column.heading, reading) for column, reading in _readings(snapshot, device)]
        if isinstance(device.memory_used_bytes, Missing) and not isinstance(
            device.memory_total_bytes, Missing
        ):
            cells[_MEMORY] += notes.mark(f"MEM used: {say_missing(device.memory_used_bytes)}.")
    own = (say_index(device), *cells, f"{state} {marks}".strip())
    return [(own, colour), *((cells, "") for cells in _mig_rows(snapshot, device))]


def _readings(snapshot: Snapshot, device: Device) -> list[tuple[Column, Reading[str]]]:
    """What the columns between the index and the state say for a GPU that answers."""
    processes = device.processes
    users = processes if isinstance(processes, Missing) else say_processes(processes, snapshot.taken_at)
    if device.mig_mode == "enabled" and device.mig_instances:
        users = "MIG"
    said: tuple[Reading[str], ...] = (
        say_name(device),
        say_memory_gib(device.memory_used_bytes, device.memory_total_bytes),
        say_suffixed(device.utilization_percent, "%"),
        say_suffixed(device.temperature_celsius, "C"),
        say_power_watts(device),
        users,
    )
    return list(zip(_COLUMNS[1:_STATE], said, strict=True))


def _mig_rows(snapshot: Snapshot, device: Device) -> list[Sequence[str]]:
    """A row per MIG instance, under its GPU."""
    instances = device.mig_instances
    if isinstance(instances, Missing):
        return []
    return [_mig_row(snapshot, device, place, instance) for place, instance in enumerate(instances)]


def _mig_row(snapshot: Snapshot, device: Device, place: int, instance: MigInstance) -> Sequence[str]:
    processes: tuple[GpuProcess, ...] = ()
    if not isinstance(device.processes, Missing):
        processes = tuple(
            process for process in device.processes if process.gpu_instance_id == instance.gpu_instance_id
        )
    memory = _plain(say_memory_gib(instance.memory_used_bytes, instance.memory_total_bytes))
    users = say_processes(processes, snapshot.taken_at)
    name = f"  {_plain(say_instance_name(instance))}"
    return (f"{say_index(device)}:{place}", name, memory, NO_VALUE, NO_VALUE, NO_VALUE, users, "")


def _cell(notes: Footnotes, heading: str, reading: Reading[str]) -> str:
    if isinstance(reading, Missing):
        return NO_VALUE + notes.mark(f"{heading}: {say_missing(reading)}.")
    return reading


def _plain(reading: Reading[str]) -> str:
    return NO_VALUE if isinstance(reading, Missing) else reading


def _note(finding: Finding, board: str) -> str:
    """What is wrong, with which board, and what to do."""
    return f"{sentence(finding.message)}{board}. {finding.remedy}"


def _board(device: Device) -> str:
    """UUID and serial number, for whoever pulls the board out."""
    serial = device.serial
    known = [device.id.uuid, serial if isinstance(serial, Missing) else f"serial {serial}"]
    identity = [part for part in known if not isinstance(part, Missing)]
    return f" ({', '.join(identity)})" if identity else ""


def _other_lines(snapshot: Snapshot, findings: tuple[Finding, ...], style: Style) -> list[str]:
    """Faults that are about no row of the table: a GPU that is not listed, the host, a source."""
    rows = {finding for device in snapshot.devices for finding in findings_about(device, findings)}
    others = [finding for finding in findings if finding not in rows and finding.outcome is not Outcome.PASS]
    lines = [
        line
        for finding in others
        for line in wrapped(f"{sentence(finding.message)}. {finding.remedy}", indent="  ")
    ]
    return [style.paint(line, "red") for line in lines]


def _free_line(candidates: tuple[Candidate, ...]) -> list[str]:
    free = [candidate.label for candidate in candidates if candidate.free]
    text = f"Free: {' '.join(free) if free else 'none'}.  --wide: UUID, slot, clocks, ECC  --free N --ids"
    return wrapped(text, indent="  ")
