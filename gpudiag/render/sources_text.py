"""The sources side by side, where they differ, and why there is no GPU row."""

from gpudiag.checks.traces import Trace
from gpudiag.model.device import (
    SOURCES_OF_GPUS,
    Device,
    DeviceView,
    Disagreement,
    Snapshot,
    SourceState,
    SourceStatus,
)
from gpudiag.model.reading import Missing, value_or
from gpudiag.reference.reading_names import name_reading, name_state
from gpudiag.reference.software import describe_nccl
from gpudiag.render.devices_text import (
    NO_VALUE,
    describe_index,
    describe_memory_gib,
    describe_name,
    describe_suffixed,
    simulated_lines,
)
from gpudiag.render.style import PLAIN, Column, Style, render_table, wrapped
from gpudiag.units import format_seconds

_GOOD_STATES = (SourceState.OK, SourceState.NO_DEVICES, SourceState.NOT_ASKED)


def render_sources(snapshot: Snapshot, style: Style = PLAIN) -> str:
    """How every source answered, what each shows of each GPU, and each disagreement with its reason."""
    widest = max(len(status.name) for status in snapshot.sources)
    heading = f"{'SOURCE':{widest}} STATE         GPUS     TIME  WHAT IT REPORTS"
    lines = [style.paint(heading, "bold")]
    for status in snapshot.sources:
        lines += _source_lines(snapshot, status, widest, style)
    if snapshot.views:
        lines += ["", *_side_by_side(snapshot, style)]
    lines += _disagreement_lines(snapshot, style)
    return "\n".join(lines) + "\n"


def _source_lines(snapshot: Snapshot, status: SourceStatus, width: int, style: Style) -> list[str]:
    count = NO_VALUE if isinstance(status.device_count, Missing) else str(status.device_count)
    seconds = NO_VALUE if isinstance(status.seconds, Missing) else format_seconds(status.seconds)
    name = status.name.replace("_", " ")
    head = f"{name:{width}} {name_state(status.state):13} {count:>4} {seconds:>8}  "
    words = status.reason or _build_words(snapshot, status.name) or "-"
    lines = wrapped(words, first=head, indent=" " * len(head))
    return lines if status.state in _GOOD_STATES else [style.paint(line, "yellow") for line in lines]


def _build_words(snapshot: Snapshot, source: str) -> str:
    """The versions behind a source that answered."""
    if source == "nvml":
        versions = (
            ("driver", snapshot.driver_version),
            ("CUDA", snapshot.cuda_driver_version),
            ("NVML", snapshot.nvml_version),
        )
        return ", ".join(
            f"{name} {version}" for name, version in versions if not isinstance(version, Missing)
        )
    if source == "host":
        machine = snapshot.machine
        system = (machine.operating_system, machine.kernel_release)
        return ", Linux ".join(fact for fact in system if not isinstance(fact, Missing))
    if source == "torch" and not isinstance(snapshot.torch, Missing):
        facts = snapshot.torch
        cuda = (
            "CPU build"
            if isinstance(facts.cuda_runtime_version, Missing)
            else f"CUDA {facts.cuda_runtime_version}"
        )
        starts = {True: ", a context starts", False: ", no context starts"}
        context = "" if isinstance(facts.context_starts, Missing) else starts[facts.context_starts]
        nccl = describe_nccl(facts.nccl_version, facts.nccl_built_version, facts.nccl_library)
        return ", ".join(filter(None, [f"torch {facts.version}", cuda, nccl])) + context
    return ""


def _side_by_side(snapshot: Snapshot, style: Style) -> list[str]:
    """One row per GPU: NVML's own readings, then each other source's index, memory and load."""
    sources = list(dict.fromkeys(view.source for view in snapshot.views if view.source != "nvml"))
    columns = [Column("GPU", right=True), Column("NAME", gives_way=True), Column("MEM GiB", right=True)]
    columns += [Column("UTIL", right=True)]
    for source in sources:
        columns += [
            Column(f"{source} #", right=True),
            Column("MEM GiB", right=True),
            Column("UTIL", right=True),
        ]
    rows = [_device_row(snapshot, device, sources) for device in snapshot.devices]
    rows += [_stray_row(view, sources) for view in _strays(snapshot)]
    heading, *lines = render_table(columns, rows)
    return [style.paint(heading, "bold"), *lines]


def _device_row(snapshot: Snapshot, device: Device, sources: list[str]) -> list[str]:
    cells = [
        describe_index(device),
        value_or(describe_name(device.name), NO_VALUE),
        value_or(describe_memory_gib(device.memory_used_bytes, device.memory_total_bytes), NO_VALUE),
        value_or(describe_suffixed(device.utilization_percent, "%"), NO_VALUE),
    ]
    for source in sources:
        cells += _view_cells(_view_of(snapshot, device, source))
    return cells


def _view_cells(view: DeviceView | None) -> list[str]:
    if view is None:
        return [NO_VALUE] * 3
    memory = value_or(describe_memory_gib(view.memory_used_bytes, view.memory_total_bytes), NO_VALUE)
    return [
        str(view.source_index),
        memory,
        value_or(describe_suffixed(view.utilization_percent, "%"), NO_VALUE),
    ]


def _stray_row(view: DeviceView, sources: list[str]) -> list[str]:
    """The row of a GPU that another source shows and NVML does not."""
    cells = [NO_VALUE, value_or(view.name, NO_VALUE), NO_VALUE, NO_VALUE]
    for source in sources:
        cells += _view_cells(view if view.source == source else None)
    return cells


def _view_of(snapshot: Snapshot, device: Device, source: str) -> DeviceView | None:
    for view in snapshot.views:
        if view.source == source and _same(view, device):
            return view
    return None


def _strays(snapshot: Snapshot) -> list[DeviceView]:
    return [
        view
        for view in snapshot.views
        if view.source != "nvml" and not any(_same(view, device) for device in snapshot.devices)
    ]


def _same(view: DeviceView, device: Device) -> bool:
    """Whether a view is of that GPU: by UUID, then by bus id."""
    for theirs, ours in ((view.uuid, device.id.uuid), (view.bus_id, device.id.bus_id)):
        if not isinstance(theirs, Missing) and not isinstance(ours, Missing):
            return theirs == ours
    return False


def _disagreement_lines(snapshot: Snapshot, style: Style) -> list[str]:
    """A line per disagreement; that there is none only where two sources could have differed."""
    if snapshot.disagreements:
        return ["", *(line for item in snapshot.disagreements for line in _one_disagreement(item, style))]
    asked = [
        status
        for status in snapshot.sources
        if status.name in SOURCES_OF_GPUS and status.state is not SourceState.NOT_ASKED
    ]
    seeing = [status.name for status in asked if status.state is SourceState.OK]
    if len(seeing) > 1:
        return ["", "No disagreement between the sources."]
    return ["", f"Not compared: only {seeing[0]} shows GPUs."] if seeing and len(asked) > 1 else []


def _one_disagreement(item: Disagreement, style: Style) -> list[str]:
    values = ", ".join(
        f"{source} {NO_VALUE if value is None else value}" for source, value in item.values.items()
    )
    about = f" of {item.uuid}" if item.uuid else ""
    kind = "explained" if item.expected else "DIFFERS"
    lines = wrapped(f"{kind}: {name_reading(item.field)}{about}: {values}: {item.reason}", indent="  ")
    return lines if item.expected else [style.paint(line, "yellow") for line in lines]


def render_absent(snapshot: Snapshot, traces: tuple[Trace, ...], style: Style = PLAIN) -> str:
    """Whether there should be a GPU here, then every source's answer, then what to type next."""
    lines = simulated_lines(snapshot)
    if traces:
        seen = "; ".join(trace.text for trace in traces)
        lines += [
            style.paint(line, "red")
            for line in wrapped(f"No working GPU on {snapshot.host}, and traces of one: {seen}.")
        ]
        following = "Next: gpudiag (the verdict and what to do)"
    else:
        lines += wrapped(
            f"No GPU on {snapshot.host}, and no trace of one (PCI bus, /dev, driver, allocation)."
        )
        following = "Next: gpudiag nccl-test --backend gloo | gpudiag simulate h100x8 -- gpudiag list"
    return "\n".join([*lines, "", render_sources(snapshot, style).rstrip("\n"), following]) + "\n"
