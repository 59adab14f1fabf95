"""Machine files (TOML) to a Blueprint: base machines and users' scenario files have one format.

A file may build on another one (`base = "h100x8"`). What it has about GPUs is laid over the base, layer
by layer: `[gpu]` for every GPU, then `[each]`, a list with one value per GPU, then `[gpus.3]` for one.
A layer either gives a reading, or lists it under `missing` with its reason; the later layer wins. An
`[each]` with `bus_id` lists all GPUs of the machine anew. docs/simulate.md shows every key.
"""

import os
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from gpudiag.errors import UsageError
from gpudiag.model.device import Device, DeviceId
from gpudiag.model.nearest import nearest_hint
from gpudiag.model.reading import MissingReason
from gpudiag.simulate.blueprint import (
    Blueprint,
    GpuBlueprint,
    HostFacts,
    HostProcess,
    Interface,
    KernelLine,
    LoggedLines,
    PciFunction,
    TorchBuild,
)
from gpudiag.simulate.scenario import CallFault, SimulatedGpu, SimulatedNvml
from gpudiag.toml import tomllib

if TYPE_CHECKING:
    from importlib.abc import Traversable  # Python 3.11 moved it

_T = TypeVar("_T")
_SCALARS = (str, int, float, bool, types.NoneType)

# Which GPU it is in each source's count follows from the machine, so no file has it.
# The subsystem's id stands once for NVML and the bus, among the keys of a GPU.
# How fast NVLink is follows from its counters, and whether a GPU is free from what the checks find.
DERIVED_READINGS = (
    "nvml_index",
    "cuda_ordinal",
    "responding",
    "pci_subsystem_id",
    "nvlink_throughput_bytes_per_second",
    "free",
)
_IDENTITY = ("uuid", "bus_id", "name")  # what no machine may leave out
_BETWEEN_GPUS = "peers"  # the library answers it from the place of the GPUs
_GPU_KEYS = (
    "calls",
    "minor_number",
    "pci_device_id",
    "pci_subsystem_id",
    "pci_class_id",
    "kernel_driver",
    "on_bus",
    "asleep",
    "missing",
)
_ECC_COUNTERS = ("corrected_volatile", "uncorrected_volatile", "corrected_aggregate", "uncorrected_aggregate")
_LINK_COUNTERS = ("crc_flit_errors", "crc_data_errors", "replay_errors", "recovery_errors")
_PCIE_ERRORS = (
    "correctable",
    "nonfatal",
    "fatal",
    "bad_tlp",
    "bad_dllp",
    "naks_received",
    "naks_sent",
)
_BANKS = ("max_banks", "high_banks", "partial_banks", "low_banks", "none_banks")

_TOP_KEYS = frozenset(
    (
        "base",
        "description",
        "sources",
        "faults",
        "nvml",
        "gpu",
        "each",
        "gpus",
        "visible_gpus",
        "host",
        "torch",
        "environment",
        "nvidia_smi_present",
        "kernel_log",
        "story",
    )
)
_TABLES = ("nvml", "gpu", "each", "gpus", "host", "torch", "environment")
_MAX_BASES = 8  # how deep files may build on one another; stops a loop too


def build(noun_type: type[_T], table: Any, file: str) -> _T:
    """The dataclass with the table's values, lists as tuples.

    Raises:
        UsageError: the table has an unknown key, lacks one, or a value is of the wrong kind.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"{file}: {table!r} should be a table")
    hints = get_type_hints(noun_type)
    known = {field.name for field in fields(noun_type)}  # type: ignore[arg-type] # callers pass dataclasses
    values = {}
    for key, value in table.items():
        if key not in known:
            raise UsageError(f"{file}: unknown key {key!r}", hint=nearest_hint(key, known))
        if not _fits(hints[key], value):
            raise UsageError(f"{file}: {key} cannot be {value!r}")
        values[key] = tuple(value) if isinstance(value, list) else value
    try:
        return noun_type(**values)
    except TypeError as error:
        raise UsageError(f"{file}: {noun_type.__name__} is not complete: {error}") from error


def _fits(hint: Any, value: Any) -> bool:
    """Whether the value fits the type hint; the elements of lists and tables are not checked."""
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(member, value) for member in get_args(hint))
    if hint is float:
        return type(value) in (int, float)
    if hint in _SCALARS:
        return type(value) is hint
    if get_origin(hint) is tuple:
        return isinstance(value, list | tuple)
    return isinstance(value, Mapping)


READINGS = tuple(
    field.name
    for field in (*fields(DeviceId), *fields(Device))
    if field.name not in ("id", *DERIVED_READINGS)
)


def build_gpu(layers: list[dict[str, Any]], name: str, index: int) -> GpuBlueprint:
    """The GPU that the layers, lowest first, describe, at place `index`; other readings are NOT_SUPPORTED.

    Raises:
        UsageError: an unknown key, a GPU without an identity, or a reading that does not fit.
    """
    readings: dict[str, Any] = {}
    missing: dict[str, str] = {}
    others: dict[str, Any] = {}
    for layer in layers:
        listed_missing = _missing(layer["missing"], name)
        for key, value in layer.items():
            if key in READINGS:
                readings[key] = _expand(key, value, name)
                missing.pop(key, None)
            elif key in _GPU_KEYS:
                others[key] = value
            else:
                raise UsageError(
                    f"{name}: a GPU has no {key!r}", hint=nearest_hint(key, (*READINGS, *_GPU_KEYS))
                )
        for key in listed_missing:
            readings.pop(key, None)
        missing |= listed_missing
    unlisted = [
        key for key in READINGS if key not in readings and key not in missing and key != _BETWEEN_GPUS
    ]
    forgotten = [key for key in _IDENTITY if key in unlisted]
    if forgotten:
        raise UsageError(f"{name}: GPU {index} has neither a value nor a reason for {', '.join(forgotten)}")
    missing |= dict.fromkeys(unlisted, MissingReason.NOT_SUPPORTED.value)
    return _blueprint(readings, missing, others, index, name)


def _blueprint(
    readings: dict[str, Any], missing: dict[str, str], others: dict[str, Any], index: int, name: str
) -> GpuBlueprint:
    gpu = SimulatedGpu(
        readings=readings,
        missing=missing,
        faults=tuple(build(CallFault, call, name) for call in others.get("calls", ())),
        minor_number=others.get("minor_number", index if others.get("on_bus", True) else None),
        pci_device_id=others.get("pci_device_id"),
        pci_subsystem_id=others.get("pci_subsystem_id"),
    )
    return GpuBlueprint(
        gpu=gpu,
        pci_class_id=others.get("pci_class_id", "0302"),
        kernel_driver=others.get("kernel_driver", "nvidia"),
        on_bus=others.get("on_bus", True),
        asleep=others.get("asleep", False),
    )


def _missing(listed: Mapping[str, Any], name: str) -> dict[str, str]:
    """Reading -> reason, from the file's reason -> list of readings."""
    missing = {}
    for reason, names in listed.items():
        if reason not in list(MissingReason):
            raise UsageError(f"{name}: unknown reason {reason!r}", hint=nearest_hint(reason, MissingReason))
        for reading in names:
            if reading not in READINGS:
                raise UsageError(f"{name}: unknown reading {reading!r}", hint=nearest_hint(reading, READINGS))
            missing[reading] = reason
    return missing


def _expand(reading: str, value: Any, name: str) -> Any:
    """The reading's full value, where the file may use a short form."""
    if reading not in _EXPANDED:
        return value
    try:
        return _EXPANDED[reading](value)
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{name}: {reading} cannot be {value!r}", hint="docs/simulate.md shows how"
        ) from error


def _ecc_locations(entries: list[Any]) -> list[dict[str, Any]]:
    """A place's name alone means that nothing was counted there."""
    return [
        {"location": entry, **dict.fromkeys(_ECC_COUNTERS, 0)} if isinstance(entry, str) else entry
        for entry in entries
    ]


def _nvlinks(entry: Any) -> list[dict[str, Any]]:
    """The links of the short form `{ count, remote_bus_ids, counters }`; far ends are assigned in turn."""
    if isinstance(entry, list):
        return entry
    remotes = entry.get("remote_bus_ids")
    counted = entry.get("counters", True)
    links = []
    for link in range(entry["count"]):
        one: dict[str, Any] = {"link": link, "active": True}
        one["remote_bus_id"] = remotes[link % len(remotes)] if remotes else None
        one |= dict.fromkeys(_LINK_COUNTERS, 0 if counted else None)
        missing = {key: "not_supported" for key, value in one.items() if value is None}
        links.append({**one, "missing": missing} if missing else one)
    return links


def _histogram(banks: Mapping[str, int]) -> dict[str, int]:
    return {**dict.fromkeys(_BANKS, 0), **banks}


def _throttle_seconds(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Kinds that are not named are 0; `board_limit` and `reliability` then are not supported."""
    uncounted = {"board_limit": None, "reliability": None}
    missing = {name: "not_supported" for name in uncounted if name not in entry}
    return {"power": 0.0, "thermal": 0.0, "sync_boost": 0.0, **uncounted, **entry, "missing": missing}


def _pcie_errors(entry: Mapping[str, int]) -> dict[str, int]:
    """Kinds that are not named are 0."""
    return {**dict.fromkeys(_PCIE_ERRORS, 0), **entry}


def _fabric(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Members that are not given are not supported: NVLink 4 switches report no health and no faults."""
    filled = {"clique_id": None, "cluster_uuid": None, "health": None, "faults": None, **entry}
    missing = {name: "not_supported" for name, value in filled.items() if value is None}
    return {**filled, "missing": missing} if missing else filled


_EXPANDED: dict[str, Callable[[Any], Any]] = {
    "ecc_locations": _ecc_locations,
    "fabric": _fabric,
    "pcie_errors": _pcie_errors,
    "throttle_seconds": _throttle_seconds,
    "nvlinks": _nvlinks,
    "row_remap_histogram": _histogram,
}


Layer = Mapping[str, Any]


def base_machines() -> tuple[str, ...]:
    """The names of the machines that come with gpudiag, in alphabetical order."""
    names = (entry.name for entry in _directory("machines").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def stories() -> tuple[str, ...]:
    """The names of the stories that come with gpudiag, in alphabetical order."""
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in _directory("stories").iterdir()))


def read_layers(source: str | Path) -> list[Layer]:
    """The file of a machine or story (by name or path) and all it builds on, lowest first.

    Raises:
        UsageError: no such machine or file, not TOML, an unknown key, or bases that form a loop.
    """
    layers: list[Layer] = []
    while True:
        layer = _read_file(source)
        layers.insert(0, layer)
        if "base" not in layer:
            return layers
        if len(layers) > _MAX_BASES:
            raise UsageError(f"the bases of {source} form a loop", hint="one of them is its own base")
        source = _base_of(layer["base"], source)


def build_blueprint(layers: list[Layer], name: str) -> Blueprint:
    """The machine that the layers, lowest first, describe. Raises UsageError: a value does not fit."""
    top = _merged(layers, name)
    host = _merge_section(layers, "host")
    processes = tuple(build(HostProcess, entry, name) for entry in host.pop("processes", ()))
    host["pci_functions"] = tuple(
        function for entry in host.get("pci_functions", ()) for function in _pci_functions(entry, name)
    )
    host["interfaces"] = tuple(build(Interface, entry, name) for entry in host.get("interfaces", ()))
    gpus = _build_gpus(layers, name)
    nvml = build(SimulatedNvml, _merge_section(layers, "nvml"), name)
    nvml = replace(nvml, faults=tuple(build(CallFault, call, name) for call in nvml.faults))
    if host.get("kernel_modules") and "kernel_driver_version" not in host:
        host["kernel_driver_version"] = nvml.driver_version
    return Blueprint(
        name=name,
        description=top.get("description", ""),
        sources=tuple(top.get("sources", ())),
        nvml=nvml,
        gpus=gpus,
        host=build(HostFacts, host, name),
        torch=build(TorchBuild, _merge_section(layers, "torch"), name),
        environment=_environment(layers, name),
        nvidia_smi_present=top.get("nvidia_smi_present", True),
        processes=processes,
        kernel_log=tuple(read_kernel_log(layers, gpus, name)),
    )


def read_kernel_log(layers: list[Layer], gpus: tuple[GpuBlueprint, ...], name: str) -> Iterator[KernelLine]:
    """The lines of every layer; `{number}` counts those of one entry, `{gpu}` is the GPU's address."""
    listed = [gpu for gpu in gpus if gpu.gpu.visible]
    for entry in (entry for layer in layers for entry in layer.get("kernel_log", ())):
        lines = build(LoggedLines, entry, name)
        if not 0 <= lines.gpu < max(1, len(listed)):
            raise UsageError(f"{name}: [[kernel_log]] gpu {lines.gpu} is not a GPU of this machine")
        text = lines.text
        if listed:
            text = text.replace("{gpu}", listed[lines.gpu].sysfs_address.rsplit(".", 1)[0])
        for number in range(lines.times):
            age_seconds = lines.age_seconds - number * lines.every_seconds
            yield KernelLine(age_seconds, text.replace("{number}", str(number)), lines.level)


def _directory(name: str) -> "Traversable":
    return files("gpudiag.simulate").joinpath(name)


def _read_file(source: str | Path) -> Layer:
    try:
        if isinstance(source, Path):
            text = source.read_text(encoding="utf-8")
        else:
            folder = _directory("stories" if source in stories() else "machines")
            text = folder.joinpath(f"{source}.toml").read_text(encoding="utf-8")
        layer = tomllib.loads(text)
    except OSError as error:
        raise UsageError(f"the scenario file {source} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the scenario file {source} is not TOML: {error}") from error
    for key in layer:
        if key not in _TOP_KEYS:
            raise UsageError(f"{source}: unknown key {key!r}", hint=nearest_hint(key, _TOP_KEYS))
    _refuse_misshapen(layer, source)
    return layer


def _refuse_misshapen(layer: Layer, source: str | Path) -> None:
    """Raise UsageError where a table, or a list, is expected and something else stands."""
    if not isinstance(layer.get("story", []), list):
        raise UsageError(f"{source}: a chapter of the story is written as [[story]]")
    tables = {key: layer[key] for key in _TABLES if key in layer}
    if isinstance(layer.get("gpus"), dict):
        tables |= {f"gpus.{number}": gpu for number, gpu in layer["gpus"].items()}
    for key, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(f"{source}: [{key}] should be a table, not {table!r}")
        missing = table.get("missing", {}) if key.startswith("gpu") else {}
        if not isinstance(missing, dict) or not all(isinstance(names, list) for names in missing.values()):
            raise UsageError(f"{source}: [{key}.missing] should be lists of readings, by reason")


def _base_of(base: Any, source: str | Path) -> str | Path:
    """What `base` names: a machine that comes with gpudiag, else a file beside the one that names it."""
    if not isinstance(base, str):
        raise UsageError(f"{source}: `base` should be a machine's name or a file, not {base!r}")
    if base in base_machines():
        return base
    path = Path(base) if isinstance(source, str) else source.parent / base
    if path.suffix == ".toml" and os.path.exists(path):
        return path
    raise UsageError(f"{source}: there is no machine {base!r}", hint=nearest_hint(base, base_machines()))


def _merged(layers: list[Layer], name: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer
    if "bus_id" not in {key for layer in layers for key in layer.get("each", {})}:
        raise UsageError(f"{name}: no key defines its GPUs", hint='name a base: base = "h100x8"')
    return merged


def _merge_section(layers: list[Layer], section: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for layer in layers:
        merged |= layer.get(section, {})
    return {key: tuple(value) if isinstance(value, list) else value for key, value in merged.items()}


def _environment(layers: list[Layer], name: str) -> dict[str, str]:
    variables = _merge_section(layers, "environment")
    for variable, value in variables.items():
        if not isinstance(value, str):
            raise UsageError(f"{name}: [environment] {variable} should be a string, not {value!r}")
    return variables


def _pci_functions(entry: Mapping[str, Any], name: str) -> list[PciFunction]:
    """One function for each address of an entry, with its own of the `numa_nodes` where there are any."""
    shared = {key: value for key, value in entry.items() if key not in ("addresses", "numa_nodes")}
    addresses = entry.get("addresses", ())
    nodes = entry.get("numa_nodes", [shared.get("numa_node", -1)] * len(addresses))
    if len(nodes) != len(addresses):
        raise UsageError(f"{name}: [[host.pci_functions]] numa_nodes should have a value for every address")
    return [
        build(PciFunction, {**shared, "address": at, "numa_node": node}, name)
        for at, node in zip(addresses, nodes, strict=True)
    ]


def _build_gpus(layers: list[Layer], name: str) -> tuple[GpuBlueprint, ...]:
    count = 0
    applied: list[Layer] = []
    for layer in layers:
        each = layer.get("each", {})
        if "bus_id" in each:
            count = len(each["bus_id"])
            applied = [{key: value for key, value in lower.items() if key != "each"} for lower in applied]
        applied.append(layer)
    visible = _visible(layers, count, name)
    listed = [index for index in range(count) if visible[index]]
    gpus = []
    for index in range(count):
        number = listed.index(index) if visible[index] else None
        gpu = build_gpu([_of_gpu(layer, index, number, name) for layer in applied], name, index)
        gpus.append(replace(gpu, gpu=replace(gpu.gpu, visible=visible[index])))
    _refuse_unlisted(layers, len(listed), name)
    return tuple(gpus)


def _of_gpu(layer: Layer, index: int, number: int | None, name: str) -> dict[str, Any]:
    """The values of a layer for one GPU: `[gpu]`, its values in `[each]`, its own `[gpus.N]`."""
    merged = dict(layer.get("gpu", {}))
    for key, values in layer.get("each", {}).items():
        if not isinstance(values, list) or index >= len(values):
            raise UsageError(f"{name}: [each] {key} should have a value for every GPU")
        merged[key] = values[index]
    own = layer.get("gpus", {}).get(str(number), {}) if number is not None else {}
    missing = {**merged.get("missing", {}), **own.get("missing", {})}
    return {**merged, **own, "missing": missing}


def _visible(layers: list[Layer], count: int, name: str) -> list[bool]:
    chosen = _merged(layers, name).get("visible_gpus")
    if chosen is None:
        return [True] * count
    if not isinstance(chosen, list) or any(not isinstance(at, int) or at >= count for at in chosen):
        raise UsageError(f"{name}: visible_gpus should be a list of numbers from 0 to {count - 1}")
    return [index in chosen for index in range(count)]


def _refuse_unlisted(layers: list[Layer], count: int, name: str) -> None:
    for layer in layers:
        for number in layer.get("gpus", {}):
            if not number.isdecimal() or int(number) >= count:
                raise UsageError(f"{name}: [gpus.{number}]: the machine has {count} GPUs, counted from 0")
