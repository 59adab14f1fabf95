"""Become a program that is refused something: `python benchmarks/limited.py LIMIT... -- COMMAND`.

    processes       no process may be started (the kernel answers EAGAIN)
    threads         no thread may be started
    processes=N     as processes, for a user of its own that already has N - 1 (needs root)
    memory=KB       the address space is limited (ulimit -v)
    files=N         open files are limited (ulimit -n)
    proc            /proc is not mounted (needs root)
    folders         no file and no folder can be made, as on a read-only file system

The refusals of `processes`, `threads` and `folders` are a seccomp filter: it counts for root too, and for
every child.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import sys

_CLONE_NEWNS, _MNT_DETACH, _MS_REC_PRIVATE = 0x20000, 2, 0x44000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 38, 22
_FILTER_MODE = 2
_CLONE_THREAD = 0x10000
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06  # BPF
_NUMBER, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _THIRD_ARGUMENT = 0, 16, 24, 32  # struct seccomp_data
# Numbers of system calls, by machine: asm/unistd.h.
_CALLS = {
    "x86_64": (
        {"fork": 57, "vfork": 58, "clone": 56, "clone3": 435}
        | {"open": 2, "creat": 85, "openat": 257, "openat2": 437, "mkdir": 83, "mkdirat": 258}
    ),
    "aarch64": {"clone": 220, "clone3": 435, "openat": 56, "openat2": 437, "mkdirat": 34},
}
_UNPRIVILEGED = 23456  # a user without processes of its own

_Instruction = tuple[int, int, int, int]


def _refuse(name: str, number: int) -> list[_Instruction]:
    """Answer that system call with an error, where this machine has it."""
    call = _CALLS[platform.machine()].get(name)
    return [] if call is None else [(_EQUAL, 0, 1, call), (_RETURN, 0, 0, _ERRNO | number)]


def _refuse_where(name: str, argument: int, bits: int, number: int, *, present: bool) -> list[_Instruction]:
    """Answer that system call with an error where one of the bits is in that argument, or where none is."""
    call = _CALLS[platform.machine()].get(name)
    if call is None:
        return []
    jumps = (0, 1) if present else (1, 0)
    return [
        (_EQUAL, 0, 4, call),
        (_LOAD, 0, 0, argument),
        (_ANY_BIT, *jumps, bits),
        (_RETURN, 0, 0, _ERRNO | number),
        (_LOAD, 0, 0, _NUMBER),
    ]


def _processes(*, threads: bool) -> list[_Instruction]:
    # glibc falls back on clone, whose flags a filter can read.
    rules = _refuse("clone3", errno.ENOSYS)
    if not threads:
        rules += _refuse("fork", errno.EAGAIN) + _refuse("vfork", errno.EAGAIN)
    return rules + _refuse_where("clone", _FIRST_ARGUMENT, _CLONE_THREAD, errno.EAGAIN, present=threads)


def _folders() -> list[_Instruction]:
    made = os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY)
    rules = _refuse("openat2", errno.ENOSYS)
    for name in ("mkdir", "mkdirat", "creat"):
        rules += _refuse(name, errno.EROFS)
    rules += _refuse_where("open", _SECOND_ARGUMENT, made, errno.EROFS, present=True)
    return rules + _refuse_where("openat", _THIRD_ARGUMENT, made, errno.EROFS, present=True)


def _install(rules: list[_Instruction]) -> None:
    program = [(_LOAD, 0, 0, _NUMBER), *rules, (_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    kept = ctypes.create_string_buffer(code)
    described = struct.pack("@HP", len(program), ctypes.addressof(kept))
    kept_description = ctypes.create_string_buffer(described)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_SECCOMP, _FILTER_MODE, ctypes.addressof(kept_description))


def _prctl(option: int, value: int, pointer: int = 0) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(option, value, ctypes.c_void_p(pointer), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _without_proc() -> None:
    library = ctypes.CDLL(None, use_errno=True)
    done = (
        library.unshare(_CLONE_NEWNS) == 0 and library.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
    )
    if not done or library.umount2(b"/proc", _MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _be_somebody_else(most: int) -> None:
    """Become a user of its own with that many processes at most, who may still read this user's files."""
    command = [
        *("setpriv", f"--reuid={_UNPRIVILEGED}", f"--regid={_UNPRIVILEGED}", "--clear-groups"),
        *("--inh-caps=+dac_read_search,+dac_override", "--ambient-caps=+dac_read_search,+dac_override", "--"),
        *("prlimit", f"--nproc={most}:{most}"),
        *sys.argv[sys.argv.index("--") + 1 :],
    ]
    os.execvp(command[0], command)  # noqa: S606


def main() -> None:
    """Set the limits and become the command."""
    at = sys.argv.index("--")
    limits, command = sys.argv[1:at], sys.argv[at + 1 :]
    for limit in limits:
        name, _, value = limit.partition("=")
        if name == "proc":
            _without_proc()
        elif name == "files":
            resource.setrlimit(resource.RLIMIT_NOFILE, (int(value), int(value)))
        elif name == "memory":
            resource.setrlimit(resource.RLIMIT_AS, (int(value) << 10,) * 2)
        elif limit in ("processes", "threads"):
            _install(_processes(threads=limit == "threads"))
        elif name == "processes":
            _be_somebody_else(int(value))
        elif name == "folders":
            _install(_folders())
        else:
            raise SystemExit(f"no such limit: {limit}")
    os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    main()
