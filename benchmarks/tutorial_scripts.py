"""What `gpudiag train --script` reports on tutorials' scripts, and ten mistakes in them.

Runs scripts of the shape of four tutorials (the folder tutorials, in our own words, on random numbers) on two
gloo ranks, as they should be and with one line changed each, once by `gpudiag train --script` and once by
torchrun. Prints Markdown.

    python -m benchmarks.tutorial_scripts [--only NAME] [--page docs/tutorials.md]

torchrun is ended after a minute: what hangs under it prints nothing by then.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.matrix import show, versions

RANKS = "2"
HANG_SECONDS = "8"
LIMIT_SECONDS = 60.0
BEGIN, END = "<!-- the scripts of the tutorials begin -->", "<!-- the scripts of the tutorials end -->"
_FOLDER = Path(__file__).with_name("tutorials")
_CHARACTERS = 240
_LAST_LINE = re.compile(r"^(?:\[rank\d+\]: ?)?\s*(\w*(?:Error|Exception)\b.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Try:
    """One script as it is run: the tutorial, what was done to it, and the texts changed for that."""

    name: str
    tutorial: str
    mistake: str
    changes: tuple[tuple[str, str], ...] = ()


_WRAP = "DistributedDataParallel(Net())"
_SAMPLER = "DistributedSampler(data)  # MARK sampler"
TRIES = (
    Try("quick start", "quick_start", "none"),
    Try("several cards", "several_cards", "none"),
    Try("explicit address", "explicit_address", "none"),
    Try("methods", "methods", "none"),
    Try("never wrapped", "quick_start", "the model is never wrapped in DDP", ((_WRAP, "Net()"),)),
    Try(
        "state dict sent",
        "quick_start",
        "`model.state_dict()` is passed to `dist.all_reduce`",
        (("optimizer.step()  # MARK step", "optimizer.step(); dist.all_reduce(model.state_dict())"),),
    ),
    Try(
        "one rank at a time",
        "quick_start",
        "a loop lets only rank 0 train",
        (("loss.backward()  # type: ignore[no-untyped-call]", "loss.backward() if rank == 0 else None"),),
    ),
    Try(
        "optimizer too early",
        "quick_start",
        "the optimizer has the parameters of another model",
        (("torch.optim.Adam(model.parameters(), lr=1e-3)", "torch.optim.Adam(Net().parameters(), lr=1e-3)"),),
    ),
    Try(
        "misspelt",
        "several_cards",
        "the class's name is misspelt",
        (("model = DistributedDataParallel(", "model = DistributedDataParalled("),),
    ),
    Try("no sampler", "several_cards", "no sampler: every rank reads all", ((_SAMPLER, "None"),)),
    Try(
        "no set_epoch",
        "several_cards",
        "`set_epoch` is never called",
        (("sampler.set_epoch(epoch)  # MARK epoch", "pass"),),
    ),
    Try(
        "other device",
        "several_cards",
        "a name that was never defined is used for the device",
        (("labels.to(device))", "labels.to(dev))"),),
    ),
    Try(
        "rank 0 for all",
        "explicit_address",
        "every process is started as rank 0",
        (("rank=rank)  # MARK address", "rank=0)"),),
    ),
    Try(
        "another average",
        "methods",
        "rank 0 alone calls the `all_reduce` of the loss",
        (
            (
                "            dist.all_reduce(mean)  # MARK average",
                "            if dist.get_rank() == 0:\n                dist.all_reduce(mean)",
            ),
        ),
    ),
)


def main() -> None:
    """Run each script both ways, and print the answers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", action="append", choices=tuple(one.name for one in TRIES))
    parser.add_argument("--page", type=Path, help="a page to write the table into")
    options = parser.parse_args()
    tries = [one for one in TRIES if options.only is None or one.name in options.only]
    show("\n".join(_describe(tries)), options.page, BEGIN, END)


def _describe(tries: Sequence[Try]) -> Iterator[str]:
    yield f"{versions()}, {RANKS} gloo ranks, one-minute load before the first run {os.getloadavg()[0]:.1f}."
    yield ""
    yield "| script | mistake | gpudiag train --script | torchrun |"
    yield "| --- | --- | --- | --- |"
    with tempfile.TemporaryDirectory() as folder:
        for one in tries:
            path = Path(folder) / f"{one.tutorial}.py"
            path.write_text(changed_text(one))
            answers = (_ours(path).replace(folder + "/", ""), _theirs(path).replace(folder + "/", ""))
            yield (
                f"| {one.tutorial.replace('_', ' ')} | {one.mistake} |"
                f" {' | '.join(_in_cell(text) for text in answers)} |"
            )


def changed_text(one: Try) -> str:
    """The tutorial's script with the mistake in it."""
    text = (_FOLDER / f"{one.tutorial}.py").read_text()
    for right, wrong in one.changes:
        if right not in text:
            sys.exit(f"{one.tutorial} has no {right!r} to be changed")
        text = text.replace(right, wrong)
    return text


def _ours(path: Path) -> str:
    flags = (
        "--backend",
        "gloo",
        "--nproc",
        RANKS,
        "--hang-after",
        HANG_SECONDS,
        "--json",
        "--script",
        str(path),
    )
    done = subprocess.run(
        [sys.executable, "-m", "gpudiag", "train", *flags],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    report: Any = json.loads(done.stdout)
    findings = [f"`{one['code']}` {one['message']}" for one in report["findings"]]
    return f"{report['outcome'].upper()} {'; '.join(findings)}".strip()


def _theirs(path: Path) -> str:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", RANKS]
    with subprocess.Popen(
        [*command, str(path)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.terminate()  # it ends its ranks
            process.communicate()
            return f"nothing within {LIMIT_SECONDS:.0f} s: it hangs"
    raised = _LAST_LINE.findall(output)
    if process.returncode == 0:
        return "status 0, and nothing"
    return f"status {process.returncode}: {raised[0] if raised else output.strip().splitlines()[-1]}"


def _in_cell(text: str) -> str:
    for folder in (str(Path(sys.prefix)), str(_FOLDER.parents[1])):
        text = text.replace(folder + "/", "")
    flat = " ".join(text.split()).replace("|", "\\|")
    return flat if len(flat) <= _CHARACTERS else f"{flat[:_CHARACTERS]}..."


if __name__ == "__main__":
    main()
