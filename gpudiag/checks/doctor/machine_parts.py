"""The machine's parts: driver, device files, kernel log, rights, folders, ports, memory, Slurm, kubelet."""

from gpudiag.checks import limits
from gpudiag.checks.doctor.inputs import Sight, unread
from gpudiag.installed import root_command
from gpudiag.model.device import SourceState
from gpudiag.model.doctor import DoctorPart, PartState, TraceRights
from gpudiag.model.number_ranges import count_of
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.reading_names import explain_missing, name_state
from gpudiag.reference.service_port import SERVICE_PORT
from gpudiag.units import format_size

_NO_GPU = "no GPU and no trace of one"
_ANSWERED = (SourceState.OK, SourceState.NO_DEVICES)
_LEAST_FREE_BYTES = 64 * 1024**2  # a year of runs takes some 20 MiB; below it the next one may fail
_SERVE_PORT, _TORCH_PORT = str(SERVICE_PORT), "29500"


def judge_nvml(sight: Sight) -> DoctorPart:
    """The driver's library, through which every reading of a GPU comes."""
    status = sight.snapshot.source("nvml")
    if status.state in _ANSWERED and (sight.snapshot.devices or not sight.has_gpu):
        count = len(sight.snapshot.devices)
        driver = sight.snapshot.driver_version
        version = "" if isinstance(driver, Missing) else f", driver {driver}"
        return DoctorPart("nvml", PartState.WORKS, f"{count_of(count, 'GPU')}{version}")
    if not sight.has_gpu:
        return DoctorPart("nvml", PartState.NOT_HERE, _NO_GPU)
    words = status.reason or name_state(status.state)
    remedy = "gpudiag preflight --level instant: which part is to blame, and what to do"
    return DoctorPart("nvml", PartState.BROKEN, f"there is a trace of a GPU, and {words}", remedy)


def judge_nvidia_smi(sight: Sight) -> DoctorPart:
    """The driver's own program; gpudiag needs it only to compare what GPUtil shows."""
    place = sight.find_program("nvidia-smi")
    if place is not None:
        return DoctorPart("nvidia-smi", PartState.WORKS, place)
    silent = sight.unread_programs("nvidia-smi")
    if silent is not None:
        return silent
    if not sight.has_gpu:
        return DoctorPart("nvidia-smi", PartState.NOT_HERE, _NO_GPU)
    words = "it is not on PATH: `gpudiag list --sources gputil` cannot compare"
    in_container = sight.snapshot.machine.container is not None
    remedy = (
        "start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        if in_container
        else "install the driver's package that has it"
    )
    return DoctorPart("nvidia-smi", PartState.ABSENT, words, remedy)


def judge_device_files(sight: Sight) -> DoctorPart:
    """Whether this user may open /dev/nvidia*."""
    closed, nodes = sight.seen.closed_nodes, sight.snapshot.machine.device_nodes
    if isinstance(closed, Missing):
        return unread("device-files", "/dev", closed)
    if closed:
        words = f"this user may not open {', '.join(closed)}"
        remedy = (
            "start the container with its GPUs (`--gpus all`), or allow them in its device cgroup"
            if sight.snapshot.machine.container is not None
            else f"join the group that `ls -l {closed[0]}` shows, or set NVreg_DeviceFileMode of the driver"
        )
        return DoctorPart("device-files", PartState.BROKEN, words, remedy)
    count = 0 if isinstance(nodes, Missing) else len(nodes)
    if not count:
        return DoctorPart("device-files", PartState.NOT_HERE, "there is no /dev/nvidia*")
    return DoctorPart("device-files", PartState.WORKS, f"{count} files under /dev, all open to this user")


def judge_kernel_log(sight: Sight) -> DoctorPart:
    """The kernel log, which has the Xids."""
    log, status = sight.snapshot.kernel_log, sight.snapshot.source("kernel_log")
    if not isinstance(log, Missing):
        return DoctorPart("kernel-log", PartState.WORKS, status.reason or "read")
    words = f"it cannot be read, so Xids are not seen: {explain_missing(log)}"
    remedy = f"{root_command('preflight')}, or join the group adm (`sudo usermod -aG adm $USER`), or"
    remedy += " `sudo sysctl kernel.dmesg_restrict=0`"
    if sight.snapshot.machine.container is not None:
        remedy = "look from the host, or as root in a container with the host's /dev/kmsg"
    return DoctorPart("kernel-log", PartState.LIMITED, words, remedy)


def judge_tracing(sight: Sight) -> DoctorPart:
    """Whether `hang` and `run` may read the stacks of this user's processes."""
    rights = sight.seen.trace_rights
    if isinstance(rights, Missing):
        return unread("tracing", "the rights of this process", rights)
    words, remedy = _obstacle(rights)
    if not words:
        whose = "any process" if rights.is_root else "this user's own processes"
        return DoctorPart("tracing", PartState.WORKS, f"the stacks of {whose} may be read")
    return DoctorPart("tracing", PartState.LIMITED, words, remedy)


def _obstacle(rights: TraceRights) -> tuple[str, str]:
    """What keeps stacks from being read, and what helps; empty where nothing does."""
    scope = 0 if isinstance(rights.ptrace_scope, Missing) else rights.ptrace_scope
    if scope == 3:
        return (
            "kernel.yama.ptrace_scope is 3: no process may trace another",
            "boot with another value of kernel.yama.ptrace_scope",
        )
    if rights.is_root:
        if rights.has_capability is False:
            return (
                "root lacks the capability SYS_PTRACE here, as in most containers",
                (
                    "docker run --cap-add SYS_PTRACE; in Kubernetes"
                    " securityContext.capabilities.add: [SYS_PTRACE]"
                ),
            )
        return "", ""
    if scope == 2:
        return "kernel.yama.ptrace_scope is 2: only root may trace a process", root_command("hang")
    if scope == 1:
        return (
            "kernel.yama.ptrace_scope is 1: only a parent may trace a process",
            f"{root_command('hang')}, or `sudo sysctl kernel.yama.ptrace_scope=0`",
        )
    return "", ""


def judge_state_folder(sight: Sight) -> DoctorPart:
    """The folder in which the history, the last good state and a service's files are."""
    folder = sight.seen.state_folder
    if isinstance(folder, Missing):
        return unread("state-folder", "the folder of gpudiag's state", folder)
    if folder.problem:
        words = f"nothing can be written in {folder.path}: {folder.problem}"
        return DoctorPart("state-folder", PartState.BROKEN, words, "name another: GPUDIAG_STATE_DIR=FOLDER")
    free = folder.free_bytes
    room = "" if isinstance(free, Missing) else f", {format_size(free)} free"
    if not isinstance(free, Missing) and free < _LEAST_FREE_BYTES:
        return DoctorPart("state-folder", PartState.LIMITED, f"{folder.path}{room}", "free some space there")
    return DoctorPart("state-folder", PartState.WORKS, f"{folder.path}{room}")


def judge_history(sight: Sight) -> DoctorPart:
    """The store of earlier runs."""
    runs = sight.runs_stored
    if isinstance(runs, Missing):
        words = f"it cannot be read: {explain_missing(runs)}"
        return DoctorPart("history", PartState.BROKEN, words, "gpudiag history, or another --store URL")
    return DoctorPart("history", PartState.WORKS, f"{count_of(runs, 'run')} of this machine")


def judge_ports(sight: Sight) -> DoctorPart:
    """The ports that `serve` and ranks take by default."""
    ports = sight.seen.ports
    if isinstance(ports, Missing):
        return unread("ports", "the ports of this machine", ports)
    taken = [port for port, free in ports.items() if not free]
    if not taken:
        return DoctorPart("ports", PartState.WORKS, f"{' and '.join(ports)} are free")
    ways = {
        _SERVE_PORT: "gpudiag serve --port 0",
        _TORCH_PORT: "torchrun --master-port N, for your own job",
    }
    words = f"{' and '.join(taken)} {'is' if len(taken) == 1 else 'are'} in use on 127.0.0.1"
    return DoctorPart(
        "ports", PartState.LIMITED, words, "; ".join(ways[port] for port in taken if port in ways)
    )


def judge_shared_memory(sight: Sight) -> DoctorPart:
    """Shared memory, through which ranks and DataLoader workers pass data."""
    total = sight.snapshot.machine.shared_memory_total_bytes
    if isinstance(total, Missing):
        if total.reason is MissingReason.SOURCE_ABSENT:
            return DoctorPart(
                "shared-memory", PartState.LIMITED, "there is no /dev/shm", "mount a tmpfs there"
            )
        return unread("shared-memory", "the size of shared memory", total)
    words = f"shared memory (/dev/shm) has {format_size(total)}"
    if total >= limits.SHARED_MEMORY_BYTES:
        return DoctorPart("shared-memory", PartState.WORKS, words)
    remedy = "docker run --shm-size=16g, or --ipc=host; in Kubernetes an emptyDir of medium Memory"
    if sight.snapshot.machine.container is None:
        remedy = "sudo mount -o remount,size=16G /dev/shm"
    return DoctorPart("shared-memory", PartState.LIMITED, f"{words}: DataLoader workers need more", remedy)


def judge_cgroup(sight: Sight) -> DoctorPart:
    """What the control group leaves to a job."""
    state = sight.snapshot.machine.state
    cgroup = state if isinstance(state, Missing) else state.cgroup
    if isinstance(cgroup, Missing):
        if cgroup.reason in (MissingReason.SOURCE_ABSENT, MissingReason.NOT_SUPPORTED):
            return DoctorPart("cgroup", PartState.NOT_HERE, explain_missing(cgroup))
        return unread("cgroup", "the control group", cgroup)
    memory, processors = cgroup.memory_limit_bytes, cgroup.processors_limit
    limits = [f"memory limited to {format_size(memory)}"] if isinstance(memory, int) else []
    limits += [f"{processors:g} processors"] if isinstance(processors, float) else []
    return DoctorPart("cgroup", PartState.WORKS, ", ".join(limits) or "no limit of memory or processors")


def judge_slurm(sight: Sight) -> DoctorPart:
    """Slurm's programs, for the gates and for `--emit slurm`."""
    place = sight.find_program("srun", "sbatch")
    if place is None and (silent := sight.unread_programs("slurm")):
        return silent
    if place is None:
        return DoctorPart("slurm", PartState.NOT_HERE, "srun and sbatch are not on PATH")
    return DoctorPart("slurm", PartState.WORKS, place)


def judge_kubelet(sight: Sight) -> DoctorPart:
    """The kubelet's socket, which reports the pod of each GPU."""
    kubelet = sight.seen.kubelet
    if isinstance(kubelet, Missing):
        if kubelet.reason is MissingReason.SOURCE_ABSENT:
            return DoctorPart("kubelet", PartState.NOT_HERE, "there is no kubelet's socket here")
        if kubelet.reason is not MissingReason.NO_PERMISSION:
            return unread("kubelet", "the kubelet's socket", kubelet)
    if kubelet is not True:
        words = "this user may not ask it, so the pods of GPUs are unknown"
        return DoctorPart(
            "kubelet", PartState.LIMITED, words, "run as root, or mount /var/lib/kubelet/pod-resources"
        )
    return DoctorPart("kubelet", PartState.WORKS, "/var/lib/kubelet/pod-resources/kubelet.sock")
