"""What is wrong inside hosts: peer access off, host memory in spite of NVLink, NVLS off, too few channels."""

import re
from collections.abc import Iterator

from gpudiag.checks.software.nccl_log import FEW_CHANNELS, NVLS_OFF, PEER_ACCESS_OFF, SHM_OVER_NVLINK
from gpudiag.explain.nccl.facts import ProcessFacts
from gpudiag.explain.nccl.finding import ByReason, Why, make_finding
from gpudiag.explain.nccl.job import Job, Sending, Who, name_ranks_and_hosts, sort_ranks
from gpudiag.model.finding import Owner
from gpudiag.model.nccl_log import LogPlace, NcclFinding

_FEWEST_FOR_NVLS = 3  # GPUs of one host: NCCL does not look for NVLS with fewer
_NVSWITCH_RANKS = 4  # of one host that all have peer access: fewer may be joined by bridges
_GPUS_OF_A_BOARD = 8
_FEW_WITH_LIMIT, _FEW_WITHOUT_LIMIT = 8, 4  # channels; 16 to 32 are usual with NVLink, 2 on PCIe
_LIMITS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS", "NCCL_MAX_CTAS")
_FORBIDS_P2P = {"NCCL_P2P_DISABLE": ("1",), "NCCL_P2P_LEVEL": ("LOC", "0", "NVL", "1")}
_HAS_NVLS = re.compile(r"p[56]")  # AWS' instances with Hopper or later and NVSwitches
_NO_PEERS = re.compile(r"GeForce RTX [4-9]0\d\d|NVIDIA GB10\b")
_GEFORCE = (
    "GeForce cards from RTX 40 on have no peer access: nothing to repair. On others: turn ACS off on bare"
    " metal, see `nvidia-smi topo -p2p r`, and give virtual machines a topology."
)
_FABRIC = (
    "Look for the fabric: `nvidia-smi -q | grep -A4 Fabric` must show Completed and Success, and"
    " `systemctl status nvidia-fabricmanager` no error; then the links: `nvidia-smi nvlink -s`."
)


def judge_p2p(job: Job) -> Iterator[NcclFinding]:
    """Peer access that a variable or the driver refuses, and host memory where NVLink is, by reason."""
    refused = ByReason(PEER_ACCESS_OFF, "no peer access between GPUs")
    unexplained: list[Sending] = []
    for process in job.processes:
        if _NO_PEERS.search(job.facts.gpus.get(process.host, "")):
            continue  # this kind of GPU has no peer access at all
        inside = _inside(job, process)
        copied = [sending for sending in inside if not sending.way.transport.startswith("P2P")]
        why = _why_no_p2p(process, bool(copied), not inside and job.ranks_of_host.get(process.host, 0) > 1)
        if why is not None:
            refused.add(why, job.who(process), copied[0].place if copied else None)
        elif len(copied) > len(inside) / 2 and job.has_nvlink(process.host):
            unexplained += copied
    yield from refused.findings()
    if unexplained:
        blamed = sort_ranks(job.who_of(sending.member) for sending in unexplained)
        message = f"{name_ranks_and_hosts(blamed)}: host memory is used between GPUs that NVLink connects"
        yield make_finding(SHM_OVER_NVLINK, message, blamed, [one.place for one in unexplained[:2]])


def _inside(job: Job, process: ProcessFacts) -> list[Sending]:
    """The ways to GPUs of the same host."""
    return [sending for sending in job.sendings_of(process) if sending.between_hosts is False]


def _why_no_p2p(process: ProcessFacts, copied: bool, unseen: bool) -> Why | None:
    """Why GPUs do not read each other's memory.

    `copied`: lines show that some do not; `unseen`: no line shows how those of this host reach each other.
    """
    if copied or unseen:
        for name, values in _FORBIDS_P2P.items():
            known = process.settings.get(name)
            if known and known[0].upper() in values:
                also = (
                    " and NCCL_P2P_DISABLE, which NCCL before 2.23 reports as this one"
                    if name == "NCCL_P2P_LEVEL"
                    else ""
                )
                remedy = f"Unset {name}{also}, if nothing hangs or breaks without it."
                return Why(f"{name}={known[0]} is set", known[1], remedy, Owner.JOB)
    for words, place in process.p2p_refused.items():
        if "NVLINK connected" in place.text:
            return Why("the driver refuses it between GPUs that NVLink joins", place, _FABRIC)
        if words.startswith("P2P is disabled"):
            return Why("the driver refuses it", place, _GEFORCE)
        if copied:
            return Why(f"CUDA refuses it ({words})", place, _GEFORCE)
    return None


def judge_nvls(job: Job) -> Iterator[NcclFinding]:
    """NVLS that fails, that some ranks lack, or that a variable switches off."""
    failed = {one: process for process in job.processes if process.nvls_failed for one in job.who(process)}
    if failed:
        places = [process.nvls_failed for process in failed.values()]
        yield make_finding(
            NVLS_OFF,
            f"{name_ranks_and_hosts(sort_ranks(failed))}: NVLink multicast could not be bound",
            sort_ranks(failed),
            places,
        )
    there = any(available for process in job.processes for available, _ in process.nvls.values())
    without: dict[Who, LogPlace] = {}
    for process in job.processes:
        can = bool(_HAS_NVLS.match(process.platform)) or job.has_nvswitch(process.host)
        for ordinal, (available, place) in process.nvls.items():
            if not available and (there or can):
                without.update(dict.fromkeys(job.who(process, ordinal), place))
    if without:
        some = "other ranks of the job have it" if there else "the hosts have NVSwitches that can do it"
        remedy = (
            "Check that the fabric manager runs there in the driver's version:"
            " `systemctl status nvidia-fabricmanager`."
        )
        message = f"{name_ranks_and_hosts(sort_ranks(without))}: no NVLS, and {some}"
        yield make_finding(NVLS_OFF, message, sort_ranks(without), without.values(), remedy)
    switched_off = {
        one: process.settings["NCCL_NVLS_ENABLE"][1]
        for process in job.processes
        if process.settings.get("NCCL_NVLS_ENABLE", ("",))[0] == "0" and _would_have_nvls(job, process)
        for one in job.who(process)
    }
    if switched_off:
        message = (
            f"{name_ranks_and_hosts(sort_ranks(switched_off))}: NCCL_NVLS_ENABLE=0 keeps NVLS"
            " off, which Hopper and later have"
        )
        yield make_finding(
            NVLS_OFF,
            message,
            sort_ranks(switched_off),
            switched_off.values(),
            "Unset NCCL_NVLS_ENABLE.",
            Owner.JOB,
        )


def _would_have_nvls(job: Job, process: ProcessFacts) -> bool:
    """Whether the GPUs of a process may have NVLS: enough of them, and all reach each other's memory."""
    if job.ranks_of_host.get(process.host, 0) < _FEWEST_FOR_NVLS:
        return False
    if _HAS_NVLS.match(process.platform) or job.has_nvlink(process.host) or job.has_nvswitch(process.host):
        return True
    inside = _inside(job, process)
    reach = all(sending.way.transport.startswith("P2P") for sending in inside)
    return bool(inside) and reach and job.ranks_of_host.get(process.host, 0) >= _NVSWITCH_RANKS


def judge_channels(job: Job) -> Iterator[NcclFinding]:
    """The largest communicator, where it has too few channels for NVLink."""
    for group in job.groups[:1]:
        if group.size < 2:
            continue
        few: dict[Who, tuple[str, list[LogPlace | None]]] = {}
        for member in group.members.values():
            process, communicator = member.process, member.communicator
            if communicator.channels is None:
                continue
            count = communicator.channels.collective
            limit, on_nvlink = _limit(process, count), _is_on_nvlink(job, process)
            if (limit and (on_nvlink or _is_whole_board(job, process))) or (
                on_nvlink and count <= _FEW_WITHOUT_LIMIT
            ):
                words = (
                    f"{limit[0]}={limit[1]} allows {count}"
                    if limit
                    else f"{count}, and no line gives the reason"
                )
                few[job.who_of(member)] = (words, [limit[2] if limit else None, communicator.channels_place])
        if few:
            words, places = next(iter(few.values()))
            message = f"{name_ranks_and_hosts(sort_ranks(few))}: few channels for GPUs with NVLink: {words}"
            yield make_finding(FEW_CHANNELS, message, sort_ranks(few), places)


def _is_on_nvlink(job: Job, process: ProcessFacts) -> bool:
    """Whether a line shows NVLink between at least four GPUs of a host."""
    return job.ranks_of_host.get(process.host, 0) >= _NVSWITCH_RANKS and job.has_nvlink(process.host)


def _is_whole_board(job: Job, process: ProcessFacts) -> bool:
    """Whether eight GPUs reach each other's memory, as they seldom do without NVLink."""
    inside = _inside(job, process)
    reach = all(sending.way.transport.startswith("P2P") for sending in inside)
    return bool(inside) and reach and job.ranks_of_host.get(process.host, 0) >= _GPUS_OF_A_BOARD


def _limit(process: ProcessFacts, count: int) -> tuple[str, str, LogPlace] | None:
    """The variable that keeps the channels few, its value, and its line."""
    for name in _LIMITS:
        value, place = process.settings.get(name, ("", None))
        if place and value.isdecimal() and count <= int(value) <= _FEW_WITH_LIMIT:
            return name, value, place
    return None
