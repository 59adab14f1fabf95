"""When the ranks of a job are looked at because they stand still, and which standstills are reported."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpudiag.checks.job import kinds
from gpudiag.checks.job.stall_rule import WORK_LIMITS, StallRule
from gpudiag.compat import UTC
from gpudiag.model.finding import Outcome
from gpudiag.model.job import Job, JobVerdict
from gpudiag.model.job_run import Stall, StepTime
from gpudiag.model.reading import Reading

# A first look at half the limit finds what needs no time to be certain: a rank that is stopped or gone, calls
# that do not fit.
_EARLY = 0.5
_AGAIN = 1.5
_MARGIN_SECONDS = 0.3
_LEFT_SECONDS = 120.0  # a launcher may take so long to end when its ranks have


@dataclass(slots=True)
class _Pause:
    """A standstill that goes on."""

    limit_seconds: float
    look_at_seconds: float  # the standstill at which the ranks are looked at next
    longest_seconds: float = 0.0
    reported: bool = False
    look: JobVerdict | None = None
    looked_at: float = 0.0  # time.monotonic
    unseen: str = ""
    pids: frozenset[int] = frozenset()  # of the ranks that stood still or were waited for


class Stalls:
    """Follows standstills. `ended`: those over and reported, also with the end of their ranks."""

    def __init__(self, rule: StallRule) -> None:
        """Report by that rule."""
        self._rule = rule
        self._pause: _Pause | None = None
        self._left: _Pause | None = None  # in which ranks ended
        self._left_at = 0.0
        self.ended: list[Stall] = []
        self.longest_pause_seconds = 0.0

    @property
    def stands(self) -> bool:
        """Whether a standstill that goes on was reported."""
        return self._pause is not None and self._pause.reported

    def wants_look(self, still: Mapping[int, float], step: Reading[StepTime]) -> bool:
        """Whether the ranks should be looked at now; `still`: seconds each rank has stood still."""
        longest = max(still.values(), default=0.0)
        if self._pause is None:
            limit = self._rule.limit_seconds(step, self.longest_pause_seconds)
            if longest < _EARLY * limit:
                return False
            self._pause = _Pause(limit, _EARLY * limit, pids=frozenset(still))
        pause = self._pause
        if (
            pause.pids - still.keys()
        ):  # a rank has ended: this pause can only end with the job, or its restart
            self._close_with_ranks()
            return False
        if longest < min(pause.longest_seconds, _EARLY * pause.limit_seconds):
            self._go_on(known_step=isinstance(step, StepTime))
            return False
        pause.longest_seconds = max(pause.longest_seconds, longest)
        return not pause.reported and longest >= pause.look_at_seconds

    @property
    def limit_seconds(self) -> float:
        """The limit of the standstill that goes on; 0 without one."""
        return self._pause.limit_seconds if self._pause else 0.0

    def take_look(
        self, verdict: JobVerdict | None, unseen: str, longest: float, *, all_still: bool
    ) -> Stall | None:
        """The standstill, if this look makes it worth a report.

        `longest` is for how long a rank has stood still by now. `all_still` counts where the stacks could not
        be read.
        """
        pause = self._pause
        if pause is None or longest < _EARLY * pause.limit_seconds:  # it went on while it was looked at
            return None
        pause.longest_seconds = max(pause.longest_seconds, longest)
        if verdict is not None:
            pause.look, pause.looked_at = verdict, time.monotonic()
        pause.unseen = unseen
        if verdict is not None and verdict.outcome is Outcome.FAIL:
            certain = verdict.findings[0].code in kinds.NEED_NO_TIME
            pause.reported = certain or pause.longest_seconds >= pause.limit_seconds
        elif verdict is None or verdict.outcome is Outcome.ERROR:
            limits = 1.0 if all_still else WORK_LIMITS
            pause.reported = pause.longest_seconds >= limits * pause.limit_seconds
            pause.unseen = unseen or (verdict.headline if verdict is not None else "")
        if pause.reported:
            return self._stall(pause, ended=False)
        pause.look_at_seconds = self._next_look(pause)
        return None

    def _next_look(self, pause: _Pause) -> float:
        for limit in (pause.limit_seconds, WORK_LIMITS * pause.limit_seconds):
            if pause.longest_seconds < limit:
                return min(
                    limit + _MARGIN_SECONDS,
                    max(pause.longest_seconds * _AGAIN, pause.limit_seconds + _MARGIN_SECONDS),
                )
        return pause.longest_seconds * _AGAIN

    def open_stall(self) -> Stall | None:
        """The standstill that goes on, if it was reported."""
        return (
            self._stall(self._pause, ended=False)
            if self._pause is not None and self._pause.reported
            else None
        )

    def earlier_look(self) -> tuple[Job, float] | None:
        """The job in the last look at the present standstill, and how many seconds ago; or None."""
        if self._pause is None or self._pause.look is None:
            return None
        return self._pause.look.job, time.monotonic() - self._pause.looked_at

    @property
    def open_look(self) -> JobVerdict | None:
        """The last look at a standstill that goes on, reported or not; None without one."""
        last = self._last()
        return last.look if last is not None else None

    def _last(self) -> _Pause | None:
        """The standstill that goes on, or in which ranks ended a short while ago."""
        if self._pause is None and time.monotonic() - self._left_at < _LEFT_SECONDS:
            return self._left
        return self._pause

    def report_at_end(self) -> None:
        """Report a standstill in which the job ended, if the last look at it shows a fault."""
        last = self._last()
        if last is None or last.reported or last.look is None or last.look.outcome is not Outcome.FAIL:
            return
        last.reported = True
        if last is self._left:
            self.ended.append(self._stall(last, ended=False))

    def take_last_look(self, verdict: JobVerdict, still_seconds: float) -> None:
        """A look that was taken because somebody ends the job: what it shows is kept if it is a fault."""
        if verdict.outcome is Outcome.FAIL:
            self._pause = self._pause or _Pause(still_seconds, still_seconds)
            self._pause.longest_seconds = max(self._pause.longest_seconds, still_seconds)
            self._pause.reported, self._pause.look = True, verdict

    def note_ranks(self) -> None:
        """Take a wait for other nodes as over: the launcher has started its ranks."""
        self._go_on(known_step=False)

    def _close_with_ranks(self) -> None:
        pause, self._pause = self._pause, None
        if pause is not None and pause.reported:
            self.ended.append(self._stall(pause, ended=False))
        self._left, self._left_at = pause, time.monotonic()

    def _go_on(self, *, known_step: bool) -> None:
        pause, self._pause = self._pause, None
        if pause is None:
            return
        if known_step:  # a pause before the first steps shows nothing of later ones
            self.longest_pause_seconds = max(self.longest_pause_seconds, pause.longest_seconds)
        if pause.reported or pause.longest_seconds >= pause.limit_seconds:
            self.ended.append(self._stall(pause, ended=True))

    def _stall(self, pause: _Pause, *, ended: bool) -> Stall:
        began = datetime.now(UTC) - timedelta(seconds=pause.longest_seconds)
        return Stall(
            began=began,
            stood_seconds=round(pause.longest_seconds, 1),
            limit_seconds=round(pause.limit_seconds, 1),
            reported=pause.reported,
            ended=ended,
            over=datetime.now(UTC) if ended else None,
            look=pause.look,
            unseen=pause.unseen,
        )
