"""`tools/accept_confirmation`: a form of a real machine is accepted once.

One that is changed, private or contradicts itself is not.
"""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpudiag.model.codec import dumps
from gpudiag.model.documents import noun_schema
from gpudiag.model.finding import Outcome
from tests.unit.confirm_on_gpu.recorded_run import read_folder, run_recorded
from tools.accept_confirmation import CORPUS, ROOT, find_reasons, main, read_form
from tools.confirm_on_gpu.anonymous import digest_of, make_anonymous
from tools.confirm_on_gpu.report import AnonymousConfirmation, StartTime
from tools.write_readme import TABLE_PAGE, confirmed_rows, confirmed_table, part_of

ECC = "ecc.uncorrected"
Change = Callable[[AnonymousConfirmation], AnonymousConfirmation]


@pytest.fixture(scope="module")
def form(tmp_path_factory) -> AnonymousConfirmation:
    """The form of a real H100, of a driver that the table does not have."""
    report, machine = run_recorded("h100", tmp_path_factory.mktemp("run") / "folder")
    return of_driver(make_anonymous(replace(report, python_version="3.12.3"), machine), "580.200.01")


def of_driver(form: AnonymousConfirmation, driver: str) -> AnonymousConfirmation:
    machine = replace(
        form.machine,
        driver_version=driver,
        nvml_version=f"13.{driver}",
        machine=replace(form.machine.machine, kernel_driver_version=driver),
    )
    return sealed(replace(form, driver_version=driver, machine=machine))


def sealed(form: AnonymousConfirmation) -> AnonymousConfirmation:
    return replace(form, digest=digest_of(form))


@pytest.fixture
def root(tmp_path) -> Path:
    """A repository with what is written to."""
    root = tmp_path / "repository"
    for name in ("README.md", TABLE_PAGE, f"{CORPUS}/README.md"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root


def written(form: AnonymousConfirmation, folder: Path, name: str = "anonymous.json") -> Path:
    path = folder / name
    path.write_text(dumps(form, indent=1))
    return path


def test_a_form_is_accepted_and_then_it_is_there(form, root, tmp_path, capsys):
    path = written(form, tmp_path)
    jsonschema.validate(json.loads(path.read_text()), noun_schema(AnonymousConfirmation))
    before = (root / "README.md").read_text()
    assert main([str(path), "--check"], root) == 0
    assert (root / "README.md").read_text() == before
    assert main([str(path)], root) == 0
    told = capsys.readouterr().out
    folder = root / CORPUS / "h100-80gb-hbm3-x1-580.200.01"
    assert f"written: {folder.relative_to(root)}/machine.json.gz" in told

    assert read_form(folder / "confirmation.json.gz") == form
    with gzip.open(folder / "machine.json.gz", "rt") as file:
        assert file.read() == dumps(form.machine) + "\n"
    assert (root / CORPUS / "README.md").read_text().count(folder.name) == 2
    page = (root / TABLE_PAGE).read_text()
    rows = confirmed_rows(page)
    assert len(rows) == len(confirmed_rows((ROOT / TABLE_PAGE).read_text())) + 1
    assert rows[-1].count("|") == rows[0].count("|") == 9
    assert "1x NVIDIA H100 80GB HBM3 | 580.200.01 | 2.11.0+cu130 |" in rows[-1]
    assert "62 of" in rows[-1]
    assert part_of((root / "README.md").read_text(), "confirmed") == confirmed_table(root)
    assert "580.200.01" in confirmed_table(root)

    assert main([str(path)], root) == 1
    assert "it is there already" in capsys.readouterr().err
    again = sealed(replace(form, seconds=form.seconds + 1))
    assert [*find_reasons(again, root)] == [
        f"{TABLE_PAGE} has these GPUs with this driver, torch, NCCL and gpudiag already"
    ]
    newer = of_driver(form, "581.01")
    assert main([str(written(newer, tmp_path, "newer.json"))], root) == 0


def changed(**changes: Any) -> Change:
    return lambda form: replace(form, **changes)


def of_machine(**changes: Any) -> Change:
    return lambda form: replace(form, machine=replace(form.machine, **changes))


def of_gpu(**changes: Any) -> Change:
    return lambda form: replace(
        form,
        machine=replace(form.machine, devices=tuple(replace(one, **changes) for one in form.machine.devices)),
    )


def of_check(name: str, **changes: Any) -> Change:
    return lambda form: replace(
        form,
        checks=tuple(replace(one, **changes) if one.check == name else one for one in form.checks),
    )


def of_reading(name: str, outcome: str) -> Change:
    return lambda form: replace(
        form,
        readings=tuple(
            replace(one, outcome=outcome) if one.reading == name else one for one in form.readings
        ),
    )


def of_speed(**changes: Any) -> Change:
    return lambda form: replace(form, speeds=(replace(form.speeds[0], **changes), *form.speeds[1:]))


def of_step(name: str, outcome: Outcome) -> Change:
    return lambda form: replace(
        form, steps=tuple(replace(one, outcome=outcome) if one.name == name else one for one in form.steps)
    )


WRONG: dict[str, tuple[Change, str]] = {
    "not finished": (changed(finished=False), "did not finish"),
    "a name of the host": (of_machine(host="node17"), "may not leave a machine, in machine.host"),
    "a serial number": (of_gpu(serial="1650000000017"), "in machine.devices[0].serial"),
    "a user's command": (
        changed(starts=(StartTime("python /home/ann/train.py", 1.0, 1.0, 3),)),
        "in starts[0].command",
    ),
    "simulated": (changed(simulated=True), "simulated machine"),
    "a simulated record": (of_machine(simulated="a simulated machine"), "simulated machine"),
    "the stand-in for CUDA": (changed(torch_version="2.13.0+cu128.stand.in"), "simulated machine"),
    "no driver": (changed(driver_version=None), "it has no version of driver"),
    "a version that is left out": (changed(gpudiag_version="left out"), "it has no version of gpudiag"),
    "a newer gpudiag": (changed(gpudiag_version="9.0.0"), "is newer than this one"),
    "an old Python": (changed(python_version="3.8.10"), "does not run with Python 3.8.10"),
    "an old torch": (changed(torch_version="2.1.0"), "does not test torch 2.1.0"),
    "two drivers": (changed(driver_version="570.86.15"),
        "the driver is 570.86.15 in the report and 580.200.01"),
    "two torches": (changed(torch_version="2.13.0+cu130"), "the torch is 2.13.0+cu130 in the report"),
    "two CUDAs": (changed(cuda_runtime_version="12.8"), "is built for CUDA 13.0, and not 12.8"),
    "an NVML of another driver": (of_machine(nvml_version="12.570.86.15"),
        "NVML 12.570.86.15 is not of driver"),
    "a day to come": (changed(day="2099-01-01"), "has not come yet"),
    "a record of another day": (changed(day="2026-01-01"), "the machine was recorded on 2026-11-26"),
    "a step longer than the run": (
        lambda form: replace(form, seconds=300.0, steps=(*form.steps[:-1],
            replace(form.steps[-1], seconds=400.0))),
        "a step took 400 s, and the whole run 300 s",
    ),
    "no GPU": (of_machine(devices=()), "it has no GPU"),
    "another product": (of_gpu(name="NVIDIA A100-SXM4-80GB"), "has compute capability 8.0, and not 9.0"),
    "another architecture": (of_gpu(architecture="ampere"), "is of ampere, and has compute capability 9.0"),
    "another size of memory": (of_gpu(memory_total_bytes=40 * 1024**3), "has 80 GiB of memory, and not 40"),
    "more used than there is": (of_gpu(memory_used_bytes=10**12), "uses 1000000000000 of"),
    "a better outcome": (of_step("preflight", Outcome.FAIL), "and not the worst of its steps'"),
    "a step twice": (lambda form: replace(form, steps=(*form.steps, form.steps[-1])), "has each once"),
    "a step that shows nothing": (changed(checks=()), "step preflight is pass and shows nothing"),
    "a step that did not run": (of_step("readings", Outcome.SKIP), "step readings did not run and shows"),
    "a reading that is not nvidia-smi's": (of_reading("vbios_version", "differs"),
        "not as nvidia-smi has them: vbios"),
    "checks worse than their step": (
        of_check(ECC, outcome=Outcome.FAIL, codes=("ecc.uncorrected_volatile",)),
        "step preflight is pass, and its checks are fail",
    ),
    "a pass with a finding": (of_check(ECC, codes=("ecc.uncorrected_volatile",)),
        "is pass, and has findings"),
    "a warning without one": (of_check(ECC, outcome=Outcome.WARN),
        "ecc.uncorrected is warn, and has no finding"),
    "read, and not": (
        of_check(ECC, read=("ecc_mode",), missing={"ecc_mode": "not_supported"}),
        "ecc.uncorrected read ecc_mode, and did not",
    ),
    "a reading that no GPU has": (of_check(ECC, read=("fan_speed_percent",)),
        "which no GPU of the machine supports"),
    "a check twice": (lambda form: replace(form, checks=(*form.checks, form.checks[0])),
        "a check is in it twice"),
    "a speed of 0": (of_speed(gpudiag=(0.0,)), "a speed of 0 or less"),
    "another ratio": (of_speed(loop=(1e12,), ratio=0.99), "has the ratio 0.99, and its speeds have"),
}  # fmt: skip


def test_a_form_that_contradicts_itself_or_shows_too_much_is_refused(form, root):
    assert find_reasons(form, root) == []
    accepted = {}
    for case, (change, reason) in WRONG.items():
        reasons = find_reasons(sealed(change(form)), root)
        if not any(reason in one for one in reasons):
            accepted[case] = reasons
    assert accepted == {}


def edited(form: AnonymousConfirmation, **changes: Any) -> str:
    return json.dumps(json.loads(dumps(form)) | changes)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda form: edited(form, seconds=12345.0), "its digest is not that of its content"),
        (lambda form: edited(form, note="by ann on node17"), "what this form does not have: note"),
        (
            lambda form: edited(form, schema="gpudiag.confirmation/2"),
            "and not gpudiag.anonymous_confirmation/1",
        ),
        (lambda form: edited(form, outcome="fine"), "outcome"),
        (lambda form: dumps(form)[:-100], "it cannot be read"),
        (lambda form: "[]", "its schema is None"),
        (lambda form: "", "it cannot be read"),
    ],
)
def test_a_file_that_is_no_whole_form_is_refused_in_a_sentence(form, root, tmp_path, capsys, make, reason):
    path = tmp_path / "anonymous.json"
    path.write_text(make(form))
    before = {one: one.read_bytes() for one in root.rglob("*") if one.is_file()}
    assert main([str(path)], root) == 1
    told = capsys.readouterr().err
    assert "refused" in told
    assert reason in told
    assert {one: one.read_bytes() for one in root.rglob("*") if one.is_file()} == before


def test_the_folder_that_make_gpu_leaves_has_the_form(tmp_path, capsys):
    """As a user gets it: packed or not, and refused with what is wrong where the day is another than the
    recording's.
    """
    folder = tmp_path / "folder"
    run_recorded("h200", folder)
    from tools.confirm_on_gpu.__main__ import shared_line

    assert str(folder / "anonymous.json") in shared_line(folder)
    form = read_form(folder / "anonymous.json")
    packed = tmp_path / "anonymous.json.gz"
    packed.write_bytes(gzip.compress((folder / "anonymous.json").read_bytes()))
    assert read_form(packed) == form
    report, machine = read_folder(folder)
    assert form.machine == make_anonymous(report, machine).machine
