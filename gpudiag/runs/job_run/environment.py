"""The environment of the job: the caller's, with torch's flight recorder, its pipes, and error files.

What the caller set stays. Variables begin with TORCH_FR_ since torch 2.9 and with TORCH_NCCL_ before
(c10d/FlightRecorder.hpp); 2.9 warns of old names, so the job's torch is asked for its version.

TORCH_INCLUDE_STACK_TRACE is off: at a timeout NCCL's watchdog would wait for the interpreter's lock, and
write no dump if the hanging thread holds it. gpudiag reads stacks from outside.

A rank ends if it cannot make its pipe (ProcessGroupNCCL.hpp, DumpPipe; torch 2.4 to 2.15): so there is none
for a command that starts ranks elsewhere. From 2.15 on NCCL's default backend makes none.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from gpudiag.checks.job.run import starts_elsewhere
from gpudiag.model.reading import Missing, MissingReason, Reading

RUN_VARIABLE = (
    "GPUDIAG_RUN_ID"  # in the environment of every process of the job, on every machine that takes it over
)
ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
BUFFER_ENTRIES = "2000"  # torch's own default where it has one

_RENAMED_IN = (2, 9)
# The name since torch 2.9, and the one before.
_BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
# All versions have these three under these names (2.15 has another beside it).
_DUMP_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
PIPE_FILE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
NAN_CHECK = "TORCH_NCCL_NAN_CHECK"  # since 2.4
DUMP_NAME = "flight_recorder_rank_"
ERRORS = "GPUDIAG_RUN_ERRORS"  # what the files with ranks' exceptions begin with
_IN_JOB = Path(__file__).with_name("in_job")
_STACKS_IN_DUMPS = "TORCH_INCLUDE_STACK_TRACE"

# Like a rank: with PYTHONPATH and the user's packages, without the current folder. torch itself is not
# imported.
_QUESTION = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); from importlib.util import find_spec; "
    "found = find_spec('torch'); print(found.origin if found else '')"
)
_LIMIT_SECONDS = 5.0  # the job waits for it
_VERSION = re.compile(r"^__version__ = '(\d+)\.(\d+)[^']*'", re.MULTILINE)
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
_SCRIPT_HEAD_BYTES = 1024


@dataclass(frozen=True, slots=True)
class JobEnvironment:
    """The job's variables; `added` are those that gpudiag set."""

    variables: Mapping[str, str]
    added: Mapping[str, str]
    torch_version: Reading[str]


def build_environment(
    argv: Sequence[str],
    caller: Mapping[str, str],
    folder: Path,
    run_id: str,
    scratch: str | None = None,
    *,
    nan_check: bool = False,
) -> JobEnvironment:
    """The command's environment; dumps and error files in `folder`, pipes beside `scratch`."""
    version = read_torch_version(argv, caller)
    added = {RUN_VARIABLE: run_id}
    for names, value in ((_BUFFER, BUFFER_ENTRIES), (_DUMP_FILE, f"{folder}/{DUMP_NAME}")):
        if not any(name in caller for name in names):
            added |= dict.fromkeys(_names_for(names, version), value)
    others = {
        _DUMP_ON_TIMEOUT: "1",
        _STACKS_IN_DUMPS: "0",
        ERROR_FILE: f"{folder}/error.json" if scratch is None else f"{scratch}launcher.json",
    }
    if scratch is not None:
        others[ERRORS] = f"{scratch}error-"
        # Where the caller sets the place of dumps, none is asked for: it would stay there.
        if not starts_elsewhere(argv) and any(name in added for name in _DUMP_FILE):
            others[PIPE_FILE] = f"{scratch}rank-"
    if nan_check:
        others[NAN_CHECK] = "1"
    added |= {name: value for name, value in others.items() if name not in caller}
    if scratch is not None:
        added["PYTHONPATH"] = os.pathsep.join(filter(None, (str(_IN_JOB), caller.get("PYTHONPATH"))))
    return JobEnvironment({**caller, **added}, added, version)


def _names_for(names: tuple[str, str], version: Reading[str]) -> tuple[str, ...]:
    """The name that this torch reads; both where it is not known: the warning is better than no dump."""
    if isinstance(version, Missing):
        return names
    since = tuple(int(part) for part in version.split(".")[:2])
    return names[:1] if since >= _RENAMED_IN else names[1:]


def read_torch_version(argv: Sequence[str], environment: Mapping[str, str]) -> Reading[str]:
    """The `major.minor` of the torch that the command's interpreter would import."""
    python = find_interpreter(argv, environment)
    if python is None:
        return Missing(
            MissingReason.SOURCE_ABSENT, "the command names no Python, and no program of a Python environment"
        )
    try:
        done = subprocess.run(
            [python, "-c", _QUESTION],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LIMIT_SECONDS,
            check=False,
        )
        place = done.stdout.strip()
        text = Path(place).with_name("version.py").read_text() if place else ""
    except (OSError, subprocess.SubprocessError) as error:
        return Missing(MissingReason.ERROR, f"{python} could not be asked: {error}")
    found = _VERSION.search(text)
    if found is None:
        return Missing(MissingReason.SOURCE_ABSENT, f"{python} has no torch")
    return f"{found[1]}.{found[2]}"


def find_interpreter(argv: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The Python of the first word of the command that is one, or a script of one; else the caller's own.

    The caller's own is likely the job's where the command is a shell's.
    """
    for word in (*argv, "python", "python3"):
        program = which(word, path=environment.get("PATH", os.defpath))
        if program is None:
            continue
        if _PYTHON.fullmatch(Path(program).name):
            return program
        if interpreter := _interpreter_of(Path(program)):
            return interpreter
    return None


def _interpreter_of(script: Path) -> str | None:
    """The Python in a script's #! line, or in the second line that pip writes for a long path."""
    try:
        with script.open("rb") as file:
            head = file.read(_SCRIPT_HEAD_BYTES)
    except OSError:
        return None
    if not head.startswith(b"#!"):
        return None
    first, *rest = head.decode(errors="replace").splitlines()
    words = first.removeprefix("#!").split()
    if words and Path(words[0]).name == "env":
        words = words[1:]
    if words and Path(words[0]).name == "sh" and rest and rest[0].startswith("'''exec'"):
        words = rest[0].split()[1:]
    if not words or not _PYTHON.fullmatch(Path(words[0].strip('"')).name):
        return None
    return which(words[0].strip('"'))
