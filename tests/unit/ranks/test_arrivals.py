import time

from gpudiag.model import codec
from gpudiag.model.reading import Missing
from gpudiag.ranks.rank.arrivals import ArrivalRecorder, Arrivals, read_host_use


def recorded(iterations: int) -> ArrivalRecorder:
    recorder = ArrivalRecorder()
    for iteration in range(iterations):
        recorder.start_iteration(iteration)
        recorder.arrive(time.monotonic_ns())
        recorder.leave(time.monotonic_ns())
    return recorder


def test_an_iteration_has_an_arrival_and_a_return() -> None:
    arrivals = recorded(3).read()
    assert arrivals is not None
    assert len(arrivals.arrived) == len(arrivals.left) == 3
    assert all(left >= arrived for arrived, left in zip(arrivals.arrived, arrivals.left, strict=True))


def test_collectives_outside_timed_iterations_do_not_count() -> None:
    recorder = recorded(2)
    recorder.arrive(time.monotonic_ns())
    recorder.leave(time.monotonic_ns())
    arrivals = recorder.read()
    assert arrivals is not None
    assert len(arrivals.arrived) == 2


def test_nothing_timed_is_nothing_recorded() -> None:
    assert ArrivalRecorder().read() is None


def test_of_a_long_run_the_last_iterations_are_kept() -> None:
    arrivals = recorded(5000).read()
    assert arrivals is not None
    assert arrivals.first_iteration + len(arrivals.arrived) == 5000
    assert len(arrivals.arrived) == 4000


def test_who_has_not_waited_for_a_gpu_says_so() -> None:
    recorder = ArrivalRecorder()
    for iteration in range(3):
        recorder.start_iteration(iteration)
        recorder.arrive(time.monotonic_ns())
        recorder.leave(time.monotonic_ns(), queued=True)
    recorder.arrive(time.monotonic_ns())  # the wait for all of it
    recorder.leave(time.monotonic_ns())
    recorder.start_iteration(3)
    recorder.arrive(time.monotonic_ns())
    recorder.leave(time.monotonic_ns(), queued=True)
    arrivals = recorder.read()
    assert arrivals is not None
    assert arrivals.awaited == (True, False, False, True)
    told = recorded(2).read()
    assert told is not None
    assert told.awaited == ()


def test_arrivals_survive_the_way_to_the_agent() -> None:
    arrivals = recorded(2).read()
    assert arrivals is not None
    assert codec.decode(Arrivals, codec.encode(arrivals)) == arrivals


def test_host_use_grows() -> None:
    before = read_host_use()
    end = time.thread_time() + 0.05  # the kernel counts a running thread's time at its clock ticks
    while time.thread_time() < end:
        pass
    grown = read_host_use().since(before)
    assert not isinstance(grown.cpu_seconds, Missing)
    assert grown.cpu_seconds > 0
    assert grown.allowed_cpus == before.allowed_cpus
