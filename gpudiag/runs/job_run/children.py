"""The guarded children of a watcher: they ask what could take long, and its loop goes round."""

import time
from collections.abc import Callable

from gpudiag.probe.guard import GuardedChild

Take = Callable[[GuardedChild], None]  # gets the child once it has ended, however


class Children:
    """The children that run, by what they are for; each has a deadline."""

    def __init__(self) -> None:
        """None runs."""
        self._running: dict[str, tuple[GuardedChild, float, Take]] = {}

    def __contains__(self, name: str) -> bool:
        """Whether the child for that runs."""
        return name in self._running

    def start(self, name: str, child: GuardedChild, take: Take, seconds: float) -> None:
        """Watch a child that was just started, for at most so many seconds."""
        self._running[name] = (child, time.monotonic() + seconds, take)

    def descriptors(self) -> dict[int, GuardedChild]:
        """The descriptors to poll, and whose each is."""
        return {fd: child for child, _, _ in self._running.values() for fd in child.descriptors()}

    def finish(self) -> None:
        """Take the answers of those that have ended, and give up those whose deadline has passed."""
        now = time.monotonic()
        for name, (child, deadline, take) in list(self._running.items()):
            if child.ending is None and now > deadline:
                child.give_up()
            if child.ending is not None:
                del self._running[name]
                take(child)

    def close(self) -> None:
        """Give up all of them; nobody takes their answers."""
        for child, _, _ in self._running.values():
            child.give_up()
