"""The outputs of tests/corpus/judge, and what `gpudiag judge` says of each."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gpudiag.measured.recipe import judge_files
from gpudiag.model.benchmark import Judgement, Setup
from gpudiag.model.reading import NOT_ASKED
from gpudiag.reference.expected_speeds import known_gpus, parse_nics
from gpudiag.toml import tomllib

FOLDER = Path(__file__).with_name("judge")


@dataclass(frozen=True, slots=True)
class JudgeCase:
    """An output that somebody posted, what the thread found, and what must be said of it."""

    program: str
    name: str
    source: str
    answer: str
    outcome: str
    codes: tuple[str, ...]
    output: str
    flags: dict[str, Any] = field(default_factory=dict)
    values: int = 0  # how many it holds; 0 where they are not counted

    def setup(self) -> Setup:
        """What the user says of the machines."""
        gpu, nics = self.flags.get("gpu"), self.flags.get("nics")
        return Setup(
            gpu=known_gpus()[gpu] if gpu else NOT_ASKED,
            gpus=self.flags.get("gpus", NOT_ASKED),
            nodes=self.flags.get("nodes", NOT_ASKED),
            nics=(parse_nics(nics) or NOT_ASKED) if nics else NOT_ASKED,
        )

    def judge(self, folder: Path, content: bytes | None = None) -> Judgement:
        """The judgement of the output, or of other content with the same flags."""
        path = folder / "output.log"
        path.write_bytes(self.output.encode() if content is None else content)
        return judge_files((str(path),), self.setup())


@cache
def judge_cases() -> tuple[JudgeCase, ...]:
    """Every case, by file and place."""
    known = ("name", "source", "answer", "outcome", "codes", "output", "values")
    return tuple(
        JudgeCase(
            path.stem,
            case["name"],
            case["source"],
            case["answer"],
            case["outcome"],
            tuple(case["codes"]),
            case["output"],
            {key: value for key, value in case.items() if key not in known},
            case.get("values", 0),
        )
        for path in sorted(FOLDER.glob("*.toml"))
        for case in tomllib.loads(path.read_text("utf-8"))["case"]
    )
