"""What a check may need, and the result where it is not there.

Not there is SKIP where it does not apply (no GPU and no trace of one, nobody asked) and ERROR where
it should have worked.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from gpudiag.checks.registry import Judgement, could_not_look, does_not_apply, not_readable
from gpudiag.checks.traces import traces_for
from gpudiag.model.context import Context
from gpudiag.model.device import SourceState, SourceStatus
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Missing, MissingReason
from gpudiag.reference.reading_names import explain_missing, name_state

NO_TRACE = "no GPU and no trace of one"
NO_GPU = f"{NO_TRACE}, so nothing to train on (--expect-gpus 0: there should be none)"

# A check that was skipped for these could not compare with the history; it could have, had the disk answered.
HISTORY_UNREAD = (MissingReason.ERROR, MissingReason.TIMED_OUT)

_ANSWERED = (SourceState.OK, SourceState.NO_DEVICES)


def nvml_silent(status: SourceStatus) -> Judgement:
    """ERROR, in the same short words for every check that needs NVML: source.nvml reports the cause, once."""
    return _nothing_of_nvml(f"NVML does not work: {name_state(status.state)} (see source.nvml)")


def _nothing_of_nvml(reason: str) -> Judgement:
    """ERROR with `source_absent`: NVML gave nothing to look at, and another check reports why."""
    return Judgement(Outcome.ERROR, reason=reason, missing_reason=MissingReason.SOURCE_ABSENT)


def _nvml(context: Context) -> Judgement | None:
    """None where NVML answered, even if it lists no GPU; else why not."""
    status = context.snapshot.source("nvml")
    if status.state in _ANSWERED:
        return None
    if status.state is SourceState.NOT_ASKED:
        return does_not_apply("NVML was not asked")
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    return nvml_silent(status)


def _gpus(context: Context) -> Judgement | None:
    """None where there is a GPU row to look at; else why not."""
    absent = _nvml(context)
    if absent is not None or context.snapshot.devices:
        return absent
    if not traces_for(context):
        return does_not_apply(NO_TRACE)
    return _nothing_of_nvml("NVML lists no GPU")


def _not_remembered(what: str, missing: Missing) -> Judgement:
    """SKIP for what no earlier run has left, or what could not be read, in the same short words."""
    judgement = replace(not_readable(what, missing), outcome=Outcome.SKIP)
    if missing.reason not in (MissingReason.SOURCE_ABSENT, *HISTORY_UNREAD) or not missing.detail:
        return judgement
    return replace(judgement, reason=missing.detail)


def _measured(measured: object, nothing: str, failed: str) -> Judgement | None:
    """None where it was measured; SKIP if nobody asked, or nothing can; else ERROR.

    The cause alone is the reason: what keeps several measurements from starting (no torch) is printed once.
    """
    if not isinstance(measured, Missing):
        return None
    what = measured.detail or nothing
    if measured.reason in (MissingReason.NOT_ASKED, MissingReason.NOT_SUPPORTED, MissingReason.IN_USE):
        return Judgement(
            Outcome.SKIP, reason=what, missing_reason=measured.reason if measured.detail else None
        )
    return could_not_look(measured.detail or f"{failed}: {explain_missing(measured)}")


def _history(context: Context) -> Judgement | None:
    """None where earlier runs' measurements could be read; else why not."""
    history = context.history
    return _not_remembered("the history of this machine", history) if isinstance(history, Missing) else None


def _kernel_log(context: Context) -> Judgement | None:
    """None where the kernel log of this boot was read; else why not."""
    log = context.snapshot.kernel_log
    return not_readable("the kernel log", log) if isinstance(log, Missing) else None


def _xids(context: Context) -> Judgement | None:
    """None where this boot's kernel log was read or NVML's events reported an Xid; else why not."""
    return None if context.xid_events else _kernel_log(context)


def _host_state(context: Context) -> Judgement | None:
    """None where the host's settings and state were read; else why not."""
    state = context.snapshot.machine.state
    return not_readable("the host's state", state) if isinstance(state, Missing) else None


def _earlier(context: Context) -> Judgement | None:
    """None where there is an earlier snapshot; else why not."""
    earlier = context.earlier
    return _not_remembered("an earlier reading", earlier) if isinstance(earlier, Missing) else None


def _baseline(context: Context) -> Judgement | None:
    """None where the machine's last good state is known; else why not."""
    baseline = context.baseline
    return _not_remembered("a recorded good state", baseline) if isinstance(baseline, Missing) else None


def _known_gpus(context: Context) -> Judgement | None:
    """None where it is known which GPUs this machine had; else why not."""
    known = context.known_gpus
    return _not_remembered("the GPUs of an earlier run", known) if isinstance(known, Missing) else None


def _expected_machine(context: Context) -> Judgement | None:
    """None where the user named a good machine; else why not."""
    expected = context.expected_machine
    return (
        does_not_apply("no good machine was named with --expect") if isinstance(expected, Missing) else None
    )


def _torch(context: Context) -> Judgement | None:
    """None where the job's torch was asked and answered; else why not."""
    facts = context.snapshot.torch
    if not isinstance(facts, Missing):
        return None
    status = context.snapshot.source("torch")
    detail = facts.detail or status.reason or ""
    return not_readable("torch", Missing(facts.reason, detail))


NEEDS: Mapping[str, Callable[[Context], Judgement | None]] = {
    "nvml": _nvml,
    "gpus": _gpus,
    "collective": lambda context: _measured(
        context.measures.collective, "no collective was measured", "no collective could be measured"
    ),
    "host_state": _host_state,
    "earlier": _earlier,
    "baseline": _baseline,
    "known_gpus": _known_gpus,
    "expected_machine": _expected_machine,
    "torch": _torch,
    "kernel_log": _kernel_log,
    "xids": _xids,
    "active": lambda context: _measured(
        context.measures.active, "no active test was run", "the active tests could not be run"
    ),
    "training": lambda context: _measured(
        context.measures.training, "no training was run", "no training could be run"
    ),
    "operations": lambda context: _measured(
        context.measures.operations,
        "no other collective was measured",
        "the collectives could not be measured",
    ),
    "card_pairs": lambda context: _measured(
        context.measures.card_pairs,
        "no pair of network cards was measured",
        "the pairs of network cards could not be measured",
    ),
    "disks": lambda context: _measured(
        context.measures.disks, "no disk was tested", "the disks could not be tested"
    ),
    "history": _history,
}
