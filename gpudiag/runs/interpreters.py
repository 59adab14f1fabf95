"""What is installed where the ranks run: in this interpreter, or in the one that `--python` names."""

import importlib.util
import json
import subprocess
from collections.abc import Sequence
from functools import cache

from gpudiag.errors import UsageError

# Looking for a module imports nothing; a cold network file system is the slow part.
_LIMIT_SECONDS = 30.0
# As the ranks are started: with PYTHONPATH and the user's packages, without the current folder.
_QUESTION = (
    "import sys; sys.path[:1] == [''] and sys.path.pop(0); import importlib.util, json; "
    "print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))"
)


def absent_modules(modules: Sequence[str], python: str | None = None) -> tuple[str, ...]:
    """Those of the modules that the interpreter cannot import; `python` is this one by default.

    Raises:
        UsageError: that interpreter does not run.
    """
    if python is None:
        return tuple(name for name in modules if importlib.util.find_spec(name) is None)
    return _ask(python, tuple(modules))


@cache
def _ask(python: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    hint = "name the interpreter of your job"
    command = [python, "-c", _QUESTION, *modules]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=True)
        return tuple(json.loads(done.stdout))
    except OSError as error:
        raise UsageError(f"--python {python}: {error.strerror}", hint=hint) from None
    except subprocess.TimeoutExpired:
        raise UsageError(f"--python {python} does not answer in {_LIMIT_SECONDS:.0f} s", hint=hint) from None
    except (subprocess.CalledProcessError, ValueError):
        raise UsageError(f"--python {python} is not a Python that runs", hint=hint) from None
