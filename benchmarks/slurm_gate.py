"""The shipped Slurm prolog and epilog under a real Slurm, fault by fault, and what the prolog costs a job.

    python -m benchmarks.slurm_gate [--healthy N] [--only WORD]

One slurmctld and one slurmd on this machine, whose node is a simulated machine with 8 GPUs in its Gres. For
each fault a job is submitted; the table shows what became of node and job, with the reason that the node was
drained with. The healthy node runs N jobs with prolog and epilog, and N without; there the machine is started
beforehand.
"""

import argparse
import os
import re
import statistics
import sys
import time

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.contract.gated_cluster import FAULTS, HEALTHY, NEAR_MISSES, NO_ANSWER, Gated, gated_cluster
from tests.slurm_cluster import missing_programs

SECONDS = 60.0  # for gpudiag: this machine may be busy


def job_seconds(gated: Gated, count: int) -> list[float]:
    """How long `srun true` takes, each of so many times."""
    took = []
    for _ in range(count):
        before = time.monotonic()
        done = gated.cluster.run("srun", "--immediate=60", "--gres=gpu:1", "true")
        took.append(time.monotonic() - before)
        if done.returncode != 0:
            sys.exit(f"the healthy node ran no job: {done.stderr}")
        gated.cluster.wait_for(lambda state: state == "IDLE")
    return took


def main() -> None:
    """Print the table and the cost."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--only", default="", metavar="WORD", help="only nodes whose words have it; none: only the cost"
    )
    parser.add_argument(
        "--healthy", type=int, default=10, help="jobs on the healthy node, with and without the prolog"
    )
    flags = parser.parse_args()
    count, nodes = flags.healthy, {**FAULTS, **NO_ANSWER, **NEAR_MISSES}
    lacking = [*missing_programs(), *([] if os.geteuid() == 0 else ["root"])]
    if lacking:
        sys.exit(f"a real Slurm needs {', '.join(lacking)}: see tools/install-system-packages")
    print("| node | job | node drained with this reason |\n| --- | --- | --- |")
    wrong = 0
    with gated_cluster() as gated:
        for words, machine in nodes.items():
            if flags.only not in words:
                continue
            tried = gated.try_node(words, machine, 3 if machine == "stuck" else SECONDS)
            # Only a simulated node shows it.
            reason = re.sub(r" SIMULATED \S+", "", tried.reason) if tried.drained else "not drained"
            job = "ran" if tried.ran else "kept off"
            print(f"| {words} | {job} | {reason} |", flush=True)
            wrong += tried.drained == (machine in NEAR_MISSES.values()) or tried.ran == tried.drained
            wrong += words in FAULTS and "gpudiag FAIL" not in reason
            if tried.drained:
                gated.resume()
        (gated.folder / "prolog.times").unlink(missing_ok=True)
        with open_session(load_scenario(HEALTHY)) as session:
            gated.start_machine(session)
            with_prolog = job_seconds(gated, count)
        prolog = gated.prolog_seconds()
    with gated_cluster(gated=False) as bare:
        without = job_seconds(bare, count)
    for name, took in (("with prolog and epilog", with_prolog), ("without", without)):
        print(
            f"srun true {name}: median {statistics.median(took):.2f} s, worst"
            f" {max(took):.2f} s ({count} jobs)"
        )
    print(
        f"the prolog itself: median {statistics.median(wall for wall, _ in prolog):.2f} s, "
        f"{statistics.median(used for _, used in prolog):.2f} s of a processor "
        f"({os.cpu_count()} processors, load {os.getloadavg()[0]:.1f})"
    )
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
