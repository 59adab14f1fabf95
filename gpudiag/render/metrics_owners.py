"""Who has a GPU, as series: pods by the kubelet, Slurm jobs by the processes.

In our own names they are series of their own, so that a pod that ends costs one series a GPU. In
dcgm-exporter's dialect they are labels of every series, as there.
"""

from collections.abc import Iterable, Mapping

from gpudiag.model.device import Device
from gpudiag.model.owners import GpuOwners, PodUse
from gpudiag.render.exposition import Labels, Page, text_of

_NOBODY = GpuOwners()


def add_owners(page: Page, devices: Iterable[tuple[Device, Labels]], owners: Mapping[str, GpuOwners]) -> None:
    """Add the pods and jobs of each GPU, which comes with its labels, and whether the kubelet offers it."""
    pods, jobs, offered = [], [], []
    for device, labels in devices:
        whose = owners_of(device, owners)
        pods += [({**labels, **words}, 1.0) for words in _distinct(map(_pod_labels, whose.pods))]
        jobs += [
            ({**labels, "slurm_job_id": str(job.slurm_job_id), "user": text_of(job.user)}, 1.0)
            for job in whose.jobs
        ]
        if whose.allocatable is not None:
            offered.append((labels, float(whose.allocatable)))
    page.add("gpudiag_gpu_pod_info", "info", "The containers that have the GPU, by the kubelet.", pods)
    page.add("gpudiag_gpu_job_info", "info", "The Slurm jobs that have processes on the GPU.", jobs)
    page.add("gpudiag_gpu_allocatable", "gauge", "1 while the kubelet offers the GPU to pods.", offered)


def owners_of(device: Device, owners: Mapping[str, GpuOwners]) -> GpuOwners:
    """Who has that GPU; nobody where it is not known."""
    return owners.get(text_of(device.id.uuid), _NOBODY)


def dcgm_owner_labels(
    whose: GpuOwners, gpu_instance_id: int | None = None, *, shares: bool = False
) -> list[Labels]:
    """The labels that dcgm-exporter 4.8 adds to each series of a GPU or MIG instance, one entry a series.

    As there, a shared GPU has the last of its containers, or with `shares` one series for each, with `vgpu`;
    one for each job (`hpc_job`). The whole GPU of a MIG instance has no pod.
    """
    uses = [use for use in whose.pods if use.gpu_instance_id == gpu_instance_id]
    pods: list[Labels] = [
        {"container": use.container, "namespace": use.namespace, "pod": use.pod, "vgpu": use.replica or ""}
        for use in uses
    ]
    if not shares:
        pods = [{name: word for name, word in labels.items() if name != "vgpu"} for labels in pods[-1:]]
    jobs = [str(job.slurm_job_id) for job in whose.jobs] if gpu_instance_id is None else []
    return [
        dict(sorted((name, word) for name, word in {**pod, "hpc_job": job}.items() if word))
        for pod in pods or [{}]
        for job in jobs or [""]
    ]


def _pod_labels(use: PodUse) -> Labels:
    labels = {"namespace": use.namespace, "pod": use.pod, "container": use.container}
    return labels if use.gpu_instance_id is None else {**labels, "gpu_instance_id": str(use.gpu_instance_id)}


def _distinct(labels: Iterable[Labels]) -> list[Labels]:
    """Each once: a container with two shares of a GPU is one user of it."""
    return [dict(pairs) for pairs in dict.fromkeys(tuple(one.items()) for one in labels)]
