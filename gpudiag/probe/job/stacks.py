"""A look at a process with its Python stacks: those that py-spy read, or that the process reads of itself."""

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from gpudiag.model.job import Frame, ProcessLook, ThreadLook
from gpudiag.probe.job.frames import Sources, describe_frames, mark_of
from gpudiag.probe.job.kernel import look_at_process
from gpudiag.probe.job.lock_files import find_lock_file
from gpudiag.probe.job.py_spy import RawThread
from gpudiag.probe.job.started_by import add_starters
from gpudiag.reference.stacks import own_frames
from gpudiag.reference.waits import is_library

_SLEEPS = ("nanosleep", "clock_nanosleep")


def add_stacks(look: ProcessLook, stacks: Mapping[int, RawThread], source: str) -> ProcessLook:
    """The look with its threads' stacks and what they add to the kernel's words.

    `source` is what read them.
    """
    threads = tuple(_with_stack(look.pid, thread, stacks.get(thread.tid)) for thread in look.threads)
    return replace(look, threads=add_starters(look.pid, threads), stacks=source)


def look_at_self(stacks: Mapping[int, RawThread], source: str) -> ProcessLook | None:
    """This process as a look from outside shows it, with the lines of its sources.

    It is None where /proc does not show it. Of other threads than the main one those are there that are in a
    line of the user's.
    """
    look = look_at_process(os.getpid(), 0.0)
    if look is None:
        return None
    look = add_stacks(look, stacks, source)
    sources = Sources()
    threads = tuple(
        replace(one, frames=tuple(_with_line(look.pid, frame, sources) for frame in one.frames))
        for one in look.threads
        if one.tid == look.pid or own_frames(one.frames)
    )
    return replace(look, threads=threads)


def _with_stack(pid: int, thread: ThreadLook, read: RawThread | None) -> ThreadLook:
    if read is None:
        return thread
    awaited = thread.awaited
    if awaited is None and thread.syscall in _SLEEPS:
        with suppress(OSError, ValueError):
            awaited = find_lock_file(pid, read.frames)
    return replace(
        thread,
        awaited=awaited,
        name=read.name or thread.name,
        frames=describe_frames(pid, read.frames),
        holds_gil=read.holds_gil,
        mark=mark_of(read.frames),
    )


def _with_line(pid: int, frame: Frame, sources: Sources) -> Frame:
    line = None if is_library(frame.file) else sources.line(pid, frame.file, frame.line)
    return frame if line is None else replace(frame, text=line.text, inside=line.inside, polls=line.polls)
