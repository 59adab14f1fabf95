r"""Does each fault make one page, how soon, with which text, and does it go when the fault goes?

Starts real services on simulated machines, under a real Prometheus and Alertmanager with the shipped rules,
and lets each fault happen and end. Machines run at once, so many at a time; every machine that is well beside
them must raise nothing.

    python -m benchmarks.alert_matrix --results FILE [--at-once 16] [--scrape 15] \
        [--page docs/alerts.md] [NAME ...]

Each case is appended to FILE, a line of JSON, as its wave ends; started again, it goes on where it was.
`--page` writes the table into that page.
"""

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.alert_cases import CASES, Case, How, find_cases
from benchmarks.alert_rig import (
    RULES,
    Alerting,
    Machine,
    Message,
    after_reset,
    describe_machine,
    machine,
    missing_program,
)
from benchmarks.matrix import machine as machine_words
from benchmarks.matrix import show_section

HEADING = "## What was measured"
SETTLE_SECONDS = 75.0  # without an alert, before the faults
FAULT_SECONDS = 150.0  # that a fault lasts
CLEAR_SECONDS = 75.0  # in which it must be over
_CHANGES_AT_ONCE = 4
_PAGE_WIDTH = 118


@dataclass(frozen=True, slots=True)
class Seen:
    """One line of the results: what a person got of one case."""

    name: str
    scrape_seconds: float
    pages: tuple[str, ...]  # names of the alerts that fired, each as often as it did
    warns: tuple[str, ...]
    fired_seconds: float | None  # from the fault to the first page, or else warning
    cleared_seconds: float | None  # from the repair to the last one's end
    text: str
    runbook: str
    settled: tuple[str, ...]  # what fired before the fault
    load: float = 0.0  # of the last minute, when the faults came


def main() -> None:
    """Run what is missing of the matrix, and print what there is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="cases so far; new ones are appended")
    parser.add_argument("--at-once", type=int, default=16, help="machines in one wave")
    parser.add_argument("--scrape", type=float, default=15.0, help="seconds between scrapes")
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    parser.add_argument("names", nargs="*", help="cases; all without any")
    options = parser.parse_args()
    absent = missing_program()
    if absent:
        raise SystemExit(f"{absent} is not installed: tools/install-system-packages")
    done = {seen.name for seen in _read(options.results)}
    left = [case for case in find_cases(tuple(options.names)) if case.name not in done]
    for start in range(0, len(left), options.at_once):
        seen = try_cases(left[start : start + options.at_once], options.scrape)
        with options.results.open("a") as file:
            file.writelines(f"{json.dumps(asdict(one))}\n" for one in seen)
    show_section(render(_read(options.results)), options.page, HEADING)


def try_cases(cases: Sequence[Case], scrape_seconds: float, rules: str | None = None) -> list[Seen]:
    """What came of each case; all run at once, under one Prometheus."""
    folder = Path(tempfile.mkdtemp(prefix="alerts-"))
    try:
        with contextlib.ExitStack() as stack:
            machines = {}
            for case in cases:
                one = stack.enter_context(machine(case.name, folder / case.name, well_text(case)))
                one.start()
                machines[case.name] = one
            alerting = Alerting(folder, scrape_seconds, RULES.read_text() if rules is None else rules)
            alerting.watch({name: one.address for name, one in machines.items()})
            stack.enter_context(alerting.running())
            return _Wave(cases, machines, alerting, scrape_seconds).run()
    finally:
        shutil.rmtree(folder)


class _Wave:
    """Machines that are tried at once."""

    def __init__(
        self, cases: Sequence[Case], machines: dict[str, Machine], alerting: Alerting, scrape_seconds: float
    ) -> None:
        self._cases = cases
        self._machines = machines
        self._alerting = alerting
        self._scrape_seconds = scrape_seconds
        self._began: dict[str, float] = {}
        self._repairs: dict[str, float] = {}  # when they began, and when they were done
        self._repaired: dict[str, float] = {}
        self._load = 0.0

    def run(self) -> list[Seen]:
        """Let all be well, then each fault happen, then each be repaired."""
        _wait(SETTLE_SECONDS)
        self._load = os.getloadavg()[0]
        self._do(self._break)
        _wait(FAULT_SECONDS)
        self._do(self._repair)
        _wait(CLEAR_SECONDS)
        failed = self._alerting.rule_failures()
        if failed:
            raise SystemExit(f"{failed:.0f} evaluations of rules failed")
        return [self._seen(case) for case in self._cases]

    def _do(self, change: Callable[[Case], None]) -> None:
        """Change each machine that has a fault, few at a time: a boot keeps a processor busy for seconds."""
        with ThreadPoolExecutor(_CHANGES_AT_ONCE) as pool:
            list(pool.map(change, (case for case in self._cases if not case.is_healthy)))

    def _break(self, case: Case) -> None:
        one = self._machines[case.name]
        if case.stops:
            one.stop()
        else:
            faulty = one.scenario(faulty_text(case))
            if case.comes is How.BOOT:
                one.stop()
                one.change(faulty)
                one.start()
            else:
                one.change(faulty)
        self._began[case.name] = time.time()

    def _repair(self, case: Case) -> None:
        one = self._machines[case.name]
        self._repairs[case.name] = time.time()
        faulty = one.session.scenario
        well = one.scenario(well_text(case))
        if case.goes is How.RESET:
            one.change(after_reset(well, faulty))
        elif case.goes is How.WATCHED:
            one.change(well)
        else:
            one.stop()
            one.change(well)
            one.start()
        self._repaired[case.name] = time.time()

    def _seen(self, case: Case) -> Seen:
        messages = self._alerting.receiver.about(case.name)
        began, repaired = self._began.get(case.name), self._repaired.get(case.name)
        before = [one for one in messages if began is not None and one.at < began]
        fired = [
            one for one in messages if one.firing and one not in before and not self._is_of_a_boot(case, one)
        ]
        reported = [one for one in fired if one.pages] or fired
        ends = [one.at for one in messages if not one.firing]
        over = not self._alerting.receiver.firing(case.name) and bool(ends)
        return Seen(
            case.name,
            self._scrape_seconds,
            tuple(one.name for one in fired if one.pages),
            tuple(one.name for one in fired if not one.pages),
            round(reported[0].at - began, 1) if reported and began is not None else None,
            round(max(ends) - repaired, 1) if over and repaired is not None else None,
            reported[0].texts["summary"] if reported else "",
            reported[0].texts.get("runbook", "") if reported else "",
            tuple(one.name for one in before if one.firing),
            self._load,
        )

    def _is_of_a_boot(self, case: Case, message: Message) -> bool:
        """Whether it only reports that the machine is being booted, which may take over a minute."""
        return message.name == "GpudiagDown" and not case.stops and message.at >= self._repairs[case.name]


def well_text(case: Case) -> str:
    """The scenario file of a case's machine while all is well."""
    return describe_machine(case.name, case.machine, case.well)


def faulty_text(case: Case) -> str:
    """The scenario file of a case's machine with its fault."""
    faults = "+".join(filter(None, (case.well, case.faults)))
    return describe_machine(case.name, case.machine, faults, case.more)


def _wait(seconds: float) -> None:
    print(f"{time.strftime('%H:%M:%S')} waiting for {seconds:.0f} s", file=sys.stderr, flush=True)
    time.sleep(seconds)


def find_wrong(case: Case, seen: Seen) -> list[str]:
    """What a person got that they should not have, or did not get."""
    wrong = []
    if sorted(seen.pages) != sorted(case.pages):
        wrong.append(f"pages {_names(seen.pages)}, expected {_names(case.pages)}")
    if sorted(seen.warns) != sorted(case.warns):
        wrong.append(f"warnings {_names(seen.warns)}, expected {_names(case.warns)}")
    if seen.settled:
        wrong.append(f"{_names(seen.settled)} while all was well")
    if not case.is_healthy:
        wrong += [f"no {word!r} in the text" for word in case.words if word not in seen.text]
        if seen.cleared_seconds is None:
            wrong.append("it did not clear")
    return wrong


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# --- the page


def render(all_seen: Sequence[Seen]) -> str:
    """The tables of what was seen, in Markdown."""
    by_name = {seen.name: seen for seen in all_seen}
    faults = [(case, by_name[case.name]) for case in CASES if case.name in by_name and not case.is_healthy]
    healthy = [(case, by_name[case.name]) for case in CASES if case.name in by_name and case.is_healthy]
    right = sum(not find_wrong(case, seen) for case, seen in faults)
    silent = sum(not find_wrong(case, seen) for case, seen in healthy)
    intervals = ", ".join(sorted({f"{seen.scrape_seconds:.0f} s" for seen in all_seen}))
    loads = [seen.load for seen in all_seen if seen.load]  # older results have none
    lines = [
        textwrap.fill(
            f"`python -m benchmarks.alert_matrix` on {time.strftime('%Y-%m-%d', time.gmtime())}:"
            f" {machine_words()}, {_version('prometheus')}, {_version('prometheus-alertmanager')};"
            f" scraped every {intervals}, the rules as shipped, Alertmanager without inhibition, each alert"
            f" by itself and at once; load {min(loads):.0f} to {max(loads):.0f} where it was noted."
            " Seconds are from the fault until Alertmanager has passed the alert on, and from the repair"
            " until it has passed its end on.",
            _PAGE_WIDTH,
        ),
        "",
        f"{right} of {len(faults)} faults gave exactly the alerts of this table and cleared;"
        f" {silent} of {len(healthy)} healthy machines gave none.",
        f"Until a page: {_spread(seen.fired_seconds for _, seen in faults if seen.pages)}; until a warning: "
        f"{_spread(seen.fired_seconds for _, seen in faults if not seen.pages)}; until it cleared: "
        f"{_spread(seen.cleared_seconds for _, seen in faults)}.",
        "",
        "| fault | comes, goes | pages | warns | fires | clears | text |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(_row(case, seen) for case, seen in faults),
        "",
        f"Silent throughout: {'; '.join(case.what for case, seen in healthy if not find_wrong(case, seen))}.",
    ]
    wrong = [(case, find_wrong(case, seen)) for case, seen in (*faults, *healthy)]
    lines += [f"\nNot as wanted: {case.what}: {'; '.join(words)}." for case, words in wrong if words]
    return "\n".join(lines)


def _row(case: Case, seen: Seen) -> str:
    ways = f"{case.comes.value}, {case.goes.value}"
    words = (
        case.what,
        ways,
        _names(seen.pages),
        _names(seen.warns),
        _seconds(seen.fired_seconds),
        _seconds(seen.cleared_seconds),
        seen.text,
    )
    return f"| {' | '.join(word.replace('|', chr(92) + '|') for word in words)} |"


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.0f} s"


def _spread(all_seconds: Iterable[float | None]) -> str:
    known = [seconds for seconds in all_seconds if seconds is not None]
    return f"median {statistics.median(known):.0f} s, longest {max(known):.0f} s" if known else "none"


def _version(program: str) -> str:
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    words = (done.stdout + done.stderr).split()
    return f"{words[0].rstrip(',').capitalize()} {words[words.index('version') + 1]}"


def _read(path: Path) -> list[Seen]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        document = json.loads(line)
        lists = {name: tuple(document[name]) for name in ("pages", "warns", "settled")}
        found.append(Seen(**{**document, **lists}))
    return found


if __name__ == "__main__":
    main()
