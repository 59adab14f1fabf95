"""From a step's output to what it says: one reader per kind of output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from gpudiag.model.codec import loads
from gpudiag.model.finding import Outcome
from gpudiag.render.bandwidth_text import describe_meanwhile
from tools.confirm_on_gpu.machine import gpus_of
from tools.confirm_on_gpu.report import CheckSeen, ReadingSeen, Speed
from tools.confirm_on_gpu.step import Output, Told

Document = Mapping[str, Any]
SHARING_SINCE = (2, 30)  # NCCL 2.30 release notes: NCCL_MULTI_RANK_GPU_ENABLE


def read_machine(output: Output, snapshot: Document) -> Told:
    """Which GPUs are here, and how each source answered."""
    document = document_of(output)
    gpus = [f"{gpu.name} ({gpu.bus_id})" for gpu in gpus_of(document)]
    sources = ", ".join(f"{status['name']} {status['state']}" for status in document["sources"])
    unexpected = [item["field"] for item in document["disagreements"] if not item["expected"]]
    words = f"{len(gpus)} GPU(s): {', '.join(gpus)}; sources: {sources}"
    if unexpected:
        return Told(Outcome.FAIL, f"{words}; they disagree on {', '.join(unexpected)}")
    if not gpus:
        reasons = [
            f"{status['name']}: {status['reason']}" for status in document["sources"] if status["reason"]
        ]
        return Told(
            Outcome.ERROR, f"no GPU; sources: {sources}{'; ' + '; '.join(reasons) if reasons else ''}"
        )
    return Told(Outcome.PASS, words)


def read_capture(output: Output, snapshot: Document) -> Told:
    """Whether nvidia-smi wrote a capture."""
    root = ElementTree.fromstring(output.text())  # noqa: S314 - nvidia-smi wrote it here, just now
    return Told(Outcome.PASS, f"nvidia-smi -q -x of {len(root.findall('gpu'))} GPU(s)")


def read_comparison(output: Output, snapshot: Document) -> Told:
    """What NVML said through gpudiag, reading by reading, beside nvidia-smi."""
    rows = tuple(ReadingSeen(**row) for row in json.loads(output.text()))
    if not rows:
        return Told(Outcome.ERROR, "no GPU is in both the record and the capture")
    counts = Counter(row.outcome for row in rows)
    wrong = [row for row in rows if is_wrong(row)]
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
    if wrong:
        named = ", ".join(dict.fromkeys(row.reading for row in wrong))
        return Told(Outcome.FAIL, f"{words}; not as nvidia-smi has it: {named}", readings=rows)
    return Told(Outcome.PASS, words, readings=rows)


def is_wrong(row: ReadingSeen) -> bool:
    """Whether the two looks contradict each other: a value on one side only, or a fixed one that differs."""
    if row.outcome in ("only_here", "only_in_capture"):
        return True
    return row.outcome == "differs" and row.kind != "live"


def read_playback(output: Output, snapshot: Document) -> Told:
    """Whether the record plays back as it was."""
    answer = json.loads(output.text())
    if answer["simulated"] is None:
        return Told(Outcome.FAIL, "what was listed is the real machine, not the record")
    if answer["differing"]:
        return Told(
            Outcome.FAIL, f"{answer['same']} readings came back; not {', '.join(answer['differing'][:8])}"
        )
    return Told(Outcome.PASS, f"all {answer['same']} readings came back")


def read_preflight(output: Output, snapshot: Document) -> Told:
    """Every check's outcome, with the readings of a GPU that it judged."""
    document = document_of(output)
    checks = checks_of(document)
    counts = Counter(check.outcome for check in checks)
    words = ", ".join(f"{counts[outcome]} {outcome.value.upper()}" for outcome in Outcome if counts[outcome])
    findings = [finding for result in document["results"] for finding in result["findings"]]
    told = "; ".join(finding["message"] for finding in findings[:4])
    verdict = Outcome(document["verdict"])
    return Told(verdict, f"{words}{'; ' + told if told else ''}", checks=checks)


def read_quick(output: Output, snapshot: Document) -> Told:
    """The verdict alone: the step is there for the seconds that it took; the checks are those of level standard."""
    told = read_preflight(output, snapshot)
    return Told(told.outcome, told.sentence)


def checks_of(document: Document) -> tuple[CheckSeen, ...]:
    """Each check's result, joined with what it reads and with whether a GPU gave it."""
    from gpudiag.checks.builtin import BUILTIN  # everything else here goes without it

    known = {check.name: check for check in BUILTIN}
    devices = document["snapshot"]["devices"]
    return tuple(_check_seen(result, known.get(result["check"]), devices) for result in document["results"])


def _check_seen(result: Document, check: Any, devices: list[Document]) -> CheckSeen:
    wanted = [name for name in (check.readings if check else ()) if any(name in row for row in devices)]
    read = tuple(name for name in wanted if any(row[name] is not None for row in devices))
    missing = {name: _reason(name, devices) for name in wanted if name not in read}
    return CheckSeen(
        check=result["check"],
        title=check.title if check else "",
        outcome=Outcome(result["outcome"]),
        reason=result["reason"],
        codes=tuple(dict.fromkeys(finding["code"] for finding in result["findings"])),
        read=read,
        missing=missing,
        confirmed_before=check.confirmed if check else "",
    )


def _reason(name: str, devices: list[Document]) -> str:
    return ", ".join(dict.fromkeys(str(row.get("missing", {}).get(name, "null")) for row in devices))


def read_collective(output: Output, snapshot: Document) -> Told:
    """The verdict of an nccl-test run over NCCL."""
    document = document_of(output)
    exact = [result for result in document["results"] if result["verified"] is True]
    operations = ", ".join(dict.fromkeys(result["op"] for result in exact))
    words = f"{document['world_size']} {document['backend']} rank(s), {len(exact)} of {len(document['results'])} results exact ({operations})"
    if document["backend"] != "nccl":
        return Told(Outcome.FAIL, f"{words}: not NCCL")
    return Told(Outcome(document["outcome"]), _with_findings(words, document["findings"]))


def read_fault(output: Output, snapshot: Document) -> Told:
    """Whether the rank that was made to stop is the one that is named."""
    document = document_of(output)
    findings = document["findings"]
    first = findings[0] if findings else None
    if first is not None and first["subject"].get("rank") == 1:
        return Told(Outcome.PASS, f"{first['code']}: {first['message']}")
    named = first["message"] if first else "nobody was named"
    return Told(Outcome.FAIL, f"rank 1 was stopped, and the report says: {named}")


def read_pair(output: Output, snapshot: Document) -> Told:
    """What bare NCCL does with two ranks on one GPU, against what its version says."""
    answer = json.loads(output.text().strip().splitlines()[-1])
    version = _nccl_version(snapshot)
    expected = _number(version) >= SHARING_SINCE
    words = (
        "lets two ranks share a GPU" if answer["works"] else f"refuses two ranks on a GPU: {answer['words']}"
    )
    if answer["works"] is not expected:
        return Told(Outcome.FAIL, f"NCCL {version} {words}; gpudiag takes 2.30 for the first that can")
    if answer["works"] and answer["sum"] != 3.0:
        return Told(Outcome.FAIL, f"NCCL {version} {words}, and their sum is {answer['sum']} instead of 3")
    return Told(Outcome.PASS, f"NCCL {version} {words}")


def read_shared(output: Output, snapshot: Document) -> Told:
    """What gpudiag does with two ranks on one GPU: a verified run from NCCL 2.30, one sentence before."""
    version = _nccl_version(snapshot)
    if _number(version) < SHARING_SINCE:
        lines = [line for line in output.stderr.read_text(errors="replace").splitlines() if "2.30" in line]
        if output.status == 2 and lines:
            return Told(Outcome.PASS, f"refused before NCCL starts: {lines[0].strip()}")
        return Told(Outcome.FAIL, f"NCCL {version} cannot, and it was not refused: {output.last_words()}")
    document = document_of(output)
    told = read_collective(output, snapshot)
    if document["ranks_share_gpu"] is not True:
        return Told(Outcome.FAIL, f"NCCL {version}: {told.sentence}; the ranks do not share the GPU")
    return Told(told.outcome, f"legal with NCCL {version}: {told.sentence}")


def read_bandwidth(output: Output, snapshot: Document) -> Told:
    """The speeds of gpudiag's own tests on one GPU."""
    document = document_of(output)
    measured = loads(json.dumps(document)).measures.active
    timed = {
        name: result for result in (*measured.bandwidth, *measured.compute) if (name := _name_of(result))
    }
    speeds = tuple(
        Speed(
            name,
            unit,
            (value,),
            (),
            best=(value * timed[name].time_p50_seconds / timed[name].time_best_seconds,),
            meanwhile=describe_meanwhile(timed[name], measured),
        )
        for name, (unit, value, _) in speeds_of(document).items()
    )
    findings = [finding for result in document["results"] for finding in result["findings"]]
    wrong = sum(row["wrong_bytes"] for row in document["measures"]["active"]["bandwidth"])
    words = f"{len(speeds)} speeds, {wrong} wrong bytes"
    return Told(Outcome(document["verdict"]), _with_findings(words, findings), speeds=speeds)


def _name_of(result: Any) -> str:
    """The name of its speed, as `speeds_of` has it; empty for one that has none."""
    dtype = getattr(result, "dtype", None)
    if dtype is not None:
        return f"matmul.{dtype}"
    return "" if result.concurrent or isinstance(result.peer, int) else str(result.test)


def speeds_of(document: Document) -> dict[str, tuple[str, float, int]]:
    """Of each test of one GPU: its unit, its speed, and its size."""
    active = document["measures"]["active"]
    found: dict[str, tuple[str, float, int]] = {}
    for row in active["bandwidth"]:
        if row["peer"] is None and not row["concurrent"]:
            found[row["test"]] = ("B/s", row["bytes_per_second"], row["size_bytes"])
    for row in active["compute"]:
        found[f"matmul.{row['dtype']}"] = ("FLOP/s", row["flops_per_second"], row["size"])
    return found


def read_loop(output: Output, snapshot: Document) -> Told:
    """The bare loop's speeds."""
    rounds = json.loads(output.text().strip().splitlines()[-1])
    speeds = tuple(
        Speed(name, "FLOP/s" if name.startswith("matmul") else "B/s", (), tuple(found))
        for name, found in rounds.items()
    )
    return Told(Outcome.PASS, f"{len(speeds)} speeds, in {len(speeds[0].loop)} rounds", speeds=speeds)


def read_training(output: Output, snapshot: Document) -> Told:
    """Each strategy's verdict and proof."""
    document = document_of(output)
    words, findings = [], []
    for row in document["strategies"]:
        passed = sum(one["passed"] is True for one in row.get("verifications", ()))
        words.append(
            f"{row['strategy']} {row['dtype']}, {row['world_size']} {row['backend']} rank(s): "
            f"{passed} of {len(row.get('verifications', ()))} verifications{_skipped(row)}"
        )
        # One GPU is one worker; that is no fault here.
        findings += [one for one in row["findings"] if one["code"] != "train.single_worker"]
    outcomes = [Outcome(finding["outcome"]) for finding in findings]
    outcome = Outcome(document["outcome"]) if outcomes or document["outcome"] != "warn" else Outcome.PASS
    return Told(outcome, _with_findings("; ".join(words), findings))


def read_tests(output: Output, snapshot: Document) -> Told:
    """The tests of tests/gpu by pytest's XML, which lies beside the output."""
    root = ElementTree.parse(output.stdout.with_name("gpu-tests.xml")).getroot()  # noqa: S314 - our own test run
    cases = list(root.iter("testcase"))
    wrong = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    passed = len(cases) - len(wrong) - len(skipped)
    words = f"{passed} of {len(cases)} passed"
    for case in skipped:
        words += f"; {case.get('name')} skipped: {_message(case, 'skipped')}"
    for case in wrong:
        kind = "failure" if case.find("failure") is not None else "error"
        words += f"; {case.get('name')}: {_message(case, kind)}"
    if wrong:
        return Told(Outcome.FAIL, words)
    return Told(Outcome.PASS if passed else Outcome.ERROR, words)


def document_of(output: Output) -> Document:
    """The JSON document on a command's standard output.

    Raises:
        ValueError: there is none.
    """
    document = json.loads(output.text())
    if not isinstance(document, dict):
        raise ValueError("its standard output is no JSON object")  # noqa: TRY004 - what json raises for no JSON
    return document


def _skipped(row: Document) -> str:
    return f" ({row['outcome']}: {row['reason']})" if row["reason"] else ""


def _message(case: ElementTree.Element, kind: str) -> str:
    found = case.find(kind)
    return "" if found is None else str(found.get("message", "")).splitlines()[0][:200]


def _with_findings(words: str, findings: list[Document]) -> str:
    told = "; ".join(f"{finding['code']}: {finding['message']}" for finding in findings[:3])
    return f"{words}; {told}" if told else words


def _nccl_version(snapshot: Document) -> str:
    return str((snapshot.get("torch") or {}).get("nccl_version") or "of unknown version")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
