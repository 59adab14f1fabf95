"""Writes docs/images/hang.svg: a real job that hangs, and what `gpudiag hang` prints about it.

    python -m tools.terminal_picture [FILE]

Four gloo ranks run `train.py` of this folder under torchrun, which knows nothing of gpudiag. Once they stand
still for as long as gpudiag wants to see, the command looks at them, and rich draws its output with its
colours: the last line of the job, the verdict and what to do, without the ranks and the evidence, which would
fill a screen. Needs `gpudiag[hang]`, and the permission to trace the job's processes (docs/hang.md).
"""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
PICTURE = HERE.parents[1] / "docs" / "images" / "hang.svg"
BIN = Path(sys.executable).parent
COLUMNS = 80
LINES = 12  # of the picture
# Long enough that the answer is final at once, on a machine that does other things too.
STILL_SECONDS = 12.0
# rich's own frame names a font of another host; a picture in a README may load nothing.
FRAME = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; font-variant-east-asian: full-width; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def main() -> None:
    """Run the job, look at it, write the picture."""
    picture = Path(sys.argv[1]) if len(sys.argv) > 1 else PICTURE
    with hanging_job() as (printed, pid):
        answer = look(pid)
    console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text("$ torchrun --nproc-per-node 4 train.py", style="bold"))
    console.print(Text(printed.splitlines()[-1]))
    console.print(Text("$ gpudiag hang      # in another terminal", style="bold"))
    console.print(Text.from_ansi(verdict_and_remedy(answer)))
    picture.write_text(console.export_svg(title="a job that hangs", code_format=FRAME, unique_id="hang"))
    print(f"{picture}\n{answer}")


@contextmanager
def hanging_job() -> Iterator[tuple[str, int]]:
    """What the job had printed when it stood still, and the pid of its torchrun; it is ended at the end."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        with log.open("wb") as file:
            command = [str(BIN / "torchrun"), "--nproc-per-node", "4", "--master-port", "29799", "train.py"]
            job = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, cwd=HERE, start_new_session=True
            )
        try:
            yield wait_until_still(log, job), job.pid
        finally:
            os.killpg(job.pid, signal.SIGTERM)
            job.wait()


def wait_until_still(log: Path, job: "subprocess.Popen[bytes]") -> str:
    """What the job printed, once it has printed something and then nothing for STILL_SECONDS."""
    printed, since = "", time.monotonic()
    while not printed or time.monotonic() - since < STILL_SECONDS:
        if job.poll() is not None:
            raise SystemExit(f"the job ended: {log.read_text()}")
        now = log.read_text()
        if now != printed:
            printed, since = now, time.monotonic()
        time.sleep(0.2)
    return printed.strip()


def look(pid: int) -> str:
    """What `gpudiag hang` printed, with its colours."""
    environment = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
    done = subprocess.run(
        [BIN / "gpudiag", "hang", str(pid)], capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode != 1:
        raise SystemExit(f"gpudiag hang ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def verdict_and_remedy(answer: str) -> str:
    """The verdict, `...` for the ranks, evidence, what to do, and the next command.

    Raises:
        SystemExit: it has more lines than the picture has room for.
    """
    lines = answer.strip().splitlines()
    verdict = lines[: lines.index("")]
    remedy = next(number for number, line in enumerate(lines) if line.startswith("Do: "))
    rest = lines[remedy:]
    shown = [*verdict, "...", *rest[: rest.index("")], lines[-1]]
    if len(shown) > LINES - 3:
        raise SystemExit(
            f"{len(shown)} lines, and the picture has room for {LINES - 3}:\n" + "\n".join(shown)
        )
    return "\n".join(shown)


if __name__ == "__main__":
    main()
