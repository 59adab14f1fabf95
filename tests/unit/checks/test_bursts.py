from dataclasses import replace
from datetime import timedelta

from gpudiag.checks.gpu.xid_faults import find_device, gpu_bursts, split_bursts
from gpudiag.model.kernel_log import BURST_SILENCE
from gpudiag.model.reading import NOT_ASKED
from tests.unit.checks.kernel_events import event_from, recovery, xid
from tests.unit.model.nouns import make_device, make_snapshot

SNAPSHOT = make_snapshot(*(make_device(index) for index in range(4)))


def roots(*events):
    return [(burst.device.id.nvml_index, burst.root.xid_code) for burst in gpu_bursts(SNAPSHOT, events)]


def test_silence_ends_a_burst():
    first = xid(31, minutes_ago=60)
    at_the_limit = replace(first, at=first.at + BURST_SILENCE)
    beyond = replace(first, at=at_the_limit.at + BURST_SILENCE + timedelta(seconds=1))
    assert [len(burst) for burst in split_bursts((first, at_the_limit, beyond))] == [2, 1]


def test_an_event_without_a_time_joins_its_neighbour():
    late = xid(31, minutes_ago=1)
    timeless = replace(late, at=NOT_ASKED)
    assert [len(burst) for burst in split_bursts((timeless, xid(31), timeless, late))] == [3, 1]


def test_the_fault_of_the_gpu_is_the_root_even_if_it_comes_later():
    assert roots(xid(31), xid(45), xid(48), xid(63), xid(43), recovery(1)) == [(0, 48)]


def test_of_two_faults_the_first_is_the_root():
    assert roots(xid(79), xid(119), recovery(2)) == [(0, 79)]


def test_clean_up_is_the_root_only_where_it_is_alone():
    assert roots(xid(45), xid(13)) == [(0, 13)]
    assert roots(xid(45), xid(45)) == [(0, 45)]


def test_an_unknown_code_goes_before_a_job_and_after_a_fault():
    assert roots(xid(13), xid(999)) == [(0, 999)]
    assert roots(xid(999), xid(95)) == [(0, 95)]


def test_faults_of_two_gpus_are_two():
    assert roots(xid(79, gpu=1), xid(48, gpu=2)) == [(1, 79), (2, 48)]


def test_what_a_fault_does_to_other_gpus_is_no_fault_of_theirs():
    later = xid(31, gpu=2, minutes_ago=59)
    assert roots(xid(79, gpu=1), xid(45, gpu=0), later) == [(1, 79)]


def test_what_came_before_the_fault_stands_for_itself():
    assert roots(xid(13, gpu=2, minutes_ago=60), xid(79, gpu=1, minutes_ago=59)) == [(2, 13), (1, 79)]


def test_a_gpu_that_must_be_recovered_too_stands_for_itself():
    events = (xid(149, gpu=0, rest="NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)"), recovery(4, gpu=1))
    assert roots(*events) == [(0, 149), (1, 154)]


def test_a_nonfatal_link_error_is_no_root_beside_a_fatal_one():
    nonfatal = xid(145, rest="RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)")
    fatal = xid(149, rest="NETIR Fatal XC0 i0 Link -1 (0x000fe406)")
    assert roots(nonfatal, fatal) == [(0, 149)]


def test_a_gpu_off_the_bus_without_a_number_counts_as_one_with():
    (burst,) = gpu_bursts(
        SNAPSHOT, (xid(45), event_from("NVRM: GPU 0000:19:00.0: GPU has fallen off the bus."))
    )
    assert (burst.root.xid_code, burst.xid.code) == (None, 79)


def test_a_gpu_is_found_by_uuid_or_bus_id():
    uuid = "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"
    device = make_device(1)
    device = replace(device, id=replace(device.id, uuid=uuid))
    snapshot = make_snapshot(make_device(0), device)
    assert find_device(snapshot, event_from(f"NVRM: Xid ({uuid}): 48, x")) is device
    assert find_device(snapshot, xid(48, gpu=1)) is device
    assert find_device(snapshot, xid(48, gpu=3)) is None
