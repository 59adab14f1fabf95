"""Which distributions and which torch an interpreter has, without importing them.

A file of the standard library alone: another interpreter runs it as a program, with the names as arguments.
"""

import json
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

_VERSION = re.compile(r"^__version__\s*=\s*['\"]([^'\"]+)", re.MULTILINE)
_CUDA = re.compile(r"^cuda\b[^=\n]*=\s*['\"]([^'\"]+)", re.MULTILINE)


def read_packages(names: list[str]) -> dict[str, str]:
    """The version of each distribution that is installed; the others are left out."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def read_torch() -> dict[str, str]:
    """`version` and, of a CUDA build, `cuda`, as torch/version.py has them; empty without torch."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return {}
    text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    named = {"version": _VERSION.search(text), "cuda": _CUDA.search(text)}
    return {name: match[1] for name, match in named.items() if match}


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file, whose names are not the interpreter's
    print(json.dumps([read_packages(sys.argv[1:]), read_torch()]))
