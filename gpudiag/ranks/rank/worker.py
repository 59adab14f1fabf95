"""What a rank does, from the moment it is forked until it ends, and how it announces each step."""

import importlib
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, MappingProxyType, TracebackType
from typing import Any

from gpudiag.linux.child import die_with_parent, name_process
from gpudiag.model import codec
from gpudiag.ranks import stages
from gpudiag.ranks.diagnosis.dump import DumpFiles
from gpudiag.ranks.event_log import EventWriter
from gpudiag.ranks.inject import Fault, FaultKind, MismatchKind
from gpudiag.ranks.rank.arrivals import ArrivalRecorder
from gpudiag.ranks.rank.board import PositionBoard, PositionWriter
from gpudiag.ranks.rank.context import RankContext
from gpudiag.ranks.rank.job import Job, LocalRank
from gpudiag.ranks.rank_run import EventKind
from gpudiag.ranks.stages import Place

# --- the side channel

_HEADROOM_BYTES = 64 << 20  # what the rank may still allocate before it fails
_BLOCK_BYTES = 8 << 20

_CONTEXT_MANAGERS = contextmanager.__code__.co_filename


def kill_self() -> None:
    """End this process by SIGKILL, as the OOM killer and batch systems do."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_self() -> None:
    """Stop this process by SIGSTOP, until another process sends SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def stay_out() -> None:
    """Sleep forever, like a rank that took a different branch from the others."""
    while True:
        time.sleep(3600)


def run_out_of_memory() -> None:
    """Allocate until memory runs out: on the GPU if this process uses one, else up to a limit set just above.

    Raises:
        MemoryError: always, on a CPU.
        torch.OutOfMemoryError: always, on a GPU.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        _exhaust_gpu(torch)
    _exhaust_host()


def _exhaust_gpu(torch: Any) -> None:
    blocks = []
    while True:
        blocks.append(torch.empty(_BLOCK_BYTES, dtype=torch.uint8, device="cuda"))


def _exhaust_host() -> None:
    """Run into a memory limit of this process alone, so that the machine's other users keep their memory."""
    used_pages = int(Path("/proc/self/statm").read_text().split()[0])
    limits = resource.getrlimit(resource.RLIMIT_AS)
    allowed = used_pages * resource.getpagesize() + _HEADROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (allowed, limits[1]))
    blocks = []
    try:
        while True:
            blocks.append(bytearray(_BLOCK_BYTES))
    except MemoryError:
        raise MemoryError(f"no memory beyond the {allowed >> 20} MiB that this process may map") from None
    finally:
        blocks.clear()
        resource.setrlimit(resource.RLIMIT_AS, limits)


_OWN_FOLDER = __file__.rpartition("/rank/")[0] + "/"
_DEEDS: Mapping[FaultKind, Callable[[], None]] = MappingProxyType(
    {
        FaultKind.KILL: kill_self,
        FaultKind.STOP: stop_self,
        FaultKind.SKIP: stay_out,
        FaultKind.OOM: run_out_of_memory,
    }
)


def _who_wants_it(announcer: FrameType) -> FrameType:
    """The frame that called the announcing file for a collective; the announcer, if it is the entry."""
    wrappers = (announcer.f_code.co_filename, _CONTEXT_MANAGERS)
    caller = announcer.f_back
    while caller is not None and caller.f_code.co_filename in wrappers:
        caller = caller.f_back
    if caller is None or caller.f_code.co_filename.startswith(_OWN_FOLDER):
        return announcer
    return caller


class RankProgress:
    """The `Progress` that a rank's entry is given: shared memory, an event file, and its faults."""

    def __init__(self, position: PositionWriter, events: EventWriter, faults: tuple[Fault, ...]) -> None:
        """Write to `position` and `events`; `faults` are only those of this rank."""
        self.arrivals = ArrivalRecorder()
        self._position = position
        self._events = events
        self._code: CodeType | None = None  # whose instruction announced the last collective
        self._instruction = -1
        self._place: Place = ("", 0)
        self._pending = list(faults)
        self._slowed: list[Fault] = []
        self._mismatch: MismatchKind | None = None

    def enter_stage(self, stage: str) -> None:
        """Publish the stage, then inject the faults due in it."""
        due = [fault for fault in self._pending if fault.stage == stage]
        self._fire([fault for fault in due if fault.kind is FaultKind.SKIP])  # first: the rank never enters
        caller = sys._getframe(1)
        self._position.enter_stage(stage, (caller.f_code.co_filename, caller.f_lineno))
        self._fire([fault for fault in due if fault.kind is not FaultKind.SKIP])

    def before_operation(
        self, sequence: int, op: str, dtype: str, elements: int, predicted_seconds: float | None = None
    ) -> None:
        """Publish the collective before the rank enters it."""
        caller = _who_wants_it(sys._getframe(1))
        code, instruction = caller.f_code, caller.f_lasti
        if code is not self._code or instruction != self._instruction:  # its line takes long to look up
            self._code, self._instruction = code, instruction
            self._place = (code.co_filename, caller.f_lineno)
        announced = (op, dtype, elements, predicted_seconds)
        now_ns = self._position.enter_operation(sequence, announced, self._place)
        self.arrivals.arrive(now_ns)

    def after_operation(self, sequence: int, *, queued: bool = False) -> None:
        """Publish that the rank is out of the collective."""
        self.arrivals.leave(self._position.leave_operation(sequence), queued=queued)

    def before_iteration(self, iteration: int) -> None:
        """Publish the iteration, then inject the faults due in it."""
        self._position.enter_iteration(iteration)
        if self._pending:
            due = [fault for fault in self._pending if fault.iteration == iteration]
            self._fire([fault for fault in due if fault.kind is not FaultKind.BITFLIP])
            self._delay()
        self.arrivals.start_iteration(iteration)

    def before_exchange(self, others: Sequence[int]) -> None:
        """Delay what this rank exchanges with those ranks, if a fault asks for it."""
        self._delay(others)

    def note_place(self, file: str, line: int) -> None:
        """Publish the line that the rank is at."""
        self._position.note_place((file, line))

    def pop_mismatch(self) -> MismatchKind | None:
        """How an injected fault wants this rank's next collective to differ; returned once."""
        mismatch, self._mismatch = self._mismatch, None
        return mismatch

    def should_flip_bit(self, iteration: int) -> bool:
        """Whether an injected fault wants a bit of this iteration's output flipped; True once."""
        for fault in self._pending:
            if fault.kind is FaultKind.BITFLIP and fault.iteration == iteration:
                self._pending.remove(fault)
                self._announce(fault)
                return True
        return False

    def emit(self, event: Mapping[str, Any]) -> None:
        """Append the event to this rank's event file."""
        self._events.write(EventKind.EMITTED, event)

    def _delay(self, others: Sequence[int] = ()) -> None:
        for fault in self._pending:
            if fault.kind is FaultKind.SLOW and (fault.other_rank is None or fault.other_rank in others):
                if fault not in self._slowed:
                    self._slowed.append(fault)
                    self._announce(fault)
                time.sleep(fault.delay_seconds)

    def _fire(self, faults: list[Fault]) -> None:
        for fault in faults:
            self._pending.remove(fault)
            self._announce(fault)
            if fault.kind is FaultKind.MISMATCH:
                self._mismatch = fault.mismatch
            else:
                _DEEDS[fault.kind]()

    def _announce(self, fault: Fault) -> None:
        """Record the fault before it happens: afterwards may be too late."""
        self._events.write(EventKind.FAULT, {"specification": fault.specification})


# --- the rank

EXIT_DONE = 0
EXIT_RAISED = 1


def run_rank(job: Job, local: LocalRank, board: PositionBoard, template_pid: int) -> None:
    """Run the entry as that rank; never returns: the process ends here."""
    die_with_parent(template_pid)
    name_process(f"gpudiag-rank{local.rank}")
    directory = Path(job.run_directory)
    _redirect_output(directory / f"rank{local.rank}.stderr")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the agent, which ends the ranks
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    events = EventWriter(directory / f"rank{local.rank}.events")
    position = board.writer(job.ranks.index(local))
    faults = tuple(fault for fault in job.faults if fault.rank == local.rank)
    status = EXIT_RAISED
    try:
        DumpFiles(directory, local.rank).answer_requests()
        _run_entry(job, local, RankProgress(position, events, faults), events)
        status = EXIT_DONE
    except BaseException as error:  # noqa: BLE001 - whatever ends a rank is evidence, SystemExit too
        traceback.print_exc()
        events.write(EventKind.RAISED, describe_exception(error))
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)  # this is a fork of the template's interpreter, which must not be torn down twice


def _run_entry(job: Job, local: LocalRank, progress: RankProgress, events: EventWriter) -> None:
    _export_rank(job, local)
    progress.enter_stage(stages.IMPORT)
    entry = load_entry(job.entry)
    context = RankContext(
        rank=local.rank,
        local_rank=local.local_rank,
        world_size=job.world_size,
        local_world_size=job.local_world_size,
        init_method=job.init_method,
        rendezvous_timeout_seconds=job.rendezvous_timeout_seconds,
        operation_timeout_seconds=job.operation_timeout_seconds,
        arguments=job.arguments,
        progress=progress,
        run_directory=job.run_directory,
    )
    result = dict(entry(context))
    arrivals = progress.arrivals.read()
    if arrivals is not None:
        events.write(EventKind.ARRIVALS, codec.encode(arrivals))
    events.write(EventKind.RESULT, result)
    progress.enter_stage(stages.TEARDOWN)
    _destroy_process_group()


def load_entry(name: str) -> Callable[[RankContext], Mapping[str, Any]]:
    """The function that `module:function` names; the caller must report import errors."""
    module_name, _, function_name = name.partition(":")
    entry: Callable[[RankContext], Mapping[str, Any]] = getattr(
        importlib.import_module(module_name), function_name
    )
    return entry


def describe_exception(error: BaseException) -> dict[str, Any]:
    """An exception as evidence: its type, message and traceback, and the file:line that raised it."""
    return {
        "type": type(error).__name__,
        "message": str(error),
        "place": _innermost_place(error.__traceback__),
        "traceback": "".join(traceback.format_exception(error)),
    }


def _innermost_place(trace: TracebackType | None) -> str | None:
    frames = traceback.extract_tb(trace)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else None


def _export_rank(job: Job, local: LocalRank) -> None:
    """Set the environment variables by which libraries know their rank, as torchrun does."""
    os.environ["RANK"] = str(local.rank)
    os.environ["LOCAL_RANK"] = str(local.local_rank)
    os.environ["WORLD_SIZE"] = str(job.world_size)
    os.environ["LOCAL_WORLD_SIZE"] = str(job.local_world_size)


def _redirect_output(path: Path) -> None:
    """Redirect stdout and stderr to `path`, and stdin to /dev/null, for C libraries too."""
    output = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.close(nothing)


def _destroy_process_group() -> None:
    """Destroy torch's process group, if the entry left it open; not gloo's, which ends with the process.

    It waits for threads with Python's lock, for which one of them may wait (torch 2.4 to 2.6).
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_initialized() and distributed.get_backend() != "gloo":
        distributed.destroy_process_group()
