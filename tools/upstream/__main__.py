"""What upstream has that the tables of this repository do not: what is new, gone and changed, by source.

    python -m tools.upstream [--only NAME ...] [--saved FOLDER]

Exit status: 0 nothing moved; 1 something moved; 3 nothing is known to have moved, and a source could not be
read. What was looked at, and differs on purpose, stands in settled.toml beside this file. Each run downloads
some 310 MB, of which NCCL's wheel is nearly all.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.upstream.compare import Moved, NotRead, compare
from tools.upstream.reach import Live, Reach, Saved
from tools.upstream.sources import SOURCES, Source, settled_of

_MOVED, _NOT_READ = 1, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status; the report is printed."""
    parser = argparse.ArgumentParser(prog="python -m tools.upstream", description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[one.name for one in SOURCES])
    parser.add_argument(
        "--saved", type=Path, metavar="FOLDER", help="read copies, as reach.py describes them"
    )
    options = parser.parse_args(arguments)
    chosen = [one for one in SOURCES if options.only is None or one.name in options.only]
    return report(chosen, Saved(options.saved) if options.saved else Live())


def report(sources: Sequence[Source], reach: Reach) -> int:
    """Print one paragraph for each source, and the sum; the exit status."""
    moved, unread = [], []
    for source in sources:
        try:
            found = compare(source.held(), source.read(reach), settled_of(source.name))
        except NotRead as error:
            unread.append(source.name)
            print(f"{source.name}: not compared: {error}.", flush=True)
            continue
        if found:
            moved.append(source.name)
        print("\n".join(_lines(source, found)), flush=True)
    if moved:
        print(f"Moved: {', '.join(moved)}.")
    if unread:
        print(f"Not compared, so nothing is known of: {', '.join(unread)}.")
    if not moved and not unread:
        print(f"Nothing moved in {len(sources)} sources.")
    return _MOVED if moved else _NOT_READ if unread else 0


def _lines(source: Source, found: Moved) -> list[str]:
    counts = f"{len(found.new)} new, {len(found.gone)} gone, {len(found.changed)} changed"
    if not found:
        return [f"{source.name}: as the repository has it."]
    return [
        f"{source.name}: {counts}. To change: {source.table}",
        *(f"  new      {name}{f' = {value}' if value else ''}" for name, value in found.new),
        *(f"  gone     {name}" for name in found.gone),
        *(f"  changed  {name}: {ours} became {theirs}" for name, ours, theirs in found.changed),
    ]


if __name__ == "__main__":
    sys.exit(main())
