"""Precision, recall and speed of `gpudiag lint` on its examples, planted mistakes, and good scripts.

    python -m benchmarks.lint_corpus            what is found of what is planted, by rule
    python -m benchmarks.lint_corpus --files N  seconds for N files (1,000): copies of the corpus, renamed

Beside it stands what a user could do without it: grep for the words that the mistakes have in common.
"""

import argparse
import os
import re
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from gpudiag.lint.linter import lint_file, lint_files, lint_text
from gpudiag.lint.rules import RULES
from tests.corpus.linted import corpus_files, expected_places

# One word for each of the commonest mistakes, as one would search for it.
_NAIVE = {
    "lint.set_epoch_missing": (r"DistributedSampler\(", r"set_epoch"),
    "lint.destroy_missing": (r"init_process_group\(", r"destroy_process_group"),
    "lint.set_device_missing": (r"DistributedDataParallel\(|DDP\(", r"set_device"),
    "lint.save_on_every_rank": (r"torch\.save\(", r"rank.*== ?0"),
    "lint.sampler_missing": (r"DataLoader\(", r"Sampler"),
    "lint.local_rank_from_argv": (r"--local_rank", r"environ"),
    "lint.download_on_every_rank": (r"download=True", r"barrier"),
    "lint.zero_grad_missing": (r"\.backward\(", r"zero_grad"),
    "lint.load_without_map_location": (r"torch\.load\(", r"map_location"),
    "lint.item_every_step": (r"\.item\(\)", r"% "),
    "lint.log_writer_on_every_rank": (r"SummaryWriter\(|wandb\.init\(", r"rank.*== ?0"),
}


def measure_corpus() -> tuple[Counter[str], Counter[str], Counter[str], int]:
    """How many planted mistakes are found and missed, and other findings, by code; the scripts."""
    found: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    false: Counter[str] = Counter()
    scripts = 0
    for rule in RULES:
        for text, wanted in zip(rule.read_examples(), ({rule.code}, set(), set()), strict=True):
            scripts += 1
            codes = {finding.code for finding in lint_text(text).findings}
            found.update(codes & wanted)
            missed.update(wanted - codes)
            false.update(codes - wanted)
    for path in corpus_files():
        scripts += 1
        expected = expected_places(path)
        places = Counter((finding.line, finding.code) for finding in lint_file(path).findings)
        found.update(code for (_, code), count in (places & expected).items() for _ in range(count))
        missed.update(code for (_, code), count in (expected - places).items() for _ in range(count))
        false.update(code for (_, code), count in (places - expected).items() for _ in range(count))
    return found, missed, false, scripts


def measure_naive() -> tuple[int, int, int]:
    """What eleven pairs of regular expressions find of the same mistakes: right, false, missed."""
    right = false = missed = 0
    for path in corpus_files():
        text = path.read_text()
        planted = {code for _, code in expected_places(path)}
        for code, (has, lacks) in _NAIVE.items():
            matches = bool(re.search(has, text)) and not re.search(lacks, text)
            right += matches and code in planted
            false += matches and code not in planted
            missed += not matches and code in planted
    return right, false, missed


def measure_seconds(count: int) -> tuple[float, float]:
    """The seconds for `count` files on all processors, and the processor time."""
    sources = corpus_files()
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            source = sources[number % len(sources)]
            shutil.copyfile(source, Path(folder, f"{number:05}{source.suffix}"))
        started, used = time.monotonic(), _processor_seconds()
        report = lint_files([Path(folder)])
        seconds, spent = time.monotonic() - started, _processor_seconds() - used
    if len(report.files) != count:
        sys.exit(f"{len(report.files)} files were read instead of {count}")
    return seconds, spent


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, metavar="N", help="time N files instead")
    files = parser.parse_args().files
    if files:
        seconds, spent = measure_seconds(files)
        print(
            f"{files} files in {seconds:.1f} s, {spent:.1f} s of processor time; one-minute load"
            f" {os.getloadavg()[0]:.1f}"
        )
        return
    found, missed, false, scripts = measure_corpus()
    right, wrong, overlooked = measure_naive()
    total, lost, extra = found.total(), missed.total(), false.total()
    print(f"{scripts} scripts, {len(RULES)} rules, {total + lost} planted mistakes")
    print(f"gpudiag lint: precision {total / (total + extra):.3f}, recall {total / (total + lost):.3f}")
    print(
        f"grep, on the 11 mistakes that it has a pattern for: precision {right / (right + wrong):.3f}, recall"
        f" {right / (right + overlooked):.3f}"
    )
    for code in sorted({*missed, *false}):
        print(f"  {code}: {missed[code]} missed, {false[code]} false")


if __name__ == "__main__":
    main()
