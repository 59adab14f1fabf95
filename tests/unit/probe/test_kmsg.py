import os
import time
from datetime import datetime
from types import SimpleNamespace

import pytest

from gpudiag.compat import UTC
from gpudiag.model.device import SourceState
from gpudiag.model.kernel_log import KernelEventKind
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.probe.kernel_log import read as kmsg
from gpudiag.probe.kernel_log.log_sources import Journal, Ring
from gpudiag.probe.kernel_log.read import finish_kernel_log, stream_kernel_log

PATIENT_SECONDS = 60.0  # a busy machine is slow; what is found is asserted, not how fast
BOOT = 1_795_000_000
XID = "NVRM: Xid (PCI:0000:5d:00): 79, GPU has fallen off the bus."


def at(seconds):
    return datetime.fromtimestamp(BOOT + seconds, UTC)


def read_kernel_log(root, deadline_seconds=PATIENT_SECONDS):
    return kmsg.read_kernel_log(root, deadline_seconds=deadline_seconds)


def record(seconds, text, sequence=0, prefix=3):
    return f"{prefix},{sequence},{int(seconds * 1e6)},-;{text}\n"


@pytest.fixture
def root(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(f"cpu  1 2 3\nbtime {BOOT}\nprocesses 1\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "var/log").mkdir(parents=True)
    return tmp_path


def iso(seconds, text, host="a1"):
    return f"{at(seconds).isoformat(timespec='microseconds')} {host} kernel: [{seconds:12.6f}] {text}\n"


def test_records_become_events_with_wall_clock_times(root):
    (root / "dev/kmsg").write_text(record(1, "Linux version 6.8") + record(61.5, XID, 1) + " SUBSYSTEM=pci\n")
    reading = read_kernel_log(root)
    (event,) = reading.events
    assert (event.kind, event.at, event.text) == (KernelEventKind.XID, at(61.5), XID)
    assert reading.status.state is SourceState.OK


def test_a_log_without_events_is_an_empty_answer(root):
    (root / "dev/kmsg").write_text(record(1, "Linux version 6.8"))
    assert read_kernel_log(root).events == ()


def test_an_empty_log_is_no_answer(root):
    (root / "dev/kmsg").write_text("")
    reading = read_kernel_log(root)
    assert reading.events.reason is MissingReason.SOURCE_ABSENT
    assert reading.status.state is SourceState.FAILED


def test_no_log_at_all_is_no_answer(root):
    assert read_kernel_log(root).events.reason is MissingReason.SOURCE_ABSENT


@pytest.fixture
def denied_ring(monkeypatch):
    """Root may read everything, so the refusal of /dev/kmsg itself is simulated, in this process."""

    def denied(ring):
        raise PermissionError(1, "Operation not permitted", str(ring.path))

    monkeypatch.setattr(Ring, "chunks", denied)


def read_in_this_process(root):
    messages = []
    stream_kernel_log(messages.append, str(root), 5.0)
    return finish_kernel_log(SimpleNamespace(ending="finished", messages=messages, seconds=0.1))


def test_a_denied_log_says_so(root, denied_ring):
    reading = read_in_this_process(root)
    assert reading.events.reason is MissingReason.NO_PERMISSION
    assert reading.status.state is SourceState.NO_PERMISSION
    assert "Operation not permitted" in reading.status.reason


def test_a_denied_ring_leaves_the_files(root, denied_ring):
    (root / "var/log/kern.log").write_text(iso(0.5, "Linux version 6.8") + iso(7, XID))
    (event,) = read_in_this_process(root).events
    assert event.at == at(7)


def test_lines_of_an_earlier_boot_are_left_out(root):
    (root / "var/log/kern.log").write_text(iso(-5, XID) + iso(3, "Linux version 6.8"))
    assert read_kernel_log(root).events == ()


def test_a_file_of_an_earlier_boot_only_is_no_answer(root):
    (root / "var/log/kern.log").write_text(iso(-5, XID))
    assert read_kernel_log(root).events.reason is MissingReason.SOURCE_ABSENT


def test_what_the_ring_has_forgotten_comes_from_the_file(root):
    (root / "dev/kmsg").write_text(record(100, "nvme ready", 5000) + record(200, XID, 5001))
    (root / "var/log/syslog").write_text(
        iso(10, "NVRM: Xid (PCI:0000:5d:00): 48, DBE") + iso(200, XID) + iso(201, "later")
    )
    reading = read_kernel_log(root)
    assert [(event.xid_code, event.at) for event in reading.events] == [(48, at(10)), (79, at(200))]


TOLD = "gpudiag: 5d:00.0 was reset"
LOADED = "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build"


def test_a_restart_in_one_log_is_told_with_the_fault_in_another(root):
    (root / "dev/kmsg").write_text(record(900, TOLD, 7, prefix=12))
    (root / "var/log/kern.log").write_text(iso(1, "Linux version 6.8") + iso(60, XID))
    (event,) = read_kernel_log(root).events
    assert (event.restarted_by, event.restarted_at) == (TOLD, at(900))


FOUND = "pci 0000:5d:00.0: [10de:2330] type 00 class 0x030200 PCIe Endpoint"
RESTARTS = (TOLD, "gpudiag: all GPUs were reset", LOADED, FOUND, "nvidia 0000:5d:00.0: reset done")


@pytest.mark.parametrize("text", RESTARTS)
def test_a_restart_in_a_file_that_any_user_can_have_written_to_settles_nothing(root, text):
    (root / "dev/kmsg").write_text(record(2000, "something later", 70))
    program, _, words = text.partition(": ")
    for line in (iso(900, text), iso(900, "").replace("kernel: ", f"{program}: {words}")):
        (root / "var/log/messages").write_text(iso(1, "Linux version 6.8") + iso(60, XID) + line)
        (event,) = read_kernel_log(root).events
        assert (event.text, event.restarted_by) == (XID, None)


@pytest.mark.parametrize("text", RESTARTS)
def test_a_restart_in_the_ring_settles(root, text):
    (root / "dev/kmsg").write_text(record(60, XID, 1) + record(900, text, 2))
    (event,) = read_kernel_log(root).events
    assert (event.restarted_by, event.restarted_at) == (text, at(900))


@pytest.mark.parametrize("program", ["gpudiag", "gpudiag[77]"])
def test_the_journal_gives_the_first_word_of_what_root_told_as_a_program(program):
    line = f"1790000000.5 host {program}: 5d:00.0 was reset".encode()
    assert Journal().parse(line) == (1790000000.5, TOLD.encode())


def test_a_restart_is_found_in_a_flood(root):
    flood = "NVRM: Xid (PCI:0000:5e:00): 31, pid={}, name=python3, Ch 0000000a, MMU Fault"
    lines = [record(1, LOADED, 1), record(60, XID, 2)]
    lines += [record(61 + number / 100, flood.format(number), 3 + number) for number in range(9000)]
    lines.insert(4000, record(61 + 40, LOADED, 3999))
    (root / "dev/kmsg").write_text("".join(lines))
    first = read_kernel_log(root).events[0]
    assert (first.text, first.restarted_by, first.restarted_at) == (XID, LOADED, at(101))


def test_a_whole_ring_needs_no_file(root):
    (root / "dev/kmsg").write_text(record(1, "Linux version 6.8"))
    (root / "var/log/kern.log").write_text(iso(10, XID))
    assert read_kernel_log(root).events == ()


def test_other_programs_that_quote_the_kernel_are_ignored(root):
    stamp = at(5).isoformat()
    (root / "var/log/syslog").write_text(f"{stamp} a1 train[42]: saw {XID}\n{stamp} a1 kernel: booted\n")
    assert read_kernel_log(root).events == ()


@pytest.mark.parametrize(
    "line",
    [
        "{iso} a1 kernel: {xid}",
        "{iso} a1 kernel: [   61.500000] {xid}",
        "{iso} a1 kernel: [   61.500000][ T1234] {xid}",
        "{iso} a1 kern.err kernel: [   61.500000] {xid}",
        "<3>{iso} a1 kernel: {xid}",
        "<3>1 {iso} a1 kernel - - - {xid}",
        "{bsd} a1 kernel: {xid}",
        "{bsd} a1 kernel: [   61.500000] {xid}",
        "<3>{bsd} a1 kernel: {xid}",
    ],
)
def test_the_prefixes_of_syslog_daemons_are_known(root, line):
    log = root / "var/log/messages"
    local = datetime.fromtimestamp(BOOT + 61)
    stamps = {"iso": at(61).isoformat(), "bsd": f"{local:%b} {local.day:2} {local:%H:%M:%S}"}
    log.write_text(line.format(xid=XID, **stamps) + "\n")
    os.utime(log, (BOOT + 70, BOOT + 70))
    (event,) = read_kernel_log(root).events
    assert (event.xid_code, event.at, event.text) == (79, at(61), XID)


@pytest.mark.parametrize("flags", ["-", "c", "+", "-,caller=T1234"])
def test_records_of_every_kind_are_read(root, flags):
    (root / "dev/kmsg").write_text(f"3,7,61000000,{flags};{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:5d:00.0\n")
    (event,) = read_kernel_log(root).events
    assert (event.text, event.at) == (XID, at(61))


def test_escaped_characters_of_a_record_are_read(root):
    (root / "dev/kmsg").write_text(record(1, XID.replace("bus.", "bus\\x2e")))
    (event,) = read_kernel_log(root).events
    assert event.text == XID


def test_stamps_without_a_year_take_the_year_of_the_file(root):
    written = datetime(2026, 1, 2, 3, 4, 5)
    (root / "proc/stat").write_text(f"btime {int(datetime(2025, 12, 1).timestamp())}\n")
    log = root / "var/log/messages"
    log.write_text(f"Dec 31 23:59:59 a1 kernel: {XID}\nJan  2 03:04:05 a1 kernel: [ 9.1] {XID}\n")
    os.utime(log, (written.timestamp(), written.timestamp()))
    moments = [event.at.timestamp() for event in read_kernel_log(root).events]
    assert moments == [datetime(2025, 12, 31, 23, 59, 59).timestamp(), written.timestamp()]


def test_a_record_of_several_lines_is_several_lines(root):
    text = "NVRM: The NVIDIA GPU 0000:5d:00.0\\x0aNVRM: fallen off the bus and is not responding"
    (root / "dev/kmsg").write_text(record(1, text))
    (event,) = read_kernel_log(root).events
    assert (event.kind, event.bus_id) == (KernelEventKind.GPU_OFF_BUS, "00000000:5d:00.0")


def test_a_flood_of_one_kind_is_bounded_and_costs_no_other_kind(root):
    flood = "pcieport 0000:00:03.0: PCIe Bus Error: severity=Corrected, type=Physical Layer"
    lines = [record(number, flood, number) for number in range(5000)]
    lines.insert(2500, record(2500, XID, 2500))
    (root / "dev/kmsg").write_text("".join(lines))
    reading = read_kernel_log(root)
    first, xid, last = reading.events
    assert (first.at, first.more, first.until) == (at(0), 4998, at(4999))
    assert (xid.kind, xid.more, last.at, last.more) == (KernelEventKind.XID, 0, at(4999), 0)
    assert "4998 repeated lines left out" in reading.status.reason


def test_a_log_that_hangs_costs_only_the_deadline(root):
    os.mkfifo(root / "var/log/kern.log")  # opening it waits for a writer that never comes
    started = time.monotonic()
    reading = read_kernel_log(root, deadline_seconds=0.3)
    assert time.monotonic() - started < PATIENT_SECONDS
    assert reading.events.reason is MissingReason.TIMED_OUT
    assert reading.status.state is SourceState.TIMED_OUT


def test_an_unknown_boot_time_is_an_error(root):
    (root / "proc/stat").write_text("cpu 1 2 3\n")
    reading = read_kernel_log(root)
    assert reading.events.reason is MissingReason.ERROR
    assert "btime" in reading.events.detail


@pytest.fixture
def journalctl(tmp_path, monkeypatch):
    """The script of a program that takes the place of journalctl."""

    def install(script):
        program = tmp_path / "journalctl"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)

    return install


def test_the_journal_is_read_like_a_syslog(journalctl):
    journalctl(f'echo "{BOOT + 3}.500000 a1 kernel: {XID}"; echo "{BOOT + 2}.250000 a1 kernel: first"')
    journal = Journal()
    (chunk,) = journal.chunks()
    assert [journal.parse(line) for line in chunk.splitlines()] == [
        (BOOT + 2.25, b"first"),
        (BOOT + 3.5, XID.encode()),
    ]


def test_a_journal_that_shows_nothing_is_denied(journalctl):
    journalctl("exit 1")
    with pytest.raises(PermissionError):
        list(Journal().chunks())


def test_this_machine_gives_an_answer_or_a_reason():
    reading = kmsg.read_kernel_log(deadline_seconds=PATIENT_SECONDS)
    assert isinstance(reading.events, Missing) == (reading.status.state is not SourceState.OK)
