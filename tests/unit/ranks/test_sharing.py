import threading

from gpudiag.ranks.rank.device import SharedGpuError, require_own_gpu


class WaitingStore:
    """A store as torch's: whoever asks for what is not there yet waits for it."""

    def __init__(self):
        self._values = {}
        self._changed = threading.Condition()

    def set(self, key, value):
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def get(self, key):
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=60)
            return self._values[key]


def compare(uuids, local_world_size):
    """What each rank was told, by rank."""
    store, told = WaitingStore(), {}

    def run(rank):
        try:
            require_own_gpu(store, rank, rank % local_world_size, local_world_size, uuids[rank])
        except SharedGpuError as error:
            told[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(len(uuids))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


def test_ranks_that_are_each_shown_one_gpu_have_it_for_themselves():
    assert compare(["GPU-a", "GPU-b", "GPU-c", "GPU-d"], 4) == {}


def test_ranks_on_one_gpu_are_named_with_it():
    told = compare(["GPU-a", "GPU-b", "GPU-a"], 3)
    assert told.keys() == {0, 2}
    assert all("ranks 0 and 2 both use GPU-a" in words for words in told.values())


def test_gpus_of_other_hosts_are_not_compared():
    assert compare(["GPU-a", "GPU-b", "GPU-a", "GPU-b"], 2) == {}


def test_a_rank_alone_on_its_host_waits_for_nobody():
    require_own_gpu(WaitingStore(), 3, 0, 1, "GPU-a")
