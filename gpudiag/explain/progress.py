"""Lines that show that a run makes steps, or that it is complete."""

import re

from gpudiag.explain.lines import LogLine, parse_lines

WENT_ON = 3  # lines of progress after a failure show that the run outlived it

_PROGRESS = re.compile(
    r"""\bloss['"]?\s*[:=]?\s*-?\d|Init\ COMPLETE|HTTP/[\d.]+"\ 200|
    (?:samples|tokens|images|steps)/s(?:ec)?\b|
    (?:[Tt]raining|[Jj]ob|[Rr]un|[Aa]ll\ ranks|[Ee]poch)\ (?:\d+\ )?(?:has\ |is\ )?
    (?:completed?|finished)\b|finished\ successfully|
    [Aa]pplication\ startup\ complete|fired\ up\ and\ ready|Thread\ is\ unstuck|
    \b(?:[Ee]poch|[Ss]tep|[Ii]ter(?:ation)?|global_step)\b[\s:=\[(]*\d+(?:\s*/\s*\d+)?[\])]?[\s,:|].*\d""",
    re.VERBOSE,
)
_STEP = re.compile(
    r"\b(?:[Gg]lobal[_ ]?[Ss]tep|[Ss]tep|STEP|[Ii]ter(?:ation)?|[Bb]atch|[Ee]poch)s?\b[\s:=\[(#]*(\d+)"
)
_NO_PROGRESS = re.compile(r"^wandb:|\d%\|")  # a summary, or a bar that is drawn once more when a process ends
_DONE = re.compile(
    r"[Tt]raining (?:has |is )?(?:completed?|finished|done)\b|finished successfully|"
    r"[Jj]ob (?:completed|finished)|Out of bounds values : 0 OK|"
    r"['\"]train_runtime['\"]|\btrain_runtime +=|"  # transformers
    r"`Trainer\.fit` stopped: `max_\w+=\S+` reached|"  # Lightning
    r"exiting program after \d+ iterations|"  # Megatron
    r"[Ff]inal validation metrics: \S"  # verl
)
_DONE_BYTES = re.compile(_DONE.pattern.encode())


def steps_in(number: int, raw: bytes) -> list[LogLine]:
    """The parts of a line that show progress."""
    return [
        line
        for line in parse_lines(number, raw)
        if _PROGRESS.search(line.body) and not _NO_PROGRESS.search(line.body)
    ]


def step_of(body: str) -> int | None:
    """The number of the step that a line of progress names."""
    match = _STEP.search(body)
    return int(match[1]) if match else None


def reports_end(raw: bytes) -> bool:
    """Whether a line reports that the run, or its training, is complete."""
    return _DONE_BYTES.search(raw) is not None and any(
        _DONE.search(line.body) and not _NO_PROGRESS.search(line.body) for line in parse_lines(0, raw)
    )
