"""A small gpudiag: runs what its argument says, prints the run as JSON, exits 1 after an incident."""

import json
import os
import sys
import time

from gpudiag.errors import GpudiagError
from gpudiag.model.codec import encode
from gpudiag.ranks.agents.launch import run_ranks
from gpudiag.ranks.environment import read_environment
from gpudiag.ranks.inject import parse_fault
from gpudiag.ranks.stages import DEFAULT_STAGE_SECONDS, RENDEZVOUS, Budgets


def main() -> int:
    plan = json.loads(sys.argv[1])
    environment = read_environment(os.environ)
    world_size = plan["world_size"] if environment is None else environment.world_size
    try:
        run = run_ranks(
            plan["entry"],
            run_id="test",
            world_size=world_size,
            arguments={"folder": plan["folder"]},
            environment=environment,
            faults=[parse_fault(text, world_size) for text in plan["faults"]],
            preload=plan.get("preload", ()),
            budgets=Budgets({**DEFAULT_STAGE_SECONDS, RENDEZVOUS: plan.get("rendezvous_seconds", 60.0)}),
            on_event=lambda event: print(json.dumps({"event": event.data}), flush=True),
        )
    except GpudiagError as error:
        print(json.dumps({"error": error.message}), flush=True)
        return int(error.exit_status)
    if run.reporter:
        time.sleep(plan.get("report_seconds", 0.0))  # as long as a slow terminal takes
        own = None if environment is None else environment.rank
        print(json.dumps({"reporter": own, "run": encode(run)}), flush=True)
    return 1 if run.incidents else 0


if __name__ == "__main__":
    sys.exit(main())
