"""Which GPU a device plugin's id means, and what a scrape says of who has it."""

import re
from dataclasses import replace

from gpudiag.model.device import GpuProcess, MigInstance
from gpudiag.model.owners import GpuOwners, JobUse, PodDevice, PodDevices, PodUse
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, value_or
from gpudiag.render.metrics_dcgm import render_dcgm
from gpudiag.render.metrics_native import ServiceNumbers, render_metrics
from gpudiag.service.owners import find_owners
from tests.unit.model.nouns import make_snapshot
from tests.unit.render.rows import make_idle
from tests.unit.render.simulated_snapshots import simulated_snapshot
from tests.walking import walk

SNAPSHOT = make_snapshot(*(make_idle(index) for index in range(8)))
ZERO, ONE = (str(SNAPSHOT.devices[index].id.uuid) for index in (0, 1))
MIG = "MIG-5a1d1b2c-8f0e-5b7a-9a6e-1b2c3d4e5f60"


def with_mig(snapshot):
    instance = MigInstance(MIG, "MIG 1g.10gb", 9, 0, NOT_ASKED, NOT_ASKED, NOT_ASKED)
    devices = list(snapshot.devices)
    devices[1] = replace(devices[1], mig_mode="enabled", mig_instances=(instance,))
    return replace(snapshot, devices=tuple(devices))


def given(*ids: str, allocatable=None) -> PodDevices:
    devices = tuple(PodDevice(one, "ml", f"pod-{number}", "train") for number, one in enumerate(ids))
    return PodDevices(devices, allocatable)


# The ids that device plugins give: NVIDIA's with a UUID, also where GPUs are shared in time or by MPS; of MIG
# instances before and since driver 470; Google's, which name the device. Then those that mean nothing here.
PLACES = (
    (ZERO, 0, None, None),
    (f"{ZERO}::3", 0, None, "3"),
    (MIG, 1, 9, None),
    (f"{MIG}::7", 1, 9, "7"),
    (f"MIG-{ONE}/9/0", 1, 9, None),
    ("nvidia1", 1, None, None),
    ("nvidia1/vgpu2", 1, None, "2"),
    ("nvidia1/gi9", 1, 9, None),
    ("nvidia1/gi9/vgpu0", 1, 9, "0"),
    ("nvidia8", None, None, None),
    ("nvidiactl", None, None, None),
    ("GPU-of-another-machine", None, None, None),
    ("MIG-00000000-0000-0000-0000-000000000000", None, None, None),
    ("", None, None, None),
)


@walk(PLACES)
def test_an_id_of_a_device_plugin_means_one_gpu(case):
    device_id, index, instance, replica = case
    found = find_owners(with_mig(SNAPSHOT), given(device_id))
    if index is None:
        assert found == {}
    else:
        use = PodUse("ml", "pod-0", "train", instance, replica)
        assert found == {(ZERO, ONE)[index]: GpuOwners((use,))}


def test_a_gpu_that_the_kubelet_no_longer_offers_is_told_from_one_that_it_never_says_anything_of():
    whole = find_owners(with_mig(SNAPSHOT), given(allocatable=frozenset({ZERO + "::0", MIG})))
    assert [whole[uuid].allocatable for uuid in (ZERO, ONE, str(SNAPSHOT.devices[2].id.uuid))] == [
        True,
        True,
        False,
    ]
    assert find_owners(SNAPSHOT, given(allocatable=frozenset())) == {}  # no device plugin: nothing is known
    assert find_owners(SNAPSHOT, given()) == {}


def test_the_jobs_of_a_gpu_are_those_of_its_processes_each_once():
    gone = Missing(MissingReason.SOURCE_ABSENT)

    def process(pid, job, user):
        return GpuProcess(pid, "compute", 1, True, user, "python", gone, gone, slurm_job_id=job)

    processes = (process(3, 12, "bob"), process(1, 7, gone), process(2, 7, "ann"), process(4, gone, "eve"))
    device = replace(SNAPSHOT.devices[0], processes=processes)
    found = find_owners(replace(SNAPSHOT, devices=(device,)), None)
    assert found == {ZERO: GpuOwners(jobs=(JobUse(7, "ann"), JobUse(12, "bob")))}


def labels_of(text: str, name: str) -> list[dict[str, str]]:
    return [
        dict(re.findall(r'(\w+)="([^"]*)"', line))
        for line in text.splitlines()
        if line.startswith(f"{name}{{")
    ]


def numbers(owners) -> ServiceNumbers:
    return ServiceNumbers("ok", True, 1.0, 0.1, 0, 0, 0, "ok", owners=owners)


SHARED = {
    ZERO: GpuOwners(
        (
            PodUse("ml", "a", "train", replica="0"),
            PodUse("ml", "a", "train", replica="1"),
            PodUse("ml", "b", "x", replica="2"),
        ),
        (JobUse(7, "ann"),),
        True,
    ),
    ONE: GpuOwners((PodUse("web", "c", "serve", 9),), allocatable=False),
}


def test_our_own_names_have_a_series_for_each_container_and_nothing_on_the_others():
    text = render_metrics(SNAPSHOT, numbers(SHARED))
    pods = labels_of(text, "gpudiag_gpu_pod_info")
    assert pods == [
        {"gpu": "0", "uuid": ZERO, "namespace": "ml", "pod": "a", "container": "train"},
        {"gpu": "0", "uuid": ZERO, "namespace": "ml", "pod": "b", "container": "x"},
        {
            "gpu": "1",
            "uuid": ONE,
            "namespace": "web",
            "pod": "c",
            "container": "serve",
            "gpu_instance_id": "9",
        },
    ]
    assert labels_of(text, "gpudiag_gpu_job_info") == [
        {"gpu": "0", "uuid": ZERO, "slurm_job_id": "7", "user": "ann"}
    ]
    offered = re.findall(r'^gpudiag_gpu_allocatable\{gpu="(\d)".*\} (\d)$', text, re.MULTILINE)
    assert offered == [("0", "1"), ("1", "0")]
    without = render_metrics(SNAPSHOT, numbers({}))
    assert {
        line
        for line in text.splitlines()
        if "_pod_" not in line and "_job_" not in line and "_allocatable" not in line
    } == set(without.splitlines())


def test_dcgms_names_have_them_as_dcgm_exporter_does():
    text = render_dcgm(SNAPSHOT, (), SHARED)
    rows = labels_of(text, "DCGM_FI_DEV_GPU_TEMP")
    assert len(rows) == 8
    assert list(rows[0])[-5:] == ["DCGM_FI_DRIVER_VERSION", "container", "hpc_job", "namespace", "pod"]
    # Of those who share a GPU the last, as there by default.
    assert (rows[0]["pod"], rows[0]["hpc_job"]) == (
        "b",
        "7",
    )
    assert "pod" not in rows[1]  # the pod of a MIG instance is on its series, not on the whole GPU's
    assert "pod" not in rows[2]
    shares = labels_of(render_dcgm(SNAPSHOT, (), SHARED, shares=True), "DCGM_FI_DEV_GPU_TEMP")
    assert [(row["pod"], row["vgpu"]) for row in shares[:3]] == [("a", "0"), ("a", "1"), ("b", "2")]
    assert len(shares) == 10
    for page in (text, render_dcgm(SNAPSHOT, (), SHARED, shares=True)):
        series = [line.rsplit(" ", 1)[0] for line in page.splitlines() if not line.startswith("#")]
        assert len(series) == len(set(series))


def test_the_pod_of_a_mig_instance_is_on_the_instances_series():
    snapshot = simulated_snapshot("h100-mig")
    device = next(one for one in snapshot.devices if value_or(one.mig_instances, ()))
    first, second = device.mig_instances[:2]
    owners = find_owners(snapshot, given(f"{second.uuid}::1"))
    rows = labels_of(render_dcgm(snapshot, (), owners), "DCGM_FI_DEV_FB_USED")
    of_gpu = [row for row in rows if row["gpu"] == str(device.id.nvml_index)]
    told = {row.get("GPU_I_ID", ""): row.get("pod") for row in of_gpu}
    assert told[str(first.gpu_instance_id)] is None
    assert told[str(second.gpu_instance_id)] == "pod-0"
    (info,) = labels_of(render_metrics(snapshot, numbers(owners)), "gpudiag_gpu_pod_info")
    assert info["gpu_instance_id"] == str(second.gpu_instance_id)
