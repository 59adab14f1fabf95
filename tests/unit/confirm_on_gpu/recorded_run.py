"""A run of `make gpu` whose steps print what two real GPUs gave (tests/corpus/machines), read by the readers
of the real steps.
"""

import json
from dataclasses import replace
from pathlib import Path

from gpudiag.model.codec import decode
from gpudiag.model.device import Snapshot
from gpudiag.model.documents import loads
from tests.recorded_machines import read_recorded
from tools.confirm_on_gpu.plan import LOOK, STEPS
from tools.confirm_on_gpu.report import Confirmation
from tools.confirm_on_gpu.run import Run

# What each of these steps printed on the real machine.
RECORDED = {
    "machine": "machine.json",
    "nvidia_smi": "nvidia-smi.xml",
    "preflight": "preflight-standard.json",
    "bandwidth": "bandwidth.json",
}


def run_recorded(name: str, folder: Path) -> tuple[Confirmation, Snapshot]:
    """The report and the record that the run leaves in the folder, of the day of the recording."""
    outputs = folder / "recorded"
    outputs.mkdir(parents=True)
    run = Run(folder.resolve(), 600.0)
    for step in STEPS:
        file = RECORDED.get(step.name)
        if file is not None:
            (outputs / file).write_text(read_recorded(f"{name}/{file}"))
            run.take(replace(step, command=("cat", str(outputs / file)), needs=()))
        elif step.name == "readings":
            run.take(step)
    assert run.seen[0].name == LOOK.name
    run.write(finished=True)
    return read_folder(folder)


def read_folder(folder: Path) -> tuple[Confirmation, Snapshot]:
    """The report and the record of a folder."""
    document = json.loads((folder / "report.json").read_text())
    machine = loads((folder / "machine.json").read_text())
    assert isinstance(machine, Snapshot)
    report = decode(Confirmation, document)
    return replace(report, started_at=machine.taken_at), machine
