"""Jobs whose ranks meet in process groups of a part of them, one of them missing.

`torchrun --nproc-per-node 4 groups.py KIND FOLDER`. Ranks 0 and 1, and 2 and 3, are pairs for tensor
parallelism; ranks 0 and 2, and 1 and 3, share their gradients. Rank 1 goes wrong in step 7; the line in which
it then stays ends in the comment `# KIND`.
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

KIND, FOLDER = sys.argv[1], Path(sys.argv[2])
GUILTY = 1
torch.set_num_threads(1)


class Parallel:
    """The groups of a rank."""

    def __init__(self) -> None:
        place = dist.get_rank()
        tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        data = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        self.tensor, self.data = tensor[place // 2], data[place % 2]
        self.workers = dist.new_group([1, 2, 3])


def is_wrong(step: int) -> bool:
    """Whether it is this rank's time to go wrong; announced before it does."""
    wrong = dist.get_rank() == GUILTY and step == 7
    if wrong:
        (FOLDER / "ready").touch()
    return wrong


def share_layer(parallel: Parallel, step: int) -> None:
    """The collective of a layer that two ranks share."""
    if KIND == "one_line" and is_wrong(step):
        return
    if KIND == "swallowed_layer" and is_wrong(step):
        raise ValueError("a layer without a weight")
    if KIND == "apart" and is_wrong(step):
        time.sleep(3600)  # apart
    dist.all_reduce(torch.ones(16), group=parallel.tensor)


def share_gradients(parallel: Parallel) -> None:
    """The collective of the ranks with one part of the model."""
    dist.all_reduce(torch.ones(64), group=parallel.data)


def end_of_step(number: int) -> None:
    """What all ranks meet in."""
    dist.all_reduce(torch.ones(1) * number)  # one_line swallowed_layer


def train(parallel: Parallel) -> None:
    """Steps of all ranks together."""
    for step in range(10_000):
        if KIND == "extra_call" and is_wrong(step):
            dist.all_reduce(torch.ones(2), group=parallel.workers)  # extra_call
        try:
            share_layer(parallel, step)
        except ValueError as error:
            print("left a layer out:", error)
        share_gradients(parallel)
        end_of_step(step)
        time.sleep(0.02)


def main() -> None:
    """Start as the kind asks for."""
    dist.init_process_group("gloo")
    parallel = Parallel()
    if KIND == "one_line":
        for step in range(10_000):
            share_layer(parallel, step)
            end_of_step(step)
    if KIND == "apart":  # two pairs that never meet
        for step in range(10**7):
            share_layer(parallel, step)
            time.sleep(0.02)
    train(parallel)


if __name__ == "__main__":
    main()
