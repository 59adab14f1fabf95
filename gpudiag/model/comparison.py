"""Two receipts, reports or snapshots side by side: what differs, whether it matters, and whose it is."""

from datetime import datetime
from typing import ClassVar

from gpudiag.compat import StrEnum
from gpudiag.model.codec import noun
from gpudiag.model.finding import Outcome
from gpudiag.model.reading import Reading


class Whose(StrEnum):
    """The part that a difference belongs to."""

    GPU = "gpu"
    LINK = "link"  # NVLink, PCIe
    NETWORK = "network"
    DRIVER = "driver"
    CONTAINER = "container"
    HOST = "host"
    SOFTWARE = "software"  # torch and its libraries, outside of a container
    JOB = "job"  # its variables
    DOCUMENT = "document"  # a receipt that was changed


@noun
class Difference:
    """One fact that is not alike, of one part or of several that differ alike.

    `outcome` is FAIL or WARN where it matters, and PASS where it differs and need not; `why` has which, and
    by what rule.
    """

    whose: Whose
    where: str  # GPU 3, GPUs 0-7, the host's name
    name: str
    before: str
    now: str
    outcome: Outcome
    why: str


@noun
class ComparedDocument:
    """One of the two documents."""

    path: str
    schema: str
    host: str
    taken_at: datetime
    simulated: str | None
    verdict: Reading[Outcome]  # of a receipt or report
    whole: Reading[bool]  # of a receipt: no byte has changed


@noun
class Comparison:
    """`gpudiag.comparison/1`: what differs between two documents, what matters, and whose it is.

    Differences come worst first. `alike` is how many facts were compared and are the same; `not_compared` has
    what only one of the two holds.
    """

    SCHEMA: ClassVar[str] = "gpudiag.comparison/1"

    outcome: Outcome
    before: ComparedDocument
    now: ComparedDocument
    same_machine: bool
    differences: tuple[Difference, ...]
    alike: int
    not_compared: tuple[str, ...]
