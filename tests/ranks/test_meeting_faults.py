"""Four machines that do not meet: which cause, on which host, named within seconds, and in the verdict."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.machines import Machine, change_filter, filter_packets, four_machines

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow, pytest.mark.timeout(240)]

PORT = 29573
LIMIT_SECONDS = 150.0  # proves that nothing hangs
RENDEZVOUS_SECONDS = 12  # for those that never meet
MEETING_SECONDS = 75  # for those that do: four times torch on a busy machine
ROOT = Path(__file__).parents[2]
NO_TORCH = Path(__file__).with_name("nothing_of_torch")


@dataclass
class Outcome:
    """What one machine's process printed: its document if it had one, and its notices."""

    status: int
    document: Any
    notices: list[str] = field(default_factory=list)

    @property
    def finding(self) -> tuple[str, str]:
        """The first finding's code, and the host that it is of."""
        first = self.document["findings"][0]
        return first["code"], first["subject"]["host"]


@pytest.fixture(scope="module")
def machines() -> Iterator[list[Machine]]:
    with four_machines() as found:
        yield found


@pytest.fixture(autouse=True)
def _folders_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of one machine meet in a folder, which these machines share: so each has another."""
    for number in range(1, 5):
        (tmp_path / f"machine{number}").mkdir()
    monkeypatch.setenv("MACHINES_FOLDER", str(tmp_path))


def start(
    machine: Machine,
    rank: int,
    master: str,
    *,
    world_size: int = 4,
    seconds: float = RENDEZVOUS_SECONDS,
    interface: str = "eth0",
    torch: bool = True,
) -> "subprocess.Popen[str]":
    """One rank's command; without `torch` it never meets the others, and says all that it does before."""
    own = {
        "XDG_RUNTIME_DIR": f"{os.environ['MACHINES_FOLDER']}/{machine.name}",
        "GLOO_SOCKET_IFNAME": interface,
    }
    flags = ("--backend", "gloo", "--max-bytes", "64", "--iterations", "3", "--json")
    place = ("--rank", str(rank), "--world-size", str(world_size), "--init-method", f"tcp://{master}:{PORT}")
    limit = ("--rendezvous-timeout", str(seconds))
    return subprocess.Popen(
        machine.command(sys.executable, "-m", "gpudiag", "nccl-test", *flags, *place, *limit),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, (*([] if torch else [NO_TORCH]), ROOT))),
            **own,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(processes: list["subprocess.Popen[str]"]) -> list[Outcome]:
    outcomes = []
    try:
        for process in processes:
            output, error = process.communicate(timeout=LIMIT_SECONDS)
            notices = [line.removeprefix("gpudiag: ") for line in error.splitlines() if "wait" in line]
            outcomes.append(Outcome(process.returncode, json.loads(output) if output else None, notices))
    finally:
        for process in processes:
            process.kill()
    return outcomes


def run(
    machines: list[Machine],
    masters: dict[int, str] | None = None,
    without: int | None = None,
    seconds: float = RENDEZVOUS_SECONDS,
    *,
    torch: bool = False,
) -> list[Outcome]:
    """All four ranks, rank N on machine N+1.

    `masters` are the names that some of them are given for rank 0's machine.
    """
    given = {rank: "machine1" for rank in range(4)} | (masters or {})
    ranks = [rank for rank in range(4) if rank != without]
    return end([start(machines[rank], rank, given[rank], seconds=seconds, torch=torch) for rank in ranks])


def inside(machine: Machine, *words: str) -> None:
    subprocess.run(
        ("ip", "netns", "exec", machine.namespace, *words), check=True, capture_output=True, text=True
    )


@contextmanager
def rules(machine: Machine, *lines: str) -> Iterator[None]:
    """Packet filter rules of that machine, gone at the end."""
    filter_packets(machine, *lines)
    try:
        yield
    finally:
        change_filter(machine, "delete table inet faults")


@contextmanager
def names(machine: Machine, **addresses: str | None) -> Iterator[None]:
    """That machine looks these names up to other addresses, or to none; as before at the end."""
    hosts = Path("/etc/netns") / machine.namespace / "hosts"
    before = hosts.read_text()
    lines = [line for line in before.splitlines() if line.split()[-1] not in addresses]
    hosts.write_text(
        "\n".join([*lines, *(f"{address} {name}" for name, address in addresses.items() if address)]) + "\n"
    )
    try:
        yield
    finally:
        hosts.write_text(before)


def test_all_four_meet(machines: list[Machine]) -> None:
    outcomes = run(machines, seconds=MEETING_SECONDS, torch=True)
    assert [outcome.status for outcome in outcomes] == [0] * 4
    assert outcomes[0].document["outcome"] == "pass"
    for outcome in outcomes:  # where the machine is slow some are waited for, and that is all there is to say
        assert all(notice.startswith("waiting for rank") for notice in outcome.notices)


def test_a_rank_0_that_comes_after_the_others_have_waited_for_it_is_healthy(machines: list[Machine]) -> None:
    """torch's ranks connect one after the other then: each waits for seconds between its attempts."""
    waiting = [start(machines[rank], rank, "machine1", seconds=MEETING_SECONDS) for rank in (1, 2, 3)]
    for process in waiting:
        assert process.stderr is not None
        while "waits for rank 0" not in (line := process.stderr.readline()):
            assert line, "it ended"
    outcomes = end([start(machines[0], 0, "machine1", seconds=MEETING_SECONDS), *waiting])
    assert [outcome.status for outcome in outcomes] == [0] * 4
    assert outcomes[0].document["findings"] == []


def test_a_rank_that_never_comes_is_named_after_five_seconds_and_in_the_verdict(
    machines: list[Machine],
) -> None:
    outcomes = run(machines, without=2)
    (notice,) = outcomes[0].notices
    absent, _, come = notice.removeprefix("waiting for rank").partition(":")
    assert "2" in absent or "-" in absent  # and others too, where the machine is slow: 2, 1-3, 0-3
    assert "0 on machine1" in come or "0-" in absent
    assert [outcome.status for outcome in outcomes] == [3] * 3
    assert [finding["code"] for finding in outcomes[0].document["findings"]] == ["rank.not_started"]
    assert outcomes[0].document["findings"][0]["subject"]["rank"] == 2


def one_report(outcomes: list[Outcome]) -> Any:
    """The only report with findings, which has one; no process ended well."""
    assert all(outcome.status == 3 for outcome in outcomes)
    (report,) = [outcome.document for outcome in outcomes if outcome.document]
    (finding,) = report["findings"]
    return finding


def test_where_rank_0_never_comes_the_others_find_each_other_and_one_says_so(machines: list[Machine]) -> None:
    outcomes = run(machines, without=0)
    finding = one_report(outcomes)
    assert (finding["code"], finding["subject"]["host"]) == ("rank.not_started", "machine1")
    assert "machine1 (198.18.77.1) is up, and nothing listens on port" in finding["message"]
    assert any("nothing listens on port" in outcome.notices[0] for outcome in outcomes)


def test_a_host_that_looks_itself_up_for_rank_0_is_told_in_rank_0_s_report(machines: list[Machine]) -> None:
    with names(machines[3], machine1=machines[3].address):
        finding = one_report(run(machines))
    assert (finding["code"], finding["subject"]["host"]) == ("rendezvous.wrong_address", "machine4")
    assert f"rank 3 on machine4 uses machine1:{PORT} at 198.18.77.4, the others" in finding["message"]
    assert "which is this machine itself" in finding["message"]


@pytest.mark.parametrize("place", ["localhost", "machine9", "machine2"])
def test_a_rank_that_looks_elsewhere_is_told_in_rank_0_s_report_with_both_places(
    machines: list[Machine], place: str
) -> None:
    finding = one_report(run(machines, masters={3: place}))
    assert finding["subject"]["host"] == "machine4"
    assert f"rank 3 on machine4 uses {place}:{PORT}, the others machine1:{PORT}: " in finding["message"]
    assert finding["code"] == ("rendezvous.wrong_address" if place == "machine9" else "rendezvous.split")


def test_a_machine_that_is_not_rank_0_s_is_told_with_rank_0_s_where_all_look_there(
    machines: list[Machine],
) -> None:
    finding = one_report(run(machines, masters=dict.fromkeys(range(4), "machine3")))
    assert finding["code"] == "rendezvous.split"
    assert f"rank 0 runs on machine1, and all ranks look for it at machine3:{PORT}" in finding["message"]


def test_a_firewall_on_rank_0_s_machine_is_one_report_though_nothing_of_the_host_behind_it_comes_in(
    machines: list[Machine],
) -> None:
    with rules(machines[0], f"ip saddr {machines[2].address} drop"):
        outcomes = run(
            machines, seconds=20
        )  # on a busy machine its own look takes longer than the usual time
    finding = one_report(outcomes)
    assert (finding["code"], finding["subject"]["host"]) == ("rendezvous.unreachable", "machine3")
    assert "machine1 (198.18.77.1) does not answer on port" in outcomes[2].notices[0]
    assert "rank 2 cannot reach rank 0" in finding["message"]


def test_a_firewall_that_opens_the_ranks_port_alone_is_told_as_such(machines: list[Machine]) -> None:
    with rules(machines[0], f"tcp dport != {PORT} ip saddr {machines[1].address} ct state new drop"):
        outcomes = run(machines, seconds=20, torch=True)  # rank 0 imports torch before it listens
    assert {outcome.status for outcome in outcomes} == {1}
    assert outcomes[0].finding == ("network.ports_closed", "machine1")
    message = outcomes[0].document["findings"][0]["message"]
    assert f"on the rendezvous port {PORT}, and on no other port" in message
    told = [outcome.finding for outcome in outcomes if outcome.document and outcome.document["findings"]]
    assert set(told) == {("network.ports_closed", "machine1")}  # machine2 may have found out by itself


def test_a_host_without_a_way_there_is_named(machines: list[Machine]) -> None:
    machine = machines[3]
    inside(machine, "ip", "route", "add", "unreachable", f"{machines[0].address}/32")
    try:
        outcomes = run(machines)
    finally:
        inside(machine, "ip", "route", "delete", "unreachable", f"{machines[0].address}/32")
    finding = one_report(outcomes)
    assert (finding["code"], finding["subject"]["host"]) == ("rendezvous.unreachable", "machine4")
    assert "there is no route from this machine to machine1" in finding["message"]


def test_another_server_at_the_meeting_place_is_named_by_what_it_answers(machines: list[Machine]) -> None:
    server = subprocess.Popen(
        machines[0].command(sys.executable, "-m", "http.server", str(PORT)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        time.sleep(1.0)
        outcomes = run(machines, without=0)
    finally:
        server.kill()
        server.wait()
    finding = one_report(outcomes)
    assert finding["code"] == "rendezvous.foreign_server"
    assert "another server has port" in finding["message"]


def test_another_number_of_ranks_on_one_host_is_told_with_both(machines: list[Machine]) -> None:
    processes = [
        start(machines[rank], rank, "machine1", world_size=4 + (rank == 2), torch=False) for rank in range(4)
    ]
    finding = one_report(end(processes))
    assert (finding["code"], finding["subject"]["host"]) == ("rendezvous.split", "machine3")
    assert finding["message"] == "rank 2 on machine3 was started with WORLD_SIZE 5, the others with 4"


def test_an_interface_that_one_host_does_not_have_is_told_there_at_once(machines: list[Machine]) -> None:
    processes = [
        start(machine, rank, "machine1", interface="ib9" if rank == 2 else "eth0", seconds=MEETING_SECONDS)
        for rank, machine in enumerate(machines)
    ]
    outcomes = end(processes)
    assert [outcome.status for outcome in outcomes] == [1] * 4
    assert outcomes[0].finding == ("network.wrong_interface", "machine3")
    assert "GLOO_SOCKET_IFNAME=ib9 names no interface" in outcomes[0].document["findings"][0]["message"]


def test_limits_that_one_host_has_too_low_are_told_there_by_a_preflight_of_all(
    machines: list[Machine],
) -> None:
    """Small shared memory and few files hang or kill ranks later.

    A preflight says so before, with the host.
    """
    limits = 'mount -t tmpfs -o size=32m none /dev/shm && ulimit -n 512 && exec "$@"'
    processes = []
    for rank, machine in enumerate(machines):
        place = ("--rank", str(rank), "--world-size", "4", "--init-method", f"tcp://machine1:{PORT}")
        command = (sys.executable, "-m", "gpudiag", "preflight", "--level", "quick", "--json", *place)
        limited = ("sh", "-c", limits, "sh", *command) if rank == 2 else command
        folder = f"{os.environ['MACHINES_FOLDER']}/{machine.name}"
        processes.append(
            subprocess.Popen(
                machine.command(*limited),
                env={**os.environ, "XDG_RUNTIME_DIR": folder, "GPUDIAG_STATE_DIR": folder},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    groups = {group["code"]: group["machines"] for group in end(processes)[0].document["groups"]}
    assert groups["host.shared_memory_small"] == ["machine3"]
    assert groups["host.open_files_limit"] == ["machine3"]


@pytest.mark.parametrize("address", ["127.0.1.1", None])
def test_a_host_whose_own_name_leads_nowhere_is_the_one_that_is_told(
    machines: list[Machine], address: str | None
) -> None:
    """gloo looks it up, and has the other ranks connect there: they fail, and that host is silent."""
    with names(machines[2], machine3=address):
        processes = [
            start(machine, rank, "machine1", interface="", seconds=MEETING_SECONDS)
            for rank, machine in enumerate(machines)
        ]
        outcomes = end(processes)
    assert [outcome.status for outcome in outcomes] == [1] * 4
    assert outcomes[0].finding == ("network.name_is_loopback", "machine3")
    assert len(outcomes[0].document["findings"]) == 1


def test_an_interface_that_does_not_exist_is_told_before_any_rank_needs_it(machines: list[Machine]) -> None:
    processes = [
        start(machine, rank, "machine1", interface="ib9" if rank == 2 else "eth0", torch=False)
        for rank, machine in enumerate(machines)
    ]
    outcomes = end(processes)
    assert [outcome.status for outcome in outcomes] == [1] * 4
    assert outcomes[0].finding == ("network.wrong_interface", "machine3")
    (finding,) = outcomes[0].document["findings"]
    assert finding["message"].endswith("right is eth0, 198.18.77.3, as on the others")


def test_where_the_rendezvous_port_alone_is_open_both_sides_say_the_same(machines: list[Machine]) -> None:
    """The agents cannot connect: those of other hosts, and rank 0's, find out by the ranks' store."""
    new = "iifname eth0 tcp flags & (syn|ack) == syn"
    with rules(machines[0], f"{new} tcp dport != {PORT} drop", "iifname eth0 meta l4proto udp drop"):
        outcomes = run(machines, seconds=MEETING_SECONDS, torch=True)
    assert [outcome.status for outcome in outcomes] == [1] * 4
    assert {outcome.finding for outcome in outcomes} == {("network.ports_closed", "machine1")}
    assert len({outcome.document["findings"][0]["message"] for outcome in outcomes}) == 1


def test_a_rendezvous_port_that_is_prohibited_is_told_with_its_host(machines: list[Machine]) -> None:
    with rules(machines[0], f"iifname eth0 tcp dport {PORT} reject with icmpx admin-prohibited"):
        outcomes = run(machines, seconds=MEETING_SECONDS, torch=True)
    assert outcomes[0].finding == ("network.ports_closed", "machine1")
    assert "prohibited" in outcomes[0].document["findings"][0]["message"]
    assert [outcome.document for outcome in outcomes[1:]] == [None] * 3


def test_a_rank_that_two_hosts_have_is_told_at_once_with_both(machines: list[Machine]) -> None:
    outcomes = end(
        [start(machine, min(rank, 2), "machine1", torch=False) for rank, machine in enumerate(machines)]
    )
    finding = outcomes[0].document["findings"][0]
    assert (finding["code"], finding["subject"]["rank"]) == ("rank.not_started", 3)
    said = finding["message"].partition("never arrived")[2]
    assert "rank 2 on machine" in said
    assert "machine3" in said
    assert "machine4" in said
    assert [outcome.status for outcome in outcomes] == [3] * 4
    assert outcomes[0].document["seconds"] < RENDEZVOUS_SECONDS
