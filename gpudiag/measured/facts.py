"""What the lines around a table show: GPUs, ranks, hosts, network cards, NCCL's version and settings."""

import re
from collections import Counter
from dataclasses import dataclass, field, fields, replace

from gpudiag.model.benchmark import Nics, Setup
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading

_RANK = re.compile(
    r"Rank\s+(?P<rank>\d+)\s+(?:Group\s+\d+\s+)?Pid\s+\d+\s+on\s+(?P<host>\S+(?: \S+)?)\s+"
    r"device\s+(?P<device>\d+)\s+\[(?P<bus>[0-9a-fx:]+)\]\s+(?P<gpu>\S.*?)\s*$",
    re.IGNORECASE,
)
# Whole lines that name one GPU with its index: nvidia-smi, nvidia-smi -L, nvbandwidth, CUDA's samples,
# perftest.
_GPUS = (
    re.compile(
        r"^\|?\s*(?P<index>\d+)\s+(?P<gpu>(?:NVIDIA|Tesla|GeForce|Quadro|HGX|A\d|GB\d)[^|]*?)"
        r"\s+(?:On|Off|N/A)\s*\|"
    ),
    re.compile(r"^GPU (?P<index>\d+): (?P<gpu>.+?) \(UUID: "),
    re.compile(r"^Device:? (?P<index>\d+)[:,] (?P<gpu>.+?)(?: \([0-9a-fA-F:.]+\)|, pciBusID.*)?\s*$"),
    re.compile(r"device name = \[(?P<gpu>[^\]]+)\]"),
    re.compile(r"DeviceProperties\(name='(?P<gpu>[^']+)'"),
)
_PROCESS = re.compile(
    r"Process (?P<rank>\d+) \((?P<host>[^)]+)\): device (?P<device>\d+): (?P<gpu>.+?) \([0-9a-fA-F:.]+\)"
)
_GENERIC = ("NVIDIA Graphics Device", "Graphics Device")  # a driver that does not know the product yet
_VERSION = re.compile(r"NCCL version (\d+\.\d+(?:\.\d+)?)|nccl-library=(\d{5})|nccl=\((\d+), (\d+), (\d+)\)")
_SETTING = re.compile(r"(?<![\w/])(NCCL_[A-Z0-9_]+)\s*=\s*\"?([^\s\"';]+)")
_SET_BY = re.compile(r"(NCCL_[A-Z0-9_]+) set by environment to (\S+?)\.?(?:\s|$)")
_ALGORITHM = re.compile(r"\b[Aa]lgo\s+(NVLS|NVLS_?TREE|NVLSTREE|RING|TREE|Ring|Tree|\d)\b", re.IGNORECASE)
_NUMBERED = {"0": "tree", "1": "ring", "4": "NVLS", "5": "NVLS"}
_IB_SPEED = re.compile(r"NET/IB\s?:.*?\b(?P<card>\w+):\w+:\d+/\w+.*?\bspeed=(?P<mbits>\d+)")
_IB_USING = re.compile(r"NET/IB\s?: Using (.+?)(?:;|$)")
_IB_CARD = re.compile(r"\[\d+\](\w+):\d+/")
_RANKS = re.compile(r"\b[nN][rR]anks (\d+)\b(?:.*?\bnNodes (\d+))?")
_TORCH_RANKS = re.compile(r"all_reduce over (\d+) ranks|on (\d+) devices")
_LEAST_LINES = 3  # lines of an algorithm: small messages use others


@dataclass(slots=True)
class Facts:
    """What the lines read so far have shown."""

    ranks: dict[int, tuple[str, int, str]] = field(default_factory=dict)  # host, device, GPU
    buses: dict[int, tuple[str, str]] = field(default_factory=dict)  # host and whole bus id, by rank
    first_ranks: int = 0  # how often rank 0 introduced itself
    gpus: dict[int, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)
    settings: dict[str, str] = field(default_factory=dict)
    algorithms: Counter[str] = field(default_factory=Counter)
    cards: dict[str, float] = field(default_factory=dict)
    nccl_version: str = ""
    rank_count: int = 0
    node_count: int = 0

    def read(self, line: str) -> None:
        """Take the facts of one line."""
        line = line.strip()
        if "ank" in line or "evice" in line or "GPU" in line or "NVIDIA" in line or "Tesla" in line:
            self._read_gpus(line)
        if "NCCL" in line or "nccl" in line or "rank" in line or "lgo" in line:
            self._read_nccl(line)

    def _read_gpus(self, line: str) -> None:
        if (rank := _RANK.search(line)) is not None:
            self.ranks[int(rank["rank"])] = (rank["host"], int(rank["device"]), rank["gpu"])
            if rank["bus"].count(":") > 1:  # up to 2.13 the bus alone, which several GPUs may have
                self.buses[int(rank["rank"])] = (rank["host"], rank["bus"])
            self.first_ranks += rank["rank"] == "0"
            return
        if (process := _PROCESS.search(line)) is not None:
            self.ranks[int(process["rank"])] = (process["host"], int(process["device"]), process["gpu"])
            return
        for pattern in _GPUS:
            if (match := pattern.search(line)) is not None:
                index = match.groupdict().get("index")
                self.gpus[int(index) if index else 0] = match["gpu"].strip()
                return
        if (torch := _TORCH_RANKS.search(line)) is not None:
            self.rank_count = int(torch[1] or torch[2])

    def _read_nccl(self, line: str) -> None:
        if (version := _VERSION.search(line)) is not None:
            self.nccl_version = _version(version)
        for name, value in (*_SETTING.findall(line), *_SET_BY.findall(line)):
            if name.endswith(("_VERSION_CODE", "_HOME", "_DEBUG", "_DEBUG_SUBSYS", "_TESTS_VERSION")):
                continue
            self.settings[name] = value
        if (algorithm := _ALGORITHM.search(line)) is not None:
            word = algorithm[1].lower()
            self.algorithms[_NUMBERED.get(word, "NVLS" if word.startswith("nvls") else word)] += 1
        if (card := _IB_SPEED.search(line)) is not None:
            self.cards[card["card"]] = float(card["mbits"]) / 1000
        elif (using := _IB_USING.search(line)) is not None:
            for name in _IB_CARD.findall(using[1]):
                self.cards.setdefault(name, 0.0)
        if (ranks := _RANKS.search(line)) is not None:
            self.rank_count = max(self.rank_count, int(ranks[1]))
            self.node_count = max(self.node_count, int(ranks[2] or 0))

    @property
    def share_gpus(self) -> bool:
        """Whether two ranks run on one GPU."""
        return len(set(self.buses.values())) < len(self.buses)

    def setup(self) -> Setup:
        """What the lines show of the hardware that a benchmark ran on."""
        names = {gpu for _, _, gpu in self.ranks.values()} or set(self.gpus.values())
        gpus, nodes = self._counts()
        return Setup(
            gpu=_one_name(names),
            gpus=gpus,
            nodes=nodes,
            nics=self._nics(),
            nccl_version=self.nccl_version or NOT_ASKED,
            algorithm=self._algorithm(),
            settings=tuple(f"{name}={value}" for name, value in self.settings.items()),
        )

    def _counts(self) -> tuple[Reading[int], Reading[int]]:
        """GPUs in all and nodes: by the ranks' own lines, of which some may have been left out."""
        if self.ranks:
            count = max(self.ranks) + 1
            hosts = {host for host, _, _ in self.ranks.values()}
            if len(self.ranks) == count:
                return count, len(hosts)
            per_node = max(device for _, device, _ in self.ranks.values()) + 1
            shown = len(self.ranks) >= 2 and count % per_node == 0
            return count, count // per_node if shown else NOT_ASKED
        if self.rank_count:
            return self.rank_count, self.node_count or NOT_ASKED
        return NOT_ASKED, NOT_ASKED

    def _nics(self) -> Reading[Nics]:
        rates = set(self.cards.values())
        if not self.cards or 0.0 in rates:
            return NOT_ASKED
        return Nics(len(self.cards), min(rates))

    def _algorithm(self) -> Reading[str]:
        asked = self.settings.get("NCCL_ALGO", "").lower()
        if asked in ("ring", "tree"):
            return asked
        if asked.startswith("nvls"):
            return "NVLS"
        named = self.algorithms.most_common(1)
        return named[0][0] if named and named[0][1] >= _LEAST_LINES else NOT_ASKED


def _one_name(names: set[str]) -> Reading[str]:
    known = names - set(_GENERIC)
    if len(known) == 1:
        return next(iter(known))
    detail = f"several: {', '.join(sorted(known))}" if known else ""
    return Missing(MissingReason.NOT_SUPPORTED, detail) if known else NOT_ASKED


def _version(match: "re.Match[str]") -> str:
    if match[1]:
        return match[1]
    if match[2]:
        code = int(match[2])
        return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
    return f"{match[3]}.{match[4]}.{match[5]}"


def filled(setup: Setup, others: Setup) -> Setup:
    """The setup, with what it does not have taken from the others."""
    missing = {
        one.name: getattr(others, one.name)
        for one in fields(Setup)
        if one.name not in ("settings", "assumed") and isinstance(getattr(setup, one.name), Missing)
    }
    return replace(setup, **missing, settings=setup.settings or others.settings)
