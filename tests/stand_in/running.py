"""Run gpudiag, or a program, on the stand-in for CUDA, and look at how it ended and what it left behind."""

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.cuda_stand_in.machine import ROOT, open_machine
from tests.cuda_stand_in.settings import NOTICE
from tests.ranks.launching import free_port
from tests.ranks.nccl_test_command import marked_processes, remaining_processes

# Far more than any of them needs, also on a loaded machine: it only proves that nothing hung.
LIMIT_SECONDS = 240.0
GPUDIAG = (sys.executable, "-m", "gpudiag")
_LAUNCHED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")


@dataclass(frozen=True)
class Ended:
    """How a command on the stand-in ended."""

    status: int
    output: str
    error: str

    def document(self) -> Any:
        """The one JSON document on standard output."""
        assert self.output, f"exit status {self.status} and no document, but: {self.error}"
        return json.loads(self.output)


def run_on(scenario: str, *command: str, variables: Mapping[str, str] | None = None) -> Ended:
    """The end of `gpudiag COMMAND` on that machine; nothing may be left running, and the notice is there."""
    return run_program(scenario, *GPUDIAG, *command, variables=variables, notice=True)


def run_program(
    scenario: str, *command: str, variables: Mapping[str, str] | None = None, notice: bool = False
) -> Ended:
    """The end of any program on that machine."""
    mark = uuid.uuid4().hex
    outside = {name: value for name, value in os.environ.items() if name not in _LAUNCHED}
    with open_machine(scenario, variables, outside) as environment:
        process = subprocess.Popen(
            command,
            env={**environment, "GPUDIAG_TEST_MARK": mark},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        try:
            output, error = process.communicate(timeout=LIMIT_SECONDS)
            left = remaining_processes(mark)
        finally:
            for pid in marked_processes(mark):
                os.kill(pid, signal.SIGKILL)
            process.communicate()
    assert left == (), f"left behind: {left}"
    assert not notice or NOTICE in error, error
    return Ended(process.returncode, output, error)


def run_shown(scenario: str, visible: Sequence[str], *command: str) -> list[Ended]:
    """The ends of the ranks of a launcher that shows each its own CUDA_VISIBLE_DEVICES."""
    with open_machine(scenario) as environment:
        port = str(free_port())
        launched = {"WORLD_SIZE": str(len(visible)), "LOCAL_WORLD_SIZE": str(len(visible))}
        processes = [
            subprocess.Popen(
                [*GPUDIAG, *command],
                env={
                    **environment,
                    **launched,
                    **{"RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": gpus},
                    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port},
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                cwd=ROOT,
            )
            for rank, gpus in enumerate(visible)
        ]
        ended = []
        for process in processes:
            try:
                output, error = process.communicate(timeout=LIMIT_SECONDS)
            finally:
                process.kill()
            ended.append(Ended(process.returncode, output, error))
    return ended
