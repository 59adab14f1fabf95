"""gpudiag train on four machines, one rank each, started by torchrun: trained, verified, reported once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ranks.machines import four_machines

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.slow, pytest.mark.timeout(240)]

LIMIT_SECONDS = 180.0  # proves that nothing hangs
PORT = 29571


def test_four_machines_train_as_one_process() -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parents[2]),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    with four_machines() as machines:
        first = machines[0]
        processes = [
            subprocess.Popen(
                machine.command(
                    *(
                        sys.executable,
                        "-m",
                        "torch.distributed.run",
                        "--nnodes",
                        "4",
                        "--nproc-per-node",
                        "1",
                    ),
                    *("--node-rank", str(number), "--master-addr", first.name, "--master-port", str(PORT)),
                    *("-m", "gpudiag", "train", "--backend", "gloo", "--strategy", "fsdp2", "--json"),
                ),
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for number, machine in enumerate(machines)
        ]
        try:
            outputs = [process.communicate(timeout=LIMIT_SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
    documents = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    assert [process.returncode for process in processes] == [0] * 4, outputs
    assert len(documents) == 1
    (report,) = documents
    assert (report["outcome"], report["findings"]) == ("pass", [])
    (result,) = report["strategies"]
    assert (result["verified"], result["world_size"], result["launcher"]) == (True, 4, "torchrun")
    assert [rank["host"] for rank in result["ranks"]] == [machine.name for machine in machines]
