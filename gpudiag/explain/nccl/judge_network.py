"""What is wrong between hosts: sockets, not RDMA; no GPUDirect RDMA; cards that are missing, idle or far."""

import re
from collections import Counter
from collections.abc import Iterator

from gpudiag.checks.software.nccl_log import (
    FABRIC_UNUSED,
    NIC_REMOTE,
    NICS_DIFFER,
    NICS_UNUSED,
    NO_GPU_DIRECT,
    SOCKETS,
)
from gpudiag.explain.nccl.facts import CommunicatorFacts, ProcessFacts
from gpudiag.explain.nccl.finding import ByReason, Why, make_finding
from gpudiag.explain.nccl.job import Job, Sending, Who, name_ranks_and_hosts, sort_ranks
from gpudiag.model.finding import Owner
from gpudiag.model.nccl_log import LogPlace, NcclFinding, NcclNic
from gpudiag.model.number_ranges import count_of

# Interfaces of an RDMA card, by the names that the kernel and udev give them: IPoIB, and RoCE's devices.
_RDMA_INTERFACE = re.compile(r"ib(?:\d|s\d|p\d|P\d|\b)|rdma|roce")
_EFA_HOSTS = re.compile(r"p[4-9]|g[7-9]")  # AWS' instances whose EFA has GPUDirect RDMA
_EFA_GPUS = re.compile(r"A100|H100|H200|B200|B300")  # that only such instances have
_RDMA_NETWORK = re.compile(r"NET/(?:IB|AWS Libfabric|Libfabric|OFI)")
_LIBFABRIC = re.compile(r"NET/(?:AWS Libfabric|Libfabric|OFI)")
# Cards that never reach GPU memory: those of DGX Spark, whose GPU has no GPUDirect RDMA, and Omni-Path under
# NET/IB.
_NEVER_DIRECT = re.compile(r"roceP\d+p\d+s\d+f\d|hfi1_")
_KEEPS_TO_SOCKETS = (
    ("NCCL_IB_DISABLE", "1", "Unset NCCL_IB_DISABLE; it stays harmless only where no host has RDMA devices."),
    ("NCCL_NET", "socket", "Unset NCCL_NET: NCCL chooses the fastest network by itself."),
)
_OPEN_DEVICES = (
    "Allow the ranks to open it: /dev/infiniband into the container, with IPC_LOCK and without a limit of"
    " locked memory; `ibv_devinfo` there must show an active port."
)
_GIVE_DEVICES = (
    "Give the ranks the RDMA devices: /dev/infiniband in the container, libibverbs in the image;"
    " then `ibv_devinfo` there must show an active port."
)
_BEFORE_DMA_BUF = re.compile(r"2\.(?:\d|1[0-2])\.")  # NCCL versions that print nothing of it
_IDLE_SHARE = 0.5  # of the cards: fewer in use than this is no accident of rings and trees


def judge_sockets(job: Job) -> Iterator[NcclFinding]:
    """Sockets between hosts, where a line shows that RDMA is there or was switched off."""
    on_sockets = ByReason(SOCKETS, "TCP sockets between hosts")
    for process in job.processes:
        if not _uses_sockets(job, process) or not _matters_between_hosts(job, process):
            continue
        why = _why_sockets(job, process)
        if why is not None:
            on_sockets.add(why, job.who(process), process.network[1] if process.network else None)
    yield from on_sockets.findings()


def _matters_between_hosts(job: Job, process: ProcessFacts) -> bool:
    """Whether ranks of other hosts are there.

    In a log that is cut, the surer the sign of RDMA, the less is asked.
    """
    if process.closed_nic:
        return not job.is_on_one_host
    return job.spans_hosts or bool(process.no_nic and _rdma_interface(process) and job.may_span_hosts)


def _uses_sockets(job: Job, process: ProcessFacts) -> bool:
    if process.network is not None:
        return process.network[0] == "Socket"
    ways = [way for known in process.all_communicators for way in known.ways]
    networks = {way.transport for way in ways if way.transport.startswith("NET/")}
    return networks == {"NET/Socket"}


def _why_sockets(job: Job, process: ProcessFacts) -> Why | None:
    """Why a process uses sockets though it should not; None if no line shows that it should not."""
    for name, value, remedy in _KEEPS_TO_SOCKETS:
        known = process.settings.get(name)
        if known and known[0].lower() == value:
            return Why(f"{name}={known[0]} is set", known[1], remedy, Owner.JOB)
    hca = process.settings.get("NCCL_IB_HCA")
    if hca and process.no_verbs and not process.no_nic:
        remedy = (
            "Install libibverbs and rdma-core in the image of the ranks; `ibv_devinfo` must answer there."
        )
        return Why(
            f"libibverbs is not installed, though NCCL_IB_HCA={hca[0]} names cards", process.no_verbs, remedy
        )
    if hca and process.no_nic and not process.closed_nic:
        remedy = (
            "Correct NCCL_IB_HCA by the active devices that `ibv_devinfo -l` shows"
            " where the ranks run, or unset it."
        )
        return Why(f"NCCL_IB_HCA={hca[0]} matches no active RDMA port", hca[1], remedy, Owner.JOB)
    failed = process.failed_plugins.get("NET")
    if failed and (_EFA_HOSTS.match(process.platform) or failed[0] == "aws-ofi-nccl"):
        remedy = "Check that the ranks have EFA: `fi_info -p efa`."
        return Why("the EFA plugin did not start", failed[1], remedy)
    return _why_no_rdma(job, process)


def _why_no_rdma(job: Job, process: ProcessFacts) -> Why | None:
    """Why no RDMA device is used, where a line shows that there is one."""
    if process.closed_nic:
        return Why("NCCL finds an RDMA device and cannot open it", process.closed_nic, _OPEN_DEVICES)
    if process.nics:
        remedy = (
            "Unset NCCL_NET, and read the lines before `Using network`: they show"
            " why NCCL does not use the cards."
        )
        return Why("NCCL finds RDMA cards here but does not use them", process.nics_place, remedy)
    with_rdma = next((other for other in job.processes if other.nics), None)
    if with_rdma is not None:
        here = "libibverbs is not installed" if process.no_verbs else "NCCL finds no RDMA device"
        reason = f"{here} here, and NCCL finds RDMA devices on {with_rdma.host}"
        return Why(reason, process.no_verbs or process.no_nic or with_rdma.nics_place, _GIVE_DEVICES)
    interface = _rdma_interface(process)
    if interface is None:
        return None
    name, place = interface
    if process.no_nic:
        return Why(f"NCCL finds no RDMA device, though {name} belongs to one", process.no_nic, _GIVE_DEVICES)
    remedy = f"Unset NCCL_NET, where it is Socket. {_GIVE_DEVICES}"
    return Why(f"NCCL did not look for RDMA devices, though {name} belongs to one", place, remedy)


def _rdma_interface(process: ProcessFacts) -> tuple[str, LogPlace | None] | None:
    """An interface that only a host with an RDMA device has."""
    named = [(interface.name, process.interfaces_place) for interface in process.interfaces]
    for known in (process.bootstrap, process.out_of_band):
        if known:
            named.append((known[0].name, known[1]))
    return next((pair for pair in named if _RDMA_INTERFACE.match(pair[0])), None)


def judge_gpu_direct(job: Job) -> Iterator[NcclFinding]:
    """Network cards that do not reach the GPUs' memory, by reason."""
    without_direct = ByReason(NO_GPU_DIRECT, "no GPUDirect RDMA")
    for process in job.processes:
        is_geforce = "GeForce" in job.facts.gpus.get(process.host, "")
        if process.platform and not _EFA_HOSTS.match(process.platform):
            continue  # an instance type without GPUDirect RDMA: nothing was switched off that there is
        if is_geforce or any(_NEVER_DIRECT.match(nic.name) for nic in process.nics):
            continue
        without = _without_direct(job, process)
        if without:
            who = [job.who_of(sending.member) for sending in without]
            without_direct.add(_why_no_direct(job, process), who, without[0].place)
        elif _reports_no_direct(job, process):
            without_direct.add(_why_no_direct(job, process), job.who(process))
    yield from without_direct.findings()


def _without_direct(job: Job, process: ProcessFacts) -> list[Sending]:
    """A process's receiving ways without GPUDirect RDMA, where all ways of that rank are so, or several."""
    by_rank: dict[Who, list[Sending]] = {}
    for sending in job.sendings_of(process):
        way = sending.way
        if sending.between_hosts is False or not _RDMA_NETWORK.match(way.transport) or not way.receives:
            continue
        if _LIBFABRIC.match(way.transport) and not (
            _is_with_direct_efa(job, process) or process.direct_refused
        ):
            continue  # most instances with EFA have no GPUDirect RDMA
        by_rank.setdefault(job.who_of(sending.member), []).append(sending)
    found: list[Sending] = []
    for sendings in by_rank.values():
        without = [sending for sending in sendings if not sending.way.direct]
        lines = sum(sum(sending.channels.values()) for sending in without)
        named = any(_is_named_without_direct(process, sending) for sending in without)
        if without and (len(without) == len(sendings) or lines > 1 or named):
            found += without
    return found


def _is_with_direct_efa(job: Job, process: ProcessFacts) -> bool:
    """Whether a process runs on an instance of AWS whose EFA has GPUDirect RDMA."""
    if process.platform:
        return bool(_EFA_HOSTS.match(process.platform))
    return bool(_EFA_GPUS.search(job.facts.gpus.get(process.host, "")))


def _is_named_without_direct(process: ProcessFacts, sending: Sending) -> bool:
    """Whether NCCL reports of the very card of a way that it does not reach GPU memory."""
    nics, device = process.nics, sending.way.device
    if process.merged or device is None or device >= len(nics):
        return False
    return nics[device].name in process.nics_without_direct


def _reports_no_direct(job: Job, process: ProcessFacts) -> bool:
    """Whether NCCL reports that no card reaches GPU memory, in a log cut before the ways between ranks."""
    cards = {nic.name for nic in process.nics}
    return (
        bool(cards)
        and cards <= process.nics_without_direct.keys()
        and job.may_span_hosts
        and not (job.sendings_of(process))
    )


def _why_no_direct(job: Job, process: ProcessFacts) -> Why:
    """Why a process has no GPUDirect RDMA."""
    level = process.settings.get("NCCL_NET_GDR_LEVEL")
    if level and level[0].upper() in ("LOC", "0"):
        reason = f"NCCL_NET_GDR_LEVEL={level[0]} forbids it"
        return Why(reason, level[1], "Unset NCCL_NET_GDR_LEVEL.", Owner.JOB)
    if process.direct_refused:
        remedy = "Update libfabric and aws-ofi-nccl, and check that the instance type has GPUDirect RDMA."
        return Why("the network's plugin switched it off", process.direct_refused, remedy)
    if process.nics_without_direct:
        place = next(iter(process.nics_without_direct.values()))
        reason = f"the driver of {_names(process)} does not reach GPU memory (no nvidia_peermem, no DMA-BUF)"
        return Why(reason, place)
    if process.direct_too_far:
        remedy = (
            "`nvidia-smi topo -m` shows which card is near which GPU; NCCL_NET_GDR_LEVEL=PHB (or SYS)"
            " allows longer paths, if the platform's PCIe supports them."
        )
        return Why("the card is too far from the GPU", process.direct_too_far, remedy)
    if process.network and _LIBFABRIC.match(f"NET/{process.network[0]}"):
        remedy = (
            "Set FI_EFA_USE_DEVICE_RDMA=1, which libfabric before 1.18 asks for; update libfabric and"
            " aws-ofi-nccl; `fi_info -p efa -c FI_HMEM` must list the cards."
        )
        return Why("the log does not give the reason", remedy=remedy)
    version = process.version or next(iter(job.facts.versions), "")
    if process.completed and not process.dma_buf and not _BEFORE_DMA_BUF.match(version):
        return Why("neither DMA-BUF nor nvidia_peermem is available")
    remedy = (
        "`lsmod` must show nvidia_peermem where the kernel has no DMA-BUF for the card; run with"
        " NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH, and NCCL logs the reason."
    )
    return Why("the log does not give the reason", remedy=remedy)


def _names(process: ProcessFacts) -> str:
    names = [*process.nics_without_direct]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def judge_fabric(job: Job) -> Iterator[NcclFinding]:
    """NVLink between hosts that some hosts lack, or that a communicator over them does not use."""
    unused = ByReason(FABRIC_UNUSED, "no NVLink between hosts")
    if any(process.fabric and process.fabric[0] for process in job.processes):
        for process in job.processes:
            if process.fabric and not process.fabric[0]:
                why = Why("the fabric has registered GPUs of other hosts, and not these", process.fabric[1])
                unused.add(why, job.who(process))
    for group in job.groups:
        hosts: dict[str, set[str]] = {}
        for member in group.members.values():
            if member.process.fabric:
                hosts.setdefault(member.process.fabric[0], set()).add(member.process.host)
        for member in group.members.values():
            name, place = member.process.fabric or ("", None)
            if name and len(hosts[name]) > 1 and _is_apart(member.communicator):
                domain = f"one NVLink domain holds {count_of(len(hosts[name]), 'host')}"
                why = _why_apart(member.process) or Why(f"{domain}, and NCCL reports MNNVL 0", place)
                unused.add(why, [job.who_of(member)])
    yield from unused.findings()


def _is_apart(communicator: CommunicatorFacts) -> bool:
    """Whether a communicator reaches over hosts without NVLink between them."""
    return (communicator.nodes or 1) > 1 and not communicator.mnnvl


def _why_apart(process: ProcessFacts) -> Why | None:
    """The variable that keeps NCCL from NVLink between hosts; None where none is set."""
    for name in ("NCCL_MNNVL_ENABLE", "NCCL_CUMEM_ENABLE"):
        known = process.settings.get(name)
        if known and known[0] == "0":
            return Why(f"{name}=0 is set", known[1], f"Unset {name}.", Owner.JOB)
    return None


def judge_missing_nics(job: Job) -> Iterator[NcclFinding]:
    """Hosts on which NCCL finds fewer cards than on most."""
    of_hosts = _cards_of_hosts(job)
    cards = {host: Counter(nic.link for nic in nics) for host, (nics, _) in of_hosts.items()}
    for link in sorted({link for counts in cards.values() for link in counts}):
        by_count = Counter(counts[link] for counts in cards.values())
        usual, hosts_with = max(by_count.items(), key=lambda item: (item[1], item[0]))
        if hosts_with * 2 <= len(cards) and len(cards) != 2:
            continue  # no count is usual here; of two hosts, the one with fewer
        for count in sorted(count for count in by_count if count < usual):
            odd = [host for host, counts in cards.items() if counts[link] == count]
            who = [one for process in job.processes if process.host in odd for one in job.who(process)]
            message = (
                f"{', '.join(odd[:4])}{' ..' if len(odd) > 4 else ''}: NCCL finds {count} {link} ports,"
                f" and {usual} on {count_of(hosts_with, 'other host')}"
            )
            yield make_finding(NICS_DIFFER, message, who, [of_hosts[host][1] for host in odd])


def _cards_of_hosts(job: Job) -> dict[str, tuple[tuple[NcclNic, ...], LogPlace | None]]:
    """The cards that NCCL finds on each host, and the line that lists them."""
    return {
        process.host: (process.nics, process.nics_place) for process in job.processes if process.nics_place
    }


def judge_unused_nics(job: Job) -> Iterator[NcclFinding]:
    """Hosts that send over half of their cards or fewer, though they have ranks for more."""
    by_words: dict[str, tuple[list[Who], list[LogPlace | None]]] = {}
    for host, (nics, place) in _cards_of_hosts(job).items():
        processes = [process for process in job.processes if process.host == host]
        if any(process.merged or (process.nics_place and process.nics != nics) for process in processes):
            continue  # indices of virtual cards, or other ones for each rank
        used = {
            sending.way.device
            for process in processes
            for sending in job.sendings_of(process)
            if sending.way.transport.startswith("NET/IB") and sending.between_hosts is not False
        }
        if not used or max(used) >= len(nics):
            continue
        ranks = {one for process in processes if process.completed for one in job.who(process)}
        alike = _cards_alike(nics, used, processes[0])
        expected = min(len(alike), len(ranks))
        if expected > 1 and len(used) <= expected * _IDLE_SHARE:
            names = ", ".join(f"{nics[index].name}:{nics[index].port}" for index in sorted(used))
            words = f"{len(ranks)} ranks of a host use {len(used)} of {len(alike)} network cards: {names}"
            who, places = by_words.setdefault(words, ([], []))
            who += sort_ranks(ranks)
            places.append(place)
    for words, (who, places) in by_words.items():
        yield make_finding(NICS_UNUSED, f"{name_ranks_and_hosts(who)}: {words}", who, places)


def _cards_alike(nics: tuple[NcclNic, ...], used: set[int], process: ProcessFacts) -> list[NcclNic]:
    """The cards of the link layer of those in use, and as fast as they are where a line shows the speed."""
    links = {nics[index].link for index in used}
    fastest = max((process.nic_speeds.get(nics[index].name, 0) for index in used), default=0)
    return [
        nic
        for nic in nics
        if nic.link in links and (not fastest or process.nic_speeds.get(nic.name, fastest) >= fastest)
    ]


def judge_remote_nics(job: Job) -> Iterator[NcclFinding]:
    """GPUs whose network card hangs on the other CPU, where others have a near one."""
    if not job.spans_hosts or not any(process.near_networks for process in job.processes):
        return
    far: dict[Who, LogPlace] = {}
    for process in job.processes:
        for ordinal, place in process.far_networks.items():
            if ordinal not in process.near_networks and (
                not process.network or process.network[0] != "Socket"
            ):
                far.update(dict.fromkeys(job.who(process, ordinal), place))
    if far:
        message = f"{name_ranks_and_hosts(far)}: the path to the network card crosses the other CPU"
        yield make_finding(NIC_REMOTE, message, far, far.values())
