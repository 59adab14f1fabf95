"""Who has which GPU: containers, as the kubelet gave them out, and Slurm jobs, as their processes show."""

from dataclasses import dataclass

from gpudiag.model.reading import Reading


@dataclass(frozen=True, slots=True)
class PodDevice:
    """One device that the kubelet has given to a container, in the words of the device plugin."""

    device_id: str  # a UUID of a GPU or of a MIG instance, or a name such as nvidia0
    namespace: str
    pod: str
    container: str


@dataclass(frozen=True, slots=True)
class PodDevices:
    """All GPUs that the kubelet has given out.

    `allocatable`: what it may give out, None where it did not report it.
    """

    devices: tuple[PodDevice, ...]
    allocatable: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class PodUse:
    """One container that has a GPU, or the MIG instance that is named.

    `replica` is the share of a GPU that several containers have (time-slicing, MPS), in the plugin's words.
    """

    namespace: str
    pod: str
    container: str
    gpu_instance_id: int | None = None
    replica: str | None = None


@dataclass(frozen=True, slots=True)
class JobUse:
    """One Slurm job with processes on a GPU."""

    slurm_job_id: int
    user: Reading[str]


@dataclass(frozen=True, slots=True)
class GpuOwners:
    """Who has one GPU; `allocatable`: whether the kubelet offers it to pods, None where it is not known."""

    pods: tuple[PodUse, ...] = ()
    jobs: tuple[JobUse, ...] = ()
    allocatable: bool | None = None
