"""A package that is not installed, or not whole, at any depth below an extra: a sentence with the command
that installs it.

On one real machine the service ended as "internal error, a bug of gpudiag", because a package that FastAPI
needs was absent.
"""

import importlib
import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path

import pytest

from gpudiag.cli.failures import describe_failure
from gpudiag.errors import ExitStatus
from gpudiag.installed import requirements_of
from tests.walking import walk

# As an interpreter without the package: its finder does not find it, and what looks for it is told so.
WITHOUT = """
import os
from importlib.machinery import PathFinder
find = PathFinder.find_spec.__func__
absent = os.environ["WITHOUT_MODULE"]
PathFinder.find_spec = classmethod(
    lambda cls, name, path=None, target=None: None if name == absent else find(cls, name, path, target)
)
"""
SECONDS = 60.0  # proves that it ends
STARTED = "gpudiag serve: http"


def name_of(requirement: str) -> str:
    return requirement.split(";")[0].split("[")[0].strip().rstrip("0123456789.,<>=!~ ")


def needed(requirements: tuple[str, ...]) -> set[str]:
    """The distributions that these bring, and what those need in turn, as far as it is installed here."""
    found: set[str] = set()
    waiting = [name_of(one) for one in requirements]
    while waiting:
        name = waiting.pop()
        try:
            installed = distribution(name)
        except PackageNotFoundError:
            continue
        if installed.name not in found:
            found.add(installed.name)
            waiting += [name_of(one) for one in installed.requires or () if "extra ==" not in one]
    return found


def modules_of(requirements: tuple[str, ...]) -> list[str]:
    """The top-level modules of all those distributions."""
    names = needed(requirements)
    of = packages_distributions()
    return sorted(module for module, places in of.items() if names & set(places) and module.isidentifier())


def start(folder: Path, module: str, *arguments: str) -> subprocess.Popen[str]:
    (folder / "sitecustomize.py").write_text(WITHOUT)
    paths = (str(folder), os.environ.get("PYTHONPATH", ""))
    environment = {**os.environ, "WITHOUT_MODULE": module, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    environment |= {"GPUDIAG_STATE": str(folder / "state"), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, "-m", "gpudiag", *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and standard error; a service that has started is ended."""
    lines: list[str] = []
    try:
        for line in process.stderr:
            lines.append(line)
            if line.startswith(STARTED):
                process.terminate()
        process.stdout.read()
        return process.wait(SECONDS), "".join(lines)
    finally:
        process.kill()
        process.stdout.close()
        process.stderr.close()


@pytest.fixture(scope="module")
def modules() -> list[str]:
    """The modules that the service needs and the light part does not, of all packages at any depth."""
    try:
        installed = distribution("gpudiag")
    except PackageNotFoundError:
        pytest.skip("gpudiag is not installed here, so no metadata names its extras")
    light = tuple(one for one in installed.requires or () if "extra ==" not in one)
    own = set(modules_of(requirements_of(installed, "serve"))) - set(modules_of(light))
    assert {"fastapi", "starlette", "pydantic", "pydantic_core", "uvicorn", "httptools"} <= own
    return sorted(own)


def test_the_service_without_one_module_after_another(modules, tmp_path):
    wrong, stopped = [], 0
    for module in modules:
        status, said = ended(start(tmp_path, module, "serve", "--port", "0"))
        if said.startswith(STARTED):  # it is not needed: uvloop is only faster
            continue
        stopped += 1
        first, command = (*said.splitlines(), "", "")[:2]
        told = first.startswith(f"gpudiag: {module} is not installed, and ") and "install" in command
        if status != ExitStatus.USAGE or not told or "[serve]" not in command:
            wrong.append((module, status, said))
    assert not wrong
    assert stopped >= 6


COMMANDS = (
    # what every command runs on
    ("click", ("history",), "click is not installed, and gpudiag needs it"),
    ("click", ("run", "--", "true"), "click is not installed, and gpudiag needs it"),
    ("sqlalchemy", ("history",), "sqlalchemy is not installed, and gpudiag needs it"),
    # a package that is there and lacks a part
    ("uvicorn.config", ("serve", "--port", "0"), "uvicorn is not whole"),
    ("starlette.middleware", ("serve", "--port", "0"), "starlette is not whole"),
    # what torch needs, looked for by the process that starts ranks
    ("torch", ("nccl-test", "--backend", "gloo", "--nproc", "2"), "torch is not installed"),
    (
        "typing_extensions",
        ("nccl-test", "--backend", "gloo", "--nproc", "2"),
        "typing_extensions is not installed",
    ),
    ("psycopg", ("history", "--store", "postgresql://a@127.0.0.1:1/b"), "psycopg is not installed"),
)


@pytest.fixture(scope="module")
def said_without(tmp_path_factory) -> dict[tuple[str, tuple[str, ...]], tuple[int, str]]:
    started = {
        (module, arguments): start(tmp_path_factory.mktemp("without"), module, *arguments)
        for module, arguments, _ in COMMANDS
    }
    return {case: ended(process) for case, process in started.items()}


def test_every_command_says_what_is_not_installed(said_without):
    for module, arguments, words in COMMANDS:
        status, said = said_without[module, arguments]
        first, command = (*said.splitlines(), "", "")[:2]
        assert status == ExitStatus.USAGE, (module, arguments, said)
        assert words in first, (module, arguments, said)
        assert "install" in command, (module, arguments, said)
        again = "--force-reinstall" in command
        assert again == ("." in module), (module, arguments, said)


# --- what an import says


def failure_of(statement: str):
    try:
        exec(statement, {"__name__": "gpudiag.cli.somewhere"})
    except ImportError as error:
        return describe_failure(error)
    raise AssertionError("it did not fail")


IMPORTS = {
    "import a_package_of_nobody": "a_package_of_nobody is not installed, and gpudiag needs it",
    "import click.a_part_of_it": "click is not whole",
    "from click import a_name_of_a_later_version": "click is not whole, or of a version that does not fit",
    "import _a_part; raise ModuleNotFoundError('none', name='_sqlite3')": "_a_part is not installed",
    "raise ModuleNotFoundError('none', name='_sqlite3')": "was built without _sqlite3",
}


@walk(tuple(IMPORTS), str)
def test_an_import_that_fails_is_a_sentence_and_no_bug(statement: str):
    failure = failure_of(statement)
    assert failure.status is ExitStatus.USAGE
    assert IMPORTS[statement] in failure.sentences[0]
    assert len(failure.sentences) == 2


@walk(("import gpudiag.a_part_of_ours", "from gpudiag.errors import no_such_error", "raise ImportError"), str)
def test_a_part_of_gpudiag_that_is_missing_is_its_own_bug(statement: str):
    assert failure_of(statement).status is ExitStatus.INTERNAL


def test_the_command_for_a_package_of_no_extra_names_it_alone():
    from gpudiag.installed import command_for_module

    assert command_for_module("a_package_of_nobody", "a_package_of_nobody").endswith(
        "install a_package_of_nobody"
    )
    assert importlib.util.find_spec("a_package_of_nobody") is None
