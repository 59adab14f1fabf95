import pytest

from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.inventory import unify_memory
from tests.unit.model.nouns import make_device, make_machine
from tests.unit.probe.test_disagreements import view

GIB = 1024**3
MACHINE = make_machine(memory_total_bytes=120 * GIB, memory_available_bytes=100 * GIB)


def torch_view(gib):
    return view("torch", 0, 0, memory_total_bytes=gib * GIB)


@pytest.mark.parametrize(
    ("name", "witness"), [("NVIDIA GB10", None), ("NVIDIA Thor", None), ("NVIDIA Something", torch_view(119))]
)
def test_a_second_witness_makes_memory_unified(name, witness):
    device = unify_memory(make_device(name=name, pcie_generation=1), MACHINE, witness)
    assert device.memory_kind == "unified"
    assert (device.memory_total_bytes, device.memory_free_bytes) == (120 * GIB, 100 * GIB)
    assert isinstance(device.memory_used_bytes, Missing)  # it is not the GPU's alone
    assert device.pcie_generation.reason is MissingReason.NOT_SUPPORTED


@pytest.mark.parametrize("witness", [None, torch_view(80)])
def test_memory_that_nvml_does_not_tell_is_no_proof(witness):
    device = make_device(name="NVIDIA Something")
    assert unify_memory(device, MACHINE, witness) == device


def test_memory_of_its_own_stays_its_own():
    device = make_device(name="NVIDIA GB10", memory_total_bytes=80 * GIB)
    assert unify_memory(device, MACHINE, torch_view(119)) == device


@pytest.mark.parametrize(
    "reason", [MissingReason.DEVICE_LOST, MissingReason.TIMED_OUT, MissingReason.NO_PERMISSION]
)
def test_memory_that_could_not_be_read_is_not_unified(reason):
    device = make_device(name="NVIDIA GB10", memory_total_bytes=Missing(reason))
    assert unify_memory(device, MACHINE, None) == device
