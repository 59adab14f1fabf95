"""What only level acceptance does on GPUs, on the stand-in for CUDA and NCCL."""

import json
import sys

import pytest

from tests.stand_in.running import run_program

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]
# The stand-in's machine has the network cards of this host: the look at them is left out
# (tests/unit/runs/test_acceptance.py).
_MEASURE = """
from gpudiag.model.codec import encode
from gpudiag.model.reading import NOT_ASKED
from gpudiag.probe.inventory import take_snapshot
from gpudiag.runs.placement import place_tests
from gpudiag.runs.preflight_measures import measure_card_pairs
import json
place = place_tests(take_snapshot(("nvml", "torch"), 60.0), (), NOT_ASKED, force=False)
print(json.dumps(encode(measure_card_pairs(place, None))))
"""


def test_each_two_of_four_gpus_exchange_data_by_their_cards(extension):
    """Every pair is measured; the speeds are the processor's, and any of them may stand out."""
    ended = run_program(
        "h100x8", sys.executable, "-c", _MEASURE, variables={"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    )
    assert ended.status == 0, ended.error
    measured = json.loads(ended.output)
    assert (measured["backend"], measured["world_size"], measured["incidents"]) == ("nccl", 4, [])
    assert all(one["verified"] for one in measured["results"])
    assert measured["localisation"] is not None, measured["missing_detail"]
    assert measured["localisation"]["links"] == 6
    assert measured["localisation"]["usual_bytes_per_second"] > 0
