import pytest

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks, verdict
from gpudiag.checks.software.sources import NVML_KINDS, nvml_answers, sources_agree
from gpudiag.model.device import Disagreement, SourceState, SourceStatus
from gpudiag.model.evidence import SourceSubject
from gpudiag.model.finding import Outcome
from gpudiag.runs.instant import judge_snapshot
from tests.unit.checks.machines import (
    look_at,
    make_bare_machine,
    make_broken_snapshot,
    make_pci_gpu,
)
from tests.unit.model.nouns import make_device, make_snapshot

BROKEN = [
    state
    for state in SourceState
    if state not in (SourceState.OK, SourceState.NO_DEVICES, SourceState.NOT_ASKED)
]


def test_every_way_in_which_nvml_fails_has_a_finding_of_its_own() -> None:
    assert set(NVML_KINDS) == set(BROKEN)
    assert len({kind.code for kind in NVML_KINDS.values()}) == len(BROKEN)


@pytest.mark.parametrize("state", BROKEN)
def test_a_machine_with_a_gpu_and_without_a_working_nvml_fails(state: SourceState) -> None:
    words = "NVML's words: what to do"
    context = look_at(make_broken_snapshot(state, make_bare_machine(gpus=8), words))
    (finding,) = nvml_answers.judge(context).findings
    assert (finding.code, finding.outcome) == (f"nvml.{state.value}", Outcome.FAIL)
    assert finding.subject == SourceSubject("nvml", "a1")
    assert (finding.message.rpartition(": ")[2], finding.remedy) == ("NVML's words", "What to do.")
    assert verdict(run_checks(context, BUILTIN)) is Outcome.FAIL


def test_a_machine_without_a_trace_of_a_gpu_is_skipped_and_never_passes() -> None:
    context = look_at(make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine()))
    results = {result.check: result for result in run_checks(context, BUILTIN)}
    assert results.pop("gpu.count").outcome is Outcome.ERROR
    assert {result.outcome for result in results.values()} == {Outcome.SKIP}


@pytest.mark.parametrize("state", [state for state in BROKEN if state is not SourceState.LIBRARY_ABSENT])
def test_a_library_that_is_here_and_fails_is_a_trace_of_a_gpu(state: SourceState) -> None:
    context = look_at(make_broken_snapshot(state, make_bare_machine(), "NVML's words: what to do"))
    (finding,) = nvml_answers.judge(context).findings
    assert finding.code == f"nvml.{state.value}"
    assert "the NVIDIA driver's library is installed" in finding.message
    assert verdict(run_checks(context, BUILTIN)) is Outcome.FAIL
    assert judge_snapshot(context.snapshot).verdict is Outcome.FAIL


def test_an_nvml_that_lists_no_gpu_never_passes_though_the_bus_shows_none() -> None:
    snapshot = make_broken_snapshot(SourceState.NO_DEVICES, make_bare_machine())
    assert verdict(run_checks(look_at(snapshot), BUILTIN)) is Outcome.ERROR
    assert judge_snapshot(snapshot).verdict is Outcome.ERROR


def test_the_library_of_a_shared_image_is_no_trace_where_no_gpu_is_expected() -> None:
    snapshot = make_broken_snapshot(SourceState.DRIVER_NOT_LOADED, make_bare_machine())
    (finding,) = nvml_answers.judge(look_at(snapshot)).findings
    assert "--expect-gpus 0" in finding.remedy
    assert nvml_answers.judge(look_at(snapshot, expected_gpus=0)).outcome is Outcome.SKIP
    hanging = make_broken_snapshot(SourceState.TIMED_OUT, make_bare_machine())
    assert nvml_answers.judge(look_at(hanging, expected_gpus=0)).outcome is Outcome.FAIL


def test_an_expected_gpu_makes_an_absent_driver_a_failure() -> None:
    snapshot = make_broken_snapshot(SourceState.LIBRARY_ABSENT, make_bare_machine())
    assert nvml_answers.judge(look_at(snapshot, expected_gpus=8)).outcome is Outcome.FAIL
    assert nvml_answers.judge(look_at(snapshot, expected_driver="580")).outcome is Outcome.FAIL


def test_an_nvml_that_answers_passes() -> None:
    assert nvml_answers.judge(look_at(make_snapshot(make_device(0)))).outcome is Outcome.PASS


def test_without_words_of_the_source_the_remedy_is_the_catalogue_s() -> None:
    snapshot = make_broken_snapshot(SourceState.DRIVER_NOT_LOADED, make_bare_machine(gpus=8), reason="")
    (finding,) = nvml_answers.judge(look_at(snapshot)).findings
    assert finding.remedy == NVML_KINDS[SourceState.DRIVER_NOT_LOADED].remedy


def test_where_nouveau_holds_the_gpu_the_remedy_says_so() -> None:
    machine = make_bare_machine(pci_devices=(make_pci_gpu(0, driver="nouveau"),))
    (finding,) = nvml_answers.judge(
        look_at(make_broken_snapshot(SourceState.LIBRARY_ABSENT, machine))
    ).findings
    assert "nouveau" in finding.remedy


def test_a_disagreement_that_a_setting_explains_is_in_order() -> None:
    asked = tuple(SourceStatus(name, SourceState.OK) for name in ("nvml", "torch"))
    fewer = Disagreement("count", {"nvml": 8, "torch": 1}, "CUDA_VISIBLE_DEVICES=0", expected=True)
    snapshot = make_snapshot(make_device(0), sources=asked, disagreements=(fewer,))
    assert sources_agree.judge(look_at(snapshot)).outcome is Outcome.PASS


def test_a_disagreement_that_nothing_explains_is_a_warning_with_both_values() -> None:
    differs = Disagreement("name", {"nvml": "H100", "gputil": "A100"}, "nothing explains it", expected=False)
    snapshot = make_snapshot(make_device(0), disagreements=(differs,))
    (finding,) = sources_agree.judge(look_at(snapshot)).findings
    assert (finding.code, finding.outcome) == ("source.disagreement", Outcome.WARN)
    assert {item.source: item.value for item in finding.evidence} == {"nvml": "H100", "gputil": "A100"}


@pytest.mark.parametrize(("gputil", "outcome"), [(7, Outcome.PASS), (8, Outcome.WARN)])
def test_a_gpu_that_only_the_bus_shows_is_left_to_the_count(gputil: int, outcome: Outcome) -> None:
    asked = tuple(SourceStatus(name, SourceState.OK) for name in ("nvml", "gputil"))
    counts = {"nvml": 7, "gputil": gputil, "pci": 8}
    differs = Disagreement("count", counts, "NVML does not list it", expected=False)
    snapshot = make_snapshot(make_device(0), sources=asked, disagreements=(differs,))
    assert sources_agree.judge(look_at(snapshot)).outcome is outcome


def test_one_source_alone_agrees_with_nobody() -> None:
    asked = tuple(SourceStatus(name, SourceState.OK) for name in ("nvml", "host"))
    assert sources_agree.judge(look_at(make_snapshot(make_device(0), sources=asked))).outcome is Outcome.SKIP


def test_sources_that_were_asked_and_failed_are_not_called_in_agreement() -> None:
    asked = (SourceStatus("nvml", SourceState.OK), SourceStatus("torch", SourceState.TIMED_OUT))
    snapshot = make_snapshot(make_device(0), sources=asked)
    assert sources_agree.judge(look_at(snapshot)).outcome is Outcome.ERROR


@pytest.mark.parametrize(
    ("state", "outcome"),
    [
        (SourceState.FAILED, Outcome.ERROR),
        (SourceState.TIMED_OUT, Outcome.ERROR),
        (SourceState.LIBRARY_ABSENT, Outcome.SKIP),
    ],
)
def test_the_source_that_did_not_answer_is_named_with_its_reason(
    state: SourceState, outcome: Outcome
) -> None:
    asked = (SourceStatus("nvml", SourceState.OK), SourceStatus("torch", state, "torch's words"))
    judgement = sources_agree.judge(look_at(make_snapshot(make_device(0), sources=asked)))
    assert judgement.outcome is outcome
    assert "torch: torch's words" in (judgement.reason or "")


@pytest.mark.parametrize("state", BROKEN)
def test_checks_that_want_nvml_share_one_reason(state: SourceState) -> None:
    results = run_checks(look_at(make_broken_snapshot(state, make_bare_machine(gpus=8))), BUILTIN)
    wanted_it = [result for result in results if "(see source.nvml)" in (result.reason or "")]
    assert {result.check for result in wanted_it} >= {"gpu.lost", "ecc.uncorrected", "nvlink.state"}
    assert {result.outcome for result in wanted_it} == {Outcome.ERROR}
    assert len({result.reason for result in wanted_it}) == 1
