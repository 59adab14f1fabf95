r"""What `gpudiag nccl-test` reports of faulty and healthy networks between four machines, and after how long.

    python -m benchmarks.network_matrix [--only WORD ...] [--times 3] \
        [--launcher tcp|env|torchrun|srun|mpirun] [--healthy | --faults]

The machines are network namespaces, as in tests/ranks. A row is right where one report has the cause, the
host and nobody else, and no other process has another report; a healthy one where all ranks end with status
0. The time runs from the start of the last rank to the end of the first report. Needs root.
"""

import argparse
import contextlib
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.network_cases import CASES
from benchmarks.network_cases.case import PORT, Case, Start
from benchmarks.network_launchers import launch_all
from tests.ranks.machines import Machine, four_machines

LIMIT_SECONDS = 180.0
SIZES = ("--backend", "gloo", "--min-bytes", "64K", "--max-bytes", "64K", "--iterations", "5")
AUTOMATIC = ("--backend", "gloo")
LONG = ("--iterations", "100000")


@dataclass
class Ended:
    """What the process of one rank left."""

    status: int | None
    document: Any
    error: str
    seconds: float  # since the last rank was started

    @property
    def findings(self) -> list[Any]:
        """What the document blames somebody for."""
        found = (self.document or {}).get("findings", [])
        return [one for one in found if one["severity"] != "info"]


@dataclass(frozen=True)
class Outcome:
    """One run of one case."""

    right: bool
    why_not: str
    reports: int
    seconds: float
    first: str


def run(case: Case, machines: Sequence[Machine], folder: Path, launcher: str) -> Outcome:
    """Run one rank on each machine, and judge what they reported."""
    if launcher in ("srun", "mpirun"):
        return judge(case, _run_launched(case, machines, folder, launcher))
    ended: dict[int, Ended] = {}
    began = [0.0]
    last = max((case.starts.get(rank, Start()).delay_seconds for rank in range(case.ranks)), default=0.0)
    events = folder / "events"
    events.unlink(missing_ok=True)  # of an earlier run that was kept in the same folder

    def one(rank: int, start: Start) -> None:
        time.sleep(start.delay_seconds)
        if start.delay_seconds == last:
            began[0] = time.monotonic()
        variables, command = _command(case, start, machines[rank], rank, folder, launcher, events)
        process = subprocess.Popen(
            machines[rank].command(*command),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            output, error = process.communicate(timeout=LIMIT_SECONDS)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            process.kill()
            output, error = process.communicate()
            status = None
        try:
            document = json.loads(output) if output.strip() else None
        except json.JSONDecodeError:
            document, error = None, f"{error}\n{output}"
        ended[rank] = Ended(status, document, error, time.monotonic() - began[0])

    with case.arrange(machines):
        threads = [
            threading.Thread(target=one, args=(rank, start), daemon=True)
            for rank in range(case.ranks)
            if not (start := case.starts.get(rank, Start())).missing
        ]
        for thread in threads:
            thread.start()
        if case.then is not None:
            until = time.monotonic() + 90
            while time.monotonic() < until and any(thread.is_alive() for thread in threads):
                if events.exists() and '"measure"' in events.read_text():
                    time.sleep(1.0)
                    began[0] = time.monotonic()
                    case.then(machines)
                    break
                time.sleep(0.1)
        for thread in threads:
            thread.join()
    for rank, end in sorted(ended.items()):
        (folder / f"rank{rank}.json").write_text(json.dumps(end.document, indent=1))
        (folder / f"rank{rank}.err").write_text(f"status {end.status} after {end.seconds:.1f} s\n{end.error}")
    return judge(case, ended)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other run of this benchmark is on this machine: two would measure each other."""
    with open("/run/lock/gpudiag-network-matrix", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def judge(case: Case, ended: dict[int, Ended]) -> Outcome:
    """Whether what the ranks reported is right, and where not, why."""
    with_findings = [one for one in ended.values() if one.findings]
    spoken = [one for one in ended.values() if one.findings or one.status not in (0, None)]
    seconds = min((one.seconds for one in with_findings), default=max(one.seconds for one in ended.values()))
    texts = sorted({f"{one['code']}: {one['message']}" for end in with_findings for one in end.findings})
    # Reports differ where a process has a finding that another has not.
    reports = len({json.dumps([one["message"] for one in end.findings]) for end in with_findings})
    first = " | ".join(texts) or " | ".join(end.error.strip()[-150:] for end in spoken[:1])
    problems = []
    if None in (one.status for one in ended.values()):
        problems.append(f"not ended after {LIMIT_SECONDS:.0f} s")
    if case.healthy:
        problems += [f"exit {one.status}" for one in ended.values() if one.status not in (0, None)][:1]
        problems += ["blamed"] * bool(with_findings)
    else:
        whole = json.dumps([one for end in with_findings for one in end.findings], ensure_ascii=False)
        problems += [f"no {word!r}" for word in case.words if word not in whole]
        hosts = {host for end in with_findings for one in end.findings for host in _hosts_of(one)}
        reported_seconds = min((float(one.document["seconds"]) for one in with_findings), default=0.0)
        late = reported_seconds > case.within_seconds
        problems += [f"{reported_seconds:.1f} s after it started, not {case.within_seconds:.0f} s"] * late
        problems += [f"{host} not named" for host in case.hosts if host not in hosts]
        if case.hosts:
            problems += [f"{host} blamed" for host in sorted(hosts - set(case.hosts))]
        problems += [f"{reports} different reports"] * (reports > case.reports)
        if case.warning:
            problems += [f"exit {one.status}" for one in ended.values() if one.status != 0][:1]
        else:
            problems += ["a process ended with 0"] * any(one.status == 0 for one in ended.values())
    return Outcome(not problems, "; ".join(problems), reports, seconds, first)


def _run_launched(case: Case, machines: Sequence[Machine], folder: Path, launcher: str) -> dict[int, Ended]:
    """What the ranks left that srun or mpirun started, one on each machine."""
    commands = [
        _command(case, case.starts.get(rank, Start()), machine, rank, folder, launcher, folder / "events")
        for rank, machine in enumerate(machines)
    ]
    with case.arrange(machines):
        texts = launch_all(launcher, machines, commands, folder, LIMIT_SECONDS)
    return {
        rank: Ended(
            one.status, json.loads(one.output) if one.output.strip() else None, one.error, one.seconds
        )
        for rank, one in texts.items()
    }


def _hosts_of(finding: Any) -> set[str]:
    subject = finding["subject"]
    if subject.get("kind") == "link":
        return {str(end) for end in subject["ends"]}
    return {subject["host"]} if subject.get("host") else set()


def _command(
    case: Case, start: Start, machine: Machine, rank: int, folder: Path, launcher: str, events: Path
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables of one rank's process, and its command on its machine."""
    own = folder / machine.name
    own.mkdir(exist_ok=True)
    variables: dict[str, str] = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_"))},
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "XDG_RUNTIME_DIR": str(own),
        "GPUDIAG_STATE_DIR": str(own),
        "GLOO_SOCKET_IFNAME": "eth0",
    }
    before: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    given_rank = rank if start.rank is None else start.rank
    meets = start.meets or f"machine1:{PORT}"
    name, _, port = meets.rpartition(":")
    if launcher == "torchrun":
        nodes = ("--nnodes", str(case.ranks), "--node-rank", str(rank), "--nproc-per-node", "1")
        meeting = ("--master-addr", name, "--master-port", port)
        before = ("-m", "torch.distributed.run", *nodes, *meeting)
    elif launcher == "tcp":
        place = (
            "--rank",
            str(given_rank),
            "--world-size",
            str(start.world_size or case.ranks),
            "--init-method",
            f"tcp://{meets}",
        )
    else:  # srun and mpirun number their processes, and no setting names rank 0's place in namespaces
        variables |= {"MASTER_ADDR": name, "MASTER_PORT": port}
        if launcher == "env":
            variables |= {
                "RANK": str(given_rank),
                "WORLD_SIZE": str(start.world_size or case.ranks),
                "LOCAL_RANK": "0",
            }
    for name, value in start.variables.items():
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value
    given = [flag.replace("{folder}", str(folder)) for flag in (*case.flags, *start.flags)]
    listed = ("--events", str(events)) if case.then is not None and rank == 0 else ()
    long = LONG if case.then is not None else ()
    flags = (*(AUTOMATIC if case.automatic else SIZES), *long, "--json", *place, *listed, *given)
    return variables, (*start.wrapper, sys.executable, *before, "-m", "gpudiag", "nccl-test", *flags)


def main() -> int:
    """Print a row for each case, then how many were right."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", nargs="+", default=[""], metavar="WORD", help="cases whose name holds one of these"
    )
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--launcher", choices=("tcp", "env", "torchrun", "srun", "mpirun"), default="tcp")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--healthy", action="store_true", help="only the healthy networks")
    kinds.add_argument("--faults", action="store_true", help="only the others")
    parser.add_argument("--keep", type=Path, help="keep what the ranks printed in this folder")
    options = parser.parse_args()
    named = [one for one in CASES if any(word in one.name for word in options.only)]
    chosen = [one for one in named if not (options.faults if one.healthy else options.healthy)]
    right = runs = 0
    faults: list[float] = []
    for case in chosen:
        outcomes = []
        for turn in range(options.times):
            with (
                one_at_a_time(),
                tempfile.TemporaryDirectory() as temporary,
                four_machines(case.ranks) as machines,
            ):
                folder = Path(temporary) if options.keep is None else options.keep / f"{case.name}-{turn}"
                folder.mkdir(parents=True, exist_ok=True)
                outcomes.append(run(case, machines, folder, case.launcher or options.launcher))
        runs += len(outcomes)
        right += sum(one.right for one in outcomes)
        times = [one.seconds for one in outcomes]
        if not case.healthy:
            faults += times
        wrong = next((one for one in outcomes if not one.right), None)
        print(
            f"{case.name:44} {sum(one.right for one in outcomes)}/{len(outcomes)}"
            f"  {statistics.median(times):5.1f} s  longest {max(times):5.1f} s  {outcomes[0].first[:220]}"
            + (f"\n    WRONG: {wrong.why_not}: {wrong.first[:400]}" if wrong else ""),
            flush=True,
        )
    print(f"{right} of {runs} runs right", end="")
    print(
        f"; faults: median {statistics.median(faults):.1f} s, longest {max(faults):.1f} s" if faults else ""
    )
    return 0 if right == runs else 1


if __name__ == "__main__":
    sys.exit(main())
