"""Play a recorded machine back, and hold what gpudiag lists there against the record: RECORD.json.

Prints one JSON line: how many readings came back as they were, and which did not.
"""

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# They move by themselves, on the machine and where it is played back.
_MOVING = frozenset(("processes", "responding"))


def main() -> None:
    """List the played machine, compare, print; the child's own words where it fails."""
    record = sys.argv[1]
    listing = [sys.executable, "-m", "gpudiag", "list", "--sources", "all", "--json"]
    command = [sys.executable, "-m", "gpudiag", "simulate", record, "--", *listing]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.startswith("{"):
        sys.exit(done.stderr.strip() or f"it ended with {done.returncode} and listed nothing")
    recorded, played = json.loads(Path(record).read_text()), json.loads(done.stdout)
    print(json.dumps(compare_listings(recorded, played)), flush=True)


def compare_listings(recorded: Mapping[str, Any], played: Mapping[str, Any]) -> dict[str, Any]:
    """How many readings are the same on both, and the others by GPU and name."""
    same, differing = 0, []
    if len(recorded["devices"]) != len(played["devices"]):
        differing.append(f"{len(recorded['devices'])} GPUs recorded, {len(played['devices'])} played")
    for before, after in zip(recorded["devices"], played["devices"], strict=False):
        for name in before.keys() - _MOVING - {"missing", "missing_detail"}:
            if name in after and before[name] == after[name]:
                same += 1
            elif before.get("missing", {}).get(name) != "error":
                differing.append(f"GPU {before['nvml_index']} {name}")
    return {"simulated": played["simulated"], "same": same, "differing": sorted(differing)}


if __name__ == "__main__":
    main()
