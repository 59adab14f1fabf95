"""Response bodies of readings over a time range, built by one thread in small steps, once per question.

A day of eight GPUs takes 0.2 s of CPU time. Built in the event loop, or by one thread per reader, it would
hold up every other answer; one call of the JSON encoder over all of it would, too.
"""

import asyncio
import csv
import io
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from time import monotonic, time

from gpudiag.model.codec import encode, to_document
from gpudiag.model.service import DeviceSeries, Series
from gpudiag.service.readings import Readings
from gpudiag_api.replies import Encoded, Problem, encode_body

_KEPT_BODIES = 8
MAX_WAITING_QUESTIONS = 64  # a fifth of a second each
_FRESH_SECONDS = 1.0  # of a range that ends now, at its finest
_MAX_FRESH_SECONDS = 30.0

HasLeft = Callable[[], Awaitable[bool]]


async def stays() -> bool:
    """False: the client is still there."""
    return False


@dataclass(frozen=True, slots=True)
class Question:
    """Which readings, over which range, and how they are written."""

    from_at: float | None
    to_at: float | None
    step_seconds: float | None
    names: tuple[str, ...]
    uuids: tuple[str, ...] | None
    as_csv: bool = False


class HistoryBodies:
    """The newest answers to questions about one service's readings."""

    def __init__(self, readings: Readings) -> None:
        """Answer from these readings."""
        self._readings = readings
        self._thread = ThreadPoolExecutor(1, "history")
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._made: OrderedDict[Question, tuple[float, asyncio.Future[Encoded]]] = OrderedDict()

    async def answer(self, question: Question, has_left: HasLeft = stays) -> Encoded:
        """The body, shared by all who ask the same while it is being built, or shortly after.

        Questions take turns; one whose client has left by its turn is not answered.

        Raises:
            Problem: too many wait already, or the client has left.
        """
        if question not in self._made and self._waiting >= MAX_WAITING_QUESTIONS:
            raise Problem(
                503,
                "history.busy",
                "too many callers ask for other ranges of time",
                "ask again in a few seconds",
                {"Retry-After": "5"},
            )
        self._waiting += 1
        try:
            async with self._turn:
                making = self._fresh(question)
                if making is None:
                    if await has_left():
                        raise Problem(400, "request.left", "no caller waits for this answer")
                    making = asyncio.get_running_loop().run_in_executor(self._thread, self._make, question)
                    self._made[question] = (monotonic() + _fresh_seconds(question), making)
                    while len(self._made) > _KEPT_BODIES:
                        self._made.popitem(last=False)
                try:
                    return await asyncio.shield(making)
                except Exception:
                    self._made.pop(question, None)
                    raise
        finally:
            self._waiting -= 1

    def _fresh(self, question: Question) -> asyncio.Future[Encoded] | None:
        """The body that was built for that question, or is being built, if it is still fresh."""
        until, making = self._made.get(question, (0.0, None))
        return None if making is None or until < monotonic() or making.cancelled() else making

    def close(self) -> None:
        """Start no more answers."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _make(self, question: Question) -> Encoded:
        found = self._readings.series(
            question.from_at, question.to_at, question.step_seconds, question.names, question.uuids
        )
        if question.as_csv:
            made = encode_body(_render_csv(found, question.names), "text/csv; charset=utf-8")
        else:
            made = encode_body("".join(_json_parts(found)).encode())
        made.compressed()  # here, and not in the event loop
        return made


def _fresh_seconds(question: Question) -> float:
    """The seconds for which an answer stays fresh: a range that ends now gains a point with each step."""
    step = question.step_seconds or _FRESH_SECONDS
    lasts = 0.0 if question.from_at is None else (question.to_at or time()) - question.from_at
    return min(max(_FRESH_SECONDS, step, lasts / 2000), _MAX_FRESH_SECONDS)


def _json_parts(series: Series) -> Iterator[str]:
    """The document of `gpudiag.series/1` in parts, each of which the encoder writes quickly."""
    document = to_document(replace(series, devices=()))
    opening = "{"
    for name, value in document.items():
        yield f"{opening}{json.dumps(name)}: "
        opening = ", "
        if name == "devices":
            yield from _devices_parts(series.devices)
        else:
            yield json.dumps(value, ensure_ascii=False, allow_nan=False)
    yield "}"


def _devices_parts(devices: tuple[DeviceSeries, ...]) -> Iterator[str]:
    opening = "["
    for device in devices:
        document = encode(replace(device, series={}))
        yield opening
        opening = ", "
        inner = "{"
        for name, value in document.items():
            yield f"{inner}{json.dumps(name)}: "
            inner = ", "
            if name == "series":
                yield from _series_parts(device)
            else:
                yield json.dumps(value, ensure_ascii=False)
        yield "}"
    yield "[]" if opening == "[" else "]"


def _series_parts(device: DeviceSeries) -> Iterator[str]:
    opening = "{"
    for name, values in device.series.items():
        yield f"{opening}{json.dumps(name)}: {json.dumps(values, allow_nan=False)}"
        opening = ", "
    yield "{}" if opening == "{" else "}"


def _render_csv(series: Series, names: tuple[str, ...]) -> bytes:
    out = io.StringIO()
    table = csv.writer(out, lineterminator="\n")
    table.writerow(("time", "uuid", "nvml_index", *names))
    for device in series.devices:
        for row, at in enumerate(series.times):
            values = [device.series[name][row] for name in names]
            if any(value is not None for value in values):
                table.writerow((at, device.uuid, device.nvml_index, *values))
    return out.getvalue().encode()
