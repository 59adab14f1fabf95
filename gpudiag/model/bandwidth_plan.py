"""What a bandwidth run is asked to do: a frozen, bounded plan, to and from the command line."""

from dataclasses import dataclass

from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MATMUL, MEMORY_COPY, PEER_COPY
from gpudiag.model.option import Plan, option

# In the order in which they run.
BANDWIDTH_TESTS = (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, MATMUL, PEER_COPY)


@dataclass(frozen=True, slots=True)
class BandwidthPlan(Plan):
    """One bandwidth run: which tests, and whether GPUs that others use are tested too.

    No named test means all that this machine can run.

    Raises:
        UsageError: a test is unknown, or named twice.
    """

    test: tuple[str, ...] = option(
        (),
        "--test",
        f"{', '.join(BANDWIDTH_TESTS)} or all.",
        "NAME,...",
        choices=BANDWIDTH_TESTS,
        what="a bandwidth test",
        all_means=(),
        default_words="all that this machine can run",
    )
    force: bool = option(False, "--force", "Test GPUs that others use, too.")

    def __post_init__(self) -> None:
        """Refuse a plan that cannot be run, in one sentence."""
        self.require_options()
