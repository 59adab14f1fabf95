"""What every test stands on."""

import signal


def pytest_configure() -> None:
    """Let the programs that tests start be interrupted, also where the tests run in the background.

    A shell starts background jobs with SIGINT ignored, which every program below would inherit.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
