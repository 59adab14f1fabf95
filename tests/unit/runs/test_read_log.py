import bz2
import gzip
import io
import lzma

import pytest

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.explain.files import MAX_LINE_BYTES, LogLines, LogRefused, open_lines
from gpudiag.explain.recipe import explain_text
from gpudiag.model.explanation import MAX_LINE_NUMBERS, Role

XID_79 = "NVRM: Xid (PCI:0000:5d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_45 = "NVRM: Xid (PCI:0000:5d:00): 45, pid=1, name=python, Ch 1"
TIMEOUT = "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=331)"
KILLED = "  exitcode  : -9 (pid: 4242)"
OUT_OF_MEMORY = "Out of memory: Killed process 4242 (python3) total-vm:1kB"
GPU_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
RAISED = 'Traceback (most recent call last):\n  File "/home/ann/train.py", line 42, in main\n    check(x)\nValueError: no'


def explain(*lines):
    return explain_text("\n".join(lines) + "\n")


def seen(*lines):
    return [
        (sighting.explanation.topic, sighting.role, sighting.lines) for sighting in explain(*lines).sightings
    ]


def causes(told):
    return [sighting.explanation.topic for sighting in told.sightings if sighting.role is not Role.SYMPTOM]


def explain_together(**logs):
    return explain_logs([open_log(name, io.BytesIO(text.encode())) for name, text in logs.items()])


def test_the_fault_of_the_machine_comes_before_what_it_did():
    assert seen(TIMEOUT, XID_79, XID_45) == [
        ("Xid 79", Role.HARDWARE, (2,)),
        ("collective.timed_out", Role.SYMPTOM, (1,)),
        ("Xid 45", Role.SYMPTOM, (3,)),
    ]


def test_of_two_causes_the_first_comes_first():
    memory, disk = "CUDA error: out of memory", "OSError: [Errno 28] No space left on device"
    assert causes(explain("start", disk, memory)) == ["disk.full", "cuda.out_of_memory"]
    assert causes(explain("start", memory, disk)) == ["cuda.out_of_memory", "disk.full"]


def test_of_two_causes_the_earlier_by_their_clocks_comes_first():
    memory = f"2025-11-21 10:00:05,001 ERROR [rank1]: {GPU_MEMORY}"
    disk = "2025-11-21 10:00:01,001 ERROR [rank0]: OSError: [Errno 28] No space left on device"
    assert causes(explain(memory, disk)) == ["disk.full", "cuda.out_of_memory"]
    assert causes(explain_together(b=memory, a=disk)) == ["disk.full", "cuda.out_of_memory"]


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
    unresolved = "[W socket.cpp:764] [c10d] The IPv6 network addresses of (h, 1) cannot be retrieved (gai error: -2 - Name or service not known)."
    timed_out = "The client socket has timed out after 4000ms while trying to connect to (h, 1)"
    assert seen(timed_out)[0][:2] == ("rendezvous.unreachable", Role.CAUSE)
    assert [row[:2] for row in seen(unresolved, timed_out)] == [
        ("rendezvous.name_unresolved", Role.CAUSE),
        ("rendezvous.unreachable", Role.SYMPTOM),
    ]


def test_ranks_that_wait_are_an_echo_of_the_exception_that_nobody_knows():
    told = explain(
        RAISED,
        "torch.distributed.DistStoreError: Timed out after 5 seconds waiting for clients. 1/3 clients joined.",
    )
    assert causes(told) == []
    assert told.sightings[0].follows == "the unknown error"
    assert told.unknown[0].text == "ValueError: no"


def test_an_xid_is_explained_once_and_not_again_by_its_text():
    assert seen(XID_79, XID_79) == [("Xid 79", Role.HARDWARE, (1, 2))]


@pytest.mark.parametrize(
    ("line", "role"),
    [
        ("NVRM: Xid (PCI:0000:5d:00): 13, pid=1, name=python, Graphics Exception", Role.CAUSE),
        ("NVRM: Xid (PCI:0000:5d:00): 63, Row Remapper: New row marked", Role.CAUSE),
        ("NVRM: Xid (PCI:0000:5d:00): 999, new", Role.CAUSE),
        ("NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08 (0x004505c6)", Role.HARDWARE),
        ("NVRM: Xid (PCI:0008:01:00): 145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x0409a0c2)", Role.SYMPTOM),
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


@pytest.mark.parametrize("text", ["", "\n", "all is well\n" * 1000])
def test_a_log_without_failures_has_none(text):
    told = explain_text(text)
    assert (told.sightings, told.unknown) == ((), ())


@pytest.mark.parametrize(("text", "count"), [("a\nb\n", 2), ("a\nb", 2), ("a\n\nb\n", 3)])
def test_lines_are_counted_as_editors_do(text, count):
    assert explain_text(text).logs[0].lines_read == count


def test_what_lies_before_the_end_of_a_long_log_is_left_out_and_the_numbers_stay_right():
    lines = [f"line {number} {'x' * 90}" for number in range(1, 100_001)]
    lines[4], lines[-2] = TIMEOUT, XID_79
    data = ("\n".join(lines) + "\n").encode()
    log = open_lines(io.BytesIO(data), head_bytes=2_000_000, tail_bytes=2_000_000)
    kept = {line.decode(): number for number, line in log}
    assert log.bytes_left_out > 0
    assert log.lines_read == 100_000
    assert kept[TIMEOUT] == 5
    assert kept[XID_79] == 99_999
    assert all(
        int(line.split()[1]) == number
        for line, number in kept.items()
        if line.startswith("line ") and len(line) > 95
    )


def test_a_failure_at_either_end_of_an_endless_line_is_found():
    bar = "\rEpoch 1: 10%" * MAX_LINE_BYTES
    assert seen(TIMEOUT + bar)[0][0] == "collective.timed_out"
    assert seen(bar + "\r" + TIMEOUT)[0][0] == "collective.timed_out"


def test_a_warning_after_which_the_run_goes_on_is_no_cause():
    warning = "[W socket.cpp:1] [c10d] The IPv6 network addresses of (h, 1) cannot be retrieved (gai error: -2 - Name or service not known)."
    steps = [f"step {number} loss 2.{number}" for number in range(3)]
    assert causes(explain(warning)) == ["rendezvous.name_unresolved"]
    assert seen(warning, *steps) == []


def test_a_failure_that_the_run_outlived_is_shown_as_such():
    steps = [f"step {number} loss 2.{number}" for number in range(4)]
    (sighting,) = explain(GPU_MEMORY, *steps).sightings
    assert (sighting.role, sighting.went_on) == (Role.SYMPTOM, True)


def test_the_user_sees_the_own_line_of_a_known_failure():
    told = explain(RAISED.replace("ValueError: no", GPU_MEMORY))
    assert told.sightings[0].where == "/home/ann/train.py:42 in main: check(x)"


def test_the_user_sees_the_exception_and_the_own_line_of_an_unknown_one():
    library = '  File "/usr/lib/python3.11/site-packages/x/y.py", line 7, in deep\n    raise ValueError("no")\nValueError: no'
    (error,) = explain(RAISED.replace("ValueError: no", library)).unknown
    assert (error.text, error.where) == ("ValueError: no", "/home/ann/train.py:42 in main: check(x)")


def test_equal_exceptions_of_several_ranks_are_told_once():
    ranks = ["\n".join(f"[rank{rank}]: {line}" for line in RAISED.splitlines()) for rank in range(4)]
    (error,) = explain(*ranks).unknown
    assert (error.count, error.rank) == (4, "0")


def test_a_traceback_that_is_cut_off_is_unknown_too():
    (error,) = explain(*RAISED.splitlines()[:-1]).unknown
    assert error.where == "/home/ann/train.py:42 in main: check(x)"


def test_a_frame_decides_whose_exception_it_is():
    text = 'Traceback (most recent call last):\n  File "{}", line 1, in f\n    g()\nOSError: [Errno 98] Address already in use'
    ours = text.format("/opt/lib/python3.11/site-packages/torch/distributed/rendezvous.py")
    assert causes(explain(ours)) == ["rendezvous.port_in_use"]
    assert causes(explain(text.format("/srv/app.py"))) == []


def test_logs_of_several_ranks_are_one_answer():
    told = explain_together(rank0=TIMEOUT, rank1=TIMEOUT, rank2=f"start\n{GPU_MEMORY}")
    assert causes(told) == ["cuda.out_of_memory"]
    assert (told.sightings[0].log, told.sightings[0].lines) == ("rank2", (2,))
    assert (told.sightings[1].log, told.sightings[1].other_logs) == ("rank0", ("rank1",))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read(pack):
    told = explain_logs([open_log("x", io.BytesIO(pack(XID_79.encode())))])
    assert causes(told) == ["Xid 79"]


def test_a_compressed_log_that_is_cut_off_is_read_as_far_as_it_goes():
    packed = gzip.compress(
        (f"{XID_79}\n" + "".join(f"line {number}\n" for number in range(100_000))).encode()
    )
    assert causes(explain_logs([open_log("x", io.BytesIO(packed[: len(packed) // 2]))])) == ["Xid 79"]


def test_text_of_windows_is_read():
    assert causes(explain_logs([open_log("x", io.BytesIO(XID_79.encode("utf-16")))])) == ["Xid 79"]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (bytes(range(256)) * 100, "binary"),
        (b"PK\x03\x04" + b"x" * 100, "archive"),
        (b"\x7fELF" + b"x" * 100, "core dump"),
        (gzip.compress(b"x" * 257 + b"ustar" + b"x" * 300), "tar"),
        (b"\x1f\x8b\x08\x00damaged", "damaged"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 100, ""),
    ],
    ids=["control characters", "zip", "program", "tar", "gzip", "zstd"],
)
def test_what_is_no_log_is_refused_in_a_sentence(data, words):
    told = explain_logs([open_log("x", io.BytesIO(data))])
    assert words in told.logs[0].refused
    assert told.sightings == ()


def test_a_log_may_be_read_from_any_stream():
    assert list(LogLines(io.BytesIO(b"a\nb"))) == [(1, b"a"), (2, b"b")]
    with pytest.raises(LogRefused):
        open_lines(io.BytesIO(b"\x00" * 100))


def test_of_symptoms_alone_the_one_that_the_others_follow_from_comes_first():
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:47833: Connection reset by peer."
    stopped = "W1121 api.py:1028] Sending process 7717 closing signal SIGTERM"
    told = explain(lost, stopped, KILLED)
    assert next(sighting.explanation.topic for sighting in told.sightings) == "rank.killed"
    assert [sighting.follows for sighting in told.sightings] == [None, "rank.killed", "rank.killed"]
