"""`gpudiag list --query`: readings by name as comma-separated values, as scripts for nvidia-smi read them."""

from collections.abc import Iterable, Sequence
from typing import Any, cast

from gpudiag.errors import UsageError
from gpudiag.model.codec import encode
from gpudiag.model.device import Device, DeviceId, Snapshot
from gpudiag.model.nearest import did_you_mean
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.reference.query_fields import FIELDS, OF_MACHINE, QueryField
from gpudiag.reference.vocabulary import QUERY_ALIASES

# nvidia-smi's words in a cell without a value; of the others gpudiag's own.
_WORDS = {
    MissingReason.NOT_SUPPORTED: "N/A",
    MissingReason.FUNCTION_NOT_FOUND: "N/A",
    MissingReason.DEVICE_LOST: "GPU is lost",
    MissingReason.NO_PERMISSION: "Insufficient Permissions",
}
_LEFT_OUT = ("id", "free")  # no reading: the identity itself, and what `--free` judges
_SEPARATOR = ", "


def own_names() -> tuple[str, ...]:
    """The readings by gpudiag's names: every field of a GPU that is one value."""
    names = (*DeviceId.__dataclass_fields__, *Device.__dataclass_fields__)
    return tuple(name for name in names if name not in (*_LEFT_OUT, *_OF_SEVERAL))


# Readings that are lists or objects: the JSON document has them.
_OF_SEVERAL = (
    "mig_instances",
    "ecc_locations",
    "row_remap_histogram",
    "nvlinks",
    "processes",
    "throttle_seconds",
    "pcie_errors",
    "fabric",
    "peers",
    "clocks_event_reasons",
)


def parse_query(text: str) -> tuple[str, ...]:
    """The names in a list with commas, as they stand. Raises UsageError: one is unknown, or none is."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise UsageError("--query names no field", hint="gpudiag list --help-query lists them")
    known = (*OF_MACHINE, *FIELDS, *QUERY_ALIASES, *own_names())
    for name in names:
        if name not in known:
            near = did_you_mean(name, known, "; ")
            raise UsageError(
                f"--query: there is no field {name!r}{near}", hint="gpudiag list --help-query lists them"
            )
    return names


def render_query(snapshot: Snapshot, names: Sequence[str], *, with_header: bool, with_units: bool) -> str:
    """A line for each GPU with the named readings.

    Before them, where it is wanted, the names with their units.
    """
    lines = [_SEPARATOR.join(_heading(name, with_units=with_units) for name in names)] if with_header else []
    lines += [
        _SEPARATOR.join(_cell(snapshot, device, name, with_units=with_units) for name in names)
        for device in snapshot.devices
    ]
    return "".join(f"{line}\n" for line in lines)


def render_known_fields() -> str:
    """Every name, by group: the machine's, nvidia-smi's with the reading that it is, gpudiag's own."""
    other: dict[str, list[str]] = {}
    for alias, name in QUERY_ALIASES.items():
        other.setdefault(name, []).append(alias)
    lines = [
        "Of the machine, on each line:",
        *_indented(OF_MACHINE),
        "",
        "As nvidia-smi names them, and gpudiag's reading:",
    ]
    for name, field in FIELDS.items():
        also = f"  (also {', '.join(other[name])})" if name in other else ""
        unit = f" [{field.unit}]" if field.unit else ""
        lines.append(f"  {name + unit:44} {field.reading}{also}")
    return (
        "\n".join(
            [
                *lines,
                "",
                "By gpudiag's names, in the units that these name (docs/readings.md):",
                *_indented(own_names()),
            ]
        )
        + "\n"
    )


def _indented(names: Iterable[str]) -> list[str]:
    return [f"  {name}" for name in names]


def _field(name: str) -> QueryField:
    return FIELDS.get(QUERY_ALIASES.get(name, name)) or QueryField(name, write=_plain)


def _plain(value: object) -> str:
    written = encode(value)
    return str(written).lower() if isinstance(written, bool) else str(written)


def _heading(name: str, *, with_units: bool) -> str:
    unit = "" if name in OF_MACHINE else _field(name).unit
    return f"{name} [{unit}]" if unit and with_units else name


def _cell(snapshot: Snapshot, device: Device, name: str, *, with_units: bool) -> str:
    if name in OF_MACHINE:
        return _of_machine(snapshot, name)
    field = _field(name)
    reading: Reading[object] = getattr(
        device.id if field.reading in DeviceId.__dataclass_fields__ else device, field.reading
    )
    if isinstance(reading, Missing):
        return f"[{_WORDS.get(reading.reason, reading.reason.value)}]"
    if field.at_most:
        limit: Any = getattr(device, field.at_most)
        reading = reading if isinstance(limit, Missing) else min(cast("Any", reading), limit)
    value = field.write(reading)
    return f"{value} {field.unit}" if field.unit and with_units else value


def _of_machine(snapshot: Snapshot, name: str) -> str:
    if name == "timestamp":
        return f"{snapshot.taken_at:%Y/%m/%d %H:%M:%S}.{snapshot.taken_at.microsecond // 1000:03}"
    if name == "count":
        return str(len(snapshot.devices))
    version = snapshot.driver_version
    return (
        f"[{_WORDS.get(version.reason, version.reason.value)}]" if isinstance(version, Missing) else version
    )
