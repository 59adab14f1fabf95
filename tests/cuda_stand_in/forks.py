"""What leaves a process whose forks cannot use CUDA, and what does not.

torch marks its process in three bindings alone: `poison_fork` of torch/csrc/cuda/Module.cpp, which became
`register_fork_handler_for_device_init` of torch/csrc/utils/device_lazy_init.cpp. They are the same three in
its sources from before 2.4 and from after 2.10. tests/corpus/forks has what an H100 with torch 2.11 said of
five calls.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

# torch's words in a fork of a process that it has marked, and CUDA's where torch does not know of the start.
MARKED_WORDS = (
    "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, "
    "you must use the 'spawn' start method"
)
STARTED_WORDS = "CUDA error: initialization error"

# The bindings of torch._C that mark, and what of torch.cuda reaches them.
MARKING: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "_cuda_init": ("torch.cuda.init()", "torch.zeros(1, device='cuda')"),
        "_cuda_getDeviceCount": ("torch.cuda.is_available()", "torch._C._cuda_getDeviceCount()"),
        "_cuda_getArchFlags": ("torch._C._cuda_getArchFlags()", "torch.cuda.get_arch_list()"),
    }
)


@dataclass(frozen=True)
class Start:
    """A call by which C++ starts the driver without the mark: in which releases of torch, and who saw it."""

    call: str
    since: tuple[int, int]
    before: tuple[int, int]
    source: str


STARTING = (
    Start("torch.device(0)", (2, 5), (2, 13), "pytorch issue 144152: at::getAccelerator asks for devices"),
    Start("torch.get_device_module()", (2, 13), (2, 99), "pytorch issue 190708"),
)

HARMLESS = (
    "torch.version.cuda",  # `import torch` alone
    "torch.cuda._device_count_nvml()",
    "torch.cuda.device_count()",  # NVML counts where it answers
    "torch.cuda.nccl.version()",
    "torch.device('cuda')",
)
