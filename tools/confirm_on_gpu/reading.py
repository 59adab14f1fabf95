"""From a step's output to its result: one reader per kind of output."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree

from gpudiag.model.documents import loads
from gpudiag.model.finding import Outcome
from gpudiag.render.bandwidth_text import describe_meanwhile
from tools.confirm_on_gpu.machine import gpus_of, is_stand_in, loaded_nccl, shares_gpus
from tools.confirm_on_gpu.report import (
    CallCost,
    CheckSeen,
    HangSeen,
    ReadingOutcome,
    ReadingSeen,
    Speed,
    StartTime,
)
from tools.confirm_on_gpu.step import Output, StepResult

Document = Mapping[str, Any]
SHARING_SINCE = (2, 30)  # NCCL 2.30 release notes: NCCL_MULTI_RANK_GPU_ENABLE


def read_machine(output: Output, snapshot: Document) -> StepResult:
    """Which GPUs are here, and how each source answered."""
    document = document_of(output)
    gpus = [f"{gpu.name} ({gpu.bus_id})" for gpu in gpus_of(document)]
    sources = ", ".join(f"{status['name']} {status['state']}" for status in document["sources"])
    unexpected = [item["field"] for item in document["disagreements"] if not item["expected"]]
    words = f"{len(gpus)} GPU(s): {', '.join(gpus)}; sources: {sources}"
    if unexpected:
        return StepResult(Outcome.FAIL, f"{words}; they disagree on {', '.join(unexpected)}")
    if not gpus:
        reasons = [
            f"{status['name']}: {status['reason']}" for status in document["sources"] if status["reason"]
        ]
        return StepResult(
            Outcome.ERROR, f"no GPU; sources: {sources}{'; ' + '; '.join(reasons) if reasons else ''}"
        )
    return StepResult(Outcome.PASS, words)


def read_capture(output: Output, snapshot: Document) -> StepResult:
    """Whether nvidia-smi wrote a capture."""
    root = ElementTree.fromstring(output.text())  # noqa: S314 - nvidia-smi wrote it here, just now
    return StepResult(Outcome.PASS, f"nvidia-smi -q -x of {len(root.findall('gpu'))} GPU(s)")


def read_comparison(output: Output, snapshot: Document) -> StepResult:
    """What NVML reported through gpudiag, reading by reading, beside nvidia-smi."""
    rows = tuple(ReadingSeen(**row) for row in json.loads(output.text()))
    if not rows:
        return StepResult(Outcome.ERROR, "no GPU is in both the record and the capture")
    counts = Counter(row.outcome for row in rows)
    wrong = [row for row in rows if is_wrong(row)]
    words = ", ".join(f"{counts[outcome]} {outcome}" for outcome in sorted(counts))
    if wrong:
        named = ", ".join(dict.fromkeys(row.reading for row in wrong))
        return StepResult(Outcome.FAIL, f"{words}; not as nvidia-smi has it: {named}", readings=rows)
    return StepResult(Outcome.PASS, words, readings=rows)


def is_wrong(row: ReadingSeen | ReadingOutcome) -> bool:
    """Whether the two looks contradict each other: a value on one side only, or a fixed one that differs."""
    if row.outcome in ("only_here", "only_in_capture"):
        return True
    return row.outcome == "differs" and row.kind != "live"


def read_playback(output: Output, snapshot: Document) -> StepResult:
    """Whether the record plays back as it was."""
    answer = json.loads(output.text())
    if answer["simulated"] is None and is_stand_in(snapshot):
        return StepResult(Outcome.SKIP, "the stand-in for CUDA answers for the played machine too")
    if answer["simulated"] is None:
        return StepResult(Outcome.FAIL, "what was listed is the real machine, not the record")
    if answer["differing"]:
        return StepResult(
            Outcome.FAIL, f"{answer['same']} readings came back; not {', '.join(answer['differing'][:8])}"
        )
    return StepResult(Outcome.PASS, f"all {answer['same']} readings came back")


def read_preflight(output: Output, snapshot: Document) -> StepResult:
    """Every check's outcome, with the readings of a GPU that it judged."""
    document = document_of(output)
    checks = checks_of(document)
    counts = Counter(check.outcome for check in checks)
    words = ", ".join(f"{counts[outcome]} {outcome.value.upper()}" for outcome in Outcome if counts[outcome])
    findings = [finding for result in document["results"] for finding in result["findings"]]
    messages = "; ".join(finding["message"] for finding in findings[:4])
    verdict = Outcome(document["verdict"])
    speeds = _speeds_seen(document) if isinstance(document["measures"].get("active"), dict) else ()
    return StepResult(verdict, f"{words}{'; ' + messages if messages else ''}", checks=checks, speeds=speeds)


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


def read_collective(output: Output, snapshot: Document) -> StepResult:
    """The verdict of an nccl-test run over NCCL."""
    document = document_of(output)
    exact = [result for result in document["results"] if result["verified"] is True]
    operations = ", ".join(dict.fromkeys(result["op"] for result in exact))
    words = (
        f"{document['world_size']} {document['backend']} rank(s), {len(exact)} of"
        f" {len(document['results'])} results exact ({operations})"
    )
    if document["backend"] != "nccl":
        return StepResult(Outcome.FAIL, f"{words}: not NCCL")
    return StepResult(Outcome(document["outcome"]), _with_findings(words, document["findings"]))


def read_fault(output: Output, snapshot: Document, what: str = "was stopped") -> StepResult:
    """Whether rank 1, to which it was done, is the one that is named."""
    document = document_of(output)
    findings = document["findings"]
    first = findings[0] if findings else None
    if first is not None and first["subject"].get("rank") == 1:
        return StepResult(Outcome.PASS, f"{first['code']}: {first['message']}")
    named = first["message"] if first else "nobody was named"
    return StepResult(Outcome.FAIL, f"rank 1 {what}, and the report has: {named}")


def read_pair(output: Output, snapshot: Document) -> StepResult:
    """What bare NCCL does with two ranks on one GPU, against what its version can do."""
    answer = json.loads(output.text().strip().splitlines()[-1])
    version = answer.get("version") or _nccl_version(snapshot)
    expected = _number(version) >= SHARING_SINCE
    words = (
        "lets two ranks share a GPU" if answer["works"] else f"refuses two ranks on a GPU: {answer['words']}"
    )
    if answer["works"] is not expected:
        return StepResult(Outcome.FAIL, f"NCCL {version} {words}; gpudiag takes 2.30 for the first that can")
    if answer["works"] and answer["sum"] != 3.0:
        return StepResult(
            Outcome.FAIL, f"NCCL {version} {words}, and their sum is {answer['sum']} instead of 3"
        )
    return StepResult(Outcome.PASS, f"NCCL {version} {words}")


def read_shared(output: Output, snapshot: Document) -> StepResult:
    """What gpudiag does with two ranks on one GPU: a verified run, or a sentence why not."""
    version = loaded_nccl(output.stdout.parent) or _nccl_version(snapshot)
    if not (shares_gpus(output.stdout.parent) or _number(version) >= SHARING_SINCE):
        lines = [line for line in output.stderr.read_text(errors="replace").splitlines() if "2.30" in line]
        if output.status == 2 and lines:
            return StepResult(Outcome.PASS, f"refused before NCCL starts: {lines[0].strip()}")
        return StepResult(
            Outcome.FAIL, f"NCCL {version} cannot, and it was not refused: {output.last_words()}"
        )
    document = document_of(output)
    result = read_collective(output, snapshot)
    if document["ranks_share_gpu"] is not True:
        return StepResult(Outcome.FAIL, f"NCCL {version}: {result.sentence}; the ranks do not share the GPU")
    return StepResult(result.outcome, f"legal with NCCL {version}: {result.sentence}")


def read_bandwidth(output: Output, snapshot: Document) -> StepResult:
    """The speeds of gpudiag's own tests on one GPU."""
    document = document_of(output)
    speeds = _speeds_seen(document)
    findings = [finding for result in document["results"] for finding in result["findings"]]
    wrong = sum(row["wrong_bytes"] for row in document["measures"]["active"]["bandwidth"])
    words = f"{len(speeds)} speeds, {wrong} wrong bytes"
    return StepResult(Outcome(document["verdict"]), _with_findings(words, findings), speeds=speeds)


def _speeds_seen(document: Document) -> tuple[Speed, ...]:
    measured = loads(json.dumps(document)).measures.active
    timed = {
        name: result for result in (*measured.bandwidth, *measured.compute) if (name := _name_of(result))
    }
    return tuple(
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


def read_loop(output: Output, snapshot: Document) -> StepResult:
    """The bare loop's speeds."""
    rounds = json.loads(output.text().strip().splitlines()[-1])
    speeds = tuple(
        Speed(name, "FLOP/s" if name.startswith("matmul") else "B/s", (), tuple(found))
        for name, found in rounds.items()
    )
    return StepResult(Outcome.PASS, f"{len(speeds)} speeds, in {len(speeds[0].loop)} rounds", speeds=speeds)


def read_kill(output: Output, snapshot: Document) -> StepResult:
    """Whether the rank that was killed is the one that is named."""
    return read_fault(output, snapshot, "was killed")


def read_mismatch(output: Output, snapshot: Document) -> StepResult:
    """Whether the rank with another size is the one that is named."""
    return read_fault(output, snapshot, "entered another size")


def read_costs(output: Output, snapshot: Document) -> StepResult:
    """What each call into NVML costs, and a listing and a tick of the sampler with them."""
    rows = _lines_of(output)
    looks = {row["look"]: row for row in rows if "look" in row}
    costs = tuple(
        CallCost(
            row["call"],
            row["per_look"]["list"],
            row["per_look"]["fast tick"],
            row["per_look"]["slow tick"],
            row["median_seconds"],
            row["longest_seconds"],
            row["processor_seconds"],
        )
        for row in rows
        if "call" in row
    )
    words = "; ".join(
        f"{look}: {1000 * row['median_seconds']:.1f} ms,"
        f" {1000 * row['processor_seconds']:.1f} ms of a processor"
        for look, row in looks.items()
    )
    dear = max(costs, key=lambda cost: cost.of_list * cost.median_seconds, default=None)
    if dear is not None:
        words += f"; dearest of a listing: {dear.call}, {1000 * dear.of_list * dear.median_seconds:.1f} ms"
    return StepResult(Outcome.PASS if costs else Outcome.FAIL, words or output.last_words(), costs=costs)


_LIST, _INSTANT, _NVITOP = "gpudiag list --json", "gpudiag preflight --level instant", "nvitop -1"
LIST_SHARE, INSTANT_SECONDS = 0.6, 0.9  # what is aimed at: of nvitop's time; at level instant


def read_starts(output: Output, snapshot: Document) -> StepResult:
    """How long each command takes; WARN where one of gpudiag's takes longer than it is meant to."""
    last = {row["command"]: row for row in _lines_of(output)}
    starts = tuple(
        StartTime(
            row["command"],
            row.get("median_seconds"),
            row.get("processor_seconds"),
            row.get("rounds", 0),
            row.get("not_run"),
        )
        for row in last.values()
    )
    took = {one.command: one.median_seconds for one in starts if one.median_seconds is not None}
    words = ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in took.items())
    words += "".join(f"; {one.command} not run: {one.not_run}" for one in starts if one.not_run)
    late = []
    if _LIST in took and _NVITOP in took and took[_LIST] > LIST_SHARE * took[_NVITOP]:
        late.append(f"list takes {took[_LIST] / took[_NVITOP]:.2f} of nvitop's time, aimed at {LIST_SHARE}")
    if took.get(_INSTANT, 0.0) > INSTANT_SECONDS:
        late.append(f"level instant takes {took[_INSTANT]:.2f} s, aimed at {INSTANT_SECONDS} s")
    if not took:
        return StepResult(Outcome.FAIL, words or output.last_words(), starts=starts)
    return StepResult(Outcome.WARN if late else Outcome.PASS, "; ".join([words, *late]), starts=starts)


IDLE_SHARE, LOOKED_SHARE = 0.005, 0.01  # of a core, for the sampler of one GPU


def read_service(output: Output, snapshot: Document) -> StepResult:
    """What service and sampler take, looked at and alone; WARN if the sampler takes too much."""
    rows = _lines_of(output)
    words, late = [], []
    for row in rows:
        shares, memory = row["processor_shares"], row["pss_bytes"]
        each = ", ".join(
            f"{name} {100 * share:.2f} % of a core"
            + ("" if memory[name] is None else f" and {memory[name] / 2**20:.0f} MiB")
            for name, share in shares.items()
        )
        states = f", state {', '.join(row['states'])}" if row["states"] else ""
        words.append(f"{row['when']} for {row['seconds']:.0f} s: {each}{states}")
        most = (IDLE_SHARE if row["when"] == "alone" else LOOKED_SHARE) * max(1, len(gpus_of(snapshot)))
        if shares.get("sampler", 0.0) > most:
            late.append(f"the sampler takes more than {100 * most:.1f} %, {row['when']}")
        if "slow" in row["states"]:
            late.append("the sampler reports that it is slow")
    if not rows:
        return StepResult(Outcome.FAIL, f"it gave no figures: {output.last_words()}")
    return StepResult(Outcome.WARN if late else Outcome.PASS, "; ".join([*words, *late]))


def read_hangs(output: Output, snapshot: Document) -> StepResult:
    """What `gpudiag hang` reported of each job; a wrong word, or a healthy job that is accused, is FAIL."""
    hangs = tuple(
        HangSeen(row["kind"], row["right"], row["answer"], row["seconds"], tuple(row["steps"]))
        for row in _lines_of(output)
    )
    right = [one for one in hangs if one.right]
    words = f"{len(right)} of {len(hangs)} right"
    words += "".join(f"; {one.kind} ({one.seconds:.1f} s): {one.answer}" for one in hangs if not one.right)
    if not hangs:
        return StepResult(Outcome.FAIL, f"no job was looked at: {output.last_words()}")
    if any(one.right is False for one in hangs):
        return StepResult(Outcome.FAIL, words, hangs=hangs)
    return StepResult(Outcome.PASS if len(right) == len(hangs) else Outcome.ERROR, words, hangs=hangs)


def read_progress(events: str) -> str:
    """How far a command of gpudiag was, by the events that it wrote; empty where it wrote none."""
    rows = []
    for line in events.splitlines():
        try:
            rows.append(json.loads(line))
        except ValueError:  # the last line of one that was killed
            continue
    if not rows:
        return ""
    last = rows[-1]
    stage = next((row["stage"] for row in reversed(rows) if row.get("stage")), None)
    done = f"{last['done']} of {last['planned']} results" if last["planned"] else f"{len(rows)} events"
    findings = [row["finding"]["code"] for row in rows if row.get("finding")]
    words = f"{done} after {last['at_seconds']:.0f} s" + (f", in stage {stage}" if stage else "")
    return words + (f", with {', '.join(findings)}" if findings else "")


def _lines_of(output: Output) -> list[Document]:
    """The JSON objects that it printed, one a line; a last line that was cut is left out."""
    rows: list[Document] = []
    for line in output.text().splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def read_training(output: Output, snapshot: Document) -> StepResult:
    """Each strategy's verdict and proof."""
    document = document_of(output)
    words, findings = [], []
    for row in document["strategies"]:
        passed = sum(one["passed"] is True for one in row.get("verifications", ()))
        words.append(
            f"{row['strategy']} {row['dtype']}, {row['world_size']} {row['backend'] or 'one-process'}"
            f" rank(s): {passed} of {len(row.get('verifications', ()))} verifications{_skipped(row)}"
        )
        # One GPU is one worker; that is no fault here.
        findings += [one for one in row["findings"] if one["code"] != "train.single_worker"]
    outcomes = [Outcome(finding["outcome"]) for finding in findings]
    outcome = Outcome(document["outcome"]) if outcomes or document["outcome"] != "warn" else Outcome.PASS
    return StepResult(outcome, _with_findings("; ".join(words), findings))


def read_tests(output: Output, snapshot: Document) -> StepResult:
    """The tests of tests/gpu by pytest's XML, which lies beside the output."""
    # The file is of our own test run.
    root = ElementTree.parse(output.stdout.with_name("gpu-tests.xml")).getroot()  # noqa: S314
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
        return StepResult(Outcome.FAIL, words)
    return StepResult(Outcome.PASS if passed else Outcome.ERROR, words)


def document_of(output: Output) -> Document:
    """The JSON document on a command's standard output. Raises ValueError: there is none."""
    document = json.loads(output.text())
    if not isinstance(document, dict):
        # ValueError: what json raises for no JSON.
        raise ValueError("its standard output is no JSON object")  # noqa: TRY004
    return document


def _skipped(row: Document) -> str:
    return f" ({row['outcome']}: {row['reason']})" if row["reason"] else ""


def _message(case: ElementTree.Element, kind: str) -> str:
    found = case.find(kind)
    return "" if found is None else str(found.get("message", "")).splitlines()[0][:200]


def _with_findings(words: str, findings: list[Document]) -> str:
    messages = "; ".join(f"{finding['code']}: {finding['message']}" for finding in findings[:3])
    return f"{words}; {messages}" if messages else words


def _nccl_version(snapshot: Document) -> str:
    return str((snapshot.get("torch") or {}).get("nccl_version") or "of unknown version")


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
