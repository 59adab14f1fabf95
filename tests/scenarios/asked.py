"""A simulated machine asked by gpudiag's own probes, in a process of its own."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import open_session
from tests.warm_start import run_python

_TIME_LIMIT_SECONDS = 60  # proves that it ends
_ASK = """
from gpudiag.model.codec import dumps
from gpudiag.probe.inventory import take_snapshot
print(dumps(take_snapshot(("nvml", "gputil", "torch"), {deadline})))
"""


def ask_machine(spec: str, deadline_seconds: float = 5.0) -> tuple[Scenario, dict[str, Any]]:
    """The scenario of that spec and the snapshot document that the probes make on it.

    Skips without a compiler.
    """
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"simulated machines need a C compiler: {error.message}")
    scenario = load_scenario(spec)
    with open_session(scenario) as session:
        words = ("-c", _ASK.format(deadline=deadline_seconds))
        asked = run_python(words, session.environment, _TIME_LIMIT_SECONDS)
    assert asked.status == 0, asked.err
    document: dict[str, Any] = json.loads(asked.out)
    return scenario, document


def covers(wanted: Any, seen: Any) -> bool:
    """Whether `seen` says all that `wanted` says; it may say more."""
    if isinstance(wanted, Mapping):
        return isinstance(seen, Mapping) and all(
            name == "missing" or covers(value, seen.get(name)) for name, value in wanted.items()
        )
    if isinstance(wanted, list):
        same_length = isinstance(seen, list) and len(wanted) == len(seen)
        return same_length and all(map(covers, wanted, seen))
    return bool(wanted == seen)
