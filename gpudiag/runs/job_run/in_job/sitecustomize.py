"""Leaves the exception that ends a Python process of a job where `gpudiag run` reads it.

Written for old Pythons too. The job's own sitecustomize runs first, and this folder leaves the search path.
No failure here is the job's.
"""

# mypy: ignore-errors
import os
import sys

_VARIABLE = "GPUDIAG_RUN_ERRORS"
_MOST_CHARACTERS = 100000


def _run_own():  # noqa: ANN202
    """Run the sitecustomize that would have been found without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != here]
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError:
        if ours is not None:
            sys.modules["sitecustomize"] = ours


def _keep_exceptions(prefix):  # noqa: ANN001, ANN202
    """Have the exception that ends this process written to `prefix` and its pid as well."""
    usual = sys.excepthook

    def note(kind, value, stack):  # noqa: ANN001, ANN202
        try:
            if not issubclass(kind, KeyboardInterrupt):
                _write("%s%d.json" % (prefix, os.getpid()), kind, value, stack)  # noqa: UP031
        except Exception:  # noqa: BLE001, S110
            pass
        usual(kind, value, stack)

    sys.excepthook = note


def _write(path, kind, value, stack):  # noqa: ANN001, ANN202
    """Write the exception as torchelastic's `record` does, whole or not at all."""
    import json
    import time
    import traceback

    lines = traceback.format_exception(kind, value, stack)
    extra = {"py_callstack": "".join(lines)[-_MOST_CHARACTERS:], "timestamp": time.time()}
    text = "%s: %s" % (kind.__name__, value)  # noqa: UP031
    message = {"message": text[:_MOST_CHARACTERS], "extraInfo": extra}
    file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        os.write(file, json.dumps({"message": message}).encode("utf-8", "replace"))
    finally:
        os.close(file)
    os.rename(path + ".new", path)


try:
    _run_own()
finally:
    if os.environ.get(_VARIABLE):
        _keep_exceptions(os.environ[_VARIABLE])
