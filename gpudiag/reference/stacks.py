"""What a Python stack shows: the user's own line, and the call of torch.distributed or another library."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

from gpudiag.model.job import Frame
from gpudiag.reference.waits import COMPILED, COMPILER, GPU, RANKS, find_call, find_wait, is_library

# Functions of torch.distributed by which a rank meets others; what else is called there computes or waits for
# a disk.
_C10D = "/torch/distributed/distributed_c10d.py"
_NOT_CALLS = frozenset(("wrapper", "_wait", "new_func", "inner"))
_MEETINGS = frozenset(
    (
        "init_process_group",
        "new_group",
        "new_subgroups",
        "_new_process_group_helper",
        "_store_based_barrier",
        "rendezvous",
    )
)
_DEBUGGERS = re.compile(
    r"/(pdb|bdb|cmd)\.py$|/(ipdb|pudb|debugpy|pydevd\w*|_pydevd_bundle|remote_pdb)/|"
    r"/torch/distributed/__init__\.py$"
)
_EXITS = (
    ("/threading.py", "_shutdown"),
    ("/multiprocessing/util.py", "_exit_function"),
    ("/concurrent/futures/thread.py", "_python_exit"),
)
_EXIT_HOOKS = frozenset(("atexit", "_run_exitfuncs"))
_STORE_CALLS = re.compile(
    r"store\w*\.(wait|get|multi_get|compare_set|add|set|check)\(|\bstore\b.*\.(wait|get)\(", re.IGNORECASE
)
_WAITS_FOR_WORK = re.compile(r"\.(wait|result|join|synchronize)\(|\bawait\b")
_PASSING = re.compile(
    r"/torch/(_tensor|autograd/__init__|autograd/graph|nn/modules/module|utils/_contextlib)\.py$|"
    r"/contextlib\.py$|^<"
)
_BACKWARD = "_engine_run_backward"
_ALIASES = {"_all_gather_base": "all_gather_into_tensor", "_reduce_scatter_base": "reduce_scatter_tensor"}
_STANDARD = re.compile(
    r"/lib(64)?/python\d[^/]*/(?!(site|dist)-packages)|^<(?!(string|stdin)>)|"
    r"/(site|dist)-packages/(torch|jax|zmq)/"
    rf"|{COMPILED}"
)
# What calls an operation, or code in C++, for a compiled function: no Python frame is inside.
_RUNS_COMPILED = re.compile(rf"/torch/_ops\.py$|/torch/_inductor/(output_code\.py$|package/)|{COMPILED}")


@dataclass(frozen=True, slots=True)
class Call:
    """What the stack's innermost frames do for the user's line: the library's waiting call, if known."""

    own: Frame | None  # the user's innermost line
    library: tuple[Frame, ...]  # frames inside it, innermost first
    awaited: (
        str  # ranks, gpu, loader, storage, network ... of reference/waits.toml; empty where none is known
    )
    words: str = ""
    operation: str = ""  # all_reduce, barrier, backward ...
    frame: Frame | None = None  # of the operation, with its tensors and its group


def find_own(frames: Sequence[Frame]) -> int | None:
    """The place of the user's innermost frame; of a library as a job, the first beyond torch and Python."""
    for is_foreign in (is_library, lambda file: bool(_STANDARD.search(file))):
        for place, frame in enumerate(frames):
            # Of `python -c` by which multiprocessing starts a child, the line is its own.
            is_start = frame.file.startswith("<") and "/multiprocessing/" in frames[place - 1].file
            if not is_foreign(frame.file) and not is_start:
                return place
    return None


def find_installed(library: Sequence[Frame]) -> Frame | None:
    """The innermost frame of an installed package that the user's line calls: a trainer's.

    It is not torch's, nor one that is known to wait.
    """
    return next(
        (
            frame
            for frame in library
            if not frame.file.startswith("<")
            and not _STANDARD.search(frame.file)
            and find_wait([(frame.file, frame.function.rpartition(".")[2])]) is None
        ),
        None,
    )


def runs_operation(library: Sequence[Frame]) -> bool:
    """Whether the innermost frame calls an operation of torch, or the C++ of a compiled function."""
    # Code that torch.compile wrote is compiled further while its module is imported.
    return bool(library) and _is_run(library[0])


def runs_compiled(library: Sequence[Frame]) -> bool:
    """Whether a compiled function runs, by the frame nearest to the innermost that it or its compiler has."""
    for frame in library:
        if _is_run(frame):
            return True
        known = find_wait([(frame.file, frame.function.rpartition(".")[2])])
        if known is not None and known.awaited == COMPILER:
            return False
    return False


def _is_run(frame: Frame) -> bool:
    return bool(_RUNS_COMPILED.search(frame.file)) and frame.function != "<module>"


def own_frames(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The user's frames, innermost first."""
    return tuple(frame for frame in frames if not is_library(frame.file))


def since_fork(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames of what a process of multiprocessing runs; a forked one has those of its parent below."""
    start = "/multiprocessing/process.py", "_bootstrap"
    return tuple(
        takewhile(lambda one: not (one.file.endswith(start[0]) and one.function.endswith(start[1])), frames)
    )


def read_call(frames: Sequence[Frame]) -> Call:
    """What a stack is in."""
    place = find_own(frames)
    own = None if place is None else frames[place]
    library = tuple(frames if place is None else frames[:place])
    meeting = _find_meeting(library)
    if meeting is not None:
        words = (
            "for the other ranks to join"
            if meeting.function in _MEETINGS
            else "for other ranks, in a collective"
        )
        return Call(
            own,
            library,
            RANKS,
            words,
            _ALIASES.get(meeting.function, meeting.function),
            _with_facts(library, meeting),
        )
    known = find_wait([(frame.file, frame.function.rpartition(".")[2]) for frame in library])
    if known is not None:
        return Call(
            own, library, known.awaited, known.words, _operation_of(library) if known.awaited == RANKS else ""
        )
    return Call(own, library, "")


def find_awaited(call: Call, *, on_gpu: bool) -> str:
    """What a stack waits for: by library frames, else by the call in the user's line; empty if unknown.

    A call such as `loss.item()` waits only where its tensor is `on_gpu`.
    """
    if call.awaited or call.own is None or call.library:
        return call.awaited
    known = find_call(call.own.text) if call.own.text else None
    return "" if known is None or (known.awaited == GPU and not on_gpu) else known.awaited


def _find_meeting(library: Sequence[Frame]) -> Frame | None:
    """The outermost call of torch.distributed that is a meeting of ranks."""
    found = [
        frame
        for frame in library
        if frame.file.endswith(_C10D)
        and frame.function not in _NOT_CALLS
        and not frame.function.startswith("_get_")
    ]
    return found[-1] if found else None


def _with_facts(library: Sequence[Frame], meeting: Frame) -> Frame:
    """The frame with the tensors and the group of the call, which an inner frame may know."""
    if meeting.group is not None or meeting.tensors:
        return meeting
    return next((frame for frame in library if frame.group is not None), meeting)


def _operation_of(library: Sequence[Frame]) -> str:
    """A word for a wait for ranks that is no collective by name: backward, or the library's function."""
    names = [frame.function.rpartition(".")[2] for frame in library]
    if _BACKWARD in names:
        return "backward"
    for frame in reversed(library):
        if not _PASSING.search(frame.file) and frame.function.rpartition(".")[2] not in _NOT_CALLS:
            return frame.function
    return names[-1] if names else ""


def is_debugged(frames: Sequence[Frame]) -> bool:
    """Whether a debugger's prompt is in the stack."""
    return any(
        _DEBUGGERS.search(frame.file)
        for frame in frames[:12]
        if not frame.file.endswith("distributed/__init__.py")
    )


def is_at_exit(frames: Sequence[Frame]) -> bool:
    """Whether the script has ended, and Python waits for threads or children before it ends."""
    return any(
        frame.file.endswith(file) and frame.function == function
        for frame in frames
        for file, function in _EXITS
    ) or any(frame.function in _EXIT_HOOKS for frame in frames)


def asks_store(text: str) -> bool:
    """Whether a line of source asks torch's store, where ranks set keys for each other."""
    return bool(_STORE_CALLS.search(text))


def waits_for_work(text: str) -> bool:
    """Whether a line of source waits for something begun earlier: `work.wait()`."""
    return bool(_WAITS_FOR_WORK.search(text))


def shape_of(frames: Sequence[Frame]) -> tuple[tuple[str, str, int], ...]:
    """What two looks at one stack are compared by."""
    return tuple((frame.file, frame.function, frame.line) for frame in frames)


def changed_counters(earlier: Sequence[Frame], later: Sequence[Frame]) -> dict[str, tuple[float, float]]:
    """Numbers in the user's functions that differ between two looks or ranks, by name, from the outermost."""
    found: dict[str, tuple[float, float]] = {}
    for one, other in zip(reversed(own_frames(earlier)), reversed(own_frames(later)), strict=False):
        if (one.file, one.function) != (other.file, other.function):
            break
        others = dict(other.variables)
        for name, value in one.variables:
            numbers = _number(value), _number(others.get(name, ""))
            if numbers[0] is not None and numbers[1] is not None and numbers[0] != numbers[1]:
                found.setdefault(name, (numbers[0], numbers[1]))
    return found


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
