"""The anonymous form of a report: whatever a machine, its users or its network are called, nothing of it is
in there.
"""

import re
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest

from gpudiag.model.codec import dumps
from gpudiag.model.device import Device, Snapshot
from gpudiag.model.reading import Missing
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.machine_file import base_machines, build_blueprint, read_layers
from tests.recorded_machines import MACHINES
from tests.scenarios.situations import look_at_machine
from tests.unit.confirm_on_gpu.recorded_run import run_recorded
from tools.confirm_on_gpu.anonymous import digest_of, main, make_anonymous, without_private
from tools.confirm_on_gpu.public_text import TEXTS
from tools.confirm_on_gpu.report import Confirmation

PRIVATE = {
    "host": "node17",
    "whole name of a host": "node17.cluster.example.com",
    "user": "ann",
    "IPv4 address": "10.20.30.40",
    "address like a version": "6.1.20.7",
    "IPv6 address": "fd00:1234::17",
    "MAC address": "0c:42:a1:5e:7d:10",
    "GUID of a port": "0c42:a103:005e:7d10",
    "serial number": "1650000000017",
    "serial number with letters": "SN0042B7",
    "UUID of a GPU": "GPU-5e100000-0000-4000-8000-000000000017",
    "UUID of a boot": "26cd85ff-c328-4f21-a063-16453b02b82b",
    "container": "4f1c" * 16,
    "path": "/home/ann/job/train.py",
    "mail address": "ann@example.com",
    "batch job": "Slurm job 4711",
    "token": "hf_" + "a1B2" * 8,
}
# How it stands in a text: alone, behind or before what was there, or in its middle.
PLACES = {
    "alone": lambda text, word: word,
    "behind": lambda text, word: f"{text} {word}",
    "joined": lambda text, word: f"{text}-{word}",
    "before": lambda text, word: f"{word} {text}",
    "in brackets": lambda text, word: f"{text} ({word})",
}


@pytest.fixture(scope="module", params=MACHINES)
def recorded(request, tmp_path_factory) -> tuple[Confirmation, Snapshot]:
    return run_recorded(request.param, tmp_path_factory.mktemp("run") / "folder")


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Confirmation:
    return run_recorded("h100", tmp_path_factory.mktemp("run") / "folder")[0]


def is_in(word: str, text: str) -> bool:
    """Whether the word is in there, and not as a part of another one."""
    return re.search(rf"(?<![a-zA-Z0-9]){re.escape(word)}(?![a-zA-Z0-9])", text) is not None


def plant(value: Any, change: Any) -> Any:
    """The value with every text changed: those of fields, of reasons, and of keys; enumerations stay."""
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Missing):
        return replace(value, detail=change(value.detail))
    if isinstance(value, tuple):
        # A list of texts gets one more, and an empty one its first.
        return (*(plant(one, change) for one in value), *([change("")] if all_texts(value) else []))
    if isinstance(value, dict):
        return {change(str(key)): plant(one, change) for key, one in value.items()} | {
            change("key"): change("")
        }
    if is_dataclass(value):
        return type(value)(**{one.name: plant(getattr(value, one.name), change) for one in fields(value)})
    return value


def all_texts(value: tuple[Any, ...]) -> bool:
    return bool(value) and all(isinstance(one, str) for one in value)


def test_nothing_private_that_stands_anywhere_in_a_report_is_in_its_form(recorded):
    report, machine = recorded
    left = []
    for kind, word in PRIVATE.items():
        for place, put in PLACES.items():
            planted = [
                plant(noun, lambda text, put=put, word=word: put(text, word)) for noun in (report, machine)
            ]
            assert all(word in dumps(noun) for noun in planted)
            text = dumps(make_anonymous(*planted))
            if is_in(word, text):
                left.append((kind, place))
    assert left == []


@pytest.mark.parametrize("name", ["h100-mig", "gb200x4", "wsl2-rtx", "vgpu"])
def test_of_other_kinds_of_machine_too(name, report):
    """With MIG instances, a fabric, a driver of another system: parts of a record that one GPU in a virtual
    machine lacks.
    """
    machine = look_at_machine(name)
    left = []
    for kind, word in PRIVATE.items():
        for place in ("alone", "behind"):
            planted = plant(machine, lambda text, word=word, place=place: PLACES[place](text, word))
            if is_in(word, dumps(make_anonymous(report, planted))):
                left.append((kind, place))
    assert left == []
    form = make_anonymous(report, machine)
    ours = {str(device.id.uuid) for device in machine.devices} | {
        str(device.serial) for device in machine.devices
    }
    assert [word for word in ours if word in dumps(form)] == []
    assert [gpu for gpu in form.gpu_names if "without" in gpu] == []


def test_the_form_of_a_real_machine_keeps_what_its_gpus_read(recorded):
    report, machine = recorded
    form = make_anonymous(report, machine)
    lost = {
        one.name
        for before, after in zip(machine.devices, form.machine.devices, strict=True)
        for one in fields(Device)
        if not isinstance(getattr(before, one.name), Missing)
        and isinstance(getattr(after, one.name), Missing)
    }
    assert lost == {"serial", "processes"}
    same = ("driver_version", "torch_version", "cuda_runtime_version", "nccl_version", "outcome", "seconds")
    assert [name for name in same if getattr(form, name) != getattr(report, name)] == []
    assert [step.name for step in form.steps] == [step.name for step in report.steps]
    assert [check.check for check in form.checks] == [check.check for check in report.checks]
    assert [(check.codes, check.read) for check in form.checks] == [
        (check.codes, check.read) for check in report.checks
    ]
    assert len(form.readings) == len(report.readings) > 60
    assert {speed.name for speed in form.speeds} >= {"memory_copy", "matmul.bfloat16"}
    assert form.machine.views[0].uuid == form.machine.devices[0].id.uuid
    assert form.gpudiag_version == report.gpudiag_version
    assert not form.simulated


def test_a_form_has_nothing_more_to_leave_out(recorded):
    form = make_anonymous(*recorded)
    assert without_private(form) == form
    assert digest_of(form) == form.digest


def test_the_names_of_every_simulated_machine_may_leave():
    """What makers call their GPUs, boards and processors is known, word by word.

    A new machine needs its words.
    """
    stayed = []
    for spec in base_machines():
        scenario = load_scenario(spec)
        for gpu in scenario.gpus:
            texts = {name: text for name, text in gpu.readings.items() if isinstance(text, str)}
            stayed += [
                f"{spec}: {name} {text!r}"
                for name, text in texts.items()
                if (keep := TEXTS.get(("Device", name))) is not None and keep(text) is None
            ]
        host = build_blueprint(read_layers(spec), spec).host
        for name in ("processor", "operating_system", "kernel_release", "processor_architecture"):
            text = getattr(host, name)
            if text and TEXTS["Machine", name](text) is None:
                stayed.append(f"{spec}: {name} {text!r}")
    assert stayed == []


def test_the_form_of_an_older_report_is_made_from_its_folder(recorded, tmp_path, capsys):
    report, machine = recorded
    (tmp_path / "report.json").write_text(dumps(report))
    (tmp_path / "machine.json").write_text(dumps(machine))
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "anonymous.json")
    assert report.python not in (tmp_path / "anonymous.json").read_text()
    (tmp_path / "machine.json").write_text('{"schema": "gpudiag.snapshot/1"}')
    assert main([str(tmp_path)]) == 2
    assert "no anonymous form" in capsys.readouterr().err
