"""What `gpudiag explain` was asked about: a topic of the catalogues, or a log."""

import re
import sys
from difflib import get_close_matches
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.model.explanation import Explanation, LogExplanation
from gpudiag.reference.failures import failures
from gpudiag.runs.read_log import explain_log
from gpudiag.runs.topics import explain_failure, explain_sxid, explain_xid, known_topics

_NUMBERED_TOPIC = re.compile(r"(?P<kind>s?xid)[ -]?(?P<number>\d{1,6})", re.IGNORECASE | re.ASCII)
_NUMBERED = {"xid": explain_xid, "sxid": explain_sxid}
_EXAMPLES = {"xid": 79, "sxid": 20034}
_HINT = "give a code (gpu.lost), xid 79, the file of a log, or - and the text on standard input"


def explain(words: tuple[str, ...]) -> Explanation | LogExplanation:
    """The explanation of a finding code, a check, an Xid, a known failure, or of a log (`-`: standard input).

    Raises:
        UsageError: nothing of that name, with the nearest there is; or a log that cannot be read.
    """
    numbered = _NUMBERED_TOPIC.fullmatch(" ".join(words))
    if numbered:
        return _NUMBERED[numbered["kind"].lower()](int(numbered["number"]))
    if words[0].lower() in _NUMBERED:
        kind = {"xid": "Xid", "sxid": "SXid"}[words[0].lower()]
        said = f"{' '.join(words[1:])!r} is no number of an {kind}" if words[1:] else f"say which {kind}"
        raise UsageError(
            said, hint=f"such as: gpudiag explain {words[0].lower()} {_EXAMPLES[words[0].lower()]}"
        )
    if len(words) > 1:
        raise UsageError(f"cannot explain {' '.join(words)!r} at once", hint=_HINT)
    if words[0] == "-":
        return explain_log("standard input", sys.stdin.buffer)
    return explain_topic(words[0]) or _explain_file(words[0])


def explain_name(name: str) -> Explanation | None:
    """The explanation of `gpu.lost`, a check, a known failure, `xid-79` or `sxid-12028`; None where there is none."""
    numbered = _NUMBERED_TOPIC.fullmatch(name)
    if numbered:
        return _NUMBERED[numbered["kind"].lower()](int(numbered["number"]))
    return explain_topic(name)


def explain_topic(name: str) -> Explanation | None:
    """The explanation of a finding code, a check or a known failure; None where there is none of that name."""
    known = known_topics().get(name)
    if known is None and name in failures():
        return explain_failure(failures()[name])
    return known


def _explain_file(name: str) -> LogExplanation:
    path = Path(name)
    try:
        with path.open("rb") as stream:
            return explain_log(name, stream)
    except FileNotFoundError as error:
        topics = (*known_topics(), *failures())
        near = [f"xid {name}"] if name.isdecimal() else get_close_matches(name, topics, n=1)
        question = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{name!r} is no finding code and no file{question}", hint=_HINT) from error
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror or error}", hint=_HINT) from error
