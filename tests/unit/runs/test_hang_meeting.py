"""Why the ranks of somebody's job do not meet: in the words for ranks of gpudiag's own, and without deciding
that it hangs.
"""

import os
import socket
import subprocess
from dataclasses import replace

import pytest

from gpudiag.checks.job import kinds
from gpudiag.model.evidence import HostSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Frame, HangReport, Job, JobVerdict, KnownBy, ProcessLook, RankSeen, ThreadLook
from gpudiag.model.job_agent import AgentSeen
from gpudiag.model.published import HostAddresses, OwnInterface, gloo_addresses, nccl_addresses
from gpudiag.ranks.agents.reach import Obstacle, Reach
from gpudiag.runs import hang_meeting
from gpudiag.runs.hang_meeting import explain_machines, explain_meeting, meets
from gpudiag.runs.meeting_look import MeetingLook, look_at_meeting

SILENT = Reach(
    Obstacle.NO_ANSWER, "machine1 (198.18.77.1) does not answer on port 29500", "machine1:29500", "machine1"
)


def rank_of(
    number: int, function: str = "init_process_group", addresses: HostAddresses | None = None
) -> RankSeen:
    thread = ThreadLook(7, "python", "S", 0.1, frames=(Frame("/torch/distributed.py", function, 9),))
    look = ProcessLook(1.0, 7, "S", 0.1, threads=(thread,))
    host = f"machine{number + 1}"
    return RankSeen(
        7,
        number,
        0,
        KnownBy.ENVIRONMENT,
        "python train.py",
        60.0,
        looks=(look,),
        host=host,
        addresses=addresses,
    )


def verdict_of(
    *ranks: RankSeen, code: kinds.FindingKind = kinds.NEVER_JOINED, agent: AgentSeen | None = None
) -> JobVerdict:
    expected = tuple(int(str(rank.rank)) for rank in ranks)
    job = Job(
        "train.py", "machine3", "variables", None, 4, expected, ranks, master="machine1:29500", agent=agent
    )
    finding = code.finding(HostSubject("machine3"), "ranks 0, 1 and 3 have not joined")
    return JobVerdict(
        "train.py", Outcome.FAIL, "ranks 0, 1 and 3 have not joined", (finding,), (), (), (), job
    )


def host(gloo: str, last: int = 3, *more: OwnInterface) -> HostAddresses:
    interfaces = (
        OwnInterface("lo", True, ("127.0.0.1/8",)),
        OwnInterface("eth0", False, (f"198.18.77.{last}/24",)),
        *more,
    )
    variables = {"GLOO_SOCKET_IFNAME": gloo}
    return HostAddresses(
        interfaces, gloo_addresses(variables, "x", (), interfaces), nccl_addresses({}, interfaces)
    )


def looks(monkeypatch: pytest.MonkeyPatch, found: MeetingLook | None) -> list[tuple[object, ...]]:
    asked: list[tuple[object, ...]] = []

    def look(pid: int, point: object, *, elsewhere: bool) -> MeetingLook | None:
        asked.append((pid, point, elsewhere))
        return found

    monkeypatch.setattr(hang_meeting, "look_at_meeting", look)
    return asked


def test_a_rank_that_does_not_reach_rank_0_is_told_with_what_is_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = looks(monkeypatch, MeetingLook(host("eth0"), SILENT, "198.18.77.3"))
    told = explain_meeting(verdict_of(rank_of(2)))
    assert asked == [(7, ("machine1", 29500), True)]
    assert [one.code for one in told.findings] == ["rendezvous.unreachable", "hang.never_joined"]
    assert told.findings[0].message == f"rank 2 cannot reach rank 0: {SILENT.words}"
    assert told.outcome is Outcome.FAIL  # as before: whether it hangs is not decided here
    assert told.headline.startswith("rank 2 cannot reach rank 0")
    assert told.job.ranks[0].addresses == host("eth0")


@pytest.mark.parametrize(
    ("gloo", "code"),
    [("ib9", "network.wrong_interface"), ("lo", "network.address_not_reached")],
)
def test_what_the_own_host_publishes_is_told_with_the_right_value(
    monkeypatch: pytest.MonkeyPatch, gloo: str, code: str
) -> None:
    looks(monkeypatch, MeetingLook(host(gloo), None, "198.18.77.3"))
    told = explain_meeting(verdict_of(rank_of(2)))
    assert (told.findings[0].code, told.findings[0].subject.host) == (code, "machine3")
    assert told.findings[0].message.endswith("right is eth0, 198.18.77.3")


def test_a_loopback_address_is_right_where_all_ranks_are_here(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, MeetingLook(host("lo"), None, "127.0.0.1"))
    verdict = verdict_of(rank_of(0), rank_of(1), rank_of(2))
    here = replace(verdict, job=replace(verdict.job, expected=(0, 1, 2, 3)))
    assert explain_meeting(here).findings == here.findings


def test_nothing_is_looked_at_for_ranks_that_wait_elsewhere_or_are_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = looks(monkeypatch, MeetingLook(host("ib9"), SILENT, ""))
    assert not meets(rank_of(2, "all_reduce"))
    for verdict in (
        verdict_of(rank_of(2, "all_reduce")),
        verdict_of(rank_of(2), rank_of(3, "load_batch")),
        verdict_of(rank_of(2), code=kinds.GONE),
    ):
        assert explain_meeting(verdict) == verdict
    assert asked == []


def test_where_the_process_may_not_be_asked_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    looks(monkeypatch, None)
    verdict = verdict_of(rank_of(2))
    assert explain_meeting(verdict) == verdict


def test_a_process_is_asked_in_its_stead_with_its_own_variables() -> None:
    """A child of this test: it names an interface, and nobody listens where it is to meet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        program = subprocess.Popen(
            ("sleep", "60"), env={"PATH": os.environ["PATH"], "GLOO_SOCKET_IFNAME": "ib9"}
        )
        try:
            reached = look_at_meeting(program.pid, ("127.0.0.1", port), elsewhere=False)
            server.close()
            refused = look_at_meeting(program.pid, ("127.0.0.1", port), elsewhere=False)
        finally:
            program.kill()
            program.wait()
    assert reached is not None
    assert reached.reach is None  # somebody listens; nothing is said to it
    assert reached.own_address == "127.0.0.1"
    assert reached.addresses is not None
    assert [(one.interface, one.address) for one in reached.addresses.gloo] == [("ib9", None)]
    assert refused is not None
    assert refused.reach is not None
    assert refused.reach.obstacle is Obstacle.REFUSED
    assert look_at_meeting(1 << 22, ("127.0.0.1", port), elsewhere=False) is None


def test_torchrun_that_does_not_reach_its_endpoint_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = looks(monkeypatch, MeetingLook(None, SILENT, "198.18.77.3"))
    agent = AgentSeen(9, "torchrun", "c10d", "machine1:29400", "7", 2, 2, 1, 60.0, waits_at="next_rendezvous")
    told = explain_meeting(verdict_of(agent=agent))
    assert asked == [(9, ("machine1", 29400), True)]
    assert told.findings[0].code == "rendezvous.unreachable"
    connected = verdict_of(agent=replace(agent, is_connected=True))
    assert explain_meeting(connected) == connected


def test_machines_are_compared_where_their_looks_are_put_together() -> None:
    other = OwnInterface("eth1", False, ("10.9.0.3/24",))
    ranks = [rank_of(number, addresses=host("eth0", number + 1)) for number in (0, 1, 3)]
    ranks.append(rank_of(2, addresses=host("eth1", 3, other)))
    report = HangReport(Outcome.FAIL, "machine1", "", 1.0, (verdict_of(*ranks),))
    (told,) = explain_machines(report, ()).jobs
    assert (told.findings[0].code, told.findings[0].subject.host) == (
        "network.address_not_reached",
        "machine3",
    )
    assert told.findings[0].message.endswith("right is eth0, 198.18.77.3, as on the others")
    sound = [rank_of(number, addresses=host("eth0", number + 1)) for number in range(4)]
    report = HangReport(Outcome.FAIL, "machine1", "", 1.0, (verdict_of(*sound),))
    assert explain_machines(report, ()) == report


def test_what_a_machine_s_own_look_has_found_stays_where_looks_are_put_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks(monkeypatch, MeetingLook(host("eth0"), SILENT, ""))
    part = HangReport(Outcome.FAIL, "machine3", "", 1.0, (explain_meeting(verdict_of(rank_of(2))),))
    whole = HangReport(Outcome.FAIL, "machine1", "", 1.0, (verdict_of(rank_of(2)),))
    (told,) = explain_machines(whole, (part,)).jobs
    assert [one.code for one in told.findings] == ["rendezvous.unreachable", "hang.never_joined"]
