from gpudiag.probe.job.pystack import parse_native

# pystack 1.7.2 on a rank of gloo that waits in all_reduce, and a thread of its own beside it.
CAPTURED = """\
Traceback for thread 811 (python) [] (most recent call last):
    (C) File "???", line 0, in _start (/opt/python/bin/python3.11)
    (Python) File "/home/ann/train.py", line 10, in main
        dist.all_reduce(x)
    (C) File "Objects/call.c", line 819, in object_vacall (inlined) (/opt/lib/libpython3.11.so.1.0)
    (C) File "???", line 0, in c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono::duration<long>) (/opt/lib/libtorch_cpu.so)
    (C) File "./nptl/futex-internal.c", line 57, in __futex_abstimed_wait_common (/usr/lib/libc.so.6)

Traceback for thread 812 (python) [] (most recent call last):
    (C) File "???", line 0, in epoll_wait (/usr/lib/libc.so.6)
"""


def test_the_functions_above_python_are_told_innermost_first():
    assert parse_native(CAPTURED, 811) == (
        "__futex_abstimed_wait_common (libc.so.6)",
        "c10d::ProcessGroupGloo::AsyncWork::wait(std::chrono::duration<long>) (libtorch_cpu.so)",
        "object_vacall",
    )
    assert parse_native(CAPTURED, 812) == ("epoll_wait (libc.so.6)",)
    assert parse_native(CAPTURED, 813) == ()
    assert parse_native("no such thing", 811) == ()
