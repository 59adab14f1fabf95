"""A GPU that fell off the bus, on every kind of machine that has several."""

from tests.scenarios.kinds.trial import Kind, Trial

KINDS = (
    Kind(
        "a GPU off the bus",
        (
            *(
                Trial("off the bus", machine, ("gpu.lost 1",), faults="lost:1")
                for machine in ("h100x8", "a100x8", "b200x8", "rtx4090x2")
            ),
            *(
                Trial("a training process holds its memory", machine, faults="busy:1")
                for machine in ("h100x8", "a100x8", "b200x8", "rtx4090x2")
            ),
        ),
    ),
)
