"""What is said of each suspect of a localisation: its code, its subject, and a sentence with names and
numbers.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.ranks.collective import judge_collective
from gpudiag.checks.ranks.localisation import LOCALISATION_FINDINGS
from gpudiag.model.evidence import Evidence, HostSubject, LinkSubject, RankSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.measure import (
    Exchange,
    ExchangePhase,
    FabricPart,
    IncidentKind,
    Localisation,
    Node,
    Suspect,
    Symptom,
)
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.collectives.measurements import make_incident, make_measurement
from tests.walking import walk

HOSTS = tuple(Node(f"a{number}", (2 * number, 2 * number + 1)) for number in range(1, 5))
RANKS = tuple(Node("a1", (rank,)) for rank in range(4))


def made(nodes: tuple[Node, ...], *suspects: Suspect) -> Localisation:
    return Localisation(nodes, 3, 2.5, 6, 40e9, 0.001, suspects, ())


def judged(suspect: Suspect, nodes: tuple[Node, ...] = HOSTS):
    (finding,) = judge_collective(make_measurement(localisation=made(nodes, suspect)))
    return finding


SLOW = Suspect(Symptom.SLOW, (1,), None, 9e9, 40e9, 5)
LOSSY = Suspect(Symptom.LOSSY, (1,), None, 0.21, 0.001, 5, sent_again=0.021)
HUNG = Suspect(Symptom.FAILED, (1,), None, None, None, 5, words="Timed out waiting 8000ms")
LINK, LINK_SUBJECT = {"nodes": (0, 2), "rail": 0}, LinkSubject(("a1", "a3"), "a1")


def found(*what):
    """A row of a table: what is found, and then the words that tell it."""
    return lambda words: (*what, words)


@pytest.mark.parametrize(
    ("suspect", "code", "subject", "words"),
    [
        found(SLOW, "network.node_slow", HostSubject("a2"))(
            "a2 exchanges data at 9.00 GB/s at best, where 40.0 GB/s is usual, with every partner"
        ),
        found(replace(SLOW, under_load=True), "network.node_slow", HostSubject("a2"))(
            "it shows only while all nodes exchange at once"
        ),
        found(replace(SLOW, **LINK), "network.link_slow", LINK_SUBJECT)(
            "a1 and a3 on rail 0 exchange data with each other at 9.00 GB/s at best"
        ),
        found(replace(SLOW, rail=1), "network.rail_slow", RankSubject(5, "a2"))(
            "rail 1 of a2 exchanges data at"
        ),
        found(
            replace(SLOW, nodes=(), rail=1), "network.rail_slow", LinkSubject(("rail 1", "all nodes"), "a1")
        )("rail 1 of all nodes exchanges data at"),
        found(LOSSY, "network.node_lossy", HostSubject("a2"))(
            "2.1% of what is sent between a2 and others is lost on the way; "
            "a small exchange takes up to 210 ms"
        ),
        found(replace(LOSSY, nodes=()), "network.node_lossy", LinkSubject(("each node", "all nodes"), "a1"))(
            "2.1% of what all nodes send each other is lost on the way; a small exchange takes up to 210 ms"
        ),
        found(replace(LOSSY, **LINK), "network.link_lossy", LINK_SUBJECT)(
            "2.1% of what a1 and a3 on rail 0 send each other is lost on the way"
        ),
        found(replace(LOSSY, sent_again=None), "network.node_lossy", HostSubject("a2"))(
            "a small exchange of a2 takes up to 210 ms where 1 ms is usual, as if segments were lost"
        ),
        found(HUNG, "network.exchange_hangs", HostSubject("a2"))(
            "a2 does not finish an exchange (Timed out waiting 8000ms), with every partner"
        ),
        found(replace(HUNG, **LINK), "network.exchange_hangs", LINK_SUBJECT)(
            "a1 and a3 on rail 0 do not finish an exchange with each other"
        ),
    ],
)
def test_each_suspect_is_told_by_its_names_and_numbers(suspect, code, subject, words):
    finding = judged(suspect)
    assert (finding.code, finding.subject) == (code, subject)
    assert words in finding.message
    assert finding.evidence


PARTS = {
    FabricPart.UPLINKS: found("network.uplink_slow", (), ("leaf s1",))(
        "9 of 12 exchanges that left leaf s1 reached 9.00 GB/s at best, where 40.0 GB/s is usual: "
        "its uplinks are slow"
    ),
    FabricPart.UPLINK: found("network.uplink_slow", (), ("leaf s1",))("one of its uplinks is slow"),
    FabricPart.REACH: found("network.uplink_slow", (1,), ("leaf s1",))(
        "9 of 12 exchanges of a2 that left leaf s1 reached"
    ),
    FabricPart.PATH: found("network.link_slow", (), ("leaf s1", "leaf s2"))(
        "9 of 12 exchanges between leaf s1 and leaf s2 reached"
    ),
    FabricPart.SWITCH: found("network.switch_slow", (), ("leaf s1",))(
        "9 of 12 exchanges inside leaf s1 reached"
    ),
    FabricPart.DOMAIN: found("network.nvlink_slow", (), ("d1",))(
        "9 of 12 exchanges over NVLink in domain d1 reached"
    ),
    FabricPart.NVLINK: found("network.nvlink_slow", (1,), ("d1",))("its NVLink is slow; its network is good"),
    FabricPart.ALONE: found("network.node_slow", (1,), ("leaf s1",))(
        "the node is slow, or an uplink of leaf s1, where this run has no other node"
    ),
    FabricPart.NETWORK: found("network.node_slow", (1,), ())(
        "its network, or the uplink that leads to it, is slow; its NVLink is good"
    ),
}


@walk(FabricPart)
def test_each_part_of_a_fabric_is_told_by_its_switches_and_by_how_much_was_bad(part: FabricPart):
    code, nodes, switches, words = PARTS[part]
    suspect = replace(SLOW, nodes=nodes, part=part, switches=switches, exchanges=9, measured=12)
    finding = judged(suspect)
    assert (finding.code, words in finding.message) == (code, True), finding.message
    if nodes:
        assert finding.subject == HostSubject("a2")
    else:
        assert switches[0] in finding.subject.ends
    lossy = judged(replace(suspect, symptom=Symptom.LOSSY, value=0.21, usual=0.001))
    assert (lossy.code.endswith("_lossy"), "lossy" in lossy.message) == (True, True)
    broken = judged(replace(suspect, symptom=Symptom.FAILED, value=None, words="Timed out"))
    assert (broken.code, "broken" in broken.message) == ("network.exchange_hangs", True)


def test_uplinks_that_are_weak_together_name_the_leaf_and_no_uplink():
    suspect = Suspect(
        Symptom.SLOW, (), None, 612e9, 640e9, 16, under_load=True, part=FabricPart.UPLINKS,
        switches=("leaf s1",), measured=512
    )  # fmt: skip
    finding = judged(suspect)
    assert finding.code == "network.uplink_slow"
    assert finding.message.startswith(
        "16 nodes of leaf s1 at once exchanged 612 GB/s with other leaves, "
        "where 640 GB/s is usual (4.4% less)"
    )
    assert "One or more of them are slow or down, or it has fewer" in finding.message


def test_a_rail_is_told_by_the_name_that_labels_give_it():
    finding = judged(replace(SLOW, rail=1, rail_name="mlx5_1"))
    assert finding.message.startswith("rail mlx5_1 of a2 exchanges data at")


def test_ranks_of_one_host_are_told_as_ranks():
    finding = judged(SLOW, RANKS)
    assert (finding.subject, finding.message.split(" exchanges")[0]) == (RankSubject(1, "a1"), "rank 1")
    finding = judged(replace(SLOW, **LINK), RANKS)
    assert finding.subject == LinkSubject(("rank 0", "rank 2"), "a1")
    assert "rail" not in finding.message


def test_a_hang_fails_and_what_is_slow_or_lossy_warns():
    outcomes = {kind.code: kind.outcome for kind in LOCALISATION_FINDINGS}
    assert outcomes.pop("network.exchange_hangs") is Outcome.FAIL
    assert outcomes.pop("network.not_localised") is Outcome.ERROR
    assert set(outcomes.values()) == {Outcome.WARN}


def test_one_fault_is_told_once_where_the_kernel_counted_the_loss_too():
    """The node or the link that is named says more than each way on which segments were lost."""
    lost = make_incident(
        IncidentKind.LOSSY, host="a2", evidence=(Evidence("other_side", "a4"), Evidence("sent_again", 0.02))
    )
    elsewhere = make_incident(
        IncidentKind.LOSSY, host="a1", evidence=(Evidence("other_side", "a3"), Evidence("sent_again", 0.02))
    )
    findings = judge_collective(
        make_measurement(localisation=made(HOSTS, LOSSY), incidents=(lost, elsewhere))
    )
    assert sorted(one.code for one in findings) == ["network.node_lossy", "network.path_lossy"]
    (node,) = [one for one in findings if one.code == "network.node_lossy"]
    assert [fact.value for fact in node.evidence if fact.name == "lost_on_the_way"] == ["a2 to a4"]
    assert next(one for one in findings if one.code == "network.path_lossy").subject.ends == (
        "the others",
        "a3",
    )


def test_what_should_have_been_localised_and_was_not_is_an_error():
    why = Missing(MissingReason.ERROR, "of the ranks that were to exchange data, rank 3 on a2: died")
    (finding,) = judge_collective(make_measurement(localisation=why))
    assert (finding.code, finding.outcome) == ("network.not_localised", Outcome.ERROR)
    assert "rank 3 on a2" in finding.message


def test_where_no_exchange_came_to_an_end_no_node_is_cleared():
    broke = Missing(MissingReason.TIMED_OUT, "Timed out waiting 8000ms")
    exchange = Exchange(1, ExchangePhase.SCREEN, (0, 1), 0, broke, broke, broke)
    nothing = replace(made(HOSTS), usual_bytes_per_second=broke, exchanges=(exchange,))
    (finding,) = judge_collective(make_measurement(localisation=nothing))
    assert (finding.code, finding.outcome) == ("network.not_localised", Outcome.ERROR)
    assert finding.message.endswith("between any two of 4 nodes: Timed out waiting 8000ms")


def test_what_cannot_be_localised_is_no_fault():
    few = Missing(MissingReason.NOT_SUPPORTED, "it takes 4 nodes")
    assert judge_collective(make_measurement(localisation=few)) == ()
    assert judge_collective(make_measurement(localisation=made(HOSTS))) == ()


def test_hosts_that_are_all_slow_are_told_as_such_and_ranks_of_one_machine_are_not():
    slow = replace(made(HOSTS), usual_bytes_per_second=11.9e6)
    (finding,) = judge_collective(make_measurement(localisation=slow))
    assert (finding.code, finding.outcome) == ("network.all_slow", Outcome.WARN)
    assert "all 4 hosts exchange data slowly" in finding.message
    for sound in (replace(slow, usual_bytes_per_second=110e6), replace(slow, nodes=RANKS)):
        assert judge_collective(make_measurement(localisation=sound)) == ()
