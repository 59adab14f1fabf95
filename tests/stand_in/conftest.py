import fcntl
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cuda_stand_in.build import CannotBuildError, build_extension
from tests.cuda_stand_in.machine import BUILD_FOLDER
from tests.stand_in.running import Ended, run_on

_WITH_COMPILING_SECONDS = 1200  # the first of a checkout waits for a compiler, and the others for the first


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let any test here be the one that compiles."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_WITH_COMPILING_SECONDS), append=False)


@pytest.fixture(scope="session")
def extension() -> Path:
    """The stand-in's extension; where it cannot be built, its tests are skipped with the reason."""
    BUILD_FOLDER.mkdir(parents=True, exist_ok=True)
    try:
        with (BUILD_FOLDER / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one worker compiles, for minutes; the others take what it made
            return build_extension(BUILD_FOLDER)
    except CannotBuildError as error:
        pytest.skip(f"no stand-in for CUDA: {error}")


@pytest.fixture
def on_gpus(extension: Path) -> Callable[..., Ended]:
    """Runs a command where it finds GPUs; see `running.run_on`."""
    return run_on
