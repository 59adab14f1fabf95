"""What every test stands on."""

import signal

from hypothesis import settings

# No example asserts a time: on a busy machine any of them may be slow.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")


def pytest_configure() -> None:
    """Let the programs that tests start be interrupted, also where the tests run in the background.

    A shell starts background jobs with SIGINT ignored, which every program below would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
