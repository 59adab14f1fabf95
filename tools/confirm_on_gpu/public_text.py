"""Which texts of a report may leave the machine: each has a form, or is one of known words. All others stay.

A form is so narrow that neither a name of a host or user, nor an address, a serial number, a UUID or a path
has it. What a maker or distributor writes into a free text (names of GPUs, processors, systems) passes word
by word, and each word must be known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cache

from gpudiag.model.finding import Outcome
from gpudiag.model.reading import MissingReason, is_without_word
from gpudiag.reference import vocabulary

# A text as it may leave, or None: it stays.
Keep = Callable[[str], "str | None"]

INVENTED_UUID = "{kind}-00000000-0000-4000-8000-{number:012d}"  # in the place of a real one; kind GPU or MIG
LEFT_OUT = "left out"  # in the place of a text that a document must have


def form(pattern: str) -> Keep:
    """Keeps texts of that form; of one with a group, the group alone."""
    compiled = re.compile(pattern, re.ASCII)

    def keep(text: str) -> str | None:
        found = compiled.fullmatch(text)
        return None if found is None else found[compiled.groups]  # 0 is the whole text

    return keep


def word_of(words: Iterable[str | None]) -> Keep:
    """Keeps these words, and a driver's number that has no word yet."""
    known = frozenset(filter(None, words))
    return lambda text: text if text in known or is_without_word(text) else None


def words_like(*patterns: str) -> Keep:
    """Keeps texts all of whose words, between blanks, have one of the forms."""
    compiled = re.compile("|".join(patterns), re.ASCII)
    return lambda text: (
        text if text.split(" ") and all(map(compiled.fullmatch, text.split(" "))) and len(text) < 80 else None
    )


def always(replacement: str) -> Keep:
    """Keeps no text: the replacement stands for each."""
    return lambda text: replacement


def known_later(read: Callable[[], Collection[str]]) -> Keep:
    """Keeps the words that `read` gives when the first text is asked for: their import takes time."""
    known = cache(lambda: frozenset(read()))
    return lambda text: text if text in known() else None


def _checks() -> list[str]:
    from gpudiag.checks.builtin import BUILTIN

    return [check.name for check in BUILTIN]


def _codes() -> list[str]:
    from gpudiag.checks.catalogue import finding_kinds

    return [kind.code for kind in finding_kinds()]


def _readings() -> list[str]:
    from dataclasses import fields

    from gpudiag.model.device import Device

    return [one.name for one in fields(Device)]


def _steps() -> list[str]:
    from tools.confirm_on_gpu.plan import STEPS

    return [step.name for step in STEPS]


def _commands() -> list[str]:
    from tools.confirm_on_gpu.start_times import COMMANDS

    return list(COMMANDS)


# Drivers begin at 418: their first number is none of an address.
_DRIVER = r"[4-9]\d\d\.\d{2,3}(?:\.\d\d)?"
_CAPACITY = r"\d{1,4}[GM]B"
_GPU_WORDS = (
    "NVIDIA|Tesla|Quadro|GeForce|GRID|TITAN|Titan|Jetson|AGX|Orin|Thor|Xavier|\\(nvgpu\\)|RTX|GTX|MX|PRO|Pro|"
    "Ti|SUPER|Super|Ada|Blackwell|Generation|Laptop|GPU|Max-Q|with|Design|Server|Workstation|Edition|NVL|"
    "PCIe|SXM|HBM2e?|HBM3e?|MIG|Xp|V|RT|D|Black",
    r"[A-Z]{1,3}\d{1,4}[A-Z]{0,2}",  # H100, L40S, RTX's A6000, GB200
    r"[A-Z]{1,2}\d{2,4}[A-Z]?-(?:SXM\d?|PCIE|PG\d{3}|\d{1,2}[ABCQ]|DGXS)(?:-\d{1,4}GB)?(?:-LS|-N)?",
    r"\d{3,4}[A-Z]?",  # GeForce RTX 4090
    _CAPACITY,
    r"\d[cg]\.(?:\d[cg]\.)?\d{1,3}gb(?:\+me|\+gfx|-me)?",  # a MIG profile
)
_PROCESSOR_WORDS = (
    r"Intel\(R\)|Xeon\(R\)|Core\(TM\)|Intel|Xeon|AMD|EPYC|Ryzen|Threadripper|PRO|Platinum|Gold|Silver|Bronze|"
    r"CPU|@|Processor|Neoverse-[NV]\d|Cortex-[AX]\d{2,3}|Grace|Ampere\(R\)|Altra\(R\)|Max|Ultra|Gen|"
    r"[1-9]|[1-9]\dth|v[2-6]",
    r"[1-9]\d{0,2}-Cores?",
    r"(?:i[3579]-)?(?:[EWDQ][1-9]?-?)?\d{4,5}[A-Z]{0,3}\+?",  # 8480C, E5-2698, i7-13700H
    r"\d\.\d\dGHz",
)
_SYSTEMS = (
    "Ubuntu|Debian GNU/Linux|Red Hat Enterprise Linux|Rocky Linux|AlmaLinux|CentOS Linux|CentOS"
    " Stream|Oracle Linux Server|Fedora Linux|SUSE Linux Enterprise Server|openSUSE Leap|Amazon Linux|NVIDIA"
    " DGX OS|Arch Linux|Container-Optimized OS"
)
_LOCAL_OF_TORCH = r"cu\d\d\d|cpu|(?:[0-9a-f]{7,10})?(?:\.?nv\d\d\.\d\d)?|cu\d\d\d\.stand\.in"
_BUS_ID = form(r"[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_ENABLED = word_of((*vocabulary.ENABLE_STATES, "not_supported"))
_VERSION_OF_DRIVER = form(_DRIVER)
_OUTCOME_OF_READING = word_of(("same", "differs", "only_here", "only_in_capture", "not_in_capture"))
_UUID = form(r"(?:GPU|MIG)-00000000-0000-4000-8000-\d{12}")
_GPU_NAME = words_like(*_GPU_WORDS)

VERSION_OF_GPUDIAG = form(
    r"\d\.\d{1,2}\.\d{1,2}(?:(?:a|b|rc|\.dev)\d{1,3})?"
    r"(?: \((?:v?\d\.\d{1,2}\.\d{1,2}-\d{1,4}-g)?[0-9a-f]{7,12}(?:-dirty)?\)|"
    r" \(v?\d\.\d{1,2}\.\d{1,2}(?:-dirty)?\))?"
)
VERSION_OF_TORCH = form(rf"[12]\.\d{{1,2}}\.\d{{1,2}}(?:a|b|rc)?\d?(?:\+(?:{_LOCAL_OF_TORCH}))?")
VERSION_OF_NCCL = form(r"2\.\d{1,2}\.\d{1,2}")
VERSION_OF_CUDA = form(r"1\d\.\d")
DAY = form(r"20\d\d-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])")
REASON = word_of((*MissingReason, "null"))
# Of a list of reasons, as a check over several GPUs has them.
REASONS = words_like(rf"(?:{'|'.join((*MissingReason, 'null'))}),?")
OUTCOME = word_of(Outcome)

# By noun and field. A text whose field is not here stays on the machine.
TEXTS: dict[tuple[str, str], Keep] = {
    ("AnonymousConfirmation", "digest"): form(r"sha256:[0-9a-f]{64}"),
    ("AnonymousConfirmation", "day"): DAY,
    ("AnonymousConfirmation", "gpudiag_version"): VERSION_OF_GPUDIAG,
    ("AnonymousConfirmation", "python_version"): form(r"3\.\d{1,2}\.\d{1,2}(?:(?:a|b|rc)\d)?"),
    ("AnonymousConfirmation", "torch_version"): VERSION_OF_TORCH,
    ("AnonymousConfirmation", "cuda_runtime_version"): VERSION_OF_CUDA,
    ("AnonymousConfirmation", "nccl_version"): VERSION_OF_NCCL,
    ("AnonymousConfirmation", "driver_version"): _VERSION_OF_DRIVER,
    ("StepOutcome", "name"): known_later(_steps),
    ("CheckOutcome", "check"): known_later(_checks),
    ("CheckOutcome", "codes"): known_later(_codes),
    ("CheckOutcome", "read"): known_later(_readings),
    ("ReadingOutcome", "reading"): known_later(_readings),
    ("ReadingOutcome", "kind"): word_of(("fixed", "setting", "live", "identity")),
    ("ReadingOutcome", "outcome"): _OUTCOME_OF_READING,
    ("HangOutcome", "kind"): word_of(("healthy", "fifo", "skip", "loop", "spin")),
    ("Speed", "name"): form(
        r"memory_copy|host_to_device|device_to_host|matmul\.(?:b?float\d{1,2}|tfloat32|float8_e\dm\d)"
    ),
    ("Speed", "unit"): word_of(("B/s", "FLOP/s")),
    ("Speed", "meanwhile"): always(""),
    ("CallCost", "call"): form(
        r"nvml(?:Init|System|Device|Unit|Event|Gpm|Vgpu|GpuInstance|ComputeInstance)[A-Za-z]{0,50}(?:_v\d)?"
        r"(?:, (?:field \d{1,3}|\d{1,3} fields))?"
    ),
    ("StartTime", "command"): known_later(_commands),
    # The machine.
    ("Snapshot", "host"): always("anonymous"),
    ("Snapshot", "simulated"): always("a simulated machine"),
    ("Snapshot", "driver_version"): _VERSION_OF_DRIVER,
    ("Snapshot", "cuda_driver_version"): VERSION_OF_CUDA,
    ("Snapshot", "nvml_version"): form(rf"1\d\.{_DRIVER}"),
    ("Snapshot", "confidential_computing"): _ENABLED,
    ("SourceStatus", "name"): word_of(("nvml", "gputil", "torch", "host")),
    ("FailedCall", "function"): form(r"nvml[A-Z][A-Za-z]{3,50}(?:_v\d)?(?:, field \d{1,3})?"),
    ("DeviceId", "uuid"): _UUID,
    ("DeviceId", "bus_id"): _BUS_ID,
    ("Device", "name"): _GPU_NAME,
    ("Device", "vbios_version"): form(r"[0-9A-Fa-f]{2}(?:\.[0-9A-Fa-f]{2}){4}"),
    ("Device", "board_part_number"): form(r"\d{3}-[0-9A-Z]{5}-[0-9A-Z]\d{3}-[0-9A-Z]{3}"),
    ("Device", "architecture"): word_of(vocabulary.ARCHITECTURES),
    ("Device", "compute_capability"): form(r"\d{1,2}\.\d"),
    ("Device", "memory_kind"): word_of(("dedicated", "unified")),
    ("Device", "mig_mode"): _ENABLED,
    ("Device", "mig_mode_pending"): _ENABLED,
    ("Device", "clocks_event_reasons"): word_of(vocabulary.EVENT_REASONS),
    ("Device", "ecc_mode"): _ENABLED,
    ("Device", "ecc_mode_pending"): _ENABLED,
    ("Device", "recovery_action"): word_of(vocabulary.RECOVERY_ACTIONS),
    ("Device", "persistence_mode"): _ENABLED,
    ("Device", "compute_mode"): word_of(vocabulary.COMPUTE_MODES),
    ("Device", "pci_subsystem_id"): form(r"[0-9a-f]{4}10de"),
    ("Device", "brand"): word_of(vocabulary.BRANDS),
    ("Device", "gsp_firmware_version"): _VERSION_OF_DRIVER,
    ("Device", "gsp_firmware_mode"): _ENABLED,
    ("Device", "gsp_firmware_mode_default"): _ENABLED,
    ("Device", "inforom_version"): form(r"[0-9A-Z]\d{3}\.[0-9A-Z]{4}\.\d\d\.\d\d"),
    ("Device", "vgpu_license"): word_of(("not_needed", "unlicensed", "licensed")),
    ("MigInstance", "uuid"): _UUID,
    ("MigInstance", "name"): _GPU_NAME,
    ("NvLink", "remote_bus_id"): _BUS_ID,
    ("EccLocation", "location"): form(
        r"dram|sram|device_memory|l1_cache|l2_cache|register_file|texture\w{0,8}|cbu"
    ),
    ("FabricState", "state"): word_of(vocabulary.FABRIC_STATES),
    ("FabricState", "status"): word_of(("success", "failed", "error")),
    ("FabricState", "health"): word_of(vocabulary.FABRIC_HEALTH),
    ("FabricState", "faults"): word_of((*vocabulary.FABRIC_FAULTS, *vocabulary.FABRIC_MISCONFIGURATIONS)),
    ("PeerAccess", "bus_id"): _BUS_ID,
    ("PeerAccess", "path"): word_of(vocabulary.PEER_PATHS),
    ("PeerAccess", "read"): word_of(vocabulary.PEER_STATUSES),
    ("PeerAccess", "nvlink"): word_of(vocabulary.PEER_STATUSES),
    ("DeviceView", "source"): word_of(("nvml", "gputil", "torch")),
    ("DeviceView", "uuid"): _UUID,
    ("DeviceView", "bus_id"): _BUS_ID,
    ("DeviceView", "name"): _GPU_NAME,
    ("DeviceView", "driver_version"): _VERSION_OF_DRIVER,
    ("TorchFacts", "version"): VERSION_OF_TORCH,
    ("TorchFacts", "python"): always("python3"),
    ("TorchFacts", "cuda_runtime_version"): VERSION_OF_CUDA,
    ("TorchFacts", "architectures"): form(r"(?:sm|compute)_\d{2,3}[af]?"),
    ("TorchFacts", "nccl_version"): VERSION_OF_NCCL,
    ("TorchFacts", "nccl_built_version"): VERSION_OF_NCCL,
    ("Machine", "hostname"): always("anonymous"),
    ("Machine", "kernel_release"): form(r"([3-9]\.\d{1,2}\.\d{1,3})(?:[-.][^.].*)?"),
    ("Machine", "operating_system"): form(rf"((?:{_SYSTEMS})(?: \d{{1,2}}(?:\.\d\d?){{0,2}})?)(?: .*)?"),
    ("Machine", "processor"): words_like(*_PROCESSOR_WORDS),
    ("Machine", "processor_architecture"): word_of(("x86_64", "aarch64")),
    ("Machine", "kernel_driver_version"): _VERSION_OF_DRIVER,
    ("Machine", "kernel_driver_flavor"): word_of(("open", "proprietary")),
    ("Machine", "kernel_modules"): form(
        r"nvidia(?:_(?:uvm|drm|modeset|peermem|fs))?|nouveau|ib_umad|mlx5_ib|gdrdrv"
    ),
    ("Machine", "device_nodes"): form(
        r"/dev/(?:nvidia\d{0,3}|nvidiactl|nvidia-(?:uvm|uvm-tools|modeset)|dxg)"
    ),
    ("PciDevice", "bus_id"): _BUS_ID,
    ("PciDevice", "vendor_id"): form(r"[0-9a-f]{4}"),
    ("PciDevice", "device_id"): form(r"[0-9a-f]{4}"),
    ("PciDevice", "class_id"): form(r"[0-9a-f]{4}"),
    ("PciDevice", "driver"): word_of(
        ("nvidia", "nouveau", "vfio-pci", "nvidia-nvswitch", "nvgrace_gpu_vfio_pci")
    ),
    ("Container", "runtime"): word_of(("docker", "podman", "kubernetes", "containerd", "lxc")),
}
