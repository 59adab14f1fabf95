"""Names of files and folders as they come: too long, without permission, empty, or in no encoding."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus

LONG = "x" * 300
# No name here can be read, and none is a bug of gpudiag.
NAMES = {
    "too long": LONG,
    "too long with a suffix": f"{LONG}.toml",
    "too long, recorded": f"{LONG}.json",
    "too many folders": "y/" * 3000 + "x.json",
    "below a file": "plain/x.json",
    "a loop": "loop/x.toml",
    "empty": "",
}
READERS = (
    ["lint", "@"],
    ["lint", "--fix", "@"],
    ["lint", "@", "plain"],
    ["explain", "@"],
    ["explain", "@", "plain"],
    ["merge", "@"],
    ["simulate", "@"],
    ["simulate", "@", "--", "true"],
    ["preflight", "--level", "instant", "--expect", "@"],
    ["preflight", "--level", "instant", "--python", "@"],
    ["doctor", "--python", "@"],
    ["receipt", "@"],
    ["compare", "@", "@"],
    ["judge", "@"],
    ["judge", "@", "plain"],
    ["deploy", "--nhc", "@"],
    ["demo", "@"],
    ["nccl-test", "--localise", "--labels", "@"],
    ["serve", "--token-file", "@"],
    ["serve", "--hub", "gpu1", "--hub-tokens", "@"],
    ["serve", "--tls-cert", "@", "--tls-key", "@"],
)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("plain").write_text("x = 1\n")
    Path("loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize("argv", READERS, ids=" ".join)
def test_a_name_that_cannot_be_read_is_refused_in_words(argv: list[str], capsys: Any) -> None:
    for kind, name in NAMES.items():
        status = main([name if word == "@" else word for word in argv])
        told = capsys.readouterr()
        assert status == ExitStatus.USAGE, (kind, told.err[:300])
        assert "internal error" not in told.err
        assert "[Errno" not in told.err, kind


@pytest.mark.parametrize("argv", [*READERS, ["history", "--store", "@"]], ids=" ".join)
def test_a_missing_file_is_refused_with_what_to_do_next(argv: list[str], capsys: Any) -> None:
    status = main(["gone.json" if word == "@" else word for word in argv if word != "plain"])
    message, *hint = capsys.readouterr().err.splitlines()
    assert status == ExitStatus.USAGE
    assert "gone.json" in message
    assert len(hint) == 1


@pytest.mark.parametrize("argv", [argv for argv in READERS if "plain" not in argv], ids=" ".join)
def test_a_binary_file_is_not_taken_for_another(argv: list[str], capsys: Any) -> None:
    Path("noise.toml").write_bytes(b"\0\xff\n|| " * 500)
    Path("noise.toml").chmod(0o600)
    status = main(["noise.toml" if word == "@" else word for word in argv])
    told = capsys.readouterr()
    assert status in (ExitStatus.USAGE, ExitStatus.ERROR)
    assert "noise.toml" in told.out + told.err


@pytest.mark.parametrize("command", ["explain", "judge", "lint"])
def test_a_name_in_no_encoding_is_shown_with_its_bytes(command: str, capsys: Any) -> None:
    Path(os.fsdecode(b"l\xf6g.py")).write_bytes(b"\0")
    main([command, os.fsdecode(b"l\xf6g.py")])
    assert r"l\udcf6g.py" in capsys.readouterr().out.replace("\udcf6", r"\udcf6")


def _refuse(monkeypatch: pytest.MonkeyPatch, function: str, word: str) -> None:
    """Let the function refuse every path that has the word, as for a user without permission."""
    allowed = getattr(os, function)

    def refusing(path: Any = ".", *more: Any, **options: Any) -> Any:
        if word in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return allowed(path, *more, **options)

    monkeypatch.setattr(os, function, refusing)


def test_a_file_behind_a_closed_folder_is_not_called_absent(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    _refuse(monkeypatch, "stat", "closed")
    for argv, status in (
        (["lint", "closed/a.py"], ExitStatus.ERROR),
        (["lint", "plain", "closed/a.py"], ExitStatus.ERROR),
        (["explain", "closed/a.log"], ExitStatus.USAGE),
        (["simulate", "closed/a.toml"], ExitStatus.USAGE),
    ):
        assert main(argv) == status, argv
        told = capsys.readouterr()
        assert "no finding code" not in told.err
        assert "closed/a" in told.out + told.err
    # A text that begins with such a path is a text.
    assert main(["explain", "/closed/bin/python: can't open file 'train.py'"]) == ExitStatus.PASS


def test_a_folder_that_cannot_be_read_is_told_and_not_called_clean(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    for folder in ("jobs/open", "jobs/closed"):
        Path(folder).mkdir(parents=True)
        Path(folder, "a.py").write_text("x = 1\n")
        Path(folder, "a.log").write_text("epoch 1\n")
    _refuse(monkeypatch, "scandir", "closed")
    assert main(["lint", "jobs"]) == ExitStatus.ERROR
    assert "jobs/closed: not read" in capsys.readouterr().out
    assert main(["lint", "jobs/closed"]) == ExitStatus.ERROR
    capsys.readouterr()
    main(["explain", "jobs", "--json"])
    logs = {log["name"]: log["refused"] for log in json.loads(capsys.readouterr().out)["logs"]}
    assert set(logs) == {"jobs/open/a.log", "jobs/closed"}
    assert logs["jobs/closed"]


def test_a_folder_without_a_script_is_not_called_clean(capsys: Any) -> None:
    Path("empty").mkdir()
    assert main(["lint", "empty"]) == ExitStatus.USAGE
    assert "no script in empty" in capsys.readouterr().err
    assert main(["lint", "empty", "plain"]) == ExitStatus.PASS


def test_logs_may_be_named_in_both_ways_and_come_from_a_pipe_too(here: Path, capsys: Any) -> None:
    for name in ("rank0.log", "rank1.log"):
        Path(name).write_text("RuntimeError: CUDA error: out of memory\n")
    assert main(["explain", str(here / "rank0.log"), "rank1.log"]) == ExitStatus.PASS
    assert "Read: 2 logs" in capsys.readouterr().out
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "explain", "-", str(here / "rank0.log"), "--json"],
        input=b"epoch 1\n",
        capture_output=True,
        check=False,
    )
    assert done.returncode == ExitStatus.PASS, done.stderr
    assert len(json.loads(done.stdout)["logs"]) == 2


ODD = b"caf\xe9"  # Latin-1, which is no UTF-8
WITH_ODD_WORD: tuple[tuple[list[bytes], int], ...] = (
    ([b"explain", ODD, b"--output", b"o.json"], 0),
    ([b"lint", ODD, b"--output", b"o.json"], 0),
    ([b"merge", ODD, b"--output", b"o.json"], 3),
    ([b"run", b"--verdict", b"o.json", b"--", b"sh", b"-c", b"exit 5", ODD], 5),
    ([b"preflight", b"--level", b"instant", b"--only", b"environment", b"--output", b"o.json"], 3),
    ([b"history", b"--store", ODD + b".db", b"--output", b"o.json"], 0),
)


def test_bytes_that_are_no_text_stand_in_documents_as_escapes() -> None:
    Path(os.fsdecode(ODD)).write_text("print(1)\n")
    Path(os.fsdecode(ODD + b".db")).touch()
    for argv, status in WITH_ODD_WORD:
        done = subprocess.run(
            [os.fsencode(sys.executable), b"-m", b"gpudiag", *argv],
            env={**os.environb, b"CUDA_VISIBLE_DEVICES": ODD},
            capture_output=True,
            check=False,
        )
        assert done.returncode in (status, ExitStatus.FAIL), (argv, done.stderr)
        assert b"UnicodeEncodeError" not in done.stderr, argv
        assert b"bug of gpudiag" not in done.stderr, argv
        text = Path("o.json").read_bytes()
        assert json.loads(text)
        assert rb"caf\\udce9" in text, argv
        Path("o.json").unlink()


@pytest.mark.sliced
def test_letters_that_the_terminal_lacks_are_escaped_and_json_stays_json() -> None:
    text = "RuntimeError: 错误 \U0001f525 CUDA error: out of memory"
    Path("job.log").write_text(f"{text}\n", encoding="utf-8")
    for encoding in (
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1"},
        {"PYTHONIOENCODING": "gbk"},
    ):
        for argv in (
            ["explain", "job.log"],
            ["explain", text],
            ["explain", text, "--json"],
            ["explain", "错误"],
        ):
            done = subprocess.run(
                [sys.executable, "-m", "gpudiag", *argv],
                env={**os.environ, **encoding},
                capture_output=True,
                check=False,
            )
            assert done.returncode in (ExitStatus.PASS, ExitStatus.USAGE), (encoding, argv, done.stderr)
            if "--json" in argv:
                assert "\U0001f525" in str(json.loads(done.stdout.decode(encoding["PYTHONIOENCODING"])))


# What a file may hold that is not what its reader wants.
CONTENTS = {
    "binary": bytes(range(256)) * 40,
    "empty": b"",
    "nothing but zeros": bytes(4096),
    "a text": b"hello world\n",
    "a text in UTF-16": "hello world\n".encode("utf-16"),
    "JSON, cut short": b'{"schema": "gpudiag.report/1", ',
    "JSON of another program": b'{"a": [1, 2]}',
    "a list": b"[]",
    "null": b"null",
    "no number": b'{"schema": NaN}',
    "a number without end": b"1e999999",
    "a number of 5000 digits": b'{"schema": ' + b"9" * 5000 + b"}",
    "a schema of tomorrow": b'{"schema": "gpudiag.report/99"}',
    "nested too deep": b"[" * 100_000,
}
READERS_OF_CONTENTS = (
    ["lint", "@"],
    ["explain", "@"],
    ["judge", "@"],
    ["merge", "@"],
    ["merge", "@", "@"],
    ["compare", "@", "@"],
    ["receipt", "@"],
    ["simulate", "@", "--", "true"],
    ["demo", "@"],
    ["deploy", "--nhc", "@"],
    ["nccl-test", "--localise", "--labels", "@", "--backend", "gloo", "--nproc", "4"],
    ["serve", "--port", "0", "--token-file", "@"],
    ["serve", "--port", "0", "--tls-cert", "@", "--tls-key", "@"],
    ["serve", "--port", "0", "--hub", "gpu1", "--hub-ca", "@"],
    ["preflight", "--level", "instant", "--expect", "@"],
)
# A text may be a script, a log, or lines that NHC does not know either.
JUDGED = (
    "lint",
    "explain",
    "deploy",
)


@pytest.mark.parametrize("argv", READERS_OF_CONTENTS, ids=" ".join)
def test_contents_that_cannot_be_used_are_refused_in_words(argv: list[str], capsys: Any) -> None:
    for suffix in (".json", ".toml", ""):
        for kind, content in CONTENTS.items():
            path = Path(f"given{suffix}")
            path.write_bytes(content)
            path.chmod(0o600)
            status = main([str(path) if word == "@" else word for word in argv])
            told = capsys.readouterr()
            assert status in (2, 3) or (argv[0] in JUDGED and status in (0, 1)), (kind, suffix, told)
            assert told.err.startswith("gpudiag: ") if status == 2 else told.out, (kind, suffix, told.err)
            for words in ("internal error", "Traceback", "[Errno", "_ssl.c"):
                assert words not in told.out + told.err, (kind, suffix, told.err)


def test_a_file_in_the_way_that_is_no_text_is_not_replaced(capsys: Any) -> None:
    Path("site").mkdir()
    Path("site/prolog.sh").write_bytes(b"\xff\xfe")
    assert main(["deploy", "slurm", "--output", "site"]) == ExitStatus.USAGE
    assert "prolog.sh exists and differs" in capsys.readouterr().err
    assert Path("site/prolog.sh").read_bytes() == b"\xff\xfe"


def test_a_document_that_is_nested_too_deeply_is_refused_in_words(capsys: Any) -> None:
    deep = "[" * 100_000
    contents = {
        "lines.json": f"{deep}\n{deep}\n",
        "a.toml": f"a = {deep}",
        "a.ipynb": f'{{"nbformat": 4, "cells": {deep}',
        "a.log": f'{{"message": {"[" * 5000}{"]" * 5000}}}\n',
        "error.json": f'{{"message": {"[" * 5000}{"]" * 5000}}}\n',
        "a.py": f"import torch.distributed as dist\na = {'(' * 5000}1{')' * 5000}\n",
    }
    for name, text in contents.items():
        Path(name).write_text(text)
    for argv in (
        ["merge", "lines.json"],
        ["simulate", "a.toml"],
        ["lint", "a.ipynb"],
        ["lint", "a.py"],
        ["explain", "a.log", "error.json"],
    ):
        assert main(argv) != ExitStatus.INTERNAL, (argv, capsys.readouterr().err[:300])
