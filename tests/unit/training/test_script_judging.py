"""Ranks of a user's script that hang or end badly: the right one named, at the user's own line, with fitting
advice.
"""

from dataclasses import replace

import pytest

from gpudiag.checks.training.exceptions import advise
from gpudiag.checks.training.script import judge_script
from gpudiag.checks.training.script_hang import ScriptLimits, describe_wait, judge_hang
from gpudiag.checks.training.script_positions import positions_by_reports
from gpudiag.model.evidence import Evidence, HostSubject, RanksSubject, RankSubject
from gpudiag.model.job import Awaited
from gpudiag.model.measure import Incident, IncidentKind
from gpudiag.model.script import OwnLook, ScriptError
from gpudiag.model.training import ScriptResult
from tests.own_looks import ALL_REDUCE, IN_BACKWARD, NEXT_BATCH, own_look, own_record

BARRIER = own_look("train.py:5 in step", ALL_REDUCE, batches=8, steps=8)
BACKWARD = own_look("train.py:9 in step", IN_BACKWARD, batches=9, steps=9)
EVALUATES = own_look("train.py:40 in evaluate")
WORKS = own_look("prepare.py:12 in unpack", work="its child tar (pid 12) uses the processor")
HOSTS = {0: "a1", 1: "a1", 2: "a1", 3: "a1"}
LIMITS = ScriptLimits(60.0, 1800.0)


def hang(*still: OwnLook, working: dict[int, OwnLook] | None = None, finished: tuple[int, ...] = ()):
    left = [rank for rank in range(4) if rank not in (working or {}) and rank not in finished]
    pids = {rank: 700 + rank for rank in finished}
    return judge_hang(dict(zip(left, still, strict=False)), working or {}, pids, HOSTS, LIMITS)


def test_of_two_ranks_the_one_that_waits_for_no_other_is_to_blame():
    finding = hang(BARRIER, EVALUATES)
    assert finding.subject == RankSubject(1, "a1")
    assert hang(EVALUATES, BARRIER).subject == RankSubject(0, "a1")


def test_many_that_left_are_odd_where_one_waits_for_them():
    finding = hang(BARRIER, EVALUATES, EVALUATES, EVALUATES)
    assert finding.subject == RanksSubject((1, 2, 3), "a1")
    assert finding.message.startswith(
        "ranks 1-3 are not in the all_reduce (train.py:5 in step) that rank 0 waits in"
    )
    assert "they stand still at train.py:40 in evaluate" in finding.message


def test_two_that_are_both_outside_of_collectives_are_both_named():
    finding = hang(own_look("train.py:9 in load"), EVALUATES)
    assert finding.subject == RanksSubject((0, 1), "a1")
    assert "rank 0 stands still at train.py:9 in load" in finding.message
    assert "rank 1 stands still at train.py:40 in evaluate" in finding.message


def test_where_all_wait_in_one_call_nobody_is_blamed():
    finding = hang(BARRIER, BARRIER, BARRIER, BARRIER)
    assert finding.subject == HostSubject("a1")
    assert finding.message.startswith("all 4 ranks are in the all_reduce (train.py:5 in step)")
    assert (
        "too short"
        not in judge_hang(dict.fromkeys(range(4), BARRIER), {}, {}, HOSTS, ScriptLimits(1.0, 30.0)).message
    )


def test_ranks_that_wait_for_a_gpu_are_no_other_than_those_in_a_collective():
    gpu = own_look("train.py:7 in step", text="loss.item()", uses_gpu=True)
    finding = hang(gpu, gpu, gpu, EVALUATES)
    assert finding.subject == RankSubject(3, "a1")
    assert "ranks 0-2 wait for their GPUs at train.py:7 in step" in finding.message
    assert hang(gpu, gpu, gpu, gpu).subject == RanksSubject((0, 1, 2, 3), "a1")


@pytest.mark.parametrize(
    ("still", "short"),
    [
        ((BACKWARD, BACKWARD, BACKWARD, BARRIER), 3),
        ((BARRIER, BACKWARD, BACKWARD, BACKWARD), 0),
        ((BARRIER, BACKWARD), 0),
        ((BACKWARD, BARRIER), 1),
    ],
)
def test_where_all_wait_the_rank_that_had_fewer_batches_is_named_with_their_number(still, short):
    finding = hang(*still)
    assert finding.subject == RankSubject(short, "a1")
    assert finding.message.startswith(
        f"rank {short} had 8 batches and waits in all_reduce at train.py:5 in step"
    )
    assert "in batch 9" in finding.message
    assert "drop_last" in finding.remedy


def test_a_short_rank_without_torchs_loader_is_told_by_its_steps():
    finding = hang(replace(BACKWARD, batches=0), replace(BARRIER, batches=0))
    assert finding.message.startswith("rank 1 had 8 steps")


def test_fewer_batches_are_no_reason_while_another_rank_works_or_has_ended():
    finding = hang(BACKWARD, BARRIER, working={2: replace(BACKWARD, work="its line moves")})
    assert "shorter" not in finding.message
    assert "shorter" not in hang(BACKWARD, BARRIER, finished=(2,)).message


def test_as_many_batches_on_all_ranks_accuse_no_data():
    finding = hang(BACKWARD, BACKWARD, replace(BARRIER, batches=9, steps=9))
    assert "shorter" not in finding.message
    assert finding.subject == RankSubject(2, "a1")


def test_a_rank_that_waits_for_its_own_loader_is_to_blame_and_not_those_in_backward():
    loader = own_look("train.py:3 in step", NEXT_BATCH)
    finding = hang(BACKWARD, loader, BACKWARD, BACKWARD)
    assert finding.subject == RankSubject(1, "a1")
    assert "for its data loader's workers" in finding.message


def test_what_the_kernel_shows_of_a_rank_is_told_by_its_own_report():
    fifo = own_look("train.py:40 in load", syscall="read", awaited=Awaited("fifo", "/data/x"))
    finding = hang(BARRIER, fifo, BARRIER, BARRIER)
    assert finding.subject == RankSubject(1, "a1")
    assert "it reads the FIFO /data/x (no writer, or no other end) at train.py:40 in load" in finding.message
    assert "hang.file" in [one.value for one in finding.evidence if one.name == "kind"]


def test_where_all_wait_in_one_line_the_flight_records_name_the_rank_that_has_not_launched_it():
    waits = replace(BARRIER, record=own_record(*["all_reduce"] * 7, ended=6))
    behind = replace(BARRIER, record=own_record(*["all_reduce"] * 6, ended=6))
    assert hang(waits, waits, waits, waits).subject == HostSubject("a1")
    finding = hang(waits, waits, behind, waits)
    assert finding.subject == RankSubject(2, "a1")
    assert "rank 2 has not launched all_reduce number 7 of the default group" in finding.message


def test_a_call_that_leaves_no_frame_is_a_wait_as_the_rank_itself_reads_it():
    gpu = own_look("train.py:7 in step", text="total += float(loss)", waits_for="gpu", uses_gpu=True)
    started = own_look("train.py:8 in step", text="log(work.wait(), step)", waits_for="ranks")
    assert "waits for its GPU at train.py:7 in step" in hang(EVALUATES, gpu).message
    assert "that rank 1 waits in" in hang(EVALUATES, started).message


def test_flight_records_name_the_rank_in_another_collective():
    own = replace(BARRIER, record=own_record("all_reduce", "broadcast", ended=1))
    others = replace(BARRIER, record=own_record("all_reduce", "all_reduce", ended=1))
    finding = hang(others, own, others, others)
    assert finding.subject == RankSubject(1, "a1")
    assert "collective number 2 of the default group differs: rank 1 is in broadcast" in finding.message


def test_a_rank_that_ended_is_named_where_the_others_wait():
    finding = hang(BACKWARD, BACKWARD, BACKWARD, finished=(3,))
    assert finding.subject == RankSubject(3, "a1")


def test_the_limit_and_the_flag_that_changes_it_are_named():
    assert "nothing has moved for 60 s (--hang-after)" in hang(BARRIER, EVALUATES).message
    finding = hang(BARRIER, BARRIER, BARRIER, working={0: WORKS})
    assert finding.subject == RankSubject(0, "a1")
    assert "works at prepare.py:12 in unpack: its child tar (pid 12) uses the processor" in finding.message
    assert "waited for more than 1800 s (30 times --hang-after)" in finding.message
    assert "nothing has moved" not in finding.message
    assert "--hang-after SECONDS" in finding.remedy


def test_who_waits_for_whom_is_a_sentence():
    sentence = describe_wait(positions_by_reports({1: BARRIER, 2: BARRIER}, {0: WORKS}, {}, HOSTS, 0.0))
    assert sentence.startswith("ranks 1 and 2 wait in all_reduce at train.py:5 in step")
    assert "while rank 0 works at prepare.py:12" in sentence


def incident(rank: int, kind: IncidentKind = IncidentKind.RAISED, **facts) -> Incident:
    evidence = tuple(Evidence(name, value, source="exception") for name, value in facts.items())
    return Incident(
        kind, rank, "a1", "measure", 1.0 + rank, (*evidence, Evidence("pid", 40 + rank, source="p"))
    )


def judge(*incidents: Incident, raised: dict[int, ScriptError] | None = None, words: tuple[str, ...] = ()):
    script = ScriptResult("train.py", 3, "spawn", (), incidents, (3, 3, 3), 5.0)
    return judge_script(script, host="a1", finished=False, raised=raised, words=words)


INSIDE = ScriptError(
    "train.py:7 in load", ("/lib/python3.11/json/decoder.py:353 in raw_decode", "train.py:7 in load")
)
OWN_LINE = "/opt/x/gpudiag/training/script_main.py:45"


def test_an_exception_is_placed_at_the_users_line_without_stage_or_iteration():
    error = incident(
        1,
        exception="JSONDecodeError",
        message="Expecting value",
        raised_at="/lib/decoder.py:353",
        iteration=4,
        place=OWN_LINE,
    )
    (finding,) = judge(error, raised={1: INSIDE})
    assert finding.message == "rank 1 raised JSONDecodeError at train.py:7 in load: Expecting value"
    facts = {fact.name: fact.value for fact in finding.evidence}
    assert facts["raised_at"] == "train.py:7 in load"
    assert "decoder.py" in str(facts["inside"])
    assert facts["ran_for"] == 5
    assert "iteration" not in facts
    assert "place" not in facts
    assert "CUDA" not in finding.remedy


def test_a_killed_rank_is_at_the_users_line_or_nowhere_but_never_at_gpudiags():
    (finding,) = judge(incident(1, IncidentKind.DIED, signal="SIGKILL", place="train.py:12"))
    assert finding.message == "rank 1 was killed by SIGKILL at train.py:12"
    (finding,) = judge(incident(1, IncidentKind.DIED, signal="SIGKILL", place=OWN_LINE))
    assert finding.message == "rank 1 was killed by SIGKILL"
    assert all(OWN_LINE not in str(fact.value) for fact in finding.evidence)


def test_the_same_end_of_several_ranks_is_told_once():
    errors = [incident(rank, exception="KeyError", message="'lr'", raised_at="x") for rank in (2, 0, 1)]
    (finding,) = judge(*errors, raised=dict.fromkeys(range(3), INSIDE))
    assert finding.subject == RanksSubject((0, 1, 2), "a1")
    assert finding.message == "all 3 ranks raised KeyError at train.py:7 in load: 'lr'"
    two = judge(*errors[:2], raised=dict.fromkeys(range(3), INSIDE))
    assert [one.message.partition(" raised")[0] for one in two] == ["ranks 0 and 2"]


def test_ends_that_differ_by_a_pid_alone_are_one():
    errors = [
        incident(
            rank,
            exception="RuntimeError",
            message=f"DataLoader worker (pid {rank}7) is killed",
            raised_at="x",
        )
        for rank in (0, 1)
    ]
    (finding,) = judge(*errors, raised=dict.fromkeys(range(3), INSIDE))
    assert finding.message.startswith(
        "ranks 0 and 1 raised RuntimeError at train.py:7 in load: DataLoader worker"
    )


def test_different_ends_stay_apart():
    errors = [incident(rank, exception="KeyError", message=f"'{rank}'", raised_at="x") for rank in (0, 1)]
    assert len(judge(*errors, raised=dict.fromkeys(range(3), INSIDE))) == 2


SIZES = (
    "[enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 1336 vs 668. "
    "Received data size doesn't match"
)


def test_what_a_library_wrote_before_it_ended_a_rank_explains_it():
    (finding,) = judge(incident(2, IncidentKind.DIED, signal="SIGABRT"), words=(SIZES,))
    assert finding.message == f"rank 2 was killed by SIGABRT: {SIZES}"
    assert "same size" in finding.remedy


def test_a_line_that_repeats_the_exception_is_no_further_evidence():
    error = incident(1, exception="RuntimeError", message="NCCL WARN x", raised_at="x")
    (finding,) = judge(
        error, raised={1: INSIDE}, words=("RuntimeError: NCCL WARN x", "a1:7:9 NCCL WARN Call failed")
    )
    told = [fact.value for fact in finding.evidence if fact.name == "explanation"]
    assert told == ["a1:7:9 NCCL WARN Call failed"]


def test_a_full_shared_memory_is_named_where_a_loader_died_of_it():
    text = "DataLoader worker (pid 77) is killed by signal: Bus error."
    error = incident(1, exception="RuntimeError", message=text, raised_at="x")
    place = replace(INSIDE, shared_memory=(64 * 1024**2, 0))
    (finding,) = judge(error, raised={1: place})
    assert "/dev/shm is full (0 B of 64 MiB free)" in finding.message
    assert "--shm-size" in finding.remedy
    caught = (
        "Caught RuntimeError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
    )
    caught += (
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2>: "
        "No space left on device (28)\n"
    )
    (finding,) = judge(
        incident(1, exception="RuntimeError", message=caught, raised_at="x"), raised={1: INSIDE}
    )
    assert "worker process 0: RuntimeError: unable to allocate" in finding.message
    gone = incident(
        1, exception="RuntimeError", message="DataLoader worker (pid(s) 7) exited unexpectedly", raised_at="x"
    )
    (finding,) = judge(gone, raised={1: place}, words=(text,))
    assert "/dev/shm is full" in finding.message
    assert "--shm-size" in finding.remedy
    (finding,) = judge(gone, raised={1: place})
    assert "shm" not in finding.message
    emptied = replace(place, shared_memory=(64 * 1024**2, 60 * 1024**2))
    (finding,) = judge(
        incident(1, exception="RuntimeError", message=caught, raised_at="x"), raised={1: emptied}
    )
    assert "/dev/shm was full: it has 64 MiB" in finding.message
    (other,) = judge(incident(1, exception="KeyError", message="'x'", raised_at="x"), raised={1: place})
    assert "shm" not in f"{other.message}{other.evidence}{other.remedy}"


@pytest.mark.parametrize(
    ("exception", "text", "says"),
    [
        ("KeyError", "'CUDA'", "error is in the script"),
        ("ValueError", "bad", "error is in the script"),
        ("ModuleNotFoundError", "No module named 'wandb'", "--python"),
        ("FileNotFoundError", "[Errno 2] No such file: '/data/CUDA'", "path"),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB", "smaller batch"),
        ("RuntimeError", "CUDA error: an illegal memory access was encountered", "gpudiag list"),
        ("DistBackendError", "NCCL error in: x, unhandled system error", "nccl-test"),
        ("OSError", "[Errno 28] No space left on device: 'ckpt.pt'", "df -h"),
        (
            "RuntimeError",
            "unable to write to file </torch_12_34>: No space left on device (28)",
            "--shm-size",
        ),
        ("RuntimeError", "DataLoader worker (pid(s) 12) exited unexpectedly", "num_workers=0"),
    ],
)
def test_advice_fits_the_exception(exception, text, says):
    assert says in advise(exception, text)
    assert "CUDA" not in advise(exception, text)


def test_a_line_of_gpudiag_is_no_place_of_a_script():
    facts = (
        Evidence("place", "/opt/gpudiag/ranks/worker.py:75 in run", source="side channel"),
        Evidence("waited_in", "stage measure", source="side channel"),
    )
    incident = Incident(IncidentKind.ENDED, 1, "a1", "measure", 3.0, facts)
    script = ScriptResult("train.py", 2, "spawn", (), (incident,), (2, 2), 3.0)
    (finding,) = judge_script(script, host="a1", finished=False)
    assert "worker.py" not in finding.message
    assert finding.message.endswith("still needed it")


def test_a_known_exception_says_what_it_means_and_how_it_is_mended():
    from gpudiag.reference.failures import failures

    facts = (
        Evidence("exception", "DistNetworkError", source="rank"),
        Evidence(
            "message",
            "The server socket has failed to listen on any local network address. EADDRINUSE",
            source="rank",
        ),
    )
    incident = Incident(IncidentKind.RAISED, 1, "a1", "measure", 3.0, facts)
    script = ScriptResult("train.py", 2, "spawn", (), (incident,), (0, 0), 3.0)
    (finding,) = judge_script(script, host="a1", finished=False)
    (meaning,) = [fact for fact in finding.evidence if fact.name == "meaning"]
    known = failures()[meaning.source.removeprefix("gpudiag explain ")]
    assert (finding.remedy, finding.owner) == (known.remedy, known.owner)
