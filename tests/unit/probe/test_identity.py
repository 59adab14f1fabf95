import pytest

from gpudiag.model.device import DeviceId, SourceState
from gpudiag.model.host import PciDevice
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.sources import complete_identities, lacks_identity, pci_gpus, rows_of_pci
from tests.unit.model.nouns import make_device, make_machine

LOST = Missing(MissingReason.DEVICE_LOST)
NOT_HERE = Missing(MissingReason.NOT_SUPPORTED)


def bus_id(bus):
    return f"00000000:{bus:02x}:00.0"


def on_bus(bus, class_id="0302", driver="nvidia", **facts):
    values = (
        dict.fromkeys(("link_generation", "link_generation_max", "link_width", "link_width_max"), NOT_HERE)
        | {"numa_node": 1, "slot_generation_max": 5, "slot_width_max": 16}
        | facts
    )
    return PciDevice(bus_id(bus), "10de", "2330", class_id, driver, **values)


def machine_with(*devices, **facts):
    return make_machine(pci_devices=devices, **facts)


def gpu(index, bus=LOST, uuid=None):
    identity = DeviceId(uuid or LOST, bus if isinstance(bus, Missing) else bus_id(bus), index)
    return make_device(index, id=identity)


def test_only_gpus_that_this_machine_may_use_are_counted():
    devices = [on_bus(7, class_id="0680"), on_bus(0x19), on_bus(0x1A, driver="vfio-pci")]
    assert [found.bus_id for found in pci_gpus(machine_with(*devices))] == [bus_id(0x19)]
    assert pci_gpus(make_machine()) == ()


def test_the_bus_says_where_a_gpu_sits():
    [device] = complete_identities((gpu(0, 0x19, "GPU-a"),), machine_with(on_bus(0x19)), {})
    assert (device.numa_node, device.pcie_generation_slot_max, device.pcie_width_slot_max) == (1, 5, 16)


def test_a_gpu_that_the_bus_does_not_show_has_a_reason():
    [device] = complete_identities((gpu(0, 0x19, "GPU-a"),), machine_with(), {})
    assert device.numa_node.reason is MissingReason.SOURCE_ABSENT


def test_a_lost_gpu_has_the_place_that_is_left_in_the_order():
    machine = machine_with(on_bus(0x19), on_bus(0x2A), on_bus(0x3B))
    devices = (gpu(0, 0x19, "GPU-a"), gpu(1), gpu(2, 0x3B, "GPU-c"))
    completed = complete_identities(devices, machine, {bus_id(0x2A): "GPU-b"})
    assert (completed[1].id.bus_id, completed[1].id.uuid) == (bus_id(0x2A), "GPU-b")


def test_no_place_is_guessed_where_the_order_does_not_fit():
    machine = machine_with(on_bus(0x19), on_bus(0x2A))
    devices = (gpu(0, 0x2A, "GPU-a"), gpu(1))
    assert complete_identities(devices, machine, {})[1].id.bus_id == LOST


def test_no_place_is_guessed_where_the_bus_shows_another_number():
    devices = (gpu(0, 0x19, "GPU-a"), gpu(1))
    assert complete_identities(devices, machine_with(on_bus(0x19)), {})[1].id.bus_id == LOST


def test_the_drivers_files_know_a_bus_id_by_its_uuid():
    [device] = complete_identities((gpu(0, uuid="GPU-a"),), make_machine(), {bus_id(0x19): "GPU-a"})
    assert device.id.bus_id == bus_id(0x19)


@pytest.mark.parametrize(
    ("devices", "lacks"),
    [((gpu(0, 0x19, "GPU-a"),), False), ((gpu(0, 0x19),), True), ((gpu(0, uuid="GPU-a"),), True), ((), True)],
)
def test_the_drivers_files_are_asked_only_where_somebody_is_unknown(devices, lacks):
    assert lacks_identity(devices, machine_with(on_bus(0x19))) is lacks


def test_a_gpu_that_nvml_does_not_list_is_a_row():
    machine = machine_with(on_bus(0x19), on_bus(0x2A))
    devices = (gpu(0, 0x19, "GPU-a"),)
    [row] = rows_of_pci(devices, machine, SourceState.OK, "", {bus_id(0x2A): "GPU-b"})
    assert (row.id.bus_id, row.id.uuid) == (bus_id(0x2A), "GPU-b")
    assert row.responding.reason is MissingReason.DEVICE_LOST
    assert row.id.nvml_index == Missing(MissingReason.DEVICE_LOST)
    assert row.numa_node == 1


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (SourceState.TIMED_OUT, MissingReason.TIMED_OUT),
        (SourceState.DRIVER_NOT_LOADED, MissingReason.SOURCE_ABSENT),
        (SourceState.NO_PERMISSION, MissingReason.NO_PERMISSION),
        (SourceState.VERSION_MISMATCH, MissingReason.ERROR),
    ],
)
def test_without_nvml_every_gpu_on_the_bus_is_a_row_for_nvmls_reason(state, reason):
    [row] = rows_of_pci((), machine_with(on_bus(0x19)), state, "its words", {})
    assert row.responding == Missing(reason, "its words")


def test_no_row_is_added_for_what_may_be_a_gpu_without_a_name():
    machine = machine_with(on_bus(0x19), on_bus(0x2A))
    assert rows_of_pci((gpu(0),), machine, SourceState.OK, "", {}) == ()


def test_a_machine_of_switches_alone_has_no_gpus():
    assert rows_of_pci((), machine_with(on_bus(7, class_id="0680")), SourceState.OK, "", {}) == ()
