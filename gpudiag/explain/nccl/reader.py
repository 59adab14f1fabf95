"""Reads NCCL's lines and keeps the facts of each: one function for each kind of message.

The messages are those of NCCL's sources from 2.18 to 2.32; what a version words otherwise stands beside it.
"""

import re
from collections.abc import Callable, Iterable, Iterator

from gpudiag.explain.nccl import messages
from gpudiag.explain.nccl.facts import (
    CommunicatorFacts,
    Head,
    NcclFacts,
    ProcessFacts,
    Way,
    WayFacts,
    pair_of,
)
from gpudiag.explain.nccl.lines import MARK, LineReader
from gpudiag.model.nccl_log import LogPlace, NcclChannels, NcclChoice

MAX_TEXT = 300  # characters of a line that is kept as evidence
MAX_PAIRS = 20_000  # of one way of one rank
_MAX_WAYS = 1000  # that are remembered by their words

_DEVICE = re.compile(rb"# +Rank +\d+ .* on +(\S+) device +\d+ \[\S+\] (.+?)\s*$")  # nccl-tests
_CHANNEL = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? "
    r"(?:\[(send|receive)\] )?via (.+)"
)
_RING = re.compile(r"Channel (\d+)/\d+ :((?: +\d+)+)$")
_NET = re.compile(r"NET/(.+?)/(\d+)(?:\((\d+)\))?((?:/[\w()-]+)*)$")
_PEER_WAYS = ("IPC", "CUMEM", "MNNVL", "direct pointer", "indirect")
_INIT = re.compile(
    r"comm (0x\w+) rank (\d+) nranks (\d+) cudaDev (\d+)(?: nvmlDev \d+)?(?: busId (\w+))?"
    r"(?: commId (0x\w+))?"
    r"(?: parent (0x\w+)(?: (?:splitCount|childCount) (\d+))? color (-?\d+) key -?\d+ ?"
    r"(?:commId (0x\w+))?)? ?- Init (START|COMPLETE)"
)
_LAYOUT = re.compile(
    r"comm (0x\w+) rank (\d+) nRanks (\d+) nNodes (\d+) localRanks (\d+) localRank \d+ MNNVL (\d)"
)
_CHANNELS = re.compile(
    r"(\d+) coll channels, (?:\d+ collnet channels, )?(?:(\d+) nvls channels, )?(\d+) p2p channels"
)
_TIMINGS = re.compile(r"Init timings(?: - \w+)?: rank (\d+) nranks (\d+) total ([\d.]+)(?: \((.*?)\))?")
_CHOSEN = re.compile(r"(\w+): (\d+) Bytes -> Algo (\w+) proto (\w+)")
_UNNAMED_CHOICE = re.compile(r"(\d+) Bytes -> Algo (\d+) proto (\d+)")
# The order of NCCL_ALGO_ and NCCL_PROTO_ in src/include/nccl_common.h, as long as numbers are printed (to
# 2.23).
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


class NcclReader:
    """Collects what the lines of NCCL in one log after the other show."""

    def __init__(self) -> None:
        self.facts = NcclFacts()
        self._lines = LineReader()
        self._log, self._number, self._raw = "", 0, b""
        self._ways: dict[tuple[bool, str], Way | None] = {}

    def watch(self, log: str, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """The lines given, each yielded after its facts about NCCL are kept."""
        self._log = log
        for number, raw in lines:
            if MARK in raw:
                self.add(number, raw)
            elif raw[:1] == b"#" and (device := _DEVICE.match(raw)):
                self.facts.gpus[device[1].decode()] = device[2].decode(errors="replace")
            yield number, raw

    def add(self, number: int, raw: bytes) -> None:
        """Keep the facts of one line of the log."""
        self._number, self._raw = number, raw
        for head, message in self._lines.read(number, raw):
            self.facts.lines += 1
            if message.startswith("NCCL version "):
                self._add_version(head, message)
                continue
            process = self._process(head)
            if message.startswith(("Channel ", "Ring ")):  # up to 2.6 a ring
                self._add_channel(process, head, message)
                continue
            kind = message[:3]
            read = _READERS.get(kind)
            if read is not None:
                read(self, process, head, message)
            elif message[:1].isdigit():
                self._add_numbers(process, head, message)
            elif " -> Algo " in message:
                self._add_choice(message)
            elif "NVL[" in message or "/NVL)" in message:  # NCCL_DEBUG_SUBSYS=GRAPH
                process.nvlink = True

    def place(self) -> LogPlace:
        """The line that is read now, as evidence."""
        return LogPlace(self._log, self._number, self._raw[:MAX_TEXT].decode(errors="replace").strip())

    def _process(self, head: Head) -> ProcessFacts:
        key = (head.host, head.pid)
        known = self.facts.processes.get(key)
        if known is None:
            known = self.facts.processes[key] = ProcessFacts(head.host, head.pid)
        return known

    def _add_version(self, head: Head, message: str) -> None:
        version = message.removeprefix("NCCL version ").split()[0]
        place = self.place()
        self.facts.versions.setdefault(version, place)
        if head.pid:
            process = self._process(head)
            process.version, process.version_place = version, process.version_place or place

    def _add_channel(self, process: ProcessFacts, head: Head, message: str) -> None:
        match = _CHANNEL.match(message)
        if match is None:
            ring = _RING.match(message)
            if ring and head.thread in process.of_thread:
                process.of_thread[head.thread].rings[int(ring[1])] = " ".join(ring[2].split())
            return
        words = (match[4] == "receive", match[5])
        if words in self._ways:
            way = self._ways[words]
        else:
            way = parse_way(*words)
            if len(self._ways) < _MAX_WAYS:
                self._ways[words] = way
        if way is None:
            return
        source, destination = int(match[2]), int(match[3])
        ways = self._communicator_of(process, head, source, destination).ways
        known = ways.get(way)
        if known is None:
            known = ways[way] = WayFacts(self.place())
        pair = pair_of(source, destination)
        if pair in known.channels:
            known.channels[pair] += 1
        elif len(known.channels) < MAX_PAIRS:
            known.channels[pair] = 1

    def _communicator_of(
        self, process: ProcessFacts, head: Head, source: int, destination: int
    ) -> CommunicatorFacts:
        """The communicator of a line about a channel: the thread's, else the largest that fits."""
        current = process.of_thread.get(head.thread)
        if current is not None:
            return current
        fits = [
            known
            for known in process.communicators.values()
            if known.size > max(source, destination)
            and known.rank in (source, destination)
            and known.cuda_ordinal == head.cuda_ordinal
        ]
        if fits:
            return max(fits, key=lambda known: known.size)
        if process.loose is None:
            process.loose = CommunicatorFacts("", -1, 0, head.cuda_ordinal)
        return process.loose

    def _add_init(self, process: ProcessFacts, head: Head, message: str) -> None:
        match = _INIT.search(message)
        if match is None:
            layout = _LAYOUT.match(message)
            if layout:
                self._add_layout(process, head, layout)
            elif message.startswith("ncclOs"):
                messages.add_unreachable(process, message, self.place())
            return
        address, rank, size, ordinal, bus_id, name, parent, split, color, late_name, step = match.groups()
        name = name or late_name
        if name is None and parent is not None:
            of = process.communicators.get(parent)
            name = f"{of.name if of else parent}/{split or ''}:{color}" if int(parent, 16) else None
        known = process.communicators.get(address)
        if known is None or (step == "START" and known.completed):
            known = CommunicatorFacts(
                name or address, int(rank), int(size), int(ordinal), bus_id or "", self.place()
            )
            process.communicators[address] = known
        if step == "COMPLETE":
            known.completed = True
        process.of_thread[head.thread] = known

    def _add_layout(self, process: ProcessFacts, head: Head, layout: re.Match[str]) -> None:
        address, rank, size, nodes, local_ranks, mnnvl = layout.groups()
        known = process.communicators.get(address)
        if known is None:
            known = CommunicatorFacts(address, int(rank), int(size), head.cuda_ordinal)
            process.communicators[address] = process.of_thread[head.thread] = known
        known.nodes, known.local_ranks, known.mnnvl = int(nodes), int(local_ranks), mnnvl == "1"

    def _add_numbers(self, process: ProcessFacts, head: Head, message: str) -> None:
        match = _CHANNELS.match(message)
        if match:
            current = process.of_thread.get(head.thread)
            if current is not None:
                current.channels = NcclChannels(int(match[1]), int(match[2] or 0), int(match[3]))
                current.channels_place = self.place()
            return
        chosen = _UNNAMED_CHOICE.match(message)
        if chosen:
            algorithm = _ALGORITHMS[int(chosen[2])] if int(chosen[2]) < len(_ALGORITHMS) else chosen[2]
            protocol = _PROTOCOLS[int(chosen[3])] if int(chosen[3]) < len(_PROTOCOLS) else chosen[3]
            self._count_choice("any", algorithm, protocol, int(chosen[1]))

    def _add_choice(self, message: str) -> None:
        match = _CHOSEN.match(message)
        if match is None:
            return
        algorithm, protocol = match[3], match[4]
        if algorithm.isdecimal() and protocol.isdecimal():  # 2.23
            algorithm = _ALGORITHMS[int(algorithm)] if int(algorithm) < len(_ALGORITHMS) else algorithm
            protocol = _PROTOCOLS[int(protocol)] if int(protocol) < len(_PROTOCOLS) else protocol
        self._count_choice(match[1], algorithm, protocol, int(match[2]))

    def _count_choice(self, operation: str, algorithm: str, protocol: str, size_bytes: int) -> None:
        known = self.facts.choices.get((operation, algorithm, protocol))
        least = min(known.smallest_bytes, size_bytes) if known else size_bytes
        most = max(known.largest_bytes, size_bytes) if known else size_bytes
        count = known.count + 1 if known else 1
        self.facts.choices[operation, algorithm, protocol] = NcclChoice(
            operation, algorithm, protocol, count, least, most
        )

    def _add_timings(self, process: ProcessFacts, head: Head, message: str) -> None:
        match = _TIMINGS.match(message)
        if match is None:
            return  # Initialized NET plugin ..
        rank, size = int(match[1]), int(match[2])
        current = process.of_thread.get(head.thread)
        fits = [current] if current else list(process.communicators.values())
        for known in fits:
            if known.rank == rank and known.size == size:
                known.seconds, known.timings = float(match[3]), match[4] or ""
                return

    def _add_setting(self, process: ProcessFacts, head: Head, message: str) -> None:
        messages.add_setting(process, message, self.place())

    def _add_other(self, process: ProcessFacts, head: Head, message: str) -> None:
        messages.add(process, head, message, self.place())


def parse_way(receives: bool, words: str) -> Way | None:
    """The way between two ranks that the end of a line about a channel names; None where the line was cut."""
    words = words.split(" comm ")[0].rstrip()  # RCCL names the communicator behind it
    if words.startswith("NET/"):
        match = _NET.match(words)
        if match is None:
            return None
        suffixes = match[4].split("/")[1:]
        direct = any(word.startswith("GDRDMA") for word in suffixes)
        if not direct and any("GDRDMA".startswith(word) for word in suffixes):
            return None  # cut in the middle of GDRDMA
        return Way(f"NET/{match[1]}", int(match[2]), direct, receives, match[3] is not None)
    kind, _, rest = words.partition("/")
    if kind in ("SHM", "direct shared memory"):  # the latter up to 2.11
        return Way("SHM")
    name = rest.split("/")[0]
    return Way(f"P2P/{name}") if kind == "P2P" and name in _PEER_WAYS else None


_READERS: dict[str, Callable[[NcclReader, ProcessFacts, Head, str], None]] = {
    "com": NcclReader._add_init,
    "ncc": NcclReader._add_init,
    "[Ra": NcclReader._add_init,  # from 2.29
    "Ini": NcclReader._add_timings,
    "NCC": NcclReader._add_setting,
    **dict.fromkeys(messages.BEGINNINGS, NcclReader._add_other),
}
