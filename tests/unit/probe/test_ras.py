"""NCCL's RAS: both forms of its answers, its protocol, and what listens there and is none."""

import json
import socket
from collections.abc import Sequence
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.job_state import RasLook, RasLooks
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.job import ras
from gpudiag.probe.job.ras import ras_address, read_ras
from gpudiag.probe.job.ras_answers import RasRefused, parse_ras_answer
from tests.unit.probe.ras_server import FakeCommunicator, FakeRank, as_json, as_text, ras_server

SOON = 20.0  # for a loaded machine; what is tested does not take it


def four(counts: Sequence[int], operation: str = "AllReduce") -> FakeCommunicator:
    return FakeCommunicator([FakeRank({operation: count}) for count in counts])


def counts_of(look: RasLook) -> dict[int, tuple[int, ...]]:
    """The ranks by how many they have launched, of the first communicator."""
    return {count.launched: count.ranks for count in look.communicators[0].counts}


@pytest.mark.parametrize(
    "version", ["2.24.3", "2.25.1", "2.26.2", "2.28.3", "2.28.7", "2.28.9", "2.29.2", "2.30.4"]
)
def test_who_is_behind_is_read_of_every_version(version: str) -> None:
    form = as_json if version >= "2.28.7" else as_text
    look = parse_ras_answer(form([four([40, 40, 39, 40])], version))
    assert counts_of(look) == {40: (0, 1, 3), 39: (2,)}
    assert look.nccl_version.startswith(version)
    assert look.is_complete == (form is as_json)
    assert look.communicators[0].identity == "cf264af53edbe986"
    assert look.communicators[0].size == 4
    place = next(one for one in look.communicators[0].ranks if one.rank == 2)
    assert (place.pid, place.host, place.cuda_device) == (4002, "10.0.0.7", 2)
    operation = {count.operation for count in look.communicators[0].counts}
    assert operation == ({"collective"} if version < "2.26" else {"AllReduce"})


@pytest.mark.parametrize("version", ["2.24.3", "2.26.2", "2.28.9", "2.29.2"])
@pytest.mark.parametrize("absence", ["dead", "unresponsive"])
def test_absent_ranks_are_read_of_every_version(version: str, absence: str) -> None:
    ranks = [FakeRank({"AllReduce": 7}) for _ in range(8)]
    ranks[5] = FakeRank(absent=absence)
    form = as_json if version >= "2.28.7" else as_text
    look = parse_ras_answer(form([FakeCommunicator(ranks)], version))
    (absent,) = look.communicators[0].absent
    assert (absent.rank, absent.unresponsive, absent.dead) == (5, True, absence == "dead")
    assert [(one.pid, one.dead) for one in look.processes] == [(4005, absence == "dead")]
    assert look.communicators[0].absent_count == 1


def test_the_comma_that_2_28_leaves_out_is_mended_and_no_other_damage() -> None:
    ranks = [FakeRank({"AllReduce": 7}), FakeRank(absent="unresponsive")]
    answer = as_json([FakeCommunicator(ranks)], "2.28.9")
    with pytest.raises(ValueError, match="Expecting ',' delimiter"):
        json.loads(answer)
    assert len(parse_ras_answer(answer).communicators) == 1
    with pytest.raises(RasRefused):
        parse_ras_answer(answer.replace(b'"size"', b'"size'))


def test_what_many_ranks_have_in_common_and_what_no_rank_launched() -> None:
    counts = [9] * 20 + [0] * 3 + [8]
    for look in (
        parse_ras_answer(as_text([four(counts)], "2.27.3")),
        parse_ras_answer(as_json([four(counts)])),
    ):
        assert counts_of(look) == {9: tuple(range(20)), 0: (20, 21, 22), 8: (23,)}
        assert {count.launched: count.size for count in look.communicators[0].counts} == {9: 20, 0: 3, 8: 1}


def test_text_that_does_not_name_two_sets_leaves_them_without_ranks() -> None:
    look = parse_ras_answer(as_text([four([5] * 4 + [6] * 4)], "2.24.3"))
    assert counts_of(look) == {5: (), 6: ()}
    assert [count.size for count in look.communicators[0].counts] == [4, 4]


def test_a_job_without_a_finding_is_a_number_of_communicators_in_text() -> None:
    look = parse_ras_answer(as_text([four([5, 5])], "2.24.3"))
    assert (look.communicators, look.communicator_count) == ((), 1)


def test_errors_and_timeouts_are_read() -> None:
    ranks = [FakeRank({"AllReduce": 7}), FakeRank({"AllReduce": 7}, async_error=2)]
    for form, version in ((as_text, "2.26.2"), (as_json, "2.29.2")):
        (error,) = parse_ras_answer(form([FakeCommunicator(ranks)], version)).communicators[0].errors
        assert (error.word, error.ranks) == ("System error", (1,))
    assert parse_ras_answer(as_json([four([1])], timeouts=256)).timeouts == 256


@pytest.mark.parametrize(("speaks_json", "version"), [(True, "2.29.2"), (True, "2.28.9"), (False, "2.24.3")])
def test_two_looks_over_the_protocol(speaks_json: bool, version: str) -> None:
    def answer(number: int, wants_json: bool) -> bytes:
        assert wants_json == speaks_json
        form = as_json if wants_json else as_text
        return form([four([40 + number, 40 + number, 39, 40 + number])], version)

    with ras_server(answer, speaks_json=speaks_json) as address:
        looks = read_ras(address, apart_seconds=0.0, deadline_seconds=SOON)
    assert isinstance(looks, RasLooks)
    assert looks.address == address
    assert [max(counts_of(look)) for look in looks.looks] == [40, 41]


def test_another_job_that_answers_on_the_shared_port_is_asked_again() -> None:
    def answer(number: int, _: bool) -> bytes:
        pid = 77 if number in (1, 4) else 88
        return as_json([FakeCommunicator([FakeRank({"AllReduce": number}, pid=pid)])])

    with ras_server(answer) as address:
        looks = read_ras(address, pids=frozenset((77,)), apart_seconds=0.0, deadline_seconds=SOON)
        nobody = read_ras(address, pids=frozenset((99,)), apart_seconds=0.0, deadline_seconds=SOON)
    assert isinstance(looks, RasLooks)
    assert [max(counts_of(look)) for look in looks.looks] == [1, 4]
    assert isinstance(nobody, Missing)
    assert "another job" in nobody.detail


def test_a_text_names_a_few_processes_of_any_machine_and_is_taken() -> None:
    with ras_server(lambda *_: as_text([four([7, 7, 6, 7])], "2.24.3"), speaks_json=False) as address:
        looks = read_ras(address, pids=frozenset((77,)), apart_seconds=0.0, deadline_seconds=SOON)
    assert isinstance(looks, RasLooks)


def test_a_text_that_names_only_processes_of_others_is_of_another_job_where_all_of_this_one_are_known() -> (
    None
):
    with ras_server(lambda *_: as_text([four([7, 7, 6, 7])], "2.24.3"), speaks_json=False) as address:
        foreign = read_ras(
            address, pids=frozenset((77,)), is_whole=True, apart_seconds=0.0, deadline_seconds=SOON
        )
        own = read_ras(
            address, pids=frozenset((4002, 77)), is_whole=True, apart_seconds=0.0, deadline_seconds=SOON
        )
    assert isinstance(foreign, Missing)
    assert foreign.reason is MissingReason.SOURCE_ABSENT
    assert isinstance(own, RasLooks)


def test_the_answer_of_the_right_job_is_found_among_many_listeners_of_one_port() -> None:
    """The kernel gives a connection to any listener: here nine of ten are of other jobs."""
    foreign = FakeCommunicator([FakeRank({"AllReduce": 5}, pid=9000 + place) for place in range(2)])

    def answer(number: int, _: bool) -> bytes:
        return as_json([four([5, 5, 5, 5]) if number % 10 == 9 else foreign])

    with ras_server(answer) as address:
        looks = read_ras(address, pids=frozenset((4002,)), apart_seconds=0.0, deadline_seconds=30.0)
    assert isinstance(looks, RasLooks)
    assert len(looks.looks) == 2


def test_a_second_answer_that_fails_leaves_the_first() -> None:
    with ras_server(lambda number, _: b"" if number else as_json([four([1])])) as address:
        looks = read_ras(address, apart_seconds=0.0, deadline_seconds=SOON)
    assert isinstance(looks, RasLooks)
    assert len(looks.looks) == 1


HOSTILE: dict[str, tuple[bytes | None, bytes]] = {
    "a web server": (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
    "binary": (b"\0\1\2\3\n", b""),
    "no answer": (None, b""),
    "cut off": (None, as_json([four([1, 2])])[:300]),
    "text cut off": (None, b"NCCL version 2.24.3 compiled\nJob summary\n"),
    "something else": (None, b"hello\nworld\n"),
    "deep": (None, b"{" + b'"a":{' * 100_000),
    "wrong types": (None, b'{"communicators": 5}'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_ras_is_one_sentence(name: str) -> None:
    greeting, body = HOSTILE[name]
    with ras_server(lambda *_: body, greeting=greeting) as address:
        looks = read_ras(address, apart_seconds=0.0, deadline_seconds=SOON)
    assert isinstance(looks, Missing)
    assert address in looks.detail
    assert len(looks.detail) < 200


def test_a_silent_socket_and_one_that_talks_without_end_are_left_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        looks = read_ras(f"127.0.0.1:{silent.getsockname()[1]}", deadline_seconds=0.3)
    assert isinstance(looks, Missing)
    assert looks.reason is MissingReason.TIMED_OUT
    monkeypatch.setattr(ras, "MAX_ANSWER_BYTES", 1 << 16)
    with ras_server(lambda *_: b"x" * (1 << 20)) as address:
        looks = read_ras(address, deadline_seconds=SOON)
    assert isinstance(looks, Missing)
    assert "longer than" in looks.detail


def test_a_server_that_never_ends_its_line_is_left() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(b"a" * 5000)
                connection.recv(1)

        thread = Thread(target=serve, daemon=True)
        thread.start()
        looks = read_ras(f"127.0.0.1:{listener.getsockname()[1]}", deadline_seconds=SOON)
        thread.join(SOON)
    assert isinstance(looks, Missing)
    assert "no RAS" in looks.detail


@pytest.mark.parametrize("address", ["", "host", "host:", ":5", "127.0.0.1:99999", "127.0.0.1:x", "[::1]:5x"])
def test_an_address_that_is_none_is_a_sentence(address: str) -> None:
    looks = read_ras(address, deadline_seconds=SOON)
    assert isinstance(looks, Missing)
    assert "host:port" in looks.detail


def test_the_address_is_the_ranks_own() -> None:
    assert ras_address({}) == "localhost:28028"
    assert ras_address({"NCCL_RAS_ADDR": "[::1]:4000"}) == "[::1]:4000"
    assert ras_address({"NCCL_RAS_ENABLE": "0", "NCCL_RAS_ADDR": "[::1]:4000"}) is None


def test_nobody_listening_is_told_as_absent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    looks = read_ras(f"127.0.0.1:{port}", deadline_seconds=SOON)
    assert isinstance(looks, Missing)
    assert looks.reason is MissingReason.SOURCE_ABSENT


ANSWERS = (
    as_json([four([3, 3, 2])]),
    as_json([FakeCommunicator([FakeRank(absent="dead"), FakeRank({"Reduce": 2})])], "2.28.9"),
    as_text([four([3, 3, 2])], "2.24.3"),
    as_text([FakeCommunicator([FakeRank(absent="dead"), *[FakeRank({"Reduce": 2})] * 7])], "2.27.3"),
)


@given(st.data())
def test_an_answer_with_bytes_changed_or_lines_mixed_never_crashes(data: st.DataObject) -> None:
    answer = bytearray(data.draw(st.sampled_from(ANSWERS)))
    for _ in range(data.draw(st.integers(0, 6))):
        answer[data.draw(st.integers(0, len(answer) - 1))] = data.draw(st.integers(0, 255))
    lines = bytes(answer).split(b"\n")
    if data.draw(st.booleans()):
        lines = data.draw(st.permutations(lines))
    some = b"\n".join(lines)[: data.draw(st.integers(0, len(answer)))]
    try:
        look = parse_ras_answer(some)
    except RasRefused:
        return
    assert isinstance(look, RasLook)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    "communicators ranks missing_ranks status rank collective_counts AllReduce hash "
                    "size pid ras".split()
                ),
                inner,
                max_size=5,
            )
        ),
        max_leaves=20,
    )
)
def test_json_of_any_shape_is_read_or_refused(value: object) -> None:
    try:
        look = parse_ras_answer(json.dumps({"communicators": [value], "ras": value}).encode())
    except RasRefused:
        return
    assert isinstance(look, RasLook)
