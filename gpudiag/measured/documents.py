"""Benchmarks' results in JSON: nccl-tests, nvbandwidth, `dcgmi diag`, NCCL's Inspector, gpudiag."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from gpudiag.checks.benchmarks.collectives import NO_WARM_UP, ONE_RANK, REAL_JOB
from gpudiag.checks.benchmarks.judge import DCGM, NCCL_TESTS, NOT_CHECKED
from gpudiag.measured.facts import Facts
from gpudiag.measured.numbers import as_number
from gpudiag.measured.nvbandwidth import NVBANDWIDTH, matrix_values, remarks_of
from gpudiag.measured.own_documents import own_tables
from gpudiag.model.benchmark import MeasuredTable, MeasuredValue, Metric, Setup, TestResult
from gpudiag.model.reading import NOT_ASKED, Missing, Reading
from gpudiag.units import BYTES_PER_GB

INSPECTOR = "NCCL Inspector"
MAX_JSON_BYTES = 64 << 20
_OPERATIONS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "sendrecv",
    "alltoall": "alltoall",
    "send": "sendrecv",
    "recv": "sendrecv",
}
_STATUSES = {
    "pass": "pass",
    "fail": "fail",
    "warn": "warn",
    "skip": "skip",
    "not run": "skip",
    "skipped": "skip",
}
_ALGORITHMS = {"ring": "ring", "tree": "tree", "nvls": "NVLS", "nvlstree": "NVLS", "nvls_tree": "NVLS"}


def documents_in(text: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each JSON object that begins a line, with the line's number; other text between them is skipped."""
    decoder, at = json.JSONDecoder(), 0
    while (at := _next_brace(text, at)) >= 0:
        try:
            found, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            continue
        if isinstance(found, dict):
            yield text.count("\n", 0, at) + 1, found
        at = end


def _next_brace(text: str, start: int) -> int:
    """Where the next object begins that stands first on its line; -1 where none does."""
    if start == 0 and text.startswith("{"):
        return 0
    at = text.find("\n{", max(start - 1, 0))
    return at + 1 if at >= 0 else -1


def json_tables(file: str, text: str, facts: Facts) -> list[MeasuredTable]:
    """The tables of all documents of a text; facts that they hold go to `facts`."""
    tables: list[MeasuredTable] = []
    records: list[tuple[int, dict[str, Any]]] = []
    for line, document in documents_in(text):
        if "coll_perf" in document:
            records.append((line, document))
            continue
        for reader in _READERS:
            if (found := reader(file, line, document, facts)) is not None:
                tables += found
                break
    return [*tables, *_of_inspector(file, records)]


def _of_own(file: str, line: int, document: dict[str, Any], facts: Facts) -> list[MeasuredTable] | None:
    if not str(document.get("schema", "")).startswith("gpudiag."):
        return None
    return own_tables(file, line, document)


def _of_nccl_tests(
    file: str, line: int, document: dict[str, Any], facts: Facts
) -> list[MeasuredTable] | None:
    """The document of nccl-tests' -J, in which each result has both placements."""
    results = document.get("results")
    if not isinstance(results, list) or not any(
        isinstance(one, dict) and "out_of_place" in one for one in results
    ):
        return None
    config = document.get("config")
    config = config if isinstance(config, dict) else {}
    setup = _setup_of_nccl_tests(document, config, facts)
    operation = _operation_of(document, results)
    values = [value for result in results if isinstance(result, dict) for value in _placements(result)]
    bounds = document.get("out_of_bounds")
    bounds = bounds.get("count") if isinstance(bounds, dict) else bounds
    checked = any(not isinstance(value.wrong, Missing) for value in values)
    return [
        MeasuredTable(
            file,
            line,
            NCCL_TESTS,
            NOT_ASKED,
            operation,
            Metric.BUSBW,
            tuple(values),
            setup,
            complete=bool(values),
            out_of_bounds=bounds if isinstance(bounds, int) else NOT_ASKED,
            remarks=(
                *([] if checked else [NOT_CHECKED]),
                *([NO_WARM_UP] if config.get("warmup_iters") == 0 else []),
                *([ONE_RANK] if setup.gpus == 1 else []),
            ),
        )
    ]


def _operation_of(document: dict[str, Any], results: list[Any]) -> str:
    config = document.get("config")
    named = [document.get("test"), document.get("args"), document.get("cmdline")]
    named += [one.get("experiment_name") for one in results if isinstance(one, dict)]
    named += [json.dumps(config)] if isinstance(config, dict) else []
    for words in named:
        plain = str(words or "").lower().replace("_perf", "").replace("_", "").rsplit("/", 1)[-1]
        for word, operation in _OPERATIONS.items():
            if plain.startswith(word) or f'"{word}"' in plain:
                return operation
    return "all_reduce"


def _setup_of_nccl_tests(document: dict[str, Any], config: dict[str, Any], facts: Facts) -> Setup:
    """What the document shows of the machine: of a process with several GPUs it has only the first."""
    of_process = max(1, _count(config.get("nthreads"))) * max(1, _count(config.get("ngpus")))
    devices = config.get("devices") or document.get("devices") or ()
    for place, device in enumerate(one for one in devices if isinstance(one, dict)):
        name = device.get("device_info") or device.get("device_name") or device.get("name")
        host, number = str(device.get("hostname") or device.get("host") or ""), device.get("rank")
        rank = number if isinstance(number, int) else place * of_process
        for beside in range(of_process):
            facts.ranks[rank + beside] = (host, _count(device.get("device")) + beside, str(name or ""))
    for variable in document.get("env") or ():
        if str(variable).startswith("NCCL_"):
            facts.read(str(variable))
    version = document.get("nccl_version")
    if isinstance(version, str):
        facts.nccl_version = version
    elif isinstance(version, int):
        facts.nccl_version = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return facts.setup()


def _placements(result: dict[str, Any]) -> Iterator[MeasuredValue]:
    size = result.get("size")
    for place, name in enumerate(("out_of_place", "in_place")):
        group = result.get(name)
        speed = _float(group.get("bus_bw")) if isinstance(group, dict) else None
        if isinstance(group, dict) and speed is not None and isinstance(size, int):
            wrong = _float(group.get("nwrong"))
            yield MeasuredValue(
                speed * BYTES_PER_GB, size, NOT_ASKED if wrong is None else int(wrong), in_place=place == 1
            )


def _float(value: Any) -> float | None:
    return None if value is None or isinstance(value, (dict, list, bool)) else as_number(str(value))


def _of_nvbandwidth(
    file: str, line: int, document: dict[str, Any], facts: Facts
) -> list[MeasuredTable] | None:
    """The document of nvbandwidth's -j: each test with its matrix of words."""
    inner = document.get("nvbandwidth")
    if not isinstance(inner, dict):
        return None
    for place, name in enumerate(inner.get("GPU Device list") or ()):
        words = str(name)
        facts.gpus[place] = words.split(": ", 1)[-1].rsplit(" (", 1)[0].rstrip(":")
    setup, version = facts.setup(), str(inner.get("nvbandwidth Version") or inner.get("version") or "")
    tests = [one for one in inner.get("testcases") or () if isinstance(one, dict)]
    return [
        _nvbandwidth_test(file, line, test, setup, version.removeprefix("v") or NOT_ASKED)
        for test in tests
        if str(test.get("status", "Passed")).lower() not in ("waived", "not found")
    ]


def _nvbandwidth_test(
    file: str, line: int, test: dict[str, Any], setup: Setup, version: Reading[str]
) -> MeasuredTable:
    name = str(test.get("name", "unnamed test"))
    by_rows = "GPU(row)" in str(test.get("bandwidth_description", ""))
    matrix = test.get("bandwidth_matrix")
    rows = [
        (place, [str(one) for one in row])
        for place, row in enumerate(matrix if isinstance(matrix, list) else ())
        if isinstance(row, list)
    ]
    columns = list(range(len(rows[0][1]))) if rows else []
    failed = str(test.get("status", "Passed")).lower() not in ("passed", "pass")
    message = str(test.get("error") or test.get("reason") or test.get("status"))
    status = "wrong" if "pattern" in message.lower() else "fail"
    return MeasuredTable(
        file,
        line,
        NVBANDWIDTH,
        version,
        name,
        Metric.LATENCY if "latency" in name else Metric.BANDWIDTH,
        tuple(matrix_values(rows, columns, by_rows, 1e-9 if "latency" in name else BYTES_PER_GB)),
        setup,
        results=(TestResult(name, status, message=message),) if failed else (),
        remarks=remarks_of(name),
    )


def _of_dcgm(file: str, line: int, document: dict[str, Any], facts: Facts) -> list[MeasuredTable] | None:
    """The document of `dcgmi diag -j`, of DCGM 3 and 4."""
    inner = document.get("DCGM GPU Diagnostic") or document.get("DCGM Diagnostic")
    if not isinstance(inner, dict):
        return None
    meta = document.get("metadata")
    version = (meta.get("DCGM Version") or meta.get("version")) if isinstance(meta, dict) else None
    version = version or inner.get("DCGM Version")
    results = [
        result
        for category in inner.get("test_categories") or ()
        if isinstance(category, dict)
        for test in category.get("tests") or ()
        if isinstance(test, dict)
        for result in _of_dcgm_test(test)
    ]
    return [
        MeasuredTable(
            file,
            line,
            DCGM,
            str(version) if version else NOT_ASKED,
            "diagnostic",
            Metric.RESULTS,
            (),
            facts.setup(),
            results=tuple(results),
        )
    ]


def _of_dcgm_test(test: dict[str, Any]) -> Iterator[TestResult]:
    name = str(test.get("name", "unnamed test"))
    for result in test.get("results") or ():
        if not isinstance(result, dict):
            continue
        status = _STATUSES.get(str(result.get("status", "")).lower())
        if status is None:
            continue
        gpus = _dcgm_gpus(result)
        message = _dcgm_message(result)
        for gpu in (*gpus,) or (None,):
            yield TestResult(name, status, gpu, message)


def _dcgm_gpus(result: dict[str, Any]) -> list[int]:
    if str(result.get("entity_group", "GPU")) != "GPU":
        return []
    given = result.get("gpu_ids", result.get("gpu_id", result.get("entity_id")))
    words = given if isinstance(given, list) else str(given if given is not None else "").split(",")
    return [int(word) for word in map(str, words) if word.strip().isdecimal()]


def _dcgm_message(result: dict[str, Any]) -> str:
    """The warnings of a result, as one text: strings in DCGM 3, objects with a category in DCGM 4."""
    warnings = result.get("warnings") or result.get("errors") or result.get("warning") or ()
    warnings = warnings if isinstance(warnings, (list, tuple)) else [warnings]
    return " ".join(
        str(one.get("warning") or one.get("error") or one.get("message") or "")
        if isinstance(one, dict)
        else str(one)
        for one in warnings
    )


_READERS: tuple[Callable[[str, int, dict[str, Any], Facts], list[MeasuredTable] | None], ...] = (
    _of_own,
    _of_nccl_tests,
    _of_nvbandwidth,
    _of_dcgm,
)


def _of_inspector(file: str, records: list[tuple[int, dict[str, Any]]]) -> list[MeasuredTable]:
    """One table for each operation and communicator size of NCCL's Inspector, which watches a real job."""
    grouped: dict[tuple[str, int, int], list[tuple[int, dict[str, Any], dict[str, Any]]]] = {}
    for line, record in records:
        inner = record["coll_perf"]
        head = record.get("header")
        head = head if isinstance(head, dict) else {}
        if isinstance(inner, dict):
            operation = _OPERATIONS.get(str(inner.get("coll", "")).lower(), str(inner.get("coll", "unnamed")))
            key = (operation, _count(head.get("n_ranks")), _count(head.get("nnodes")))
            grouped.setdefault(key, []).append((line, inner, record))
    return [_inspector_table(file, *key, found) for key, found in grouped.items()]


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _inspector_table(
    file: str, operation: str, ranks: int, nodes: int, found: list[tuple[int, dict[str, Any], dict[str, Any]]]
) -> MeasuredTable:
    values = [
        MeasuredValue(speed * BYTES_PER_GB, size)
        for _, inner, _ in found
        if (speed := _float(inner.get("coll_busbw_gbs"))) is not None
        and isinstance(size := inner.get("coll_msg_size_bytes"), int)
    ]
    algorithms = {
        _ALGORITHMS.get(str(inner.get("coll_algo", "")).lower().split("_")[0], "") for _, inner, _ in found
    }
    setup = Setup(
        gpus=ranks or NOT_ASKED,
        nodes=nodes or NOT_ASKED,
        algorithm=next(iter(algorithms)) if len(algorithms) == 1 and "" not in algorithms else NOT_ASKED,
    )
    return MeasuredTable(
        file,
        found[0][0],
        INSPECTOR,
        NOT_ASKED,
        operation,
        Metric.BUSBW,
        tuple(values),
        setup,
        complete=bool(values),
        remarks=(REAL_JOB,),
    )
