"""The programs of one launch, as somebody who sets RANK and the like would start them."""

import json
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.ranks.launching import LIMIT_SECONDS, Launches

WORLD_SIZE = 3
# The leader tells the other agents of each other twice a second; nothing outside of them shows when.
LEADER_TELLS_SECONDS = 1.5


@dataclass
class Outcome:
    """How the programs of one launch ended."""

    statuses: list[int]
    reports: list[dict[str, Any]]  # what each printed run says, with its `reporter`
    errors: list[str]

    @property
    def incidents(self) -> list[tuple[str, int]]:
        return [(incident["kind"], incident["rank"]) for incident in self.reports[0]["run"]["incidents"]]


class Group:
    """The programs of one launch, as somebody who sets RANK and the like would start them."""

    def __init__(self, launches: Launches) -> None:
        self.launches = launches
        self.programs: list[subprocess.Popen[str]] = []

    def start(
        self,
        entry: str,
        ranks: tuple[int, ...] = tuple(range(WORLD_SIZE)),
        more: Mapping[str, str] | None = None,
        **options: Any,
    ) -> "Group":
        """Start the program of each rank; `more` is set in their environment too, `{rank}` filled in."""
        for rank in ranks:
            variables = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(WORLD_SIZE),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self.launches.port),
            }
            variables |= {name: value.format(rank=rank) for name, value in (more or {}).items()}
            self.programs.append(self.launches.start_program(entry, variables=variables, **options))
        return self

    def wait_for_ranks(self) -> None:
        """Wait until the leading agent has heard of every rank, and the others of each other from it."""
        output = self.programs[0].stdout
        assert output is not None
        heard: set[int] = set()
        for line in output:
            heard.add(json.loads(line)["event"]["pid"])
            if len(heard) == WORLD_SIZE:
                break
        assert len(heard) == WORLD_SIZE, "the leading agent ended before every rank was there"
        time.sleep(LEADER_TELLS_SECONDS)

    def kill(self) -> None:
        """Leave no program behind, whatever a test did."""
        for program in self.programs:
            program.kill()
            program.communicate()

    def end(self) -> Outcome:
        """Wait for all programs; what they printed, and their exit statuses."""
        outputs = [program.communicate(timeout=LIMIT_SECONDS) for program in self.programs]
        assert not any(
            "Traceback" in errors and "KeyboardInterrupt" not in errors for _, errors in outputs
        ), outputs
        lines = [json.loads(line) for output, _ in outputs for line in output.splitlines()]
        return Outcome(
            statuses=[program.returncode for program in self.programs],
            reports=[line for line in lines if "run" in line],
            errors=[line["error"] for line in lines if "error" in line],
        )
