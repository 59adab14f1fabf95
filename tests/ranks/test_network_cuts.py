"""Four machines whose network is cut while they run: each side names the host or the pair, and not a rank."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.machines import Machine, change_filter, filter_packets, four_machines, start_nccl_test

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow, pytest.mark.timeout(600)]

PORT = 29574
LIMIT_SECONDS = 120.0  # proves that nothing hangs


def is_measuring(lines: list[str]) -> bool:
    """Whether all ranks are in that stage; where single ranks are is in events of another kind."""
    events = [json.loads(line) for line in lines if line.endswith("\n")]
    return any(event["kind"] == "stage" and event["stage"] == "measure" for event in events)


@dataclass
class Side:
    """What one machine's process printed."""

    status: int
    document: Any
    error: str

    @property
    def findings(self) -> list[tuple[str, Any]]:
        """Each finding's code and its host, or the ends of its link."""
        return [
            (
                one["code"],
                one["subject"]["ends"] if one["subject"]["kind"] == "link" else one["subject"]["host"],
            )
            for one in self.document["findings"]
        ]


class Run:
    """One rank on each machine, in a run that lasts until it is cut."""

    def __init__(self, machines: list[Machine], folder: Path, *more: str, torchrun: bool = False) -> None:
        self.torchrun = torchrun
        self.machines = machines
        self.folder = folder
        self.events = folder / "events"
        flags = (
            "--backend",
            "gloo",
            "--min-bytes",
            "64K",
            "--max-bytes",
            "64K",
            "--iterations",
            "100000",
            "--json",
        )
        self.processes = [self._start(rank, folder, (*flags, *more)) for rank in range(4)]
        self._output: dict[int, tuple[str, str]] = {}
        self._readers = [threading.Thread(target=self._read, args=(rank,), daemon=True) for rank in range(4)]
        for reader in self._readers:
            reader.start()

    def wait_until_measuring(self) -> None:
        until = time.monotonic() + 180
        while time.monotonic() < until and all(reader.is_alive() for reader in self._readers):
            if self.events.exists() and is_measuring(self.events.read_text().splitlines(keepends=True)):
                time.sleep(1.0)
                return
            time.sleep(0.1)
        self.kill()
        for reader in self._readers:
            reader.join(5)
        pytest.fail(f"the ranks never measured: {self._output}")

    def end(self) -> list[Side]:
        for reader in self._readers:
            reader.join(LIMIT_SECONDS)
        return [
            Side(process.wait(5), json.loads(self._output[rank][0] or "null"), self._output[rank][1])
            for rank, process in enumerate(self.processes)
        ]

    def merge(self) -> Any:
        """What `gpudiag merge` makes of the reports that the machines have kept."""
        kept = sorted(str(path) for path in self.folder.glob("machine*/reports/*.json"))
        assert len(kept) == 4
        command = (sys.executable, "-m", "gpudiag", "merge", "--json", *kept)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (1, "")
        return json.loads(done.stdout)

    def kill(self) -> None:
        for process in self.processes:
            process.kill()

    def _start(self, rank: int, folder: Path, flags: tuple[str, ...]) -> "subprocess.Popen[str]":
        events = ("--events", str(self.events)) if rank == 0 else ()
        machine = self.machines[rank]
        return start_nccl_test(machine, rank, folder, PORT, (*flags, *events), torchrun=self.torchrun)

    def _read(self, rank: int) -> None:
        self._output[rank] = self.processes[rank].communicate()


@pytest.fixture
def machines() -> Iterator[list[Machine]]:
    with four_machines() as found:
        yield found


@pytest.fixture
def run(machines: list[Machine], tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Run]:
    """By tcp://, or by torchrun where the test asks for it: that imports torch four times more."""
    found = Run(machines, tmp_path, torchrun=getattr(request, "param", "") == "torchrun")
    yield found
    found.kill()


def cut(machine: Machine, *others: Machine) -> None:
    """Drop all that comes to the machine from the others, or from anywhere, and all that goes there."""
    places = f"{{ {', '.join(other.address for other in others)} }}" if others else "0.0.0.0/0"
    change_filter(
        machine,
        "add table inet cut",
        "add chain inet cut in { type filter hook input priority 0; }",
        "add chain inet cut out { type filter hook output priority 0; }",
        f'add rule inet cut in iifname "eth0" ip saddr {places} drop',
        f'add rule inet cut out oifname "eth0" ip daddr {places} drop',
    )


def heal(machine: Machine) -> None:
    change_filter(machine, "delete table inet cut")


@pytest.mark.parametrize("run", ["torchrun"], indirect=True)
def test_a_host_that_is_cut_off_is_named_by_the_others_and_by_itself(run: Run) -> None:
    run.wait_until_measuring()
    cut(run.machines[3])
    sides = run.end()
    assert [side.status for side in sides] == [1] * 4
    assert sides[0].findings == [("network.host_cut_off", "machine4")]
    assert sides[3].findings == [("network.host_cut_off", "machine4")]
    assert "answers none of the other hosts" in sides[0].document["findings"][0]["message"]
    assert "reaches no other host" in sides[3].document["findings"][0]["message"]
    assert sides[1].document is sides[2].document is None
    assert "own report: " in sides[3].error
    (group,) = run.merge()["groups"]
    assert (group["code"], group["machines"], group["count"]) == ("network.host_cut_off", ["machine4"], 1)


def test_the_loss_of_rank_0_s_host_is_told_by_the_next(run: Run) -> None:
    run.wait_until_measuring()
    cut(run.machines[0])
    sides = run.end()
    assert [side.status for side in sides] == [1] * 4
    assert sides[0].findings == sides[1].findings == [("network.host_cut_off", "machine1")]
    assert sides[2].document is sides[3].document is None


@pytest.mark.parametrize("pair", [(1, 2), (0, 2)])
def test_a_cut_between_two_hosts_is_told_as_theirs(run: Run, pair: tuple[int, int]) -> None:
    run.wait_until_measuring()
    one, other = (run.machines[rank] for rank in pair)
    cut(other, one)
    sides = run.end()
    assert [side.status for side in sides] == [1] * 4
    told = [side for side in sides if side.document is not None]
    for side in told:
        ((code, ends),) = side.findings
        assert (code, sorted(ends)) == ("network.hosts_parted", sorted([one.name, other.name]))
    assert sides[0] in told
    (group,) = run.merge()["groups"]
    assert sorted(group["machines"]) == sorted([one.name, other.name])


def test_where_two_hosts_are_cut_from_two_nobody_is_blamed(run: Run) -> None:
    run.wait_until_measuring()
    for machine in run.machines[2:]:
        cut(machine, *run.machines[:2])
    sides = run.end()
    assert [side.status for side in sides] == [1] * 4
    for side in (sides[0], sides[2]):
        ((code, ends),) = side.findings
        assert code == "network.hosts_parted"
        assert ends == ["machine1, machine2", "machine3, machine4"]
    (group,) = run.merge()["groups"]
    assert (group["code"], group["machines"]) == ("network.hosts_parted", ends)


def test_an_outage_of_a_second_heals(machines: list[Machine], tmp_path: Path) -> None:
    run = Run(machines, tmp_path, "--timeout", "20")
    try:
        run.wait_until_measuring()
        cut(run.machines[2])
        time.sleep(1.0)
        heal(run.machines[2])
        sides = run.end()
    finally:
        run.kill()
    codes = {code for code, _ in sides[0].findings}
    assert not codes & {"network.host_cut_off", "network.hosts_parted", "rank.died", "rank.silent"}


def test_a_dead_process_and_a_stopped_one_are_no_cut(machines: list[Machine], tmp_path: Path) -> None:
    for number, (sign, code) in enumerate(((signal.SIGKILL, "rank.died"), (signal.SIGSTOP, "rank.silent"))):
        folder = tmp_path / str(number)
        folder.mkdir()
        run = Run(machines, folder)
        try:
            run.wait_until_measuring()
            found = subprocess.run(
                ("pgrep", "-P", str(run.processes[2].pid)), capture_output=True, text=True, check=True
            )
            os.kill(int(found.stdout.split()[0]), sign)
            for _ in range(3):
                run._readers[0].join(LIMIT_SECONDS / 3)
        finally:
            run.kill()
        run.end()
        document = json.loads(run._output[0][0])
        assert [one["code"] for one in document["findings"]] == [code]
        assert document["findings"][0]["subject"]["host"] == "machine3"


def test_a_firewall_between_two_hosts_is_told_while_they_meet(
    machines: list[Machine], tmp_path: Path
) -> None:
    """The rendezvous goes by rank 0's host: only what ranks 1 and 2 need of each other is dropped."""
    cut(machines[2], machines[1])
    run = Run(machines, tmp_path)
    try:
        sides = run.end()
    finally:
        run.kill()
    ((code, ends),) = sides[0].findings
    assert (code, sorted(ends)) == ("network.hosts_parted", ["machine2", "machine3"])


def test_a_link_that_loses_one_segment_in_fifty_is_localised_unasked_and_named_with_its_direction(
    machines: list[Machine], tmp_path: Path
) -> None:
    """Ranks of gloo's ring send to the next one: from rank 1 to rank 2."""
    receiver, sender = machines[2], machines[1]
    filter_packets(receiver, f"ip saddr {sender.address} numgen random mod 50 == 0 drop")
    run = Run(machines, tmp_path, "--max-bytes", "4M", "--iterations", "12")
    try:
        sides = run.end()
    finally:
        run.kill()
    assert [side.status for side in sides] == [0] * 4
    # By itself the run goes on to exchanges between pairs: the link, and neither of its ends.
    assert sides[0].findings == [("network.link_lossy", [sender.name, receiver.name])]
    (finding,) = sides[0].document["findings"]
    ways = [fact["value"] for fact in finding["evidence"] if fact["name"] == "lost_on_the_way"]
    assert ways == [f"{sender.name} to {receiver.name}"]


def test_a_sound_network_loses_nothing(machines: list[Machine], tmp_path: Path) -> None:
    run = Run(machines, tmp_path, "--max-bytes", "4M", "--iterations", "12")
    try:
        sides = run.end()
    finally:
        run.kill()
    assert [side.status for side in sides] == [0] * 4
    assert not [code for code, _ in sides[0].findings if code.startswith("network.")]
