"""What a log tells of ranks whose collectives do not fit together: the odd one, or that it cannot be told."""

from gpudiag.explain.recipe import explain_text
from gpudiag.model.explanation import Verdict, VerdictKind
from tests.walking import walk

OVERFLOW = (
    "  what():  [enforce fail at /gloo/transport/tcp/pair.cc:456] op.preamble.length <= op.nbytes. 52 vs 12. "
    "Received data size doesn't match expected size. Is there a distributed collective mismatch in your code?"
)


def watchdog(rank: int, elements: int, operation: str = "ALLREDUCE", work: int = 7) -> str:
    return (
        f"[rank{rank}]:[E1121 10:00:00.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught "
        "collective operation timeout: "
        f"WorkNCCL(SeqNum={work}, OpType={operation}, NumelIn={elements}, NumelOut={elements}, "
        "Timeout(ms)=600000) ran for 600001 ms."
    )


def detail(rank: int, shape: int, other: int, other_shape: int) -> str:
    def call(size: int) -> str:
        return (
            f"CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE, TensorShape=[{size}], "
            "TensorDtypes=Float)"
        )

    return (
        f"[rank{rank}]: RuntimeError: Detected mismatch between collectives on ranks. "
        f"Rank {rank} is running collective: {call(shape)}, "
        f"but Rank {other} is running collective: {call(other_shape)}.Collectives differ in the "
        f"following aspects: \t Tensor shapes: {shape}vs {other_shape}"
    )


TELLS = "do not show which"
# The lines; the ranks that are named; whether which of them is wrong is told; and words of the answer.
JOBS = {
    "gloo ends one rank": ([f"[rank2]:{OVERFLOW}"], (), False,
        "rank 2 had room for 12 bytes, and another rank sent 52"),
    "gloo, no rank": (["terminate called after throwing an instance of 'gloo::EnforceNotMet'", OVERFLOW], (),
        False, "12 bytes"),
    "sizes of all": ([watchdog(0, 100), watchdog(1, 100), watchdog(2, 50), watchdog(3, 100)], (2,), True,
        "rank 2 gave 50 elements"),
    "sizes of two": ([watchdog(0, 100), watchdog(1, 50)], (0, 1), False, "rank 1 gave 50 elements"),
    "fingerprints of all": ([detail(0, 8, 2, 9), detail(1, 8, 2, 9), detail(2, 9, 0, 8)], (2,), True,
        "ALLREDUCE of [9]"),
    "fingerprints of two": ([detail(0, 8, 1, 9)], (0, 1), False, "ALLREDUCE of [9]"),
}  # fmt: skip


def words_of(verdict: Verdict) -> str:
    return " ".join((verdict.sentence, *verdict.evidence))


@walk(JOBS)
def test_the_odd_rank_is_named_or_it_is_said_that_it_cannot_be_told(name: str) -> None:
    lines, ranks, certain, words = JOBS[name]
    verdict = explain_text("\n".join(lines) + "\n").verdict
    assert verdict.kind is VerdictKind.RANKS_DIFFER, verdict.sentence
    assert verdict.ranks == ranks, verdict.sentence
    assert (TELLS not in verdict.sentence) is certain, verdict.sentence
    assert words in words_of(verdict)


def test_sizes_that_may_differ_are_not_compared() -> None:
    lines = [watchdog(rank, 100 + 50 * (rank == 2), "ALLTOALL") for rank in range(4)]
    assert explain_text("\n".join(lines) + "\n").verdict.kind is not VerdictKind.RANKS_DIFFER


# Last words of ranks and of what starts them: alone in a log, they are why it ends.
OWN = (
    "train.py: error: argument --lr: invalid float value: 'x'",
    "ERROR: could not open the data set /data/train.bin",
    "bash: line 3: torchrun: command not found",
    "[rank3]: fatal: the tokenizer has another vocabulary than the model",
    "2025-11-21 10:00:00,123 ERROR trainer: the loss is not finite",
    "kernels.cu:3:10: fatal error: cuda_bf16.h: No such file or directory",
    "terminate called after throwing an instance of 'std::bad_alloc'",
    "FATAL: the configuration names no optimizer",
)


@walk(OWN)
def test_last_words_of_the_job_itself_are_told(line: str) -> None:
    verdict = explain_text(f"step 1 loss 2.0\n{line}\n").verdict
    assert verdict.kind is not VerdictKind.NOTHING, line


def test_last_words_of_another_program_are_shown_and_accuse_nobody() -> None:
    verdict = explain_text("fatal: unable to access 'https://git.internal/x.git/'\n").verdict
    assert verdict.kind is VerdictKind.NOTHING
    assert "another program than a rank" in words_of(verdict)
