"""`gpudiag run`: the job is as it is without it.

Jobs here are no ranks; tests/ranks/test_run.py has those.
"""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpudiag.model.run import Run, RunState
from gpudiag.store.service_runs import RunRecords
from gpudiag.store.state_folder import own_machine_key
from tests.walking import walk

ROOT = Path(__file__).parents[2]
GPUDIAG = [sys.executable, "-m", "gpudiag"]
LIMIT_SECONDS = 240  # the machine may be busy
JOB = Path(__file__).with_name("run_job.py")

_BINARY = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000); sys.stderr.write('e\\rr')"
ENDINGS = {
    "ends well": "print('x')",
    "exit status 3": "import sys; print('x'); sys.exit(3)",
    "exception": "raise ValueError('no')",
    "SIGKILL": "import os; os.kill(os.getpid(), 9)",
    "SIGTERM": "import os; os.kill(os.getpid(), 15)",
    "SIGSEGV": "import os; os.kill(os.getpid(), 11)",
    "binary output": _BINARY,
    "input": "import sys; print(sys.stdin.read()[::-1])",
}


def environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "80",
        "GPUDIAG_STATE_DIR": f"{_folder}-state",
    }


def ended(command: list[str], folder: Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        input=b"some input",
        capture_output=True,
        timeout=LIMIT_SECONDS,
    )


def without_own_lines(text: bytes) -> bytes:
    return text.partition(b"gpudiag: ")[0]  # gpudiag has its say once the job has ended


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    global _folder
    _folder = tmp_path_factory.mktemp("run")
    return _folder


@walk(ENDINGS)
def test_output_and_status_are_those_of_the_job(name: str) -> None:
    job = [sys.executable, "-S", "-c", ENDINGS[name]]
    plain = ended(job, _folder)
    verdict = _folder / f"{name.replace(' ', '-')}.json"
    watched = ended([*GPUDIAG, "run", "--verdict", str(verdict), "--", *job], _folder)
    assert watched.stdout == plain.stdout
    assert without_own_lines(watched.stderr) == plain.stderr
    assert watched.returncode == plain.returncode
    document = json.loads(verdict.read_text())
    assert document["schema"] == "gpudiag.job_run/2"
    assert document["exit_status"] == (plain.returncode if plain.returncode >= 0 else 128 - plain.returncode)
    assert document["outcome"] == ("skip" if plain.returncode == 0 else "fail")
    said = " ".join(watched.stderr.decode().partition("gpudiag: ")[2].replace("gpudiag:", "").split())
    assert said.startswith("FAIL" if plain.returncode else "SKIP the command ended with exit status 0")
    assert "no rank was seen" in said


def started(folder: Path, *flags: str, **more: object) -> tuple[subprocess.Popen[str], Path]:
    file = folder / f"job-{time.monotonic_ns()}"
    command = [
        *GPUDIAG,
        "run",
        "--verdict",
        f"{file}.json",
        *flags,
        "--",
        sys.executable,
        "-S",
        str(JOB),
        str(file),
    ]
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )
    wait_for_line(process, "ready")
    return process, file


def wait_for_line(process: subprocess.Popen[str], start: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(start):
            return line
    raise AssertionError(f"no line starts with {start}")


def stopped(process: subprocess.Popen[str], file: Path) -> str:
    Path(f"{file}.stop").touch()
    process.communicate(timeout=LIMIT_SECONDS)
    return file.read_text()


def test_a_signal_reaches_the_job_once_whether_sent_to_gpudiag_or_to_the_group(folder: Path) -> None:
    process, file = started(folder, start_new_session=True)
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        process.send_signal(getattr(signal, name))
        assert wait_for_line(process, "got") == f"got {name}\n"
    for name in ("SIGUSR1", "SIGQUIT", "SIGTERM"):
        os.killpg(process.pid, getattr(signal, name))
        assert wait_for_line(process, "got") == f"got {name}\n"
    assert stopped(process, file) == "SIGHUP=1 SIGINT=1 SIGQUIT=1 SIGUSR1=1 SIGTERM=2"
    assert process.returncode == 0
    signals = [
        (one["name"], one["passed_on"]) for one in json.loads(Path(f"{file}.json").read_text())["signals"]
    ]
    alone, to_all = ("SIGTERM", "SIGINT", "SIGHUP"), ("SIGUSR1", "SIGQUIT", "SIGTERM")
    assert sorted(signals) == sorted([*((name, True) for name in alone), *((name, False) for name in to_all)])


def test_killing_gpudiag_leaves_the_job_and_nothing_of_its_own(folder: Path) -> None:
    process, file = started(folder, start_new_session=True)
    process.kill()
    assert process.wait(timeout=LIMIT_SECONDS) == -signal.SIGKILL
    for _ in range(3):  # its output flows on
        wait_for_line(process, "tick")
    Path(f"{file}.stop").touch()
    assert process.stdout is not None
    assert process.stdout.read().endswith("over\n")
    await_that(lambda: not processes_of_group(process.pid))
    process.communicate()


def processes_of_group(group: int) -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdecimal():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[2]) == group and fields[0] != "Z":
                found.append(name)
    return found


def await_that(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


def read_until(terminal: int, word: bytes) -> bytes:
    shown = b""
    until = time.monotonic() + LIMIT_SECONDS
    while word not in shown:
        assert time.monotonic() < until, shown
        if select.select([terminal], [], [], 1.0)[0]:
            shown += os.read(terminal, 4096)
    return shown


def test_the_job_has_the_terminal_its_ctrl_c_and_its_ctrl_z(folder: Path) -> None:
    file = folder / "terminal"
    command = (
        f"{sys.executable} -m gpudiag run --quiet --verdict {file}.json -- {sys.executable} -S {JOB} {file}"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execve(
            "/bin/bash", ["bash", "-c", f"set -m; {command}; echo left $?; fg; echo ended $?"], environment()
        )
    try:
        assert b"tty=TrueTrueTrue" in read_until(terminal, b"TrueTrueTrue")
        os.write(terminal, b"\x03")
        read_until(terminal, b"got SIGINT")
        os.write(terminal, b"\x1a")
        read_until(terminal, b"left 148")  # 128 + SIGTSTP: the shell saw it stop
        read_until(terminal, b"tick")  # fg: the job goes on
        Path(f"{file}.stop").touch()
        read_until(terminal, b"ended 0")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)
    assert file.read_text().split()[0] == "SIGINT=1"


def test_what_the_user_set_stays_and_the_rest_is_switched_on(folder: Path) -> None:
    show = "import json, os; print(json.dumps(dict(os.environ)))"
    own = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "7", "TORCHELASTIC_ERROR_FILE": "/own/file"}
    done = subprocess.run(
        [*GPUDIAG, "run", "--quiet", "--", sys.executable, "-c", show],
        cwd=folder,
        env={**environment(), **own},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
    )
    seen = json.loads(done.stdout)
    assert own.items() <= seen.items()
    assert "TORCH_FR_BUFFER_SIZE" not in seen  # the same setting under its newer name
    assert seen["TORCH_NCCL_DUMP_ON_TIMEOUT"] == "1"
    assert seen["TORCH_INCLUDE_STACK_TRACE"] == "0"
    assert Path(seen["TORCH_FR_DUMP_TEMP_FILE"]).parent.parent == folder
    assert done.stderr == ""
    assert not list(folder.glob("gpudiag-run-*.files"))  # nothing was dumped: no folder is left


WRONG = {
    "no command": ([], 2, "there is no command"),
    "no separator": (["torchrun", "--nproc", "2"], 2, "goes after `--`"),
    "no such option": (["--bogus", "--", "true"], 2, "no option --bogus"),
    "no such command": (["--", "no-such-command"], 127, "command not found"),
    "an empty command": (["--", ""], 127, "is empty"),
    "no executable": (["--", str(ROOT)], 126, "Permission denied"),
    "no number": (["--stall-after", "soon", "--", "true"], 2, "--stall-after soon"),
    "no such reaction": (["--on-stall", "pray", "--", "true"], 2, "pray"),
    "no folder": (["--verdict", "/no/such/folder/v.json", "--", "true"], 2, "/no/such/folder"),
}


@walk(WRONG)
def test_wrong_input_is_one_sentence(name: str) -> None:
    flags, status, words = WRONG[name]
    before = set(_folder.iterdir())
    done = ended([*GPUDIAG, "run", *flags], _folder)
    assert done.returncode == status, done.stderr
    assert words in done.stderr.decode()
    assert len(done.stderr.decode().splitlines()) <= 2
    assert set(_folder.iterdir()) == before


def test_a_full_disk_costs_the_verdict_and_not_the_job(folder: Path) -> None:
    done = ended([*GPUDIAG, "run", "--verdict", "/dev/full", "--", "sh", "-c", "echo kept; exit 4"], folder)
    assert (done.returncode, done.stdout) == (4, b"kept\n")
    assert b"No space left on device" in done.stderr
    assert b"verdict: " not in done.stderr  # no file is named that is not there


def test_a_folder_that_was_removed_is_no_bug_of_gpudiag(folder: Path) -> None:
    start = 'import os, sys; os.mkdir("gone"); os.chdir("gone"); os.rmdir(os.getcwd()); os.execv(sys.argv[1], sys.argv[1:])'
    done = ended([sys.executable, "-c", start, *GPUDIAG, "run", "--", "true"], folder)
    assert done.returncode == 2, done.stderr
    assert b"it was removed" in done.stderr
    done = ended(
        [sys.executable, "-c", start, *GPUDIAG, "run", "--verdict", f"{folder}/v.json", "--", "true"], folder
    )
    assert done.returncode == 0, done.stderr
    assert (folder / "v.json").exists()


def stored(run_id: str) -> Run:
    """The stored run of the verdict with that id."""
    found = [run for run, _ in RunRecords(f"{_folder}-state/history.db").load(own_machine_key())]
    (run,) = (run for run in found if run.id.endswith(f"-{run_id[:6]}"))
    return run


def test_an_ended_job_is_remembered_with_its_document(folder: Path) -> None:
    verdict = folder / "kept.json"
    words = ["--nan-check", "--verdict", str(verdict), "--", "sh", "-c", "exit 5", "--api-key", "s3cr3t-word"]
    assert ended([*GPUDIAG, "run", *words], folder).returncode == 5
    document = json.loads(verdict.read_text())
    run = stored(document["run_id"])
    assert (run.kind, run.state, run.outcome, run.exit_status) == ("run", RunState.SUCCEEDED, "fail", 5)
    assert run.command == f"gpudiag run --nan-check --verdict {verdict} -- sh -c 'exit 5' --api-key '***'"
    assert run.reason == document["headline"]
    assert run.ended_at is not None
    assert run.ended_at >= run.requested_at
    report = RunRecords(f"{_folder}-state/history.db").read_report(run.id)
    assert json.loads(report or "") == document
    listed = json.loads(ended([*GPUDIAG, "history", "--json"], folder).stdout)["runs"]
    assert (listed[0]["kind"], listed[0]["outcome"]) == ("run", "fail")


def test_a_job_that_ctrl_c_ends_is_remembered(folder: Path) -> None:
    sleeper = [sys.executable, "-S", "-c", "import time; print('ready', flush=True); time.sleep(240)"]
    verdict = folder / "interrupted.json"
    process = subprocess.Popen(
        [*GPUDIAG, "run", "--verdict", str(verdict), "--", *sleeper],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for_line(process, "ready")
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == -signal.SIGINT
    document = json.loads(verdict.read_text())
    run = stored(document["run_id"])
    assert (run.state, run.outcome, run.exit_status) == (RunState.SUCCEEDED, document["outcome"], 130)


def test_a_job_whose_agent_was_killed_is_remembered_without_a_verdict(folder: Path) -> None:
    process, file = started(folder, start_new_session=True)
    agent, *_ = [  # a process that it forks has its name for a moment
        pid
        for pid in sorted(processes_of_group(process.pid), key=int)
        if Path(f"/proc/{pid}/comm").read_text().strip() == "gpudiag-agent"
    ]
    variables = Path(f"/proc/{job_of(process.pid)}/environ").read_text()
    run_id = variables.partition("GPUDIAG_RUN_ID=")[2].partition("\0")[0]
    os.kill(int(agent), signal.SIGKILL)
    stopped(process, file)
    assert process.returncode == 0
    run = stored(run_id)
    assert (run.state, run.outcome, run.exit_status) == (RunState.FAILED, None, 0)
    assert (run.has_report, "no verdict" in (run.reason or "")) == (False, True)


def job_of(group: int) -> str:
    """The process of JOB in that group."""
    (pid,) = (
        pid
        for pid in processes_of_group(group)
        if str(JOB) in Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")[1:3]
    )
    return pid


def test_a_store_that_takes_nothing_is_one_warning(folder: Path) -> None:
    where = folder / "no-folder"
    where.write_text("a file")
    nowhere = {**environment(), "GPUDIAG_STATE_DIR": str(where)}
    for flags, job, status, times in (((), "false", 1, 1), (("--quiet",), "true", 0, 0)):
        done = subprocess.run(
            [*GPUDIAG, "run", *flags, "--verdict", str(folder / "v.json"), "--", job],
            env=nowhere,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
        )
        assert (done.returncode, done.stderr.count("this run is not remembered")) == (status, times)
    named = ended(
        [*GPUDIAG, "run", "--store", f"{folder}/own.db", "--verdict", f"{folder}/v.json", "--", "true"],
        folder,
    )
    assert (named.returncode, (folder / "own.db").exists()) == (0, True)
