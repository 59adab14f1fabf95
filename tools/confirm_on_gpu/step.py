"""What a step is, and what came of it: data, without any doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpudiag.compat import StrEnum
from gpudiag.model.finding import Outcome
from tools.confirm_on_gpu.report import CallCost, CheckSeen, HangSeen, ReadingSeen, Speed, StartTime


class Need(StrEnum):
    """What a step needs of the machine or of its Python."""

    CLICK = "click"
    PYNVML = "pynvml"
    CUDA = "torch with a GPU"
    TWO_GPUS = "two GPUs"
    NVIDIA_SMI = "nvidia-smi"
    COMPILER = "a C compiler"
    MACHINE = "the machine's record"
    CAPTURE = "nvidia-smi's capture"
    SPEEDS = "gpudiag's own speeds"
    SHARING = "an NCCL that lets two ranks share a GPU (2.30 or later)"
    NO_SHARING = "an NCCL that does not let two ranks share a GPU"
    PY_SPY = "py-spy"
    SERVICE = "what the service needs"


@dataclass(frozen=True, slots=True)
class Output:
    """What a step's command left behind: how it ended, and its streams.

    `status` is None where it did not end within the deadline; `killed` is False where even SIGKILL did not
    end it.
    """

    status: int | None
    seconds: float
    stdout: Path
    stderr: Path
    killed: bool = True

    def text(self) -> str:
        """Its standard output."""
        return self.stdout.read_text(errors="replace")

    def last_words(self) -> str:
        """The last line of its standard error, else of its standard output."""
        for stream in (self.stderr, self.stdout):
            lines = [line.strip() for line in stream.read_text(errors="replace").splitlines() if line.strip()]
            if lines:
                return lines[-1][:300]
        return "it printed nothing"


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step's output: its outcome in a sentence, and its rows of the report's tables."""

    outcome: Outcome
    sentence: str
    speeds: tuple[Speed, ...] = ()
    checks: tuple[CheckSeen, ...] = ()
    readings: tuple[ReadingSeen, ...] = ()
    costs: tuple[CallCost, ...] = ()
    starts: tuple[StartTime, ...] = ()
    hangs: tuple[HangSeen, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to confirm: its command, how long it may take, what it needs, and who reads its output.

    In `command` and `environment` {python}, {folder}, {first_gpu}, {sizes} and {nccl} stand for what is known
    by then; a variable that would be empty is not set. `seconds` is what it took, or is expected to take, on
    one H100. Of a step that is cut: `events` is the file in the folder where gpudiag writes how much it had
    done, `lines` whether what it printed until then can be read. `beside` names the step before it, at whose
    side it runs.
    """

    name: str
    confirms: str
    command: tuple[str, ...]
    seconds: float
    deadline_seconds: float
    read: Callable[[Output, Mapping[str, Any]], StepResult]
    needs: tuple[Need, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    events: str | None = None
    lines: bool = False
    beside: str | None = None
    leaves: str | None = None  # the file in the folder that its standard output becomes
