"""What ranks of a user's script report: where they stand still or work, what ended them, their training."""

from dataclasses import dataclass

from gpudiag.model.evidence import Evidence
from gpudiag.model.job import ProcessLook
from gpudiag.model.job_state import FlightRecord, RecordedCall

EXPLANATION = "explanation"
OWN_STACKS = "Python stacks"  # what read the stacks of a rank's look at itself


@dataclass(frozen=True, slots=True)
class OwnLook:
    """A rank's look at itself: its stack stood still for `--hang-after`, or its code works while others wait.

    `look` is as one from outside. `work`: what still moves; then the rank works, and is not hung. `batches`
    is how many it has had, `steps` how many training steps it has begun, by their forward where that can be
    seen, or their backward.
    """

    look: ProcessLook
    work: str | None = None
    awaited: str = ""  # by its frames and the call that its line executes: ranks, gpu, lock ...
    uses_gpu: bool = False
    batches: int = 0
    steps: int = 0
    record: FlightRecord | None = None  # None where it works, or torch records nothing


@dataclass(frozen=True, slots=True)
class ScriptError:
    """Where an exception reached the user's code: the line, and the frames from the innermost out."""

    place: str
    stack: tuple[str, ...] = ()
    shared_memory: tuple[int, int] | None = None  # of /dev/shm, total and free bytes
    call: RecordedCall | None = None  # the last collective that the rank entered


@dataclass(frozen=True, slots=True)
class ScriptFacts:
    """What one rank's own training has shown so far.

    `parameters` are looks at those of an optimizer after some of its steps: a name that is the same on all
    ranks, the step, their shapes, and a digest of their bits. `crossed` counts collectives after a backward
    pass that took more than a number or a gradient; what DDP averages by itself is in `forwards`, calls of
    the wrapped model.
    """

    steps: int = 0  # of the optimizer that made most
    backwards: int = 0
    parameters: tuple[tuple[str, int, str, str], ...] = ()
    sharded: bool = False  # a rank has only its part of each parameter
    wrapped: int = 0  # models in DDP
    forwards: int = 0
    crossed: int = 0
    summed: str | None = None  # gradients or parameters: added up over the ranks, and left so
    not_finite_backward: int | None = None  # the first backward pass of a loss that is not finite
    sampler: str | None = None  # of the loader that feeds the training: distributed, whole or other
    share: tuple[int, int] | None = None  # of a distributed sampler: which part, of how many
    epochs: int = 0  # in which a distributed sampler shuffled
    repeated_epochs: int = 0  # of these, those in an order that came before
    samples: tuple[int, ...] = ()  # numbers made from the first samples' bits
    unsynchronized: int = 0  # steps whose last forward pass of a DDP model was inside no_sync()
    settings: tuple[str, ...] = ()  # of the optimizers at their first step, such as `lr 0.1`


def explanation(line: str) -> Evidence:
    """A line of the ranks' output in which a library reports what went wrong, as evidence."""
    return Evidence(EXPLANATION, line, source="what the ranks printed")
