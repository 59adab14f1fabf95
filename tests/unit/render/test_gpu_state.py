"""A GPU has one word for how it is, whoever tells of it: the listing, the bare command, the service."""

import pytest

from gpudiag.checks.gpu.state import GpuState, judge_state
from gpudiag.model.evidence import DeviceSubject
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.service import Findings
from gpudiag.render.devices_text import render_devices
from gpudiag.render.overview_text import render_overview
from gpudiag.render.wide_text import render_wide
from gpudiag.runs.instant import judge_snapshot
from gpudiag.sampler.picture import NvmlPicture
from gpudiag.service.live import SamplerFacts, build_live
from tests.unit.checks.machines import make_bare_machine
from tests.unit.model.nouns import TAKEN_AT, make_snapshot
from tests.unit.render.reports import make_finding
from tests.unit.render.rows import judge, make_idle, make_silent

SICK = {
    "warned": make_idle(1, recovery_action="drain_and_reset"),
    "faulty": make_idle(1, recovery_action="gpu_reset"),
    # One that is not asked is asleep, and not sick.
    **{
        f"silent: {reason}": make_silent(1, Missing(reason, "words"))
        for reason in MissingReason
        if reason is not MissingReason.NOT_ASKED
    },
}
DEAD = Missing(MissingReason.ERROR, "driver not loaded")


@pytest.mark.parametrize("name", list(SICK))
def test_all_commands_have_the_same_word_for_a_sick_gpu(name: str) -> None:
    snapshot = make_snapshot(make_idle(0), SICK[name], machine=make_bare_machine(gpus=2))
    findings, candidates = judge(snapshot)
    word = judge_state(snapshot, SICK[name], findings)
    assert word is not GpuState.HEALTHY
    counted = f"1 healthy, 1{' of 2' if word is GpuState.MISSING else ''} {word}"
    overview = render_overview(judge_snapshot(snapshot), findings, candidates, 0.1)
    told = Findings(1, "fail", TAKEN_AT, findings)
    live = build_live(snapshot, NvmlPicture(), SamplerFacts(True, False, None, 1.0, 0, 0, None), told, {}, 1)
    assert f" {word} [" in render_devices(snapshot, findings, candidates).splitlines()[2].lower()
    assert f"  {word}\n" in render_wide(snapshot, findings, candidates).lower()
    assert counted in " ".join(overview.split())
    assert live.headline == counted
    assert [not one.not_free_because for one in live.devices] == [candidate.free for candidate in candidates]


@pytest.mark.parametrize("reason", list(MissingReason))
def test_nothing_is_known_of_a_gpu_while_no_driver_answers(reason: MissingReason) -> None:
    silent = make_silent(1, Missing(reason))
    assert judge_state(make_snapshot(silent, driver_version=DEAD), silent, ()) is GpuState.UNREAD


def test_a_gpu_of_which_a_check_could_not_tell_is_not_called_faulty() -> None:
    device = make_idle(1)
    subject = DeviceSubject(device.id.uuid, device.id.bus_id, device.id.nvml_index, "a1")
    unclear, fault = (
        make_finding(outcome=outcome, subject=subject) for outcome in (Outcome.ERROR, Outcome.FAIL)
    )
    assert judge_state(make_snapshot(device), device, [unclear]) is GpuState.UNCLEAR
    assert judge_state(make_snapshot(device), device, [unclear, fault]) is GpuState.FAULTY
