"""Checks of the job's torch: a build that fits driver and GPUs, and a CUDA context that really starts."""

import re
from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.holders import why_no_context
from gpudiag.checks.needs import NO_TRACE
from gpudiag.checks.per_device import Gap, answering, conclude
from gpudiag.checks.registry import (
    BOTH_GPUS,
    Basis,
    FindingKind,
    Judgement,
    Level,
    check,
    does_not_apply,
    in_use,
    judged,
    not_readable,
)
from gpudiag.checks.software.settings import hides_every_gpu
from gpudiag.checks.subjects import device_subject, name_device
from gpudiag.checks.traces import traces_for
from gpudiag.model.active import NOT_TESTED
from gpudiag.model.context import Context
from gpudiag.model.device import Device, DeviceView, FabricState, Snapshot, TorchFacts
from gpudiag.model.evidence import Evidence, SourceSubject
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.reference.software import (
    compatibility_source,
    minimum_driver,
    parse_version,
    torch_build_for,
)

_REAL = "torch's own answers: the CPU build of 2.13, 2.11.0+cu130"
_kind = partial(FindingKind, severity=Severity.CONFIG, category=Category.SW_CUDA, owner=Owner.SOFTWARE)
_ITS_OWN = "this torch does not fit; a job may bring its own"
_TORCH_BUILD_BASIS = Basis(
    reads="torch.version.cuda and torch.distributed.is_nccl_available of the job's own interpreter.",
    limit="a CUDA build, with NCCL, where there are GPUs",
    look_also=("python -m torch.utils.collect_env", "gpudiag list --sources all"),
)
_TORCH_DRIVER_BASIS = Basis(
    reads="The CUDA that torch was built with, the driver's version, and the newest CUDA that the driver"
    " runs.",
    limit="NVIDIA's CUDA compatibility table (minor-version compatibility)",
    look_also=("nvidia-smi", "cuda.driver_too_old", "cuda.forward_compatibility"),
)
_TORCH_ARCHITECTURES_BASIS = Basis(
    reads="torch's list of architectures, against each GPU's compute capability.",
    limit="code of the same major and no higher minor version, or PTX of no higher version (CUDA guide)",
    look_also=("python -m torch.utils.collect_env", "torch.driver_too_old"),
)
_CUDA_CONTEXT_BASIS = Basis(
    reads=(
        "The result of torch.cuda.init and of a first tensor on each GPU, in a child"
        " process of the job's own interpreter."
    ),
    limit="None: a context must start on every GPU that is visible.",
    look_also=("gpudiag list --sources all", "dmesg -T | grep NVRM", "env | grep -e CUDA -e LD_LIBRARY"),
)
CPU_BUILD = _kind(
    code="torch.without_cuda",
    outcome=Outcome.FAIL,
    meaning="The machine has GPUs, and the job's torch is a build without CUDA: it will never use them.",
    remedy=(
        "Install a CUDA build of torch: pick the driver's CUDA on torch's"
        " start page, or from your pip mirror."
    ),
    stated=True,
    jobs_may_start=_ITS_OWN,
    basis=_TORCH_BUILD_BASIS,
)
DRIVER_TOO_OLD = _kind(
    code="torch.driver_too_old",
    outcome=Outcome.FAIL,
    meaning="The driver is older than the CUDA that torch was built with needs.",
    remedy="Update the driver, or install a torch built with an older CUDA.",
    stated=True,
    jobs_may_start=_ITS_OWN,
    basis=_TORCH_DRIVER_BASIS,
)
NEWER_MINOR = _kind(
    code="torch.newer_cuda_minor",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning=(
        "torch was built with a newer minor version of CUDA than the driver's: most"
        " functions work, new features do not."
    ),
    remedy="On 'PTX JIT' or 'unsupported toolchain' errors, update the driver or install an older build.",
    basis=_TORCH_DRIVER_BASIS,
)
NO_KERNELS = _kind(
    code="cuda.no_kernel_image",
    outcome=Outcome.FAIL,
    meaning=(
        "This torch has no code for this GPU: the first kernel fails with `no kernel image is available`."
    ),
    remedy=(
        "Install a torch built for this GPU's compute capability: a newer one for a new"
        " GPU, an older one for an old GPU."
    ),
    stated=True,
    jobs_may_start=_ITS_OWN,
    basis=_TORCH_ARCHITECTURES_BASIS,
)
PTX_ONLY = _kind(
    code="torch.ptx_only",
    outcome=Outcome.WARN,
    severity=Severity.MONITOR,
    meaning="This torch has only PTX for this GPU: the driver compiles every kernel at its first use.",
    remedy="Install a torch built for this GPU's compute capability.",
    basis=_TORCH_ARCHITECTURES_BASIS,
)
NCCL_MISSING = _kind(
    code="torch.nccl_missing",
    outcome=Outcome.WARN,
    category=Category.SW_LIBRARY,
    meaning="This CUDA build of torch has no NCCL: collectives between GPUs are slow.",
    remedy="Install a build of torch with NCCL (the Linux builds on torch's start page have it).",
    basis=_TORCH_BUILD_BASIS,
)
_NO_MEMORY = "cuda.out_of_memory"
_context = partial(_kind, outcome=Outcome.FAIL, severity=Severity.TRIAGE, owner=Owner.HOST, stated=True)
# CUDA's error numbers (cudaError_t, driver_types.h) and the words that torch puts them in.
CONTEXT_KINDS = {
    r"Error 802|system not yet initialized": _context(
        code="cuda.system_not_ready",
        meaning="CUDA does not start because the NVLink fabric is not set up (error 802).",
        remedy=(
            "[driver] Start the fabric manager (`systemctl start nvidia-fabricmanager`);"
            " its version must match the driver's."
        ),
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"Error 803|unsupported display driver": _context(
        code="cuda.driver_mismatch",
        meaning="CUDA's driver library and the kernel driver do not match (error 803).",
        remedy=(
            "[host] Look for another libcuda in LD_LIBRARY_PATH (a compat folder);"
            " reboot after a driver update."
        ),
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"Error 804|forward compatibility was attempted": _context(
        code="cuda.forward_compatibility",
        meaning="A forward-compatibility libcuda is in use on a GPU that does not support it (error 804).",
        remedy="Take the CUDA compat folder out of LD_LIBRARY_PATH, or remove the cuda-compat package.",
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"driver on your system is too old|driver version is insufficient": _context(
        code="cuda.driver_too_old",
        meaning="The driver is too old for the CUDA of this torch (error 35).",
        remedy="Update the driver, or install a torch built with an older CUDA.",
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"all CUDA-capable devices are busy|busy or unavailable": _context(
        code="cuda.device_unavailable",
        meaning="The GPU is in use by another process, or its compute mode allows no process (error 46).",
        remedy="`gpudiag list` shows who uses it; look at the GPU's compute mode too.",
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"no CUDA-capable device|No CUDA GPUs are available|lists no GPU": _context(
        code="cuda.no_device",
        meaning="CUDA sees no GPU, though the driver lists one (error 100).",
        remedy=(
            "Look at CUDA_VISIBLE_DEVICES, at the permissions of /dev/nvidia*,"
            " and at the job's device cgroup."
        ),
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"CUDA unknown error": _context(
        code="cuda.unknown_error",
        meaning=(
            "CUDA does not start and gives no reason (error 999): often a container that lost its devices."
        ),
        remedy=(
            "[driver] Restart the container; on the host reload nvidia_uvm (`rmmod nvidia_uvm;"
            " modprobe nvidia_uvm`)."
        ),
        basis=_CUDA_CONTEXT_BASIS,
    ),
    r"out of memory": _context(
        code=_NO_MEMORY,
        meaning="CUDA reports that the GPU has no memory for a context, and NVML that memory is free.",
        remedy=(
            "Look at its processes (`gpudiag list`) and for Xid lines (`dmesg`);"
            " start the job's interpreter again."
        ),
        basis=_CUDA_CONTEXT_BASIS,
    ),
}
_ASKED_IN_A_FORK = "Cannot re-initialize CUDA in forked subprocess"
CONTEXT_FAILED = _context(
    code="cuda.context_failed",
    meaning="A CUDA context does not start on this machine, for a reason that gpudiag does not know.",
    remedy="Pass CUDA's error text to `gpudiag explain -`; look at `dmesg` for Xid lines.",
    basis=_CUDA_CONTEXT_BASIS,
)


@check(
    "cuda.context",
    title="a CUDA context starts on every GPU",
    needs=("gpus", "torch"),
    level=Level.QUICK,
    reports=(*CONTEXT_KINDS.values(), CONTEXT_FAILED),
    readings=("torch: cudaGetDeviceCount, a first kernel on each GPU, in a child",),
    confirmed=f"{_REAL}; {BOTH_GPUS}",
)
def cuda_context(context: Context) -> Judgement:
    """FAIL with the cause that CUDA names where no context starts; a CPU build of torch starts none."""
    facts = _facts(context)
    if isinstance(facts.cuda_runtime_version, Missing):
        return does_not_apply("this torch is a CPU build")
    if facts.context_starts is True:
        return judged()
    elsewhere = _explained(context, facts)
    if elsewhere:
        return elsewhere
    starts = facts.context_starts
    if not isinstance(starts, Missing) or not starts.detail:
        return not_readable(
            "a CUDA context", starts if isinstance(starts, Missing) else Missing(MissingReason.ERROR)
        )
    if _ASKED_IN_A_FORK in starts.detail:  # gpudiag's own fault, which proves nothing about the machine
        return not_readable("a CUDA context", starts)
    kind = next(
        (kind for words, kind in CONTEXT_KINDS.items() if re.search(words, starts.detail)), CONTEXT_FAILED
    )
    without = _without_context(context.snapshot)
    full = list(
        filter(
            None, (why_no_context(context.snapshot, device) for device in without or context.snapshot.devices)
        )
    )
    if kind.code == _NO_MEMORY and full:
        return in_use(f"{NOT_TESTED}, because others hold the memory: {'; '.join(full)}")
    where = f" on {', '.join(map(name_device, without))}" if without else ""
    subject = device_subject(context.snapshot, without[0]) if len(without) == 1 else _subject(context)
    message = f"no CUDA context starts{where}: {shorten_text(starts.detail.splitlines()[0], 160)}"
    return judged(kind.finding(subject, message, Evidence("cuda_error", starts.detail, source="torch")))


def _without_context(snapshot: Snapshot) -> list[Device]:
    """The GPUs on which no context starts, where one starts on others and CUDA could name them."""
    views = [view for view in snapshot.views if view.source == "torch"]
    if not any(view.context_starts is True for view in views):
        return []
    names = {name for view in views if view.context_starts is not True for name in (view.uuid, view.bus_id)}
    return [device for device in snapshot.devices if {device.id.uuid, device.id.bus_id} & names]


@check(
    "torch.build",
    title="the job's torch is built for CUDA",
    needs=("torch",),
    level=Level.QUICK,
    reports=(CPU_BUILD, NCCL_MISSING),
    readings=("torch.version.cuda", "torch.distributed.is_nccl_available"),
    confirmed=f"{_REAL}; {BOTH_GPUS}",
)
def torch_build(context: Context) -> Judgement:
    """FAIL for a CPU build on a machine with GPUs; WARN for a CUDA build without NCCL."""
    facts, snapshot = _facts(context), context.snapshot
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    if isinstance(facts.cuda_runtime_version, Missing):
        driver = snapshot.cuda_driver_version
        found = (device.compute_capability for device in snapshot.devices)
        capabilities = [capability for capability in found if not isinstance(capability, Missing)]
        advice = (
            ""
            if isinstance(driver, Missing)
            else f"; the driver runs up to {torch_build_for(driver, capabilities)}"
        )
        message = f"torch {facts.version} ({facts.python}) is a build without CUDA{advice}"
        evidence = Evidence("torch_version", facts.version, source=facts.python)
        return judged(CPU_BUILD.finding(_subject(context), message, evidence))
    if not facts.nccl_available:
        message = f"torch {facts.version} has no NCCL"
        evidence = Evidence("nccl_available", False, limit=True, source=facts.python)
        return judged(NCCL_MISSING.finding(_subject(context), message, evidence))
    return judged()


@check(
    "torch.driver",
    title="the driver is new enough for the job's torch",
    needs=("gpus", "torch"),
    level=Level.QUICK,
    reports=(DRIVER_TOO_OLD, NEWER_MINOR),
    readings=("torch.version.cuda", "driver_version", "cuda_driver_version"),
    confirmed=f"nvidia-smi -q of A100, H100, B200 and T4 (driver and CUDA versions); {BOTH_GPUS}",
)
def torch_driver(context: Context) -> Judgement:
    """FAIL below the table's driver, unless a context starts (compat package); WARN for a newer minor."""
    facts, snapshot = _facts(context), context.snapshot
    built, driver, newest = facts.cuda_runtime_version, snapshot.driver_version, snapshot.cuda_driver_version
    if isinstance(built, Missing):
        return does_not_apply("this torch is a CPU build")
    if isinstance(driver, Missing):
        return not_readable("the driver's version", driver)
    needed = minimum_driver(built)
    if (
        needed is not None
        and parse_version(driver) < parse_version(needed)
        and facts.context_starts is not True
    ):
        message = (
            f"torch {facts.version} is built with CUDA {built}, which needs driver"
            f" {needed}; this one is {driver}"
        )
        evidence = Evidence(
            "driver_version", driver, limit=needed, source=f"NVML; limit: {compatibility_source()}"
        )
        return judged(DRIVER_TOO_OLD.finding(_subject(context), message, evidence))
    if isinstance(newest, Missing):
        return not_readable("the driver's CUDA version", newest)
    same_major = built.split(".")[0] == newest.split(".")[0]
    if same_major and parse_version(built) > parse_version(newest):
        message = f"torch {facts.version} is built with CUDA {built}; the driver's CUDA is {newest}"
        evidence = Evidence("cuda_runtime_version", built, limit=newest, source="torch; limit: NVML")
        return judged(NEWER_MINOR.finding(_subject(context), message, evidence))
    return judged()


@check(
    "torch.architectures",
    title="the job's torch has code for every GPU",
    needs=("gpus", "torch"),
    level=Level.QUICK,
    reports=(NO_KERNELS, PTX_ONLY),
    readings=("torch.cuda.get_arch_list", "compute_capability"),
    confirmed=f"{_REAL}; {BOTH_GPUS}",
)
def torch_architectures(context: Context) -> Judgement:
    """FAIL for a GPU without any code, WARN for one with PTX only."""
    architectures = _facts(context).architectures
    if isinstance(architectures, Missing):
        return not_readable("torch's architectures", architectures)
    findings: list[Finding] = []
    gaps: list[Gap] = []
    devices = answering(context.snapshot)
    for device in devices:
        if isinstance(device.compute_capability, Missing):
            gaps.append(Gap(device, "compute_capability", device.compute_capability))
        else:
            findings += _judge_code(context.snapshot, device, device.compute_capability, architectures)
    return conclude(findings, len(devices) - len(gaps), gaps)


def _explained(context: Context, facts: TorchFacts) -> Judgement | None:
    """The judgement where another check names the cause already: a GPU, the fabric, or the driver's age."""
    snapshot = context.snapshot
    views = [view for view in snapshot.views if view.source == "torch"]
    failing = [view for view in views if isinstance(view.context_starts, Missing)]
    unfit = [
        device
        for device in snapshot.devices
        if device.responding is not True or device.compute_mode == "prohibited"
    ]
    names = {
        name
        for device in unfit
        for name in (device.id.uuid, device.id.bus_id)
        if not isinstance(name, Missing)
    }
    if len(views) > len(failing) <= len(unfit) and failing and all(_is_of(view, names) for view in failing):
        return Judgement(Outcome.PASS, reason="a context starts on every GPU that is fit for work")
    hung = [device for device in snapshot.devices if _is_late(device.responding)]
    if hung and _is_late(facts.context_starts):
        return does_not_apply("CUDA waits for a GPU that hangs: see gpu.hung")
    if hides_every_gpu(context):
        return does_not_apply("CUDA sees no GPU: see environment.cuda_visible_devices")
    states = [device.fabric for device in snapshot.devices if isinstance(device.fabric, FabricState)]
    if any(state.state != "completed" for state in states):
        return does_not_apply("CUDA waits for the NVLink fabric: see fabric.state")
    needed = (
        None
        if isinstance(facts.cuda_runtime_version, Missing)
        else minimum_driver(facts.cuda_runtime_version)
    )
    driver = snapshot.driver_version
    if needed and not isinstance(driver, Missing) and parse_version(driver) < parse_version(needed):
        return does_not_apply("the driver is too old for this torch: see torch.driver")
    return None


def _is_late(reading: Reading[bool]) -> bool:
    return isinstance(reading, Missing) and reading.reason is MissingReason.TIMED_OUT


def _is_of(view: DeviceView, names: set[str]) -> bool:
    """Whether a view is of a GPU with one of these names, or of one that CUDA could not name."""
    known = [name for name in (view.uuid, view.bus_id) if not isinstance(name, Missing)]
    return not known or any(name in names for name in known)


def _judge_code(
    snapshot: Snapshot, device: Device, capability: str, architectures: tuple[str, ...]
) -> Iterator[Finding]:
    if any(runs_natively(architecture, capability) for architecture in architectures):
        return
    subject, name = device_subject(snapshot, device), name_device(device)
    evidence = Evidence(
        "architectures", " ".join(architectures), limit=capability, source="torch; limit: NVML"
    )
    if any(compiles_for(architecture, capability) for architecture in architectures):
        message = f"{name} (compute capability {capability}): torch has PTX only for it"
        yield PTX_ONLY.finding(subject, message, evidence)
    else:
        message = f"{name} (compute capability {capability}): torch has no code for it"
        yield NO_KERNELS.finding(subject, message, evidence)


def runs_natively(architecture: str, capability: str) -> bool:
    """Whether compiled code such as `sm_80` runs on a GPU of that capability (`8.6`).

    Code runs on the same major and no lower minor version; `sm_90a` on that very one, `sm_100f` on its
    family (CUDA C++ Programming Guide, "Binary Compatibility", "Feature Set Compiler Targets").
    """
    found = re.fullmatch(r"sm_(\d+)(\d)([af]?)", architecture)
    if found is None:
        return False
    major, minor = map(int, capability.split("."))
    if found[3] == "a":
        return (int(found[1]), int(found[2])) == (major, minor)
    return int(found[1]) == major and int(found[2]) <= minor


def compiles_for(architecture: str, capability: str) -> bool:
    """Whether PTX such as `compute_80` compiles for a GPU of that capability: equal or later."""
    found = re.fullmatch(r"compute_(\d+)(\d)", architecture)
    return found is not None and (int(found[1]), int(found[2])) <= tuple(map(int, capability.split(".")))


def _facts(context: Context) -> TorchFacts:
    facts = context.snapshot.torch
    assert not isinstance(facts, Missing)  # noqa: S101 - the runner answers for the need
    return facts


def _subject(context: Context) -> SourceSubject:
    return SourceSubject("torch", context.snapshot.host)
