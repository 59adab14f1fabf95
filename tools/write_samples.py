"""Rewrites the samples in docs/commands.md, each by its command: `python -m tools.write_samples`.

A sample is a fenced block behind a comment that has the command, and how many of its lines are shown where
not all are:

    <!-- sample: gpudiag simulate h100x8+lost:5 -- gpudiag list -->
    <!-- sample, 2 lines: gpudiag nccl-test --backend gloo -->

What a simulated machine prints is shown under the command without `gpudiag simulate ... --`, as on the page.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "docs" / "commands.md"
SAMPLE = re.compile(r"(<!-- sample(?:, (\d+) lines?)?: (.+?) -->\n)```\n.*?^```\n", re.MULTILINE | re.DOTALL)

BUILD = re.compile(r"\b(\d+\.\d+\.\d+)-[a-z][\w-]*")  # of a kernel: who built it does not matter here


def main() -> None:
    """Run every sample's command and write the page."""
    PAGE.write_text(SAMPLE.sub(_sample, PAGE.read_text()))


def _sample(found: "re.Match[str]") -> str:
    """The comment, and below it what the command prints today."""
    comment, lines, command = found.groups()
    shown = command.split(" -- ", 1)[-1] if command.startswith("gpudiag simulate ") else command
    printed = run(command).splitlines()
    kept = printed[: int(lines)] if lines else printed
    cut = [] if len(kept) == len(printed) else ["..."]
    return comment + "\n".join(["```", f"$ {shown}", *kept, *cut, "```", ""])


def run(command: str) -> str:
    """What the command of this environment prints on a terminal of 80 columns without colours."""
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "NO_COLOR": "1",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, env=environment, check=False)
    return BUILD.sub(r"\1", done.stdout.strip())


if __name__ == "__main__":
    main()
