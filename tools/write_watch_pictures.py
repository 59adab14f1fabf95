"""Draws the pictures of docs/watch.md: `python -m tools.write_watch_pictures`. Look at them.

`gpudiag watch` runs on a simulated machine in Textual's own test terminal, until a finding is there and the
charts have begun.
"""

import asyncio
import os
import re
import sys
from pathlib import Path

from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.run_program import run_on_machine

IMAGES = Path(__file__).parents[1] / "docs/images"
SCENARIO = "h100x8+busy:0+busy:1+busy:2+busy:3+hot:5+idle-holder:6"
SIZES = {"watch-80": (80, 24), "watch-160": (160, 36)}
_SECONDS = 50.0  # of charts
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)  # they lie on another host
_FAMILY = "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace"


async def draw(name: str, size: tuple[int, int]) -> None:
    """Draw one picture."""
    from gpudiag.watch.glyphs import BLOCKS
    from gpudiag.watch.local import LocalFeed
    from gpudiag.watch.screen.app import WatchApp

    app = WatchApp(LocalFeed(1.0), BLOCKS)
    async with app.run_test(size=size) as pilot:
        await pilot.pause(_SECONDS)
        svg = app.export_screenshot(title="gpudiag watch", simplify=True)
    await app.stop_feed()
    plain = _FONT.sub("", svg).replace("Fira Code", _FAMILY).replace("arial", "sans-serif")
    (IMAGES / f"{name}.svg").write_text(plain + "\n", "utf-8")


async def draw_all() -> None:
    """Draw them side by side: each waits most of the time."""
    await asyncio.gather(*(draw(name, size) for name, size in SIZES.items()))


def main() -> int:
    """The exit status; without an argument this program runs itself on the simulated machine."""
    if "--here" in sys.argv[1:]:
        asyncio.run(draw_all())
        return 0
    return run_on_machine(
        load_scenario(SCENARIO), (sys.executable, "-m", "tools.write_watch_pictures", "--here")
    )


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[1])
    sys.exit(main())
