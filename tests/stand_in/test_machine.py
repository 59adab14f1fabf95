"""What torch says of GPUs, and a preflight that tests them, where they compute on the processor."""

import pytest

pytestmark = [pytest.mark.stand_in, pytest.mark.ranks, pytest.mark.timeout(300)]


def test_torch_and_nvml_agree_on_every_gpu(on_gpus):
    ended = on_gpus("h100x8", "list", "--sources", "all", "--json")
    document = ended.document()
    assert ended.status == 0
    assert document["disagreements"] == []
    views = [view for view in document["views"] if view["source"] == "torch"]
    assert [view["context_starts"] for view in views] == [True] * 8
    assert {view["uuid"] for view in views} == {device["uuid"] for device in document["devices"]}
    assert document["torch"]["version"].endswith("stand.in")


@pytest.mark.sliced
def test_each_mig_instance_is_found_by_its_uuid_and_is_the_one_that_nvml_lists(on_gpus):
    (gpu,) = on_gpus("h100-mig", "list", "--sources", "nvml", "--json").document()["devices"]
    instances = gpu["mig_instances"]
    assert len(instances) == 4
    for instance in (None, instances[0], instances[2]):
        visible = {} if instance is None else {"CUDA_VISIBLE_DEVICES": instance["uuid"]}
        ended = on_gpus("h100-mig", "list", "--sources", "all", "--json", variables=visible)
        document = ended.document()
        (view,) = [view for view in document["views"] if view["source"] == "torch"]
        wanted = instances[0] if instance is None else instance
        assert (ended.status, document["disagreements"]) == (0, [])
        assert (view["uuid"], view["bus_id"]) == (wanted["uuid"], gpu["bus_id"])
        assert view["memory_total_bytes"] == wanted["memory_total_bytes"]


@pytest.mark.sliced
def test_copies_and_products_are_measured_and_verified_on_two_gpus(on_gpus, tmp_path):
    log = tmp_path / "log"
    two = {
        "CUDA_VISIBLE_DEVICES": "0,1",
        "CUDA_STAND_IN_FAULTS": "no_peer:1",
        "CUDA_STAND_IN_LOG": str(log),
        "CUDA_STAND_IN_START_SECONDS": "0.5",
    }
    ended = on_gpus("h100x8", "bandwidth", "--json", variables=two)
    document = ended.document()
    assert ended.status == 0, [result for result in document["results"] if result["outcome"] != "pass"]
    active = document["measures"]["active"]
    assert {result["test"] for result in active["bandwidth"]} >= {
        "memory_copy",
        "host_to_device",
        "peer_copy",
    }
    assert all(result["wrong_bytes"] == 0 for result in active["bandwidth"])
    assert not any(result["direct"] for result in active["bandwidth"] if result["test"] == "peer_copy")
    # One process imported torch for the question what it sees and for the ranks; it never started CUDA
    # itself.
    events = [line.split() for line in log.read_text().splitlines()]
    (importer,) = [pid for what, pid in events if what == "torch"]
    started = [pid for what, pid in events if what == "cuda"]
    assert importer not in started
    assert len(set(started)) == len(started) == 5  # the count of GPUs, each GPU, and two ranks
