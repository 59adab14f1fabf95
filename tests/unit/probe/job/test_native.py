"""C functions in py-spy's JSON, as it read them of jobs on an H100 and an H200."""

import json

from gpudiag.model.reading import Missing
from gpudiag.probe.job.py_spy import parse_native
from gpudiag.reference.waits import find_native_wait
from tests.recorded_hangs import ON_GPUS, facts_of
from tests.walking import walk

NAMES = sorted(path.name.removesuffix(".facts.json.gz") for path in ON_GPUS.glob("*.facts.json.gz"))
# What each rank waited for: `-` is no wait of the driver's or of NCCL's.
WAITED = {
    "fifo": "gpu -", "jax_hang": "gpu", "lit_callback": "gpu -", "loader": "gpu -", "order": "ranks ranks",
    "pyloop": "gpu -", "slow": "gpu -", "stop": "gpu ?",
}  # fmt: skip


@walk(NAMES, lambda name: name)
def test_each_rank_is_in_the_wait_that_it_was_in(name: str) -> None:
    told = []
    for rank in facts_of(name)["ranks"]:
        native = parse_native(rank["py_spy_native_json"]["out"], rank["pid"])
        if isinstance(native, Missing):  # of a stopped rank, which could not be stopped again
            told.append("?")
            continue
        wait = find_native_wait(native)
        told.append("-" if wait is None else wait.awaited)
    assert " ".join(told) == WAITED.get(name, "gpu gpu")


def frame(name: str, module: str | None) -> dict[str, object]:
    return {"name": name, "module": module, "filename": "x", "short_filename": "x", "line": 0}


def test_a_frame_of_an_unknown_library_does_not_hide_those_below_it() -> None:
    frames = [
        frame("clock_gettime", "/lib/libc.so.6"),
        frame("0x1", None),
        frame("cuStreamSynchronize", "/lib/libcuda.so.1"),
        frame("main", None),
        frame("__libc_start_main", "/lib/libc.so.6"),
    ]
    text = json.dumps([{"os_thread_id": 7, "frames": frames}])
    assert parse_native(text, 7) == ("clock_gettime (libc.so.6)", "cuStreamSynchronize (libcuda.so.1)")


def test_a_thread_in_pythons_own_loop_has_that_as_its_function() -> None:
    text = json.dumps([{"os_thread_id": 7, "frames": [frame("main", None)]}])
    assert parse_native(text, 7) == ("_PyEval_EvalFrameDefault",)


def test_an_answer_without_the_thread_is_no_stack() -> None:
    assert isinstance(parse_native("[]", 7), Missing)
    assert isinstance(parse_native("no JSON", 7), Missing)
