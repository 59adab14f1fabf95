"""Lines of a log that report a failure that nothing known explains, or are of programs beside the ranks."""

import re
from dataclasses import dataclass

from gpudiag.explain.lines import LogLine

MOST_UNKNOWN_LINES = 10_000  # that are counted
_KEPT_BYTES = 500  # of a line
# Words for what is no note: a line with one of them that nobody knows is counted, and never "nothing wrong".
_GRAVE = re.compile(rb"\b(?:fatal|FATAL|Fatal|ERROR|BUG|panic|PANIC)\b(?!-)")
# Settings, counts of none, and names: `log_level=ERROR`, `0 ERROR`, `ERROR: 0`, `-Werror`, `errors=0`.
_HARMLESS_WORDS = re.compile(
    rb"(?i)(?:level|verbosity|severity|filter|debug)\W{0,4}(?:fatal|error)|"
    rb"\b(?:no|0|without) (?:fatal|error|bug|panic)|"
    rb"\b(?:fatal|error|bug|panic)s?\b\W{1,3}0\b|panic_on|non-?fatal|_(?:ERROR|FATAL|BUG)\b"
)
# Words of a failure that healthy runs print too: such a line counts where the run makes no progress after it.
_DOUBT = re.compile(rb"\b(?:[Ff]ailed|FAILED|[Tt]imed out|[Ee]xceeded|[Aa]borting|UNAVAILABLE|revoked)\b")
_HARMLESS_DOUBT = re.compile(
    rb"(?i)\b(?:INFO|DEBUG)\b|\b(?:0|no|none|never|not) (?:\w+ )?(?:failed|timed out|exceeded)|"
    rb"(?:failed|exceeded)\W{1,3}(?:0|no|none|false)\b|"
    rb"retry|fall\w* ?back|ignor|skip|instead|optional|if [^:]{0,40}failed|^I\d{4} "
)

# Last words of services, and of tools that a job's script calls beside its ranks, by the form that they write
# them in: Go's klog, Java and Node.js stacks, PostgreSQL, gunicorn, Slurm's daemons, containerd and other
# programs in Go; git, aws, TensorBoard. Alone in a text they are no rank's.
_FOREIGN = re.compile(
    r"^[IWEF]\d{4} [\d:.]+ +\d+ \w+\.go:\d+\]|^Exception in thread \"|^\s+at [\w.$/]+\(|\bE(?:ADDRINUSE|"
    r"CONNREFUSED|ACCES|NOENT): |\[\d+\](?: \S+@\S+)? (?:LOG|ERROR|FATAL|PANIC):  |"
    r"[+-]\d{4}\] \[\d+\] \[(?:ERROR|CRITICAL)\]|^\[\d{4}-\d\d-\d\dT[\d:.]+\](?: \[[\d.\w]+\])? (?:error|"
    r"fatal): |^time=\S+ level=(?:error|fatal) msg=|^level=(?:error|fatal) |^fatal: |"
    r"^fatal error: (?!.*\.(?:h|cuh|hpp)\b)|TensorBoard could not"
)


@dataclass(slots=True)
class UnknownLines:
    """The lines with grave words, and those that count only where the run makes no progress after them."""

    grave: int = 0
    first_grave: tuple[int, bytes] | None = None  # its number, and its beginning
    doubtful: int = 0
    first_doubtful: tuple[int, bytes] | None = None
    last_doubtful: int = 0

    def note(self, number: int, raw: bytes) -> None:
        """Count a line that nothing known explains, if it has a word for a failure."""
        if self.grave + self.doubtful >= MOST_UNKNOWN_LINES:
            return
        if _GRAVE.search(raw) is not None and _HARMLESS_WORDS.search(raw) is None:
            self.grave += 1
            self.first_grave = self.first_grave or (number, raw[:_KEPT_BYTES])
        elif _DOUBT.search(raw) is not None and _HARMLESS_DOUBT.search(raw) is None:
            self.doubtful, self.last_doubtful = self.doubtful + 1, number
            self.first_doubtful = self.first_doubtful or (number, raw[:_KEPT_BYTES])

    def counted(self, *, moved_on: bool) -> tuple[int, tuple[int, bytes] | None]:
        """How many lines count, and the first of them.

        `moved_on`: the run made progress after the last doubtful one.
        """
        if moved_on:
            return self.grave, self.first_grave
        firsts = [first for first in (self.first_grave, self.first_doubtful) if first is not None]
        return self.grave + self.doubtful, min(firsts, default=None)


def is_foreign(line: LogLine) -> bool:
    """Whether a line has the form of a service, or of a tool beside the ranks."""
    return _FOREIGN.search(line.whole) is not None
