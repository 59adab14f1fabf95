"""Hangs of real torchrun jobs, and whether `gpudiag hang` names rank, kind and line; and healthy jobs.

    python -m benchmarks.hang_matrix --times 5               14 kinds of hang, on jobs of 4 gloo ranks
    python -m benchmarks.hang_matrix --healthy 100           looks at healthy jobs: none may be accused
    python -m benchmarks.hang_matrix --shapes                jobs of other shapes: DDP, FSDP, loaders, locks,
                                                             servers ...
    python -m benchmarks.hang_matrix --threads               threads, process groups and compilers beside the
                                                             main thread, ranks started by hand
    python -m benchmarks.hang_matrix --threads --healthy 12  the same, of jobs that go on
    python -m benchmarks.hang_matrix --groups                process groups of a part of the ranks, of which
                                                             one is missing
    python -m benchmarks.hang_matrix --polls                 waits that poll, ranks and nodes that never came
    python -m benchmarks.hang_matrix --polls --healthy 24    such waits in jobs that are healthy
    python -m benchmarks.hang_matrix --engines --times 3     a server and four workers, without RANK: pipes,
                                                             ZMQ, a ring, Ray actors
    python -m benchmarks.hang_matrix --engines --healthy 30  looks at such servers that are idle or serve
    python -m benchmarks.hang_matrix --times 1 sigstop fifo  some kinds
    python -m benchmarks.hang_matrix --gpus --ranks 2        jobs on GPUs, by the stand-in for CUDA: waits
                                                             spin in libcuda.so
    python -m benchmarks.hang_matrix --gpus --healthy 100    looks at healthy ones

Prints a row for each kind: in how many runs rank, kind and line were right, and how long the command took.
The jobs know nothing of gpudiag. `frozen_disk` needs root: it freezes a file system of its own, in a file.
Rows of ZMQ and Ray are left out where the packages pyzmq and ray are not installed; with setproctitle the
workers of engines are renamed.
"""

import argparse
import fcntl
import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.hang_kinds import (
    BY_HAND,
    COMPILERS,
    ENGINES,
    GPU_KINDS,
    GROUPS,
    HEALTHY,
    HEALTHY_ENGINES,
    HEALTHY_ON_GPUS,
    HEALTHY_POLLS,
    HEALTHY_THREADS,
    KINDS,
    NEEDED_WORDS,
    OWN_JOB,
    POLLS,
    SETTLES,
    SHAPES,
    THREADS,
    GpuKind,
    Kind,
)

JOBS = Path(__file__).parent / "hang_jobs"
PORTS = iter(range(int(os.environ.get("FIRST_PORT", "29801")), 32000))
SETTLE_SECONDS = 4.0


@dataclass(frozen=True)
class Look:
    """What one run of the command reported."""

    seconds: float
    status: int
    document: dict[str, Any]
    text: str


def lines_of(kind: Kind) -> set[int]:
    """The numbers of the lines that the kind may name."""
    word = kind.line or kind.name
    pattern = re.compile(rf"# (\w+ )*{word}\b")
    text = (JOBS / kind.script).read_text().splitlines()
    return {number for number, line in enumerate(text, start=1) if pattern.search(line)}


@contextmanager
def job(script: str, what: str, folder: Path, ranks: int = 4) -> Iterator[subprocess.Popen[bytes]]:
    """A job under torchrun, ended with all that it started."""
    port = str(next(PORTS))
    argv = [sys.executable, str(JOBS / script), what, str(folder)]
    if what == "missing_rank":
        variables = f"RANK=$rank WORLD_SIZE={ranks} MASTER_ADDR=127.0.0.1 MASTER_PORT={port}"
        # Rank 1 is the one that ends at once, and whose shell goes on.
        script_of_ranks = (
            f"for rank in {' '.join(map(str, range(ranks)))}; do [ $rank = 1 ] ||"
            f" {variables} {' '.join(argv)} & done; wait"
        )
        argv = ["bash", "-c", script_of_ranks]
    elif what in ("missing_node", "static_node"):
        torchrun = str(Path(sys.executable).parent / "torchrun")
        c10d = ["--rdzv-backend", "c10d", "--rdzv-id", "77", "--rdzv-endpoint", f"127.0.0.1:{port}"]
        c10d += ["--rdzv-conf", "join_timeout=120"]  # nearly given up when it is looked at
        static = ["--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", port]
        static += ["--rdzv-conf", "timeout=120"]
        meets = c10d if what == "missing_node" else static
        argv = [torchrun, "--nnodes", "2", "--nproc-per-node", "2", *meets, *argv[1:]]
    elif what == "mpirun":
        argv = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), *argv]
    elif what not in BY_HAND and script != "engines.py":
        torchrun = str(Path(sys.executable).parent / "torchrun")
        argv = [torchrun, "--nproc-per-node", str(ranks), "--master-port", port, *argv[1:]]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PORT": port}
    with compiler_of(what, folder) as compiler:
        with open(folder / "log", "wb") as log:
            started = subprocess.Popen(
                argv, stdout=log, stderr=log, env={**environment, **compiler}, start_new_session=True
            )
        try:
            yield started
        finally:
            end(started.pid)
            started.wait()


@contextmanager
def compiler_of(what: str, folder: Path) -> Iterator[dict[str, str]]:
    """The environment of a job whose compiler waits for a FIFO, or a held lock; else empty."""
    if what not in COMPILERS:
        yield {}
        return
    os.mkfifo(folder / "cache.fifo")
    # At one place, whatever the job: what it compiled before stays in the compiler's cache.
    program = Path(tempfile.gettempdir()) / "hang-matrix-c++"
    program.write_text('#!/bin/sh\n[ -z "$COMPILER_WAITS" ] || eval "$COMPILER_WAITS"\nexec c++ "$@"\n')
    program.chmod(0o755)
    with open(folder / "compiler.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield {"CXX": str(program), "WAITS": COMPILERS[what].format(folder=folder)}


def end(pid: int) -> None:
    """Kill a process and all below it, those that are stopped too."""
    below = subprocess.run(
        ["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True
    ).stdout.split()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    for child in below:
        end(int(child))


def look(pid: int) -> Look:
    """The command's answer about the job of a process."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "hang", str(pid), "--json"], capture_output=True, text=True
    )
    seconds = time.monotonic() - began
    return Look(seconds, done.returncode, json.loads(done.stdout or "{}"), done.stdout + done.stderr)


@contextmanager
def frozen_disk(folder: Path) -> Iterator[None]:
    """A file system in a file, which is frozen once the job is ready to write to it."""
    image, point = folder / "image", folder / "disk"
    point.mkdir()
    with open(image, "wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(point)], check=True)
    try:
        subprocess.run(["fsfreeze", "--freeze", str(point)], check=True)
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(point)], check=False)
        time.sleep(0.5)
        subprocess.run(["umount", "-l", str(point)], check=False)


@contextmanager
def lock_files(folder: Path) -> Iterator[None]:
    """What the jobs of `--polls` find in their folder: a FIFO, two left lock files, a held one."""
    os.mkfifo(folder / "fifo")
    for name in ("model.lock", "data.lock"):
        (folder / name).touch()
    with open(folder / "cache.lock", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def wait_for(path: Path, process: subprocess.Popen[bytes], seconds: float = 180) -> bool:
    """Whether the file came before the job ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if path.exists():
            return True
        time.sleep(0.1)
    return False


def try_kind(kind: Kind, guilty: int) -> tuple[str, float]:
    """`right`, or what was wrong, and the seconds of the command."""
    folder = Path(tempfile.mkdtemp(prefix="hang-"))
    try:
        os.environ["GUILTY"] = str(guilty)
        frozen = frozen_disk(folder) if kind.name == "frozen_disk" else nullcontext()
        with frozen, lock_files(folder), job(kind.script, kind.name, folder) as started:
            patience = 600 if kind.name in COMPILERS else 180
            if not kind.name.startswith(("missing", "static")) and not wait_for(
                folder / "ready", started, patience
            ):
                return f"the job did not get there: {(folder / 'log').read_text()[-300:]}", 0.0
            time.sleep(SETTLES.get(kind.name, SETTLE_SECONDS))
            seen = look(started.pid)
            record(kind.name, seen)
            answer = judge(kind, guilty if kind.of_one_rank else None, seen)
            if answer == "right" and kind in ENGINES:
                answer = judge_by_worker(seen)
        return answer, seen.seconds
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def record(name: str, seen: Look) -> None:
    """Keep the looks of an answer in RECORD, without this machine's paths, for tests."""
    if "RECORD" not in os.environ or not seen.document.get("jobs"):
        return
    document = json.dumps(seen.document["jobs"][0]["job"], separators=(",", ":"))
    places = (
        (sys.prefix, "/opt/venv"),
        (sys.base_prefix, "/opt/python"),
        (str(JOBS.resolve()), "/home/ann/jobs"),
        (seen.document["host"], "node7"),
    )
    for place, general in places:
        document = document.replace(place, general)
    with gzip.open(Path(os.environ["RECORD"]) / f"{name}.json.gz", "wt") as file:
        file.write(document)


def judge(kind: Kind, guilty: int | None, seen: Look) -> str:
    """`right`, or what was wrong with an answer."""
    if not seen.document.get("jobs"):
        return f"no answer: {seen.text[-300:]}"
    findings = seen.document["jobs"][0]["findings"]
    if not findings:
        since = {str(one["ranks"]): one["since_seconds"] for one in seen.document["jobs"][0]["places"]}
        return f"no finding: {seen.document['jobs'][0]['headline']}; there since, in seconds: {since}"
    first = findings[0]
    if first["code"] not in kind.codes:
        return f"{first['code']}: {first['message']}"
    if first["subject"].get("rank") != guilty:
        return f"another rank: {first['message']}"
    lacking = [words for words in NEEDED_WORDS.get(kind.name, ()) if words not in first["message"]]
    if lacking:
        return f"without {lacking}: {first['message']}"
    if kind.name.startswith(("missing", "static", "all_")):
        return "right" if first["outcome"] == "fail" else f"not a hang: {first['message']}"
    lines = lines_of(kind)
    if guilty is None and lines and not any(f"{kind.script}:{line}" in first["message"] for line in lines):
        return f"another line, not one of {sorted(lines)}: {first['message']}"
    if (
        guilty is not None
        and lines
        and not any(f"{kind.script}:{line}" in first["message"] for line in lines)
    ):
        places = [place["where"] for place in seen.document["jobs"][0]["places"] if guilty in place["ranks"]]
        if not any(
            place.startswith(f"{kind.script}:{line} ") or place == f"{kind.script}:{line}"
            for line in lines
            for place in places
        ):
            return f"another line, not one of {sorted(lines)}: {first['message']}"
    return "right"


def judge_by_worker(seen: Look) -> str:
    """`right` where the job is the same whichever of its processes is named."""
    ranks = seen.document["jobs"][0]["job"]["ranks"]
    again = look(ranks[-1]["pid"])
    by_worker = (again.document.get("jobs") or [{"job": {"ranks": []}}])[0]
    pids = [sorted(rank["pid"] for rank in one) for one in (ranks, by_worker["job"]["ranks"])]
    if pids[0] != pids[1]:
        return f"by the server, the ranks are {pids[0]}, and by a worker {pids[1]}"
    same = (
        by_worker["findings"]
        and by_worker["findings"][0]["code"] == seen.document["jobs"][0]["findings"][0]["code"]
    )
    return "right" if same else f"by a worker: {by_worker['headline']}"


def is_installed(kind: str) -> bool:
    """Whether the package that carries the requests of an engine is there."""
    package = {"zmq": "zmq", "ray": "ray"}.get(kind.partition("_")[0])
    return package is None or importlib.util.find_spec(package) is not None


def try_healthy(
    what: str, looks: int, script: str = "healthy.py", begun: str = "begun.3"
) -> list[tuple[str, float]]:
    """An answer for each look at one healthy job: `right`, or the accusation."""
    folder = Path(tempfile.mkdtemp(prefix="healthy-"))
    answers: list[tuple[str, float]] = []
    os.environ["SECONDS_TO_RUN"] = "600"
    try:
        with job(script, what, folder) as started:
            if not wait_for(folder / begun, started):
                return [(f"the job did not get there: {(folder / 'log').read_text()[-300:]}", 0.0)]
            for _ in range(looks):
                seen = look(started.pid)
                verdicts = seen.document.get("jobs") or [{"findings": [], "headline": seen.text[-300:]}]
                record(f"healthy-{what}-{len(answers)}", seen)
                found = [one["code"] for one in verdicts[0]["findings"]]
                # A rank that works while others wait, and ranks that are still to come, are reported and not
                # accused.
                allowed = {"polls.py": {"hang.works_alone", "hang.still"}, "threads.py": {"hang.works_alone"}}
                tolerated = set(found) <= allowed.get(script, set())
                # An idle server is to be called so.
                idle = what.endswith("_idle") and not verdicts[0]["headline"].startswith("idle: ")
                accused = seen.status != 0 or (found and not tolerated) or idle
                answers.append((verdicts[0]["headline"] if accused else "right", seen.seconds))
                time.sleep(0.7)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return answers


@contextmanager
def gpu_job(mode: str, folder: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """A job on the stand-in's GPUs under torchrun, with a server for NCCL's RAS, until the end."""
    from tests.cuda_stand_in.machine import ROOT, command_on, open_machine

    port = next(PORTS)
    outside = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--master-port", str(port)]
    module = "healthy" if mode in OWN_JOB else "counted"
    argv = [sys.executable, *program, "-m", f"tests.cuda_stand_in.jobs.{module}", mode, str(folder)]
    with open_machine("h100x8", {"NCCL_RAS_ADDR": f"127.0.0.1:{port + 3000}"}, outside) as environment:
        with open(folder / "log", "wb") as log:
            command = command_on(environment, argv)
            started = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, start_new_session=True, cwd=ROOT
            )
        try:
            yield started
        finally:
            end(started.pid)
            started.wait()


def wait_for_step(path: Path, steps: int, process: subprocess.Popen[bytes], seconds: float = 300) -> bool:
    """Whether a rank's file of progress had so many lines before the job ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and process.poll() is None:
        if path.exists() and len(path.read_text().splitlines()) >= steps:
            return True
        time.sleep(0.2)
    return False


def try_gpu_kind(
    kind: GpuKind, ranks: int, looks: int = 1, *, until_right: bool = False
) -> list[tuple[str, float]]:
    """Of each look at one job `right`, or what was wrong, and the seconds of the command."""
    folder = Path(tempfile.mkdtemp(prefix="hang-"))
    try:
        with gpu_job(kind.mode, folder, ranks) as started:
            steps = 40 if kind.mode == "loader" else 20  # each of its two workers reads a batch in turn
            if not wait_for_step(folder / "progress.rank1.txt", steps, started):
                return [(f"the job did not get there: {(folder / 'log').read_text()[-300:]}", 0.0)]
            time.sleep(SETTLE_SECONDS)
            answers = []
            for _ in range(looks):
                seen = look(started.pid)
                answers.append((judge_gpu_kind(kind, ranks, seen), seen.seconds))
                if until_right and answers[-1][0] == "right":
                    break
            record(f"gpus-{kind.mode}-{ranks}", seen)
        return answers
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def judge_gpu_kind(kind: GpuKind, ranks: int, seen: Look) -> str:
    """`right`, or what was wrong with an answer."""
    if not seen.document.get("jobs"):
        return f"no answer: {seen.text[-300:]}"
    verdict = seen.document["jobs"][0]
    headline, findings = verdict["headline"], verdict["findings"]
    if kind.mode == "evaluate" and verdict["outcome"] == "pass" and "move" in headline:
        return "right"  # its lines were seen to move, and the others had not waited for long
    if seen.status != kind.status or not findings or findings[0]["code"] not in kind.codes:
        return f"exit {seen.status}, {findings[0]['code'] if findings else 'no finding'}: {headline}"
    missing = [words for words in kind.words if words not in headline]
    if missing:
        return f"without {missing}: {headline}"
    named = findings[0]["subject"].get("rank")
    # Of two ranks with two sizes, two orders or two operations, neither is the odd one.
    if named != kind.rank and (ranks > 2 or named is not None):
        return f"names {named}: {headline}"
    return "right"


def try_healthy_on_gpus(mode: str, looks: int, ranks: int) -> list[tuple[str, float]]:
    """For each look at one healthy job `right`, `unknown`, or the accusation; and if it went on."""
    folder = Path(tempfile.mkdtemp(prefix="healthy-"))
    answers: list[tuple[str, float]] = []
    try:
        with gpu_job(mode, folder, ranks) as started:
            path = folder / "progress.rank0.txt"
            if not wait_for_step(path, 4 if mode in OWN_JOB else 21, started, 400):
                return [(f"the job did not get there: {(folder / 'log').read_text()[-300:]}", 0.0)]
            for number in range(looks):
                seen = look(started.pid)
                verdict = (seen.document.get("jobs") or [{"outcome": "none", "headline": seen.text[-300:]}])[
                    0
                ]
                record(f"gpus-healthy-{mode}-{number}", seen)
                word = {"pass": "right", "error": "unknown"}.get(verdict["outcome"], verdict["headline"])
                if (
                    verdict["outcome"] == "warn"
                    and seen.document["jobs"][0]["findings"][0]["code"] == "hang.works_alone"
                ):
                    word = "right"  # a rank works while others wait: reported, and not accused
                answers.append((word, seen.seconds))
                print(f"    {mode}: {seen.status} {'; '.join(seen.document.get('notes', ()))}", flush=True)
                time.sleep(0.5)
            steps = len(path.read_text().splitlines())
            if not wait_for_step(path, steps + 1, started):
                answers.append(("the job did not go on after the looks", 0.0))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return answers


def print_row(name: str, answers: list[tuple[str, float]]) -> None:
    """One row of the table, and below it what was wrong."""
    right = sum(answer == "right" for answer, _ in answers)
    seconds = [took for _, took in answers if took]
    spread = f"{statistics.median(seconds):.1f} / {max(seconds):.1f}" if seconds else "-"
    print(f"| {name} | {right} of {len(answers)} | {spread} |", flush=True)
    for answer, _ in answers:
        if answer != "right":
            print(f"    {name}: {answer[:400]}", flush=True)


def print_gpu_rows(options: argparse.Namespace) -> None:
    """The rows of jobs on the stand-in; `unknown` of a healthy one is counted beside what is right."""
    if options.healthy:
        modes = options.kinds or HEALTHY_ON_GPUS
        for mode in modes:
            answers = try_healthy_on_gpus(mode, -(-options.healthy // len(modes)), options.ranks)
            unknown = sum(answer == "unknown" for answer, _ in answers)
            print_row(
                f"{mode}, {unknown} unknown",
                [("right" if one == "unknown" else one, s) for one, s in answers],
            )
        return
    for kind in GPU_KINDS:
        if not options.kinds or kind.mode in options.kinds:
            with ThreadPoolExecutor(options.at_once) as pool:
                tries = pool.map(
                    lambda _, kind=kind: try_gpu_kind(kind, options.ranks, options.looks),
                    range(options.times),
                )
                print_row(f"{kind.mode}, {options.ranks} ranks", [answer for job in tries for answer in job])


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--healthy", type=int, default=0, metavar="LOOKS")
    parser.add_argument(
        "--shapes", action="store_true", help="Jobs of other shapes: DDP, FSDP, loaders, locks, servers ..."
    )
    parser.add_argument(
        "--groups", action="store_true", help="Jobs with process groups of a part of the ranks."
    )
    parser.add_argument("--polls", action="store_true", help="Waits that poll, and ranks that never came.")
    parser.add_argument(
        "--engines", action="store_true", help="A server and four workers, without a launcher."
    )
    parser.add_argument(
        "--threads", action="store_true", help="Threads, process groups and compilers beside the main thread."
    )
    parser.add_argument("--gpus", action="store_true", help="Jobs on the stand-in for CUDA: waits spin.")
    parser.add_argument("--ranks", type=int, default=2, help="Of each job on the stand-in.")
    parser.add_argument("--looks", type=int, default=1, help="At each job on the stand-in.")
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} processors")
    print("| kind | right | seconds from command to answer: median / longest |\n| --- | --- | --- |")
    if options.gpus:
        print_gpu_rows(options)
        return
    if options.healthy and options.engines:
        kinds = [one for one in options.kinds or HEALTHY_ENGINES if is_installed(one)]
        for what in kinds:
            begun = "ready" if what.endswith("_idle") else "begun"
            print_row(what, try_healthy(what, -(-options.healthy // len(kinds)), "engines.py", begun))
        return
    if options.healthy:
        sets_of_healthy = (
            (options.polls, HEALTHY_POLLS, "polls.py"),
            (options.threads, HEALTHY_THREADS, "threads.py"),
        )
        usual, script = next(((k, s) for chosen, k, s in sets_of_healthy if chosen), (HEALTHY, "healthy.py"))
        names = options.kinds or usual
        for what in names:
            begun = "ready" if what == "prepares" else "begun.3"
            print_row(what, try_healthy(what, -(-options.healthy // len(names)), script, begun))
        return
    sets = (
        (options.shapes, SHAPES),
        (options.groups, GROUPS),
        (options.polls, POLLS),
        (options.engines, ENGINES),
        (options.threads, THREADS),
    )
    known = next((kinds for chosen, kinds in sets if chosen), KINDS)
    guilty = 2 if known in (KINDS, ENGINES) else 1
    wanted = [
        kind
        for kind in known
        if (not options.kinds or kind.name in options.kinds) and is_installed(kind.name)
    ]
    with ThreadPoolExecutor(options.at_once) as pool:
        for kind in wanted:
            answers = list(pool.map(lambda number, kind=kind: try_kind(kind, guilty), range(options.times)))
            print_row(kind.name, answers)


if __name__ == "__main__":
    main()
