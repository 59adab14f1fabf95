"""What can be read from a hung rank: the stacks of its threads, and torch's flight recorder.

Stacks come by a signal handler in C (faulthandler), in any call; the recorder by a thread, if Python's lock
is free, as inside a collective.
"""

import contextlib
import faulthandler
import json
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# torch, NCCL and CUDA do not use this signal.
STACK_SIGNAL = signal.SIGUSR2

# How long ranks get to answer; a handler in C and a thread that waits take milliseconds.
ANSWER_SECONDS = 0.4

_FRAMES_AT_MOST = 12
_ENTRIES_AT_MOST = 3

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>.+)')

# Frames in this folder only show an injected fault at work, or how the entry was started.
_OWN_FOLDER = str(Path(__file__).parents[1])


@dataclass(frozen=True, slots=True)
class RankDump:
    """One rank's answer: its main thread's stack, innermost first, and its last collectives."""

    rank: int
    stack: tuple[str, ...]  # file:line in function
    flight_recorder: tuple[str, ...]  # oldest first

    @property
    def stuck_at(self) -> str | None:
        """The innermost line of code that is not gpudiag's own rank machinery."""
        return next((frame for frame in self.stack if not frame.startswith(_OWN_FOLDER)), None)


class DumpFiles:
    """The files of one rank's answers, and the FIFO through which its flight recorder is requested."""

    def __init__(self, directory: Path, rank: int) -> None:
        """Name the files of `rank` in a run directory."""
        self.rank = rank
        self.stack = directory / f"rank{rank}.stack"
        self.crash = directory / f"rank{rank}.crash"
        self.question = directory / f"rank{rank}.question"
        self.flight_recorder = directory / f"rank{rank}.flight"

    # --- in the rank

    def answer_requests(self) -> None:
        """Answer every request from now on, as long as this process lives."""
        descriptor = os.open(self.stack, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        # A file of its own: on stderr the stacks of all threads would push out what was written before.
        crash = os.open(self.crash, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        faulthandler.enable(crash)
        faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
        os.mkfifo(self.question, 0o600)
        threading.Thread(target=self._answer_questions, name="gpudiag-dump", daemon=True).start()

    def _answer_questions(self) -> None:
        while True:
            with self.question.open("rb") as question:  # blocks until there is a request
                question.read()
            answer = self.flight_recorder.with_suffix(".new")
            answer.write_text(json.dumps(read_flight_recorder()))
            answer.rename(self.flight_recorder)

    # --- in the agent

    def ask(self, pid: int) -> None:
        """Request both from the rank with that process, without waiting for its answers."""
        with contextlib.suppress(OSError):
            os.kill(pid, STACK_SIGNAL)
        with contextlib.suppress(OSError):  # no reader: the rank has not come that far, or is gone
            os.close(os.open(self.question, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def stack_of_crash(self) -> tuple[str, ...]:
        """The main thread's stack when SIGSEGV, SIGABRT or the like ended the rank; empty if none did."""
        try:
            return parse_main_stack(self.crash.read_text(errors="replace"))
        except OSError:
            return ()

    def read(self) -> RankDump:
        """What the rank has answered so far."""
        stack, recorder = "", "[]"
        with contextlib.suppress(OSError):
            stack = self.stack.read_text(errors="replace")
        with contextlib.suppress(OSError):
            recorder = self.flight_recorder.read_text()
        return RankDump(self.rank, parse_main_stack(stack), tuple(json.loads(recorder)))


def collect_dumps(asked: list[DumpFiles]) -> tuple[RankDump, ...]:
    """The answers of the ranks in `asked`; an answer that does not come within 0.4 s is left empty."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        dumps = tuple(files.read() for files in asked)
        answered = all(
            dump.stack and files.flight_recorder.exists() for dump, files in zip(dumps, asked, strict=True)
        )
        if answered or time.monotonic() > deadline:
            return dumps
        time.sleep(0.01)


def parse_main_stack(text: str) -> tuple[str, ...]:
    """The main thread's frames (`Current thread`), innermost first, as `file:line in function`."""
    _, _, current = text.rpartition("Current thread ")
    frames = []
    for line in current.splitlines()[1:]:
        match = _FRAME.fullmatch(line)
        if match is None:
            break
        frames.append(f"{match['file']}:{match['line']} in {match['function']}")
    return tuple(frames[:_FRAMES_AT_MOST])


def read_flight_recorder() -> list[str]:
    """This process's last collectives as torch recorded them; empty if this torch records none."""
    text = dump_flight_recorder()
    try:
        return [
            _describe_entry(entry)
            for entry in json.loads(text or "{}").get("entries", [])[-_ENTRIES_AT_MOST:]
        ]
    except Exception:  # noqa: BLE001 - as below: whatever such an entry lacks
        return []


# torch has several recorders, NCCL's before gloo's: that of builds for CUDA from 2.5 on; that of the new
# backend of NCCL, which is the default from 2.15 on (older torch raises a TypeError at the argument); gloo's,
# which all have from 2.8 on.
_RECORDERS: tuple[tuple[str, dict[str, str]], ...] = (
    ("_dump_nccl_trace_json", {}),
    ("_dump_fr_trace_json", {"backend": "nccl"}),
    ("_dump_fr_trace_json", {}),
)


def dump_flight_recorder() -> str | bytes | None:
    """The JSON of the first recorder with entries, None without; private API of torch, which may change."""
    torch = sys.modules.get("torch")
    for name, arguments in _RECORDERS:
        try:
            dump: str | bytes = getattr(
                torch._C._distributed_c10d,  # type: ignore[union-attr]
                name,
            )(**arguments)
            if json.loads(dump).get("entries"):
                return dump
        except Exception:  # noqa: BLE001, S112 - see above: whatever it raises, there is no such recorder
            continue
    return None


def _describe_entry(entry: dict[str, Any]) -> str:
    state = "completed" if entry["retired"] else entry["state"]
    sizes = ", ".join(str(size) for size in entry["input_sizes"])
    return f"{entry['profiling_name']} {entry['collective_seq_id']}, {sizes}: {state}"
