"""One example of each document of the service, and of the store."""

from dataclasses import fields

from gpudiag.model.device import Device, GpuProcess, SourceState, SourceStatus
from gpudiag.model.explanation import Explanation, LogExplanation, LogRead, Role, Sighting, UnknownError
from gpudiag.model.finding import Outcome, Owner
from gpudiag.model.history import Baseline, History, KnownGpu, StoredRun
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.run import EventKind, NumberedEvent, Run, RunEvent, RunEvents, RunState
from gpudiag.model.service import (
    ActiveRun,
    DeviceDocument,
    DeviceSeries,
    ExplanationDocument,
    Findings,
    LastGood,
    Live,
    LiveDevice,
    Processes,
    ProcessUse,
    SamplerState,
    SamplerStatus,
    Series,
    ServiceHealth,
    Session,
    Sources,
    Timeline,
    TimelineEntry,
    TimelineKind,
    UserUse,
)
from gpudiag.model.topology import (
    MeasuredLink,
    NcclLevels,
    NicPath,
    Topology,
    TopologyDevice,
    TopologyLink,
    TopologyNic,
    TopologyNode,
    TopologySwitch,
)
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT, make_device

SILENT = Missing(MissingReason.TIMED_OUT, "no answer from nvmlDeviceGetName within 2.0 s")
NVML = SourceStatus("nvml", SourceState.OK, None, 0.01, 8)
ENTRY = TimelineEntry(
    1, TAKEN_AT, TimelineKind.XID, "GPU 5: Xid 79", "fail", "GPU-5", 5, 79, ("hw_slowdown",)
)
PROCESS = GpuProcess(1, "compute", NOT_SUPPORTED, False, SILENT, "train.py", NOT_SUPPORTED, TAKEN_AT)
_SHARED = tuple(field.name for field in fields(LiveDevice) if field.name in Device.__dataclass_fields__)


def make_live_device(device, **given):
    values = {
        "health": "fail",
        "finding_codes": ("gpu.hung",),
        "last_good_at": TAKEN_AT,
        "throttled": SILENT,
        "last_good": LastGood(TAKEN_AT, 98, 1024, NOT_SUPPORTED, 640.5, 1980),
        **{name: getattr(device, name) for name in _SHARED},
    }
    return LiveDevice(**{**values, **given})


def make_live():
    sampler = SamplerStatus(
        SamplerState.WEDGED, TAKEN_AT, 1.0, 2, 5.0, "GPU 5 hangs", TAKEN_AT, "nvmlDeviceGetName"
    )
    return Live(
        sequence=7,
        at=TAKEN_AT,
        host="a1",
        simulated="h100x8",
        version="0.1.0",
        driver_version="580.105.08",
        cuda_driver_version=NOT_SUPPORTED,
        verdict=None,
        headline="7 healthy, 1 hung",
        sampler=sampler,
        sources=(NVML,),
        devices=(make_live_device(make_device(5, responding=SILENT)),),
        findings_version=1,
        finding_count=0,
        findings=(),
        active_runs=(ActiveRun("20261120-1", "train", "queued", None, None),),
    )


def make_run():
    return Run(
        id="20261120-1",
        kind="nccl-test",
        state=RunState.SUCCEEDED,
        plan={
            "op": ("all_reduce",),
            "nproc": 2,
            "max_bytes": None,
            "unaligned": False,
            "timeout_seconds": 1.5,
        },
        gpus=("GPU-5",),
        lock=("GPU-5",),
        command="gpudiag nccl-test",
        deadline_seconds=3600.0,
        requested_at=TAKEN_AT,
        started_at=TAKEN_AT,
        outcome="pass",
        exit_status=0,
        progress=1.0,
    )


def make_topology():
    place = TopologyDevice("GPU-5", "00000000:05:00.0", 5, "NVIDIA H100", 0, 5, 16, 5, 16, 18, NOT_SUPPORTED)
    measured = MeasuredLink("peer_copy", 4e11, "B/s", TAKEN_AT)
    link = TopologyLink(
        "GPU-5", "GPU-6", "numa_node", "ok", NOT_SUPPORTED, 18, measured, "NV18", 4.8e11, "NVL", "P2P"
    )
    above = ("00000000:50:01.0", "00000000:51:00.0")
    nic = TopologyNic(
        "mlx5_0",
        "00000000:54:00.0",
        0,
        ("ib0",),
        0,
        "0-55",
        "pci0000:50",
        above,
        "InfiniBand",
        True,
        400.0,
        5,
        16,
        False,
    )
    return Topology(
        "a1",
        (place,),
        (link,),
        simulated="h100x8",
        nics=(nic,),
        nic_paths=(NicPath("GPU-5", "mlx5_0", "pcie_switch", "PIX", "PIX", True),),
        switches=(TopologySwitch("00000000:c5:00.0", NOT_SUPPORTED, "pci0000:c0", above),),
        numa_nodes=(TopologyNode(0, "0-55", ("00000000:05:00.0",), ("00000000:54:00.0",)),),
        nccl=NcclLevels("PXB", None, "P2C", "NCCL_NET_GDR_LEVEL=P2C", True, "2.30.7"),
        verdict=Outcome.PASS,
    )


def make_history():
    return History(
        "a1",
        "history.db",
        (StoredRun(1, "preflight", TAKEN_AT, "pass"),),
        (KnownGpu("GPU-5", "00000000:05:00.0", "NVIDIA H100", TAKEN_AT),),
        (Baseline("memory_copy", "B/s", "GPU-5", 1e12, 3, 1e12, TAKEN_AT),),
    )


SERVICE_EXAMPLES = [
    make_live(),
    DeviceDocument(TAKEN_AT, "a1", make_device(5), make_live_device(make_device(5)), ()),
    Processes(TAKEN_AT, (ProcessUse("GPU-5", 5, PROCESS, TAKEN_AT, True),), (UserUse("ann", 1024, 1, 1),)),
    make_topology(),
    Sources(TAKEN_AT, (NVML,), (), (), SILENT),
    Findings(3, "pass", TAKEN_AT, ()),
    ExplanationDocument(Explanation("gpu.lost", "FAIL", "off the bus", ("a fact",))),
    LogExplanation(
        (LogRead("job.log", 3), LogRead("core.1", 0, refused="it is a program or a core dump, not a log")),
        (
            Sighting(
                Explanation("disk.full", "a disk is full", "Why.", remedy="What."),
                Role.CAUSE,
                (2,),
                1,
                "OSError: [Errno 28] No space left on device",
                None,
                "job.log",
                (),
                "the kernel, through any program",
                Owner.JOB,
                "train.py:42 in main: save(model)",
            ),
        ),
        (UnknownError("ValueError: no", "job.log", 3, 2, "train.py:43 in main: check(loss)", "3"),),
    ),
    ServiceHealth(False, "0.1.0", TAKEN_AT, "wedged", "GPU 5 hangs", None, SILENT, 1, 2, 3, ("disk full",)),
    Session("read", False, True),
    make_run(),
    RunEvents("20261120-1", (NumberedEvent(4, RunEvent(EventKind.STAGE, 0.1, 0, 4, stage="import")),)),
    Series(
        1.0,
        2.0,
        4.0,
        1.0,
        1.0,
        (2.0, 3.0),
        (DeviceSeries("GPU-5", 5, None, {"pstate": (0.0, None)}),),
        (ENTRY,),
    ),
    Timeline((ENTRY,)),
    make_history(),
]
