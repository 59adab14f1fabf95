"""The whole probe layer on simulated machines: the real pynvml and GPUtil, the host tree, torch's answer."""

from dataclasses import fields, replace

import pytest

from gpudiag.model.device import Device, DeviceId, SourceState
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.simulate.loader import base_machines
from gpudiag.simulate.scenario import CallFault
from tests.contract.simulated import ALL_SOURCES, kill_while_asking, take

# Machines on which a setting makes the sources differ, and what differs.
EXPECTED = {"h100x8-container2": {"count"}, "h100x8-slurm4": {"count"}}
WITHOUT_GPU = ("none",)
GRACE_SECONDS = 60.0  # proves that it ends, where the hang never does, and not how fast


def responding(taken):
    return {device.id.nvml_index: device.responding for device in taken.snapshot.devices}


def row(taken, index):
    return next(device for device in taken.snapshot.devices if device.id.nvml_index == index)


@pytest.mark.sliced
@pytest.mark.parametrize("machine", base_machines())
def test_on_a_healthy_machine_the_sources_agree_but_for_what_settings_explain(machine):
    taken = take(machine)
    snapshot = taken.snapshot
    assert {item.field for item in snapshot.disagreements} == EXPECTED.get(machine, set())
    assert all(item.expected for item in snapshot.disagreements)
    assert snapshot.simulated == machine
    assert bool(snapshot.devices) == (machine not in WITHOUT_GPU)
    assert all(device.responding is True for device in snapshot.devices)
    assert snapshot.source("host").state is SourceState.OK
    assert taken.left == ()


@pytest.mark.sliced
@pytest.mark.parametrize("machine", base_machines())
def test_every_field_is_a_value_or_a_reason(machine):
    for device in take(machine).snapshot.devices:
        for field in (*fields(Device), *fields(DeviceId)):
            reading = getattr(device if hasattr(device, field.name) else device.id, field.name)
            assert reading not in ("", "N/A", -1, None), field.name


def test_the_readings_are_the_machines():
    device = take("h100x8").snapshot.devices[0]
    assert (device.name, device.architecture, device.compute_capability) == (
        "NVIDIA H100 80GB HBM3",
        "hopper",
        "9.0",
    )
    assert (device.memory_total_bytes, device.power_limit_watts, device.pstate) == (85520809984, 700.0, 0)
    assert (device.ecc_mode, device.mig_mode, device.mig_instances) == ("enabled", "disabled", ())
    assert len(device.nvlinks) == 18
    assert all(link.active is True for link in device.nvlinks)
    assert device.fan_speed_percent == Missing(MissingReason.NOT_SUPPORTED)
    assert (device.pcie_generation_slot_max, device.pcie_width_slot_max, device.numa_node) == (5, 16, 0)


def test_gputil_and_torch_show_the_same_gpus():
    snapshot = take("h100x8").snapshot
    assert [device.id.cuda_ordinal for device in snapshot.devices] == list(range(8))
    for source in ("gputil", "torch"):
        views = [view for view in snapshot.views if view.source == source]
        assert [view.uuid for view in views] == [device.id.uuid for device in snapshot.devices]


def test_two_batches_of_fields_are_asked_per_gpu_its_own_and_its_links():
    assert take("h100x8", ("nvml",)).calls["nvmlDeviceGetFieldValues"] == 2 * 8


def test_mig_instances_are_nested_under_their_gpu():
    [device] = take("h100-mig").snapshot.devices
    assert device.mig_mode == "enabled"
    assert device.mig_instances
    assert all(instance.uuid.startswith("MIG-") for instance in device.mig_instances)


def test_unified_memory_is_the_machines():
    snapshot = take("gb10").snapshot
    [device] = snapshot.devices
    assert device.memory_kind == "unified"
    assert device.memory_total_bytes == snapshot.machine.memory_total_bytes


def test_a_gpu_that_hangs_costs_only_itself():
    taken = take("h100x8+hang:6", deadline=2.0)
    hung = taken.snapshot.devices[6]
    assert [device.id.nvml_index for device in taken.snapshot.devices] == [*range(8)]
    assert hung.responding.reason is MissingReason.TIMED_OUT
    assert "nvml" in hung.responding.detail
    assert hung.id.uuid.startswith("GPU-")
    assert hung.id.bus_id == "00000000:b9:00.0"
    assert all(device.responding is True for device in taken.snapshot.devices if device is not hung)
    assert taken.snapshot.source("nvml").state is SourceState.OK
    # GPUtil has 5 s whatever the deadline for a device is.
    assert taken.seconds < 5.0 + GRACE_SECONDS
    assert taken.left == ()


def test_without_other_sources_a_hung_gpu_is_told_by_the_deadline():
    taken = take("h100x8+hang:6", ("nvml",), deadline=1.0)
    assert taken.seconds < 1.0 + GRACE_SECONDS
    assert taken.left == ()


def test_a_gpu_that_is_lost_costs_only_itself():
    taken = take("h100x8+lost:3")
    assert [device.id.nvml_index for device in taken.snapshot.devices] == list(range(8))
    lost = row(taken, 3)
    assert lost.responding.reason is MissingReason.DEVICE_LOST
    assert lost.temperature_celsius.reason is MissingReason.DEVICE_LOST
    assert lost.id.bus_id == "00000000:86:00.0"
    assert lost.id.uuid.startswith("GPU-")
    assert sum(reading is True for reading in responding(taken).values()) == 7
    assert all("GPU 3" in item.reason and not item.expected for item in taken.snapshot.disagreements)


@pytest.mark.parametrize(("code", "reason"), [(15, MissingReason.DEVICE_LOST), (999, MissingReason.ERROR)])
def test_a_gpu_without_a_handle_is_known_by_its_place_on_the_bus(code, reason):
    def without_handle(scenario):
        faults = (CallFault("nvmlDeviceGetHandleBy*", code=code),)
        gpus = [replace(gpu, faults=faults) if at == 3 else gpu for at, gpu in enumerate(scenario.gpus)]
        return replace(scenario, gpus=tuple(gpus))

    taken = take("h100x8", ("nvml",), change=without_handle)
    silent = row(taken, 3)
    assert silent.responding.reason is reason
    assert silent.id.bus_id == "00000000:86:00.0"
    assert silent.id.uuid.startswith("GPU-")  # as the driver's own files have it


@pytest.mark.parametrize(
    ("fault", "state", "step"),
    [
        ("no-library", SourceState.LIBRARY_ABSENT, "LD_LIBRARY_PATH"),
        ("no-driver", SourceState.DRIVER_NOT_LOADED, "modprobe nvidia"),
        ("version-mismatch", SourceState.VERSION_MISMATCH, "reboot"),
        ("no-permission", SourceState.NO_PERMISSION, "/dev/nvidiactl"),
        ("zero-gpus", SourceState.NO_DEVICES, "dmesg"),
        ("nouveau", SourceState.DRIVER_NOT_LOADED, "blacklist nouveau"),
    ],
)
def test_every_broken_driver_is_told_apart_and_keeps_the_gpus_as_rows(fault, state, step):
    taken = take(f"h100x8+{fault}")
    status = taken.snapshot.source("nvml")
    assert (status.state, step in status.reason) == (state, True)
    assert len(taken.snapshot.devices) == 8
    assert not any(device.responding is True for device in taken.snapshot.devices)
    assert all(device.id.bus_id.startswith("00000000:") for device in taken.snapshot.devices)
    if fault not in ("no-library", "nouveau"):
        assert taken.snapshot.source("gputil").state is state


def test_a_library_that_does_not_come_up_leaves_the_gpus_of_the_bus():
    taken = take("h100x8+init-hang", ("nvml",), deadline=1.0)
    assert taken.snapshot.source("nvml").state is SourceState.TIMED_OUT
    assert {reading.reason for reading in responding(taken).values()} == {MissingReason.TIMED_OUT}
    assert len(taken.snapshot.devices) == 8
    assert taken.seconds < 1.0 + GRACE_SECONDS
    assert taken.left == ()


@pytest.mark.parametrize("sources", [("nvml",), ALL_SOURCES])
def test_nothing_outlives_a_program_that_is_killed_while_a_gpu_hangs(sources):
    assert kill_while_asking("h100x8+hang:6", sources) == ()


def test_a_driver_that_wakes_up_slowly_is_waited_for():
    taken = take("no-persistence", ("nvml",))
    assert all(device.responding is True for device in taken.snapshot.devices)


def test_a_driver_that_attaches_its_gpus_first_is_waited_for_beyond_the_deadline():
    taken = take("h100x8+cold:0.6", ("nvml",), deadline=1.5)  # 4.8 s in all
    assert set(responding(taken).values()) == {True}
    assert taken.left == ()


def test_a_gpu_that_hangs_is_told_where_the_others_were_cold():
    taken = take("h100x8+cold:0.6+hang:3", ("nvml",), deadline=1.5)
    hung = {index: said for index, said in responding(taken).items() if said is not True}
    assert {index: said.reason for index, said in hung.items()} == {3: MissingReason.TIMED_OUT}
    assert taken.left == ()


def test_a_gpu_that_is_being_attached_is_no_hung_one_and_its_driver_is_left_at_it():
    taken = take("h100x8+cold:3", ("nvml",), deadline=1.5, patient=False)
    assert {said.reason for said in responding(taken).values()} == {MissingReason.ATTACHING}
    assert len(taken.left) == 1
    assert taken.calls["nvmlDeviceGetHandleByIndex_v2"] >= 1


def test_a_handle_that_hangs_on_a_driver_that_is_awake_is_a_hung_gpu():
    taken = take("h100x8+hang-call:3:nvmlDeviceGetHandleByIndex*", ("nvml",), deadline=1.5)
    hung = {index: said.reason for index, said in responding(taken).items() if said is not True}
    assert hung == {3: MissingReason.TIMED_OUT}
    assert taken.left == ()


@pytest.mark.parametrize("machine", ["h100x8", "a100x8", "t4x1"])
def test_an_old_driver_answers_what_it_knows(machine):
    device = take(f"{machine}+old-driver", ("nvml",)).snapshot.devices[0]
    assert device.responding is True
    assert isinstance(device.temperature_celsius, int)  # by the older function
    assert isinstance(device.clocks_event_reasons, tuple)  # by their older name
    assert device.memory_total_bytes > 0
    assert device.temperature_margin_celsius == Missing(MissingReason.FUNCTION_NOT_FOUND)


def test_a_driver_older_than_the_reserved_part_of_memory_counts_it_as_used():
    device = take("a100x8+old-driver", ("nvml",)).snapshot.devices[0]
    assert device.memory_reserved_bytes.reason is MissingReason.FUNCTION_NOT_FOUND
    assert device.memory_used_bytes > take("a100x8", ("nvml",)).snapshot.devices[0].memory_used_bytes


def test_a_slow_gpu_holds_up_no_other():
    taken = take("h100x8+slow:4:0.01", ("nvml",), deadline=10.0)
    assert set(responding(taken).values()) == {True}


@pytest.mark.parametrize(
    ("fault", "fields_of", "expected"),
    [
        ("cpu-torch", {"count"}, True),
        ("visible:1,3", {"count"}, True),
        ("order", {"order"}, True),
        ("cuda-broken", {"context_starts"}, False),
    ],
)
def test_what_makes_torch_differ_is_named(fault, fields_of, expected):
    disagreements = take(f"h100x8+{fault}").snapshot.disagreements
    assert {item.field for item in disagreements} == fields_of
    assert {item.expected for item in disagreements} == {expected}


def test_a_gpu_that_cuda_visible_devices_hides_has_no_ordinal():
    taken = take("h100x8+visible:1,3")
    assert row(taken, 3).id.cuda_ordinal == 1
    assert row(taken, 0).id.cuda_ordinal.reason is MissingReason.SOURCE_ABSENT


def test_a_machine_without_a_gpu_says_why_each_source_has_none():
    snapshot = take("none").snapshot
    states = {name: snapshot.source(name).state for name in ALL_SOURCES}
    assert states["nvml"] is SourceState.LIBRARY_ABSENT
    assert states["gputil"] is SourceState.LIBRARY_ABSENT
    assert states["torch"] in (SourceState.NO_DEVICES, SourceState.LIBRARY_ABSENT)
    assert all(snapshot.source(name).reason for name in ALL_SOURCES)


def test_only_the_wanted_sources_are_asked():
    snapshot = take("h100x8", ("nvml",)).snapshot
    assert snapshot.source("gputil").state is SourceState.NOT_ASKED
    assert snapshot.source("torch").state is SourceState.NOT_ASKED
    assert snapshot.views == ()
    assert take("h100x8", ("gputil",)).snapshot.source("nvml").state is SourceState.NOT_ASKED


def test_processes_are_named_by_the_machines_own_files():
    [process] = row(take("h100x8+busy:2", ("nvml",)), 2).processes
    assert process.visible is True
    assert process.user
    assert "python" in process.command
