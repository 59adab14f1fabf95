"""The table of processes: who started whom, where each belongs, its share of the GPU; sorted and filtered."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpudiag.model.device import GpuProcess
from gpudiag.model.owners import PodUse
from gpudiag.model.reading import Missing, Reading, value_or
from gpudiag.model.service import LiveDevice
from gpudiag.render.devices_text import NO_VALUE
from gpudiag.units import format_gib, format_seconds
from gpudiag.watch.choice import LARGEST_FIRST, Choice
from gpudiag.watch.columns import Column, fit_columns, heading_line, row_line
from gpudiag.watch.frame import Frame
from gpudiag.watch.glyphs import Glyphs
from gpudiag.watch.view import BOLD, DIM, PLAIN, WARN, Row, Span, Table

_WHERE = "JOB/POD/CTR"  # left out where nothing is known of any
_CONTAINER_DIGITS = 12  # as in `docker ps`
_STATES = {"D": "waits in the kernel", "T": "stopped", "t": "traced", "Z": "dead, not reaped"}


@dataclass(frozen=True, slots=True)
class Use:
    """One process on one GPU, or a process that started some of them, which has no GPU itself."""

    pid: int
    command: str
    gpu: str = ""
    order: int = -1  # the GPU's place
    process: GpuProcess | None = None
    where: str = ""
    age_seconds: float = 0.0

    @property
    def key(self) -> str:
        """What stays the same from one picture to the next."""
        return f"{self.pid}/{self.gpu}"


@dataclass(frozen=True, slots=True)
class _Node:
    """A use in the tree, with what its process has started."""

    use: Use
    below: list["_Node"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Shown:
    use: Use
    branches: str


def process_table(frame: Frame, choice: Choice, width: int, glyphs: Glyphs, now: float) -> Table:
    """The processes on the GPUs that the choice lets through, in its order.

    Where it asks for a tree, they are one, with their launchers.
    """
    uses = [use for use in uses_of(frame, now) if _passes(use, choice)]
    is_placed = any(use.where for use in uses)
    columns = fit_columns([column for column in _COLUMNS if is_placed or column.heading != _WHERE], width)
    shown = (
        _tree(uses, choice, glyphs) if choice.is_tree else [_Shown(use, "") for use in _sorted(uses, choice)]
    )
    heading, places = heading_line(columns, choice.sort, is_reversed=choice.is_reversed)
    return Table(heading, tuple(Row(one.use.key, (row_line(columns, one),)) for one in shown), places)


def uses_of(frame: Frame, now: float) -> list[Use]:
    """Every process on every GPU of the machine."""
    live = frame.live
    if live is None:
        return []
    return [
        Use(
            process.pid,
            value_or(process.command, f"pid {process.pid}"),
            _gpu_of(row, process),
            order,
            process,
            _where(row, process),
            0.0
            if isinstance(process.started_at, Missing)
            else max(0.0, now - process.started_at.timestamp()),
        )
        for order, row in enumerate(live.devices)
        for process in value_or(row.processes, ())
    ]


def find_use(frame: Frame, key: str, now: float) -> Use | None:
    """The use of that key, or the launcher; None where it has gone since."""
    uses = uses_of(frame, now)
    found = next((use for use in uses if use.key == key), None)
    if found is not None:
        return found
    return next((use for use in _launchers(uses).values() if use.key == key), None)


def child_of(frame: Frame, pid: int) -> int | None:
    """A process on a GPU that this launcher started, or what it started; None where it has none."""
    processes = (use.process for use in uses_of(frame, 0.0) if use.process is not None)
    return next(
        (one.pid for one in processes if any(parent.pid == pid for parent in value_or(one.parents, ()))), None
    )


def _gpu_of(row: LiveDevice, process: GpuProcess) -> str:
    index = row.id.nvml_index
    number = "?" if isinstance(index, Missing) else str(index)
    instance = process.gpu_instance_id
    return number if isinstance(instance, Missing) else f"{number}:gi{instance}"


def _where(row: LiveDevice, process: GpuProcess) -> str:
    """The pod, the Slurm job or the container that the process runs in.

    It is empty where it is in none that is known.
    """
    job = process.slurm_job_id
    if not isinstance(job, Missing):
        return f"job {job}"
    pods = {pod.pod: pod for pod in row.pods if _has_instance(pod, process)}
    if len(pods) == 1:  # the kubelet gives a GPU to containers, and does not name processes
        pod = next(iter(pods.values()))
        return f"{pod.namespace}/{pod.pod}"
    container = process.container_id
    return "" if isinstance(container, Missing) else container[:_CONTAINER_DIGITS]


def _has_instance(pod: PodUse, process: GpuProcess) -> bool:
    return pod.gpu_instance_id is None or pod.gpu_instance_id == process.gpu_instance_id


def _passes(use: Use, choice: Choice) -> bool:
    if choice.gpu is not None and use.gpu.partition(":")[0] != choice.gpu:
        return False
    return all(word in _searched(use) for word in choice.filter.lower().split())


def _searched(use: Use) -> str:
    user = "" if use.process is None else value_or(use.process.user, "")
    return f"{use.pid} {user} {use.where} gpu{use.gpu} {use.command}".lower()


def _sorted(uses: Iterable[Use], choice: Choice) -> list[Use]:
    return sorted(uses, key=partial(_place, sort=choice.sort), reverse=choice.is_reversed)


def _place(use: Use, sort: str) -> tuple[object, ...]:
    """Where the use comes in that order; what is not known comes last."""
    process = use.process
    if process is None:
        return (1, 0, use.pid)
    values: dict[str, Reading[float] | str] = {
        "gpu": use.order,
        "pid": use.pid,
        "user": value_or(process.user, ""),
        "memory": process.memory_used_bytes,
        "sm": process.sm_utilization_percent,
        "cpu": process.processor_percent,
        "time": use.age_seconds,
        "command": use.command,
    }
    value = values[sort]
    if isinstance(value, Missing):
        return (1, 0, use.order, use.pid)
    if sort in LARGEST_FIRST and not isinstance(value, str):
        value = -value
    return (0, value, use.order, use.pid)


def _launchers(uses: Sequence[Use]) -> dict[int, Use]:
    """The processes that started those on GPUs and are on none themselves, by pid."""
    on_gpus = {use.pid for use in uses}
    return {
        parent.pid: Use(parent.pid, parent.command)
        for use in uses
        if use.process is not None
        for parent in value_or(use.process.parents, ())
        if parent.pid not in on_gpus
    }


def _tree(uses: Sequence[Use], choice: Choice, glyphs: Glyphs) -> list[_Shown]:
    """The uses under those that started them; a tree stands where the first of its uses would."""
    launchers = {pid: _Node(use) for pid, use in _launchers(uses).items()}
    first: dict[int, _Node] = {}  # of a process on several GPUs, which stands once for each
    roots: list[_Node] = []
    ordered = [_Node(use) for use in _sorted(uses, choice)]
    for node in ordered:
        first.setdefault(node.use.pid, node)
    placed: set[int] = set()
    for node in ordered:
        _hang(node, first, launchers, placed, roots)
    return [shown for root in roots for shown in _flat(root, "", "", glyphs)]


def _hang(
    node: _Node, first: dict[int, _Node], launchers: dict[int, _Node], placed: set[int], roots: list[_Node]
) -> None:
    """Put a use below its parent, and that below its own, as far as none of them has a place yet."""
    below = node
    parents = () if node.use.process is None else value_or(node.use.process.parents, ())
    for parent in parents:
        above = first.get(parent.pid) or launchers.get(parent.pid)
        if above is None or above is below:
            continue
        above.below.append(below)
        if above.use.process is not None or above.use.pid in placed:
            return  # it has its own place
        placed.add(above.use.pid)
        below = above
    roots.append(below)


def _flat(node: _Node, before: str, after: str, glyphs: Glyphs) -> Iterable[_Shown]:
    yield _Shown(node.use, before)
    for number, one in enumerate(node.below, start=1):
        is_last = number == len(node.below)
        branch, trunk = (glyphs.last_branch, "   ") if is_last else (glyphs.branch, glyphs.trunk)
        yield from _flat(one, after + branch, after + trunk, glyphs)


def _user(one: _Shown, _width: int) -> Span:
    return Span("" if one.use.process is None else value_or(one.use.process.user, NO_VALUE))


def _memory(one: _Shown, _width: int) -> Span:
    return _reading(one, "memory_used_bytes", lambda value: format_gib(value))


def _reading(one: _Shown, name: str, words: Callable[[float], str]) -> Span:
    if one.use.process is None:
        return Span("")
    reading = getattr(one.use.process, name)
    return Span(NO_VALUE, DIM) if isinstance(reading, Missing) else Span(words(reading))


def _age(one: _Shown, _width: int) -> Span:
    if one.use.process is None or isinstance(one.use.process.started_at, Missing):
        return Span("")
    return Span(format_seconds(float(round(one.use.age_seconds))))


def _kind(one: _Shown, _width: int) -> Span:
    """The kernel's letter, where a process does not simply run or sleep."""
    state = "" if one.use.process is None else value_or(one.use.process.state, "")
    return Span(state, WARN if state in _STATES else PLAIN)


def _command(one: _Shown, _width: int) -> Span:
    return Span(one.branches + one.use.command, DIM if one.use.process is None else PLAIN)


_COLUMNS: tuple[Column[_Shown], ...] = (
    Column("GPU", 4, 1, lambda one, _: Span(one.use.gpu, BOLD), is_right=True, sort="gpu", most=6, weight=1),
    Column("PID", 8, 1, lambda one, _: Span(str(one.use.pid)), is_right=True, sort="pid"),
    Column("USER", 8, 2, _user, sort="user", most=12, weight=1),
    Column("MEM GiB", 8, 1, _memory, is_right=True, sort="memory"),
    Column(
        "SM",
        4,
        1,
        lambda one, _: _reading(one, "sm_utilization_percent", lambda value: f"{value}%"),
        is_right=True,
        sort="sm",
    ),
    Column(
        "CPU",
        6,
        4,
        lambda one, _: _reading(one, "processor_percent", lambda value: f"{value:.0f}%"),
        is_right=True,
        sort="cpu",
    ),
    Column(
        "HOST GiB",
        8,
        8,
        lambda one, _: _reading(one, "resident_bytes", lambda value: format_gib(value)),
        is_right=True,
    ),
    Column("S", 1, 6, _kind),
    Column("TIME", 7, 5, _age, is_right=True, sort="time"),
    Column(_WHERE, 12, 3, lambda one, _: Span(one.use.where), most=30, weight=1),
    Column("COMMAND", 22, 1, _command, sort="command", most=400, weight=6),
)
