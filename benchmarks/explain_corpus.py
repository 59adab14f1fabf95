"""Prints how right `gpudiag explain` is over tests/corpus/explain, by kind, and what a large log costs it.

    python benchmarks/explain_corpus.py

Precision: of the texts for which a cause was named, the share in which it was the right one and first.
Recall: of the texts that have a cause, the share in which it was. The large log is 50 MB of training output
with a failure at its end, written to a temporary folder: once of one shape of line, once of lines that each
have "error" in other words.
"""

import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpudiag.explain.recipe import explain
from gpudiag.model.explanation import LogExplanation
from tests.corpus.explained import NOTHING, Text, answer_to, is_right, texts

_NO_DIGITS = str.maketrans("0123456789", "ghijklmnop")
LOG_BYTES = 50_000_000
FAILURE = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def main() -> None:
    """Print the table, then the cost."""
    print("| kind | texts | with a cause | named right | wrong cause named | precision | recall |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    kinds = sorted({text.kind for text in texts()})
    for kind in kinds:
        print(row(kind, [text for text in texts() if text.kind == kind]))
    print(row("**all**", list(texts())))
    for name, line in (("one shape", steady_line), ("every line another error", varied_line)):
        print(cost(name, line))


def row(kind: str, chosen: list[Text]) -> str:
    """One line of the table."""
    answers = [(text, answer_to(text.text)) for text in chosen]
    with_cause = [pair for pair in answers if ":" not in pair[0].expected and pair[0].expected != NOTHING]
    right = sum(is_right(text.expected, answer) for text, answer in with_cause)
    wrong = sum(bool(answer.causes) and not is_right(text.expected, answer) for text, answer in answers)
    precision = f"{right / (right + wrong):.3f}" if right + wrong else "-"
    recall = f"{right / len(with_cause):.3f}" if with_cause else "-"
    return f"| {kind} | {len(chosen)} | {len(with_cause)} | {right} | {wrong} | {precision} | {recall} |"


def steady_line(number: int) -> str:
    """A line as trainers print it."""
    return (
        f"2025-11-21 10:00:00,{number % 1000:03d} INFO [rank{number % 8}]: step {number} loss"
        f" {2 + number % 97 / 97:.4f} lr 1e-4 tokens/s 12345 mem 70.1GiB\n"
    )


def varied_line(number: int) -> str:
    """A line of an error that is like no other."""
    letters = hashlib.sha256(str(number).encode()).hexdigest()[:40].translate(_NO_DIGITS)
    return (
        f"ERROR worker {letters} failed with error {letters[:9]}: {letters[9:]} could not be"
        f" read from the queue of {number}\n"
    )


def cost(name: str, line: Callable[[int], str]) -> str:
    """What a large log of such lines costs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "train.log"
        with path.open("w") as out:
            written = number = 0
            while written < LOG_BYTES:
                written += out.write(line(number))
                number += 1
            out.write(FAILURE)
        before, started = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
        answer = explain((str(path),))
        seconds = time.process_time() - started
    if (
        not isinstance(answer, LogExplanation)
        or answer.sightings[0].explanation.topic != "cuda.out_of_memory"
    ):
        raise SystemExit(f"{name}: the failure at the end was not found")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before.ru_maxrss
    return f"50 MB, {number:,} lines, {name}: {seconds:.1f} s of CPU, {grown / 1024:.0f} MiB more at most"


if __name__ == "__main__":
    main()
