"""`python -m tools.static_demo FOLDER`: `gpudiag demo` as files for a web site, which need no server of ours.

It records the story as it happens, which takes as long as the story, and needs what `gpudiag demo` and a
build of the dashboard need (docs/dashboard.md).
"""

import argparse
import json
import sys
from pathlib import Path

from tools.static_demo.export import export
from tools.static_demo.record import read_recording, record_story


def main() -> None:
    """Record, build, write."""
    parser = argparse.ArgumentParser(prog="python -m tools.static_demo", description=__doc__)
    parser.add_argument("folder", type=Path, help="where index.html and its assets go")
    parser.add_argument("--story", default="demo", help="a story, or a file of your own")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="write the recording there, too")
    parser.add_argument("--recording", type=Path, metavar="FILE", help="take this one, and record nothing")
    options = parser.parse_args()
    recording = (
        record_story(options.story).document()
        if options.recording is None
        else read_recording(options.recording)
    )
    if options.keep is not None:
        options.keep.write_text(json.dumps(recording), encoding="utf-8")
    export(recording, options.folder)
    size = sum(path.stat().st_size for path in options.folder.rglob("*") if path.is_file())
    print(
        f"{options.folder / 'index.html'}: {recording['seconds']:.0f} s recorded, {size / 1e3:.0f} kB",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
