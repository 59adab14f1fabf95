from dataclasses import replace

import pytest

from gpudiag.model.device import DeviceView, SourceState, SourceStatus, TorchFacts
from gpudiag.model.host import Container
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason
from gpudiag.probe.sources import Gathered, find_disagreements
from tests.unit.model.nouns import make_device, make_machine
from tests.unit.probe.test_identity import on_bus

GIB = 1024**3
ABSENT = Missing(MissingReason.NOT_SUPPORTED)
CUDA = TorchFacts(
    version="2.13.0", python="python", cuda_runtime_version="13.0", architectures=("sm_90",),
    nccl_version="2.30",
    nccl_available=True, gloo_available=True, cuda_available=True, device_count=4, nvml_device_count=4,
    context_starts=True,
)  # fmt: skip
CPU = replace(CUDA, version="2.13.0+cpu", cuda_runtime_version=ABSENT, device_count=0, context_starts=ABSENT)


def make_gpu(index, **readings):
    return make_device(
        index, **{"name": "H100", "memory_total_bytes": 80 * GIB, "memory_reserved_bytes": GIB, **readings}
    )


def view(source, at, gpu, **values):
    known = (
        {"uuid": f"GPU-{gpu}", "bus_id": ABSENT, "name": "H100"}
        | {"memory_total_bytes": (80 if source == "gputil" else 79) * GIB, "memory_used_bytes": ABSENT}
        | {"memory_free_bytes": ABSENT, "utilization_percent": ABSENT, "driver_version": "580.1"}
    )
    return DeviceView(source=source, source_index=at, **{**known, **values})


def status(source, count, state=SourceState.OK):
    return SourceStatus(source, state, None, 0.1, count)


def gather(
    *,
    gpus=4,
    gputil=(0, 1, 2, 3),
    torch=(0, 1, 2, 3),
    facts=CUDA,
    devices=None,
    views=None,
    machine=None,
    counts=(),
):
    """What healthy sources say of four GPUs, but what is given.

    `gputil` and `torch` are GPUs in their order.
    """
    devices = tuple(make_gpu(index) for index in range(gpus)) if devices is None else tuple(devices)
    if views is None:
        views = [view("gputil", at, one) for at, one in enumerate(gputil)]
        views += [view("torch", at, one) for at, one in enumerate(torch)]
    statuses = {"nvml": status("nvml", len(devices)), "gputil": status("gputil", len(gputil))}
    if facts is not NOT_ASKED:
        statuses["torch"] = status("torch", facts.device_count)
    statuses |= {source: status(source, count) for source, count in dict(counts).items()}
    machine = machine or machine_with(allocation={}, pci=len(devices))
    return Gathered(machine, statuses, "580.1", devices, tuple(views), facts)


def machine_with(*, allocation=None, pci=4, **facts):
    bus = tuple(on_bus(0x19 + at) for at in range(pci))
    return make_machine(
        **{"pci_devices": bus, "kernel_driver_version": "580.1", "allocation": allocation or {}, **facts}
    )


def only(gathered):
    found = find_disagreements(gathered)
    assert len(found) == 1, found
    return found[0]


def test_healthy_sources_agree():
    assert find_disagreements(gather()) == ()


def test_sources_that_were_not_asked_say_nothing():
    assert find_disagreements(gather(facts=NOT_ASKED, views=[], counts={"gputil": NOT_ASKED})) == ()


def test_a_cpu_build_of_torch_is_expected_to_count_none():
    found = only(gather(torch=(), facts=CPU))
    assert (found.field, found.expected) == ("count", True)
    assert found.values == {"nvml": 4, "gputil": 4, "torch": 0, "pci": 4}
    assert "CPU build" in found.reason


@pytest.mark.parametrize("value", ["1,3", "GPU-1,GPU-3", "1,3,-1,0", "1,3,9"])
def test_cuda_visible_devices_explains_fewer_gpus_in_torch(value):
    machine = machine_with(allocation={"CUDA_VISIBLE_DEVICES": value})
    found = only(gather(torch=(1, 3), facts=replace(CUDA, device_count=2), machine=machine))
    assert (found.field, found.expected) == ("count", True)
    assert f"CUDA_VISIBLE_DEVICES={value}" in found.reason


def test_cuda_visible_devices_does_not_explain_another_number():
    machine = machine_with(allocation={"CUDA_VISIBLE_DEVICES": "0,1,2"})
    found = only(gather(torch=(0,), facts=replace(CUDA, device_count=1), machine=machine))
    assert not found.expected


def test_mig_explains_fewer_gpus_in_torch():
    devices = [make_gpu(index, mig_mode="enabled") for index in range(4)]
    mig = view("torch", 0, 0, uuid="MIG-1", name="H100 MIG 1g.10gb", memory_total_bytes=10 * GIB)
    gathered = gather(
        devices=devices, facts=replace(CUDA, device_count=1), views=[mig], counts={"gputil": NOT_ASKED}
    )
    found = only(gathered)
    assert (found.field, found.expected) == ("count", True)
    assert "MIG" in found.reason


def test_a_lost_gpu_explains_and_is_no_setting():
    lost = make_gpu(2, responding=Missing(MissingReason.DEVICE_LOST))
    devices = [make_gpu(0), make_gpu(1), lost, make_gpu(3)]
    facts = replace(CUDA, device_count=3)
    found = only(gather(devices=devices, gputil=(0, 1, 2, 3), torch=(0, 1, 3), facts=facts))
    assert not found.expected
    assert "GPU 2" in found.reason


def test_nothing_explains_a_gpu_that_torch_lacks():
    found = only(gather(torch=(0, 1, 2), facts=replace(CUDA, device_count=3)))
    assert not found.expected


def test_cuda_that_starts_nowhere_differs_from_a_count():
    broken = replace(CUDA, cuda_available=False, context_starts=Missing(MissingReason.ERROR, "Error 802"))
    found = only(gather(torch=(), facts=broken))
    assert (found.field, found.expected) == ("context_starts", False)
    assert found.values == {"nvml": 4, "torch": 4, "contexts": 0}
    assert "Error 802" in found.reason


def test_a_container_is_expected_to_see_its_own_gpus():
    nodes = ("/dev/nvidia3", "/dev/nvidia5", "/dev/nvidiactl")
    machine = machine_with(pci=8, device_nodes=nodes, container=Container("docker", NOT_ASKED, "/.dockerenv"))
    found = only(
        gather(gpus=2, gputil=(0, 1), torch=(0, 1), facts=replace(CUDA, device_count=2), machine=machine)
    )
    assert (found.field, found.values["pci"], found.expected) == ("count", 8, True)


def test_a_container_that_misses_a_gpu_it_was_given_is_not():
    nodes = ("/dev/nvidia3", "/dev/nvidia4", "/dev/nvidia5")
    machine = machine_with(pci=8, device_nodes=nodes, container=Container("docker", NOT_ASKED, "/.dockerenv"))
    found = only(
        gather(gpus=2, gputil=(0, 1), torch=(0, 1), facts=replace(CUDA, device_count=2), machine=machine)
    )
    assert not found.expected


@pytest.mark.parametrize(
    ("allocation", "expected"),
    [
        ({"SLURM_JOB_GPUS": "0,1"}, True),
        ({"SLURM_GPUS_ON_NODE": "2"}, True),
        ({"SLURM_JOB_GPUS": "0,1,2"}, False),
        ({}, False),
    ],
)
def test_slurm_is_asked_for_how_many_it_gave(allocation, expected):
    machine = machine_with(pci=4, allocation=allocation)
    found = only(
        gather(gpus=2, gputil=(0, 1), torch=(0, 1), facts=replace(CUDA, device_count=2), machine=machine)
    )
    assert found.expected is expected


def test_a_gpu_that_only_the_bus_shows_is_named():
    machine = machine_with(pci=5)
    found = only(gather(machine=machine))
    assert not found.expected
    assert "00000000:1d:00.0" in found.reason


def test_gpus_without_the_nvidia_driver_are_named():
    bus = (*machine_with().pci_devices, on_bus(0x40, driver="nouveau"))
    found = only(gather(machine=machine_with(pci_devices=bus)))
    assert "not bound to 00000000:40:00.0" in found.reason


def test_a_machine_whose_bus_is_hidden_is_not_held_against_it():
    assert find_disagreements(gather(machine=machine_with(pci_devices=()))) == ()
    assert find_disagreements(gather(machine=machine_with(pci_devices=ABSENT))) == ()


@pytest.mark.parametrize(
    ("allocation", "expected"), [({}, True), ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False)]
)
def test_torch_may_count_the_fastest_gpu_first(allocation, expected):
    found = only(gather(torch=(3, 0, 1, 2), machine=machine_with(allocation=allocation)))
    assert (found.field, found.expected) == ("order", expected)
    assert found.values == {"nvml": "0,1,2,3", "torch": "3,0,1,2"}
    assert "CUDA_DEVICE_ORDER" in found.reason


def test_cuda_visible_devices_may_reorder():
    allocation = {"CUDA_VISIBLE_DEVICES": "2,0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    machine = machine_with(allocation=allocation)
    found = find_disagreements(gather(torch=(2, 0), facts=replace(CUDA, device_count=2), machine=machine))
    assert [(item.field, item.expected) for item in found] == [("count", True), ("order", True)]


def test_nvidia_smi_in_another_order_is_not_expected():
    found = only(gather(gputil=(1, 0, 2, 3)))
    assert (found.field, found.expected) == ("order", False)


def test_the_driver_has_one_version():
    found = only(gather(machine=machine_with(kernel_driver_version="575.57.08")))
    assert (found.field, found.expected) == ("driver_version", False)
    assert found.values == {"kernel": "575.57.08", "nvml": "580.1", "gputil": "580.1"}
    assert "reboot" in found.reason


def test_another_nvidia_smi_on_the_path_is_told_apart_from_a_stale_module():
    views = [view("gputil", 0, 0, driver_version="535.1"), *(view("torch", at, at) for at in range(4))]
    found = only(gather(views=views))
    assert found.field == "driver_version"
    assert "PATH" in found.reason


@pytest.mark.parametrize(
    ("source", "gib", "agrees"),
    [
        ("gputil", 80, True),
        ("gputil", 79, True),
        ("gputil", 77, False),
        ("torch", 78, True),
        ("torch", 77, False),
        ("torch", 82, False),
    ],
)
def test_total_memory_may_differ_by_definition_only(source, gib, agrees):
    found = find_disagreements(gather(views=[view(source, 0, 0, memory_total_bytes=gib * GIB)]))
    assert [item.field for item in found] == ([] if agrees else ["memory_total_bytes"])
    assert all(item.uuid == "GPU-0" and not item.expected for item in found)


def test_one_gpu_has_one_name():
    found = only(gather(views=[view("gputil", 0, 0, name="A100")]))
    assert (found.field, found.uuid) == ("name", "GPU-0")
    assert found.values == {"nvml": "H100", "gputil": "A100"}


def test_what_a_source_does_not_say_is_no_disagreement():
    silent = dict.fromkeys(("name", "memory_total_bytes", "driver_version"), ABSENT)
    assert find_disagreements(gather(views=[view("gputil", 0, 0, **silent)])) == ()


def test_contexts_on_some_gpus_are_counted_once_with_the_cause():
    broken = Missing(MissingReason.ERROR, "out of memory")
    views = [view("torch", at, at, context_starts=broken if at == 2 else True) for at in range(4)]
    facts = replace(CUDA, context_starts=Missing(MissingReason.ERROR, "on 1 of 4 GPUs: out of memory"))
    found = only(gather(views=views, facts=facts))
    assert (found.field, found.values) == ("context_starts", {"nvml": 4, "torch": 4, "contexts": 3})
    assert found.reason == "CUDA starts a context on 3 of 4: out of memory"
