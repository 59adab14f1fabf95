"""Where ranks run, for every command: on which GPUs or on the CPU, on how many ranks, up to which size."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from gpudiag.checks.gpu.availability import why_not_free
from gpudiag.checks.gpu.holders import describe_holders
from gpudiag.checks.gpu.settings import describe_exclusive
from gpudiag.checks.host.network import judge_interfaces
from gpudiag.checks.limits import CONTEXT_BYTES
from gpudiag.checks.runner import run_checks
from gpudiag.checks.software.torch_build import cuda_context
from gpudiag.checks.traces import gpu_traces, pci_gpus
from gpudiag.errors import SourceAbsentError, SourceFailedError, UsageError
from gpudiag.installed import pip_command
from gpudiag.model.active import NOT_TESTED, Untested
from gpudiag.model.context import Context
from gpudiag.model.device import Device, DeviceView, Snapshot
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.plan import DEFAULT_CPU_RANKS
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.probe.start import TorchStarter
from gpudiag.ranks.environment import RankEnvironment
from gpudiag.reference.reading_names import explain_missing
from gpudiag.runs.instant import judge_snapshot
from gpudiag.units import GIB, MIB, format_size

# --- which GPUs

# Of NCCL, of torch (before, it refuses to reduce them on GPUs of 9.0), and of GPUs.
_FLOAT8_NCCL, _FLOAT8_TORCH, _FLOAT8_CAPABILITY = (2, 24), (2, 8), (9, 0)
UNNAMED = "its UUID is not known"
_OUT_OF_MEMORY = "out of memory"  # cudaErrorMemoryAllocation, in CUDA's words
_NO_CONTEXT = "no CUDA context starts on it"
_SHARING_SINCE = (2, 30)  # of NCCL: several ranks may share a GPU


@dataclass(frozen=True, slots=True)
class GpuFitness:
    """One GPU as ranks could use it."""

    device: Device
    view: DeviceView | None  # torch's; of a MIG instance, where it shows one
    unfit: str | None  # why no rank can run there
    in_use: str | None  # who or what a test would disturb
    lacks_memory: str | None = None  # how much is free, how much ranks need, and who holds the rest

    @property
    def name(self) -> str:
        """The GPU, for people."""
        index = self.device.id.nvml_index
        return "a GPU" if isinstance(index, Missing) else f"GPU {index}"

    @property
    def is_held(self) -> bool:
        """Whether a process, or what NVML counts, has its memory; else it is unknown."""
        has_process = not isinstance(self.device.processes, Missing) and bool(self.device.processes)
        return has_process or _nvml_agrees(self.device, _CONNECTION_BYTES)

    @property
    def cuda_name(self) -> str | None:
        """What CUDA_VISIBLE_DEVICES calls it: a MIG instance by its own UUID; None where no source has one.

        A number would count from another GPU wherever the variable is set already.
        """
        uuid = (
            self.device.id.uuid
            if self.view is None or isinstance(self.view.uuid, Missing)
            else self.view.uuid
        )
        return None if isinstance(uuid, Missing) else uuid

    def as_untested(self) -> Untested:
        """The GPU as one that no test runs on, with the reason."""
        why_not = self.unfit or self.lacks_memory
        full = self.unfit is None and self.lacks_memory is not None
        return Untested(self.device.id.uuid, self.name, why_not or self.in_use or "", why_not is None, full)


def why_no_cuda(snapshot: Snapshot, expected_gpus: Reading[int] = NOT_ASKED) -> Missing | None:
    """Why ranks can use none of the GPUs found here; None if torch starts a context on at least one.

    None too where contexts lack nothing but memory. NOT_SUPPORTED if they are simulated, ERROR otherwise.
    """
    if snapshot.simulated is not None:
        words = f"the GPUs of {snapshot.simulated} are simulated: they answer NVML and cannot compute"
        return Missing(MissingReason.NOT_SUPPORTED, words)
    torch = snapshot.torch
    if isinstance(torch, Missing):
        cause = torch.detail or snapshot.source("torch").reason or explain_missing(torch)
    elif isinstance(torch.cuda_runtime_version, Missing):
        cause = f"torch {torch.version} is a build without CUDA"
    elif torch.context_starts is True or any(_starts(view) for view in snapshot.views):
        return None
    else:
        cause = torch.context_starts.detail if isinstance(torch.context_starts, Missing) else ""
    if _OUT_OF_MEMORY in cause and any(gpu.lacks_memory for gpu in judge_gpus(snapshot, ())):
        return None  # each GPU's line names who holds its memory
    trace = gpu_traces(snapshot, expected_gpus)[0].text
    words = f"a GPU is here ({trace}), and torch cannot use it: {cause or 'no CUDA context starts'}"
    return Missing(MissingReason.ERROR, words)


def judge_gpus(snapshot: Snapshot, findings: Sequence[Finding]) -> tuple[GpuFitness, ...]:
    """Every GPU, in CUDA's order of those that torch sees; `findings` are of the checks of GPUs.

    None is fit if torch counts one that must be hidden and another cannot be named.
    """
    judged = []
    for device in snapshot.devices:
        view = _torch_view(snapshot, device)
        unfit = _why_unfit(device, view, findings)
        holders = describe_holders(device, snapshot.taken_at)
        in_use = ", ".join(why_not_free(snapshot, device)) or None
        if in_use is not None and holders:
            in_use = f"{in_use}: {holders}"
        lacks = _why_no_memory(device, view, holders)
        if unfit == _NO_CONTEXT and lacks is not None:
            unfit = None  # memory is what the context lacks
        judged.append(GpuFitness(device, view, unfit, in_use, lacks))
    if _must_hide(snapshot, [gpu for gpu in judged if gpu.unfit is None]):
        judged = [
            replace(gpu, unfit=UNNAMED) if gpu.unfit is None and gpu.cuda_name is None else gpu
            for gpu in judged
        ]
    return tuple(sorted(judged, key=_cuda_order))


def free_bytes(device: Device, view: DeviceView | None) -> Reading[int]:
    """Free memory for a rank on that GPU: what torch has, which on a MIG instance is a part of it."""
    if view is None or (isinstance(view.memory_free_bytes, Missing) and device.mig_mode != "enabled"):
        return device.memory_free_bytes
    return view.memory_free_bytes  # the whole GPU's shows nothing of an instance's


def _why_no_memory(device: Device, view: DeviceView | None, holders: str) -> str | None:
    """Why no rank has room on that GPU, in use and not broken; None if one has, or unknown."""
    free = free_bytes(device, view)
    # Until a context starts, its own memory is free too.
    needed = _CONNECTION_BYTES if view is not None and _starts(view) else _CONNECTION_BYTES + _CONTEXT_BYTES
    if isinstance(free, Missing) or free >= needed:
        return None
    total = device.memory_total_bytes
    of_all = "" if isinstance(total, Missing) or device.mig_mode == "enabled" else f" of {format_size(total)}"
    by = f": {holders}" if holders else ""
    seen = device.memory_free_bytes
    if not by and not isinstance(seen, Missing) and not _nvml_agrees(device, needed):
        by = f"; NVML counts {format_size(seen)} as free, so a limit of torch's own may apply"
    return (
        f"{format_size(free)}{of_all} of its memory are free, and a rank with"
        f" NCCL needs {format_size(needed)}{by}"
    )


def _nvml_agrees(device: Device, needed: int) -> bool:
    """Whether NVML too shows that a GPU lacks the memory, or nothing; not asked of MIG instances."""
    free = device.memory_free_bytes
    return isinstance(free, Missing) or free < needed or device.mig_mode == "enabled"


def visibility_for(snapshot: Snapshot, chosen: Sequence[GpuFitness]) -> dict[str, str]:
    """CUDA_VISIBLE_DEVICES with the chosen GPUs only, where torch counts others too."""
    if not _must_hide(snapshot, chosen):
        return {}
    return {"CUDA_VISIBLE_DEVICES": ",".join(str(gpu.cuda_name) for gpu in chosen)}


def _must_hide(snapshot: Snapshot, chosen: Sequence[GpuFitness]) -> bool:
    """Whether torch sees more than `chosen`: a GPU faulty, in use or unknown to NVML, or a MIG instance."""
    return sum(view.source == "torch" for view in snapshot.views) > len(chosen)


def _why_unfit(device: Device, view: DeviceView | None, findings: Sequence[Finding]) -> str | None:
    if isinstance(device.responding, Missing):
        return "it gives no readings"
    for finding in findings:
        if finding.outcome is Outcome.FAIL and _is_of(finding, device):
            return f"it is faulty ({finding.code})"
    if view is None:
        return "torch does not see it"
    return None if _starts(view) else _NO_CONTEXT


def _is_of(finding: Finding, device: Device) -> bool:
    subject = finding.subject
    if not isinstance(subject, DeviceSubject):
        return False
    if isinstance(subject.uuid, Missing) or isinstance(device.id.uuid, Missing):
        return not isinstance(device.id.bus_id, Missing) and subject.bus_id == device.id.bus_id
    return subject.uuid == device.id.uuid


def _torch_view(snapshot: Snapshot, device: Device) -> DeviceView | None:
    """The GPU as torch shows it; a MIG instance has a UUID of its own, and its GPU's bus id."""
    found = [
        view
        for view in snapshot.views
        if view.source == "torch"
        and (_same(view.uuid, device.id.uuid) or _same(view.bus_id, device.id.bus_id))
    ]
    return next((view for view in found if _starts(view)), found[0] if found else None)


def _same(one: Reading[str], other: Reading[str]) -> bool:
    return not isinstance(one, Missing) and one == other


def _starts(view: DeviceView) -> bool:
    return view.source == "torch" and view.context_starts is True


def _cuda_order(gpu: GpuFitness) -> tuple[bool, int]:
    return gpu.view is None, 0 if gpu.view is None else gpu.view.source_index


def may_have_own_gpus(snapshot: Snapshot, ranks: int, usable: Sequence[GpuFitness]) -> bool:
    """Whether the launcher may have shown each rank its own GPU: this process sees one of several.

    Whether it really has, the ranks find out together (ranks/rank/device.py).
    """
    return len(usable) == 1 and max(len(snapshot.devices), len(pci_gpus(snapshot))) >= ranks


def sharing_for(snapshot: Snapshot, ranks: int, usable: Sequence[GpuFitness]) -> dict[str, str]:
    """The environment variables that let two NCCL ranks share the only GPU.

    Source: NCCL 2.30 release notes and docs, NCCL_MULTI_RANK_GPU_ENABLE (experimental).

    Raises:
        UsageError: they cannot; the message names what they would need.
    """
    if (ranks, len(usable)) != (2, 1):
        raise UsageError(
            f"{ranks} NCCL ranks need {ranks} GPUs on this machine, and {len(usable)} can be used",
            hint=f"--nproc {len(usable)}, or see `gpudiag list`",
        )
    version = "unknown" if isinstance(snapshot.torch, Missing) else snapshot.torch.nccl_version
    if isinstance(version, Missing) or _version(version) < _SHARING_SINCE:
        raise UsageError(
            "two NCCL ranks on one GPU need NCCL 2.30 or later, and torch"
            f" calls {_describe_version(version)}",
            hint=(
                "--nproc 1, or a newer NCCL (its wheel, or a newer torch); --backend"
                " gloo runs any number on the CPU"
            ),
        )
    return {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def has_float8(snapshot: Snapshot, usable: Sequence[GpuFitness]) -> bool:
    """Whether torch, NCCL and every GPU are new enough for 8-bit floats (NCCL 2.24 release notes)."""
    torch = snapshot.torch
    if isinstance(torch, Missing) or _version(torch.version.partition("+")[0]) < _FLOAT8_TORCH:
        return False
    if isinstance(torch.nccl_version, Missing) or _version(torch.nccl_version) < _FLOAT8_NCCL:
        return False
    capabilities = [gpu.device.compute_capability for gpu in usable]
    return all(
        not isinstance(found, Missing) and _version(found) >= _FLOAT8_CAPABILITY for found in capabilities
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdecimal())


def _describe_version(version: Reading[str]) -> str:
    return "no NCCL" if isinstance(version, Missing) else f"NCCL {version}"


# --- where

_CPU_BUILD = "without a GPU: PyTorch's CPU build, as pytorch.org shows under Start Locally"
_CPU_MAX_BYTES = 64 * MIB
_GPU_MAX_BYTES = 8 * GIB
# Shares of a GPU's or the host's free memory: a job may start and need some while we measure. A size that
# the user asks for may take the larger share.
_MEMORY_SHARE, _ASKED_MEMORY_SHARE = 0.4, 0.8
# GPU memory of a rank besides its buffers: NCCL's connections (a margin by design, of their order), and the
# CUDA context of each rank but the first, whose own existed when torch read the free memory.
_CONNECTION_BYTES, _CONTEXT_BYTES = GIB, CONTEXT_BYTES

SnapshotTaker = Callable[[Sequence[str], float], Snapshot]


@dataclass(frozen=True, slots=True)
class RanksWanted:
    """The ranks that a command wants: device, number (None: one a GPU), buffer sizes.

    Each has `buffers` of `max_bytes`; None: what fits, at least `min_bytes`.
    """

    backend: str
    nproc: int | None
    deadline_seconds: float  # of the look at the GPUs
    min_bytes: int = 0
    max_bytes: int | None = None
    buffers: int = 1


@dataclass(frozen=True, slots=True)
class Placement:
    """Where ranks run, the faults of this machine found on the way, and the ranks' environment variables.

    `variables` are set for the ranks: they hide faulty GPUs.
    """

    backend: str
    world_size: int
    max_bytes: int = 0  # the largest size of a collective
    variables: Mapping[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    snapshot: Snapshot | None = None
    devices: tuple[Device, ...] = ()  # the GPUs of this host that take part
    untested: tuple[Untested, ...] = ()  # for tests: the GPUs that are left out, and why
    shared: tuple[
        Untested, ...
    ] = ()  # for tests: the GPUs that are tested though others use them, and who does
    ranks_share_gpu: bool = False
    without_gpu: bool = False  # on the CPU because there is no GPU, not because the user chose it
    float8: bool = False  # NCCL reduces 8-bit floats on these GPUs

    @property
    def device_kind(self) -> str:
        """What ranks work on: `cuda` or `cpu`."""
        return "cuda" if self.backend == "nccl" else "cpu"


def why_unmet(placement: Placement, *, one_machine: bool) -> Finding | None:
    """The fault of this host that prevents the ranks' rendezvous, if it shows before they are started."""
    by_loopback = placement.backend == "gloo" and one_machine and not os.environ.get("GLOO_SOCKET_IFNAME")
    return judge_interfaces(placement.snapshot.machine) if by_loopback and placement.snapshot else None


def why_no_peers(placement: Placement) -> str | None:
    """Why no rank can copy to another one's GPU; None if they can."""
    if placement.world_size < 2:
        return "there is one GPU to test, and no peer"
    return describe_exclusive(placement.devices)


def place_tests(
    snapshot: Snapshot, findings: Sequence[Finding], expected_gpus: Reading[int], *, force: bool
) -> Reading[Placement]:
    """Where disruptive tests may run: healthy, unused GPUs, or the CPU if there is no GPU; else why not.

    IN_USE if GPUs are in use without `--force`; NOT_SUPPORTED if nothing here can compute; ERROR if
    it should be possible and is not.
    """
    absent = _why_no_torch(snapshot)
    if absent is not None:
        return absent
    if not gpu_traces(snapshot, expected_gpus):
        return Placement("gloo", DEFAULT_CPU_RANKS, snapshot=snapshot, without_gpu=True)
    broken = why_no_cuda(snapshot, expected_gpus)
    if broken is not None:
        return broken
    judged = [_for_tests(gpu) for gpu in judge_gpus(snapshot, findings)]
    able = [gpu for gpu in judged if gpu.unfit is None and gpu.lacks_memory is None]
    chosen = [gpu for gpu in able if force or gpu.in_use is None]
    left = tuple(gpu.as_untested() for gpu in judged if gpu not in chosen)
    if not chosen:
        busy = any(one.in_use for one in left)
        words = "; ".join(f"{one.name}: {one.reason}" for one in left) or "no GPU can be used"
        hint = " (--force tests GPUs in use)" if busy else ""
        full = any(gpu.lacks_memory and gpu.unfit is None and gpu.is_held for gpu in judged)
        reason = MissingReason.IN_USE if busy or full else MissingReason.ERROR
        return Missing(reason, f"{NOT_TESTED}, because no GPU is free: {words}{hint}")
    return Placement(
        "nccl",
        len(chosen),
        variables=visibility_for(snapshot, chosen),
        snapshot=snapshot,
        devices=tuple(gpu.device for gpu in chosen),
        untested=left,
        shared=tuple(gpu.as_untested() for gpu in chosen if gpu.in_use is not None),
    )


def _for_tests(gpu: GpuFitness) -> GpuFitness:
    """The GPU as a test may use it, which must not disturb a job."""
    if gpu.unfit is not None:
        return gpu
    if gpu.device.mig_mode == "enabled":
        return replace(gpu, unfit="MIG is on: its instances belong to jobs")
    return replace(gpu, unfit=UNNAMED) if gpu.cuda_name is None else gpu


def _why_no_torch(snapshot: Snapshot) -> Missing | None:
    """Why no rank can start, with or without a GPU."""
    if not isinstance(snapshot.torch, Missing):
        return None
    if snapshot.torch.reason is MissingReason.SOURCE_ABSENT:
        reason = snapshot.source("torch").reason or f"torch is not installed: {pip_command('torch')}"
        return Missing(MissingReason.ERROR, f"{reason} ({_CPU_BUILD})")
    words = snapshot.torch.detail or snapshot.source("torch").reason or explain_missing(snapshot.torch)
    return Missing(MissingReason.ERROR, f"torch did not answer: {words}")


def place_ranks(
    wanted: RanksWanted,
    environment: RankEnvironment | None,
    *,
    python: str | None = None,
    take: SnapshotTaker | None = None,
    ask_torch: TorchStarter | None = None,
) -> Placement:
    """Where those ranks run on this machine; GPUs are examined unless they are of gloo.

    `python` is the interpreter whose torch the ranks run; `ask_torch` starts the child that asks it.

    Raises:
        UsageError: more ranks are asked for than there are GPUs, or than the launcher started.
        SourceAbsentError: NCCL is asked for, and there is no trace of a GPU.
        SourceFailedError: there is a trace of a GPU, and torch cannot use it; with the cause.
    """
    asked_ranks = _asked_ranks(wanted, environment)
    take = take or partial(_probe_machine, python, ask_torch)
    if wanted.backend == "gloo":
        return _on_cpu(wanted, environment, asked_ranks, take((), wanted.deadline_seconds))
    snapshot = take(("nvml",), wanted.deadline_seconds)
    if not gpu_traces(snapshot):
        if wanted.backend == "nccl":
            raise SourceAbsentError(
                "--backend nccl needs a GPU, and there is no trace of one here",
                hint="see `gpudiag list --sources all`; --backend gloo runs on the CPU",
            )
        return replace(_on_cpu(wanted, environment, asked_ranks, snapshot), without_gpu=True)
    if snapshot.simulated is None:
        snapshot = take(("nvml", "torch"), wanted.deadline_seconds)
    return _on_gpus(wanted, environment, asked_ranks, snapshot)


def _probe_machine(
    python: str | None, ask_torch: TorchStarter | None, sources: Sequence[str], deadline_seconds: float
) -> Snapshot:
    """The snapshot that the probes take; they are imported only if GPUs are examined."""
    from gpudiag.probe.inventory import take_snapshot

    return take_snapshot(sources, deadline_seconds, python=python, ask_torch=ask_torch)


def _asked_ranks(wanted: RanksWanted, environment: RankEnvironment | None) -> int | None:
    if environment is None:
        return wanted.nproc
    if wanted.nproc not in (None, environment.world_size):
        raise UsageError(
            f"--nproc {wanted.nproc} contradicts the {environment.world_size} ranks that "
            f"{environment.launcher.value} started",
            hint="leave out --nproc",
        )
    return environment.world_size


def _on_cpu(
    wanted: RanksWanted, environment: RankEnvironment | None, asked_ranks: int | None, snapshot: Snapshot
) -> Placement:
    world_size = asked_ranks or DEFAULT_CPU_RANKS
    here = environment.local_world_size if environment is not None else world_size
    available = snapshot.machine.memory_available_bytes
    fitting = _fitting_bytes(wanted, available, here)
    possible = _fitting_bytes(wanted, available, here, _ASKED_MEMORY_SHARE)
    asked = wanted.min_bytes if wanted.max_bytes is None else wanted.max_bytes
    if possible is not None and asked > possible:
        raise UsageError(
            f"{format_size(asked)} need {format_size(asked * wanted.buffers * here)} for {here} ranks here,"
            f" more than {_ASKED_MEMORY_SHARE:.0%} of the memory that is available",
            hint=f"--max-bytes {possible} fits",
        )
    automatic = _CPU_MAX_BYTES if fitting is None else min(_CPU_MAX_BYTES, fitting)
    max_bytes = max(automatic, wanted.min_bytes) if wanted.max_bytes is None else wanted.max_bytes
    return Placement("gloo", world_size, max_bytes, snapshot=snapshot)


def _on_gpus(
    wanted: RanksWanted, environment: RankEnvironment | None, asked_ranks: int | None, snapshot: Snapshot
) -> Placement:
    broken = why_no_cuda(snapshot)
    if broken is not None:
        simulated = broken.reason is MissingReason.NOT_SUPPORTED
        look = "" if simulated else "see `gpudiag list --sources all`; "
        raise SourceFailedError(broken.detail, hint=f"{look}--backend gloo runs on the CPU")
    judged = (*judge_snapshot(snapshot).findings(), *_judge_contexts(snapshot))
    findings = tuple(finding for finding in judged if finding.outcome in (Outcome.FAIL, Outcome.ERROR))
    gpus = judge_gpus(snapshot, findings)
    usable = [gpu for gpu in gpus if gpu.unfit is None]
    if not usable:
        why = "; ".join(f"{gpu.name}: {gpu.unfit}" for gpu in gpus)
        raise SourceFailedError(
            f"none of the GPUs here can be used ({why})",
            hint="see `gpudiag` and `gpudiag list --sources all`",
        )
    usable = _with_memory(usable, asked_ranks if environment is None else environment.local_world_size)
    world_size = asked_ranks or len(usable)
    here = environment.local_world_size if environment is not None else world_size
    shown_one = environment is not None and may_have_own_gpus(snapshot, here, usable)
    shared = here > len(usable) and not shown_one
    on_each = 1 if shown_one else -(-here // len(usable))
    _refuse_too_large(snapshot, usable, wanted, on_each)
    asked = wanted.max_bytes
    return Placement(
        backend="nccl",
        world_size=world_size,
        max_bytes=_largest_for(usable, wanted, on_each) if asked is None else asked,
        variables={
            **visibility_for(snapshot, usable),
            **(sharing_for(snapshot, here, usable) if shared else {}),
        },
        findings=findings,
        snapshot=snapshot,
        devices=tuple(gpu.device for gpu in usable[:here]),
        ranks_share_gpu=shared,
        float8=has_float8(snapshot, usable),
    )


def _judge_contexts(snapshot: Snapshot) -> tuple[Finding, ...]:
    """Findings on why CUDA contexts do not start on some of the GPUs, which are left out."""
    return tuple(
        finding for result in run_checks(Context(snapshot), (cuda_context,)) for finding in result.findings
    )


def _largest_for(usable: Sequence[GpuFitness], wanted: RanksWanted, ranks: int) -> int:
    """The largest size whose buffers fit in the share of the free memory of the fullest GPU."""
    known = _fitting_on(usable, wanted, ranks, _MEMORY_SHARE)
    return max(min([_GPU_MAX_BYTES, *known] if known else [_CPU_MAX_BYTES]), wanted.min_bytes)


def _with_memory(usable: Sequence[GpuFitness], ranks: int | None) -> list[GpuFitness]:
    """Those of the GPUs with room for a rank, or `ranks` of them. Raises SourceFailedError: too few."""
    able = [gpu for gpu in usable if gpu.lacks_memory is None]
    if len(able) >= (len(usable) if ranks is None else min(ranks, len(usable))):
        return able
    full = [f"{gpu.name}: {gpu.lacks_memory}" for gpu in usable if gpu.lacks_memory is not None]
    others = f", or run on the others: --nproc {len(able)}" if able else ""
    raise SourceFailedError(
        "; ".join(full),
        hint=f"wait for the process that holds the memory, or end it if it was left behind{others}",
    )


def _refuse_too_large(
    snapshot: Snapshot, usable: Sequence[GpuFitness], wanted: RanksWanted, ranks: int
) -> None:
    """Return if the largest size fits on every GPU, with that many ranks on each.

    Raises:
        UsageError: it does not fit; the message names what would, and who holds the memory.
    """
    asked = wanted.min_bytes if wanted.max_bytes is None else wanted.max_bytes
    possible = min(_fitting_on(usable, wanted, ranks, _ASKED_MEMORY_SHARE), default=asked)
    if asked <= possible:
        return
    needed = format_size(asked * wanted.buffers * ranks)
    held = [(gpu.name, describe_holders(gpu.device, snapshot.taken_at)) for gpu in usable]
    who = "".join(f"; {name}: {words}" for name, words in held if words)
    flag = "--min-bytes" if wanted.min_bytes > possible else "--max-bytes"
    raise UsageError(
        f"{format_size(asked)} need {needed} of each GPU, more than {_ASKED_MEMORY_SHARE:.0%} of the "
        f"memory that is free there{who}",
        hint=f"{flag} {possible} fits",
    )


def _fitting_on(usable: Sequence[GpuFitness], wanted: RanksWanted, ranks: int, share: float) -> list[int]:
    """The largest size on each GPU whose free memory is known, with that many ranks on it."""
    beside = ranks * _CONNECTION_BYTES + (ranks - 1) * _CONTEXT_BYTES
    free = [free_bytes(gpu.device, gpu.view) for gpu in usable]
    left = [max(0, size - beside) for size in free if not isinstance(size, Missing)]
    return [size for one in left if (size := _fitting_bytes(wanted, one, ranks, share)) is not None]


def _fitting_bytes(
    wanted: RanksWanted, free: Reading[int], ranks: int, share: float = _MEMORY_SHARE
) -> int | None:
    """The largest size of which that many ranks' buffers fit in the share of `free`; None if unknown."""
    return None if isinstance(free, Missing) else int(free * share / wanted.buffers / ranks)
