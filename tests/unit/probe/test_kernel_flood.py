"""A grave line among thousands of others is kept, whatever the others are, and within bounds."""

from datetime import datetime

import pytest

from gpudiag.model.device import SourceState
from gpudiag.model.kernel_log import KernelEventKind
from gpudiag.model.reading import Missing
from gpudiag.probe.kernel_log.read import MAX_GROUPS, MAX_STRETCHES, KeptLines, Line, read_kernel_log
from tests.unit.probe.test_kmsg import BOOT, at, record

LINES = 6000
PATIENT_SECONDS = 60.0  # a busy machine is slow; what is found is asserted, not how fast
GRAVE = "NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LETTERS = "ghijklmnopqrstuvwxyz"


def xid(code, text="", gpu="5d", pid=77):
    return f"NVRM: Xid (PCI:0000:{gpu}:00): {code}, pid={pid}, name=python3, {text}"


FLOODS = {
    "of the same GPU": lambda n: xid(13, f"Graphics SM Warp Exception on (GPC {n % 7}, TPC {n % 9}, SM 1)"),
    "of the same GPU and many jobs": lambda n: xid(31, f"Ch {n:08x}, MMU Fault", pid=n),
    "of another GPU": lambda n: xid(31, f"Ch {n:08x}, MMU Fault", gpu="18"),
    "of many GPUs": lambda n: xid(45, f"Ch {n:08x}", gpu=f"{n % 256:02x}"),
    "of many codes": lambda n: xid(200 + n % 800, f"Ch {n:08x}"),
    "of SXids": lambda n: f"nvidia-nvswitch{n % 4}: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link {n % 64}",
    "of PCIe errors": lambda n: (
        f"pcieport 0000:{n % 256:02x}:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), {n}"
    ),
    "of kills for memory": lambda n: (
        f"Memory cgroup out of memory: Killed process {n} (w{LETTERS[n % 20]}) x"
    ),
    "of assertions": lambda n: (
        f"NVRM: nvAssertFailed: {LETTERS[n % 20]}{LETTERS[n // 20 % 20]}{LETTERS[n // 400 % 20]}"
    ),
    "of unrelated lines": lambda n: f'audit: type=1400 audit({n}): apparmor="DENIED" {n}',
}


def logged(flood, grave_at):
    lines = [flood(number) for number in range(LINES)]
    lines.insert(grave_at, GRAVE)
    return "".join(record(1 + number / 50, line, number) for number, line in enumerate(lines))


@pytest.mark.sliced
@pytest.mark.parametrize("grave_at", [0, LINES // 2, LINES])
@pytest.mark.parametrize("flood", FLOODS.values(), ids=FLOODS)
def test_a_grave_xid_is_found_in_a_flood(tmp_path, flood, grave_at):
    root = tmp_path
    for folder in ("proc", "dev"):
        (root / folder).mkdir()
    (root / "proc/stat").write_text(f"btime {BOOT}\n")
    (root / "dev/kmsg").write_text(logged(flood, grave_at))
    reading = read_kernel_log(root, deadline_seconds=PATIENT_SECONDS)
    assert not isinstance(reading.events, Missing), reading.status
    (grave,) = [event for event in reading.events if event.xid_code == 79]
    assert grave.at == at(1 + grave_at / 50)
    told = sum(1 + event.more for event in reading.events)
    events_in_flood = any(event.xid_code != 79 for event in reading.events)
    assert told == (LINES + 1 if events_in_flood else 1), "every line is kept or counted"


def taken(lines):
    kept = KeptLines()
    for order, (seconds, text) in enumerate(sorted(lines, reverse=True)):
        kept.add(Line(seconds, -order, text.encode()), b"NVRM")
    return kept


def test_the_first_and_the_last_line_of_each_stretch_are_kept():
    kept = taken([(second, xid(79)) for second in (0, 10, 20, 1000, 1010, 5000)])
    lines = sorted(kept.lines())
    assert [(line.seconds, line.more, line.until) for line in lines] == [
        (0, 1, 20),
        (20, 0, 20),
        (1000, 0, 1010),
        (1010, 0, 1010),
        (5000, 0, 5000),
    ]


def test_a_flood_of_many_jobs_is_one_stretch_of_time():
    kept = taken([(second, xid(31, f"Ch {second:08x}", pid=second)) for second in range(2000)])
    lines = sorted(kept.lines())
    reached = 0.0
    for line in lines:
        assert line.seconds - reached <= 180
        reached = max(reached, line.until)
    assert (len(lines) < 50, reached) == (True, 1999)


def test_only_equal_lines_are_repeated():
    assert taken([(second, xid(79)) for second in range(10)]).left_out() == (8, 0)
    assert taken([(second, xid(31, f"Ch {second:08x}")) for second in range(10)]).left_out() == (0, 8)


def test_lines_on_other_links_units_places_and_jobs_are_not_alike():
    nvlink = "NETIR_LINK_EVT Nonfatal XC0 i0 Link 08 (0x004505c6 0x00000000)"
    texts = [
        xid(149, nvlink),
        xid(149, nvlink.replace("Link 08", "Link 09")),
        xid(149, nvlink.replace("0x0045", "0x0085")),
        xid(149, nvlink.replace("Nonfatal", "Fatal")),
        xid(149, nvlink.replace("NETIR_LINK_EVT", "NETIR_BER_EVENT")),
        xid(13, "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 1): Out Of Range Address"),
        xid(13, "Graphics SM Warp Exception on (GPC 0, TPC 2, SM 1): Out Of Range Address"),
        xid(13, "Graphics SM Warp Exception on (GPC 0, TPC 2, SM 1): Out Of Range Address", pid=78),
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        xid(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"),
    ]
    kept = taken([(second, text) for second, text in enumerate(texts * 50)])
    assert {line.text for line in kept.lines()} == set(texts)


def test_what_is_kept_is_bounded():
    words = [f"{LETTERS[n % 20]}{LETTERS[n // 20 % 20]}{LETTERS[n // 400]}" for n in range(8000)]
    kept = taken([(1000.0 * n, xid(13, word)) for n, word in enumerate(words)])
    assert len(list(kept.lines())) <= 4 * MAX_STRETCHES * MAX_GROUPS
    assert sum(1 + line.more for line in kept.lines()) == len(words)


def test_lines_that_were_rotated_away_since_the_boot_are_read(tmp_path):
    import gzip
    import os

    def iso(seconds, text):
        return f"{at(seconds).isoformat()} a1 kernel: {text}\n"

    for folder in ("proc", "dev", "var/log"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/stat").write_text(f"btime {BOOT}\n")
    (tmp_path / "dev/kmsg").write_text(record(9000, "audit: flood", 70_000))
    log = tmp_path / "var/log"
    (log / "kern.log").write_text(iso(8000, "audit: flood") + iso(8500, xid(13)))
    (log / "kern.log.1").write_text(iso(5000, "audit: flood") + iso(6000, GRAVE))
    with gzip.open(log / "kern.log.2.gz", "wt") as packed:
        packed.write(iso(-900, xid(48)) + iso(10, "Linux version 6.8") + iso(4000, xid(94)))
    (log / "kern.log.3.gz").write_bytes(b"of an earlier boot, and no gzip at all")
    os.utime(log / "kern.log.3.gz", (BOOT - 5, BOOT - 5))
    for age, name in enumerate(("kern.log", "kern.log.1", "kern.log.2.gz")):
        os.utime(log / name, (BOOT + 9000 - age, BOOT + 9000 - age))
    reading = read_kernel_log(tmp_path, deadline_seconds=PATIENT_SECONDS)
    assert [event.xid_code for event in reading.events] == [94, 79, 13]
    assert (
        f"since {datetime.fromtimestamp(BOOT + 10, at(0).tzinfo):%Y-%m-%d %H:%M:%S}" in reading.status.reason
    )


def test_what_was_not_read_is_said(tmp_path):
    for folder in ("proc", "dev"):
        (tmp_path / folder).mkdir()
    (tmp_path / "proc/stat").write_text(f"btime {BOOT}\n")
    (tmp_path / "dev/kmsg").write_text(logged(FLOODS["of another GPU"], 0))
    from gpudiag.probe.kernel_log.read import finish_kernel_log, stream_kernel_log
    from tests.unit.probe.test_kmsg import SimpleNamespace

    messages = []
    stream_kernel_log(messages.append, str(tmp_path), 0.0)
    reading = finish_kernel_log(SimpleNamespace(ending="finished", messages=messages, seconds=0.1))
    assert reading.events[0].kind is KernelEventKind.XID
    assert "older lines were not read" in reading.status.reason
    assert reading.status.state is SourceState.TIMED_OUT  # so that the check says it
