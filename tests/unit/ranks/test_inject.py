import pytest

from gpudiag.errors import UsageError
from gpudiag.ranks.inject import FaultKind, MismatchKind, parse_fault


def test_a_fault_at_an_iteration() -> None:
    fault = parse_fault("kill:2@5", 4)
    assert (fault.kind, fault.rank, fault.iteration, fault.stage) == (FaultKind.KILL, 2, 5, None)
    assert fault.specification == "kill:2@5"


def test_a_fault_in_a_stage() -> None:
    fault = parse_fault("stop:1@init", 4)
    assert (fault.kind, fault.iteration, fault.stage) == (FaultKind.STOP, None, "init")


def test_a_slow_rank_has_a_delay_in_milliseconds() -> None:
    fault = parse_fault("slow:3:20", 4)
    assert (fault.rank, fault.delay_seconds) == (3, 0.02)


def test_a_slow_pair_needs_a_run_in_which_pairs_exchange_data() -> None:
    fault = parse_fault("slow:2-5:20", 8, of_pairs=True)
    assert (fault.rank, fault.other_rank, fault.delay_seconds) == (2, 5, 0.02)
    with pytest.raises(UsageError, match="no pair of ranks exchanges data"):
        parse_fault("slow:2-5:20", 8)
    with pytest.raises(UsageError, match="there is no rank 9"):
        parse_fault("slow:2-9:20", 8, of_pairs=True)
    with pytest.raises(UsageError, match="only slow takes two ranks"):
        parse_fault("kill:2-5@3", 8, of_pairs=True)


def test_a_bit_is_flipped_in_the_first_timed_iteration_of_measure() -> None:
    assert parse_fault("bitflip:0@measure", 2).iteration == 0


def test_a_mismatch_is_of_size_unless_it_is_said_of_what() -> None:
    assert parse_fault("mismatch:1@3", 4).mismatch is MismatchKind.SIZE
    assert parse_fault("mismatch:1@warmup:op", 4).mismatch is MismatchKind.OP


@pytest.mark.parametrize("kind", ["skip", "oom"])
def test_skip_and_oom_have_a_moment(kind: str) -> None:
    assert parse_fault(f"{kind}:1@verify", 4).stage == "verify"
    assert parse_fault(f"{kind}:1@0", 4).iteration == 0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mismatch:1@3:colour",
        "mismatch:1@import",
        "skip:1@3:op",
        "kill",
        "kill:2",
        "kill:x@5",
        "kill:4@5",
        "kill:1@nowhere",
        "explode:1@5",
        "kill:1@5:3",
        "slow:1",
        "slow:1:0",
        "slow:1:fast",
        "slow:1@5:20",
        "bitflip:1@init",
        "KILL:1@5",
        "kill:-1@5",
    ],
)
def test_anything_else_is_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_fault(text, 4)
    assert error.value.message.startswith(f"--inject {text}: ")
    assert error.value.hint
