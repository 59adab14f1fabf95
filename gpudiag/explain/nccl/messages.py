"""Reads messages that describe a process: its interfaces, NICs, plugins, variables, what NCCL lacks."""

import re
from collections.abc import Callable

from gpudiag.explain.nccl.facts import Head, ProcessFacts
from gpudiag.model.nccl_log import LogPlace, NcclInterface, NcclNic

MAX_SETTINGS = 200  # of one process
MAX_UNREACHABLE = 50

_SETTING = re.compile(r"(NCCL_\w+) set (?:by environment )?to ?(.*)")
_CONFIG = re.compile(r"Comm config (?:\w+ reset to (NCCL_\w+)=|(Net name) set to )(.+)")
_ADDRESS = re.compile(r"Using (?:\[\d+\])?([^\s:]+):(\S+?)<\d+>")
_INTERFACE = re.compile(r"\[\d+\]([^\s:]+):([^\s<]+)(?:<\d+>)?(?=\s|$)")
_NIC = re.compile(r"\[\d+\] ?([\w.-]+):(\d+)/(IB|RoCE)")
_OUT_OF_BAND = re.compile(r"; OOB ([^\s:]+):(\S+?)<\d+>")
_SPEED = re.compile(r"NET/IB: \[\d+\] ([\w.-]+):\S+ .*?\bspeed=(\d+)")
_WITHOUT_DIRECT = re.compile(r"NET/(.+?) : GPU Direct RDMA Disabled for HCA \d+ '([^']+)'")
_NVLS = re.compile(r"NVLS multicast support is (not )?available on dev (\d+)")
_FABRIC = re.compile(r"MNNVL busId \w+ fabric UUID (\w+\.\w+) cliqueId (\w+)")
_RING_PATTERN = re.compile(r"Pattern 4, crossNic .* type \w+/(\w+), sameChannels")
_ASKED = re.compile(r"(?:(NET|TUNER)/Plugin ?: )?Plugin name set by env to (.+)")
_LOADED = re.compile(
    r"(NET|TUNER)/Plugin ?: (?:Loaded net plugin (.+) \(v\d+\)|Using (?:tuner plugin )?(\S+)(?: \(v\d+\))?$)"
)
_EXTERNAL = re.compile(
    r"(Successfully loaded external|External) (network|tuner) plugin (.+?)(?: is unsupported)?$"
)
_CONNECT = re.compile(
    r"[Cc]onnect to (\S+?)<\d+> (?:failed : (?P<failed>.+)|returned (?P<returned>[^,]+)(?P<then>.*))"
)
_PLATFORM = re.compile(r"Running on (\S+) platform|topology? file .*?/((?:p\d\w*|g\d\w*)[-.]\w*xl\w*)")
_OPEN_ERROR = re.compile(
    r"\w+/Plugin ?: (?:Plugin load (?:\(\S+\) )?returned \d+ : |dlerror=|\S+\.so\S*: )"
    r"(?=.*(?:version|undefined symbol|cannot open shared))"
)
_REFUSES_P2P = (
    "P2P is disabled between",
    "Could not enable P2P between",
    "peer query failed between",
    "Legacy IPC not supported",
)


def add_setting(process: ProcessFacts, message: str, place: LogPlace) -> None:
    """Keep a variable that NCCL reports as set, with its value."""
    match = _SETTING.match(message)
    if match is None:
        return
    name, value = match[1], match[2].rstrip(". ")
    if len(process.settings) < MAX_SETTINGS:
        process.settings.setdefault(name, (value, place))
    kind = {"NCCL_NET_PLUGIN": "NET", "NCCL_TUNER_PLUGIN": "TUNER"}.get(name)
    if kind:
        process.asked_plugins.setdefault(kind, (value, place))


def add_unreachable(process: ProcessFacts, message: str, place: LogPlace) -> None:
    """Keep an address that does not answer."""
    if "exceeded timeouts" in message:  # before 2.24, without the address
        process.unreachable.setdefault("another rank", ("connecting timed out", True, place))
        return
    match = _CONNECT.search(message)
    if match is None or len(process.unreachable) >= MAX_UNREACHABLE:
        return
    final = "retrying" not in message
    known = process.unreachable.get(match[1])
    if known is None or (final and not known[1]):
        why = (match["failed"] or match["returned"]).strip()
        process.unreachable[match[1]] = (why, final, place)


def add(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    """Keep the content of a message that begins with one of `BEGINNINGS`."""
    keep = _BY_BEGINNING[message[:3]]
    keep(process, head, message, place)


def _add_bootstrap(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _ADDRESS.search(message)
    if match:
        process.bootstrap = (NcclInterface(match[1], match[2]), place)


def _add_net(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    if message.startswith("NET/Socket : Using"):
        found = tuple(NcclInterface(*pair) for pair in _INTERFACE.findall(message))
        if found:
            process.interfaces, process.interfaces_place = found, place
    elif message.startswith("NET/IB : Using"):
        _add_nics(process, message, place)
    elif message.startswith("NET/IB : No device found"):
        process.no_nic = place
    elif message.startswith("NET/IB : Unable to open device"):
        process.closed_nic = place
    elif "GPU Direct RDMA Disabled for GPU" in message:  # up to 2.4 behind the network
        _add_gpu_direct(process, head, message.partition(" : ")[2], place)
    elif "GPU Direct RDMA Disabled" in message:
        match = _WITHOUT_DIRECT.match(message)
        if match and match[1] != "Socket":
            process.nics_without_direct.setdefault(match[2], place)
    elif message.startswith("NET/IB: ["):
        match = _SPEED.match(message)
        if match:
            process.nic_speeds[match[1]] = int(match[2])
    elif "Made virtual device" in message and not message.endswith("ndevs=1"):
        process.merged = process.merged or "ndevs=1" not in message
    elif message.startswith("NET/OFI"):
        _add_libfabric(process, message, place)
    else:
        _add_plugin(process, head, message, place)


def _add_nics(process: ProcessFacts, message: str, place: LogPlace) -> None:
    found = tuple(NcclNic(name, int(port), link) for name, port, link in _NIC.findall(message))
    if found:
        process.nics, process.nics_place, process.merged = found, place, process.merged or "={" in message
    match = _OUT_OF_BAND.search(message)
    if match:
        process.out_of_band = (NcclInterface(match[1], match[2]), place)


def _add_libfabric(process: ProcessFacts, message: str, place: LogPlace) -> None:
    """Keep what aws-ofi-nccl reports about itself."""
    match = _PLATFORM.search(message)
    if match:
        process.platform = match[1] or match[2]
    elif "disabling GDR" in message or "GPUDirect RDMA disabled" in message:
        process.direct_refused = place
    elif "No eligible providers" in message or "Failed to initialize" in message:
        process.failed_plugins.setdefault("NET", ("aws-ofi-nccl", place))


def _add_plugin(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    kind = "TUNER" if message.startswith("TUNER") else "NET"
    asked = _ASKED.match(message)
    if asked:
        if kind == "NET":  # the tuner is looked for under the network plugin's name too
            process.asked_plugins.setdefault(kind, (asked[2].strip(), place))
        return
    if (opened := _OPEN_ERROR.match(message)) is not None:
        process.plugin_reasons.setdefault(kind, (message[opened.end() :].strip(), place))
        return
    loaded = _LOADED.match(message)
    if loaded:
        process.loaded_plugins[kind] = loaded[2] or loaded[3]
    elif "NCCL_TUNER_PLUGIN set to" in message:
        process.asked_plugins.setdefault(kind, (message.rsplit(" ", 1)[1], place))
    elif any(
        words in message for words in ("Could not find:", "o plugin found", "Plugin load", "plugin load")
    ):
        process.failed_plugins.setdefault(kind, (message, place))


def _add_external(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _EXTERNAL.match(message)
    if match:
        kind = "NET" if match[2] == "network" else "TUNER"
        if match[1].startswith("Success"):
            process.loaded_plugins[kind] = match[3]
        else:
            process.failed_plugins[kind] = (match[3], place)


def _add_network(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    name = message.removeprefix("Using network ")
    if name != message:
        process.network = (name.strip(), place)


def _add_hpcx(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    if message.startswith("P2P plugin "):  # nccl-rdma-sharp-plugins
        process.loaded_plugins["NET"] = message.removeprefix("P2P plugin ").split()[0]
    else:
        _add_refused(process, head, message, place)


def _add_refused(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    words = next((words for words in _REFUSES_P2P if message.startswith(words)), None)
    if words:
        process.p2p_refused.setdefault(words, place)


def _add_dma_buf(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    process.dma_buf = process.dma_buf or message.startswith("DMA-BUF is available")


def _add_nvls(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _NVLS.match(message)
    if match:
        process.nvls[int(match[2])] = (match[1] is None, place)


def _add_fabric(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _FABRIC.match(message)
    if match:
        process.fabric = ("" if match[1] == "0.0" else f"{match[1]}/{match[2]}", place)


def _add_failed(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    if message.startswith("Failed to open libibverbs"):
        process.no_verbs = process.no_verbs or place
    if message.startswith("Failed to bind NVLink SHARP"):
        process.nvls_failed = process.nvls_failed or place


def _add_gpu_direct(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    if message.startswith("GPU Direct RDMA Disabled for GPU") and "distance" in message:
        process.direct_too_far = process.direct_too_far or place


def _add_pattern(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _RING_PATTERN.match(message)
    if match and match[1] == "SYS":
        process.far_networks[head.cuda_ordinal] = place
    elif match:
        process.near_networks.add(head.cuda_ordinal)


def _add_config(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    match = _CONFIG.match(message)
    if match:
        process.settings.setdefault(match[1] or "NCCL_NET", (match[3].strip(), place))


def _add_connection(process: ProcessFacts, head: Head, message: str, place: LogPlace) -> None:
    add_unreachable(process, message, place)


_Keeps = Callable[[ProcessFacts, Head, str, LogPlace], None]
_BY_BEGINNING: dict[str, _Keeps] = {
    "Boo": _add_bootstrap,
    "NET": _add_net,
    "TUN": _add_plugin,
    "Plu": _add_plugin,
    "Suc": _add_external,
    "Ext": _add_external,
    "Usi": _add_network,
    "P2P": _add_hpcx,
    "Cou": _add_refused,
    "pee": _add_refused,
    "Leg": _add_refused,
    "DMA": _add_dma_buf,
    "NVL": _add_nvls,
    "MNN": _add_fabric,
    "Fai": _add_failed,
    "GPU": _add_gpu_direct,
    "Pat": _add_pattern,
    "Com": _add_config,
    "soc": _add_connection,
    "Net": _add_connection,
}
BEGINNINGS = frozenset(_BY_BEGINNING)
