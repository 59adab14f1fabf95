"""One test for many cases that differ in data alone: all are tried, and those that fail are named.

A case of its own costs every worker that collects it, and pytest's work around it is many times that of
looking one word up in a table. The failure names the cases, so that none has to be searched for.
"""

from collections.abc import Callable, Iterable
from traceback import format_exception_only
from typing import Any

_SHOWN = 20


def walk(
    cases: Iterable[Any], name: Callable[[Any], object] = str
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    """A test that tries the decorated function on each case, and fails with the names of those that it fails
    for.
    """

    def walked(tries: Callable[[Any], None]) -> Callable[[], None]:
        def test() -> None:
            failed, count = [], 0
            for case in cases:
                count += 1
                try:
                    tries(case)
                except Exception as error:  # noqa: BLE001 - each is told, with its case
                    failed.append(f"{name(case)}: {''.join(format_exception_only(error)).strip()}")
            assert count, "there is no case"
            assert not failed, f"{len(failed)} of {count} cases fail:\n" + "\n".join(failed[:_SHOWN])

        test.__name__, test.__doc__, test.__module__ = tries.__name__, tries.__doc__, tries.__module__
        return test

    return walked
