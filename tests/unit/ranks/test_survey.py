"""What comes back from a port: an agent of the run, somebody else, a refusal, no route, no address."""

import socket

import pytest

from gpudiag.ranks.agents.messages import SurveyRequest, SurveyRow, decode_message, encode_message
from gpudiag.ranks.agents.path_watch import PathWatch
from gpudiag.ranks.agents.survey import Surveyor
from gpudiag.ranks.diagnosis.survey import Answer, Purpose, Target, Try, connects

HERE = "127.0.0.1"


def answer(target: Target, key: str = "run") -> Try:
    (found,) = Surveyor(key).try_all((target,))
    return found


def test_an_agent_replies_to_those_of_its_run_alone() -> None:
    watch = PathWatch("run", 0)
    try:
        target = Target(0, HERE, watch.port, Purpose.PUBLISHED)
        assert answer(target).answer is Answer.REPLIES
        assert answer(target, "another").answer is Answer.ACCEPTS
    finally:
        watch.close()


def test_a_port_where_nobody_listens_refuses_and_one_where_somebody_does_accepts() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = int(server.getsockname()[1])
        assert answer(Target(0, "localhost", port, Purpose.MASTER)).answer is Answer.ACCEPTS
    found = answer(Target(0, HERE, port, Purpose.PORT))
    assert (found.answer, found.address, found.words) == (Answer.REFUSED, "127.0.0.1", "Connection refused")


def test_a_name_without_an_address_is_told() -> None:
    found = answer(Target(0, "nowhere.invalid", 1, Purpose.MASTER))
    assert found.answer is Answer.NO_ADDRESS


def test_an_agent_listens_on_what_it_is_asked_for_and_answers_once() -> None:
    with socket.create_server((HERE, 0)) as server:
        port = int(server.getsockname()[1])
    surveyor = Surveyor("run")
    surveyor.start(SurveyRequest(3, (Target(1, HERE, port, Purpose.PORT),), (port,)))
    rows: list[SurveyRow] = []
    while not rows:
        rows = surveyor.take()
    assert rows == [SurveyRow(3, (Try(Target(1, HERE, port, Purpose.PORT), Answer.ACCEPTS, HERE),))]
    assert surveyor.take() == []


def test_requests_and_rows_travel_between_agents() -> None:
    target = Target(1, "10.0.0.1", 29500, Purpose.MASTER)
    for message in (SurveyRequest(1, (target,), (22,)), SurveyRow(1, (Try(target, Answer.SILENT, "x"),))):
        assert decode_message(encode_message(message)) == message


@pytest.mark.parametrize(
    ("one", "other", "who"),
    [
        ("198.18.77.10", "198.18.77.9", True),  # by bytes, not by letters
        ("10.9.0.4", "198.18.77.1", False),
        ("fd00::2", "fd00::1", True),
        ("fe80::2%3", "fe80::9%1", False),
    ],
)
def test_the_greater_address_connects(one: str, other: str, who: bool) -> None:
    assert connects(one, other) is who
    assert connects(other, one) is not who
