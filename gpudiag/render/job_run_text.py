"""The verdict of `gpudiag run` as lines for standard error, among the job's: each begins with `gpudiag:`."""

from gpudiag.model.explanation import Role
from gpudiag.model.finding import Finding, Outcome
from gpudiag.model.job_run import OWN_PREFIX, JobRun
from gpudiag.render.style import PLAIN, Style, wrapped

_INDENT = "  "
_SHOWN_FINDINGS = 4
_GOES_ON = "the job continues"
_KILLS = "it is ended now: SIGTERM, and SIGKILL 30 s later (--on-stall kill)"


def render_job_run(run: JobRun, path: str = "", style: Style = PLAIN) -> str:
    """How the job went, and where the verdict is (`path`, empty if unknown); two lines for a good one."""
    lines = [*_paragraph(f"{run.outcome.value.upper()} {run.headline}")]
    first, *others = run.findings or (None,)
    if first is not None:
        lines += _details(first)
    for finding in [one for one in others if one is not None][:_SHOWN_FINDINGS]:
        lines += _paragraph(f"{finding.outcome.value.upper()} {finding.message} [{finding.code}]")
    lines += [line for why in run.unseen[:2] for line in _paragraph(f"not read: {why}", _INDENT)]
    lines += _explained(run)
    places = [
        f"{what}: {place}"
        for what, place in (("verdict", path), ("dumps of the flight recorder", run.folder))
        if place
    ]
    if path and first is not None:
        places.append("`gpudiag explain` reads it, and a log that has these lines")
    lines += _paragraph("; ".join(places), _INDENT) if places else []
    if lines:
        lines[0] = style.paint_outcome(lines[0], run.outcome.value)
    return "".join(f"{OWN_PREFIX}{line}\n" for line in lines)


def render_stall(run: JobRun, path: str, style: Style = PLAIN, *, kills: bool = False) -> str:
    """The lines printed while the job makes no progress."""
    finding = next((one for one in run.findings if one.outcome is Outcome.FAIL), None)
    lines = _paragraph(f"STALL {run.headline}")
    if finding is not None:
        lines += _paragraph(f"do: {finding.remedy}", _INDENT)
    lines += _paragraph(f"{_KILLS if kills else _GOES_ON}; verdict so far: {path}", _INDENT)
    lines[0] = lines[0].replace("STALL", style.paint("STALL", "red"), 1)
    return "".join(f"{OWN_PREFIX}{line}\n" for line in lines)


def _details(finding: Finding) -> list[str]:
    facts = {evidence.name: str(evidence.value) for evidence in finding.evidence}
    labels = [("then ranks: ", "then_ranks"), ("kernel log: ", "kernel_log")]
    lines = [
        line
        for words, name in labels
        if name in facts
        for line in _paragraph(f"{words}{facts[name]}", _INDENT)
    ]
    return [*lines, *_paragraph(f"do: {finding.remedy} [{finding.code}]", _INDENT)]


def _explained(run: JobRun) -> list[str]:
    """The likeliest cause by the job's own output, where that was a file."""
    causes = [one for one in run.explained.sightings if one.role is not Role.SYMPTOM] if run.explained else []
    if not causes:
        return []
    cause = causes[0]
    return _paragraph(
        f"its output: {cause.explanation.title} (gpudiag explain {cause.explanation.topic})", _INDENT
    )


def _paragraph(text: str, indent: str = "") -> list[str]:
    return [indent + line for line in wrapped(text, indent=_INDENT, width=_width(indent))]


def _width(indent: str) -> int:
    from gpudiag.render.style import prose_columns

    return prose_columns() - len(OWN_PREFIX) - len(indent)
