"""The times of a job's events, made comparable: years and days that logs leave out, clocks of other zones."""

from dataclasses import replace
from datetime import datetime, timedelta

from gpudiag.explain.event import Event, Standing
from gpudiag.explain.identity import Identities

BEFORE_THE_JOB = timedelta(minutes=5)
# Of the job's first failure, within which a fault in another time zone must be.
_AROUND = timedelta(minutes=2)
_ZONE_STEP = timedelta(minutes=30)  # the zones of nearly everybody differ by whole or half hours
_MOST_STEPS = 28
_ANY_DAY, ANY_YEAR = 1903, 1904  # years of times that name none


def on_one_calendar(job: Identities, found: list[Event]) -> list[Event]:
    """The events with a year and a day in every time, taken from the others where the log names none."""
    times = [event.at for event in found if event.at] + [
        edge for log in job.logs for edge in (log.facts.first_at, log.facts.last_at) if edge
    ]
    whole = max((at for at in times if at.year > ANY_YEAR), default=None)
    dated = max((at for at in times if at.year >= ANY_YEAR), default=None)
    return [replace(event, at=on_calendar(event.at, whole, dated)) if event.at else event for event in found]


def on_calendar(at: datetime, whole: datetime | None, dated: datetime | None) -> datetime:
    """A time with the year of `whole`, and the day of `dated` where it has none."""
    if at.year == _ANY_DAY and dated is not None:
        at = at.replace(year=dated.year, month=dated.month, day=dated.day)
    try:
        return at.replace(year=whole.year) if at.year == ANY_YEAR and whole is not None else at
    except ValueError:  # the 29th of February
        return at


def set_clocks(job: Identities, found: list[Event]) -> list[Event]:
    """The events, with the times of a kernel log in another time zone than the job's logs put right.

    Containers write UTC and hosts the local time, or the other way round. A log is moved, by half hours, only
    where no fault of the machine in it is of the job's time, and one would stand within two minutes of the
    job's first failure.
    """
    kernel = {event.log_number for event in found if event.is_driver}
    failed_at = min(
        (
            event.at
            for event in found
            if event.at
            and event.log_number not in kernel
            and event.standing < Standing.OUTLIVED
            and event.at.year > ANY_YEAR - 1
        ),
        default=None,
    )
    started, _ = span_of(job)
    if failed_at is None:
        return found
    first = min(started or failed_at, failed_at) - BEFORE_THE_JOB
    moves: dict[int, timedelta] = {}
    for number in kernel:
        own = [
            event.at
            for event in found
            if event.log_number == number
            and event.at
            and event.is_exact
            and event.standing is Standing.MACHINE
            and event.is_driver
        ]
        if own and not any(first <= at <= failed_at + _AROUND for at in own):
            step = _ZONE_STEP
            fits = [
                move * step
                for move in range(-_MOST_STEPS, _MOST_STEPS + 1)
                if any(-_AROUND <= at + move * step - failed_at <= _AROUND / 2 for at in own)
            ]
            if fits:
                moves[number] = min(fits, key=abs)
    return [
        replace(
            event, at=event.at + moves[event.log_number], note=_words_of_move(event, moves[event.log_number])
        )
        if event.log_number in moves and event.at and event.is_exact
        else event
        for event in found
    ]


def _words_of_move(event: Event, move: timedelta) -> str:
    hours = abs(move).total_seconds() / 3600
    side = "behind" if move > timedelta(0) else "ahead of"
    return f"the clock of {event.log} is {hours:g} h {side} that of the job's logs: another time zone"


def span_of(job: Identities) -> tuple[datetime | None, datetime | None]:
    """When the job's own logs begin, and when the last step was logged."""
    own = [(log, step) for log in job.logs if (step := log.facts.last_step) is not None]
    dated = [
        at for log in job.logs for at in (log.facts.first_at, log.facts.last_at) if at and at.year > ANY_YEAR
    ]
    whole = max(dated, default=None)
    began = [on_calendar(log.facts.first_at, whole, whole) for log, _ in own if log.facts.first_at]
    moved = [on_calendar(step.at, whole, whole) for _, step in own if step.at]
    return min(began, default=None), max(moved, default=None)
