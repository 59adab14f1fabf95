"""`gpudiag lint` as a person and a CI run it: text, documents, annotations, fixes and exit statuses."""

import json
import re

import jsonschema
import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.lint.rules import BY_CODE, RULES
from gpudiag.model.documents import json_schema, loads
from gpudiag.model.lint import LintReport
from tests.cli.sarif import SARIF

SHUFFLED = BY_CODE["lint.shuffle_with_sampler"].read_examples()
NOTE = BY_CODE["lint.destroy_missing"].read_examples()


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train me.py"
    path.write_text(SHUFFLED.wrong)
    return path


def run(capsys, *argv: str) -> tuple[int, str, str]:
    status = main(["lint", *argv])
    done = capsys.readouterr()
    return status, done.out, done.err


def test_a_finding_fails_and_has_its_line_reason_and_fix(script, capsys) -> None:
    status, out, _ = run(capsys, str(script))
    assert status == ExitStatus.FAIL
    assert re.search(r"train me\.py:6:\s+FINDING\s+lint\.shuffle_with_sampler", out)
    assert "shuffle=False" in out
    assert "why: " in out
    assert "1 finding, 0 notes in 1 file" in out
    long = [line for line in out.splitlines() if len(line) > 80 and str(script.parent) not in line]
    assert long == []


def test_notes_do_not_fail_and_a_clean_file_is_silent(tmp_path, capsys) -> None:
    path = tmp_path / "a.py"
    path.write_text(NOTE.wrong)
    status, out, _ = run(capsys, str(path))
    assert status == ExitStatus.PASS
    assert "NOTE lint.destroy_missing" in " ".join(out.split())
    path.write_text(NOTE.right)
    status, out, _ = run(capsys, str(path))
    assert status == ExitStatus.PASS
    assert out == "0 findings, 0 notes in 1 file.\n"


def test_files_that_cannot_be_read_end_nothing_and_are_not_called_clean(script, tmp_path, capsys) -> None:
    binary, empty = tmp_path / "b.py", tmp_path / "e.py"
    binary.write_bytes(b"\0\1")
    empty.write_bytes(b"")
    assert run(capsys, str(empty))[0] == ExitStatus.PASS
    status, out, _ = run(capsys, str(binary))
    assert status == ExitStatus.ERROR
    assert "not read: it is binary" in " ".join(out.split())
    status, out, err = run(capsys, str(binary), str(script), str(tmp_path / "gone.py"))
    assert status == ExitStatus.USAGE
    assert "gone.py: no such file" in err
    assert "lint.shuffle_with_sampler" in out
    assert run(capsys, str(binary), str(script))[0] == ExitStatus.FAIL


def test_a_folder_stands_for_its_scripts(script, tmp_path, capsys) -> None:
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "a.py").write_text(SHUFFLED.wrong)
    (tmp_path / "notes.txt").write_text("no script")
    status, out, _ = run(capsys, "--json", str(tmp_path))
    assert status == ExitStatus.FAIL
    assert [file["path"] for file in json.loads(out)["files"]] == [str(script)]


def test_the_document_has_its_schema_and_comes_back(script, tmp_path, capsys) -> None:
    kept = tmp_path / "lint.json"
    _, out, _ = run(capsys, "--format", "json", str(script), "--output", str(kept))
    assert json.loads(out)["schema"] == "gpudiag.lint/2"
    jsonschema.validate(json.loads(out), json_schema("gpudiag.lint/2"))
    report = loads(out)
    assert isinstance(report, LintReport)
    assert report.findings[0].line == 6
    assert kept.read_text() == out


def test_sarif_is_valid_and_points_at_rules_and_places(script, tmp_path, capsys) -> None:
    (tmp_path / "broken.py").write_text("import torch.distributed\ndef\n")
    (tmp_path / "binary.py").write_bytes(b"\0")
    _, out, _ = run(capsys, "--format", "sarif", str(tmp_path))
    log = json.loads(out)
    jsonschema.validate(log, SARIF)
    [job] = log["runs"]
    assert [rule["id"] for rule in job["tool"]["driver"]["rules"]] == [rule.code for rule in RULES]
    for result in job["results"]:
        assert job["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert {result["ruleId"] for result in job["results"]} == {
        "lint.shuffle_with_sampler",
        "lint.syntax_error",
    }
    places = [r["locations"][0]["physicalLocation"] for r in job["results"]]
    assert any(place["artifactLocation"]["uri"].endswith("/train%20me.py") for place in places)
    assert "binary" in job["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"]
    [fix] = [result for result in job["results"] if "fixes" in result]
    [replaced] = fix["fixes"][0]["artifactChanges"][0]["replacements"]
    region = replaced["deletedRegion"]
    line = script.read_text().splitlines()[region["startLine"] - 1]
    assert line[region["startColumn"] - 1 : region["endColumn"] - 1] == "True"


def test_annotations_stand_one_a_line_and_cannot_be_steered(tmp_path, capsys) -> None:
    path = tmp_path / "a,b:c%.py"
    path.write_text(SHUFFLED.wrong)
    _, out, _ = run(capsys, "--format", "github", str(path))
    [line] = out.splitlines()
    assert line.startswith("::error file=")
    assert ",line=6,col=" in line
    assert "a%2Cb%3Ac%25.py" in line


def test_a_diff_changes_nothing_and_a_fix_is_shown_first(script, capsys) -> None:
    before = script.read_text()
    status, out, err = run(capsys, "--diff", str(script))
    assert status == ExitStatus.FAIL
    assert "+    return DataLoader" in out
    assert "--fix would fix 1 mistake" in err
    assert script.read_text() == before
    status, out, err = run(capsys, "--fix", str(script))
    assert status == ExitStatus.PASS
    assert out.index("+    return DataLoader") < out.index("0 findings")
    assert "fixed 1 mistake" in err
    assert "shuffle=False" in script.read_text()
    assert "no certain fix" in run(capsys, "--fix", str(script))[2]


def test_what_steers_a_terminal_is_taken_out(tmp_path, capsys) -> None:
    path = tmp_path / "a.py"
    path.write_text(SHUFFLED.wrong.replace("batch_size=32,", "batch_size='\x1b[2J\u202e',"))
    for argv in ((), ("--diff",), ("--format", "github")):
        assert not set("\x1b\u202e") & set(run(capsys, *argv, str(path))[1]), argv


def test_wrong_arguments_are_a_usage_error(capsys) -> None:
    assert main(["lint"]) == ExitStatus.USAGE
    assert main(["lint", "--format", "xml", "a.py"]) == ExitStatus.USAGE
    capsys.readouterr()


def test_a_rule_is_explained_with_its_examples(capsys) -> None:
    assert main(["explain", "lint.shuffle_with_sampler"]) == ExitStatus.PASS
    out = capsys.readouterr().out
    assert out.startswith("lint.shuffle_with_sampler: ")
    assert "shuffle=(sampler is None)" in out
    assert main(["explain", "--json", "lint.shuffle_with_sampler"]) == ExitStatus.PASS
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, json_schema("gpudiag.explanation/1"))
