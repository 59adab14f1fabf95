"""`gpudiag list` is for prologs and prompts: it must not load what it does not need."""

import json
import re
import sys
from pathlib import Path

from tests.cli.simulated import TIME_LIMIT_SECONDS, simulated_machine

ROOT = Path(__file__).parents[2]
HEAVY = set(
    "torch numpy fastapi pydantic sqlalchemy GPUtil asyncio concurrent.futures multiprocessing".split()
)
PRINT_MODULES = """
import json, sys
from gpudiag.cli.main import main
status = main(sys.argv[1:])
print(json.dumps([status, sorted(sys.modules)]), file=sys.stderr)
"""


def modules_after(*argv: str) -> tuple[int, set[str]]:
    import subprocess

    with simulated_machine("h100x8") as session:
        done = subprocess.run(
            [sys.executable, "-c", PRINT_MODULES, *argv],
            env=dict(session.environment),
            capture_output=True,
            text=True,
            timeout=TIME_LIMIT_SECONDS,
        )
    status, modules = json.loads(done.stderr.splitlines()[-1])
    return status, set(modules)


def test_only_the_fast_path_is_written_for_time() -> None:
    """Elsewhere modules import like those of any other project."""
    tricks = re.compile(
        r"^TYPE_CHECKING = False|^\s*(?:from|import) _[a-z]|\bgc\.(?:enable|disable)\(", re.MULTILINE
    )
    found = [path for path in (ROOT / "gpudiag").rglob("*.py") if tricks.search(path.read_text())]
    # A guarded child lives for one answer, whoever asks; templates and their server import torch, which takes
    # a second.
    assert sorted(str(path.relative_to(ROOT)) for path in found) == [
        "gpudiag/cli/fast_path.py",
        "gpudiag/probe/guard.py",
        "gpudiag/ranks/rank/fork_server.py",
        "gpudiag/ranks/rank/template.py",
    ]


def test_list_loads_nothing_heavy() -> None:
    for argv in (["list", "--json"], ["list"], ["list", "--wide"], []):
        status, modules = modules_after(*argv)
        assert status == 0
        assert modules & HEAVY == set(), argv


def test_asking_all_sources_loads_none_of_them_here() -> None:
    status, modules = modules_after("list", "--sources", "all", "--json")
    assert status == 0
    assert modules & HEAVY == set()


def test_list_as_json_loads_no_check_no_text_and_no_other_command() -> None:
    _, modules = modules_after("list", "--json")
    loaded = {name for name in modules if name.startswith("gpudiag.")}
    assert "gpudiag.cli.listing" in loaded
    assert "click" not in modules
    for package in ("checks", "render", "ranks", "collectives", "simulate"):
        assert not {name for name in loaded if name.startswith(f"gpudiag.{package}.")}, package
    assert "pynvml" not in modules


def test_the_children_of_a_listing_load_no_dataclass() -> None:
    """They start at once with the little that is loaded by then, and `dataclasses` takes half of their time."""
    import subprocess

    for module in ("gpudiag.probe.host.machine", "gpudiag.probe.nvml.child"):
        program = f"import {module}, sys; print(sorted(sys.modules))"
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
        assert f"'{module}'" in done.stdout, done.stderr
        assert not {"dataclasses", "inspect"} & set(re.findall(r"'([^']+)'", done.stdout)), module


def test_help_loads_no_command() -> None:
    _, modules = modules_after("--help")
    assert not {
        name for name in modules if name.startswith(("gpudiag.probe.", "gpudiag.checks.", "gpudiag.model."))
    }


def test_torch_is_loaded_by_ranks_alone() -> None:
    """A process of the command line, of a launcher's rank or of the service that loads torch takes two
    seconds to start.
    """
    import subprocess

    packages = (
        "cli",
        "runs",
        "service",
        "checks",
        "render",
        "store",
        "explain",
        "measured",
        "model",
        "probe",
        "sampler",
    )
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for package in packages
        for path in sorted((ROOT / "gpudiag" / package).rglob("*.py"))
        if path.name not in ("program.py", "__main__.py")  # what a child of a probe runs
    ]
    program = "import importlib, sys\nfor name in sys.argv[1:]:\n    importlib.import_module(name)\n"
    program += "    if 'torch' in sys.modules:\n        sys.exit(f'{name} loads torch')\n"
    done = subprocess.run([sys.executable, "-c", program, *names], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
