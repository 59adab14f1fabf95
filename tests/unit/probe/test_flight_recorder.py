"""Dumps of torch's flight recorder: real ones of gloo (torch 2.13), the shapes of older versions, and hostile
ones.
"""

import json
import os
import pickle
import pickletools
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.model.job_state import CallState, FlightRecord
from gpudiag.model.reading import Missing
from gpudiag.probe.job import flight_recorder, plain_pickle
from gpudiag.probe.job.flight_recorder import (
    DumpRefused,
    looks_like_dump,
    parse_dump,
    rank_in_name,
    read_dump,
)
from gpudiag.probe.job.plain_pickle import PickleRefused, load_plain_pickle

RECORDS = Path(__file__).parent / "flight_records"


def nccl_entry(version: str, **more: Any) -> dict[str, Any]:
    """One entry as NCCL's recorder of that format wrote it, by the keys in torch's sources."""
    entry: dict[str, Any] = {
        "record_id": 41,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": 41,
        "p2p_seq_id": 0,
        "op_id": 41,
        "profiling_name": "nccl:all_reduce",
        "time_created_ns": 1_795_564_968_125_130_654,
        "input_sizes": [[1024, 4]],
        "input_dtypes": ["Float"],
        "output_sizes": [[1024, 4]],
        "output_dtypes": ["Float"],
        "state": "started",
        "time_discovered_started_ns": 1_795_564_969_000_000_000,
        "time_discovered_completed_ns": None,
        "retired": False,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/opt/torch/distributed/distributed_c10d.py", "line": 2501},
            {"name": "step", "filename": "/jobs/me/train.py", "line": 10},
        ],
    }
    if version.startswith("1."):  # torch 2.3: one number for all calls
        for key in ("collective_seq_id", "p2p_seq_id", "timeout_ms", "is_p2p"):
            del entry[key]
        entry |= {"seq_id": 41, "process_group": "default_pg"}
    return entry | more


def nccl_dump(version: str, *entries: dict[str, Any]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "version": version,
        "entries": list(entries),
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}},
    }
    minor = tuple(int(part) for part in version.split("."))
    if minor >= (2, 3):
        progress = {
            "last_enqueued_collective": 41,
            "last_started_collective": 41,
            "last_completed_collective": 40,
        }
        document["pg_status"] = {"0": progress}
    if minor >= (2, 10):
        document["comm_lib_version"] = "2.27.5"
    elif minor >= (2, 7):
        document["nccl_version"] = "2.21.5"
    return document


@pytest.mark.parametrize("version", ["1.5", "2.0", "2.2", "2.4", "2.7", "2.10"])
@pytest.mark.parametrize("form", ["pickle 2", "pickle 4", "json"])
def test_every_version_of_the_format_is_read_alike(version: str, form: str) -> None:
    document = nccl_dump(version, nccl_entry(version))
    data = json.dumps(document).encode() if form == "json" else pickle.dumps(document, int(form[-1]))
    record = parse_dump(data, source="nccl_trace_rank_3", rank=3)
    (call,) = record.calls
    assert (record.rank, record.version, record.left_out) == (3, version, 0)
    assert (call.backend, call.operation, call.sequence, call.state) == (
        "nccl",
        "all_reduce",
        41,
        CallState.STARTED,
    )
    assert call.group == ("default_pg" if version == "1.5" else "0")
    assert (call.input_sizes, call.input_dtypes) == (((1024, 4),), ("Float",))
    assert call.frames[1].place == "train.py:10"
    assert call.is_pending
    assert record.groups[0].ranks == (0, 1, 2, 3)
    assert bool(record.progress) == (version in ("2.4", "2.7", "2.10"))
    assert record.library_version == {"2.7": "2.21.5", "2.10": "2.27.5"}.get(version, "")


def test_a_time_that_has_not_come_is_missing_and_json_writes_zero_for_it() -> None:
    entry = nccl_entry(
        "2.10", time_discovered_started_ns=0, time_discovered_completed_ns=0, state="scheduled"
    )
    (call,) = parse_dump(json.dumps(nccl_dump("2.10", entry)).encode(), source="x").calls
    assert isinstance(call.started_at, Missing)
    assert isinstance(call.completed_at, Missing)
    assert call.created_at == pytest.approx(1_795_564_968.125)


@pytest.mark.parametrize(
    ("name", "ends"), [("nccl:send 1->2", (1, 2)), ("nccl:recv 3<-0", (0, 3)), ("gloo:recv 0<-1", (1, 0))]
)
def test_a_send_or_receive_names_both_ends(name: str, ends: tuple[int, int]) -> None:
    entry = nccl_entry("2.4", profiling_name=name, is_p2p=True, p2p_seq_id=7)
    (call,) = parse_dump(pickle.dumps(nccl_dump("2.4", entry), 2), source="x").calls
    assert (call.source, call.destination) == ends
    assert (call.sequence, call.is_point_to_point, call.operation in ("send", "recv")) == (7, True, True)


def test_real_dumps_of_gloo_are_read_as_pickle_and_as_json() -> None:
    by_pickle = read_dump(RECORDS / "other" / "comm_lib_trace_rank_2")
    by_json = read_dump(RECORDS / "skip" / "comm_lib_trace_rank_0")
    assert (by_pickle.rank, by_json.rank) == (2, 0)
    assert [(call.operation, call.sequence) for call in by_pickle.pending] == [("broadcast", 4)]
    assert by_pickle.pending[0].frames[-1].place == "job.py:24"
    assert [(call.operation, call.sequence) for call in by_json.pending] == [("all_reduce", 4)]
    assert len(by_json.calls) == 7  # gloo says scheduled of all; the others have been let go
    assert all(looks_like_dump(path.read_bytes()[:4096]) for path in RECORDS.glob("*/comm_lib_trace_rank_*"))


def test_the_plain_reader_reads_what_pickle_reads() -> None:
    for path in RECORDS.glob("other/*"):
        assert load_plain_pickle(path.read_bytes()) == pickle.loads(path.read_bytes())


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_12", 12), ("rank3.json", 3), ("trace_0.pkl", 0), ("error.json", None), ("core", None)],
)
def test_the_rank_is_the_number_that_the_name_ends_in(name: str, rank: int | None) -> None:
    assert rank_in_name(name) == rank


class Runs:
    """What a hostile pickle holds: loading it with pickle would write a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(protocol: int, tmp_path: Path) -> None:
    data = pickle.dumps({"entries": [Runs(tmp_path / "ran")], "version": "2.4"}, protocol)
    with pytest.raises(DumpRefused) as refused:
        parse_dump(data, source="rank_0")
    assert not (tmp_path / "ran").exists()
    assert "\n" not in str(refused.value)
    if protocol >= 2:
        assert "nothing of it was run" in str(refused.value)


def opcode(code: str) -> bytes:
    return next(one.code for one in pickletools.opcodes if one.name == code).encode("latin-1")


HOSTILE = {
    "empty": b"",
    "text": b"hello",
    "cut off": pickle.dumps({"entries": [1, 2, 3] * 100}, 2)[:200],
    "no stop": b"\x80\x02}",
    "no dict": pickle.dumps([1, 2], 2),
    "another dict": pickle.dumps({"weights": 1}, 2),
    "entries are a number": pickle.dumps({"entries": 5}, 2),
    "a persistent id": b"\x80\x02" + opcode("BINUNICODE") + b"\x01\0\0\0a" + opcode("BINPERSID") + b".",
    "an extension": b"\x80\x02" + opcode("EXT1") + b"\x01.",
    "an object is built": b"\x80\x02}}" + opcode("BUILD") + b".",
    "a marked call": b"\x80\x02(cos\nsystem\no.",
    "a place in the memo without end": b"\x80\x02}r\xff\xff\xff\xff" * 3 + b".",
    "a memo that is not there": b"\x80\x02h\x07.",
    "a text longer than the file": b"\x80\x02X\xff\xff\xff\x7fabc.",
    "an endless number": b"\x80\x02\x8a\xff" + b"\xff" * 255 + b".",
    "a list as a key": b"\x80\x02}(]K\x01u.",
    "an odd number of items": b"\x80\x02}(K\x01u.",
    "appended to a number": b"\x80\x02K\x01K\x02a.",
    "no mark": b"\x80\x02e.",
    "json cut off": b'{"entries": [{"record_id": 1,',
    "json nested deep": b'{"entries": ' + b"[" * 200_000,
    "json with an endless number": b'{"entries": [{"record_id": ' + b"9" * 10_000 + b"}]}",
    "json no object": b"[1, 2]",
    "json with a wrong byte": b'{"entries": "\xff\xfe"}',
}


@pytest.mark.parametrize("name", [name for name in HOSTILE if name != "a place in the memo without end"])
def test_what_is_no_dump_is_refused_in_one_sentence(name: str) -> None:
    with pytest.raises(DumpRefused) as refused:
        parse_dump(HOSTILE[name], source="trace_rank_0")
    said = str(refused.value)
    assert said.startswith("trace_rank_0 ")
    assert said.endswith(".")
    assert "\n" not in said
    assert len(said) < 250


def test_a_text_that_is_no_utf_8_costs_its_odd_bytes_and_not_the_dump():
    """torch writes the path of a source file as the bytes that it has."""
    assert load_plain_pickle(b"\x80\x02]X\x04\x00\x00\x00/J\xf6ga.") == ["/J\ufffdg"]


def test_a_far_place_in_the_memo_takes_no_memory() -> None:
    assert load_plain_pickle(b"\x80\x02}r\xff\xff\xff\x7f.") == {}


def test_a_pickle_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 100)
    with pytest.raises(PickleRefused, match="steps"):
        load_plain_pickle(b"\x80\x02" + b"}" * 200 + b".")
    monkeypatch.setattr(plain_pickle, "MAX_BYTES", 10)
    with pytest.raises(PickleRefused, match="larger"):
        load_plain_pickle(b"\x80\x02" + b"}" * 200 + b".")
    monkeypatch.setattr(flight_recorder, "MAX_BYTES", 10)
    with pytest.raises(DumpRefused, match="larger"):
        parse_dump(b"\x80\x02" + b"}" * 200 + b".", source="x")


def test_a_list_that_holds_itself_is_read_without_end_of_its_own() -> None:
    data = b"\x80\x02}X\x07\0\0\0entriesq\x01]q\x02h\x02as."
    record = parse_dump(data, source="x")
    assert (record.calls, record.left_out) == ((), 1)


def test_more_calls_than_are_read_leave_the_newest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MAX_CALLS", 2)
    document = nccl_dump("2.4", *(nccl_entry("2.4", record_id=number) for number in range(5)))
    record = parse_dump(pickle.dumps(document, 2), source="x")
    assert ([call.record_id for call in record.calls], record.left_out) == ([3, 4], 3)


def test_a_file_that_cannot_be_read_is_a_sentence(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(DumpRefused, match="could not be read"):
            read_dump(path)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from([*sorted(nccl_entry("2.4")), "seq_id", "pg_name"])


@given(
    entries=st.lists(st.dictionaries(KEYS, ANYTHING, max_size=20) | ANYTHING, max_size=5) | ANYTHING,
    config=ANYTHING,
    status=ANYTHING,
    as_json=st.booleans(),
)
def test_values_of_any_type_are_read_or_left_out(
    entries: Any, config: Any, status: Any, as_json: bool
) -> None:
    document = {"entries": entries, "version": "2.4", "pg_config": config, "pg_status": status}
    data = json.dumps(document).encode() if as_json else pickle.dumps(document, 2)
    try:
        record = parse_dump(data, source="x")
    except DumpRefused:
        assert not isinstance(entries, list) or not as_json
        return
    assert isinstance(record, FlightRecord)
    assert len(record.calls) + record.left_out == len(entries)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x80\x02", b"\x80\x02}", b"{", b'{"entries":[']))
def test_bytes_of_any_kind_are_refused_or_read(tail: bytes, head: bytes) -> None:
    with suppress(DumpRefused):
        assert isinstance(parse_dump(head + tail, source="x"), FlightRecord)


@given(st.data())
def test_a_real_dump_with_bytes_changed_never_crashes(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["other/comm_lib_trace_rank_2", "skip/comm_lib_trace_rank_0"]))
    whole = bytearray((RECORDS / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 6))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for some in (bytes(whole), bytes(whole[:cut])):
        with suppress(DumpRefused):
            assert isinstance(parse_dump(some, source="x"), FlightRecord)
