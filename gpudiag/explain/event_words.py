"""What the event that came first is in words: its explanation, who failed, when, and what to do."""

import re
from datetime import datetime

from gpudiag.explain.event import Event, Standing
from gpudiag.explain.event_times import ANY_YEAR
from gpudiag.explain.first_failure import Group
from gpudiag.explain.log_paths import parse_log_path
from gpudiag.explain.meanings import remedy_of
from gpudiag.explain.topics import explain_failure, explain_sxid, explain_xid
from gpudiag.model.explanation import Explanation, VerdictKind
from gpudiag.model.finding import Owner
from gpudiag.model.number_ranges import name_ranks
from gpudiag.model.untrusted_text import shorten_text
from gpudiag.reference.failures import failures
from gpudiag.reference.xid import XidKind, xids

_CARRIED = ("training.not_finite",)  # to all ranks, by the next collective
_OWN_WORDS = re.compile(r"^.*?NCCL WARN (?:NET/\w+ ?:? )?")
WITHDRAWN = "kubernetes.gpu_withdrawn"
_DRIVER_TOPIC = re.compile(r"(S?Xid) (\d+)")


def explanation_of(event: Event) -> Explanation | None:
    """What the catalogues of failures, Xids and SXids know of an event; None for one of the job's own."""
    driver = _DRIVER_TOPIC.fullmatch(event.topic)
    if driver:
        return (explain_xid if driver[1] == "Xid" else explain_sxid)(int(driver[2]))
    return explain_failure(failures()[event.topic]) if event.topic in failures() else None


def is_of_plugin(event: Event) -> bool:
    """Whether the NVIDIA device plugin of Kubernetes reported it, and not the kernel."""
    return event.is_driver and "XidCriticalError" in event.text


def is_of_application(topic: str) -> bool:
    """Whether an Xid is a fault of the program and not of the machine."""
    number = topic.removeprefix("Xid ")
    xid = xids().get(int(number)) if number.isdecimal() else None
    return xid is not None and xid.kind in (XidKind.APPLICATION, XidKind.SYMPATHETIC)


def _whom(ranks: tuple[int, ...], hosts: tuple[str, ...], event: Event) -> str:
    """Who failed, as the beginning of a sentence; empty where nothing names anybody."""
    on = f" on {', '.join(hosts[:4])}" if hosts else f" in pod {event.pod}" if event.pod else ""
    if ranks:
        return f"{name_ranks(ranks)[0].upper()}{name_ranks(ranks)[1:]}{on}"
    if event.pod:
        return f"Pod {event.pod.split('/')[0]}{f' on {hosts[0]}' if hosts else ''}"
    if (local := parse_log_path(event.log).local_rank) is not None:
        return f"Local rank {local}{on}"
    return f"{'A process' if len(hosts) == 1 else 'Processes'}{on}" if hosts else ""


def sentence_of(
    kind: VerdictKind,
    ranks: tuple[int, ...],
    hosts: tuple[str, ...],
    event: Event,
    explanation: Explanation | None,
) -> str:
    """What became of the job: who failed first, and how."""
    what = explanation.title if explanation else shorten_text(event.text, 160)
    driver = _DRIVER_TOPIC.fullmatch(event.topic)
    if event.standing is Standing.UNKNOWN:
        return (
            f"{_whom(ranks, hosts, event) or 'Something'} failed first, with an error that is not known"
            f" here: {_OWN_WORDS.sub('', event.text)[:200]}."
        )
    what = what.rstrip(".")  # a full stop of the error's own ends no sentence of ours
    what = f"{event.topic}, {what}" if driver else f"{what} ({event.topic})" if event.topic else what
    on = f" on {', '.join(hosts[:4])}" if hosts else f" in pod {event.pod}" if event.pod else ""
    who = name_ranks(ranks) if ranks else "something"
    who = who[0].upper() + who[1:]
    if kind is VerdictKind.STOPPED:
        whom = who if ranks else "The job"
        were = "were" if len(ranks) > 1 else "was"
        return f"{whom} {were} ended from outside, and not by its own error: {what}."
    if kind is VerdictKind.ALL_FAILED:
        why = _why_all(event.topic, hosts)
        return f"All ranks failed in the same way{f' ({name_ranks(ranks)})' if ranks else ''}: {what}. {why}."
    if kind is VerdictKind.MACHINE_FAILED:
        of = f" (rank {ranks[0]})" if ranks else ""
        return f"The machine failed first{on}{of}: {what}."
    if kind is VerdictKind.LINK_FAILED:
        of = f" ({name_ranks(ranks)} reported it)" if ranks else ""
        return f"The network failed first{' at ' + ' and '.join(hosts) if hosts else ''}{of}: {what}."
    whom = _whom(ranks, hosts, event)
    return f"{whom} failed first: {what}." if whom else f"Failed first: {what}."


def _why_all(topic: str, hosts: tuple[str, ...]) -> str:
    """What it means that all ranks failed in the same way."""
    if topic in _CARRIED:
        return "Collectives carry it from one rank to all: these lines do not show where it began"
    if topic in failures() and failures()[topic].owner in (Owner.HARDWARE, Owner.HOST):
        return "It is their machine, or what all their machines have alike, not one rank"
    odd = "machine" if len(hosts) > 1 else "rank"  # of one host alone, nothing clears that host
    return f"It is the script, its data or its environment, not one {odd}"


def describe_later(group: Group) -> str:
    """`later in attempt 1: rank 3: ... (LOG:LINE)`: what failed after the first, for another reason."""
    event = group.first
    explanation = explanation_of(event)
    what = explanation.title if explanation else event.text[:120]
    who = f"{name_ranks(group.ranks)}: " if group.ranks else ""
    attempt = f" in attempt {event.attempt}" if event.attempt else ""
    return f"later{attempt}: {who}{what} ({event.log}:{event.line})"


def clock_of(at: datetime) -> str:
    """A time as its log gives it: without a year or a day that no line names."""
    text = at.isoformat(sep=" ")
    return (
        text
        if at.year > ANY_YEAR
        else text[len("1904-") :]
        if at.year == ANY_YEAR
        else text[len("1903-01-01 ") :]
    )


def remedy_for(event: Event, explanation: Explanation | None, kind: VerdictKind) -> str:
    """What to do about the event that came first."""
    if explanation is not None and is_of_plugin(event) and is_of_application(event.topic):
        return f"The GPU is right. {explanation.remedy} {failures()[WITHDRAWN].remedy}"
    if explanation is not None:
        failure = failures().get(event.topic)
        return explanation.remedy if failure is None else failure.remedy_for(event.text)
    if event.code is not None:
        return "Read the last lines of that rank; `dmesg -T` of its host shows whether the kernel ended it."
    if kind is VerdictKind.ALL_FAILED:
        return "Fix the script, its data or its settings first: no rank stands out."
    if remedy := remedy_of(event.text):
        return remedy
    if not event.where:
        return (
            "Read the lines around it: its traceback is not in these logs. If the job is right,"
            " test the machine: `gpudiag preflight`."
        )
    return "Fix that line of the job; if it is right, test the machine: `gpudiag preflight`."
