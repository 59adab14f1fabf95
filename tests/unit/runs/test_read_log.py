import io

import pytest

from gpudiag.model.explanation import MAX_LINE_NUMBERS, Role
from gpudiag.runs.read_log import MAX_LINE_CHARACTERS, explain_log, read_log

XID_79 = "NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_45 = "NVRM: Xid (PCI:0000:5d:00): 45, pid=1, name=python, Ch 1"
TIMEOUT = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=331)"
KILLED = "  exitcode  : -9 (pid: 4242)"
OUT_OF_MEMORY = "Out of memory: Killed process 4242 (python3) total-vm:1kB"


def explain(*lines):
    return explain_log("job.log", io.BytesIO("\n".join(lines).encode() + b"\n"))


def seen(*lines):
    return [
        (sighting.explanation.topic, sighting.role, sighting.lines) for sighting in explain(*lines).sightings
    ]


def test_the_fault_of_the_machine_comes_before_what_it_did():
    assert seen(TIMEOUT, XID_79, XID_45) == [
        ("Xid 79", Role.HARDWARE, (2,)),
        ("collective.timed_out", Role.SYMPTOM, (1,)),
        ("Xid 45", Role.SYMPTOM, (3,)),
    ]


def test_of_two_causes_the_first_comes_first():
    ecc, port = "CUDA error: out of memory", "OSError: [Errno 98] Address already in use"
    assert [topic for topic, _, _ in seen("start", port, ecc)] == [
        "rendezvous.port_in_use",
        "cuda.out_of_memory",
    ]
    assert [topic for topic, _, _ in seen("start", ecc, port)] == [
        "cuda.out_of_memory",
        "rendezvous.port_in_use",
    ]


def test_what_follows_from_another_failure_says_so():
    assert seen(KILLED, OUT_OF_MEMORY) == [
        ("host.out_of_memory_kill", Role.CAUSE, (2,)),
        ("rank.killed", Role.SYMPTOM, (1,)),
    ]
    assert [sighting.follows for sighting in explain(KILLED, OUT_OF_MEMORY).sightings] == [
        None,
        "host.out_of_memory_kill",
    ]
    assert [sighting.follows for sighting in explain(KILLED).sightings] == [None]


def test_a_cause_that_follows_from_another_is_none():
    unresolved = "cannot be retrieved: socket.gaierror: [Errno -2] Name or service not known"
    timed_out = "The client socket has timed out after 4000ms while trying to connect to (h, 1)"
    assert seen(timed_out)[0][:2] == ("rendezvous.unreachable", Role.CAUSE)
    assert [row[:2] for row in seen(unresolved, timed_out)] == [
        ("rendezvous.name_unresolved", Role.CAUSE),
        ("rendezvous.unreachable", Role.SYMPTOM),
    ]


def test_an_xid_is_explained_once_and_not_again_by_its_text():
    assert seen(XID_79, XID_79) == [("Xid 79", Role.HARDWARE, (1, 2))]


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("NVRM: Xid (PCI:0000:5d:00): 13, pid=1, name=python, Graphics Exception", Role.CAUSE),
        ("NVRM: Xid (PCI:0000:5d:00): 63, Row Remapper: New row marked", Role.CAUSE),
        ("NVRM: Xid (PCI:0000:5d:00): 999, new", Role.CAUSE),
        ("NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)", Role.HARDWARE),
        ("NVRM: Xid (PCI:0008:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", Role.CAUSE),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 23001, Fatal, Link 12", Role.HARDWARE),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 12028, Non-fatal, Link 12", Role.CAUSE),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 11012, Non-fatal, Link 12", Role.SYMPTOM),
        ("nvidia-nvswitch0: SXid (PCI:0000:59:00.0): 29999, Fatal, Link 12", Role.CAUSE),
    ],
)
def test_driver_lines_have_the_role_of_their_catalogue(line, role):
    ((_, found, lines),) = seen(line)
    assert (found, lines) == (role, (1,))


def test_a_general_warning_counts_only_where_nothing_explains_the_line():
    precise = "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 5d000"
    assert [topic for topic, _, _ in seen(precise)] == ["nccl.duplicate_gpu"]
    assert [topic for topic, _, _ in seen("NCCL WARN something new")] == ["nccl.warning"]


def test_many_lines_are_counted_and_the_first_are_numbered():
    (sighting,) = explain(*[TIMEOUT] * 100).sightings
    assert (sighting.count, sighting.lines) == (100, tuple(range(1, MAX_LINE_NUMBERS + 1)))


@pytest.mark.parametrize("data", [b"", b"\n", b"all is well\n" * 1000, bytes(range(256)) * 100])
def test_a_log_without_failures_has_none(data):
    assert explain_log("x", io.BytesIO(data)).sightings == ()


def test_lines_are_counted_as_editors_do():
    assert [explain_log("x", io.BytesIO(data)).lines_read for data in (b"a\nb\n", b"a\nb", b"a\n\nb\n")] == [
        2,
        2,
        3,
    ]


def test_the_middle_of_a_long_log_is_left_out_and_the_numbers_stay_right():
    lines = [f"line {number} {'x' * 90}" for number in range(1, 100_001)]
    lines[4], lines[-2] = TIMEOUT, XID_79
    data = ("\n".join(lines) + "\n").encode()
    text = read_log(io.BytesIO(data), max_bytes=4_000_000)
    assert text.bytes_left_out > 0
    assert len(text.lines) + text.lines_left_out >= 100_000
    kept = {line: text.number(place) for place, line in enumerate(text.lines)}
    assert kept[TIMEOUT] == 5
    assert kept[XID_79] == 99_999
    assert all(
        int(line.split()[1]) == number
        for line, number in kept.items()
        if line.startswith("line ") and len(line) > 95
    )


def test_a_failure_at_either_end_of_an_endless_line_is_found():
    bar = "\rEpoch 1: 10%" * MAX_LINE_CHARACTERS
    assert seen(TIMEOUT + bar)[0][0] == "collective.timed_out"
    assert seen(bar + TIMEOUT)[0][0] == "collective.timed_out"
