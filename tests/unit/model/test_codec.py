import json
from datetime import datetime

import jsonschema
import pytest

from gpudiag.compat import UTC
from gpudiag.errors import UsageError
from gpudiag.lint.linter import lint_text
from gpudiag.model import codec, documents
from gpudiag.model.device import Disagreement, EccLocation, GpuProcess, NvLink
from gpudiag.model.doctor import CommandState, DoctorPart, DoctorReport, PartState
from gpudiag.model.documents import DOCUMENTS, json_schema
from gpudiag.model.evidence import DeviceSubject, Evidence, RankSubject
from gpudiag.model.finding import Category, CheckResult, Finding, Outcome, Owner, Severity
from gpudiag.model.lint import LintedFile, LintReport
from gpudiag.model.measure import CollectiveMeasurement, CollectiveResult, RankReport
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import CollectiveReport, FindingGroup, MachineVerdict, MergedReport, Report
from gpudiag.model.run import EventKind, RunEvent
from gpudiag.model.training import TrainingPlan, TrainingReport
from gpudiag.runs.placement import Placement
from gpudiag.runs.train import build_result, skipped_result
from tests.unit.model.hang_examples import HANG_EXAMPLES
from tests.unit.model.hub_examples import HUB_EXAMPLES
from tests.unit.model.job_runs import make_job_run
from tests.unit.model.judgements import make_judgement
from tests.unit.model.nouns import NOT_SUPPORTED, TAKEN_AT, make_device, make_snapshot
from tests.unit.model.service_examples import SERVICE_EXAMPLES
from tests.unit.runs.receipts import receipt_examples
from tests.unit.training.measurements import make_measurement
from tests.walking import walk
from tools.write_schemas import PAGE, page_text, schema_path, schema_text

DENIED = Missing(MissingReason.NO_PERMISSION, "Insufficient Permissions")


def make_full_snapshot():
    process = GpuProcess(
        4242, "compute", 1024, True, "ann", "train.py", DENIED, datetime(2026, 11, 20, tzinfo=UTC)
    )
    device = make_device(
        5,
        memory_total_bytes=85520809984,
        power_draw_watts=68.9,
        row_remap_pending=False,
        clocks_event_reasons=("gpu_idle",),
        nvlinks=(NvLink(0, True, "00000000:05:00.0", 0, 0, 0, DENIED),),
        ecc_locations=(EccLocation("dram", 0, 0, 1, 0),),
        processes=(process,),
    )
    disagreement = Disagreement("count", {"nvml": 8, "torch": 0, "gputil": None}, "CPU build", True)
    return make_snapshot(
        device, make_device(6, responding=DENIED), disagreements=(disagreement,), simulated="h100x8"
    )


def make_finding(subject):
    return Finding(
        "rank.died",
        Outcome.FAIL,
        Severity.ISOLATE,
        Category.SW_OTHER,
        Owner.JOB,
        subject,
        "rank 2 died",
        (Evidence("signal", "SIGKILL", source="wait status"), Evidence("exit", -9, None, 0, "")),
        "look at its log",
    )


def make_report():
    subject = DeviceSubject("GPU-5", NOT_SUPPORTED, 5, "a1")
    result = CheckResult("gpu.lost", Outcome.FAIL, (make_finding(subject),), None, 0.0001)
    return Report(Outcome.FAIL, (result,), make_full_snapshot())


def make_collective_report():
    result = CollectiveResult(
        "all_reduce", "sum", "float32", 1024, 256, 20, 1e-4, 2e-4, 1e-4, 1e7, NOT_SUPPORTED, True, 20, 0
    )
    ranks = (RankReport(2, 2, "a1", 4242, "measure", -9),)
    measurement = CollectiveMeasurement(
        4, "spawn", "a1", ranks, (), (), 1.5, "gloo", "2.13.0", NOT_SUPPORTED, "cpu", (result,), 24
    )
    return CollectiveReport(Outcome.FAIL, measurement, (make_finding(RankSubject(2, "a1")),))


def make_merged_report():
    lost = MachineVerdict("a7", "a7.json", Outcome.FAIL, None, TAKEN_AT, "h100x8+lost:3", 40, 3)
    unread = MachineVerdict("b2.json", "b2.json", Outcome.ERROR, "cut short", DENIED, None, 0, 0)
    group = FindingGroup(
        "gpu.lost", Outcome.FAIL, Severity.ISOLATE, Owner.HARDWARE, ("a7",), 2, "GPU 5 is lost", "drain it"
    )
    return MergedReport(Outcome.FAIL, (lost, unread), (group,))


def make_event():
    return RunEvent(EventKind.FINDING, 1.5, 3, 24, finding=make_finding(RankSubject(2, "a1")))


def make_training_report():
    here = Placement("gloo", 2, snapshot=make_snapshot())
    ran = build_result(make_measurement(), here)
    skipped = skipped_result(TrainingPlan(), "mirrored", 2, Outcome.SKIP, "not installed", "pip install it")
    return TrainingReport(Outcome.PASS, "a1", (ran, skipped), (), machine=("x86_64, 2 cores",))


def make_lint_report():
    linted = lint_text("import torch.distributed as dist\n\ndist.broadcast(tensor)\n", "train.py")
    return LintReport((linted.file, LintedFile("a.bin", 0, "not read")), linted.findings)


def make_doctor_report():
    part = DoctorPart("torch", PartState.ABSENT, "it is not installed", "pip install torch")
    command = CommandState("nccl-test", PartState.ABSENT, ("torch",))
    return DoctorReport("a1", "1.0", "/usr/bin/python3", None, Outcome.PASS, (part,), (command,), 0.5)


EXAMPLES = [
    *(make_full_snapshot(), make_report(), make_collective_report(), make_merged_report(), make_event()),
    *(make_training_report(), make_lint_report(), make_job_run(), make_doctor_report(), make_judgement()),
    *SERVICE_EXAMPLES,
    *HANG_EXAMPLES,
    *HUB_EXAMPLES,
    *receipt_examples(),
]


@walk(EXAMPLES, lambda noun: noun.SCHEMA)
def test_a_document_comes_back_as_it_was(noun):
    assert documents.loads(codec.dumps(noun)) == noun


@walk(EXAMPLES, lambda noun: noun.SCHEMA)
def test_a_document_fits_its_schema(noun):
    schema = json_schema(noun.SCHEMA)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(codec.dumps(noun)))


def test_every_document_has_an_example_here():
    assert {noun.SCHEMA for noun in EXAMPLES} == set(DOCUMENTS)


@walk(DOCUMENTS)
def test_docs_hold_the_schema_that_the_package_makes(schema):
    assert schema_path(schema).read_text() == schema_text(schema), "run: make pages"


def test_docs_list_every_document():
    assert PAGE.read_text() == page_text(), "run: make pages"


def test_a_missing_reading_is_null_with_its_reason():
    document = codec.to_document(make_full_snapshot())["devices"][0]
    assert document["fan_speed_percent"] is None
    assert document["missing"]["fan_speed_percent"] == "not_supported"
    assert document["row_remap_pending"] is False
    assert document["uuid"] == "GPU-5"
    assert document["nvlinks"][0]["missing_detail"] == {"recovery_errors": "Insufficient Permissions"}


def test_the_schema_comes_first_and_the_collective_report_is_flat():
    document = codec.to_document(make_collective_report())
    assert list(document)[:2] == ["schema", "outcome"]
    assert document["world_size"] == 4
    assert document["results"][0]["busbw_bytes_per_second"] is None
    assert document["findings"][0]["subject"] == {"rank": 2, "host": "a1", "kind": "rank"}


def test_a_field_that_an_older_document_lacks_is_not_asked():
    document = codec.to_document(make_full_snapshot())
    del document["devices"][0]["recovery_action"]
    snapshot = documents.from_document(document)
    assert snapshot.devices[0].recovery_action.reason is MissingReason.NOT_ASKED


def test_a_field_of_a_newer_document_is_ignored():
    document = codec.to_document(make_full_snapshot()) | {"invented_later": 1}
    assert documents.from_document(document) == make_full_snapshot()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not a JSON document"),
        ("[]", "no `schema`"),
        ('{"schema": "gpudiag.snapshots/1"}', "gpudiag.snapshots/1"),
        ('{"schema": "gpudiag.snapshot/1"}', "document.host"),
    ],
)
def test_a_document_that_is_none_is_refused_in_one_sentence(text, words):
    with pytest.raises(UsageError, match=words):
        documents.loads(text)


def test_a_null_without_a_reason_is_refused():
    document = codec.to_document(make_full_snapshot())
    document["devices"][0]["power_draw_watts"] = None
    with pytest.raises(UsageError, match=r"devices\[0\]\.power_draw_watts is null without a reason"):
        documents.from_document(document)


def test_not_a_number_is_never_written():
    with pytest.raises(ValueError, match="JSON"):
        codec.dumps(make_snapshot(make_device(power_draw_watts=float("nan"))))


def test_what_is_no_text_is_written_and_read_as_an_escape():
    """A variable or a file's name may hold any bytes, which Python gives as halves of characters."""
    odd = b"J\xf6rg".decode(errors="surrogateescape")
    process = GpuProcess(
        1, "compute", Missing(MissingReason.ERROR, odd), True, odd, "\ud83d half", DENIED, DENIED
    )
    snapshot = make_snapshot(devices=(make_device(0, processes=(process,)),), host=odd)
    for text in (codec.dumps(snapshot), json.dumps(codec.encode({odd: [odd]}), ensure_ascii=False)):
        assert text.encode().decode() == text
        assert r"J\\udcf6rg" in text
    assert codec.dump_document([odd]) == codec.dump_document(codec.encode([odd])) == r'["J\\udcf6rg"]'
    again = documents.loads(codec.dumps(snapshot)).devices[0].processes[0]
    assert (again.user, again.command, again.memory_used_bytes.detail) == (
        r"J\udcf6rg",
        r"\ud83d half",
        r"J\udcf6rg",
    )
    assert codec.encode("J\u00f6rg \U0001f600") == "J\u00f6rg \U0001f600"
