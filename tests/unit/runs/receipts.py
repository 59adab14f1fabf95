"""A receipt for tests: eight GPUs that measured what they should, but one."""

from dataclasses import replace
from datetime import datetime

from gpudiag.checks import BUILTIN
from gpudiag.checks.runner import run_checks
from gpudiag.compat import UTC
from gpudiag.model.comparison import ComparedDocument, Comparison, Difference, Whose
from gpudiag.model.context import Context
from gpudiag.model.device import GpuProcess
from gpudiag.model.finding import Outcome
from gpudiag.model.plan import PreflightPlan
from gpudiag.model.reading import NOT_ASKED
from gpudiag.model.receipt import Receipt, ReceiptCheck, Signature
from gpudiag.model.report import Measures, Report
from gpudiag.runs.gate import judge_results
from gpudiag.runs.receipt import make_receipt
from tests.unit.checks.active_measures import MEMORY_SPEED, gpu_snapshot, measure_gpus, with_one

SICK = 3
ISSUED = datetime(2026, 11, 20, 22, 0, tzinfo=UTC)
SECRET = "hf_abcdefghijklmnopqrstuvwx"
TESTS = [check for check in BUILTIN if {"active", "operations", "gpus"} & set(check.needs)]


def make_report(**changes) -> Report:
    """The report of those checks that judge GPUs and tests."""
    process = GpuProcess(
        77, "compute", 2**30, True, "ann", f"train.py --note <b>&{SECRET}", NOT_ASKED, NOT_ASKED
    )
    facts = {"processes": (process,), "serial": "1650000000001", "vbios_version": "96.00", **changes}
    snapshot = gpu_snapshot(**facts)
    active = measure_gpus(snapshot)
    slow = with_one(active.bandwidth, SICK, bytes_per_second=0.5 * MEMORY_SPEED)
    measures = Measures(active=replace(active, bandwidth=slow))
    results = run_checks(Context(snapshot, measures), TESTS)
    return Report(judge_results(results), results, snapshot, measures)


def a_receipt(**changes) -> Receipt:
    """The receipt of that report."""
    return make_receipt(make_report(**changes), PreflightPlan(level="long"), ISSUED)


def receipt_examples() -> tuple[object, ...]:
    """One of each document of receipts."""
    signature = Signature(
        fits=True, words='Good "gpudiag-receipt" signature', key="ED25519 SHA256:x", signer="site@example"
    )
    found = ReceiptCheck(
        Outcome.PASS, "a.json", "no byte has changed", whole=True, signature=signature, issued_at=ISSUED
    )
    one = ComparedDocument("a.json", Receipt.SCHEMA, "a1", ISSUED, None, Outcome.PASS, whole=True)
    differs = Difference(Whose.GPU, "GPU 3", "VBIOS", "96", "97", Outcome.WARN, "another board")
    return (a_receipt(), found, Comparison(Outcome.WARN, one, one, True, (differs,), 7, ("NCCL",)))
