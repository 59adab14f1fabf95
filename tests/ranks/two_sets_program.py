"""A command with sets of ranks on one fork server, which says where it is.

arguments: a folder, and each set's entry.
"""

import json
import sys
from typing import Any

from gpudiag.ranks.agents.fork_server import ForkServer
from gpudiag.ranks.agents.launch import run_ranks


def tell(moment: str, **facts: Any) -> None:
    print(json.dumps({"moment": moment, **facts}), flush=True)


def main() -> None:
    folder, *entries = sys.argv[1:]
    tell("start")
    with ForkServer() as server:
        for number, entry in enumerate(entries):
            run = run_ranks(
                f"tests.ranks.rank_entries:{entry}",
                run_id=f"set {number}",
                world_size=2,
                arguments={"folder": folder},
                preload=(),
                on_event=lambda _, at=f"in {number}": tell(at),
                server=server,
            )
            incidents = [one.kind.value for one in run.incidents]
            tell(f"after {number}", incidents=incidents, results=len(run.results))


if __name__ == "__main__":
    main()
