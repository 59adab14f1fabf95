"""A clock of which nobody can say whether a time server sets it is not called correct."""

import pytest

from gpudiag.checks.host.health import host_clock
from gpudiag.model.context import Context
from gpudiag.model.finding import Outcome
from gpudiag.model.host import Container
from gpudiag.model.host_state import ClockState
from gpudiag.model.reading import Missing, MissingReason
from tests.unit.checks.test_shares import make_state
from tests.unit.model.nouns import NOT_SUPPORTED, make_machine, make_snapshot


def judge(synchronized, source="tsc", container=None):
    clock = ClockState(source, ("tsc", "hpet"), synchronized)
    machine = make_machine(state=make_state(clock=clock), container=container)
    return host_clock.judge(Context(make_snapshot(machine=machine)))


@pytest.mark.parametrize(
    "reason", [MissingReason.NO_PERMISSION, MissingReason.NOT_SUPPORTED, MissingReason.ERROR]
)
def test_a_sandbox_that_forbids_the_question_is_no_clock_that_is_well(reason):
    """As systemd does with ProtectClock=yes, or without the call in SystemCallFilter=."""
    forbidden = Missing(reason, "adjtimex: Operation not permitted")
    judged = judge(forbidden)
    assert judged.outcome in (Outcome.SKIP, Outcome.ERROR)
    assert "time server" in judged.reason
    assert judge(forbidden, container=Container("docker", NOT_SUPPORTED)).outcome is Outcome.PASS


def test_what_is_known_is_judged():
    assert judge(True).outcome is Outcome.PASS
    assert [finding.code for finding in judge(False).findings] == ["host.clock_unsynchronized"]
    assert judge(Missing(MissingReason.SOURCE_ABSENT, "another root")).outcome is Outcome.PASS
