import json

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.codec import dumps
from gpudiag.model.finding import Outcome
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.render.reports import make_finding, make_report, make_result

RESULTS = {
    "pass": make_result("gpu.lost"),
    "warn": make_result("host.shm", Outcome.WARN, make_finding("host.shm", Outcome.WARN)),
    "fail": make_result("gpu.lost", Outcome.FAIL, make_finding()),
    "error": make_result("torch.build", Outcome.ERROR, reason="torch hangs"),
}


@pytest.fixture
def reports(tmp_path):
    """The path of a machine's report for each verdict, and of one that is not there."""
    paths = {"missing": str(tmp_path / "missing.json")}
    for name, result in RESULTS.items():
        path = tmp_path / f"{name}.json"
        path.write_text(dumps(make_report(result, snapshot=make_snapshot(make_device(0), host=name))))
        paths[name] = str(path)
    return paths


@pytest.mark.parametrize(
    ("names", "status"),
    [
        (["pass"], ExitStatus.PASS),
        (["pass", "warn"], ExitStatus.PASS),
        (["pass", "fail"], ExitStatus.FAIL),
        (["pass", "error"], ExitStatus.ERROR),
        (["pass", "missing"], ExitStatus.ERROR),
        (["fail", "error", "missing"], ExitStatus.FAIL),
    ],
)
def test_the_exit_status_is_that_of_the_worst(reports, names, status, capsys):
    assert main(["merge", *(reports[name] for name in names)]) == status
    assert f" {len(names)} machine" in capsys.readouterr().out.splitlines()[0]


def test_reports_of_which_none_is_there_are_a_mistyped_name(reports, capsys):
    assert main(["merge", reports["missing"], reports["missing"] + "x"]) == ExitStatus.USAGE
    assert "no such file" in capsys.readouterr().err


def test_json_is_one_document_and_output_the_same(reports, tmp_path, capsys):
    file = tmp_path / "merged.json"
    assert (
        main(["merge", "--json", "--output", str(file), reports["pass"], reports["fail"]]) == ExitStatus.FAIL
    )
    printed = capsys.readouterr().out
    assert printed == file.read_text()
    document = json.loads(printed)
    assert (document["schema"], document["verdict"]) == ("gpudiag.merged/1", "fail")
    assert [group["machines"] for group in document["groups"]] == [["fail"]]


def test_no_report_is_a_mistake(capsys):
    assert main(["merge"]) == ExitStatus.USAGE
    assert "missing argument" in capsys.readouterr().err
