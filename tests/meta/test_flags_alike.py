"""A flag means the same wherever it stands, `-` is standard output, and a flag that would do nothing is
refused.
"""

import contextlib
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from gpudiag.cli.commands import COMMANDS, gpudiag
from gpudiag.cli.main import main
from gpudiag.cli.options import Seconds
from gpudiag.errors import ExitStatus
from tests.walking import walk

COMMANDS_BY_NAME = {
    name: command
    for name in COMMANDS
    if (command := gpudiag.get_command(click.Context(gpudiag), name)) is not None
}
TREE = {
    name: command.get_params(click.Context(command, info_name=name, **command.context_settings))
    for name, command in COMMANDS_BY_NAME.items()
}
# Their result is not a document: a job's own output, a page, another program, files for a folder, a view.
WITHOUT_RESULT = {"run", "serve", "simulate", "deploy", "watch", "demo"}
WITH_RESULT = sorted(set(TREE) - WITHOUT_RESULT)
WITH_HISTORY = {"nccl-test", "bandwidth", "preflight", "history", "serve", "doctor", "topo", "run"}
# Their text leaves nothing out.
NOTHING_LEFT_OUT = {"lint", "receipt"}
# What a command needs beside the flags, so that they are read; nothing of it is looked at.
RIGHT_OUTPUT = '{"DCGM Diagnostic": {"test_categories": [{"tests": [{"name": "software", "results": [{"status": "Pass"}]}]}]}}'
REST = {
    "merge": ("a.json",),
    "receipt": ("a.json",),
    "compare": ("a.json", "b.json"),
    "explain": ("gpu.lost",),
    "judge": (str(Path(__file__)),),
    "lint": (str(Path(__file__)),),
    "run": ("--", "true"),
}
# The same for those that answer at once, and may be run.
QUICK: dict[str, Callable[[Path], tuple[str, ...]]] = {
    "list": lambda _: (),
    "history": lambda _: (),
    "explain": lambda _: ("gpu.lost",),
    "judge": lambda folder: (str(_write(folder / "a.json", RIGHT_OUTPUT)),),
    "lint": lambda folder: (str(_write(folder / "fine.py", "print(1)\n")),),
    "merge": lambda folder: (str(_write(folder / "a.json", "{}")),),
    "preflight": lambda _: ("--level", "instant", "--only", "host.clock"),
}


def _write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def flags(command: str) -> dict[str, click.Option]:
    options = [one for one in TREE[command] if isinstance(one, click.Option)]
    return {name: one for one in options for name in one.opts}


def is_number(one: click.Option) -> bool:
    number = isinstance(one.type, click.types.IntParamType | click.types.FloatParamType | Seconds)
    return number and not one.is_flag


def is_refused(capsys: pytest.CaptureFixture[str], *argv: str, named: str) -> bool:
    status = main(argv)
    told = capsys.readouterr()
    return status == ExitStatus.USAGE and named in told.err and told.out == ""


@walk(WITH_RESULT)
def test_every_result_is_asked_for_alike(command: str) -> None:
    assert {"--format", "--json", "--output"} <= set(flags(command))
    assert ("--verbose" in flags(command)) == (command not in NOTHING_LEFT_OUT)


@pytest.mark.parametrize("flag", ["--json", "--output", "--store", "--events"])
def test_a_flag_has_one_meaning(flag: str) -> None:
    asked = [name for name in TREE if flag != "--output" or name not in WITHOUT_RESULT]
    meanings = {(one.help, one.metavar, one.is_flag) for name in asked if (one := flags(name).get(flag))}
    assert len(meanings) == 1, meanings


def test_the_other_flags_begin_alike() -> None:
    for flag, words in (
        ("--format", "What to print: text, json"),
        ("--deadline", "Longest wait for an answer"),
    ):
        told = {name: one.help or "" for name in TREE if (one := flags(name).get(flag))}
        assert told
        assert [name for name, text in told.items() if not text.startswith(words)] == []


def test_the_history_is_named_where_one_is_kept_or_read() -> None:
    assert {name for name in TREE if "--store" in flags(name)} == WITH_HISTORY


@walk(sorted(TREE))
def test_every_flag_has_help_and_limits_in_words(command: str) -> None:
    context = click.Context(COMMANDS_BY_NAME[command], info_name=command)
    for flag, one in flags(command).items():
        shown = " ".join((one.get_help_record(context) or ("", one.help or "-"))[1].split())
        assert shown[:1] not in ("", "["), flag
        assert not re.search("x>=|<=x", shown), flag
        limits = [part for part in re.findall(r"\[([^]]*)\]", shown) if " to " in part]
        assert len(limits) == len(set(limits)), flag


@walk([(name, one.opts[0]) for name in sorted(TREE) for one in flags(name).values() if is_number(one)])
def test_a_wrong_number_is_refused_by_its_flag(case: tuple[str, str]) -> None:
    command, flag = case
    for value in ("many", "5x", "nan", "-7"):
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            status = main((command, flag, value, *REST.get(command, ())))
        words = told.getvalue()
        assert status == ExitStatus.USAGE, (value, words)
        assert flag in words or f"{value} looks like an option" in words, (value, words)


@walk(sorted(TREE))
def test_a_value_that_a_script_left_empty_is_refused(command: str) -> None:
    takes = [flag for flag, one in flags(command).items() if flag.startswith("--") and not one.is_flag]
    arguments = [one for one in TREE[command] if isinstance(one, click.Argument)]
    for words in [
        *((flag, "") for flag in takes),
        *((f"{flag}=",) for flag in takes),
        *(("",) for _ in arguments),
    ]:
        told = io.StringIO()
        with contextlib.redirect_stderr(told):
            status = main((command, *words, *REST.get(command, ())))
        assert (status, "is empty: is a variable" in told.getvalue()) == (ExitStatus.USAGE, True), words


def test_what_another_program_gets_may_be_empty(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(("simulate", "h100x8", "printf", "<%s>", "")) == ExitStatus.PASS
    assert capfd.readouterr().out == "<>"


def test_a_time_may_have_a_unit() -> None:
    for name in sorted(TREE):
        for flag, one in flags(name).items():
            if one.metavar == "SECONDS":
                assert one.type.convert("30s", one, None) == one.type.convert("0.5m", one, None) == 30.0, flag


@walk(sorted(TREE))
def test_a_file_is_completed_as_one(command: str) -> None:
    names = [
        name
        for name, one in flags(command).items()
        if one.metavar == "FILE" and not isinstance(one.type, click.Path)
    ]
    assert names == []


def test_two_ways_to_say_what_is_printed_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in WITH_RESULT:
        rest = REST.get(command, ())
        for wanted in (("--json", "--format", "text"), ("--output", "-", "--format", "text")):
            assert is_refused(capsys, command, *wanted, *rest, named="contradict"), (command, wanted)
        assert is_refused(capsys, command, "--format", "yaml", *rest, named="'yaml'"), command


def test_a_flag_about_text_is_refused_beside_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    for command in sorted(set(WITH_RESULT) - NOTHING_LEFT_OUT):
        for wanted in (("--json",), ("--format", "json"), ("--output", "-")):
            named = "--verbose changes text"
            assert is_refused(capsys, command, *wanted, "--verbose", *REST.get(command, ()), named=named), (
                command
            )


def test_a_store_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in sorted(WITH_HISTORY):
        assert is_refused(capsys, command, "--store", "oracle://x/y", named="--store oracle://"), command


def test_events_and_text_do_not_share_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (name for name in TREE if "--events" in flags(name)):
        assert is_refused(capsys, command, "--events", "-", named="add --json"), command


IDLE = (
    (("list", "--wide", "--json"), "--wide"),
    (("list", "--wide", "--sources", "torch"), "--wide"),
    (("list", "--verbose"), "--verbose"),
    (("list", "--ids"), "--ids"),
    (("nccl-test", "--all-sizes", "--json"), "--all-sizes"),
    (("lint", "--fix", "--diff", "a.py"), "--diff"),
    (("preflight", "--list", "--json"), "--json"),
    (("preflight", "--list", "--strict"), "--strict"),
    (("preflight", "--reason", "--verbose"), "--verbose"),
    (("preflight", "--report", "junit=-", "--json"), "--report junit=-"),
    (("preflight", "--quorum", "2"), "--quorum"),
    (("preflight", "--sign", "key"), "--sign"),
    (("run", "--verdict", "-", "--", "true"), "the verdict needs a file"),
    (("train", "--parameters", "7B"), "--parameters"),
    (("bandwidth", "--nodes", "2"), "--nodes"),
)


def test_a_flag_that_would_do_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, named in IDLE:
        assert is_refused(capsys, *argv, named=named), argv


@pytest.mark.sliced
@pytest.mark.parametrize("command", sorted(QUICK))
def test_a_dash_is_standard_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GPUDIAG_STATE_DIR", str(tmp_path / "state"))
    argv = (command, *QUICK[command](tmp_path))
    kept = tmp_path / "kept.json"
    statuses, schemas = set(), set()
    for wanted in (("--json",), ("--format", "json"), ("--output", "-"), ("--output", str(kept))):
        statuses.add(main((*argv, *wanted)))
        out = capsys.readouterr().out
        document = json.loads(kept.read_text() if wanted[-1] == str(kept) else out)
        schemas.add(document["schema"])
    assert len(statuses) == len(schemas) == 1
    assert not Path("-").exists()


def complete(words: list[str], incomplete: str) -> set[str]:
    from click.shell_completion import ShellComplete

    found = ShellComplete(gpudiag, {}, "gpudiag", "_GPUDIAG_COMPLETE").get_completions(words, incomplete)
    return {item.value for item in found}


COMPLETED = (
    (["simulate"], "h100x", "h100x8"),
    (["simulate"], "h100x8+lo", "h100x8+lost"),
    (["simulate"], "h100x8+lost:3+ho", "h100x8+lost:3+hot"),
    (["explain"], "gpu.l", "gpu.lost"),
    (["list", "--sources"], "nvml,g", "nvml,gputil"),
    (["list", "--format"], "", "json"),
    (["preflight", "--level"], "i", "instant"),
    (["preflight", "--only"], "pcie,gpu.l", "pcie,gpu.lost"),
    (["preflight", "--report"], "j", "junit="),
    (["preflight", "--fail-on"], "", "machine"),
    (["nccl-test", "--op"], "all_reduce,broad", "all_reduce,broadcast"),
    (["nccl-test", "--emit"], "s", "slurm"),
    (["train", "--strategy"], "ddp,f", "ddp,fsdp2"),
    (["train", "--format"], "m", "markdown"),
    (["lint", "--format"], "s", "sarif"),
    (["run", "--on-stall"], "k", "kill"),
)


@walk(COMPLETED, lambda case: " ".join(case[0]) + f" {case[1]}")
def test_values_are_completed(case: tuple[list[str], str, str]) -> None:
    words, incomplete, wanted = case
    assert wanted in complete(words, incomplete)


def test_a_file_that_is_written_need_not_be_readable_and_no_file_is_refused_in_two_ways() -> None:
    """click looks whether a file that is there can be read, unless told otherwise: the commands report it
    themselves.
    """
    paths = [
        (name, parameter.name)
        for name, parameters in TREE.items()
        for parameter in parameters
        if isinstance(parameter.type, click.Path) and parameter.type.readable
    ]
    assert paths == [("train", "script"), ("receipt", "signers")]
