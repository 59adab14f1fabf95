"""From the facts of all logs to the part of the answer that is about NCCL."""

from collections.abc import Callable, Iterator
from heapq import nsmallest

from gpudiag.explain.nccl.facts import NcclFacts, ProcessFacts, Way, ranks_of
from gpudiag.explain.nccl.job import Group, Job, Sending
from gpudiag.explain.nccl.judge_hosts import judge_channels, judge_nvls, judge_p2p
from gpudiag.explain.nccl.judge_network import (
    judge_fabric,
    judge_gpu_direct,
    judge_missing_nics,
    judge_remote_nics,
    judge_sockets,
    judge_unused_nics,
)
from gpudiag.explain.nccl.judge_ranks import judge_interfaces, judge_plugins, judge_settings, judge_versions
from gpudiag.model.nccl_log import (
    MAX_COMMUNICATORS,
    MAX_PAIRS,
    NcclCommunicator,
    NcclFinding,
    NcclLog,
    NcclPair,
    NcclPath,
    NcclProcess,
    NcclRank,
)
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import mask_text

_JUDGES: tuple[Callable[[Job], Iterator[NcclFinding]], ...] = (
    judge_versions,
    judge_settings,
    judge_plugins,
    judge_interfaces,
    judge_sockets,
    judge_gpu_direct,
    judge_missing_nics,
    judge_unused_nics,
    judge_fabric,
    judge_remote_nics,
    judge_p2p,
    judge_nvls,
    judge_channels,
)
_NOT_LOGGED = Missing(MissingReason.SOURCE_ABSENT, "no line shows it")
MAX_RINGS = 32  # of one communicator


def report_nccl(facts: NcclFacts) -> NcclLog | None:
    """What NCCL's lines show, None if there are none with facts."""
    job = Job(facts)
    if not job.processes and not facts.versions:
        return None
    by_group: dict[int, list[Sending]] = {}
    for sending in job.sendings:
        by_group.setdefault(id(sending.group), []).append(sending)
    return NcclLog(
        lines=facts.lines,
        versions=tuple(sorted(facts.versions)),
        hosts=job.hosts,
        processes=tuple(_process(process) for process in job.processes),
        communicators=tuple(
            _communicator(job, group, by_group.get(id(group), [])) for group in job.groups[:MAX_COMMUNICATORS]
        ),
        choices=tuple(facts.choices[key] for key in sorted(facts.choices)),
        findings=judge(job),
    )


def judge(job: Job) -> tuple[NcclFinding, ...]:
    """All that is wrong, what keeps ranks apart before what makes them slow."""
    return tuple(finding for judge_one in _JUDGES for finding in judge_one(job))


def name_transport(way: Way, *, device: bool) -> str:
    """A way in NCCL's words: NET/IB/0/GDRDMA; without the device NET/IB/GDRDMA."""
    number = f"/{way.device}" if device and way.device >= 0 else ""
    return f"{way.transport}{number}{'/GDRDMA' if way.direct else ''}"


def _process(process: ProcessFacts) -> NcclProcess:
    return NcclProcess(
        host=process.host,
        pid=process.pid,
        version=process.version or _NOT_LOGGED,
        bootstrap=process.bootstrap[0] if process.bootstrap else _NOT_LOGGED,
        network=process.network[0] if process.network else _NOT_LOGGED,
        interfaces=process.interfaces,
        nics=process.nics,
        plugins=tuple(f"{kind}: {name}" for kind, name in sorted(process.loaded_plugins.items())),
        settings={name: mask_text(value) for name, (value, _) in sorted(process.settings.items())},
    )


def _communicator(job: Job, group: Group, sendings: list[Sending]) -> NcclCommunicator:
    members = [group.members[rank] for rank in sorted(group.members)]
    nodes = [m.communicator.nodes for m in members if m.communicator.nodes is not None]
    whole = len(group.members) == group.size
    seconds = [
        (m.communicator.seconds, m.communicator.rank) for m in members if m.communicator.seconds is not None
    ]
    channels = [m.communicator.channels for m in members if m.communicator.channels is not None]
    hosts: Reading[int] = nodes[0] if nodes else (len(group.hosts) if whole else _NOT_LOGGED)
    return NcclCommunicator(
        name=group.name,
        size=group.size,
        ranks=tuple(
            NcclRank(
                rank=m.communicator.rank,
                host=m.process.host,
                pid=m.process.pid,
                cuda_ordinal=m.communicator.cuda_ordinal,
                bus_id=parse_bus_id(m.communicator.bus_id) if m.communicator.bus_id else _NOT_LOGGED,
                completed=m.communicator.completed,
            )
            for m in members
        ),
        hosts=hosts,
        channels=channels[0] if channels else _NOT_LOGGED,
        init_seconds=max(seconds)[0] if seconds else _NOT_LOGGED,
        slowest_rank=max(seconds)[1] if seconds else _NOT_LOGGED,
        paths=tuple(_paths(sendings)),
        pairs=tuple(_pairs(sendings))[:MAX_PAIRS],
        rings=tuple(
            members[0].communicator.rings[ring] for ring in sorted(members[0].communicator.rings)[:MAX_RINGS]
        ),
    )


def _paths(sendings: list[Sending]) -> Iterator[NcclPath]:
    """The ways by what they are, the most used first."""
    pairs: dict[tuple[str, bool | None], set[int]] = {}
    channels: dict[tuple[str, bool | None], int] = {}
    for sending, counts in _one_end(sendings):
        key = (name_transport(sending.way, device=False), sending.between_hosts)
        pairs.setdefault(key, set()).update(counts)
        channels[key] = channels.get(key, 0) + sum(counts.values())
    for key in sorted(pairs, key=lambda key: -channels[key]):
        transport, between = key
        yield NcclPath(transport, _NOT_LOGGED if between is None else between, len(pairs[key]), channels[key])


def _pairs(sendings: list[Sending]) -> Iterator[NcclPair]:
    """The first pairs of ranks, with the ways between them."""
    channels: dict[tuple[int, str], int] = {}
    first = nsmallest(MAX_PAIRS, {pair for _, counts in _one_end(sendings) for pair in counts})
    kept = set(first)
    for sending, counts in _one_end(sendings):
        name = name_transport(sending.way, device=True)
        for pair in kept & counts.keys():
            channels[pair, name] = channels.get((pair, name), 0) + counts[pair]
    for (pair, name), count in sorted(channels.items()):
        yield NcclPair(*ranks_of(pair), name, count)


def _one_end(sendings: list[Sending]) -> Iterator[tuple[Sending, dict[int, int]]]:
    """The ways with their pairs, without the second end of those of which both ends print a line."""
    received: set[int] = set()
    for sending in sendings:
        if sending.way.receives:
            received.update(sending.channels)
    for sending in sendings:
        if sending.way.receives or not sending.way.transport.startswith("NET/"):
            yield sending, sending.channels
        else:
            counts = {pair: count for pair, count in sending.channels.items() if pair not in received}
            if counts:
                yield sending, counts


def parse_bus_id(number: str) -> str:
    """NCCL's bus id, one hexadecimal number, as gpudiag writes it: 901000 is 00000009:01:00.0."""
    digits = number.zfill(13)
    return f"{digits[:-5].zfill(8)[-8:]}:{digits[-5:-3]}:{digits[-3:-1]}.{digits[-1]}".lower()
