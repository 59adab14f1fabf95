"""Writes the pictures that test_compose.py compares with: `python -m tests.unit.watch.write_pictures`.

Look at them.
"""

from gpudiag.watch.glyphs import ASCII
from tests.unit.watch.test_compose import PICTURES, picture, steady
from tests.unit.watch.view_text import render_view

if __name__ == "__main__":
    for width in (80, 120, 200):
        (PICTURES / f"{width}.txt").write_text(steady(render_view(picture(width=width))), "utf-8")
    (PICTURES / "80-ascii.txt").write_text(steady(render_view(picture(width=80, glyphs=ASCII))), "utf-8")
