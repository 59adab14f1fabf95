"""What only level acceptance measures: every collective, every pair of network cards, the disks."""

from collections.abc import Iterator
from functools import partial

from gpudiag.checks.gpu.holders import describe_beside, own_pids
from gpudiag.checks.ranks.active import ON_CPU_RANKS
from gpudiag.checks.ranks.collective import (
    COLLECTIVE_SLOW,
    PLANNED_FINDINGS,
    judge_collective,
    judge_each_speed,
)
from gpudiag.checks.ranks.localisation import (
    EXCHANGE_HANGS,
    LINK_LOSSY,
    LINK_SLOW,
    NODE_LOSSY,
    NODE_SLOW,
    NOT_LOCALISED,
    RAIL_SLOW,
)
from gpudiag.checks.ranks.speed_list import collective_speeds
from gpudiag.checks.registry import (
    Basis,
    FindingKind,
    Judgement,
    Level,
    check,
    could_not_look,
    does_not_apply,
    judged,
)
from gpudiag.checks.subjects import host_finding
from gpudiag.model.active import DiskResult
from gpudiag.model.context import Context
from gpudiag.model.evidence import Evidence
from gpudiag.model.finding import Category, Finding, Outcome, Owner, Severity
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.units import format_size

_kind = partial(
    FindingKind,
    outcome=Outcome.FAIL,
    severity=Severity.ISOLATE,
    category=Category.HW_OTHER,
    owner=Owner.HARDWARE,
    basis=Basis(
        reads=(
            "A file of up to 512 MiB on each file system that jobs write to, written, forced to the disk,"
            " and read back past the page cache where the file system offers that."
        ),
        limit="No byte may differ, and the system may report no error of the device.",
        look_also=(
            "dmesg -T | grep -i -e ext4 -e xfs -e nvme -e nfs",
            "smartctl -a /dev/nvme0",
            "host.disk_read_only",
        ),
    ),
)
DISK_DATA_DIFFERS = _kind(
    code="host.disk_data_differs",
    meaning="A file that was written and read back holds other data, and nothing reported an error.",
    remedy=(
        "[hardware] Keep checkpoints off that file system; look for its errors with"
        " `dmesg -T`, and have the disk replaced."
    ),
)
DISK_IO_ERROR = _kind(
    code="host.disk_io_error",
    stated=True,
    meaning="The system reported an error of the device when a file was written there or read back.",
    remedy=(
        "[hardware] Keep checkpoints off that file system; look for its errors with"
        " `dmesg -T`, and have the disk replaced."
    ),
)


@check(
    "collective.operations",
    title="every collective gives exactly the right data, and is as fast as on machines of this kind",
    needs=("operations",),
    level=Level.ACCEPTANCE,
    reports=(*PLANNED_FINDINGS, COLLECTIVE_SLOW),
    readings=("operations",),
    confirmed=f"{ON_CPU_RANKS}; NCCL with one rank",
)
def collective_operations(context: Context) -> Judgement:
    """Everything wrong with any operation; WARN for each that is slow."""
    measured = context.measures.operations
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    wrong = judge_collective(measured)
    beside = describe_beside(context.snapshot, context.snapshot.devices, own_pids(context.measures))
    if beside:
        return judged(*wrong)  # the data count, and the speeds do not
    # Not against the past: that is what performance.drift is for.
    each = judge_each_speed(measured, context.snapshot.devices, context.environment, {})
    slow = tuple(
        finding for _, finding in each if finding is not None and finding.outcome is not Outcome.PASS
    )
    return judged(*wrong, *slow, speeds=collective_speeds(measured, each))


# Of GPUs of one machine, without labels of switches and without NVLink between them: findings on hosts and
# racks do not apply.
_OF_CARDS = (NODE_SLOW, RAIL_SLOW, LINK_SLOW, NODE_LOSSY, LINK_LOSSY, EXCHANGE_HANGS, NOT_LOCALISED)


@check(
    "network.card_pairs",
    title="every two GPUs exchange data by their network cards as fast as the others",
    needs=("card_pairs",),
    level=Level.ACCEPTANCE,
    reports=(*PLANNED_FINDINGS, *_OF_CARDS),
    readings=("card_pairs",),
    confirmed=f"{ON_CPU_RANKS}, by the exchanges of `nccl-test --localise`",
)
def network_card_pairs(context: Context) -> Judgement:
    """A finding for each GPU and card, or pair of these, that stands out; SKIP for too few ranks."""
    measured = context.measures.card_pairs
    assert not isinstance(measured, Missing)  # noqa: S101 - the need saw to it
    findings = (*judge_collective(measured),)
    if not findings and isinstance(measured.localisation, Missing):
        return does_not_apply(measured.localisation.detail or "no pair was measured")
    return judged(*findings)


@check(
    "host.disk_data",
    title="a file that is written where jobs write is read back as it was",
    needs=("disks",),
    level=Level.ACCEPTANCE,
    reports=(DISK_DATA_DIFFERS, DISK_IO_ERROR),
    readings=("disks",),
    confirmed="the Linux kernel's own files: overlayfs, tmpfs",
)
def host_disk_data(context: Context) -> Judgement:
    """FAIL for wrong data or an error of the device; ERROR without an answer; SKIP without room."""
    disks = context.measures.disks
    assert not isinstance(disks, Missing)  # noqa: S101 - the need saw to it
    findings = tuple(finding for disk in disks for finding in _judge_disk(context, disk))
    if findings:
        return judged(*findings)
    silent = [disk for disk in disks if _gave_no_answer(disk)]
    if silent:
        return could_not_look("; ".join(f"{disk.path}: {disk.failure}" for disk in silent))
    if any(disk.failure is None for disk in disks):
        return judged()
    why = "; ".join(f"{disk.path}: {disk.failure}" for disk in disks) or "no file system is listed"
    return does_not_apply(f"nothing could be written: {why}")


def _gave_no_answer(disk: DiskResult) -> bool:
    speed = disk.write_bytes_per_second
    return isinstance(speed, Missing) and speed.reason is not MissingReason.NOT_SUPPORTED


def _judge_disk(context: Context, disk: DiskResult) -> Iterator[Finding]:
    written = Evidence("size_bytes", disk.size_bytes, "bytes", source=f"a file in {disk.path}")
    if disk.is_fault:
        words = disk.failure or "an error"
        yield host_finding(context, DISK_IO_ERROR, f"{disk.path}: {words}", Evidence("error", words), written)
    elif disk.wrong_bytes:
        message = f"{disk.path}: {disk.wrong_bytes} bytes of {format_size(disk.size_bytes)} came back wrong"
        differs = Evidence("wrong_bytes", disk.wrong_bytes, "bytes", 0, "comparison with what was written")
        yield host_finding(context, DISK_DATA_DIFFERS, message, differs, written)
