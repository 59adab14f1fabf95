"""A GPU's identity and settings: names, numbers, PCI address, modes."""

from gpudiag.errors import UsageError
from gpudiag.model.reading import is_without_word
from gpudiag.reference.nvml import constant, constants_with_prefix, pack_struct, struct_version
from gpudiag.reference.vocabulary import BRANDS, ENABLE_STATES
from gpudiag.simulate.nvml.answers import NO_SUBJECT, AnswerTable, Refusal, hash_text, text, u32
from gpudiag.simulate.nvml.gpu_answers import GpuAnswers, PlacedGpu

_DISPLAY_MODE_DEPRECATED_IN = 580


def word_number(numbers: dict[str, int], field: str, word: str) -> int:
    """NVML's number for one of our words; 9 for `unknown_9`, which stands for a number without a word.

    Raises:
        UsageError: the field has no such word.
    """
    if is_without_word(word):
        return int(word.rpartition("_")[2])
    if word not in numbers:
        raise UsageError(f"{field}: {word!r} is unknown", hint=f"one of {', '.join(numbers)}")
    return numbers[word]


def numbered(words: tuple[str | None, ...]) -> dict[str, int]:
    """NVML's number for each word of a table of the vocabulary."""
    return {word: number for number, word in enumerate(words) if word is not None}


def on_off(word: str) -> bytes:
    """NVML's number for `enabled` or `disabled`, packed."""
    return u32(word_number(numbered(ENABLE_STATES), "a mode", word))


def encode_identity(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the GPU's identity and modes, and the look-ups of its handle."""
    answers = GpuAnswers(table, placed.subject)
    answers.reply("nvmlDeviceGetSerial", placed.read("serial"), text)
    minor_number = placed.gpu.minor_number
    answers.reply("nvmlDeviceGetIndex", placed.nvml_index)
    answers.reply("nvmlDeviceGetMinorNumber", placed.nvml_index if minor_number is None else minor_number)
    answers.reply("nvmlDeviceGetCudaComputeCapability", placed.read("compute_capability"), _capability)
    brand = placed.read("brand")
    answers.reply("nvmlDeviceGetBrand", placed.read("name") if isinstance(brand, Refusal) else brand, _brand)
    _encode_modes(placed, answers)
    _encode_pci(placed, answers)
    _encode_look_ups(placed, table)


def _capability(version: str) -> bytes:
    major, minor = version.split(".")
    return u32(int(major)) + u32(int(minor))


def _brand(word: str) -> bytes:
    """NVML's number for a brand, packed, or for a product name's brand: data-center GPUs are plain NVIDIA."""
    brands = numbered(BRANDS)
    if is_without_word(word):
        return u32(word_number(brands, "brand", word))
    by_product = brands["geforce" if "GeForce" in word else "nvidia"]
    return u32(brands.get(word, by_product))


def _encode_modes(placed: PlacedGpu, answers: GpuAnswers) -> None:
    answers.reply("nvmlDeviceGetDisplayActive", "disabled", on_off)  # nothing draws on a simulated GPU
    answers.reply("nvmlDeviceGetDisplayMode", _display_mode(placed.driver_version), on_off)
    types = [value for name, value in constants_with_prefix("nvmlEventType").items() if name != "all"]
    answers.reply("nvmlDeviceGetSupportedEventTypes", sum(types), lambda mask: mask.to_bytes(8, "little"))


def _display_mode(driver_version: str) -> str | Refusal:
    """What drivers say of a data-center GPU: 570.148 `enabled`, 580.105 and 595.91 that it is deprecated.

    Source: nvidia-smi -q -x of an A100, an H100 and a T4, 2026.
    """
    major = driver_version.partition(".")[0]
    if major.isdigit() and int(major) >= _DISPLAY_MODE_DEPRECATED_IN:
        return Refusal(constant("NVML_ERROR_DEPRECATED"))
    return "enabled"


def parse_bus_id(bus_id: str) -> tuple[int, int, int]:
    """Domain, bus and device of `dddddddd:bb:dd.f`.

    Raises:
        UsageError: the text has another form.
    """
    try:
        domain, bus, device = bus_id.split(".")[0].split(":")
        return int(domain, 16), int(bus, 16), int(device, 16)
    except ValueError:
        raise UsageError(f"{bus_id!r} is not a PCI bus id", hint="write it as 00000000:5d:00.0") from None


def pack_pci_info(bus_id: str, device_id: int = 0, subsystem_id: int = 0) -> bytes:
    """An nvmlPciInfo_t (version 3, of which the older ones are a part)."""
    domain, bus, device = parse_bus_id(bus_id)
    upper = bus_id.upper()
    return pack_struct(
        "nvmlPciInfo_t",
        busIdLegacy=upper[4:],
        domain=domain,
        bus=bus,
        device=device,
        pciDeviceId=device_id,
        pciSubSystemId=subsystem_id,
        busId=upper,
    )


def _encode_pci(placed: PlacedGpu, answers: GpuAnswers) -> None:
    # NVML joins two sysfs ids: the device's in the upper half, the vendor's in the lower.
    device_id = int(f"{placed.gpu.pci_device_id or '0'}10de", 16)
    subsystem_id = int(placed.gpu.pci_subsystem_id or "0", 16)
    bus_id = placed.read("bus_id")

    def pack(value: str) -> bytes:
        return pack_pci_info(value, device_id, subsystem_id)

    answers.reply_each(
        ("nvmlDeviceGetPciInfo", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"), bus_id, pack
    )
    class_id = int(placed.read_pci_attribute("class") or "0x030200", 16)

    def pack_extended(value: str) -> bytes:
        domain, bus, device = parse_bus_id(value)
        return pack_struct(
            "nvmlPciInfoExt_v1_t",
            version=version,
            domain=domain,
            bus=bus,
            device=device,
            pciDeviceId=device_id,
            pciSubSystemId=subsystem_id,
            baseClass=class_id >> 16,
            subClass=class_id >> 8 & 0xFF,
            busId=value.upper(),
        )

    version = struct_version("nvmlPciInfoExt_v1_t", 1)
    answers.reply("nvmlDeviceGetPciInfoExt", bus_id, pack_extended, keys=(version,))


def _encode_look_ups(placed: PlacedGpu, table: AnswerTable) -> None:
    """Answer the handle for its index, UUID, serial and each way to write the bus id."""
    handle = u32(placed.subject)
    for function in ("nvmlDeviceGetHandleByIndex", "nvmlDeviceGetHandleByIndex_v2"):
        table.answer(function, NO_SUBJECT, handle, keys=(placed.nvml_index,))
    bus_id, serial, uuid = placed.read("bus_id"), placed.read("serial"), placed.read("uuid")
    if not isinstance(uuid, Refusal):
        for function in ("nvmlDeviceGetHandleByUUID", "nvmlDeviceGetHandleByUUIDV"):
            table.answer(function, NO_SUBJECT, handle, keys=(hash_text(uuid),))
    if not isinstance(serial, Refusal):
        table.answer("nvmlDeviceGetHandleBySerial", NO_SUBJECT, handle, keys=(hash_text(serial),))
    if not isinstance(bus_id, Refusal):
        for spelled in (bus_id, bus_id[4:], bus_id.split(":", 1)[1]):
            for function in ("nvmlDeviceGetHandleByPciBusId", "nvmlDeviceGetHandleByPciBusId_v2"):
                table.answer(function, NO_SUBJECT, handle, keys=(hash_text(spelled),))
