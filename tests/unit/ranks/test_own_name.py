"""Hosts whose own name keeps gloo's ranks apart: told only where that is what the ranks wait for."""

from dataclasses import replace

import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.ranks.diagnosis.own_name import find_misnamed
from gpudiag.ranks.diagnosis.view import Life, RankView

VIEWS = tuple(RankView(rank=rank, local_rank=0, host=f"a{rank + 1}", life=Life.ALIVE) for rank in range(4))
REFUSED = Incident(
    IncidentKind.RAISED,
    0,
    "a1",
    "init",
    3.0,
    (Evidence("message", "Gloo connectFullMesh failed: 127.0.1.1", source="exception"),),
)
SOUND = {rank: f"10.0.0.{rank + 1}" for rank in range(4)}


def told(own_names: dict[int, str], waiting: Incident = REFUSED) -> list[tuple[str, object]]:
    found = find_misnamed((waiting,), VIEWS, own_names)
    return [(one.host, one.evidence[1].value) for one in found]


@pytest.mark.parametrize("address", ["127.0.1.1", "127.0.0.1", "::1"])
def test_a_loopback_address_is_told_of_its_own_host(address: str) -> None:
    assert told(SOUND | {2: address}) == [("a3", address)]


def test_a_name_without_an_address_is_told_too() -> None:
    assert told(SOUND | {1: ""}) == [("a2", "none")]


def test_every_host_that_has_it_is_told_once() -> None:
    views = (*VIEWS[:3], replace(VIEWS[3], host="a3"))
    found = find_misnamed((REFUSED,), views, SOUND | {0: "127.0.1.1", 2: "127.0.1.1", 3: "127.0.1.1"})
    assert [one.host for one in found] == ["a1", "a3"]


def test_sound_names_names_that_gloo_does_not_look_up_and_gpus_are_not_told() -> None:
    assert told(SOUND) == []
    assert told({}) == []
    on_gpus = tuple(replace(view, has_gpu=True) for view in VIEWS)
    assert find_misnamed((REFUSED,), on_gpus, SOUND | {2: "127.0.1.1"}) == ()


def test_ranks_that_have_met_have_another_fault() -> None:
    assert told(SOUND | {2: "127.0.1.1"}, replace(REFUSED, stage="measure")) == []
    assert find_misnamed((), VIEWS, SOUND | {2: "127.0.1.1"}) == ()
