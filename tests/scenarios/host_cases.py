"""Cases of the checks of the host, of the job's torch and of its environment."""

from dataclasses import replace

from gpudiag.model.host import NetworkInterface
from gpudiag.model.host_state import Filesystem
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import GIB, MIB
from tests.scenarios.situations import (
    Change,
    case,
    environment,
    gpu,
    machine,
    now,
    state,
    state_part,
    top,
    torch,
)

ABSENT = Missing(MissingReason.SOURCE_ABSENT, "h100-1 does not resolve")
NOT_SUPPORTED = Missing(MissingReason.NOT_SUPPORTED, "CPU build of torch")
TWO_MACHINES = environment(WORLD_SIZE="16", LOCAL_WORLD_SIZE="8")
H100_ARCHITECTURES = ("sm_80", "sm_86", "sm_90")


def disk(free_share: float, *, read_only: bool = False, files_share: float = 0.5) -> Change:
    one = Filesystem(
        "/home/ann", 1000 * GIB, int(1000 * GIB * free_share), 10**6, int(10**6 * files_share), read_only
    )
    return state(filesystems=(one,))


def interfaces(*names: str) -> Change:
    return machine(
        interfaces=tuple(NetworkInterface(name, True, False, 1500, 10000, ("10.0.0.7",)) for name in names)
    )


def visible_instances(count: int) -> Change:
    """CUDA is shown that many MIG instances of the first GPU."""

    def change(snapshot):
        instances = snapshot.devices[0].mig_instances[:count]
        return environment(CUDA_VISIBLE_DEVICES=",".join(one.uuid for one in instances))(snapshot)

    return change


def loopback(*, up: bool = True) -> Change:
    return machine(interfaces=(NetworkInterface("lo", up, True, 65536, ABSENT, ("127.0.0.1",)),))


def cuda_error(words: str) -> Change:
    return torch(cuda_available=False, context_starts=Missing(MissingReason.ERROR, words))


def in_container(snapshot):
    from gpudiag.model.host import Container

    return replace(snapshot, machine=replace(snapshot.machine, container=Container("docker", ABSENT)))


HOST = (
    case("host.memory", "host.memory_uncorrected")(
        now(state_part("memory_errors", uncorrected=1)), now(state_part("memory_errors", corrected=80))
    ),
    case("host.disk", "host.disk_full")(now(disk(0.04)), now(disk(0.11))),
    case("host.disk", "host.disk_low")(now(disk(0.09)), now(disk(0.11))),
    case("host.disk", "host.disk_read_only")(now(disk(0.5, read_only=True)), now(disk(0.5))),
    case("host.shared_memory", "host.shared_memory_too_small")(
        now(machine(shared_memory_total_bytes=64 * MIB)), now(machine(shared_memory_total_bytes=2 * GIB))
    ),
    case("host.shared_memory", "host.shared_memory_small")(
        now(machine(shared_memory_total_bytes=600 * MIB)), now(machine(shared_memory_total_bytes=GIB))
    ),
    case("host.process_limits", "host.locked_memory_limit")(
        now(state_part("process_limits", locked_memory_bytes=8 * MIB)),
        now(state_part("process_limits", locked_memory_bytes=8 * MIB), state(infiniband_ports=())),
    ),
    case("host.process_limits", "host.open_files_limit")(
        now(state_part("process_limits", open_files=1024)), now(state_part("process_limits", open_files=4096))
    ),
    case("host.process_limits", "host.processes_limit")(
        now(state_part("process_limits", processes=4096)), now(state_part("process_limits", processes=16384))
    ),
    case("host.cgroup", "host.processors_few")(
        now(state_part("cgroup", processors_limit=4.0)), now(state_part("cgroup", processors_limit=8.0))
    ),
    case("host.cgroup", "host.memory_limit_low")(
        now(state_part("cgroup", memory_limit_bytes=31 * GIB)),
        now(state_part("cgroup", memory_limit_bytes=32 * GIB)),
    ),
    case("host.numa", "host.numa_far")(
        now(state_part("processor_layout", allowed="0-55")),
        now(state_part("processor_layout", allowed="0-112")),
    ),
    case("host.governor", "host.governor")(
        now(state_part("processor_layout", governors=("powersave",))),
        now(state_part("processor_layout", governors=("powersave",), virtual_machine=True)),
    ),
    case("host.clock", "host.clock_source")(
        now(state_part("clock", source="hpet")),
        now(state_part("clock", source="hpet"), state_part("processor_layout", virtual_machine=True)),
    ),
    case("host.clock", "host.clock_unsynchronized")(
        now(state_part("clock", synchronized=False)),
        now(state_part("clock", synchronized=False), in_container),
    ),
    case("network.loopback", "network.loopback_down")(now(loopback(up=False)), now(loopback())),
    case("network.name", "network.name_is_loopback")(
        now(TWO_MACHINES, state(name_addresses=("127.0.1.1",))), now(state(name_addresses=("127.0.1.1",)))
    ),
    case("network.name", "network.name_unresolved")(
        now(state(name_addresses=ABSENT)), now(state(name_addresses=("127.0.1.1", "10.20.0.11")))
    ),
    case("network.interface", "network.only_virtual_interfaces")(
        now(interfaces("virbr0", "docker0")), now(interfaces("virbr0", "eno1"))
    ),
)

SOFTWARE = (
    *(
        case("cuda.context", code)(now(cuda_error(words)), now(torch(context_starts=True)))
        for code, words in (
            (
                "cuda.system_not_ready",
                "Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized",
            ),
            (
                "cuda.driver_mismatch",
                "Error 803: system has unsupported display driver / cuda driver combination",
            ),
            (
                "cuda.forward_compatibility",
                "Error 804: forward compatibility was attempted on non supported HW",
            ),
            ("cuda.driver_too_old", "The NVIDIA driver on your system is too old (found version 11040)."),
            ("cuda.device_unavailable", "CUDA error: CUDA-capable device(s) is/are busy or unavailable"),
            ("cuda.no_device", "No CUDA GPUs are available"),
            (
                "cuda.unknown_error",
                "CUDA unknown error - this may be due to an incorrectly set up environment",
            ),
            ("cuda.out_of_memory", "CUDA error: out of memory"),
            ("cuda.context_failed", "Error 304: OS call failed or operation not supported on this OS"),
        )
    ),
    case("torch.build", "torch.without_cuda")(
        now(torch(cuda_runtime_version=NOT_SUPPORTED)), now(torch(cuda_runtime_version="12.6"))
    ),
    case("torch.build", "torch.nccl_missing")(
        now(torch(nccl_available=False)), now(torch(nccl_available=True))
    ),
    case("torch.driver", "torch.driver_too_old")(
        now(top(driver_version="570.124.06", cuda_driver_version="12.8"), cuda_error("too old")),
        now(top(driver_version="570.124.06", cuda_driver_version="12.8"), torch(cuda_runtime_version="12.8")),
    ),
    case("torch.driver", "torch.newer_cuda_minor")(
        now(torch(cuda_runtime_version="13.1")), now(torch(cuda_runtime_version="12.9"))
    ),
    case("torch.architectures", "cuda.no_kernel_image")(
        now(torch(architectures=("sm_70", "sm_80", "compute_100"))),
        now(torch(architectures=H100_ARCHITECTURES)),
    ),
    case("torch.architectures", "torch.ptx_only")(
        now(torch(architectures=("sm_80", "compute_80"))), now(torch(architectures=("sm_90", "compute_80")))
    ),
)

ENVIRONMENT = (
    case("environment.cuda_visible_devices", "environment.visible_devices_invalid")(
        now(environment(CUDA_VISIBLE_DEVICES="0,1,8,3")), now(environment(CUDA_VISIBLE_DEVICES="0,1,7,3"))
    ),
    case("environment.cuda_visible_devices", "environment.visible_devices_invalid")(
        now(environment(CUDA_VISIBLE_DEVICES="0,-1,1")), now(environment(CUDA_VISIBLE_DEVICES="0,1,-1"))
    ),
    *(
        case("environment.cuda_visible_devices", "environment.visible_devices_none")(
            now(environment(CUDA_VISIBLE_DEVICES=value)), now(environment(CUDA_VISIBLE_DEVICES="7"))
        )
        for value in ("", "-1", " ", "NoDevFiles")
    ),
    case("environment.cuda_visible_devices", "environment.visible_devices_twice")(
        now(environment(CUDA_VISIBLE_DEVICES="0,1,1")), now(environment(CUDA_VISIBLE_DEVICES="0,1,-1"))
    ),
    case("environment.cuda_visible_devices", "environment.local_rank_without_gpu")(
        now(environment(CUDA_VISIBLE_DEVICES="0,1", LOCAL_RANK="2")),
        now(environment(CUDA_VISIBLE_DEVICES="5", LOCAL_RANK="2")),
    ),
    case("environment.cuda_visible_devices", "environment.several_mig_instances", base="h100-mig")(
        now(visible_instances(2)), now(visible_instances(1))
    ),
    case("environment.cuda_visible_devices", "environment.device_order_unset")(
        now(gpu(3, name="NVIDIA A10")),
        now(gpu(3, name="NVIDIA A10"), environment(CUDA_DEVICE_ORDER="PCI_BUS_ID")),
    ),
    case("environment.nccl", "environment.nccl_unknown")(
        now(environment(NCCL_SOCKET_IFNAM="eno1")), now(environment(NCCL_OFI_NVTX_TRACE_DIMENSION="x"))
    ),
    case("environment.nccl", "environment.nccl_costly")(
        now(environment(NCCL_P2P_DISABLE="1")), now(environment(NCCL_P2P_DISABLE="0"))
    ),
    case("environment.nccl", "environment.nccl_device_absent")(
        now(environment(NCCL_IB_HCA="mlx4")), now(environment(NCCL_IB_HCA="=mlx5_0:1,mlx5_9"))
    ),
    case("environment.interface", "network.wrong_interface")(
        now(environment(GLOO_SOCKET_IFNAME="eth0")), now(environment(NCCL_SOCKET_IFNAME="^docker"))
    ),
    case("environment.debug", "environment.debug_switch")(
        now(environment(CUDA_LAUNCH_BLOCKING="1")), now(environment(CUDA_LAUNCH_BLOCKING="0"))
    ),
    case("environment.debug", "environment.renamed_variable")(
        now(environment(NCCL_ASYNC_ERROR_HANDLING="1")), now(environment(TORCH_NCCL_ASYNC_ERROR_HANDLING="1"))
    ),
    case("environment.debug", "environment.allocator_option")(
        now(environment(PYTORCH_CUDA_ALLOC_CONF="expandable_segment:True")),
        now(
            environment(
                PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True,roundup_power2_divisions:[256:1,512:2]"
            )
        ),
    ),
    case("environment.debug", "environment.cuda_compat_path", base="rtx4090x2")(
        now(environment(LD_LIBRARY_PATH="/usr/local/cuda/compat")),
        now(environment(LD_LIBRARY_PATH="/usr/local/cuda/lib64")),
    ),
)

HOST_CASES = (*HOST, *SOFTWARE, *ENVIRONMENT)
