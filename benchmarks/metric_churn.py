"""How many series a day of faults on eight GPUs makes: what comes, and what goes again.

    python -m benchmarks.metric_churn

One real service on a simulated machine lives through a day: jobs come and go, GPUs get hot, are slowed down,
report Xids, are reset, fall off the bus, vanish; the driver is reloaded, the machine booted. Time is
shortened to what changes: between two events every scrape has the same series. Prints, for both dialects, the
series at the day's begin, those of the whole day, how many came and went, and the metrics that most of them
belong to.
"""

import re
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from benchmarks.alert_cases import How
from benchmarks.alert_rig import Machine, after_reset, describe_machine, machine

_LOOK_SECONDS = 14.0  # two slow rounds of the sampler, and the checks after them
_SCRAPE_SECONDS = 1.0
_DIALECTS = ("native", "dcgm")
_JOBS = "+".join(f"busy:{gpu}" for gpu in range(8))


@dataclass(frozen=True, slots=True)
class Event:
    """What happens, and how the machine is after it."""

    what: str
    faults: str
    how: How = How.WATCHED


DAY = (
    Event("a job on all GPUs", _JOBS),
    Event("it ends", ""),
    Event("a job on four", "busy:0+busy:1+busy:2+busy:3"),
    Event("one of them gets too hot", "busy:0+busy:1+busy:2+busy:3+hot:2"),
    Event("it cools down", "busy:0+busy:1+busy:2+busy:3"),
    Event("the job's own Xid 13", "busy:0+busy:1+busy:2+busy:3+xid:1:13"),
    Event("its process stays as a zombie", "zombie:1+xid:1:13"),
    Event("which is ended", "xid:1:13"),
    Event("the power brake of all GPUs", "+".join(f"throttle:{gpu}" for gpu in range(8))),
    Event("power is back", ""),
    Event("Xid 94, a contained error", "xid:6:94"),
    Event("Xid 119, the GSP does not answer", "xid:6:94+xid:3:119"),
    Event("a reset", "", How.RESET),
    Event("an uncorrectable memory error", "ecc:4"),
    Event("a reset", "", How.RESET),
    Event("an NVLink down", "nvlink-down:5:2"),
    Event("a reset", "", How.RESET),
    Event("a lowered power limit", "power-cap:7"),
    Event("the limit is set again", ""),
    Event("the driver is unloaded", "no-driver"),
    Event("and loaded", ""),
    Event("a GPU falls off the bus", "lost:3"),
    Event("a boot", "", How.BOOT),
    Event("a GPU vanishes", "gone:2"),
    Event("a boot without it", "gone:2", How.BOOT),
    Event("a boot with it", "", How.BOOT),
    Event("a job on all GPUs", _JOBS),
)


@dataclass
class Series:
    """The series of one dialect over the day."""

    here: set[str] = field(default_factory=set)
    ever: set[str] = field(default_factory=set)
    born: set[str] = field(default_factory=set)  # with the first scrape
    came: int = 0  # after it; one that goes and comes again is counted again
    went: int = 0

    def note(self, text: str) -> None:
        """Count what came and went with this scrape."""
        now = {line.rpartition(" ")[0] for line in text.splitlines() if line and not line.startswith("#")}
        if not self.born:
            self.born = self.here = now
        self.came += len(now - self.here)
        self.went += len(self.here - now)
        self.ever |= now
        self.here = now


def main() -> None:
    """Live through the day, and print."""
    series = {dialect: Series() for dialect in _DIALECTS}
    with (
        tempfile.TemporaryDirectory(prefix="churn-") as folder,
        machine("a1", Path(folder) / "a1", describe_machine("a1", "h100x8")) as one,
    ):
        one.start()
        _watch(one, series, "a quiet begin")
        for event in DAY:
            _happen(one, event)
            _watch(one, series, event.what)
    for name, seen in series.items():
        print(
            f"{name}: {len(seen.born)} series at the begin, {len(seen.ever)} in the whole day; "
            f"{seen.came} came and {seen.went} went in {len(DAY)} events"
        )
        new = Counter(re.split(r"[{ ]", line, maxsplit=1)[0] for line in seen.ever - seen.born)
        print("  new:", ", ".join(f"{metric} {count}" for metric, count in new.most_common(12)))


def _happen(one: Machine, event: Event) -> None:
    faulty = one.session.scenario
    after = one.scenario(describe_machine("a1", "h100x8", event.faults))
    if event.how is How.RESET:
        after = after_reset(after, faulty)
    if event.how is How.BOOT:
        one.stop()
    one.change(after)
    if event.how is How.BOOT:
        one.start()


def _watch(one: Machine, series: dict[str, Series], what: str) -> None:
    """Scrape until two slow rounds have passed, and print what came and went."""
    until = time.monotonic() + _LOOK_SECONDS
    before = {name: (seen.came, seen.went) for name, seen in series.items()}
    while time.monotonic() < until:
        for name, seen in series.items():
            answer = httpx.get(f"http://{one.address}/metrics", params={"dialect": name}, timeout=30.0)
            if answer.is_success:  # else it has no metrics yet
                seen.note(answer.text)
        time.sleep(_SCRAPE_SECONDS)
    changes = (
        f"{name} +{seen.came - before[name][0]} -{seen.went - before[name][1]}"
        for name, seen in series.items()
    )
    print(f"  {what}: {', '.join(changes)}", flush=True)


if __name__ == "__main__":
    main()
