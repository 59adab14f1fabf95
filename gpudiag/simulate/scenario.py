"""A scenario: one whole machine, as data. Its GPUs, its NVML, its host tree, its torch, its faults."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class CallFault:
    """How one NVML call misbehaves on one GPU (or on the whole library).

    `call` is an NVML function's C name, a prefix ending in `*`, or `*` for every call on that GPU; names and
    prefixes in `except_calls` are spared. A look-up of the GPU's handle (nvmlDeviceGetHandleBy*) is not a
    call on the GPU: `*` spares it, its name or prefix hits it. Where several faults match a call, the first
    one decides. `code` is the NVML return code to answer with; `hang` never answers; `crash` ends the process
    by SIGSEGV; `delay_seconds` answers late, with `in_turn` one such call after the other; `nth` limits the
    fault to the nth call (from 1), `from_nth` to that call and all later ones.
    """

    call: str
    except_calls: tuple[str, ...] = ()
    code: int | None = None
    hang: bool = False
    crash: bool = False
    delay_seconds: float = 0.0
    in_turn: bool = False
    nth: int | None = None
    from_nth: int | None = None


@dataclass(frozen=True, slots=True)
class SimulatedGpu:
    """One GPU: the readings that NVML gives, under the names and in the units of `model.Device`.

    A value is as in the JSON of `gpudiag.snapshot/1` (nested lists and objects for MIG instances,
    NVLinks, ECC locations, processes); a reading that NVML does not have is a `MissingReason` word
    in `missing`, as in that document. `visible` False: on the PCI bus, hidden from NVML.
    `minor_number` is the N of /dev/nvidiaN; `pci_device_id` and `pci_subsystem_id` are four and eight
    hexadecimal digits (`2330`, `16c110de`); `xid_codes` are the Xids that a program waiting for events
    (nvmlEventSetWait) receives, once each.
    """

    readings: Mapping[str, Any]
    missing: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[CallFault, ...] = ()
    visible: bool = True
    minor_number: int | None = None
    pci_device_id: str | None = None
    pci_subsystem_id: str | None = None
    xid_codes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SimulatedNvml:
    """The library and driver: versions, what nvmlInit answers, and which symbols it lacks.

    `present` False: no libnvidia-ml.so.1 at all. `init_code` is what nvmlInit returns. `call_microseconds` is
    the processor time of a call, or of each field, by name or by a prefix ending in `*`, of which the longest
    counts.
    """

    present: bool = True
    driver_version: str = ""
    nvml_version: str = ""
    cuda_driver_version: str = ""  # "13.0"
    confidential_computing: str | None = None  # enabled or disabled; None: NVML does not support the question
    init_code: int = 0
    init_delay_seconds: float = 0.0
    call_microseconds: Mapping[str, float] = field(default_factory=dict)
    omitted_symbols: tuple[str, ...] = ()
    faults: tuple[CallFault, ...] = ()


@dataclass(frozen=True, slots=True)
class HostTree:
    """The files that the host probe reads, under the scenario's root.

    `files` maps a path under the root (`proc/meminfo`) to its text; `links` to a symlink's target;
    `nodes` are the names to be found under `dev/` (plain files stand in for devices).
    """

    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulated machine: a base machine plus changes, named as on the command line.

    `torch` is what torch answers there: a TorchFacts object and one DeviceView object per CUDA
    device (`{"facts": {...}, "devices": [...]}`), or `{"absent": true}`. `environment` is set for
    every program started on the machine (CUDA_VISIBLE_DEVICES, SLURM_*). `jobs` are the jobs that stand still
    there, each as a look from outside gives it (`model.job.Job`); None: jobs are those of the real machine.
    """

    name: str  # h100x8+lost:3
    hostname: str
    description: str
    nvml: SimulatedNvml
    gpus: tuple[SimulatedGpu, ...]
    host: HostTree
    torch: Mapping[str, Any]
    environment: Mapping[str, str] = field(default_factory=dict)
    nvidia_smi_present: bool = True
    sources: tuple[str, ...] = ()  # where the base machine's facts come from
    jobs: tuple[Mapping[str, Any], ...] | None = None
    faults: tuple[str, ...] = ()  # one sentence for each fault: what it does to the machine
