"""One topic explained: a finding code, a check, an Xid, an SXid or a known failure."""

from dataclasses import replace
from functools import cache

from gpudiag.checks import BUILTIN
from gpudiag.checks.catalogue import describe_limits, finding_kinds, name_reporters
from gpudiag.checks.registry import Check, FindingKind
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules import RULES
from gpudiag.model.explanation import Example, Explanation
from gpudiag.model.remedy import fit_remedy
from gpudiag.reference.cuda_errors import cuda_error_source, cuda_errors
from gpudiag.reference.failures import Failure, failures
from gpudiag.reference.xid import (
    WHO_IS_AT_FAULT,
    SXidClass,
    action_text,
    nvlink5_decodes,
    sxid_source,
    sxids,
    xid_source,
    xids,
)

_CODE_SOURCE = "gpudiag's catalogue of findings, docs/findings.md"
_CLASSES = {
    SXidClass.ALWAYS_FATAL: "always fatal: FAIL",
    SXidClass.FATAL: "fatal: FAIL where a GPU reports an NVLink error in the same burst, else WARN",
    SXidClass.DISTURBING: "not fatal: WARN",
    SXidClass.NOTE: "corrected, or for information: PASS",
}


_NETWORK_UNIT_XID = 149  # the NVLink 5 error whose subcode names the place to look at


@cache
def known_topics() -> dict[str, Explanation]:
    """Every finding code, every check and every rule of the linter by its name.

    Where two have one name, it is the code.
    """
    checks = {check.name: _explain_check(check) for check in BUILTIN}
    lints = {rule.code: _explain_rule(rule) for rule in RULES}
    return {**checks, **{kind.code: _explain_code(kind) for kind in finding_kinds()}, **lints}


def explain_xid(code: int) -> Explanation:
    """What an Xid means and asks for; one that the catalogue does not have is explained as unknown."""
    xid = xids().get(code)
    if xid is None:
        return Explanation(
            topic=f"Xid {code}",
            title="not in gpudiag's catalogue",
            meaning="No current GPU is documented to report this code; gpudiag judges it WARN.",
            remedy=action_text("investigate_software"),
            look_also=("xid.unknown", "dmesg -T | grep NVRM"),
            source=xid_source(),
        )
    then = () if xid.then in (xid.immediate, "none") else (f"then: {action_text(xid.then)}",)
    nonfatal = "" if xid.nonfatal_outcome is xid.outcome else f", {xid.nonfatal_outcome.value} if Nonfatal"
    return Explanation(
        topic=f"Xid {code}",
        title=xid.meaning.rstrip("."),
        meaning=xid.note,
        facts=(
            f"who is at fault: {WHO_IS_AT_FAULT[xid.kind]}",
            f"outcome: {xid.outcome.value}{nonfatal}",
            *then,
            *(_subcodes() if code == _NETWORK_UNIT_XID else ()),
        ),
        reads="`NVRM: Xid` lines of the kernel log.",
        limit="NVML field 230 and Xid 154, the driver's own recovery action, go before this table.",
        remedy=action_text(xid.immediate),
        look_also=("xid.hardware", "dmesg -T | grep NVRM"),
        source=xid_source(),
    )


def _subcodes() -> tuple[str, ...]:
    """The meanings of the subcodes of NVLink 5 errors of the network units."""
    return tuple(
        f"{rule.unit}, subcode {', '.join(map(str, rule.subcodes))}: {rule.advice}"
        for rule in nvlink5_decodes()
    )


def explain_sxid(code: int) -> Explanation:
    """What an NVSwitch error means and asks for."""
    sxid = sxids().get(code)
    look_also = ("sxid.fatal", "journalctl -u nvidia-fabricmanager")
    if sxid is None:
        return Explanation(
            topic=f"SXid {code}",
            title="not in gpudiag's catalogue",
            meaning="gpudiag judges it WARN.",
            remedy="Look it up in the Fabric Manager User Guide, appendix D.",
            look_also=look_also,
            source=sxid_source(),
        )
    return Explanation(
        topic=f"SXid {code}",
        title=sxid.meaning,
        meaning="",
        facts=(_CLASSES[sxid.sxid_class],),
        reads="`nvidia-nvswitch` lines of the kernel log.",
        remedy=fit_remedy(sxid.written_remedy),
        look_also=look_also,
        source=sxid_source(),
    )


def explain_cuda_error(number: int) -> Explanation:
    """What an error of CUDA means and asks for: its known failure, under its own number and names."""
    error = cuda_errors().get(number)
    if error is None:
        return Explanation(
            topic=f"CUDA error {number}",
            title="CUDA has no error of this number",
            meaning="A library between the program and CUDA may have returned it.",
            remedy="Look for the name of the error in the log: CUDA_ERROR_... or cudaError...",
            source=cuda_error_source(),
        )
    failure = next(failure for failure in failures().values() if number in failure.cuda_errors)
    names = " = ".join(name for name in (error.driver_name, error.runtime_name) if name)
    return replace(
        explain_failure(failure),
        topic=f"CUDA error {number}",
        title=f"{names}: {error.text}" if error.text else names,
        meaning=f"{failure.title[0].upper()}{failure.title[1:]}. {failure.cause}",
        look_also=(failure.id,),
        source=cuda_error_source(),
    )


def explain_failure(failure: Failure) -> Explanation:
    """A known failure explained: its cause, how to fix it, and what proves it."""
    return Explanation(
        topic=failure.id,
        title=failure.title,
        meaning=failure.cause,
        facts=(f"who must act: {failure.owner.value}", f"written by {failure.program}"),
        remedy=failure.remedy,
        proof=failure.proof,
        source=failure.source,
    )


def _explain_code(kind: FindingKind) -> Explanation:
    failure = failures().get(kind.code)
    in_logs: tuple[str, ...] = ()
    if failure is not None:
        own = "" if failure.remedy == kind.remedy else f" {failure.remedy}"
        in_logs = (f"in a job's log: {failure.cause}{own}",)
    return Explanation(
        topic=kind.code,
        title=f"{kind.outcome.value.upper()}, owner {kind.owner.value}, severity {kind.severity.value}",
        meaning=kind.meaning,
        facts=(f"reported by {name_reporters(kind)}", *in_logs),
        reads=kind.basis.reads,
        limit=kind.basis.limit,
        remedy=kind.remedy,
        look_also=kind.basis.look_also,
        source=_CODE_SOURCE,
    )


def _explain_rule(rule: Rule) -> Explanation:
    examples = rule.read_examples()
    return Explanation(
        topic=rule.code,
        title=f"{rule.severity.value} of gpudiag lint: {rule.title}",
        meaning=rule.why,
        facts=(
            "reported only if the script shows it for certain",
            "gpudiag lint --fix fixes it if the fix is certain" if rule.fixes else "to be fixed by hand",
        ),
        reads="the script, which is never run",
        remedy=f"Silence it on a line with `# gpudiag: ignore[{rule.code}]`.",
        look_also=("gpudiag lint FILE...", "docs/lint.md"),
        source="gpudiag's catalogue of rules, docs/lint.md",
        examples=(
            Example("wrong", examples.wrong),
            Example("right", examples.right),
            Example("right too, though it looks similar", examples.near_miss),
        ),
    )


def _explain_check(check: Check) -> Explanation:
    return Explanation(
        topic=check.name,
        title=f"a check of level {check.level.name.lower()}",
        meaning=f"It passes when {check.title}.",
        reads=", ".join(check.readings),
        limit=describe_limits(check),
        remedy=f"To run it alone: `gpudiag preflight --only {check.name}`.",
        look_also=tuple(kind.code for kind in check.reports),
        source=_CODE_SOURCE,
    )
