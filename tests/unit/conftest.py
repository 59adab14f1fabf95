"""What unit tests share."""

import pytest


@pytest.fixture
def forked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have probes forked as by the command line, also where the test runner keeps a thread of its own."""
    monkeypatch.setattr("gpudiag.probe.guard._has_threads", lambda: False)
