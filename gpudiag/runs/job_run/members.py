"""The ranks of a job as they are watched: their pulses, where they were seen, and how each of them ended."""

import json
import os
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from gpudiag.checks.job.activity import FOR_RANKS
from gpudiag.checks.job.rhythm import asleep_share
from gpudiag.compat import UTC
from gpudiag.linux.proc import read_wait_channel
from gpudiag.model.job import JobVerdict
from gpudiag.model.job_run import Glance, Pulse, RankEnd, RankRecord
from gpudiag.model.reading import NOT_ASKED, Missing, MissingReason, Reading
from gpudiag.model.untrusted_text import escape_controls, mask_text
from gpudiag.probe.job.ranks_of_run import OwnRank, OwnRanks
from gpudiag.probe.pidfd import Pidfd
from gpudiag.probe.pulse import PulseReader
from gpudiag.reference.waits import FOR_OTHERS, GPU, RANKS, is_library
from gpudiag.runs.job_run.process import signal_name
from gpudiag.runs.job_run.standing import Standing

# A minute of ten readings a second shows steps of 0.3 to 15 s; a quarter of an hour of one a second those of
# up to four minutes.
_FINE_PULSES = 600
_COARSE_PULSES = 900
_COARSE_SECONDS = 1.0
_GLANCES = 240
_WAIT_CHANNELS, _FIRST_WAIT_CHANNELS, _WAIT_CHANNEL_SECONDS = 60, 20, 8.0
_ASLEEP = 0.6
_PAUSE_SECONDS, _ENDING_SECONDS = 2.0, 30.0  # a process may take long from its exception to its end
_LATELY_SECONDS = 30.0
_STANDING_GLANCES = 10
_ERROR_FILE_BYTES = 1 << 20
_ERROR_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class RankError:
    """The exception that ended a rank: its text, the user's own line, and when it was raised."""

    text: str
    place: str | None = None
    at: datetime | None = None


@dataclass(slots=True)
class Member:
    """One process of a rank."""

    pid: int
    rank: int | None
    error_file: str
    seen_at: datetime
    attempt: int
    certain: bool
    reader: PulseReader
    pidfd: Pidfd | None
    fine: deque[Pulse] = field(default_factory=lambda: deque(maxlen=_FINE_PULSES))
    coarse: deque[Pulse] = field(default_factory=lambda: deque(maxlen=_COARSE_PULSES))
    # The latest kernel functions that it slept in.
    wait_channels: deque[str] = field(default_factory=lambda: deque(maxlen=_WAIT_CHANNELS))
    channel_at: float = 0.0  # when the last one was read
    glances: deque[Glance] = field(default_factory=lambda: deque(maxlen=_GLANCES))
    has_gpu: bool = False  # by its glances: the library of a GPU's driver is loaded
    moved_at: float = 0.0  # when its main thread last went to sleep of its own accord
    standing: Standing = field(default_factory=Standing)  # whether that was only to ask again
    glanced_at: float = 0.0
    standing_glances: int = 0  # beside what all glances may take
    looked: Glance | None = (
        None  # what the last look at all ranks showed of it; no part of how it spends its time
    )
    pause_seconds: float = 0.0  # the last time that it did not move for, if that was long
    paused_until: float = 0.0
    ended_at: datetime | None = None
    status: Reading[int] = NOT_ASKED
    order: int | None = None
    error: RankError | None = None
    still_seconds: float | None = None  # at its end

    @property
    def lives(self) -> bool:
        """Whether its end has not been seen."""
        return self.ended_at is None

    @property
    def still_since(self) -> float:
        """Since when it has stood still: no sleep, or only to ask again whether something has come."""
        stands = self.standing.since_seconds
        return self.moved_at if stands is None else min(self.moved_at, stands)

    def add(self, pulse: Pulse) -> None:
        """Keep a pulse, and note whether the main thread went to sleep since the last."""
        if not self.fine or pulse.sleeps != self.fine[-1].sleeps:
            if self.fine and pulse.at_seconds - self.moved_at >= _PAUSE_SECONDS:
                self.pause_seconds, self.paused_until = pulse.at_seconds - self.moved_at, pulse.at_seconds
            self.moved_at = pulse.at_seconds
        self.fine.append(pulse)
        self.standing.add(pulse)
        if not self.coarse or pulse.at_seconds - self.coarse[-1].at_seconds >= _COARSE_SECONDS:
            self.coarse.append(pulse)
            self._read_wait_channel(pulse.at_seconds)

    def _read_wait_channel(self, now: float) -> None:
        """Note what it sleeps in, once a second until known: the kernel looks a name up each time."""
        pause = _COARSE_SECONDS if len(self.wait_channels) < _FIRST_WAIT_CHANNELS else _WAIT_CHANNEL_SECONDS
        if now - self.channel_at >= pause and self.sleeps:
            self.channel_at = now
            if channel := read_wait_channel(self.pid):
                self.wait_channels.append(channel)

    @property
    def sleeps(self) -> bool:
        """Whether the main thread slept for most of the time between the last two pulses."""
        return len(self.fine) > 1 and asleep_share(self.fine[-2], self.fine[-1]) >= _ASLEEP

    def stopped_unseen(self, now: float, seconds: float) -> bool:
        """Whether it has stood still so long without a glance; at most some times."""
        return (
            bool(self.fine)
            and now - self.moved_at >= seconds
            and self.glanced_at <= self.moved_at
            and self.standing_glances < _STANDING_GLANCES
        )

    @property
    def last_seen(self) -> Glance | None:
        """Where it was seen last, by a glance or by a look at all ranks; None where that is long ago."""
        seen = [one for one in (self.looked, *list(self.glances)[-1:]) if one is not None]
        last = max(seen, key=lambda one: one.at_seconds, default=None)
        is_old = (
            last is not None and self.fine and self.fine[-1].at_seconds - last.at_seconds > _LATELY_SECONDS
        )
        return None if is_old else last

    def note_end_of_pulses(self) -> None:
        """Keep for how long it had not moved, until it ended or until an exception woke it up just before."""
        if not self.fine:
            return
        at_seconds = self.fine[-1].at_seconds
        still = at_seconds - self.moved_at
        if at_seconds - self.paused_until < _ENDING_SECONDS:
            still = max(still, self.pause_seconds)
        self.still_seconds = round(still, 1)

    def record(self) -> RankRecord:
        """What is known of it."""
        code: Reading[int] = self.status
        name = None
        if isinstance(code, int):
            number = os.waitstatus_to_exitcode(code)
            code, name = number, (signal_name(-number) if number < 0 else None)
        return RankRecord(
            rank=Missing(MissingReason.NOT_SUPPORTED, "its rank is unknown")
            if self.rank is None
            else self.rank,
            pid=self.pid,
            started=self.seen_at,
            end=self._end(code),
            ended=self.ended_at,
            exit_code=code,
            signal=name,
            order=self.order,
            attempt=self.attempt,
            error=self.error.text if self.error else None,
            error_place=self.error.place if self.error else None,
            last_place=self.last_seen.place if self.last_seen else None,
            raised=self.error.at if self.error else None,
            last_wait=_describe_wait(self.last_seen) if self.last_seen else None,
            still_seconds=self.still_seconds,
        )

    def _end(self, code: Reading[int]) -> RankEnd:
        if self.lives:
            return RankEnd.RUNS
        if isinstance(code, Missing):
            return RankEnd.ENDED
        if code < 0:
            return RankEnd.KILLED
        return RankEnd.FAILED if code else RankEnd.FINISHED


class Members:
    """All processes of ranks that were seen, those that have ended too."""

    def __init__(self, scratch: str | None = None) -> None:
        """Nobody was seen yet; `scratch` is what the names of the files with ranks' exceptions begin with."""
        self._scratch = scratch
        self.all: list[Member] = []
        self.world_size: int | None = None
        self.expected: int | None = None
        self.agent_pid: int | None = None  # torchrun, while it has started no rank
        self._failed = 0

    @property
    def living(self) -> list[Member]:
        """Those whose end has not been seen."""
        return [one for one in self.all if one.lives]

    @property
    def complete(self) -> bool:
        """Whether all ranks that should be on this machine are there."""
        return bool(self.living) and len(self.living) >= (self.expected or 1)

    def update(self, found: OwnRanks, now: datetime) -> None:
        """Take up the ranks that were not known yet."""
        self.world_size = found.world_size or self.world_size
        self.expected = found.expected or self.expected
        self.agent_pid = None if self.all or found.ranks else found.agent
        known = {one.pid: one for one in self.all if one.lives}
        for own in found.ranks:
            if own.pid in known:  # a server's worker is seen before its rank is
                known[own.pid].rank = own.rank if known[own.pid].rank is None else known[own.pid].rank
            elif member := self._open(own, now):
                self.all.append(member)
        listed = {own.pid for own in found.ranks}
        # A process that was taken for a rank before its launcher had started any.
        for one in [one for one in self.living if not one.certain and found.ranks and one.pid not in listed]:
            self._drop(one)

    def _open(self, own: OwnRank, now: datetime) -> Member | None:
        try:
            reader = PulseReader(own.pid)
        except OSError:  # it ended since it was listed
            return None
        pidfd = None
        with suppress(OSError):
            pidfd = Pidfd(own.pid)
        earlier = [one for one in self.all if one.rank == own.rank is not None and one.certain == own.certain]
        return Member(own.pid, own.rank, own.error_file, now, len(earlier) + 1, own.certain, reader, pidfd)

    def _drop(self, member: Member) -> None:
        member.reader.close()
        if member.pidfd is not None:
            member.pidfd.close()
        self.all.remove(member)

    def read_pulses(self, at_seconds: float, now: datetime) -> None:
        """Read the pulse of each that lives; one that has none has ended."""
        for member in self.living:
            pulse = member.reader.read(at_seconds)
            if pulse is not None:
                member.add(pulse)
            else:
                self.note_end(member, now)

    def note_end(self, member: Member, now: datetime) -> None:
        """Take down how a process ended, and what it left in its error file."""
        if not member.lives:
            return
        member.ended_at = now
        member.note_end_of_pulses()
        if member.pidfd is not None:
            member.status = member.pidfd.read_status()
            member.pidfd.close()
        member.reader.close()
        if member.status != 0 and not isinstance(member.status, Missing):
            self._failed += 1
            member.order = self._failed
        # Without torchrun all ranks have one error file, and what stands there is the first one's at best.
        shared = any(one.error_file == member.error_file for one in self.all if one is not member)
        member.error = None if shared and member.order != 1 else read_error_file(member.error_file)
        if self._scratch is not None and (own := read_error_file(f"{self._scratch}error-{member.pid}.json")):
            member.error = own

    @property
    def latest(self) -> list[Member]:
        """Of each rank the process of its last attempt, whether it lives or not."""
        last = {one.rank: one for one in self.all if one.rank is not None}
        return [one for one in self.all if one.rank is None or last[one.rank].attempt == one.attempt]

    def note_look(self, verdict: JobVerdict, at_seconds: float) -> None:
        """Keep where each rank was in a look at all of them."""
        for place in verdict.places:
            wait = place.kind if place.kind in FOR_OTHERS else RANKS if place.kind in FOR_RANKS else ""
            for member in self.living:
                if member.rank in place.ranks:
                    if place.moves:
                        member.standing.note_movement(at_seconds)
                    member.looked = Glance(at_seconds, True, place.where, wait, place.words, place.operation)

    def pulses(self, *, coarse: bool = False) -> dict[int, list[Pulse]]:
        """The pulses of those that live, by pid."""
        return {one.pid: list(one.coarse if coarse else one.fine) for one in self.living if one.fine}

    def name(self, pid: int) -> int:
        """The rank of a process; its pid where the rank is unknown."""
        return next((one.rank for one in self.all if one.pid == pid and one.rank is not None), pid)


def read_error_file(path: str) -> RankError | None:
    """The exception in a file as torchelastic's `record` writes it; None where there is none."""
    if not path:
        return None
    try:
        with open(path, "rb") as file:
            document = json.loads(file.read(_ERROR_FILE_BYTES))
        message = document["message"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    if isinstance(message, str):
        return RankError(_shown(message))
    if not isinstance(message, dict):
        return None
    extra = message.get("extraInfo")
    stack = extra.get("py_callstack") if isinstance(extra, dict) else None
    place = _own_line(stack) if isinstance(stack, str) else None
    return RankError(
        _shown(str(message.get("message", ""))),
        place,
        _time_of(extra.get("timestamp") if isinstance(extra, dict) else None),
    )


def _time_of(timestamp: object) -> datetime | None:
    """A time of an error file: seconds since 1970, also as a word."""
    with suppress(ValueError, TypeError, OverflowError, OSError):
        return datetime.fromtimestamp(float(timestamp), UTC)  # type: ignore[arg-type]
    return None


def _describe_wait(glance: Glance) -> str | None:
    """What a rank waits in for others, or for its GPU; None where it was seen at something else."""
    if glance.awaited not in FOR_OTHERS:
        return None
    what = "a wait for its GPU" if glance.awaited == GPU else glance.operation or "a collective"
    return f"{what} ({glance.place})" if glance.place else what


def _own_line(stack: str) -> str | None:
    """`train.py:31 in main`, the last frame of a traceback that is no library's."""
    found = None
    for line in stack.splitlines():
        words = line.strip()
        if not words.startswith('File "'):
            continue
        file, _, rest = words.removeprefix('File "').partition('", line ')
        number, _, function = rest.partition(", in ")
        if not is_library(file):
            found = f"{os.path.basename(file)}:{number} in {function}"
    return _shown(found) if found else None


def _shown(text: str) -> str:
    first = next((line for line in text.splitlines() if line.strip()), "")
    return mask_text(escape_controls(first.strip()))[:_ERROR_CHARACTERS]
