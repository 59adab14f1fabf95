"""What `gpudiag explain` was asked about: a topic of the catalogues, logs, or a text."""

import errno
import os
import re
import sys
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

from gpudiag.errors import UsageError
from gpudiag.explain.answer import Source, explain_logs, open_log
from gpudiag.explain.files import LogRefused, log_files
from gpudiag.explain.topics import (
    explain_cuda_error,
    explain_failure,
    explain_sxid,
    explain_xid,
    known_topics,
)
from gpudiag.model.explanation import Explanation, LogExplanation
from gpudiag.model.nearest import did_you_mean
from gpudiag.probe.job.flight_recorder import looks_like_dump
from gpudiag.reference.cuda_errors import find_cuda_error
from gpudiag.reference.failures import failures

# A number alone is an Xid's.
_NUMBERED_TOPIC = re.compile(
    r"(?:(?P<kind>s?xid|cuda)(?: error)?[ -]?)?(?P<number>\d{1,6})", re.IGNORECASE | re.ASCII
)
_NUMBERED = {"xid": explain_xid, "sxid": explain_sxid, "cuda": explain_cuda_error}
_WORDS = {"xid": "Xid", "sxid": "SXid", "cuda": "CUDA error"}
_EXAMPLES = {"xid": 79, "sxid": 20034, "cuda": 802}
_HINT = (
    "give a code (gpu.lost), xid 79, files or a folder of logs, an error"
    " text in quotes, or - for standard input"
)
_LOOKS_LIKE_A_PATH = re.compile(r"[^\s:]*[/\\][^\s:]*|[^\s]+\.(?:log|out|err|txt|gz|xz|bz2|zst|json)")


def explain(words: tuple[str, ...]) -> Explanation | LogExplanation:
    """The explanation of a code, a check, an Xid, a known failure, a text, or logs (`-`: standard input).

    Raises:
        UsageError: there is nothing of that name (the nearest is named), or a log cannot be opened.
    """
    if "" in words:  # as a path it would be this folder
        raise UsageError("an argument is empty: is a variable of the shell not set?", hint=_HINT)
    numbered = _NUMBERED_TOPIC.fullmatch(" ".join(words))
    if numbered and not (len(words) == 1 and _exists(words[0])):  # a log may have a number for its name
        return _NUMBERED[(numbered["kind"] or "xid").lower()](int(numbered["number"]))
    if words[0].lower() in _NUMBERED:
        kind = _WORDS[words[0].lower()]
        problem = f"{' '.join(words[1:])!r} is no {kind} number" if words[1:] else f"name the {kind}"
        raise UsageError(
            problem, hint=f"such as: gpudiag explain {words[0].lower()} {_EXAMPLES[words[0].lower()]}"
        )
    if len(words) == 1 and words[0] != "-":
        topic = explain_topic(words[0])
        if topic is not None:
            return topic
    if any(word == "-" or _exists(word) for word in words):
        return _explain_files(words)
    text = " ".join(words)
    answer = explain_text(text)
    if answer.sightings or _is_text(words):
        return answer
    for word in filter(_LOOKS_LIKE_A_PATH.fullmatch, words):
        raise UsageError(f"cannot read {word}: no such file", hint=_HINT)
    if len(words) > 1:
        raise UsageError(f"cannot explain {text!r} at once", hint=_HINT)
    topics = (*known_topics(), *failures())
    question = did_you_mean(text, topics, "; ")
    raise UsageError(f"{text!r} is no finding code and no file{question}", hint=_HINT)


def explain_text(text: str) -> LogExplanation:
    """What is recognised in a text that is no file."""
    return explain_logs([open_log("text", BytesIO(text.encode(errors="surrogateescape")))])


def explain_name(name: str) -> Explanation | None:
    """The explanation of `gpu.lost`, a check, a known failure, `xid-79` or `sxid-12028`.

    It is None where there is none.
    """
    numbered = _NUMBERED_TOPIC.fullmatch(name)
    if numbered and numbered["kind"]:
        return _NUMBERED[numbered["kind"].lower()](int(numbered["number"]))
    return explain_topic(name)


def explain_topic(name: str) -> Explanation | None:
    """The explanation of a finding code, a check or a known failure.

    It is None where there is none of that name.
    """
    error = find_cuda_error(name)
    if error is not None:
        return explain_cuda_error(error.number)
    known = known_topics().get(name)
    if known is None and name in failures():
        return explain_failure(failures()[name])
    return known


def _is_text(words: tuple[str, ...]) -> bool:
    """Whether the arguments are an error's text, and not a mistyped path or name."""
    text = " ".join(words)
    return len(words) == 1 and len(text.split()) > 1 and not _LOOKS_LIKE_A_PATH.fullmatch(text)


def _exists(word: str) -> bool:
    """Whether a file or folder has this name, or may lie where this user may not read."""
    try:
        os.stat(word)
    except OSError as error:  # a text may be longer than a file name can be
        return error.errno == errno.EACCES and _LOOKS_LIKE_A_PATH.fullmatch(word) is not None
    except ValueError:  # it has a character that no name has
        return False
    return True


def _explain_files(words: tuple[str, ...]) -> LogExplanation:
    missing = [word for word in words if word != "-" and not _exists(word)]
    if missing:
        raise UsageError(f"cannot read {missing[0]}: no such file", hint=_HINT)
    paths: list[Path | None] = []
    for word in words:
        if word == "-":
            paths.append(None)
        elif os.path.isdir(word):
            inside, _ = log_files(Path(word), looks_like_dump)
            if not inside:
                raise UsageError(f"no file in {word} looks like a log", hint="give the files themselves")
            paths += inside
        else:
            paths.append(Path(word))
    return explain_logs(_open_all(paths))


def _open_all(paths: list[Path | None]) -> Iterator[tuple[str, Source]]:
    """Each log opened when its turn comes."""
    for path in paths:
        if path is None:
            yield open_log("standard input", sys.stdin.buffer)
            continue
        try:
            with path.open("rb") as stream:
                yield open_log(str(path), stream)
        except OSError as error:
            if len(paths) == 1:
                raise UsageError(f"cannot read {path}: {error.strerror or error}", hint=_HINT) from error
            yield str(path), LogRefused(f"it cannot be opened: {error.strerror or error}")
