"""What may be wrong with a machine's link, or between two: cut, slow, lossy, narrow, delayed."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.network_cases.case import Arrange
from tests.ranks.machines import Machine, bridge_port, enter, switch_of

Act = Callable[[Sequence[Machine]], None]
_DELAY = Path(__file__).parent / "delayed_wire.py"


def _run(*words: str, given: str = "") -> None:
    subprocess.run(words, input=given, check=True, capture_output=True, text=True)


def filter_at(machine: Machine, *rules: str) -> None:
    """Add rules for what comes in to that machine (`in ip saddr 198.18.77.2 drop`), or leaves."""
    lines = [
        "add table inet links",
        "add chain inet links in { type filter hook input priority 0; }",
        "add chain inet links out { type filter hook output priority 0; }",
        *(f"add rule inet links {rule}" for rule in rules),
    ]
    _run(*enter(machine), "nft", "-f", "-", given="\n".join(lines) + "\n")


def heal(machine: Machine) -> None:
    """Remove the rules of `filter_at`."""
    _run(*enter(machine), "nft", "delete", "table", "inet", "links")


def cut(machine: Machine, other: Machine | None = None) -> None:
    """Drop what goes between that machine and the other one, or all others."""
    ends = ("", "") if other is None else (f"ip saddr {other.address} ", f"ip daddr {other.address} ")
    filter_at(machine, f'in iifname "eth0" {ends[0]}drop', f'out oifname "eth0" {ends[1]}drop')


def away(seconds: float, rank: int, other: int | None = None, *, times: int = 1) -> Act:
    """The link of that rank's machine, or to one other, is cut and comes back, with 8 s between."""

    def act(machines: Sequence[Machine]) -> None:
        for turn in range(times):
            if turn:
                time.sleep(8.0)
            cut(machines[rank], None if other is None else machines[other])
            time.sleep(seconds)
            heal(machines[rank])

    return act


def interface_away(seconds: float, rank: int) -> Act:
    """The port of that rank's machine at the switch goes down and up: no carrier meanwhile."""

    def act(machines: Sequence[Machine]) -> None:
        machine = machines[rank]
        for state in ("down", "up"):
            _run("ip", "-n", switch_of(machine), "link", "set", bridge_port(machine), state)
            time.sleep(seconds if state == "down" else 0)

    return act


def cut_for_good(rank: int, other: int | None = None) -> Act:
    """The link is cut, and stays so."""

    def act(machines: Sequence[Machine]) -> None:
        cut(machines[rank], None if other is None else machines[other])

    return act


def narrow(bytes_at_most: int, rank: int, other: int | None = None) -> Act:
    """Packets over so many bytes are dropped on their way to that machine and from it; smaller ones pass."""

    def act(machines: Sequence[Machine]) -> None:
        end = "" if other is None else machines[other].address
        source, target = (f"ip saddr {end} ", f"ip daddr {end} ") if end else ("", "")
        filter_at(
            machines[rank],
            f'in iifname "eth0" {source}ip length > {bytes_at_most} drop',
            f'out oifname "eth0" {target}ip length > {bytes_at_most} drop',
        )

    return act


def arranged(*acts: Act) -> Arrange:
    """The machines with these faults from the start."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        for act in acts:
            act(machines)
        yield

    return arrange


def slow(rate: str, *ranks: int) -> Act:
    """The links of these ranks' machines carry no more than that (`50mbit`), in both directions."""

    def act(machines: Sequence[Machine]) -> None:
        for machine in dict.fromkeys(machines[rank] for rank in ranks):
            shape = ("root", "tbf", "rate", rate, "burst", "64kb", "latency", "100ms")
            _run(*enter(machine), "tc", "qdisc", "add", "dev", "eth0", *shape)
            port = bridge_port(machine)
            _run("tc", "-n", switch_of(machine), "qdisc", "add", "dev", port, *shape)

    return act


def slow_pair(rate: str, rank: int, other: int) -> Act:
    """What goes between two machines is no faster than that, in both directions."""

    def act(machines: Sequence[Machine]) -> None:
        for one, target in ((machines[rank], machines[other]), (machines[other], machines[rank])):
            tc = (*enter(one), "tc")
            _run(*tc, "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "htb", "default", "10")
            _run(
                *tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:10", "htb", "rate", "40gbit"
            )
            _run(*tc, "class", "add", "dev", "eth0", "parent", "1:", "classid", "1:20", "htb", "rate", rate)
            match = ("u32", "match", "ip", "dst", f"{target.address}/32", "flowid", "1:20")
            _run(*tc, "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", *match)

    return act


def lossy(per_mille: int, rank: int, other: int | None = None) -> Act:
    """So many of a thousand packets that come to that machine, or from one other, are lost."""

    def act(machines: Sequence[Machine]) -> None:
        source = "" if other is None else f"ip saddr {machines[other].address} "
        filter_at(machines[rank], f"in {source}numgen random mod 1000 < {per_mille} drop")

    return act


def delayed(milliseconds: float, *ranks: int) -> Arrange:
    """What goes to and from the machines of these ranks takes so long each way."""

    @contextlib.contextmanager
    def arrange(machines: Sequence[Machine]) -> Iterator[None]:
        wires = []
        try:
            for machine in dict.fromkeys(machines[rank] for rank in ranks):
                command = (sys.executable, str(_DELAY), machine.namespace, switch_of(machine))
                wire = subprocess.Popen(
                    (*command, bridge_port(machine), f"{machine.address}/24", str(milliseconds / 1000)),
                    stdout=subprocess.PIPE,
                )
                wires.append(wire)
                if wire.stdout is None or wire.stdout.readline() != b"up\n":
                    raise RuntimeError("the wire did not come up")
            yield
        finally:
            for wire in wires:
                wire.kill()
                wire.wait()

    return arrange
