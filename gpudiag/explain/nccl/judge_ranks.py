"""What differs between ranks, plugins that were asked for and not loaded, interfaces that lead nowhere."""

import re
from collections import Counter
from collections.abc import Iterator

from gpudiag.checks.majority import majority_of
from gpudiag.checks.software.nccl_log import BAD_INTERFACE, PLUGIN_FAILED, SETTINGS_DIFFER, VERSIONS_DIFFER
from gpudiag.explain.nccl.facts import ProcessFacts
from gpudiag.explain.nccl.finding import make_finding
from gpudiag.explain.nccl.job import Job, Who, name_ranks_and_hosts
from gpudiag.model.nccl_log import LogPlace, NcclFinding, NcclInterface

# What may differ between ranks or hosts of a healthy job.
_OF_ONE_RANK = re.compile(
    r"NCCL_(?:DEBUG\w*|HOSTID|COMM_ID|\w*_FILE|\w*DUMP\w*|RAS_ADDR|MNNVL_\w+|CUDA_PATH|CONF_FILE|\w+_CPUSET|"
    r"VERSION|TESTS_\w+)"
)
_OF_ONE_HOST = re.compile(r"NCCL_(?:\w*IFNAME|IB_HCA|\w*ADDR_RANGE)")
# What every rank reads before its first communicator is made: one without a line for it does not have it.
_READ_BY_ALL = frozenset(
    f"NCCL_{name}"
    for name in (
        "SOCKET_IFNAME",
        "ALGO",
        "PROTO",
        "NVLS_ENABLE",
        "MIN_NCHANNELS",
        "MAX_NCHANNELS",
        "MIN_CTAS",
        "MAX_CTAS",
        "CUMEM_ENABLE",
        "COLLNET_ENABLE",
        "IB_DISABLE",
        "NET",
        "BUFFSIZE",
    )
)
# The file itself is not there, or the plugin is of another version of the interface: NCCL tries the next.
_NOT_A_FAULT = re.compile(
    r"(?:\S*libnccl-\S*: )?(?:cannot open shared object file|undefined symbol: nccl\w+Plugin)"
)
_MAX_VALUES = 3
_VIRTUAL = re.compile(r"(?:docker|virbr|veth|lxdbr|lxcbr|podman|cni-podman|br-[0-9a-f]{8,}|usb\d|idrac)")
_LOOPBACK = re.compile(r"127\.|::1$")
_LINK_LOCAL = re.compile(r"169\.254\.|fe80:", re.IGNORECASE)
_NO_WAY = re.compile(r"No route to host|Network is unreachable|timed out", re.IGNORECASE)
_WRONG_VERSION = re.compile(r"(/\S*)/[^/\s]+: version .\S+ not found|(/\S*)/[^/\s]+: undefined symbol")
_DEFAULT_PLUGINS = frozenset(("", "none", "libnccl-none.so", "libnccl-net-none.so", "libnccl-tuner-none.so"))


def judge_versions(job: Job) -> Iterator[NcclFinding]:
    """Ranks that run another NCCL than most; all of them where no version has a majority."""
    by_version: dict[str, list[ProcessFacts]] = {}
    for process in job.processes:
        if process.version and process.version_place:
            by_version.setdefault(process.version.split("+")[0], []).append(process)
    if len(by_version) < 2:
        return
    usual = majority_of(version for version, processes in by_version.items() for _ in processes)
    odd = {version: processes for version, processes in by_version.items() if version != usual}
    who = [one for processes in odd.values() for process in processes for one in job.who(process)]
    places = [processes[0].version_place for processes in odd.values()][: 1 if usual else _MAX_VALUES]
    if isinstance(usual, str):
        message = (
            f"{name_ranks_and_hosts(who)}: NCCL {', '.join(sorted(odd))}, and {usual} on"
            f" {len(by_version[usual])} other processes"
        )
        places.append(by_version[usual][0].version_place)
    else:
        whose = (
            (
                f"NCCL {version} on"
                f" {name_ranks_and_hosts(one for process in processes for one in job.who(process))}"
            )
            for version, processes in odd.items()
        )
        message = f"{'; '.join(whose)}. No version has a majority"
    yield make_finding(VERSIONS_DIFFER, message, who, places)


def judge_settings(job: Job) -> Iterator[NcclFinding]:
    """Variables that some ranks have with another value, or not at all."""
    names = sorted({name for process in job.processes for name in process.settings})
    for name in names:
        if _OF_ONE_RANK.fullmatch(name):
            continue
        values: dict[str | None, list[ProcessFacts]] = {}
        of_some_hosts = _is_of_some_hosts(job, name)
        for process in job.processes:
            known = process.settings.get(name)
            if known:
                values.setdefault(known[0], []).append(process)
            elif process.settings and (of_some_hosts or (name in _READ_BY_ALL and process.completed)):
                values.setdefault(None, []).append(process)
        if len(values) > 1:
            yield from _odd_settings(job, name, values)


def _is_of_some_hosts(job: Job, name: str) -> bool:
    """Whether all ranks of some hosts have a variable, and none of the others, which print theirs too."""
    if _OF_ONE_HOST.fullmatch(name):
        return False
    having: dict[str, set[bool]] = {}
    for process in job.processes:
        if process.settings and process.network:
            having.setdefault(process.host, set()).add(name in process.settings)
    return (
        len(having) > 1
        and all(len(has) == 1 for has in having.values())
        and {True, False} == set().union(*having.values())
    )


def _odd_settings(job: Job, name: str, values: dict[str | None, list[ProcessFacts]]) -> Iterator[NcclFinding]:
    usual = max(values, key=lambda value: (len(values[value]), value is None))
    odd = {value: processes for value, processes in values.items() if value != usual}
    if _OF_ONE_HOST.fullmatch(name) and not _differ_inside_hosts(values):
        hosts = Counter(host for value in values for host in {process.host for process in values[value]})
        odd_hosts = {process.host for processes in odd.values() for process in processes}
        if len(odd_hosts) * 3 > len(hosts):
            return  # hosts of two kinds, with names of their own
    if None not in values and majority_of(value for value in values for _ in values[value]) is None:
        yield _split_settings(job, name, values)
        return
    who = [one for processes in odd.values() for process in processes for one in job.who(process)]
    words = [f"{name}={value}" if value is not None else f"no {name}" for value in odd]
    odd_words = " or ".join(words[:_MAX_VALUES]) + (" or others" if len(words) > _MAX_VALUES else "")
    others = f"{name}={usual}" if usual is not None else f"no {name}"
    places: list[LogPlace | None] = [
        process.settings[name][1]
        for processes in (*odd.values(), values[usual])
        for process in processes[:1]
        if name in process.settings
    ]
    message = (
        f"{name_ranks_and_hosts(who)}: {odd_words}, and {others} on {len(values[usual])} other processes"
    )
    yield make_finding(SETTINGS_DIFFER, message, who, places)


def _split_settings(job: Job, name: str, values: dict[str | None, list[ProcessFacts]]) -> NcclFinding:
    """The finding for a variable whose values have no majority: all are named, nobody is blamed."""
    holders = {
        value: [one for process in processes for one in job.who(process)]
        for value, processes in values.items()
    }
    shown = [f"{name}={value} on {name_ranks_and_hosts(who)}" for value, who in holders.items()]
    more = f" and {len(shown) - _MAX_VALUES} more values" if len(shown) > _MAX_VALUES else ""
    places: list[LogPlace | None] = [processes[0].settings[name][1] for processes in values.values()]
    message = f"{'; '.join(shown[:_MAX_VALUES])}{more}. No value has a majority"
    return make_finding(
        SETTINGS_DIFFER, message, [one for who in holders.values() for one in who], places[:_MAX_VALUES]
    )


def _differ_inside_hosts(values: dict[str | None, list[ProcessFacts]]) -> bool:
    seen: dict[str, str | None] = {}
    return any(
        seen.setdefault(process.host, value) != value
        for value, processes in values.items()
        for process in processes
    )


def judge_plugins(job: Job) -> Iterator[NcclFinding]:
    """Plugins that were not loaded: a variable asks for them, or their file is there and ranks span hosts."""
    failed: dict[tuple[str, str], tuple[list[Who], list[LogPlace | None]]] = {}
    reasons: dict[tuple[str, str], str] = {}
    for process in job.processes:
        for kind in process.asked_plugins.keys() | process.plugin_reasons.keys():
            asked, asked_at = process.asked_plugins.get(kind, (f"libnccl-{kind.lower()}.so", None))
            why, why_at = process.plugin_reasons.get(kind, ("", None))
            refused = bool(why) and job.may_span_hosts and not _NOT_A_FAULT.match(why)
            trouble = process.failed_plugins.get(kind) or ((why, why_at) if refused else None)
            is_asked = kind in process.asked_plugins and asked.lower() not in _DEFAULT_PLUGINS
            if trouble is None or kind in process.loaded_plugins or not (is_asked or refused):
                continue
            who, places = failed.setdefault((kind, asked), ([], []))
            who += job.who(process)
            if not places:
                is_missing_itself = "cannot open shared object file" in why and asked in why
                reasons[kind, asked] = "" if is_missing_itself else why
                places += [why_at if reasons[kind, asked] else None, asked_at, trouble[1]]
    for (kind, asked), (who, places) in failed.items():
        what = "network" if kind == "NET" else "tuner"
        why = reasons[kind, asked]
        because = f": {why[:160]}" if why else ""
        message = f"{name_ranks_and_hosts(who)}: the {what} plugin {asked} could not be loaded{because}"
        variable = f"NCCL_{kind}_PLUGIN"
        folder = _wrong_folder(why)
        remedy = (
            f"{folder} comes before the system's folder and has another version:"
            " take it out of LD_LIBRARY_PATH of the ranks (`ldd` on the plugin shows which"
            f" file is found), or unset {variable}."
            if folder
            else (
                f"Put the folder of {asked} and what it links against into LD_LIBRARY_PATH of"
                f" the ranks, or unset {variable}."
            )
        )
        yield make_finding(PLUGIN_FAILED, message, who, places, remedy)


def _wrong_folder(why: str) -> str:
    """The folder of a library that the loader found and that lacks what the plugin needs.

    It is empty where it names none.
    """
    match = _WRONG_VERSION.match(why)
    return match[1] if match else ""


def judge_interfaces(job: Job) -> Iterator[NcclFinding]:
    """Interfaces that do not lead to the other hosts, and addresses that do not answer."""
    if job.spans_hosts:
        yield from _bad_interfaces(job)
    yield from _unreachable(job)


def _bad_interfaces(job: Job) -> Iterator[NcclFinding]:
    shared = _addresses_of_several_hosts(job)
    by_interface: dict[tuple[str, str], tuple[list[Who], list[LogPlace | None]]] = {}
    for process in job.processes:
        for interface, place in _interfaces_in_use(job, process):
            why = _why_nowhere(interface, shared)
            if why and not (
                process.completed and _LINK_LOCAL.match(interface.address)
            ):  # it did lead to the others
                who, places = by_interface.setdefault((interface.name, why), ([], []))
                who += job.who(process)
                places.append(place)
                break
    for (name, why), (who, places) in by_interface.items():
        message = (
            f"{name_ranks_and_hosts(who)}: the interface {name} does not reach the other hosts: it is {why}"
        )
        yield make_finding(BAD_INTERFACE, message, who, places, _name_interface(job, shared))


def _interfaces_in_use(job: Job, process: ProcessFacts) -> Iterator[tuple[NcclInterface, LogPlace | None]]:
    """The interfaces over which a process reaches other hosts."""
    if process.bootstrap:
        yield process.bootstrap
    if process.out_of_band:
        yield process.out_of_band
    if not process.interfaces or not process.network or process.network[0] != "Socket":
        return
    used = {
        sending.way.device
        for sending in job.sendings_of(process)
        if sending.way.transport == "NET/Socket" and sending.between_hosts is not False
    }
    for index, interface in enumerate(process.interfaces):
        if index in used or (not used and index == 0):
            yield interface, process.interfaces_place


def _why_nowhere(interface: NcclInterface, shared: set[str]) -> str:
    """Why an interface does not lead to other hosts; empty if nothing shows that."""
    if interface.name == "lo" or _LOOPBACK.match(interface.address):
        return "the loopback"
    if _VIRTUAL.match(interface.name):
        return "a bridge of containers, of virtual machines or to the board's controller"
    if _LINK_LOCAL.match(interface.address):
        return "one with a link-local address"
    if interface.address in shared:
        return "one whose address several hosts have"
    return ""


def _addresses_of_several_hosts(job: Job) -> set[str]:
    """Addresses of Docker's own network that more than one host has."""
    hosts: dict[str, set[str]] = {}
    for process in job.processes:
        known = [process.bootstrap[0]] if process.bootstrap else []
        for interface in (*known, *process.interfaces):
            if interface.address.startswith("172.17."):
                hosts.setdefault(interface.address, set()).add(process.host)
    return {address for address, names in hosts.items() if len(names) > 1}


def _name_interface(job: Job, shared: set[str]) -> str:
    """What to set: the interface that ranks of this job have and that may lead to other hosts."""
    good = Counter(
        interface.name
        for process in job.processes
        for interface in (*process.interfaces, *([process.bootstrap[0]] if process.bootstrap else []))
        if not _why_nowhere(interface, shared)
    )
    if not good:
        return ""
    name = good.most_common(1)[0][0]
    return f"Set NCCL_SOCKET_IFNAME=={name} on all hosts, if it reaches the others: `ip -brief address`."


def _unreachable(job: Job) -> Iterator[NcclFinding]:
    """Connections that no retry restored, by the reason of the failure."""
    by_reason: dict[str, tuple[list[Who], list[LogPlace | None], dict[str, str]]] = {}
    for process in job.processes:
        for address, (why, final, place) in process.unreachable.items():
            if not _NO_WAY.search(why) or (not final and process.completed):
                continue
            who, places, addresses = by_reason.setdefault(why, ([], [], {}))
            who += job.who(process)
            places += [place, process.bootstrap[1] if process.bootstrap else None]
            addresses[address] = process.bootstrap[0].name if process.bootstrap else ""
    for why, (who, places, addresses) in by_reason.items():
        address, own = next(iter(addresses.items()))
        more = f" and {len(addresses) - 1} more" if len(addresses) > 1 else ""
        over = f" over {own}" if own else ""
        message = f"{name_ranks_and_hosts(who)}: {address}{more} is not reached{over}: {why}"
        remedy = (
            f"Find the route to it, `ip route get {address}`, and whether a firewall blocks its ports; set"
            " NCCL_SOCKET_IFNAME to the interface that reaches it."
        )
        yield make_finding(BAD_INTERFACE, message, who, places, remedy)
