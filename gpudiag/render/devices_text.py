"""`gpudiag list` as text: a row per GPU in the snapshot's order, or by `--wide` every reading of each GPU."""

from collections.abc import Sequence
from datetime import datetime

from gpudiag.checks.gpu.availability import Candidate
from gpudiag.checks.gpu.state import GpuState, findings_about, judge_state
from gpudiag.model.device import (
    Device,
    GpuProcess,
    MigInstance,
    Snapshot,
)
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.reference.reading_names import describe_missing
from gpudiag.render.style import PLAIN, Column, Footnotes, Style, render_table, sentence, wrapped
from gpudiag.units import format_gib, format_seconds

# --- the table

NO_VALUE = "-"
# Programs that run others: the script's name is more useful than theirs.
_INTERPRETERS = ("python", "bash", "sh", "torchrun", "mpirun")

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


def describe_index(device: Device) -> str:
    """The NVML index, or `?` for a GPU that NVML does not list."""
    index = device.id.nvml_index
    return "?" if isinstance(index, Missing) else str(index)


def name_gpus(labels: Sequence[str]) -> str:
    """The GPUs of these labels: `GPU 0`, `GPUs 2 3`, `GPUs 0-3`, `none`.

    A number alone reads as how many there are.
    """
    one = len(labels) == 1 and "-" not in labels[0]
    return f"GPU{'s' * (not one)} {' '.join(labels)}" if labels else "none"


def describe_free(candidates: Sequence[Candidate]) -> str:
    """The sentence about what work may start on, such as `Free: GPUs 2 3`, with its full stop."""
    return f"Free: {name_gpus([candidate.label for candidate in candidates if candidate.free])}."


def describe_name(name: Reading[str]) -> Reading[str]:
    """The product's name without the maker, the brand and the kind of memory: `H100 80GB`."""
    if isinstance(name, Missing):
        return name
    words = name.removeprefix("NVIDIA ").removeprefix("GeForce ").split()
    return " ".join(word for word in words if not word.startswith("HBM"))


def describe_memory_gib(used: Reading[int], total: Reading[int]) -> Reading[str]:
    """Used and total memory in GiB: `66.3/79.6`."""
    if isinstance(total, Missing):
        return total
    return f"{NO_VALUE if isinstance(used, Missing) else format_gib(used)}/{format_gib(total)}"


def describe_power_watts(device: Device) -> Reading[str]:
    """Power draw and enforced limit in watts: `640/700`."""
    draw, limit = device.power_draw_watts, device.power_limit_enforced_watts
    if isinstance(draw, Missing):
        return draw
    return f"{draw:.0f}" if isinstance(limit, Missing) else f"{draw:.0f}/{limit:.0f}"


def describe_suffixed(reading: Reading[int], suffix: str) -> Reading[str]:
    """A number with its unit right after it: `98%`, `61C`."""
    return reading if isinstance(reading, Missing) else f"{reading}{suffix}"


def describe_instance_name(instance: MigInstance) -> Reading[str]:
    """A MIG instance's profile, without the name of its GPU: `MIG 1g.10gb`."""
    name = instance.name
    return name if isinstance(name, Missing) else name[max(0, name.find("MIG ")) :]


def computing(processes: tuple[GpuProcess, ...]) -> tuple[GpuProcess, ...]:
    """The processes that compute; a desktop's graphics do not make a GPU busy."""
    return tuple(process for process in processes if process.kind != "graphics")


def describe_processes(processes: tuple[GpuProcess, ...], now: datetime) -> str:
    """Who uses a GPU: the process with most memory, computing ones first, and how many more there are."""
    if not processes:
        return NO_VALUE
    largest = max(computing(processes) or processes, key=_memory_used)
    more = f" +{len(processes) - 1}" if len(processes) > 1 else ""
    return describe_process(largest, now) + more


def describe_process(process: GpuProcess, now: datetime) -> str:
    """One process: `ann train.py 6 h`, or `pid 4242` where /proc does not know it."""
    if isinstance(process.command, Missing):
        return f"pid {process.pid}"
    user = "" if isinstance(process.user, Missing) else f"{process.user} "
    words = f"{user}{short_command(process.command)}"
    if isinstance(process.started_at, Missing):
        return words
    age_seconds = max(0.0, (now - process.started_at).total_seconds())
    return f"{words} {format_seconds(age_seconds).replace(' ', '')}"


def short_command(command: str) -> str:
    """The program's name; for an interpreter the script that it runs."""
    words = command.split()
    names = [word.rpartition("/")[2] for word in words if not word.startswith("-")]
    if not names:
        return command
    if len(names) > 1 and names[0].startswith(_INTERPRETERS):
        return names[1]
    return names[0]


def describe_state(state: GpuState) -> str:
    """The word in a table: `ok`, `suspect`, or what is wrong in capitals."""
    if state is GpuState.HEALTHY:
        return "ok"
    return str(state) if state is GpuState.SUSPECT else state.upper()


def _memory_used(process: GpuProcess) -> int:
    used = process.memory_used_bytes
    return 0 if isinstance(used, Missing) else used


_MEMORY, _STATE = 1, 7  # _MEMORY: among the cells after the index


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
    """The line that no real GPU was read; empty on a real machine."""
    if snapshot.simulated is None:
        return []
    return wrapped(f"SIMULATED {snapshot.simulated}: no real GPU was read", indent="  ")


def _rows(
    snapshot: Snapshot, device: Device, findings: tuple[Finding, ...], notes: Footnotes
) -> list[tuple[Sequence[str], str]]:
    """The rows of one GPU, each with its colour: its own, then its MIG instances."""
    about = findings_about(device, findings)
    judged = judge_state(snapshot, device, about)
    state = describe_state(judged)
    boards = [describe_board(device), *[""] * len(about)]  # only a GPU's first note names the board
    marks = "".join(notes.mark(_note(finding, board)) for finding, board in zip(about, boards, strict=False))
    colour = {GpuState.HEALTHY: "", GpuState.ASLEEP: "", GpuState.SUSPECT: "yellow"}.get(judged, "red")
    if isinstance(device.responding, Missing):
        cells: list[str] = [NO_VALUE] * 5 + [NO_VALUE]
        cells[0] = value_or(describe_name(device.name), NO_VALUE)
    else:
        cells = [_cell(notes, column.heading, reading) for column, reading in _readings(snapshot, device)]
        if isinstance(device.memory_used_bytes, Missing) and not isinstance(
            device.memory_total_bytes, Missing
        ):
            cells[_MEMORY] += notes.mark(f"MEM used: {describe_missing(device.memory_used_bytes)}.")
    own = (describe_index(device), *cells, f"{state} {marks}".strip())
    return [(own, colour), *((cells, "") for cells in _mig_rows(snapshot, device))]


def _readings(snapshot: Snapshot, device: Device) -> list[tuple[Column, Reading[str]]]:
    """The cells between index and state for a GPU that answers."""
    processes = device.processes
    users = processes if isinstance(processes, Missing) else describe_processes(processes, snapshot.taken_at)
    if device.mig_mode == "enabled" and device.mig_instances:
        users = "MIG"
    cells: tuple[Reading[str], ...] = (
        describe_name(device.name),
        describe_memory_gib(device.memory_used_bytes, device.memory_total_bytes),
        describe_suffixed(device.utilization_percent, "%"),
        describe_suffixed(device.temperature_celsius, "C"),
        describe_power_watts(device),
        users,
    )
    return list(zip(_COLUMNS[1:_STATE], cells, strict=True))


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
    memory = value_or(describe_memory_gib(instance.memory_used_bytes, instance.memory_total_bytes), NO_VALUE)
    users = describe_processes(processes, snapshot.taken_at)
    name = f"  {value_or(describe_instance_name(instance), NO_VALUE)}"
    return (f"{describe_index(device)}:{place}", name, memory, NO_VALUE, NO_VALUE, NO_VALUE, users, "")


def _cell(notes: Footnotes, heading: str, reading: Reading[str]) -> str:
    if isinstance(reading, Missing):
        return NO_VALUE + notes.mark(f"{heading}: {describe_missing(reading)}.")
    return reading


def _note(finding: Finding, board: str) -> str:
    """What is wrong, with which board, and what to do."""
    return f"{sentence(finding.message)}{board}. {finding.remedy}"


def describe_board(device: Device) -> str:
    """UUID and serial number, for the person who removes the board."""
    serial = device.serial
    known = [device.id.uuid, serial if isinstance(serial, Missing) else f"serial {serial}"]
    identity = [part for part in known if not isinstance(part, Missing)]
    return f" ({', '.join(identity)})" if identity else ""


def _other_lines(snapshot: Snapshot, findings: tuple[Finding, ...], style: Style) -> list[str]:
    """The lines of faults about no row of the table: an unlisted GPU, the host, a source."""
    rows = {finding for device in snapshot.devices for finding in findings_about(device, findings)}
    others = [finding for finding in findings if finding not in rows and finding.outcome is not Outcome.PASS]
    lines = [
        line
        for finding in others
        for line in wrapped(f"{sentence(finding.message)}. {finding.remedy}", indent="  ")
    ]
    return [style.paint(line, "red") for line in lines]


def _free_line(candidates: tuple[Candidate, ...]) -> list[str]:
    return wrapped(
        f"{describe_free(candidates)}  --wide: UUID, slot, clocks, ECC  --free N --ids", indent="  "
    )


def render_free(snapshot: Snapshot, chosen: tuple[Candidate, ...]) -> str:
    """The chosen GPUs, one per line with the UUID, then how to use them."""
    lines = simulated_lines(snapshot)
    lines += [f"GPU {candidate.label:5} {_uuid(candidate)}" for candidate in chosen]
    lines += [f"Use them: CUDA_VISIBLE_DEVICES=$(gpudiag list --free {len(chosen)} --ids) COMMAND"]
    return "\n".join(lines) + "\n"


def render_ids(chosen: tuple[Candidate, ...]) -> str:
    """The UUIDs as CUDA_VISIBLE_DEVICES takes them: no order of ordinals can mix them up."""
    return ",".join(_uuid(candidate) for candidate in chosen) + "\n"


def render_too_few(wanted: int, candidates: tuple[Candidate, ...]) -> str:
    """How many of the wanted GPUs are free, and the reasons not to use each of the others."""
    free = sum(candidate.free for candidate in candidates)
    lines = [f"{free} of {wanted} wanted GPUs {'is' if free == 1 else 'are'} free"]
    for candidate in candidates:
        if not candidate.free:
            lines += wrapped(
                f"GPU {candidate.label}: {', '.join(candidate.against)}", first="  ", indent="    "
            )
    return "\n".join(lines)


def _uuid(candidate: Candidate) -> str:
    return "" if isinstance(candidate.uuid, Missing) else candidate.uuid
