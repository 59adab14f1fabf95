"""A stand-in for a CUDA build of torch, for machines without a GPU.

It lists as many GPUs as FAKE_TORCH_GPUS says. FAKE_TORCH_FAULT makes one misbehave, as `hang:1`, `crash:1` or
`error:1`, or the whole of CUDA, as `init-hang`, `init-error` or `import-error`. Its forks have no CUDA after
the calls that mark a process of torch, and `import-marks` makes the import one of them; after `import-starts`
they have none and torch does not know.
"""

import os
import signal
import time
from types import SimpleNamespace

_FAULT, _, _GPU = os.environ.get("FAKE_TORCH_FAULT", "").partition(":")
_GPUS = int(os.environ.get("FAKE_TORCH_GPUS", "2"))
_MARKED = []  # the process whose forks have no CUDA
_STARTED = []  # the same, where torch does not know

if _FAULT == "import-error":
    raise ImportError("libcudart.so.13: cannot open shared object file: No such file or directory")

__version__ = "2.13.0+cu130"
version = SimpleNamespace(cuda="13.0")


def _mark():
    if not _MARKED:
        _MARKED.append(os.getpid())


def _read_architectures():
    _mark()
    return "sm_90 sm_100"


_C = SimpleNamespace(_cuda_getArchFlags=_read_architectures)
distributed = SimpleNamespace(
    is_available=lambda: True, is_nccl_available=lambda: True, is_gloo_available=lambda: True
)


def _start_cuda():
    if _FAULT == "init-hang":
        time.sleep(600)
    if _FAULT == "init-error":
        raise RuntimeError("Error 802: system not yet initialized")
    if _is_in_bad_fork():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess. To use CUDA with ...")
    _mark()
    if _STARTED and os.getpid() not in _STARTED:
        raise RuntimeError("CUDA error: initialization error\nCompile with ...")


def _is_in_bad_fork():
    return bool(_MARKED) and os.getpid() not in _MARKED


def _is_available():
    _mark()
    return _GPUS > 0


def _properties(ordinal):
    _start_cuda()
    if str(ordinal) == _GPU:
        if _FAULT == "hang":
            time.sleep(600)
        if _FAULT == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if _FAULT == "error":
            raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nCompile with ...")
    return SimpleNamespace(
        name="NVIDIA H100 80GB HBM3",
        total_memory=85 * 10**9,
        uuid=f"0000000{ordinal}-0000-0000-0000-000000000000",
        pci_domain_id=0,
        pci_bus_id=0x53 + ordinal,
        pci_device_id=0,
    )


def zeros(size, device):
    return SimpleNamespace(item=lambda: 0.0)


cuda = SimpleNamespace(
    nccl=SimpleNamespace(version=lambda: (2, 30, 4)),
    init=_start_cuda,
    is_available=_is_available,
    _is_in_bad_fork=_is_in_bad_fork,
    device_count=lambda: _GPUS,
    _device_count_nvml=lambda: _GPUS,
    get_device_properties=_properties,
    mem_get_info=lambda ordinal: (84 * 10**9, 85 * 10**9),
)

if _FAULT == "import-marks":
    _mark()
if _FAULT == "import-starts":
    _STARTED.append(os.getpid())
