"""What a bandwidth run is asked to do: a frozen, bounded plan, to and from the command line."""

from dataclasses import dataclass

from gpudiag.errors import UsageError
from gpudiag.model.active import DEVICE_TO_HOST, HOST_TO_DEVICE, MATMUL, MEMORY_COPY, PEER_COPY
from gpudiag.model.plan import require_known

# In the order in which they run.
BANDWIDTH_TESTS = (MEMORY_COPY, HOST_TO_DEVICE, DEVICE_TO_HOST, MATMUL, PEER_COPY)


@dataclass(frozen=True, slots=True)
class BandwidthPlan:
    """One bandwidth run: which tests, and whether GPUs that others use are tested too.

    No test named stands for all that this machine can run.

    Raises:
        UsageError: a test that there is not, or one named twice.
    """

    test: tuple[str, ...] = ()
    force: bool = False

    def __post_init__(self) -> None:
        """Refuse what cannot be run, in one sentence."""
        for name in self.test:
            require_known(name, BANDWIDTH_TESTS, "a bandwidth test")
        if len(set(self.test)) < len(self.test):
            raise UsageError(f"--test {','.join(self.test)} names one of them twice", hint="name each once")

    def to_argv(self) -> tuple[str, ...]:
        """The flags that ask for this plan; what equals the default is left out."""
        tests = ("--test", ",".join(self.test)) if self.test else ()
        return (*tests, "--force") if self.force else tests
