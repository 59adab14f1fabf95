import json
import sys
from types import SimpleNamespace

import pytest

from gpudiag.ranks.diagnosis.dump import (
    RankDump,
    dump_flight_recorder,
    parse_main_stack,
    read_flight_recorder,
)

TWO_THREADS = """Thread 0x00007f9b (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait
  File "/usr/lib/python3.11/threading.py", line 1002 in _bootstrap

Current thread 0x00007f9c (most recent call first):
  File "/opt/torch/distributed/distributed_c10d.py", line 3151 in broadcast
  File "/home/ann/train.py", line 42 in step
  File "/home/ann/train.py", line 60 in <module>
"""


def test_the_main_thread_is_the_one_that_took_the_signal() -> None:
    assert parse_main_stack(TWO_THREADS) == (
        "/opt/torch/distributed/distributed_c10d.py:3151 in broadcast",
        "/home/ann/train.py:42 in step",
        "/home/ann/train.py:60 in <module>",
    )


def test_of_two_answers_the_last_counts() -> None:
    earlier = TWO_THREADS.replace("3151", "1")
    assert parse_main_stack(earlier + TWO_THREADS)[0].endswith(":3151 in broadcast")


def test_no_answer_is_an_empty_stack() -> None:
    assert parse_main_stack("") == ()


def test_where_it_hangs_is_the_innermost_line_that_is_not_ours() -> None:
    from gpudiag.ranks.rank import worker

    dump = RankDump(1, (f"{worker.__file__}:28 in stay_out", "/home/ann/train.py:42 in step"), ())
    assert dump.stuck_at == "/home/ann/train.py:42 in step"


def entry(name: str) -> dict[str, object]:
    return {
        "profiling_name": name,
        "collective_seq_id": 7,
        "input_sizes": [[64]],
        "retired": False,
        "state": "started",
    }


def broken() -> bytes:
    raise RuntimeError("the recorder is off")


def dumping(*entries: dict[str, object]):
    return lambda: json.dumps({"version": "2.5", "entries": entries}).encode()


def dumping_by(**names: str):
    return lambda backend="gloo": dumping(*(entry(names[one]) for one in [backend] if one in names))()


@pytest.mark.parametrize(
    ("recorders", "expected"),
    [
        # torch 2.8 and later with CUDA: NCCL's own recorder beside gloo's, which is empty then.
        ({"_dump_nccl_trace_json": dumping(entry("nccl:all_reduce")), "_dump_fr_trace_json": dumping()},
            "nccl:all_reduce"),
        # the ranks' gloo group, in a build that has NCCL
        ({"_dump_nccl_trace_json": dumping(), "_dump_fr_trace_json": dumping(entry("gloo:barrier"))},
            "gloo:barrier"),
        # 2.5 to 2.7 with CUDA
        ({"_dump_nccl_trace_json": dumping(entry("nccl:broadcast"))}, "nccl:broadcast"),
        # a build for the CPU
        ({"_dump_fr_trace_json": dumping(entry("gloo:all_reduce"))}, "gloo:all_reduce"),
        # 2.15: the new backend of NCCL has a recorder of its own behind the same function
        ({"_dump_nccl_trace_json": dumping(), "_dump_fr_trace_json": dumping_by(gloo="gloo:barrier",
            nccl="nccl:all_gather")}, "nccl:all_gather"),
        ({"_dump_nccl_trace_json": dumping(), "_dump_fr_trace_json": dumping_by(gloo="gloo:barrier")},
            "gloo:barrier"),
        ({"_dump_nccl_trace_json": broken, "_dump_fr_trace_json": dumping(entry("gloo:all_reduce"))},
            "gloo:all_reduce"),
        ({}, None),
    ],
)  # fmt: skip
def test_the_recorder_that_has_entries_is_read(monkeypatch, recorders, expected) -> None:
    torch = SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=SimpleNamespace(**recorders)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    told = read_flight_recorder()
    dump = dump_flight_recorder()
    assert [line.split()[0] for line in told] == ([expected] if expected else [])
    assert (dump is not None and expected is not None and expected in str(dump)) == (expected is not None)
