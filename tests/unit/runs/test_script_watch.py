"""The agent's side of a watched script: who is waited for, what is printed, and when the run is over."""

from gpudiag.model.codec import encode
from gpudiag.model.job import Awaited
from gpudiag.model.script import OwnLook
from gpudiag.ranks.rank_run import RankEvent
from gpudiag.runs.script_output import ScriptOutput, find_explanations
from gpudiag.runs.train_script import ScriptWatch
from tests.own_looks import ALL_REDUCE, own_look

WAITS = own_look("train.py:9 in main", ALL_REDUCE)
WORKS = own_look("prepare.py:3 in unpack", work="its child tar (pid 9) uses the processor")
STUCK = own_look("prepare.py:4 in wait")


class Bench:
    def __init__(self, world_size: int = 3) -> None:
        self.now, self.said = 1000.0, []
        self.watch = ScriptWatch(world_size, 60.0, clock=lambda: self.now, announce=self.said.append)

    def tell(self, rank: int, kind: str, place: OwnLook | None = None, **data) -> None:
        fields = encode(place) if place else {}
        self.watch.add(RankEvent(rank, self.now, {"kind": kind, **fields, **data}))

    def over_after(self, seconds: float) -> bool:
        self.now += seconds
        return self.watch.is_over()


def test_ranks_that_wait_for_one_that_works_are_told_and_not_ended_until_the_limit():
    bench = Bench()
    bench.tell(1, "still", WAITS)
    bench.tell(2, "still", WAITS)
    bench.tell(0, "works", WORKS)
    assert not bench.over_after(2.0)
    assert len(bench.said) == 1
    assert "ranks 1 and 2 wait in all_reduce at train.py:9" in bench.said[0]
    assert "rank 0 works at prepare.py:3 in unpack: its child tar" in bench.said[0]
    assert "1800 s (30 times --hang-after)" in bench.said[0]
    assert not bench.over_after(1700.0)
    assert len(bench.said) == 1
    assert bench.over_after(60.0)


def test_a_rank_that_stands_still_elsewhere_ends_the_run_at_once():
    bench = Bench()
    for rank, place in enumerate((STUCK, WAITS, WAITS)):
        bench.tell(rank, "still", place)
        bench.tell(rank, "looked_closely", place)
    assert bench.over_after(0.0)


def test_a_rank_that_cannot_look_closer_at_itself_holds_nothing_up():
    bench = Bench()
    for rank, place in enumerate((STUCK, WAITS, WAITS)):
        bench.tell(rank, "still", place)
    fifo = own_look("prepare.py:4 in wait", syscall="read", awaited=Awaited("fifo", "/data/x"))
    bench.tell(0, "looked_closely", fifo)
    assert not bench.over_after(0.5)
    assert bench.over_after(1.5)
    assert bench.watch.still[0] == fifo
    bench.tell(1, "moves")
    bench.tell(1, "looked_closely", WAITS)
    assert 1 not in bench.watch.still


def test_work_that_ends_in_a_standstill_ends_the_run():
    bench = Bench()
    bench.tell(1, "still", WAITS)
    bench.tell(2, "still", WAITS)
    bench.tell(0, "works", WORKS)
    assert not bench.over_after(30.0)
    bench.tell(0, "still", STUCK)
    assert bench.over_after(2.0)


def test_a_wait_that_is_over_is_forgotten():
    bench = Bench()
    bench.tell(1, "still", WAITS)
    bench.tell(2, "still", WAITS)
    bench.tell(0, "works", WORKS)
    bench.tell(1, "moves")
    bench.tell(2, "moves")
    assert not bench.over_after(4000.0)
    assert bench.said == []


def test_a_rank_that_told_nothing_is_told_as_moving_once_the_wait_is_twice_as_long():
    bench = Bench()
    bench.tell(1, "still", WAITS)
    bench.tell(2, "still", WAITS)
    assert not bench.over_after(10.0)
    assert bench.said == []
    assert not bench.over_after(60.0)
    assert "rank 0 works: its Python stack changes" in bench.said[0]


def test_a_rank_that_finished_is_waited_for_by_nobody():
    bench = Bench()
    bench.tell(0, "done", size=3, pid=70)
    bench.tell(1, "still", WAITS)
    bench.tell(2, "still", own_look("train.py:7 in step", ALL_REDUCE))
    assert bench.over_after(2.0)
    assert bench.watch.finished == {0: 70}


GLOO = (
    "terminate called after throwing an instance of 'gloo::EnforceNotMet'\n"
    "  what():  [enforce fail at pair.cc:456] op.preamble.length <= op.nbytes. 8 vs 4. "
    "Received data size doesn't match\n"
    "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:1. "
    "This is typically caused by a remote worker crashing\n"
)
NCCL = "a1:77:79 [1] misc/socket.cc:71 NCCL WARN socketProgress: Connection closed by remote peer\n"
CAUSE = (
    "a1:70:72 [0] init.cc:957 NCCL WARN Duplicate GPU detected : "
    "rank 0 and rank 1 both on CUDA device 1b000\n"
)


def test_what_a_library_says_went_wrong_is_kept_and_echoes_are_not():
    (line,) = find_explanations(GLOO)
    assert line.startswith("[enforce fail")
    assert find_explanations(NCCL + CAUSE + CAUSE) == (CAUSE.strip(),)
    assert (
        find_explanations("epoch 1 loss 0.3\na1:1:1 [0] NCCL INFO NVLS multicast support is not available\n")
        == ()
    )


def test_only_the_end_of_a_long_output_is_kept():
    output = ScriptOutput(1)
    output.add(CAUSE.encode())
    for _ in range(40):
        output.add(b"step\n" * 4096)
    output.add(GLOO.encode())
    assert [line[:13] for line in output.explanations()] == ["[enforce fail"]
