"""What torch._C has in a CUDA build and lacks in a CPU build.

Torch's own Python code for CUDA runs over it.
"""

import ctypes
import datetime
import importlib.machinery
import importlib.util
import itertools
import os
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.cuda_stand_in import data_parallel, forks
from tests.cuda_stand_in.gpus import Gpu, NoGpusError, list_gpus
from tests.cuda_stand_in.settings import Settings, note

_KEPT: list[Any] = []  # what C++ calls, for as long as the process lives
_ARCHITECTURES = "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"
_CUDA = 1  # c10::DeviceType::CUDA
_MEMORY_KINDS = (
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
    "inactive_split_bytes",
    "allocation",
    "segment",
    "active",
    "inactive_split",
)
_COUNTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")


class _Machine:
    """What this process sees; looked at when CUDA is first asked."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._gpus: list[Gpu] | None = None
        self._error: str | None = None

    @property
    def gpus(self) -> list[Gpu]:
        """The visible GPUs; none where CUDA does not start."""
        if self._gpus is None:
            try:
                self._gpus = list_gpus(self.settings)
            except NoGpusError as error:
                self._gpus, self._error = [], str(error)
        return self._gpus

    def start(self) -> None:
        """What cuInit and the first context do."""
        extension = _Extension(self.settings.library)
        extension.start_driver()
        if not self.gpus:
            raise RuntimeError(self._error or "No CUDA GPUs are available")
        note(self.settings, "cuda")
        time.sleep(self.settings.start_seconds)
        extension.set_kernel_microseconds(self.settings.kernel_microseconds)
        for gpu in self.gpus:
            faults = [fault for fault in self.settings.faults if fault.gpu == gpu.place]
            exclusive = any(fault.kind == "exclusive" for fault in faults)
            extension.add_gpu(
                gpu.bus_id,
                self.settings.free_bytes,
                str(Path(self.settings.lock_folder, f"{gpu.uuid}.lock")) if exclusive else "",
                gpu.context_error or "",
                [(fault.kind, fault.after) for fault in faults if fault.kind in ("stuck", "error", "oom")],
            )
        generators = tuple(extension.new_generator(place) for place in range(len(self.gpus)))
        sys.modules["torch.cuda"].default_generators = generators  # type: ignore[attr-defined]

    def properties(self, device: int) -> "_CudaDeviceProperties":
        """One GPU's properties, as torch keeps them."""
        if not 0 <= device < len(self.gpus):
            raise AssertionError("Invalid device id")
        return _CudaDeviceProperties(self.gpus[device])

    def can_reach(self, device: int, peer: int) -> bool:
        """Whether neither of them has its peer access refused."""
        refused = {fault.gpu for fault in self.settings.faults if fault.kind == "no_peer"}
        return device != peer and not refused & {self.gpus[device].place, self.gpus[peer].place}


class _Uuid:
    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class _CudaDeviceProperties:
    def __init__(self, gpu: Gpu) -> None:
        domain, bus, rest = gpu.bus_id.split(":")
        self.name = gpu.name
        self.major, self.minor = gpu.capability
        self.total_memory = gpu.memory_total_bytes
        self.multi_processor_count = 132
        self.max_threads_per_multi_processor = 2048
        self.warp_size = 32
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = 232448
        self.L2_cache_size = 50 << 20
        self.is_integrated = self.is_multi_gpu_board = 0
        self.gcnArchName = ""
        self.pci_domain_id, self.pci_bus_id = int(domain, 16), int(bus, 16)
        self.pci_device_id = int(rest.split(".")[0], 16)
        self.uuid = _Uuid(gpu.uuid.removeprefix("GPU-").removeprefix("MIG-"))


class _CudaError:
    """cudaError_t, which torch makes of the codes that it is given."""

    success = 0

    def __new__(cls, code: int) -> Any:
        return code


def fill_cuda(c: Any, settings: Settings) -> None:
    """Everything that torch.cuda looks for in torch._C when it is imported."""
    if hasattr(c, "_cuda_getDeviceCount"):
        return
    machine = _Machine(settings)
    extension = _Extension(settings.library)
    values = {
        "_has_cuda": True,
        "_cudart": _runtime(machine, extension),
        "_CudaDeviceProperties": _CudaDeviceProperties,
        "_CudaStreamBase": _stream_base(c, extension),
        "_CudaEventBase": _event_base(c, extension),
        "_CUDAGraph": _NoGraph,
        "_graph_pool_handle": lambda: (0, 0),
        "_cuda_isCurrentStreamCapturing": lambda: False,
        **_devices(machine, extension),
        **_streams(extension),
        **_memory(extension),
        **_settings_of_torch(),
        "_nccl_version": lambda: _packed(settings.nccl_built_with),
        "_nccl_version_suffix": lambda: b"",
        "_nvtx": _ranges(),
        **data_parallel.BINDINGS,
    }
    for name in forks.MARKING:
        values[name] = _marking(extension, values[name])
    for name, value in values.items():
        if name == "_has_cuda" or not hasattr(c, name):
            setattr(c, name, value)
    c._cuda_getDeviceProperties = machine.properties
    _let_cplusplus_list(machine)
    os.register_at_fork(after_in_child=lambda: extension.forked() if _load.cache_info().currsize else None)


def _marking(extension: "_Extension", binding: Callable[..., Any]) -> Callable[..., Any]:
    """The binding, which lets torch refuse CUDA to what is forked from its first call on."""

    def call(*arguments: Any) -> Any:
        extension.mark_forks()
        return binding(*arguments)

    return call


def _let_cplusplus_list(machine: _Machine) -> None:
    """Let torch's C++ ask for the GPUs without CUDA's start."""
    list_gpus = ctypes.CFUNCTYPE(ctypes.c_int)(lambda: len(machine.gpus))
    _KEPT.append(list_gpus)
    ctypes.CDLL(machine.settings.library).cuda_stand_in_lists_gpus_by(list_gpus)


def add_properties(cuda: Any) -> None:
    """What CUDA's part of torch._C adds to torch.cuda when CUDA starts."""
    cuda._get_device_properties = sys.modules["torch._C"]._cuda_getDeviceProperties


def fill_distributed(settings: Settings) -> None:
    """ProcessGroupNCCL, where torch.distributed looks for it."""
    c10d: Any = importlib.import_module("torch._C._distributed_c10d")
    if not hasattr(c10d, "ProcessGroupNCCL"):
        c10d.ProcessGroupNCCL = _load(settings.library).ProcessGroupNCCL
        c10d._DEFAULT_PG_NCCL_TIMEOUT = datetime.timedelta(minutes=10)


def add_storages(torch: Any) -> None:
    """Storages on a GPU: torch._C makes those of other devices itself."""
    made, resized = torch.UntypedStorage.__new__, torch.UntypedStorage.resize_

    def new(cls: Any, *sizes: Any, device: Any = None, **named: Any) -> Any:
        if device is None:
            return made(cls, *sizes, **named)
        if torch.device(device).type != "cuda":
            return made(cls, *sizes, device=device, **named)
        size = sizes[0] if sizes else 0
        return torch.empty(size, dtype=torch.uint8, device=device).untyped_storage()

    def resize_(self: Any, size: int) -> Any:
        if self.device.type != "cuda":
            return resized(self, size)
        whole = torch.empty(0, dtype=torch.uint8, device=self.device).set_(self)
        _load(os.environ["CUDA_STAND_IN"]).resize_storage(whole, size)
        return self

    torch.UntypedStorage.__new__ = new
    torch.UntypedStorage.resize_ = resize_


class _Extension:
    """The extension's functions.

    It is initialised when the first is called, because it needs all of torch._C.
    """

    def __init__(self, library: str) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: getattr(_load(self._library), name)(*arguments)


@cache
def _load(library: str) -> Any:
    loader = importlib.machinery.ExtensionFileLoader("_cuda_stand_in", library)
    spec = importlib.util.spec_from_loader("_cuda_stand_in", loader)
    if spec is None:
        raise ImportError(library)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def _packed(version: str) -> int:
    major, minor, patch = (int(part) for part in version.split("."))
    return (major << 32) | (minor << 16) | patch


def _devices(machine: _Machine, extension: Any) -> dict[str, Any]:
    def start_and_set(device: int) -> None:
        sys.modules["torch.cuda"]._lazy_init()  # as THCPModule_setDevice_wrap
        extension.set_device(device)
        extension.open_context(device)  # as cudaSetDevice does since CUDA 12

    def exchange(device: int) -> int:
        sys.modules["torch.cuda"]._lazy_init()
        before: int = extension.get_device()
        if device >= 0:
            extension.set_device(device)
        return before

    return {
        "_cuda_init": machine.start,
        "_cuda_isInBadFork": extension.is_in_bad_fork,
        "_cuda_getDeviceCount": extension.count_gpus,
        "_cuda_getArchFlags": lambda: _ARCHITECTURES,
        "_cuda_getCompiledVersion": lambda: 12080,
        "_cuda_getDevice": extension.get_device,
        "_cuda_setDevice": start_and_set,
        "_cuda_exchangeDevice": exchange,
        "_cuda_maybeExchangeDevice": lambda device: exchange(device),  # torch._dynamo tells the two apart
        "_cuda_synchronize": extension.drain,
        "_cuda_canDeviceAccessPeer": machine.can_reach,
    }


def _streams(extension: Any) -> dict[str, Any]:
    return {
        "_cuda_getCurrentStream": lambda device: (extension.current_stream(device), device, _CUDA),
        "_cuda_getDefaultStream": lambda device: (0, device, _CUDA),
        "_cuda_setStream": lambda stream_id, device_index, device_type: extension.set_stream(
            stream_id, device_index
        ),
        "_cuda_getCurrentRawStream": extension.current_stream,
    }


def _memory(extension: Any) -> dict[str, Any]:
    def stats(device: int) -> dict[str, Any]:
        used, peak = extension.used(device), extension.peak(device)
        large = {"current": used, "peak": peak, "allocated": peak, "freed": peak - used}
        kinds = {"all": large, "small_pool": dict.fromkeys(large, 0), "large_pool": large}
        named = dict.fromkeys(_MEMORY_KINDS, kinds)
        sizes = {"oversize_allocations": large, "oversize_segments": large, "max_split_size": -1}
        return {**named, **dict.fromkeys(_COUNTS, 0), **sizes}

    return {
        "_cuda_emptyCache": lambda: None,
        "_cuda_ipc_collect": lambda: None,
        "_cuda_sleep": extension.sleep,
        "_cuda_memoryStats": stats,
        "_cuda_resetPeakMemoryStats": extension.reset_peak,
        "_cuda_resetAccumulatedMemoryStats": lambda device: None,
        "_cuda_getAllocatorBackend": lambda: "native",
        "_cuda_hostMemoryStats": dict,
        "_cuda_lock_mutex": lambda: None,
        "_cuda_unlock_mutex": lambda: None,
    }


def _settings_of_torch() -> dict[str, Any]:
    return {
        "_cuda_set_sync_debug_mode": lambda mode: None,
        "_cuda_get_sync_debug_mode": lambda: 0,
        "_cuda_clearCublasWorkspaces": lambda: None,
        "_cuda_tunableop_is_enabled": lambda: False,
        "_cuda_get_conv_benchmark_empty_cache": lambda: True,
        "_cudnn_set_conv_benchmark_empty_cache": lambda value: None,
    }


def _ranges() -> SimpleNamespace:
    """NVTX: names for a profiler, which nobody reads here."""
    depths = itertools.count()
    return SimpleNamespace(
        rangePushA=lambda name: next(depths),
        rangePop=lambda: 0,
        rangeStartA=lambda name: next(depths),
        rangeEnd=lambda number: None,
        markA=lambda name: None,
    )


def _runtime(machine: _Machine, extension: Any) -> type:
    class Runtime:
        """The functions of the CUDA runtime that torch.cuda calls by name."""

        cudaError = _CudaError

        @staticmethod
        def cudaMemGetInfo(device: Any) -> tuple[int, int]:
            number: int = getattr(device, "index", device)
            free = max(0, extension.limit(number) - extension.used(number))
            return free, machine.gpus[number].memory_total_bytes

        @staticmethod
        def cudaGetErrorString(code: int) -> str:
            return f"CUDA error {code}"

    return Runtime


def _stream_base(c: Any, extension: Any) -> type:
    base: type = c.Stream

    class StreamBase(base):  # type: ignore[misc]
        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int = 0,
            device_type: int = 0,
            stream_ptr: int = 0,
            **_: Any,
        ) -> Any:
            if device_type:
                return super().__new__(
                    cls, stream_id=stream_id, device_index=device_index, device_type=device_type
                )
            torch: Any = sys.modules["torch"]
            return super().__new__(
                cls, device=torch.device("cuda", extension.get_device()), priority=priority
            )

        @property
        def cuda_stream(self) -> Any:
            return self.stream_id

        @property
        def priority(self) -> int:
            return 0

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return (0, -5)

    return StreamBase


def _event_base(c: Any, extension: Any) -> type:
    base: type = c.Event

    class EventBase(base):  # type: ignore[misc]
        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            event = super().__new__(
                cls, device="cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
            )
            event._timing = enable_timing
            return event

        def elapsed_time(self, other: Any) -> Any:
            if not (self._timing and other._timing):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not (self.event_id and other.event_id):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            if not (self.query() and other.query()):
                raise RuntimeError("CUDA error: device not ready")
            return extension.elapsed(self.event_id, other.event_id)

        @property
        def cuda_event(self) -> Any:
            return self.event_id

    return EventBase


class _NoGraph:
    def __init__(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("the CUDA stand-in has no graphs")
