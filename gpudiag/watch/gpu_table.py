"""The table of GPUs: memory, load, heat and power with their short history, and how each GPU is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gpudiag.checks.gpu.state import GpuState, state_of_health
from gpudiag.model.device import MigInstance
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading, value_or
from gpudiag.model.service import Live, LiveDevice
from gpudiag.reference.reading_names import describe_missing
from gpudiag.render.devices_text import (
    NO_VALUE,
    computing,
    describe_instance_name,
    describe_name,
    describe_state,
    short_command,
)
from gpudiag.units import format_gib, format_seconds
from gpudiag.watch.choice import CHARTS
from gpudiag.watch.columns import Column, cut, fill, fit_columns, heading_line, row_line
from gpudiag.watch.frame import Frame, Series, key_of_row
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import BOLD, DIM, FAIL, GOOD, PLAIN, WARN, Row, Span, Table

_WHOLE = 100.0  # per cent
_COOL_CELSIUS = 20.0  # the lower end of a chart of temperatures: an idle GPU in a cool room
_HOT_CELSIUS = 95.0  # the upper end where the GPU names no limit
_ROLES = {GpuState.HEALTHY: GOOD, GpuState.ASLEEP: DIM, GpuState.SUSPECT: WARN, GpuState.STARTING: WARN}


@dataclass(frozen=True, slots=True)
class _Gpu:
    """What a row is made of: a GPU, or one of its MIG instances."""

    row: LiveDevice
    state: GpuState
    series: Series
    glyphs: Glyphs
    instance: MigInstance | None = None
    label: str = ""


def gpu_table(frame: Frame, chart: str, width: int, glyphs: Glyphs, now: float) -> Table:
    """The GPUs of one machine, one row each and one for each MIG instance."""
    live = frame.live
    devices = () if live is None else live.devices
    columns = fit_columns([column for column in _columns(chart) if not _is_of_none(column, devices)], width)
    heading, places = heading_line(columns)
    if live is None:
        return Table(heading, ())
    rows = []
    for device in live.devices:
        key = key_of_row(device)
        state = state_of_health(device.responding, device.health, driver_answers=_driver_answers(live))
        series = frame.history.get(key, {})
        gpu = _Gpu(device, state, series, glyphs, label=_index(device.id.nvml_index))
        if device.responding is True:
            lines = [row_line(columns, gpu)]
            lines += [row_line(columns, one) for one in _instances(gpu)]
        else:
            lines = [_silent_line(gpu, width, now)]
        rows.append(Row(key, tuple(lines)))
    return Table(heading, tuple(rows), places)


# Columns that are left out where no GPU of the machine has the reading.
_OPTIONAL = {"SM": "sm_activity_percent", "TENS": "tensor_activity_percent", "FAN": "fan_speed_percent"}


def _is_of_none(column: Column[_Gpu], devices: Sequence[LiveDevice]) -> bool:
    name = _OPTIONAL.get(column.heading)
    if name is None or not devices:
        return False
    readings: list[Reading[float]] = [getattr(device, name) for device in devices]
    return all(isinstance(one, Missing) and one.reason is MissingReason.NOT_SUPPORTED for one in readings)


def _driver_answers(live: Live) -> bool:
    return not isinstance(live.driver_version, Missing)


def _instances(gpu: _Gpu) -> list[_Gpu]:
    instances = gpu.row.mig_instances
    if isinstance(instances, Missing):
        return []
    return [
        _Gpu(gpu.row, gpu.state, {}, gpu.glyphs, instance, f"{gpu.label}:{place}")
        for place, instance in enumerate(instances)
    ]


def _silent_line(gpu: _Gpu, width: int, now: float) -> tuple[Span, ...]:
    """A GPU that does not answer: its name, why there is no reading, the last ones, and its state."""
    state = Span(describe_state(gpu.state), _ROLES.get(gpu.state, FAIL))
    why = gpu.row.responding
    words = "" if why is True or not isinstance(why, Missing) else describe_missing(why)
    last = gpu.row.last_good
    if last is not None:
        ago = format_seconds(max(0.0, float(round(now - last.at.timestamp()))))
        parts = (
            (last.utilization_percent, "%"),
            (last.temperature_celsius, "C"),
            (last.power_draw_watts, "W"),
        )
        numbers = " ".join(f"{value:.0f}{unit}" for value, unit in parts if not isinstance(value, Missing))
        words += f"; {ago} ago: {numbers}"
    name = (
        f"{gpu.label:>{_INDEX_WIDTH}} {fill(value_or(describe_name(gpu.row.name), NO_VALUE), _NAME_WIDTH)} "
    )
    room = width - len(name) - len(state.text) - 1
    return cut((Span(name, BOLD), Span(fill(words, max(0, room)), DIM), Span(" "), state), width)


_INDEX_WIDTH, _NAME_WIDTH = 4, 11


def _columns(chart: str) -> tuple[Column[_Gpu], ...]:
    """All columns; the chosen reading's chart goes last, the two others are for wide terminals."""
    others = [
        name for name in ("utilization_percent", "power_draw_watts", "temperature_celsius") if name != chart
    ]
    return (
        Column("GPU", _INDEX_WIDTH, 1, lambda gpu, _: Span(gpu.label, BOLD), is_right=True),
        Column("NAME", _NAME_WIDTH, 3, _name, most=24, weight=1),
        Column("", 6, 6, _memory_bar, most=20, weight=2),
        Column("MEM GiB", 11, 1, _memory, is_right=True),
        Column("", 5, 6, _load_bar, most=20, weight=2),
        Column("UTIL", 4, 1, _percent("utilization_percent"), is_right=True),
        Column("SM", 4, 2, _percent("sm_activity_percent"), is_right=True),
        Column("TENS", 4, 2, _percent("tensor_activity_percent"), is_right=True),
        Column("TEMP", 4, 1, _temperature, is_right=True),
        Column("POWER W", 7, 2, _power, is_right=True),
        Column("CLOCK", 5, 8, _clock, is_right=True),
        Column("FAN", 4, 11, _percent("fan_speed_percent"), is_right=True),
        Column(
            CHARTS[chart], 10, 4, lambda gpu, width: Span(_chart(gpu, chart, width), GOOD), most=60, weight=4
        ),
        Column(
            CHARTS[others[0]],
            12,
            9,
            lambda gpu, width: Span(_chart(gpu, others[0], width), GOOD),
            most=40,
            weight=3,
        ),
        Column(
            CHARTS[others[1]],
            12,
            10,
            lambda gpu, width: Span(_chart(gpu, others[1], width), GOOD),
            most=40,
            weight=3,
        ),
        Column("USED BY", 14, 7, _users, most=44, weight=3),
        Column("STATE", 8, 1, _state, most=9, weight=1),
    )


def _index(index: Reading[int]) -> str:
    return "?" if isinstance(index, Missing) else str(index)


def _name(gpu: _Gpu, _width: int) -> Span:
    if gpu.instance is not None:
        return Span(value_or(describe_instance_name(gpu.instance), NO_VALUE), DIM)
    return Span(value_or(describe_name(gpu.row.name), NO_VALUE))


def _memory_of(gpu: _Gpu) -> tuple[Reading[int], Reading[int]]:
    whose = gpu.row if gpu.instance is None else gpu.instance
    return whose.memory_used_bytes, whose.memory_total_bytes


def _memory(gpu: _Gpu, _width: int) -> Span:
    used, total = _memory_of(gpu)
    if isinstance(total, Missing):
        return Span(NO_VALUE, DIM)
    return Span(f"{NO_VALUE if isinstance(used, Missing) else format_gib(used)}/{format_gib(total)}")


def _memory_bar(gpu: _Gpu, width: int) -> Span:
    used, total = _memory_of(gpu)
    if isinstance(used, Missing) or isinstance(total, Missing) or not total:
        return Span("")
    return Span(gpu.glyphs.bar(used / total, width), GOOD)


def _load_bar(gpu: _Gpu, width: int) -> Span:
    load = gpu.row.utilization_percent
    if gpu.instance is not None or isinstance(load, Missing):
        return Span("")
    return Span(gpu.glyphs.bar(load / _WHOLE, width), GOOD)


def _percent(name: str) -> Callable[[_Gpu, int], Span]:
    def cell(gpu: _Gpu, _width: int) -> Span:
        whose = gpu.row if gpu.instance is None else gpu.instance
        reading: Reading[float] = getattr(whose, name, NOT_ASKED)  # an instance has some of them
        return Span(NO_VALUE, DIM) if isinstance(reading, Missing) else Span(f"{reading:.0f}%")

    return cell


def _temperature(gpu: _Gpu, _width: int) -> Span:
    heat, limit = gpu.row.temperature_celsius, gpu.row.temperature_slowdown_celsius
    if gpu.instance is not None or isinstance(heat, Missing):
        return Span(NO_VALUE if gpu.instance is None else "", DIM)
    is_hot = not isinstance(limit, Missing) and heat >= limit
    return Span(f"{heat}C", FAIL if is_hot else WARN if gpu.row.throttled is True else PLAIN)


def _power(gpu: _Gpu, _width: int) -> Span:
    draw, limit = gpu.row.power_draw_watts, gpu.row.power_limit_enforced_watts
    if gpu.instance is not None or isinstance(draw, Missing):
        return Span(NO_VALUE if gpu.instance is None else "", DIM)
    return Span(f"{draw:.0f}" if isinstance(limit, Missing) else f"{draw:.0f}/{limit:.0f}")


def _clock(gpu: _Gpu, _width: int) -> Span:
    clock = gpu.row.sm_clock_mhz
    if gpu.instance is not None or isinstance(clock, Missing):
        return Span(NO_VALUE if gpu.instance is None else "", DIM)
    return Span(str(clock))


def _chart(gpu: _Gpu, name: str, width: int) -> str:
    """The reading's last values, between the limits that the GPU itself names."""
    if gpu.instance is not None:
        return ""
    lowest, highest = 0.0, _WHOLE
    if name == "temperature_celsius":
        lowest, highest = _COOL_CELSIUS, _limit(gpu.row.temperature_slowdown_celsius, _HOT_CELSIUS)
    elif name == "power_draw_watts":
        known = [value for value in gpu.series.get(name, ()) if value is not None]
        highest = _limit(gpu.row.power_limit_enforced_watts, max(known, default=1.0))
    elif name == "memory_used_bytes":
        highest = _limit(gpu.row.memory_total_bytes, 1.0)
    return gpu.glyphs.chart(gpu.series.get(name, ()), width, lowest, highest)


def _limit(reading: Reading[int] | Reading[float], otherwise: float) -> float:
    return otherwise if isinstance(reading, Missing) else float(reading)


def _users(gpu: _Gpu, _width: int) -> Span:
    """Who has the GPU or instance: pods, Slurm jobs, else its processes' users and programs, else signs."""
    row, instance = gpu.row, gpu.instance
    number = (
        None
        if instance is None or isinstance(instance.gpu_instance_id, Missing)
        else instance.gpu_instance_id
    )
    pods = [pod for pod in row.pods if instance is None or pod.gpu_instance_id == number]
    if pods:
        return Span(", ".join(dict.fromkeys(f"{pod.namespace}/{pod.pod}" for pod in pods)))
    found = [
        process
        for process in computing(value_or(row.processes, ()))
        if instance is None or process.gpu_instance_id == number
    ]
    names = dict.fromkeys(
        f"{value_or(process.user, NO_VALUE)} {short_command(process.command)}"
        for process in found
        if not isinstance(process.command, Missing)
    )
    if instance is None and row.slurm_jobs:
        return Span(
            ", ".join(f"job {job.slurm_job_id} {value_or(job.user, '')}".strip() for job in row.slurm_jobs)
        )
    if names:
        return Span(", ".join(names))
    if found:
        return Span(f"pid {found[0].pid}")
    return Span(", ".join(row.signs_of_use) if instance is None else "", DIM)


def _state(gpu: _Gpu, _width: int) -> Span:
    if gpu.instance is not None:
        return Span("")
    return Span(describe_state(gpu.state), _ROLES.get(gpu.state, FAIL))
