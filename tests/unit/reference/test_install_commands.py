"""What `gpudiag train` and `gpudiag doctor` say of a framework that is missing: it is brought to the
interpreter that lacks it.
"""

import shlex
import sys

import pytest

from gpudiag.reference.training import StrategyFacts, strategy_facts
from gpudiag.runs.deploy import read_files
from tests.walking import walk

STRATEGIES = tuple(strategy_facts().values())
OTHER = "/opt/the job/bin/python"


@walk(STRATEGIES, lambda facts: facts.name)
def test_the_command_is_for_the_interpreter_that_lacks_the_module(facts: StrategyFacts) -> None:
    for module in facts.modules:
        command = facts.install_command(module, OTHER)
        assert shlex.quote(OTHER) in command
        assert module in command
        assert OTHER not in facts.install_command(module, None)


@walk([facts for facts in STRATEGIES if facts.installer], lambda facts: facts.name)
def test_a_script_that_installs_is_one_that_gpudiag_brings(facts: StrategyFacts) -> None:
    (script,) = read_files(facts.installer)
    assert script.text.startswith("#!/bin/sh")
    assert facts.install_command("horovod", None).endswith(f"| sh -s -- {shlex.quote(sys.executable)}")


@pytest.mark.parametrize("module", ["torch", "deepspeed"])
def test_torch_is_asked_for_by_its_own_name(module: str) -> None:
    assert strategy_facts()["zero1"].install_command(module, OTHER).split()[-1] == module
