"""`gpudiag train` whose ranks each see a framework that works alone: python -m tests.ranks.pretenders ENTRY
FLAGS.

What people get who forget the launcher, or let MirroredStrategy choose its devices on a machine without GPUs.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from gpudiag.ranks.rank.context import RankContext

MIRRORED, HOROVOD, ACCELERATE = "mirrored", "horovod", "accelerate"


def mirrored(context: RankContext) -> Mapping[str, Any]:
    from gpudiag.training import mirrored_main

    mirrored_main.start_strategy = lambda tensorflow, job: tensorflow.distribute.MirroredStrategy()
    return mirrored_main.run(context)


def horovod(context: RankContext) -> Mapping[str, Any]:
    from gpudiag.training import rank_main
    from gpudiag.training.strategies import horovod as strategy

    strategy._join = lambda group, hvd: hvd.init()
    return rank_main.run(context)


def accelerate(context: RankContext) -> Mapping[str, Any]:
    from gpudiag.training import rank_main
    from gpudiag.training.strategies import accelerate as strategy

    for name in ("LOCAL_RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    strategy._check_ranks = lambda group: None
    return rank_main.run(context)


if __name__ == "__main__":
    from gpudiag.cli.main import run
    from gpudiag.runs import train

    name = sys.argv.pop(1)
    train._ENTRY = train._MIRRORED_ENTRY = f"tests.ranks.pretenders:{name}"
    sys.argv[1:1] = ["train", "--backend", "gloo", "--strategy", name]
    run()
