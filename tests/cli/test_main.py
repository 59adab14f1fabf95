import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from gpudiag import __version__, errors
from gpudiag.cli import commands
from gpudiag.cli.commands import COMMANDS, LazyCommand
from gpudiag.cli.failures import DEBUG_VARIABLE, describe_failure
from gpudiag.cli.main import main
from gpudiag.cli.printing import EXIT_STATUSES
from gpudiag.cli.signals import TerminatedError
from gpudiag.errors import ExitStatus, GpudiagError
from gpudiag.model.finding import Outcome

# Every exception that can reach the top of a command, and what it exits with.
STATUSES: dict[type[BaseException], int] = {
    errors.GpudiagError: 3,
    errors.UsageError: 2,
    errors.UnknownSchemaError: 2,
    errors.SourceError: 3,
    errors.SourceAbsentError: 3,
    errors.SourceFailedError: 3,
    errors.DeviceLostError: 3,
    errors.LaunchError: 3,
    errors.RankStartError: 3,
    errors.RendezvousError: 3,
    errors.CommandNotFoundError: 127,
    errors.CommandRefusedError: 126,
    errors.RunError: 3,
    errors.RunNotFoundError: 3,
    errors.RunConflictError: 3,
    errors.RunCancelledError: 3,
    errors.StoreError: 3,
    errors.ShortageError: 3,
    click.UsageError: 2,
    click.BadParameter: 2,
    click.ClickException: 2,
    click.Abort: 130,
    KeyboardInterrupt: 130,
    TerminatedError: 143,
    BrokenPipeError: 141,
    OSError: 70,
    PermissionError: 70,
    ValueError: 70,
    RecursionError: 70,
    AssertionError: 70,
}
TAKES_NOTHING = (click.Abort, KeyboardInterrupt, TerminatedError)


def subclasses(parent: type[BaseException]) -> Iterator[type[BaseException]]:
    yield parent
    for child in parent.__subclasses__():
        yield from subclasses(child)


def test_the_table_holds_every_exception_of_ours() -> None:
    ours = {kind for kind in subclasses(GpudiagError) if kind.__module__ == errors.__name__}
    assert ours <= set(STATUSES)  # what a layer derives from one of them exits as it does


@pytest.mark.parametrize("kind", list(STATUSES), ids=lambda kind: kind.__name__)
def test_an_exception_becomes_its_exit_status_and_a_sentence(
    kind: type[BaseException], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @click.command()
    def fails() -> None:
        raise kind() if kind in TAKES_NOTHING else kind("what went wrong")

    monkeypatch.setattr(commands.LazyGroup, "get_command", lambda self, ctx, name: fails)
    assert main(["simulate"]) == STATUSES[kind]
    captured = capsys.readouterr()
    assert captured.out == ""
    if kind is BrokenPipeError:  # whoever read the output has gone
        assert captured.err == ""
    else:
        assert captured.err.startswith("gpudiag: ")
    assert "Traceback" not in captured.err


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_full_disk_is_no_bug_of_ours(number: int) -> None:
    assert describe_failure(OSError(number, os.strerror(number))).status is ExitStatus.ERROR


def test_a_bug_names_its_place_and_how_to_see_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="surprise") as raised:
        raise ValueError("surprise")
    short = describe_failure(raised.value)
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    long = describe_failure(raised.value)
    assert __file__ in short.lines[0]
    assert DEBUG_VARIABLE in short.lines[1]
    assert any(line.startswith("Traceback") for line in long.lines)


def test_a_terminal_gets_every_sentence_in_lines_that_fit_and_a_log_gets_it_whole() -> None:
    hint = "run `gpudiag list --sources all` " * 8
    failure = describe_failure(GpudiagError("GPU 3 gives no answer " * 8, hint=hint.strip()))
    assert failure.lines[1] == f"  {hint.strip()}"
    fitted = failure.terminal_lines()
    assert max(map(len, fitted)) <= 80
    assert all(line.startswith("  ") for line in fitted[1:])
    assert " ".join(" ".join(fitted).split()) == " ".join(" ".join(failure.lines).split())


def test_a_command_that_gives_no_exit_status_is_our_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    @click.command()
    def forgets() -> None:
        return None

    monkeypatch.setattr(commands.LazyGroup, "get_command", lambda self, ctx, name: forgets)
    assert main(["simulate"]) == ExitStatus.INTERNAL


def test_every_verdict_has_an_exit_status() -> None:
    assert {outcome.value: int(status) for outcome, status in EXIT_STATUSES.items()} == {
        "pass": 0,
        "warn": 0,
        "fail": 1,
        "error": 3,
    }
    assert set(Outcome) - set(EXIT_STATUSES) == {Outcome.SKIP}  # a check's outcome, never a verdict


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["lst"], "did you mean list"),
        (["--verson"], "did you mean --version"),
        (["list", "--wid"], "did you mean --wide"),
        (["list", "--sources", "nvlm"], "did you mean nvml"),
        (["list", "--sources", ","], "names nothing"),
        (["list", "--free", "0"], "--free"),
        (["list", "--free", "two"], "--free"),
        (["list", "--ids"], "--free 2 --ids"),
        (["list", "--free", "1", "--wide"], "do not go together"),
        (["list", "--free", "1", "--sources", "torch"], "do not go together"),
        (["list", "--watch", "2", "--output", "x.json"], "do not go together"),
        (["list", "--watch", "0.1"], "--watch"),
        (["list", "--watch", "1e12"], "1 to 86400"),
        (["list", "--deadline", "0"], "--deadline"),
        (["list", "extra"], "extra"),
        (["list", "--output"], "see `gpudiag list --help`"),
        (["list", "--deadline", "soon"], "--deadline: 'soon' is not a time"),
        (["list", "--watch", "-1"], "--watch -1 is out of range"),
        (["list", "--free", "-1"], "a negative number is no value here"),
        (["hang", "one"], "PID: 'one' is not a whole number"),
        (["compare", "a.json"], "usage: gpudiag compare [OPTIONS] A B"),
        (["compare", "a", "b", "c"], "too many arguments: (c)"),
        (["--json"], "gpudiag list --json"),
        (["list", "--output", "/"], "cannot write to /"),
        (["list", "--output", "/no/such/directory/file.json"], "cannot write to /no"),
    ],
)
def test_bad_usage_is_one_sentence_and_status_2(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitStatus.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert 1 <= len(captured.err.splitlines()) <= 2  # the sentence, and where to look


@pytest.mark.parametrize("argv", [["--help"], ["-h"], ["list", "--help"], ["--version"]])
def test_help_and_version_succeed_on_standard_output(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == ExitStatus.PASS
    captured = capsys.readouterr()
    assert captured.err == ""
    assert max(len(line) for line in captured.out.splitlines()) <= 80
    if argv == ["--version"]:
        assert captured.out.strip() == f"gpudiag {__version__}"


def test_help_lists_every_command_without_importing_any(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(COMMANDS, "absent", LazyCommand("gpudiag.cli.no_such_module", "absent", "a summary"))
    assert main(["--help"]) == ExitStatus.PASS
    text = capsys.readouterr().out
    assert all(name in text for name in COMMANDS)


def run_gpudiag(*argv: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpudiag", *argv]
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, text=True, capture_output=True, timeout=60, **options
    )


def test_shell_completion_offers_the_commands() -> None:
    environment = {
        **os.environ,
        "_GPUDIAG_COMPLETE": "bash_complete",
        "COMP_WORDS": "gpudiag ",
        "COMP_CWORD": "1",
    }
    done = run_gpudiag(env=environment)
    assert done.returncode == 0
    assert all(name in done.stdout for name in ("list", "nccl-test", "simulate"))


@pytest.mark.parametrize("argv", [["--help"], ["list"]])
def test_a_reader_that_goes_away_is_not_a_verdict(argv: list[str]) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    command = [sys.executable, "-m", "gpudiag", *argv]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, timeout=60)
    os.close(write_end)
    assert done.returncode == ExitStatus.PIPE_CLOSED
    assert done.stderr == b""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_output_that_cannot_be_written_is_an_error_and_not_a_pass() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "gpudiag", "--help"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == ExitStatus.ERROR
    assert b"No space left" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_full_disk_costs_the_file_and_not_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "report.json").write_text("no report")
    command = ["merge", str(tmp_path / "report.json"), "--json", "--output", "/dev/full"]
    assert main(command) == ExitStatus.ERROR
    captured = capsys.readouterr()
    assert json.loads(captured.out)["schema"] == "gpudiag.merged/1"
    assert "cannot write to /dev/full" in captured.err


def test_closed_standard_files_disturb_nobody() -> None:
    done = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m gpudiag list --sources nvml >&- <&-"], timeout=60
    )
    assert done.returncode == ExitStatus.PASS


@pytest.mark.parametrize(
    ("number", "statuses"),
    [
        (signal.SIGINT, (ExitStatus.INTERRUPTED,)),
        (signal.SIGTERM, (ExitStatus.TERMINATED, -signal.SIGTERM)),  # a shell reports both as 143
    ],
)
def test_a_signal_ends_a_watch_cleanly(number: int, statuses: tuple[int, ...]) -> None:
    command = [sys.executable, "-m", "gpudiag", "list", "--sources", "nvml", "--watch", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        assert watch.stdout.readline().startswith('{"schema": "gpudiag.snapshot/')
        watch.send_signal(number)
        _, stderr = watch.communicate(timeout=90)
    assert watch.returncode in statuses
    assert "Traceback" not in stderr


def test_ctrl_c_while_the_program_loads_ends_it_without_a_word() -> None:
    program = (
        "import os, signal, gpudiag.cli.main as entry\n"
        "entry.start_early = lambda arguments: os.kill(os.getpid(), signal.SIGINT)\n"
        "entry.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitStatus.INTERRUPTED, b"", b"")
