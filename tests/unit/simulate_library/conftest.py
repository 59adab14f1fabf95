"""Simulated machines that end with the test, and with whatever was started on them."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.nvml.library import build_library
from gpudiag.simulate.scenario import Scenario
from gpudiag.simulate.session import Session, kill_programs, open_session


@pytest.fixture(scope="session")
def compiled() -> None:
    """Skip, loudly, where the library cannot be built."""
    try:
        build_library()
    except UsageError as error:
        pytest.skip(f"the simulated library needs a C compiler: {error.message}")


@pytest.fixture
def switch_on(compiled: None) -> Iterator[Callable[[Scenario], Session]]:
    """Open a session on a machine; after the test its programs are killed and its folder is gone."""
    with ExitStack() as sessions:

        def open_one(machine: Scenario) -> Session:
            session = sessions.enter_context(open_session(machine))
            sessions.callback(kill_programs, session.folder)
            return session

        yield open_one
