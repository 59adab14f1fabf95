"""Does each fault make one page, how soon, with which text, and does it go when the fault goes?

Starts real services on simulated machines, under a real Prometheus and Alertmanager with the shipped rules, and lets each
fault happen and end. Machines run at once, so many at a time; every machine that is well beside them must raise nothing.

    python -m benchmarks.alert_matrix --results FILE [--at-once 16] [--scrape 15] [--page docs/alerts.md] [NAME ...]

Each case is appended to FILE, a line of JSON, as its wave ends; started again, it goes on where it was. `--page` writes
the table into that page.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.alert_cases import CASES, FAULTS, Case, How, find_cases
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
from benchmarks.outside import write_section

HEADING = "## What was measured"
SETTLE_SECONDS = float(os.environ.get("S", 75))
FAULT_SECONDS = float(os.environ.get("F", 180))
CLEAR_SECONDS = float(os.environ.get("C", 120))
_STAGGER_SECONDS = 0.5
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
    told = _tell(_read(options.results))
    print(told)
    if options.page is not None:
        write_section(options.page, HEADING, told)


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
        self._mended: dict[str, float] = {}

    def run(self) -> list[Seen]:
        """Let all be well, then each fault happen, then each be mended."""
        _wait(SETTLE_SECONDS)
        for case in self._cases:
            if not case.is_healthy:
                self._break(case)
                time.sleep(_STAGGER_SECONDS)
        _wait(FAULT_SECONDS)
        for case in self._cases:
            if not case.is_healthy:
                self._mend(case)
                time.sleep(_STAGGER_SECONDS)
        _wait(CLEAR_SECONDS)
        failed = self._alerting.rule_failures()
        if failed:
            raise SystemExit(f"{failed:.0f} evaluations of rules failed")
        return [self._seen(case) for case in self._cases]

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

    def _mend(self, case: Case) -> None:
        one = self._machines[case.name]
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
        self._mended[case.name] = time.time()

    def _seen(self, case: Case) -> Seen:
        messages = self._alerting.receiver.about(case.name)
        began, mended = self._began.get(case.name), self._mended.get(case.name)
        before = [one for one in messages if began is not None and one.at < began]
        fired = [one for one in messages if one.firing and one not in before]
        told = [one for one in fired if one.pages] or fired
        ends = [one.at for one in messages if not one.firing]
        over = not self._alerting.receiver.firing(case.name) and bool(ends)
        return Seen(
            case.name,
            self._scrape_seconds,
            tuple(one.name for one in fired if one.pages),
            tuple(one.name for one in fired if not one.pages),
            round(told[0].at - began, 1) if told and began is not None else None,
            round(max(ends) - mended, 1) if over and mended is not None else None,
            told[0].texts["summary"] if told else "",
            told[0].texts.get("runbook", "") if told else "",
            tuple(one.name for one in before if one.firing),
        )


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
        wrong += [f"no {word!r} in the text" for word in case.says if word not in seen.text]
        if seen.cleared_seconds is None:
            wrong.append("it did not clear")
    return wrong


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


# --- the page


def _tell(all_seen: Sequence[Seen]) -> str:
    """The table of what was seen, in Markdown."""
    cases = {case.name: case for case in CASES}
    known = [seen for seen in all_seen if seen.name in cases]
    return json.dumps([(seen.name, find_wrong(cases[seen.name], seen)) for seen in known], indent=1)


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
