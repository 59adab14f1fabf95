"""Jobs that wait in a collective of a compiled function, also where inductor calls it from C++, and changed."""

from dataclasses import replace

from gpudiag.checks.job.verdict import judge_job
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Frame, Job, ProcessLook
from gpudiag.reference.stacks import read_call, runs_compiled, runs_operation
from tests.recorded_hangs import recorded

INDUCTOR = "/opt/venv/lib/python3.11/site-packages/torch/_inductor"
WRITTEN = "/tmp/torchinductor_ann/ab/cabc.py"
ASKS_COMPILER = Frame(f"{INDUCTOR}/compile_fx.py", "compile_fx", 9)


def test_a_collective_of_c_is_the_compiled_function_s_and_no_compiler_s() -> None:
    verdict = judge_job(recorded("compiled_cpp"))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.findings[0].code == "hang.sleep"
    assert "rank 1 is not in the collective of a compiled function (comp.py:11 in norm)" in verdict.headline
    assert "that rank 0 waits in" in verdict.headline
    assert {place.kind for place in verdict.places} == {"ranks", "sleep"}


def test_a_compiled_function_of_c_that_runs_computes() -> None:
    job = recorded("compiled_cpp")

    def computes(look: ProcessLook, number: int) -> ProcessLook:
        threads = (
            replace(
                one,
                state="R",
                syscall="",
                awaited=None,
                cpu_seconds=one.cpu_seconds + number,
                mark=str(number),
            )
            if one.tid == look.pid
            else one
            for one in look.threads
        )
        return replace(look, threads=tuple(threads))

    def changed(job: Job) -> Job:
        ranks = (
            replace(rank, looks=tuple(computes(look, n) for n, look in enumerate(rank.looks)))
            if rank.rank == 0
            else rank
            for rank in job.ranks
        )
        return replace(job, ranks=tuple(ranks))

    verdict = judge_job(changed(job))
    assert [place.words for place in verdict.places if 0 in place.ranks] == ["computes"]


def test_what_runs_is_told_from_what_is_compiled() -> None:
    for frames, runs, calls in (
        ((Frame(WRITTEN, "call", 1), ASKS_COMPILER), True, True),
        ((Frame("/x/site-packages/torch/_ops.py", "__call__", 1), Frame(WRITTEN, "call", 1)), True, True),
        ((Frame(f"{INDUCTOR}/output_code.py", "CompiledFxGraph.__call__", 1),), True, True),
        ((Frame(f"{INDUCTOR}/package/package.py", "AOTICompiledModel.__call__", 1),), True, True),
        # A module that was written is imported: its kernels are compiled now.
        ((Frame(f"{INDUCTOR}/async_compile.py", "wait", 1), Frame(WRITTEN, "<module>", 1)), False, False),
        ((Frame(WRITTEN, "<module>", 1), ASKS_COMPILER), False, False),
        # A kernel is tuned at its first call.
        (
            (Frame(f"{INDUCTOR}/runtime/triton_heuristics.py", "run", 1), Frame(WRITTEN, "call", 1)),
            False,
            False,
        ),
        ((ASKS_COMPILER,), False, False),
        ((), False, False),
    ):
        assert (runs_compiled(frames), runs_operation(frames)) == (runs, calls), frames
    assert read_call((Frame(f"{INDUCTOR}/output_code.py", "CompiledFxGraph.__call__", 1),)).awaited == ""


def test_a_compiled_function_that_computes_is_in_no_collective() -> None:
    """Its operation runs in the main thread, or in others of the process."""
    job = recorded("compiled_branch")

    def computes(look: ProcessLook, number: int, name: str, state: str) -> ProcessLook:
        threads = (
            replace(
                one,
                state=state,
                syscall="" if state == "R" else one.syscall,
                cpu_seconds=one.cpu_seconds + number,
            )
            if one.name == name
            else one
            for one in look.threads
        )
        return replace(look, threads=tuple(threads))

    for name, state in (("MainThread", "R"), ("pt_autograd_0", "S"), ("tqdm_monitor", "S")):
        ranks = tuple(
            replace(rank, looks=tuple(computes(look, n, name, state) for n, look in enumerate(rank.looks)))
            if rank.rank != 1
            else rank
            for rank in job.ranks
        )
        if any(one.name == name for one in job.ranks[0].last.threads):
            verdict = judge_job(replace(job, ranks=ranks))
            assert verdict.outcome is not Outcome.FAIL, (name, verdict.headline)
