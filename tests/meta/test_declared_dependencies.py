"""What the packages import is declared in pyproject.toml: the light part, and each extra."""

import ast
import re
import sys
from pathlib import Path

from gpudiag.toml import tomllib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Modules whose package has another name.
PACKAGES = {
    "pynvml": "nvidia-ml-py",
    "psycopg": "psycopg",
    "hatchling": "hatchling",
    "grpc": "grpcio",
    "google": "protobuf",
}
OWN = {"gpudiag", "gpudiag_api"}
LENT = {"pip"}  # of the user's interpreter, which gpudiag is only lent to (gpudiag/toml.py)
TRIED = {"torchvision"}  # looked at where a user's script has it; nothing needs it


def imported_by(folder: Path) -> dict[str, str]:
    """The top-level modules that are imported when the code runs, each with a file that does."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        if "examples" in path.parts:  # scripts that a rule of the linter shows
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for name in sorted(modules_of(tree.body)):
            found.setdefault(name, str(path.relative_to(ROOT)))
    return found


def modules_of(body: list[ast.stmt]) -> set[str]:
    found: set[str] = set()
    for node in body:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            found |= modules_of(node.orelse)
        elif isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
        else:
            for child in ast.iter_child_nodes(node):
                inner = [child] if isinstance(child, ast.stmt) else getattr(child, "body", [])
                found |= modules_of(inner if isinstance(inner, list) else [])
    return found


def declared(*extras: str) -> set[str]:
    """The packages of the light part and of these extras, in lower case."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    return {re.split(r"[\[<>=;~! ]", line, maxsplit=1)[0].lower() for line in lines}


def undeclared(folder: str, *extras: str) -> dict[str, str]:
    known = declared(*extras)
    return {
        name: path
        for name, path in imported_by(ROOT / folder).items()
        if name not in sys.stdlib_module_names | OWN | LENT | TRIED | {"tomllib"}
        and PACKAGES.get(name, name).lower() not in known
    }


def test_the_command_line_imports_what_is_declared():
    assert (
        undeclared(
            "gpudiag",
            "torch",
            "deepspeed",
            "horovod",
            "accelerate",
            "tensorflow",
            "serve",
            "kubernetes",
            "watch",
        )
        == {}
    )


def test_the_service_imports_what_the_extra_serve_brings():
    assert undeclared("api/gpudiag_api", "serve") == {}


def test_the_light_part_starts_with_what_is_always_installed():
    """The modules that no extra brings: none of them is imported at the head of a file that the light
    commands load.

    The kubelet is asked by a process of its own, which says so where its extra is missing. Other machines are
    asked by `serve --hub` and `watch --hosts`, whose extras bring what that needs.
    """
    found = {}
    for path in sorted((ROOT / "gpudiag").rglob("*.py")):
        if {
            "training",
            "collectives",
            "bandwidth",
            "ranks",
            "service",
            "fleet",
            "kubelet",
            "screen",
            "examples",
        } & set(path.relative_to(ROOT).parts[:4]):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        for node in tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name in modules_of([node]) - sys.stdlib_module_names - OWN:
                    found.setdefault(name, str(path.relative_to(ROOT)))
    light = {PACKAGES.get(name, name).lower(): path for name, path in found.items()}
    assert {name: path for name, path in light.items() if name not in declared()} == {}


def test_the_scan_sees_what_a_function_imports_and_not_what_only_a_type_checker_does():
    tree = ast.parse(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import absent\n"
        "def read():\n    try:\n        import json\n    except ImportError:\n        import other.thing\n"
        "class One:\n    def two(self):\n        with x:\n            from third import y\n"
    )
    assert modules_of(tree.body) == {"typing", "json", "other", "third"}


def test_the_lowest_versions_that_are_tested_are_those_that_are_declared():
    """`make lowest` proves the lower bounds: constraints-lowest.txt pins each of them."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    pinned = dict(
        re.match(r"([\w.-]+)==([\w.]+)", line).groups() for line in lines if not line.startswith("#")
    )
    pinned = {name.lower(): version for name, version in pinned.items()}
    assert pinned.pop("psycopg-binary") == pinned["psycopg"]
    bounds = {}
    for line in (
        *PROJECT["dependencies"],
        *(one for extra in ("serve", "postgres", "hang") for one in PROJECT["optional-dependencies"][extra]),
    ):
        name, bound = re.match(r"([\w.-]+)(?:\[\w+\])?>=([\w.]+)", line).groups()
        bounds[name.lower()] = bound
    assert set(pinned) == set(bounds)
    assert {name: pinned[name] for name in bounds if padded(pinned[name]) != padded(bounds[name])} == {}


def padded(version: str) -> tuple[int, ...]:
    numbers = [int(part) for part in version.split(".")]
    return (*numbers, 0, 0)[:3]
