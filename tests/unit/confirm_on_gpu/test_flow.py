"""`make gpu`: steps that fail, hang, cannot start or lack something cost themselves, and the report holds the
rest.
"""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from gpudiag.cli.main import main as gpudiag_main
from gpudiag.model.documents import noun_schema
from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu import reading
from tools.confirm_on_gpu.__main__ import confirm, main, plan_line
from tools.confirm_on_gpu.plan import LIMIT_SECONDS, LOOK, STEPS, chosen_steps
from tools.confirm_on_gpu.report import AnonymousConfirmation, Confirmation
from tools.confirm_on_gpu.run import REPOSITORY, Run, _grouped
from tools.confirm_on_gpu.step import Need, Output, Step, StepResult
from tools.write_schemas import schema_path, schema_text

MACHINE = (
    {"schema": "gpudiag.snapshot/1", "host": "a1", "simulated": None, "driver_version": "580.1"}
    | {"sources": [{"name": "nvml", "state": "ok", "reason": None}], "disagreements": []}
    | {"devices": [{"nvml_index": 0, "name": "H100", "uuid": "GPU-1", "bus_id": "0:1"}]}
    | {"views": [{"source": "torch", "source_index": 0, "uuid": "GPU-1", "context_starts": True}]}
    | {"torch": {"version": "2.13", "cuda_runtime_version": "13.0", "nccl_version": "2.28.9"}}
)


def python(code: str) -> tuple[str, ...]:
    return ("{python}", "-c", code)


def prints(document: object) -> tuple[str, ...]:
    return python(f"print({json.dumps(document)!r})")


def read_word(output: Output, snapshot: object) -> StepResult:
    return StepResult(Outcome.PASS, json.loads(output.text())["word"])


def a_step(name: str, code: str = 'print(\'{"word": "well"}\')', **changes) -> Step:
    step = Step(
        name=name, confirms=name, command=python(code), seconds=1.0, deadline_seconds=20.0, read=read_word
    )
    return replace(step, **changes)


def look(document: object = MACHINE) -> Step:
    return replace(LOOK, command=prints(document))


def run_steps(folder: Path, *steps: Step, limit: float = 60.0) -> tuple[int, dict[str, dict]]:
    status = confirm(folder, limit, (look(), *steps))
    report = json.loads((folder / "report.json").read_text())
    jsonschema.validate(report, noun_schema(Confirmation))
    return status, {seen["name"]: seen for seen in report["steps"]}


def test_steps_that_end_well_give_0_and_a_report(tmp_path, capsys):
    status, seen = run_steps(tmp_path / "r", a_step("one"), a_step("two"))
    assert status == 0
    assert [(one["outcome"], one["sentence"]) for one in seen.values()][1:] == [("pass", "well")] * 2
    text = (tmp_path / "r" / "report.md").read_text()
    assert "What a1 confirmed: PASS" in text
    assert "1x H100; driver 580.1" in text
    assert "Not finished" not in text
    assert "report.md" in capsys.readouterr().out


def test_a_step_that_fails_crashes_or_cannot_start_costs_only_itself(tmp_path):
    status, seen = run_steps(
        tmp_path / "r",
        a_step("crash", "import sys; sys.exit('the driver is in pieces')"),
        a_step("garbage", "print('{')"),
        a_step("absent", command=("/no/such/program",)),
        a_step("fails", read=lambda output, snapshot: StepResult(Outcome.FAIL, "not as it should be")),
        a_step("last"),
    )
    assert status == 1
    assert [one["outcome"] for one in seen.values()] == ["pass", "fail", "fail", "error", "fail", "pass"]
    assert "the driver is in pieces" in seen["crash"]["sentence"]
    assert "cannot be started" in seen["absent"]["sentence"]


def test_a_hang_costs_its_deadline_and_leaves_no_process(tmp_path):
    pids = tmp_path / "pids"
    code = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "print('about to hang', file=sys.stderr, flush=True)\n"
        "time.sleep(600)\n"
    )
    started = time.monotonic()
    status, seen = run_steps(tmp_path / "r", a_step("hang", code, deadline_seconds=2.0), a_step("after"))
    assert time.monotonic() - started < 90  # not the 600 s of the hang
    assert (status, seen["hang"]["outcome"], seen["after"]["outcome"]) == (1, "fail", "pass")
    assert "did not end within 2 s" in seen["hang"]["sentence"]
    assert "about to hang" in seen["hang"]["sentence"]
    for pid in map(int, pids.read_text().split()):
        assert not is_running(pid)


def test_a_step_that_is_cut_says_how_much_it_had_done(tmp_path):
    """By the events of a command of gpudiag's, by the lines of another.

    What it measured stays in the report.
    """
    events = tmp_path / "r" / "cut.events"
    write = (
        "import json, time\n"
        f"file = open({str(events)!r}, 'w')\n"
        "for event in ({'kind': 'stage', 'stage': 'measure', 'at_seconds': 3.2, 'done': 0, 'planned': 30},"
        " {'kind': 'result', 'at_seconds': 41.0, 'done': 12, 'planned': 30}):\n"
        "    file.write(json.dumps(event) + '\\n')\n"
        'file.write(\'{"kind": "resu\')\n'
        "file.close()\n"
        "time.sleep(600)\n"
    )
    row = {"kind": "fifo", "right": True, "answer": "fail: rank 1", "seconds": 2.5, "steps": [20, 20]}
    lines = (
        f"import json, time\nprint(json.dumps({row!r}), flush=True)\nprint('{{\"ki', flush=True)\n"
        "time.sleep(600)"
    )
    status, seen = run_steps(
        tmp_path / "r",
        a_step("cut", write, deadline_seconds=3.0, events="cut.events"),
        a_step("lines", lines, deadline_seconds=3.0, lines=True, read=reading.read_hangs),
        a_step("neither", "import time; time.sleep(600)", deadline_seconds=1.0, events="no.events"),
    )
    assert status == 1
    assert "it had done 12 of 30 results after 41 s, in stage measure" in seen["cut"]["sentence"]
    assert "until then: 1 of 1 right" in seen["lines"]["sentence"]
    assert "it printed nothing" in seen["neither"]["sentence"]
    assert {one["outcome"] for name, one in seen.items() if name != "machine"} == {"fail"}
    report = json.loads((tmp_path / "r" / "report.json").read_text())
    assert [one["kind"] for one in report["hangs"]] == ["fifo"]


def test_a_step_beside_another_runs_while_that_does(tmp_path):
    """Each waits for the other's file: one after the other they would not end."""
    wait = (
        "import pathlib, time\n"
        "mine, other = pathlib.Path({0!r}), pathlib.Path({1!r})\n"
        "mine.touch()\n"
        "while not other.exists():\n"
        "    time.sleep(0.01)\n"
        'print(\'{{"word": "met"}}\')\n'
    )
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    status, seen = run_steps(
        tmp_path / "r",
        a_step("first", wait.format(one, two)),
        a_step("second", wait.format(two, one), beside="first"),
        a_step("last"),
    )
    assert (status, [one["sentence"] for one in seen.values()][1:]) == (0, ["met", "met", "well"])


def test_a_variable_that_would_be_empty_is_not_set(tmp_path):
    code = "import json, os; print(json.dumps({'word': os.environ.get('LD_PRELOAD', 'none')}))"
    run = Run(tmp_path, 60.0)
    run.take(look())
    assert run.take(a_step("bare", code, environment={"LD_PRELOAD": "{nccl}"})).sentence == "none"


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"  # its new parent has not fetched it yet


def test_what_is_missing_is_said_and_the_step_not_run(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, seen = run_steps(
        tmp_path / "r",
        a_step("smi", needs=(Need.NVIDIA_SMI,)),
        a_step("two", needs=(Need.TWO_GPUS,)),
        a_step("speeds", needs=(Need.SPEEDS,)),
        a_step("cuda", needs=(Need.CUDA,)),
    )
    assert status == 0  # one GPU is no fault
    assert [one["outcome"] for one in seen.values()] == ["pass", "skip", "skip", "skip", "pass"]
    assert "needs nvidia-smi; not found" in seen["smi"]["sentence"]
    assert "torch can use 1 here" in seen["two"]["sentence"]
    assert seen["two"]["stdout"] is None


def test_a_gpu_that_torch_cannot_use_is_no_way_to_look(tmp_path):
    view = {"source": "torch", "source_index": 0, "uuid": "GPU-1", "context_starts": None}
    view["missing_detail"] = {"context_starts": "CUDA error 802: system not yet initialized"}
    status = confirm(
        tmp_path / "r", 60.0, (look(MACHINE | {"views": [view]}), a_step("cuda", needs=(Need.CUDA,)))
    )
    assert status == 3
    assert "error 802" in (tmp_path / "r" / "report.md").read_text()


def test_the_whole_run_has_a_limit(tmp_path):
    status, seen = run_steps(
        tmp_path / "r",
        a_step("slow", "import time; time.sleep(60)", deadline_seconds=60.0),
        a_step("late"),
        limit=3.0,
    )
    assert (status, seen["late"]["outcome"]) == (1, "error")
    assert "the 3 s of the whole run are over" in seen["late"]["sentence"]
    assert seen["slow"]["seconds"] < 50  # not its 60


def test_the_report_is_written_as_the_run_goes(tmp_path):
    code = f"import json; r = json.load(open({str(tmp_path / 'r' / 'report.json')!r}));"
    code += "print(json.dumps({'word': f\"{r['finished']} {[s['name'] for s in r['steps']]}\"}))"
    _, seen = run_steps(tmp_path / "r", a_step("one"), a_step("reads", code))
    assert seen["reads"]["sentence"] == "False ['machine', 'one']"


def test_without_a_gpu_it_says_what_it_would_do_and_ends_with_3(tmp_path, capsys):
    nothing = MACHINE | {"devices": [], "sources": [{"name": "nvml", "state": "failed", "reason": "no NVML"}]}
    assert confirm(tmp_path / "r", 60.0, (look(nothing), *STEPS[1:])) == 3
    told = capsys.readouterr().out
    assert "no NVML" in told
    assert all(f"{step.name}: {step.confirms}" in told for step in STEPS)
    assert not (tmp_path / "r").exists()


def test_a_look_that_hangs_on_a_machine_with_a_gpu_does_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tools.confirm_on_gpu.machine.traces_of_a_gpu", lambda: ("/dev/nvidia0",))
    hung = replace(LOOK, command=python("import time; time.sleep(600)"), deadline_seconds=1.0)
    assert confirm(tmp_path / "r", 60.0, (hung, a_step("after"))) == 1
    seen = json.loads((tmp_path / "r" / "report.json").read_text())["steps"]
    assert [one["outcome"] for one in seen] == ["fail", "pass"]


def test_a_simulated_machine_confirms_nothing_and_the_report_says_so(tmp_path):
    confirm(tmp_path / "r", 60.0, (look(MACHINE | {"simulated": "h100x8"}),))
    assert "SIMULATED h100x8" in (tmp_path / "r" / "report.md").read_text()


def test_a_folder_that_is_there_is_not_written_over(tmp_path, capsys):
    assert confirm(tmp_path, 60.0, (look(),)) == 2
    assert "--output" in capsys.readouterr().err


def test_an_ended_run_takes_its_step_along_and_keeps_the_report(tmp_path):
    folder, pid_file = tmp_path / "r", tmp_path / "pid"
    hang = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    code = (
        "import sys\n"
        "from tests.unit.confirm_on_gpu import test_flow as flow\n"
        "import tools.confirm_on_gpu.__main__ as command\n"
        f"sys.exit(command.watch(lambda: command.confirm(flow.Path({str(folder)!r}), 60.0, "
        f"(flow.look(), flow.a_step('hang', {hang!r})))))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=REPOSITORY, env=os.environ | {"PYTHONPATH": "."}
    )
    deadline = time.monotonic() + 30
    while not (pid_file.exists() and pid_file.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    assert child.wait(30) == 143
    while is_running(int(pid_file.read_text())) and time.monotonic() < deadline + 30:
        time.sleep(0.05)  # killed, and not gone yet
    assert not is_running(int(pid_file.read_text()))
    assert json.loads((folder / "report.json").read_text())["finished"] is False


def test_the_plan_is_sound():
    names = [step.name for step in STEPS]
    assert len(set(names)) == len(names)
    assert LIMIT_SECONDS == 360
    assert all(step.seconds < step.deadline_seconds <= LIMIT_SECONDS for step in STEPS)
    assert all(step.beside is None or step.beside in names[: names.index(step.name)] for step in STEPS)
    assert STEPS[0] is LOOK


def test_all_that_one_gpu_can_show_is_planned_within_the_limit():
    """With an NCCL that lets two ranks share a GPU, and with one that does not."""
    for lacking in (Need.NO_SHARING, Need.SHARING):
        alone = [step for step in STEPS if not {lacking, Need.TWO_GPUS} & set(step.needs)]
        groups = _grouped(alone)
        assert sum(max(step.seconds for step in together) for together in groups) <= LIMIT_SECONDS
        assert "preflight" in {step.name for step in alone}


def test_a_step_that_needs_two_ranks_on_a_gpu_brings_the_one_that_tries_it():
    names = [step.name for step in chosen_steps(["hang_jobs"])]
    assert names == ["machine", "nccl_two_ranks_bare", "hang_jobs"]
    assert [step.name for step in chosen_steps(["nvml_costs"])] == ["machine", "nvml_costs"]


def test_the_plan_says_its_seconds(capsys):
    steps = (LOOK, *(step for step in STEPS if step.name in ("hang_jobs", "service", "nccl_speed")))
    words = plan_line(steps, 360.0)
    assert words == (
        "seconds planned: machine 6, hang_jobs 55, service 55 beside hang_jobs, (nccl_speed 20); "
        "61 of 360 in all"
    )


@pytest.mark.parametrize(
    "step", [step for step in STEPS if "gpudiag" in step.command], ids=lambda step: step.name
)
def test_gpudiag_knows_every_command_of_the_plan(step, capsys):
    assert gpudiag_main([*step.command[step.command.index("gpudiag") + 1 :], "--help"]) == 0
    capsys.readouterr()


def test_unknown_steps_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "there is no step nothing" in capsys.readouterr().err


def test_docs_hold_the_schema():
    for noun in (Confirmation, AnonymousConfirmation):
        assert schema_path(noun.SCHEMA).read_text() == schema_text(noun.SCHEMA), "run: make pages"


def test_a_step_sees_gpudiag_of_the_source_tree_and_one_gpu(tmp_path):
    code = (
        "import json, os, gpudiag; print(json.dumps({'word': "
        "os.environ['CUDA_VISIBLE_DEVICES'] + gpudiag.__file__}))"
    )
    run = Run(tmp_path, 60.0)
    run.take(look())
    seen = run.take(a_step("env", code, environment={"CUDA_VISIBLE_DEVICES": "{first_gpu}"}))
    assert seen.sentence == f"GPU-1{REPOSITORY / 'gpudiag' / '__init__.py'}"
