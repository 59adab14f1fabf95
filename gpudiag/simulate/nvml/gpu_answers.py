"""One simulated GPU's readings, and the calls that they answer."""

import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpudiag.reference.nvml import constant
from gpudiag.simulate.nvml.answers import SUBJECTS_PER_GPU, AnswerTable, Refusal, u32
from gpudiag.simulate.scenario import HostTree, SimulatedGpu

_FIELD_VALUE = struct.Struct("<Ii8s")
_ANY_SCOPE = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class PlacedGpu:
    """A GPU of the machine, its place in NVML's order, and the host tree around it."""

    gpu: SimulatedGpu
    position: int  # among all GPUs of the scenario: the subject of its calls follows from it
    nvml_index: int  # among those that NVML shows
    host: HostTree
    driver_version: str = ""

    @property
    def subject(self) -> int:
        """The number of the GPU's handle."""
        return self.position * SUBJECTS_PER_GPU

    def mig_subject(self, number: int) -> int:
        """The number of the handle of the GPU's MIG device `number`, counted from 0."""
        return self.subject + 1 + number

    def read(self, name: str) -> Any:
        """The reading's value, or the Refusal that stands for why it is missing."""
        return read_member({**self.gpu.readings, "missing": self.gpu.missing}, name)

    def read_pci_attribute(self, name: str) -> str | None:
        """The text of a file in the GPU's sysfs folder of the host tree; None where there is none."""
        bus_id = self.gpu.readings.get("bus_id")
        if not isinstance(bus_id, str):
            return None
        suffix = f"/{bus_id[4:]}/{name}"
        for path, text in self.host.files.items():
            if path.endswith(suffix):
                return text.strip()
        return None


def read_member(record: Mapping[str, Any], name: str) -> Any:
    """The member's value, or the Refusal for the reason in the record's `missing`."""
    value = record.get(name)
    if value is not None:
        return value
    reason = (record.get("missing") or {}).get(name, "not_supported")
    return Refusal.for_reason(reason)


@dataclass(frozen=True, slots=True)
class GpuAnswers:
    """Writes the answers of one subject (a GPU or a MIG device) into the table."""

    table: AnswerTable
    subject: int

    def reply(
        self,
        function: str,
        reading: Any,
        encode: Callable[[Any], bytes] = u32,
        keys: Iterable[int] = (),
    ) -> None:
        """Make a call of this subject answer the reading."""
        self.table.reply(function, self.subject, reading, encode, keys)

    def reply_each(
        self, functions: Iterable[str], reading: Any, encode: Callable[[Any], bytes] = u32
    ) -> None:
        """Make several names of one call answer the reading."""
        for function in functions:
            self.reply(function, reading, encode)

    def reply_versioned(
        self, function: str, reading: Any, encode: Callable[[Any], bytes], *keys: int
    ) -> None:
        """Make a call with a versioned struct answer the reading; a refusal holds for every version."""
        if isinstance(reading, Refusal):
            self.table.refuse_all(function, self.subject, reading)
        else:
            self.reply(function, reading, encode, keys)

    def reply_field(self, field: str, reading: Any, *, wide: bool = False, scope: int = _ANY_SCOPE) -> None:
        """Make NVML_FI_`field` of nvmlDeviceGetFieldValues answer the reading; see `reply_field_number`."""
        self.reply_field_number(constant(f"NVML_FI_{field}"), reading, wide=wide, scope=scope)

    def reply_field_number(
        self, number: int, reading: Any, *, wide: bool = False, scope: int = _ANY_SCOPE
    ) -> None:
        """Make the field of that number answer the reading, with its own return code.

        `wide` makes it an unsigned long long; a value below 0 is a signed int.
        """

        def encode(value: int) -> bytes:
            kind = "UNSIGNED_LONG_LONG" if wide else "SIGNED_INT" if value < 0 else "UNSIGNED_INT"
            packed = struct.pack("<q" if value < 0 else "<Q", int(value))
            return _FIELD_VALUE.pack(constant(f"NVML_VALUE_TYPE_{kind}"), 0, packed)

        self.reply("nvmlDeviceGetFieldValues", reading, encode, keys=(number, scope))
