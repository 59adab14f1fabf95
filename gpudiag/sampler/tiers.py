"""How often each reading is read, and what that may cost.

Fast: what changes from second to second. Prompt: what keeps jobs off a GPU and comes without an event (the
driver's recovery action, uncorrectable errors, rows that could not be remapped), so that an alert is in time
whatever the rest costs and whoever looks. Slow: the rest, but for the identity and for what changes only
where a user changes it (fixed). A call into the driver takes a processor's time, up to a millisecond on a GPU
with a GSP, and time of a training job, as calls serialise on the driver's own locks. So a fast tick makes at
most 10 NVML calls per GPU, what a GPU does not support is asked again after a minute only, and the slow tier
waits until its share of a processor fits. nvmlDeviceGetPcieThroughput blocks for 20 ms per direction by
design and is not called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from time import monotonic, perf_counter, time
from typing import Any

from gpudiag.linux.proc import Stat
from gpudiag.model.codec import join_sheets
from gpudiag.probe.host.processes import read_parents, read_process, stat_of_process
from gpudiag.probe.nvml.ask import (
    INVALID_ARGUMENT,
    SUCCESS,
    Ask,
    DeviceSheet,
    code_of,
    reason_of,
    reason_of_code,
)
from gpudiag.probe.nvml.memory import shares_of_processes
from gpudiag.probe.sheet import FUNCTION_NOT_FOUND, NOT_ASKED, NOT_SUPPORTED, Sheet

FAST_SECONDS = 1.0
SLOW_SECONDS = 5.0
SLOWEST_SECONDS = 25.0  # GPM's mean over more than 30 s shows nothing of now (probe.nvml.activity)
FIXED_SECONDS = 60.0

# Of one processor, for each GPU: while no client looks, and while one does (docs/measurements.md).
_IDLE_SHARE = 0.004
_LOOKED_SHARE = 0.009
_LEAST_SLOW_SHARE = 0.25  # of that for the slow tier, whatever the fast one takes: its readings show faults
_NEWEST_WEIGHT = 0.3  # of a tick's time in the running mean

# nvmlReturn_t after which the whole library is unusable: uninitialized, driver not loaded, library and
# driver of different versions.
_LIFECYCLE_CODES = (1, 9, 18)
_NONE_HERE = (NOT_SUPPORTED, FUNCTION_NOT_FOUND)


class Pace:
    """When the slow tier is due, by the processor time that ticks have taken; times are in seconds."""

    def __init__(self, gpu_count: int) -> None:
        """Start with the slow tier due at once."""
        self._gpu_count = gpu_count
        self._slow_at: float | None = None  # when the slow tier was read last
        self._prompt_at: float | None = None  # when the prompt one was, by itself or with the slow one
        self._seconds: dict[bool, float] = {}  # of a processor for one tick, by whether it was a slow one

    def is_slow_due(self, now: float, interval: float) -> bool:
        """Whether the tick that starts now should read the slow tier."""
        return self._slow_at is None or now >= self._slow_at + self.slow_seconds(interval) - FAST_SECONDS / 2

    def is_prompt_due(self, now: float) -> bool:
        """Whether the tick that starts now should read the prompt tier: every 5 s, whatever that costs."""
        return self._prompt_at is None or now >= self._prompt_at + SLOW_SECONDS - FAST_SECONDS / 2

    def seconds_to_prompt(self, now: float) -> float:
        """Seconds until the prompt tier should be read: a tick that came out of turn must not delay it."""
        return 0.0 if self._prompt_at is None else self._prompt_at + SLOW_SECONDS - now

    def slow_seconds(self, interval: float) -> float:
        """Seconds between two reads of the slow tier, where a tick starts every `interval` seconds."""
        share = self._gpu_count * (_IDLE_SHARE if interval > FAST_SECONDS else _LOOKED_SHARE)
        of_fast = self._seconds.get(False, 0.0) / interval
        left = max(share - of_fast, share * _LEAST_SLOW_SHARE)
        return min(max(SLOW_SECONDS, self._seconds.get(True, 0.0) / left), SLOWEST_SECONDS)

    def note_tick(self, began: float, processor_seconds: float, *, slow: bool, prompt: bool = False) -> None:
        """Note what a tick took that began then; a slow first one reads the fixed readings too."""
        if slow or prompt:
            self._prompt_at = began
        if slow:
            first, self._slow_at = self._slow_at is None, began
            if first:
                return
        before = self._seconds.get(slow, processor_seconds)
        self._seconds[slow] = before + _NEWEST_WEIGHT * (processor_seconds - before)

    def hurry(self) -> None:
        """Have the next tick read the slow tier: something has happened."""
        self._slow_at = None


class WatchedAsk(Ask):
    """An Ask for hours: it notices that the driver has gone (`gone`), and repeats nothing in vain.

    What the GPU or the driver does not have is asked again after `FIXED_SECONDS`. `longest` is the longest
    call since it was last set to none, and its seconds.
    """

    repeated = True
    gone: int | None = None
    longest: tuple[str, float] = ("", 0.0)

    def allowing(self, codes: Sequence[int], name: str, *arguments: Any, **named: Any) -> Any:
        """What that function of pynvml returns for this GPU; `codes` are no failures.

        Raises:
            pynvml.NVMLError: the driver does not answer it.
        """
        question = _question(name, arguments, named)
        refused = self.kept.get(("refused", question))
        if refused is not None and monotonic() - refused[1] < FIXED_SECONDS:
            raise refused[0].with_traceback(None)  # else each raise would keep the frames of one more tick
        began = perf_counter()
        try:
            return super().allowing(codes, name, *arguments, **named)
        except Exception as error:
            code = code_of(error)
            if code in _LIFECYCLE_CODES:
                self.gone = code
            if question is not None and reason_of(error)[0] in _NONE_HERE:
                self.kept["refused", question] = (error.with_traceback(None), monotonic())
            raise
        finally:
            seconds = perf_counter() - began
            if seconds > self.longest[1]:
                self.longest = (name, seconds)

    def read_fields(self, field_ids: Iterable[int]) -> None:
        """Ask for many fields in one call, without those just absent; `field` answers from it.

        Raises:
            pynvml.NVMLError: the driver refuses the batch, as some do for one field that they do not know.
        """
        now, wanted = monotonic(), []
        for number in field_ids:
            value, asked_at = self.kept.get(("refused", "field", number), (None, 0.0))
            if value is not None and now - asked_at < FIXED_SECONDS:
                self.fields[number] = value
            else:
                wanted.append(number)
        if wanted:
            super().read_fields(wanted)
        for number in wanted:
            value = self.fields[number]
            if value.nvmlReturn == INVALID_ARGUMENT or reason_of_code(value.nvmlReturn) in _NONE_HERE:
                self.kept["refused", "field", number] = (value, now)

    def forget_refusals(self) -> None:
        """Ask everything again: the GPU's modes have changed, and with them what it supports."""
        for key in [key for key in self.kept if isinstance(key, tuple) and key[0] == "refused"]:
            del self.kept[key]


_TIMED = "nvmlDeviceGetProcessUtilization"  # its argument is a time, another with each call


def _question(name: str, arguments: Sequence[Any], named: dict[str, Any]) -> object:
    """What distinguishes two calls of a function; None where an argument is no plain number."""
    if name == _TIMED:
        return (name,)
    if all(isinstance(value, int) for value in (*arguments, *named.values())):
        return (name, *arguments, *sorted(named.items()))
    return None


class ProcessFacts:
    """What /proc shows of the processes on a GPU; all but the state of a known one is read once a minute."""

    def __init__(self, root: str, read: Callable[[int, str], dict[str, Any]] = read_process) -> None:
        """Know none yet; /proc is found under `root`."""
        self._root = root
        self._read = read
        # By pid: its start in clock ticks, when it was read, and what was.
        self._known: dict[int, tuple[int, float, dict[str, Any]]] = {}
        self._used: dict[
            int, tuple[float, float]
        ] = {}  # by pid: when it was looked at, processor seconds by then

    def describe(self, ask: Ask, sheet: DeviceSheet) -> dict[int, dict[str, Any]]:
        """What /proc and the driver show of each process in the sheet, by pid; one may block it."""
        described, known, now = {}, {}, monotonic()
        pids = dict.fromkeys(process["pid"] for process in sheet.values.get("processes", ()))
        shares = _shares(ask) if pids else {}
        for pid in pids:  # each once, though it may be on several MIG instances
            ask.asking = f"/proc/{pid}"
            stat = stat_of_process(pid, self._root)
            if stat is None:
                described[pid] = join_sheets(self._read(pid, self._root), _share_of(pid, shares))
                continue
            started_before, read_at, facts = self._known.get(pid, (None, now, {}))
            if started_before != stat.start_ticks or now - read_at > FIXED_SECONDS:
                parents = {"parents": read_parents(stat, self._root)}
                read_at, facts = now, join_sheets(self._read(pid, self._root), parents)
            if started_before != stat.start_ticks:
                self._used.pop(pid, None)
            moving = self._moving(pid, stat, now)
            described[pid] = join_sheets(facts, _share_of(pid, shares), moving)
            known[pid] = (stat.start_ticks, read_at, facts)
        self._known = known
        self._used = {pid: used for pid, used in self._used.items() if pid in known}
        return described

    def _moving(self, pid: int, stat: Stat, now: float) -> dict[str, Any]:
        """What changes while a process runs: state, memory, and its processor share since the last look."""
        sheet = Sheet()
        sheet.values["state"] = stat.state
        sheet.read("resident_bytes", lambda: stat.resident_bytes)
        before, self._used[pid] = self._used.get(pid), (now, stat.cpu_seconds)
        if before is None or now <= before[0] or stat.cpu_seconds < before[1]:
            sheet.mark(
                "processor_percent", NOT_ASKED, "a mean between two looks, of which this was the first"
            )
        else:
            sheet.values["processor_percent"] = round(
                100 * (stat.cpu_seconds - before[1]) / (now - before[0]), 1
            )
        return sheet.document()


_SHARES_SECONDS = 2.0  # older samples show nothing of now
_NO_WORK = (SUCCESS, 6)  # of nvmlReturn_t, 6 not found: no process has used an engine since then


def _shares(ask: Ask) -> dict[int, int] | tuple[str, str]:
    """Each process's share of the SMs in per cent, by pid; or the driver's reason for none."""
    try:
        shares = shares_of_processes(ask, int((time() - _SHARES_SECONDS) * 1e6))
    except Exception as error:  # noqa: BLE001 - reason_of judges it
        return {} if code_of(error) in _NO_WORK else reason_of(error)
    return {pid: share for pid, share in shares}


def _share_of(pid: int, shares: dict[int, int] | tuple[str, str]) -> dict[str, Any]:
    sheet = Sheet()
    if isinstance(shares, tuple):
        sheet.mark("sm_utilization_percent", *shares)
    else:
        sheet.values["sm_utilization_percent"] = shares.get(pid, 0)
    return sheet.document()
