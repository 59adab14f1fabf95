"""A slice of `benchmarks/alert_matrix.py`: real Prometheus and Alertmanager over real services, with hastened
rules.
"""

import contextlib
import time
from collections.abc import Callable

import pytest

from benchmarks.alert_cases import CASES, Case
from benchmarks.alert_matrix import faulty_text, well_text
from benchmarks.alert_rig import RULES, Alerting, Machine, hasten, machine, missing_program

FACTOR = 10  # the rules' seconds are divided by it
SCRAPE_SECONDS = 1.0
WAIT_SECONDS = 120.0
MORE_EVALUATIONS = 8  # in which nothing may follow: twice the longest `for` of what was found
# A GPU, a machine, a warning; and a machine that is well.
SLICE = tuple(case for case in CASES if case.name in ("hot", "no-driver", "brake", "busy"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        bool(missing_program()), reason=f"{missing_program()} is not installed: tools/install-system-packages"
    ),
]


def wait(reached: Callable[[], object], what: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not reached():
        assert time.monotonic() < until, f"{what} did not come within {WAIT_SECONDS:.0f} s"
        time.sleep(0.2)


def wait_for_evaluations(alerting: Alerting, count: int) -> None:
    """Until the rules have been evaluated so many times more."""

    def evaluated() -> float:
        answer = alerting.read_metrics()
        return sum(
            float(line.rsplit(" ", 1)[1])
            for line in answer.splitlines()
            if line.startswith("prometheus_rule_group_iterations_total{")
        )

    goal = evaluated() + count
    wait(lambda: evaluated() >= goal, f"{count} evaluations")


def firing(alerting: Alerting, case: Case) -> list[str]:
    return sorted(one.name for one in alerting.receiver.firing(case.name))


@pytest.mark.sliced
def test_a_fault_is_one_alert_with_host_cause_and_remedy_and_goes_when_it_goes(tmp_path):
    with contextlib.ExitStack() as stack:
        machines: dict[str, Machine] = {}
        for case in SLICE:
            one = stack.enter_context(machine(case.name, tmp_path / case.name, well_text(case)))
            one.start()
            machines[case.name] = one
        alerting = Alerting(tmp_path, SCRAPE_SECONDS, hasten(RULES.read_text(), FACTOR))
        alerting.watch({name: one.address for name, one in machines.items()})
        stack.enter_context(alerting.running())
        wait(lambda: len(alerting.query("up == 1")) == len(SLICE), "the first scrapes")
        wait_for_evaluations(alerting, MORE_EVALUATIONS)
        assert alerting.receiver.messages == []
        faults = [case for case in SLICE if not case.is_healthy]
        for case in faults:
            machines[case.name].change(machines[case.name].scenario(faulty_text(case)))
        for case in faults:
            wait(lambda case=case: firing(alerting, case) == sorted(case.pages + case.warns), case.what)
        wait_for_evaluations(alerting, MORE_EVALUATIONS)
        for case in faults:
            told = [one for one in alerting.receiver.about(case.name) if one.firing]
            assert sorted(one.name for one in told) == sorted(case.pages + case.warns), case.what
            for message in told:
                assert message.labels["host"] == case.name
                assert message.texts["summary"].startswith(f"{case.name}: ")
                assert "gpudiag explain " in message.texts["runbook"]
                assert all(word in message.texts["summary"] for word in case.words), message.texts
        for case in faults:
            machines[case.name].change(machines[case.name].scenario(well_text(case)))
        for case in faults:
            wait(lambda case=case: not firing(alerting, case), f"the end of: {case.what}")
        assert alerting.rule_failures() == 0
        assert {one.labels.get("host") for one in alerting.receiver.messages} == {
            case.name for case in faults
        }
