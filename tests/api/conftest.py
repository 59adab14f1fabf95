import pytest

from tests.api.serving import machine, serving


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A service that may act, on a machine with one busy GPU, for tests that leave it as it was."""
    with (
        machine() as session,
        serving(session, tmp_path_factory.mktemp("state"), "--allow-actions") as service,
    ):
        service.wait_for_data()
        yield service
