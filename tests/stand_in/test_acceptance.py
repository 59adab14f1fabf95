"""What only level acceptance does on GPUs, on the stand-in for CUDA and NCCL."""

import pytest

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(300)]


@pytest.mark.each_run
def test_each_two_of_four_gpus_exchange_data_by_their_cards(on_gpus):
    """Every pair is measured; the speeds are the processor's, and any of them may stand out."""
    words = ("preflight", "--level", "acceptance", "--only", "network.card_pairs", "--json")
    ended = on_gpus("h100x8", *words, variables={"CUDA_VISIBLE_DEVICES": "0,1,2,3"})
    document = ended.document()
    [result] = document["results"]
    measured = document["measures"]["card_pairs"]
    assert measured is not None, document["measures"]["missing_detail"]
    assert (measured["backend"], measured["world_size"], measured["incidents"]) == ("nccl", 4, [])
    assert measured["localisation"]["links"] == 6
    assert measured["localisation"]["usual_bytes_per_second"] > 0
    assert all(one["verified"] for one in measured["results"])
    assert result["outcome"] in ("pass", "warn"), result


def test_two_gpus_are_too_few_to_tell_a_bad_card(on_gpus):
    words = ("preflight", "--level", "acceptance", "--only", "network.card_pairs", "--json")
    document = on_gpus("h100x8", *words, variables={"CUDA_VISIBLE_DEVICES": "0,1"}).document()
    [result] = document["results"]
    assert result["outcome"] == "skip"
    assert "4 GPUs are needed" in result["reason"]
