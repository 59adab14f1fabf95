"""`preflight --receipt`, `receipt` and `compare` as commands: files, exit statuses, and one sentence for each
mistake.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpudiag.cli.main import main
from gpudiag.errors import ExitStatus
from gpudiag.model.codec import dumps
from gpudiag.runs.receipt import write_receipt
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.runs.receipts import a_receipt, make_report


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A receipt and its page, one of a machine with another driver, a report, a snapshot, and what is none of
    these.
    """
    folder = tmp_path_factory.mktemp("documents")
    document, page = write_receipt(folder / "node17", a_receipt())
    later, _ = write_receipt(folder / "later", a_receipt(vbios_version="97.00"))
    report, device = make_report(), make_device(0)
    other = replace(device, id=replace(device.id, uuid="GPU-of-another-machine"))
    paths = {"receipt": document, "page": page, "later": later}
    for name, text in (
        ("report", dumps(report)),
        ("snapshot", dumps(report.snapshot)),
        ("other machine", dumps(make_snapshot(other, host="b2"))),
        ("history", '{"schema": "gpudiag.history/1", "machine": "a1", "store": "s"}'),
        ("unknown", '{"schema": "gpudiag.unknown/1"}'),
        ("text", "not JSON"),
    ):
        paths[name] = folder / f"{name.replace(' ', '_')}.json"
        paths[name].write_text(text)
    return paths


def test_a_preflight_leaves_a_receipt_that_is_whole(tmp_path, capsys):
    name = tmp_path / "node17"
    words = [
        "--level",
        "instant",
        "--only",
        "host",
        "--expect-gpus",
        "0",
        "--store",
        f"sqlite:///{tmp_path}/h.db",
    ]
    assert main(["preflight", *words, "--receipt", str(name)]) in (ExitStatus.PASS, ExitStatus.FAIL)
    capsys.readouterr()
    for file in (name.with_suffix(".json"), name.with_suffix(".html")):
        assert main(["receipt", str(file), "--json"]) == ExitStatus.PASS
        found = json.loads(capsys.readouterr().out)
        assert (found["schema"], found["whole"], found["level"]) == (
            "gpudiag.receipt_check/1",
            True,
            "instant",
        )
    document = json.loads(name.with_suffix(".json").read_text())
    assert {one["check"] for one in document["checks"]} == {
        one["check"] for one in document["report"]["results"]
    }
    assert "gpu.lost" in document["not_run"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sign", "key"], "none is asked for"),
        (["--receipt", "-"], "a receipt is two files"),
        (["--receipt", "no/such/folder/node17"], "cannot write to"),
        (["--receipt", "node17", "--sign", "no_key"], "cannot read no_key"),
        (["--receipt", "node17", "--list"], "does nothing beside --list"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_refused_before_the_work(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["preflight", "--level", "instant", *words]) == ExitStatus.USAGE
    assert said in " ".join(capsys.readouterr().err.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["receipt", "page"])
def test_a_changed_receipt_is_a_fail_everywhere(files, which, tmp_path, capsys):
    changed = tmp_path / files[which].name
    changed.write_bytes(files[which].read_bytes().replace(b"1650000000001", b"1650000000002"))
    assert main(["receipt", str(changed)]) == ExitStatus.FAIL
    assert "it was changed" in capsys.readouterr().out
    assert main(["compare", str(files[which]), str(changed)]) == ExitStatus.FAIL
    assert "receipt: as written -> changed" in " ".join(capsys.readouterr().out.split())


def test_document_page_report_and_snapshot_of_one_look_differ_in_nothing(files, capsys):
    for other in ("receipt", "page", "report", "snapshot"):
        for one in ("receipt", "page"):
            assert main(["compare", str(files[one]), str(files[other])]) == ExitStatus.PASS
            out = capsys.readouterr().out
            assert out.startswith("PASS 0 differences that matter")
    assert "Not compared: checks and speeds" in out


def test_what_differs_is_printed_and_written(files, tmp_path, capsys):
    written = tmp_path / "comparison.json"
    words = ["compare", str(files["receipt"]), str(files["later"]), "--output", str(written)]
    assert main(words) == ExitStatus.PASS  # a WARN
    out = capsys.readouterr().out
    assert out.startswith("WARN 1 difference that matters")
    assert "VBIOS" in out
    [one] = json.loads(written.read_text())["differences"]
    assert (one["whose"], one["where"], one["now"]) == ("gpu", "GPUs 0-7", "97.00")


def test_two_machines_are_told_as_two(files, capsys):
    assert main(["compare", str(files["snapshot"]), str(files["other machine"])]) == ExitStatus.FAIL
    assert "Two machines" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("history", "is not compared"),
        ("unknown", "does not know the schema"),
        ("text", "is not JSON"),
        ("absent", "No such file"),
    ],
)
def test_what_cannot_be_compared_is_one_sentence(files, name, said, capsys):
    path = str(files.get(name, "absent.json"))
    assert main(["compare", str(files["receipt"]), path]) == ExitStatus.USAGE
    assert said in " ".join(capsys.readouterr().err.split())
    if name != "absent":
        assert main(["receipt", path]) == ExitStatus.USAGE
