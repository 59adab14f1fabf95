from gpudiag.model.plan import BANDWIDTH_TESTS, BandwidthPlan
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.runs.bandwidth import checks_for, plan_tests
from gpudiag.runs.placement import Placement

CPU = Placement("gloo", 4)
ONE_GPU, GPUS = Placement("nccl", 1), Placement("nccl", 8)


def test_every_test_that_the_machine_can_run_is_run():
    assert plan_tests(BandwidthPlan(), GPUS).tests == BANDWIDTH_TESTS
    assert set(BANDWIDTH_TESTS) - set(plan_tests(BandwidthPlan(), ONE_GPU).tests) == {"peer_copy"}
    assert plan_tests(BandwidthPlan(), CPU).tests == ("memory_copy", "matmul")


def test_only_what_was_named_is_run_in_the_order_of_the_tests():
    plan = BandwidthPlan(("matmul", "memory_copy"))
    assert plan_tests(plan, GPUS).tests == ("memory_copy", "matmul")


def test_a_named_test_that_the_machine_cannot_run_is_an_error():
    for place, test in ((CPU, "host_to_device"), (ONE_GPU, "peer_copy"), (CPU, "peer_copy")):
        why = plan_tests(BandwidthPlan((test,)), place)
        assert isinstance(why, Missing)
        assert why.reason is MissingReason.ERROR
        assert test in why.detail


def test_only_what_was_measured_is_judged():
    names = {check.name for check in checks_for(plan_tests(BandwidthPlan(("matmul",)), GPUS))}
    assert {"gpu.lost", "active.ranks", "active.coverage", "compute.matmul"} <= names
    assert not {"bandwidth.data", "bandwidth.memory", "bandwidth.peer"} & names


def test_where_nothing_was_measured_every_speed_is_an_error():
    names = {check.name for check in checks_for(Missing(MissingReason.ERROR, "no GPU is free"))}
    assert {"bandwidth.data", "bandwidth.host_device", "bandwidth.peer", "compute.matmul"} <= names
