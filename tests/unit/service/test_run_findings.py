"""What runs found stays until a run looks again, on that GPU and by that check."""

from dataclasses import replace
from datetime import datetime

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.compat import UTC
from gpudiag.model.codec import dumps
from gpudiag.model.evidence import DeviceSubject, HostSubject
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.report import Report
from gpudiag.model.run import Run, RunState
from gpudiag.render.finding_metrics import count_findings
from gpudiag.service.run_findings import RunFindings, read_findings
from tests.unit.model.nouns import make_device, make_snapshot

MACHINE = make_snapshot(make_device(0), make_device(1))
UUIDS = tuple(str(device.id.uuid) for device in MACHINE.devices)
SLOW = next(kind for kind in finding_kinds() if kind.code == "bandwidth.host_slow")
GOVERNOR = next(kind for kind in finding_kinds() if kind.code == "host.governor")


def subject(number):
    identity = MACHINE.devices[number].id
    return DeviceSubject(identity.uuid, identity.bus_id, identity.nvml_index, "a1")


def make_run(gpus=(), kind="preflight"):
    now = datetime.now(UTC)
    return Run("1", kind, RunState.SUCCEEDED, {}, gpus, gpus, "gpudiag preflight", 60.0, now, has_report=True)


def look(results, gpus=UUIDS, kind="preflight"):
    return read_findings(make_run(gpus, kind), dumps(Report(Outcome.WARN, tuple(results), MACHINE)).encode())


def result(check, *findings):
    return CheckResult(check, Outcome.WARN if findings else Outcome.PASS, findings)


def present(findings, machine=MACHINE, results=()):
    return [
        (kind, one.code, getattr(one.subject, "nvml_index", None))
        for kind, one in findings.present(machine, results)
    ]


def test_a_run_replaces_what_it_looked_for_again_and_nothing_else():
    findings = RunFindings()
    slow = [SLOW.finding(subject(number), "slow") for number in (0, 1)]
    governor = GOVERNOR.finding(HostSubject("a1"), "small")
    findings.add(look([result("bandwidth.host_device", *slow), result("host.governor", governor)]))
    both = [("preflight", SLOW.code, 0), ("preflight", SLOW.code, 1)]
    assert present(findings)[:2] == both
    findings.add(look([CheckResult("bandwidth.host_device", Outcome.SKIP)]))
    assert present(findings)[:2] == both
    findings.add(look([result("bandwidth.host_device")], gpus=UUIDS[:1]))
    assert present(findings)[0] == both[1]
    assert present(findings, replace(MACHINE, devices=MACHINE.devices[:1])) == present(findings)[1:]
    findings.add(look([result("bandwidth.host_device")], kind="bandwidth"))
    assert present(findings) == [("preflight", GOVERNOR.code, None)]


def test_what_the_service_looks_at_itself_is_not_taken_from_a_run():
    findings = RunFindings()
    findings.add(look([result("host.governor", GOVERNOR.finding(HostSubject("a1"), "slow"))]))
    assert len(present(findings, results=[CheckResult("host.governor", Outcome.SKIP)])) == 1
    assert present(findings, results=[CheckResult("host.governor", Outcome.PASS)]) == []


def test_a_report_that_cannot_be_read_says_nothing():
    for text in (b"{", b"\xff", b'{"schema": "gpudiag.collective/99"}'):
        assert read_findings(make_run(), text) is None


def test_the_series_of_a_runs_finding_names_the_run_that_looks_again():
    findings = RunFindings()
    findings.add(look([result("bandwidth.host_device", SLOW.finding(subject(1), "slow"))]))
    ((labels, value),) = count_findings((), MACHINE, {}, findings.present(MACHINE, ()))
    assert (labels["code"], labels["gpu"], labels["run"], value) == (SLOW.code, "1", "preflight", 1)
