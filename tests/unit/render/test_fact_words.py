import pytest

from gpudiag.model.evidence import Evidence
from gpudiag.render.report_words import describe_after_source


@pytest.mark.parametrize(
    ("fact", "words"),
    [
        (Evidence("late_by", 0.020091, unit="s", limit=0.001061), "late by 20.1 ms (limit 1.1 ms)"),
        (Evidence("cpu_time", 0.0, unit="s"), "cpu time 0 s"),
        (Evidence("size_bytes", 65536, unit="B"), "size 64 KiB"),
        (Evidence("temperature_celsius", 91, unit="C"), "temperature 91 C"),
        (Evidence("sm_clock_mhz", 345, unit="MHz"), "sm clock 345 MHz"),
        (Evidence("at", "2026-11-20T12:03:04+00:00"), "at 2026-11-20 12:03:04 UTC"),
        (Evidence("at", "2026-11-20T12:03:04Z"), "at 2026-11-20 12:03:04 UTC"),
        (Evidence("at", "2026-11-20T12:03:04+01:00"), "at 2026-11-20T12:03:04+01:00"),
        (Evidence("inside_operation", False), "inside operation no"),
        (Evidence("wrong_elements", 1, limit=0), "wrong elements 1 (limit 0)"),
        (Evidence("stack", "first\nlast\n", source="the main thread"), "stack last"),
        (
            Evidence("stderr", "Fatal Python error: Segmentation fault\n\nStack\nModules: x", source="it"),
            "stderr Fatal Python error: Segmentation fault",
        ),
        (Evidence("stderr", "a.py:1: UserWarning: old\n  call(\n"), "stderr a.py:1: UserWarning: old"),
        # Both as NCCL's watchdog leaves them, which ends the process by SIGABRT.
        (
            Evidence(
                "stderr",
                "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
                "  what():  CUDA error: an illegal memory access was encountered\n"
                "Exception raised from f at x.cpp:30 (most recent call first):\n"
                "frame #0: c10::Error::Error() + 0x9d (0x7feaa in libc10.so)\n"
                "frame #22: _start + 0x21 (0x55d21 in python)\n",
            ),
            "stderr CUDA error: an illegal memory access was encountered",
        ),
        (
            Evidence(
                "stderr", "[rank1]: CUDA error: out of memory\nframe #0: a + 0x9d (0x7fe in libc10.so)\n"
            ),
            "stderr [rank1]: CUDA error: out of memory",
        ),
        (Evidence("exception", "KeyError", source="exception"), "KeyError"),
        (Evidence("stderr", "gone", source="rank 2's standard error"), "gone"),
    ],
)
def test_a_fact_is_said_with_its_unit_and_never_twice(fact, words):
    assert describe_after_source(fact) == words
