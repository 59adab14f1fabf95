"""The jobs of tests/corpus/jobs, and what `gpudiag explain` answers to each."""

from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path

from gpudiag.explain.answer import explain_logs, open_log
from gpudiag.model.explanation import LogExplanation

FOLDER = Path(__file__).with_name("jobs")
RECORDED = Path(__file__).with_name("job_logs")


@dataclass(frozen=True, slots=True)
class JobCase:
    """The logs of one job, and what must be told of it."""

    kind: str  # the file that it stands in
    name: str
    verdict: str
    # Rank, host, pod, topic, word, own (the user's own line), later, says, known, nccl.
    wanted: dict[str, str]
    logs: tuple[tuple[str, str], ...]


@cache
def job_cases() -> tuple[JobCase, ...]:
    """Every case, by file and place."""
    found = []
    for path in sorted(FOLDER.glob("*.txt")):
        for block in path.read_text().split("==== ")[1:]:
            heading, body = block.split("\n", 1)
            name, wanted = heading.rsplit(" | ", 1)
            verdict, *pairs = wanted.split()
            logs = tuple(
                (part.split("\n", 1)[0].strip(), part.split("\n", 1)[1]) for part in body.split("@@ ")[1:]
            )
            found.append(
                JobCase(path.stem, name.strip(), verdict, dict(pair.split("=", 1) for pair in pairs), logs)
            )
    return tuple(found)


@cache
def recorded_cases() -> tuple[JobCase, ...]:
    """Every job that was recorded."""
    found = []
    for line in (RECORDED / "EXPECTED").read_text().splitlines():
        name, wanted = line.split(" | ")
        verdict, *pairs = wanted.split()
        files = sorted(path for path in (RECORDED / name).rglob("*") if path.is_file())
        logs = tuple((str(path.relative_to(RECORDED / name)), path.read_text()) for path in files)
        found.append(JobCase("recorded", name, verdict, dict(pair.split("=", 1) for pair in pairs), logs))
    return tuple(found)


def explain_case(case: JobCase) -> LogExplanation:
    """What is told of a case."""
    return explain_logs(open_log(name, BytesIO(text.encode())) for name, text in case.logs)


def _nccl_codes(told: LogExplanation) -> tuple[str, ...]:
    """The codes of the findings about NCCL; `none` where there are none."""
    return (
        tuple(finding.code for finding in told.nccl.findings)
        if told.nccl and told.nccl.findings
        else ("none",)
    )


def what_is_wrong(case: JobCase, told: LogExplanation) -> list[str]:
    """Where the answer differs from what must be told; empty where it is right."""
    verdict = told.verdict
    if verdict is None:
        return ["no verdict"]
    wrong = [] if verdict.kind.value == case.verdict else [f"{verdict.kind.value}, not {case.verdict}"]
    has = {
        "rank": case.wanted.get("rank", "") in {str(rank) for rank in verdict.ranks}
        and len(verdict.ranks) == 1,
        "host": case.wanted.get("host", "") in verdict.hosts,
        "pod": case.wanted.get("pod", "") in verdict.pod,
        "topic": case.wanted.get("topic", "").replace(
            "_", " " if "Xid" in case.wanted.get("topic", "") else "_"
        )
        == verdict.topic,
        "word": case.wanted.get("word", "") in verdict.excerpt,
        "own": case.wanted.get("own", "") in verdict.where,
        "later": any(
            case.wanted.get("later", "") in words for words in verdict.evidence if words.startswith("later")
        ),
        "says": case.wanted.get("says", "") in verdict.sentence,
        "known": any(case.wanted.get("known", "") in words for words in verdict.evidence),
        "nccl": case.wanted.get("nccl", "") in _nccl_codes(told),
    }
    wrong += [
        f"{key} {value}: {verdict.ranks} {verdict.hosts} {verdict.pod} {verdict.topic} {verdict.excerpt[:60]}"
        for key, value in case.wanted.items()
        if not has[key]
    ]
    return wrong
