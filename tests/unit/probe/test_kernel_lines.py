from datetime import datetime, timedelta

import pytest

from gpudiag.compat import UTC
from gpudiag.model.kernel_log import KernelEventKind
from gpudiag.model.reading import NOT_ASKED
from gpudiag.probe.kernel_log.lines import (
    MAX_TEXT_CHARACTERS,
    parse_bus_id,
    parse_kernel_line,
)
from tests.kernel_lines import parse_kernel_lines
from tests.walking import walk

BUS_ID = "00000000:5d:00.0"


def parse(text):
    return parse_kernel_line(text, NOT_ASKED)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            {"xid_code": 79, "bus_id": BUS_ID, "pid": None, "process": None},
        ),
        (
            "[ 4242.5] NVRM: Xid (PCI:0000:5d:00): 31, pid=4711, name=python3, Ch 00000010, intr 00000000. MMU Fault",
            {"xid_code": 31, "bus_id": BUS_ID, "pid": 4711, "process": "python3"},
        ),
        (
            "NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101, intr 10000000",
            {"xid_code": 31, "bus_id": "00000000:03:00.0", "pid": None},
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", {"xid_code": 14, "bus_id": "00000000:03:00.0"}),
        (
            "NVRM: NVRM: Xid (PCI:0001:00:00.0): 79, GPU has fallen off the bus",
            {"xid_code": 79, "bus_id": "00000001:00:00.0"},
        ),
        (
            "NVRM: Xid (GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7): 48, An uncorrectable double bit error",
            {"xid_code": 48, "bus_id": None, "gpu_uuid": "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"},
        ),
        (
            "NVRM: Xid (PCI:0000:c1:00 GPU-I:05): 94, pid=77, name=ray::Worker, Contained: SM (0x1). RST: No",
            {
                "xid_code": 94,
                "bus_id": "00000000:c1:00.0",
                "pid": 77,
                "process": "ray::Worker",
                "gpu_uuid": None,
            },
        ),
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            {"xid_code": 45, "caused_by_xid": 149},
        ),
        (
            "NVRM: Xid (PCI:0000:5f:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            {"xid_code": 154, "recovery_action": "gpu_reset"},
        ),
        (
            "NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            {"xid_code": 154, "recovery_action": "node_reboot"},
        ),
        (
            "NVRM: Xid (PCI:0000:0d:00): 154, GPU recovery action changed from 0x1 (PF FLR) to 0x0 (None)",
            {"xid_code": 154, "recovery_action": "none"},
        ),
        (
            "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08 (0x004505c6 0x0 0x0 0x0 0x0 0x0)",
            {"xid_code": 149, "unit": "NETIR_LINK_EVT", "severity": "fatal", "link": 8, "subcode": 4},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 145, pid=87, name=ray::W, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2 0x8)",
            {
                "xid_code": 145,
                "unit": "RLW_RXPIPE",
                "severity": "nonfatal",
                "link": 13,
                "subcode": 0,
                "pid": 87,
            },
        ),
        (
            "NVRM: Xid (PCI:0019:01:00): 149, NETIR Fatal XC0 i0 Link -1 (0x000fe406 0x0 0x0 0x0 0x0 0x0)",
            {"xid_code": 149, "unit": "NETIR", "severity": "fatal", "link": None},
        ),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error",
            {
                "sxid_code": 12028,
                "severity": "nonfatal",
                "link": 32,
                "unit": "nvswitch3",
                "bus_id": "00000000:05:00.0",
            },
        ),
        (
            "nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a}",
            {"sxid_code": 12028, "severity": None, "link": None},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12",
            {"sxid_code": 23001, "severity": "fatal"},
        ),
        (
            "NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.",
            {"kind": KernelEventKind.GPU_OFF_BUS, "bus_id": BUS_ID},
        ),
        (
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
            {"kind": KernelEventKind.PCIE_ERROR, "severity": "fatal", "bus_id": "00000000:00:03.0"},
        ),
        (
            "pcieport 0000:00:03.0: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Transaction Layer",
            {"kind": KernelEventKind.PCIE_ERROR, "severity": "nonfatal"},
        ),
        (
            "pcieport 0000:00:1c.5: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=00e5(Receiver ID)",
            {"kind": KernelEventKind.PCIE_ERROR, "severity": "corrected"},
        ),
        (
            "Out of memory: Killed process 4242 (python3) total-vm:1kB, anon-rss:1kB",
            {"kind": KernelEventKind.OUT_OF_MEMORY_KILL, "pid": 4242, "process": "python3"},
        ),
        (
            "Memory cgroup out of memory: Killed process 17 (pt_main_thread) total-vm:1kB",
            {"kind": KernelEventKind.OUT_OF_MEMORY_KILL, "pid": 17, "process": "pt_main_thread"},
        ),
        (
            "watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:99]",
            {"kind": KernelEventKind.SOFT_LOCKUP, "pid": 99, "process": "nvidia-smi"},
        ),
        (
            "INFO: task python3:4711 blocked for more than 120 seconds.",
            {"kind": KernelEventKind.BLOCKED_TASK, "pid": 4711, "process": "python3"},
        ),
        # R418 to R470: no process, or a bare pid; the function, or no domain.
        (
            "NVRM: Xid (PCI:0000:5d:00): 31, pid=4711, Ch 00000010, intr 00000000. MMU Fault",
            {"xid_code": 31, "bus_id": BUS_ID, "pid": 4711, "process": None},
        ),
        ("NVRM: Xid (PCI:0000:5d:00.0): 62, 2cbc 5f0d", {"xid_code": 62, "bus_id": BUS_ID}),
        ("NVRM: Xid (PCI:5d:00): 61, 0cec(3098) 00000000", {"xid_code": 61, "bus_id": BUS_ID}),
        ("NVRM: Xid (PCI:0000:3f:00): 46", {"xid_code": 46, "bus_id": "00000000:3f:00.0"}),
        (
            "NVRM: GPU at 0000:5d:00.0 has fallen off the bus.",
            {"kind": KernelEventKind.GPU_OFF_BUS, "bus_id": BUS_ID},
        ),
        # R510 and later: a compute instance of MIG; a process without a name; names with spaces and brackets.
        (
            "NVRM: Xid (PCI:0000:5d:00 GPU-I:05 GPU-CI:00): 43, pid=77, name=python3, Ch 00000008",
            {"xid_code": 43, "bus_id": BUS_ID, "pid": 77, "gpu_uuid": None},
        ),
        (
            "NVRM: Xid (PCI:0000:5d:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row marked",
            {"xid_code": 63, "bus_id": BUS_ID, "pid": None, "process": None},
        ),
        (
            "NVRM: Xid (PCI:0000:5d:00): 13, pid='4711', name=nvc:[driver] x, Graphics Exception on (GPC 2, TPC 3, SM 0)",
            {"xid_code": 13, "pid": 4711, "process": "nvc:[driver] x", "place": "GPC 2, TPC 3"},
        ),
        # R575 and later: units by their resolved names, the error in the second word.
        (
            "NVRM: Xid (PCI:0018:01:00): 149, NETIR_LINK_DOWN Fatal XC0 i0 Link 09 (0x025525c6 0x00000004 0x0 0x0)",
            {"unit": "NETIR_LINK_DOWN", "severity": "fatal", "link": 9, "subcode": 37, "error": 4},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 146, TLW_RX/TLW_RX_PIPE0 Nonfatal XC1 i0 Link 02 (0x00000143 0x80000000)",
            {"unit": "TLW_RX/TLW_RX_PIPE0", "severity": "nonfatal", "error": 0x80000000},
        ),
        (
            "NVRM: Xid (PCI:0018:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x9 (Something New)",
            {"xid_code": 154, "recovery_action": "unknown_9"},
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:c4:00.0): 10002, Severity 5 Engine instance 00 Sub-engine instance 00",
            {"sxid_code": 10002, "severity": None, "link": None, "unit": "nvswitch2"},
        ),
        ("mce: [Hardware Error]: Machine check events logged", {"kind": KernelEventKind.MACHINE_CHECK}),
        (
            "EDAC MC0: 1 UE memory read error on CPU_SrcID#0",
            {"kind": KernelEventKind.MACHINE_CHECK, "severity": "fatal"},
        ),
    ],
)
def test_each_layout_is_taken_apart(text, expected):
    event = parse(text)
    assert {name: getattr(event, name) for name in expected} == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08",
        "NVRM: GPU at PCI:0000:5d:00: GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7",
        "NVRM: Xid message without a number",
        "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): garbled, Fatal",
        "the train has fallen off the bus",
        "pcieport 0000:00:03.0: AER: enabled with IRQ 24",
        "INFO: task list cleared",
    ],
)
def test_other_lines_are_no_events(text):
    assert parse(text) is None


def test_a_gpu_named_two_lines_earlier_is_the_one_that_fell_off_the_bus():
    lines = [
        (NOT_ASKED, "NVRM: The NVIDIA GPU 0000:5d:00.0"),
        (NOT_ASKED, "NVRM: (PCI ID: 10de:2330) installed in this system has"),
        (NOT_ASKED, "NVRM: fallen off the bus and is not responding to commands."),
    ]
    (event,) = parse_kernel_lines(lines)
    assert (event.kind, event.bus_id) == (KernelEventKind.GPU_OFF_BUS, BUS_ID)


def test_an_xid_knows_the_board_that_an_earlier_line_named():
    uuid = "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"
    lines = [
        (NOT_ASKED, f"NVRM: GPU at PCI:0000:5d:00: {uuid}"),
        (NOT_ASKED, "NVRM: GPU Board Serial Number: 1650123004567"),
        (NOT_ASKED, "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."),
        (NOT_ASKED, "NVRM: Xid (PCI:0000:18:00): 43, Ch 00000008"),
    ]
    assert [(event.xid_code, event.gpu_uuid) for event in parse_kernel_lines(lines)] == [
        (79, uuid),
        (43, None),
    ]


def test_a_long_line_is_cut():
    event = parse("NVRM: Xid (PCI:0000:5d:00): 13, " + "x" * 5000)
    assert event.xid_code == 13
    assert len(event.text) == MAX_TEXT_CHARACTERS


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("0000:5D:00", BUS_ID),
        ("5d:00.0", BUS_ID),
        ("00000000:5d:00.0", BUS_ID),
        ("10000:81:00.0", "00010000:81:00.0"),
        ("12:34:56:78:9a:bc", None),
        ("no address", None),
    ],
)
def test_bus_ids_take_one_form(text, bus_id):
    assert parse_bus_id(text) == bus_id


RECORD = """{3}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 1
{3}[Hardware Error]: event severity: recoverable
{3}[Hardware Error]:  Error 0, type: recoverable
{3}[Hardware Error]:   section_type: SECTION
{3}[Hardware Error]:   port_type: 4, root port
{3}[Hardware Error]:   device_id: 0000:5d:00.0"""


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ("PCIe error", (KernelEventKind.PCIE_ERROR, "nonfatal", BUS_ID, None)),
        ("memory error", (KernelEventKind.MACHINE_CHECK, "nonfatal", None, "memory")),
        ("ARM processor error", (KernelEventKind.MACHINE_CHECK, "nonfatal", None, "processor")),
        ("unknown, fbcd0a77", (KernelEventKind.MACHINE_CHECK, "nonfatal", None, None)),
    ],
)
def test_a_record_of_the_firmware_is_one_event_about_its_part(section, expected):
    lines = RECORD.replace("SECTION", section).splitlines()
    (event,) = parse_kernel_lines((NOT_ASKED, line) for line in lines)
    assert (event.kind, event.severity, event.bus_id, event.unit) == expected


@pytest.mark.parametrize(
    ("text", "severity"),
    [
        ("mce: [Hardware Error]: Machine check events logged", "corrected"),
        ("mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 9: cc00008000010092", "corrected"),
        ("mce: [Hardware Error]: CPU 0: Machine Check Exception: 5 Bank 9: be00000000800400", "fatal"),
        ("[Hardware Error]: Corrected error, no action required.", "corrected"),
        ("[Hardware Error]: Deferred error, no action required.", "nonfatal"),
        ("[Hardware Error]: Uncorrected, software restartable error.", "fatal"),
        ("{1}[Hardware Error]: event severity: info", "corrected"),
        ("{1}[Hardware Error]: event severity: fatal", "fatal"),
        ("EDAC skx MC0: 3 CE memory read error on CPU_SrcID#0", "corrected"),
        ("Memory failure: 0x40fa6: Killing python3:1296 due to hardware memory corruption", "fatal"),
    ],
)
def test_a_machine_check_says_whether_it_was_corrected(text, severity):
    assert parse(text).severity == severity


@pytest.mark.parametrize(
    ("text", "bus_id"),
    [
        ("NVRM: GPU 0000:5d:00.0: RmInitAdapter failed! (0x24:0x72:1447)", BUS_ID),
        ("NVRM: GPU 0000:5d:00.0: rm_init_adapter failed, device minor number 0", BUS_ID),
        ("NVRM: RmInitAdapter failed! (0x26:0x38:1170)", None),
        ("NVRM: GPU0 RmInitAdapter: Cannot initialize GSP firmware RM", None),
        ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:5d:00.0)", BUS_ID),
        ("nvidia: probe of 0000:5d:00.0 failed with error -1", BUS_ID),
        ("nvidia 0000:5d:00.0: probe with driver nvidia failed with error -1", BUS_ID),
        ("NVRM: The NVIDIA probe routine failed for 1 device(s).", None),
    ],
)
def test_a_gpu_that_did_not_start_is_known_by_its_address(text, bus_id):
    event = parse(text)
    assert (event.kind, event.bus_id) == (KernelEventKind.GPU_NOT_STARTED, bus_id)


@pytest.mark.parametrize(
    "text",
    [
        "mlx5_core: probe of 0000:c1:00.0 failed with error -12",
        "NVRM: The NVIDIA probe routine was not called for 1 device(s).",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08",
        "{1}[Hardware Error]: It has been corrected by h/w and requires no further action",
        "watchdog: Delayed init of the lockup detector failed: -19",
        "rcu: INFO: rcu_preempt kthread starved for 9 jiffies! g-1195",
    ],
)
def test_lines_that_look_alike_are_no_events(text):
    assert parse(text) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("watchdog: CPU3: Watchdog detected hard LOCKUP on cpu 3", KernelEventKind.HARD_LOCKUP),
        ("INFO: rcu_sched detected stalls on CPUs/tasks:", KernelEventKind.RCU_STALL),
        (
            "rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-... } 21 jiffies",
            KernelEventKind.RCU_STALL,
        ),
        (
            "INFO: task python3:4711 blocked in I/O wait for more than 122 seconds.",
            KernelEventKind.BLOCKED_TASK,
        ),
        (
            "pcieport 0000:00:03.0: AER: Uncorrectable (Fatal) error message received from 0000:17:00.0",
            KernelEventKind.PCIE_ERROR,
        ),
    ],
)
def test_other_versions_of_a_line_are_known(text, kind):
    assert parse(text).kind is kind


FAULTS = (
    "NVRM: Xid (PCI:0000:5d:00): 119, pid=77, name=python3, Timeout after 45s of waiting for RPC response",
    "NVRM: GPU 0000:5d:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch0: SXid (PCI:0000:5d:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
)


def restart_of(fault: str, *later: str) -> str | None:
    """What the last of those lines say of the part that the first one is about."""
    first, *_ = parse_kernel_lines((NOT_ASKED, text) for text in (fault, *later))
    return first.restarted_by


@walk(
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.105.08  Release Build  (builder@host)",
        "pci 0000:5d:00.0: [10de:20b2] type 00 class 0x030200",
        "pci 0000:5d:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint",
        "nvidia 0000:5d:00.0: reset done",
        "vfio-pci 0000:5d:00.0: reset done",
        "gpudiag: GPU 0000:5d:00.0 was reset",
        "gpudiag: 5d:00.0 was reset",
        "gpudiag: all GPUs were reset",
    ]
)
def test_a_line_that_tells_of_a_restart_is_told_with_every_fault_before_it(text):
    assert parse(text) is None  # it is no event
    assert [restart_of(fault, text) for fault in FAULTS] == [text] * len(FAULTS)
    events = list(parse_kernel_lines([(NOT_ASKED, text), *((NOT_ASKED, fault) for fault in FAULTS)]))
    assert [event.restarted_by for event in events] == [None] * len(FAULTS)


@walk(
    [
        "pci 0000:5e:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint",
        "pci 0000:5d:00.0: [15b3:1021] type 00 class 0x020000",
        "pci 0000:5d:00.0: BAR 0 [mem 0xdc000000-0xdcffffff]",
        "nvidia 0000:5d:00.0: resetting",
        "nvidia 0000:5d:00.0: enabling device (0140 -> 0142)",
        "nvidia 0000:5e:00.0: reset done",
        "nvidia-modeset: Loading NVIDIA Kernel Mode Setting Driver for UNIX platforms  535.104.05",
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 510",
        "nvidia-uvm: Loaded the UVM driver, major device number 508.",
        "gpudiag: GPU 0000:5e:00.0 was reset",
    ]
)
def test_a_line_about_another_part_or_of_less_is_no_restart(text):
    assert [restart_of(fault, text) for fault in FAULTS] == [None] * len(FAULTS)


def test_a_gpu_that_root_calls_by_its_uuid_is_the_one_that_the_driver_names_so():
    uuid = "GPU-b850f46d-d5ea-c752-ddf3-c4453e44d3f7"
    lines = [f"NVRM: GPU at PCI:0000:5d:00: {uuid}", FAULTS[0], f"gpudiag: GPU {uuid} was reset"]
    (event,) = parse_kernel_lines((NOT_ASKED, line) for line in lines)
    assert event.restarted_by == lines[-1]


def test_the_first_restart_after_a_fault_is_told_with_it():
    other = FAULTS[0].replace("5d", "5e")
    lines = [FAULTS[0], "gpudiag: GPU 5d:00.0 was reset", other, "gpudiag: all GPUs were reset", FAULTS[0]]
    at = datetime(2026, 11, 20, 12, tzinfo=UTC)
    timed = [(at + timedelta(minutes=place), line) for place, line in enumerate(lines)]
    told = [(event.restarted_by, event.restarted_at) for event in parse_kernel_lines(timed)]
    assert told == [(lines[1], timed[1][0]), (lines[3], timed[3][0]), (None, None)]
