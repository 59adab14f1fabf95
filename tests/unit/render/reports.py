"""Reports for tests of formats: plausible ones, and hostile ones by hypothesis."""

from hypothesis import strategies as st

from gpudiag.model.evidence import (
    DeviceSubject,
    Evidence,
    FileSubject,
    HostSubject,
    LinkSubject,
    RanksSubject,
    RankSubject,
    SourceSubject,
)
from gpudiag.model.finding import Category, CheckResult, Finding, Outcome, Owner, Severity, worst
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.model.report import Report
from tests.unit.model.nouns import WITHOUT_LIBRARY, make_device, make_machine, make_snapshot

ABSENT = Missing(MissingReason.SOURCE_ABSENT)
GPU_5 = DeviceSubject("GPU-5", "00000000:5d:00.0", 5, "a1")


def make_finding(code="gpu.lost", outcome=Outcome.FAIL, subject=GPU_5, **values):
    defaults = {
        "severity": Severity.ISOLATE,
        "category": Category.HW_PCIE,
        "owner": Owner.HARDWARE,
        "message": "GPU 5 (5d:00.0) is off the bus: GPU is lost",
        "evidence": (Evidence("responding", "GPU is lost", source="NVML"),),
        "remedy": "Drain the machine and power-cycle it.",
    }
    return Finding(code=code, outcome=outcome, subject=subject, **{**defaults, **values})


def make_result(check, outcome=Outcome.PASS, *findings, reason=None, seconds=0.001, **values):
    return CheckResult(check, outcome, findings, reason, seconds, **values)


def make_report(*results, verdict=None, snapshot=None):
    decided = verdict or worst(tuple(result.outcome for result in results))
    return Report(decided, results, snapshot or make_snapshot(make_device(5)))


SICK = make_report(
    make_result("gpu.lost", Outcome.FAIL, make_finding()),
    make_result(
        "xid.kernel_log",
        Outcome.FAIL,
        make_finding("xid.hardware", message="GPU 5 (5d:00.0): 14:02 UTC Xid 79"),
        make_finding("xid.application", Outcome.WARN, owner=Owner.JOB, message="GPU 5: Xid 31"),
    ),
    make_result("gpu.count"),
    make_result(
        "host.shm", Outcome.WARN, make_finding("host.shm", Outcome.WARN, HostSubject("a1"), owner=Owner.HOST)
    ),
    make_result("ecc.mode", Outcome.SKIP, reason="this GPU has no ECC"),
    make_result("fabric.state", Outcome.SKIP, reason="this GPU has no ECC"),
    make_result("torch.build", Outcome.ERROR, reason="torch did not answer by the deadline"),
)
HEALTHY = make_report(make_result("gpu.lost"), make_result("gpu.count"))
CPU_ONLY = make_report(
    make_result("collective.verified"),
    make_result("gpu.lost", Outcome.SKIP, reason="no GPU and no trace of one"),
    snapshot=make_snapshot(machine=make_machine(), sources=WITHOUT_LIBRARY),
)
SIMULATED = make_report(
    make_result("gpu.lost", Outcome.FAIL, make_finding()),
    snapshot=make_snapshot(make_device(5), simulated="h100x8+lost:5"),
)
EMPTY = make_report(verdict=Outcome.ERROR)
ALL_SKIPPED = make_report(make_result("gpu.lost", Outcome.SKIP, reason="asked for by --skip"))
REPORTS = {
    "sick": SICK,
    "healthy": HEALTHY,
    "cpu_only": CPU_ONLY,
    "simulated": SIMULATED,
    "empty": EMPTY,
    "all_skipped": ALL_SKIPPED,
}

# Texts that break formats: line ends, markup, escapes, control characters, endless words, lone surrogates.
NASTY = (
    *("a\nb", "a\r\nb", "<b>&amp;</b>", "]]>", "%0A::error::x", "::error title=x::y"),
    *("\x00\x1b[31mred\x07", "`rm -rf`", "| a | b |", '"} 1\nfake_metric 1', "\\", "'"),
    *("$(reboot)", "\u202egpj.exe", "\ud800", "\ufffe", "x" * 5000, "", " ", "-->"),
    *("@everyone", "[link](http://x)", "<script>alert(1)</script>", "\u2028", "日本語"),
)
texts = st.one_of(st.sampled_from(NASTY), st.text(max_size=60))
floats = st.floats(allow_nan=True, allow_infinity=True)
scalars = st.one_of(texts, st.integers(), floats, st.booleans())
subjects = st.one_of(
    st.builds(
        DeviceSubject,
        uuid=st.one_of(texts, st.just(ABSENT)),
        bus_id=st.one_of(texts, st.just(ABSENT)),
        nvml_index=st.one_of(st.integers(0, 99), st.just(ABSENT)),
        host=texts,
    ),
    st.builds(RankSubject, rank=st.integers(0, 9999), host=texts),
    st.builds(
        RanksSubject, ranks=st.lists(st.integers(0, 9999), min_size=2, unique=True).map(tuple), host=texts
    ),
    st.builds(LinkSubject, ends=st.tuples(texts, texts), host=texts),
    st.builds(HostSubject, host=texts),
    st.builds(SourceSubject, source=texts, host=texts),
    st.builds(FileSubject, path=texts, line=st.integers(1, 99)),
)
evidence = st.builds(
    Evidence,
    name=texts,
    value=scalars,
    unit=st.one_of(st.none(), texts),
    limit=st.one_of(st.none(), scalars),
    source=texts,
)
findings = st.builds(
    Finding,
    code=texts,
    outcome=st.sampled_from((Outcome.FAIL, Outcome.WARN, Outcome.ERROR, Outcome.PASS)),
    severity=st.sampled_from(Severity),
    category=st.sampled_from(Category),
    owner=st.sampled_from(Owner),
    subject=subjects,
    message=texts,
    evidence=st.lists(evidence, max_size=2).map(tuple),
    remedy=texts,
)
results = st.builds(
    CheckResult,
    check=texts,
    outcome=st.sampled_from(Outcome),
    findings=st.lists(findings, max_size=3).map(tuple),
    reason=st.one_of(st.none(), texts),
    seconds=floats,
)
hostile_reports = st.builds(
    Report,
    verdict=st.sampled_from((Outcome.PASS, Outcome.WARN, Outcome.FAIL, Outcome.ERROR)),
    results=st.lists(results, max_size=4).map(tuple),
    snapshot=st.builds(
        lambda host, simulated, gpu: make_snapshot(
            *([make_device(5)] if gpu else []), host=host, simulated=simulated
        ),
        texts,
        st.one_of(st.none(), texts),
        st.booleans(),
    ),
)
