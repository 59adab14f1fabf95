"""Whether `gpudiag run` ends with the answer that `gpudiag hang` and `gpudiag explain` have. Prints Markdown.

    python -m benchmarks.last_words [--only KIND] [--output terminal|pipe|file] [--keep FOLDER]

Each job of `run_jobs/endings.py` runs with gpudiag's defaults, its output on a terminal, a pipe or a file. A
job that stands still is looked at by `gpudiag hang` once `run` has reported it, and is then interrupted with
SIGINT, as Ctrl-C does. Compared are the rank that is named first and a part of the sentence, of `run`'s last
words, of `hang` (asked before the end), of `explain` on the job's log and on the verdict. Exit status 1 where
one differs from what is so. `hang` is not asked of a job that fails at once.
"""

import argparse
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SCRIPT = Path(__file__).with_name("run_jobs") / "endings.py"
OUTPUTS = ("terminal", "pipe", "file")
STALL_SECONDS, LEFT_SECONDS, END_SECONDS = 130.0, 150.0, 90.0
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Case:
    """One job: which rank is the cause, and what must be reported; `ends`: it ends by itself."""

    kind: str
    rank: int | None  # None: nobody alone
    words: str  # a part of `run`'s last words
    ends: bool = False
    hang_words: str = ""  # a part of its answer; empty: it is not asked, or the same words


CASES = (
    Case("left_out", 1, "sleeps at endings.py"),
    Case(
        "leaves",
        1,
        "ended with exit status 0",
        ends=True,
        hang_words="rank 1 is not in the all_reduce",
    ),
    Case("key_error", 1, "KeyError: 'dog'", ends=True),
    Case("sleep_alike", None, "rank 1 waits in the broadcast"),
    Case("killed", 1, "SIGKILL", ends=True),
    Case("segfault", 1, "SIGSEGV", ends=True),
    Case("exits", 1, "exit code 3", ends=True),
    Case("ends_early", 1, "ended with exit status 0", ends=True),
    Case("fifo", 1, "FIFO"),
    Case("loop", 1, "in tokenize"),
    Case("polls", 1, "in wait_for_flag"),
    Case("lock", 1, "in fail_in_loader"),
    Case("other_call", None, "rank 1 waits in the broadcast"),
    Case("timeout", 1, "in fail_in_loader", ends=True),
)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answer of each, and how long it took."""

    run: str
    hang: str
    explain_log: str
    explain_verdict: str
    first: dict[str, object]
    stall_seconds: float | None


class _Job:
    """One watched job, its output collected from a terminal, a pipe or a file."""

    def __init__(self, kind: str, output: str, folder: Path) -> None:
        self.log = folder / "job.log"
        self.verdict = folder / "verdict.json"
        command = [
            *(sys.executable, "-m", "gpudiag", "run", "--verdict", str(self.verdict), "--"),
            *(
                sys.executable,
                "-m",
                "torch.distributed.run",
                "--standalone",
                "--nproc-per-node=2",
                str(SCRIPT),
            ),
        ]
        environment = {**os.environ, "KIND": kind, "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
        self._reader: threading.Thread | None = None
        if output == "file":
            with self.log.open("wb") as file:
                self.process = subprocess.Popen(
                    command, env=environment, stdout=file, stderr=file, start_new_session=True
                )
            return
        ours, theirs = pty.openpty() if output == "terminal" else os.pipe()
        self.process = subprocess.Popen(
            command, env=environment, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._copy, args=(ours,), daemon=True)
        self._reader.start()

    def _copy(self, descriptor: int) -> None:
        with self.log.open("wb") as file:
            while True:
                try:
                    data = os.read(descriptor, 65536)
                except OSError:  # the terminal's other side is closed
                    data = b""
                if not data:
                    break
                file.write(data)
                file.flush()
        os.close(descriptor)

    def text(self) -> str:
        return (
            _COLOUR.sub("", self.log.read_text(errors="replace")).replace("\r", "")
            if self.log.exists()
            else ""
        )

    def wait(self, seconds: float, word: str = "") -> float | None:
        """After how many seconds it ended, or its output has that word; None where neither came."""
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            if self.process.poll() is not None or (word and word in self.text()):
                return time.monotonic() - began
            select.select([], [], [], 0.2)
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
            if self.wait(END_SECONDS) is None:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._reader is not None:
            self._reader.join(10)


def try_job(case: Case, output: str, folder: Path) -> Answers:
    """Run one job to its end, and ask the others."""
    job = _Job(case.kind, output, folder)
    hang = ""
    try:
        if case.hang_words:  # it works on, and ends before it is called a stall
            job.wait(45.0)
            hang = _ask("hang", str(job.process.pid)) if job.process.poll() is None else ""
        stall_seconds = job.wait(LEFT_SECONDS if case.ends else STALL_SECONDS, "STALL")
        if job.process.poll() is None:
            hang = hang or _ask("hang", str(job.process.pid))
        if case.ends:
            job.wait(END_SECONDS)
    finally:
        job.end()
    document = json.loads(job.verdict.read_text()) if job.verdict.exists() else {}
    finding = (document.get("findings") or [{}])[0]
    last = _unwrapped(job.text())
    return Answers(
        next((line for line in reversed(last) if line.startswith(("FAIL", "WARN", "PASS", "SKIP"))), ""),
        hang,
        _ask("explain", str(job.log)),
        _ask("explain", str(job.verdict)),
        {
            "code": finding.get("code"),
            "rank": (finding.get("subject") or {}).get("rank"),
            "message": finding.get("message", ""),
            "others": [one["code"] for one in (document.get("findings") or [])[1:]],
        },
        stall_seconds,
    )


def _unwrapped(text: str) -> list[str]:
    """The sentences of gpudiag's own lines, each in one line; the first of a paragraph is not indented."""
    sentences: list[str] = []
    for line in text.splitlines():
        own = line.removeprefix("gpudiag: ")
        if own == line:
            continue
        if own.startswith("  ") and sentences:
            sentences[-1] += f" {own.strip()}"
        else:
            sentences.append(own)
    first_finding = [one for one in sentences if one.startswith(("FAIL", "WARN", "PASS", "SKIP"))]
    return first_finding[:1] or sentences


def _ask(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", *words],
        env={**os.environ, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    text = _COLOUR.sub("", done.stdout or done.stderr)
    paragraph = text.split("\n\n")[0] if words[0] == "hang" else text
    return " ".join(paragraph.split())


def judge(case: Case, answers: Answers) -> list[str]:
    """What does not agree."""
    wrong = []
    if case.words not in answers.run or answers.first["rank"] != case.rank or answers.first["others"]:
        wrong.append("run")
    if not case.ends and case.words not in answers.hang:
        wrong.append("hang")
    if case.hang_words and case.hang_words not in answers.hang:
        wrong.append("hang")
    wrong += [
        name
        for name, text in (("explain log", answers.explain_log), ("explain verdict", answers.explain_verdict))
        if case.words not in text or (case.rank is not None and f"ank {case.rank} " not in text)
    ]
    return wrong


def rows(cases: list[Case], outputs: list[str], keep: Path) -> Iterator[bool]:
    """Print a row for each job and output; whether all agree."""
    for case in cases:
        for output in outputs:
            folder = keep / f"{case.kind}-{output}"
            folder.mkdir(parents=True)
            answers = try_job(case, output, folder)
            wrong = judge(case, answers)
            seconds = "-" if answers.stall_seconds is None else f"{answers.stall_seconds:.0f} s"
            cells = (
                case.kind,
                output,
                "agree" if not wrong else f"WRONG: {', '.join(wrong)}",
                seconds,
                answers.run,
                answers.hang or "-",
                answers.explain_log[:300],
                answers.explain_verdict[:300],
            )
            print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
            yield not wrong


def main() -> int:
    """Try all of them; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--output", action="append", default=[], choices=OUTPUTS)
    parser.add_argument("--keep", type=Path, help="keep logs and verdicts there")
    options = parser.parse_args()
    cases = [case for case in CASES if not options.only or case.kind in options.only]
    print(
        "| job | output | | stall or end after | run | hang | explain, log | explain, verdict |\n"
        + "| --- " * 8
        + "|"
    )
    with tempfile.TemporaryDirectory() as name:
        results = list(rows(cases, options.output or list(OUTPUTS), options.keep or Path(name)))
    print(
        "\n"
        f"{sum(results)} of {len(results)} agree; load {os.getloadavg()[0]:.0f}, {os.cpu_count()} processors"
    )
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
