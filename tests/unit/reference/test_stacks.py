"""Which frame of a stack is the user's, where no file of a script is in it, or an installed trainer is."""

from gpudiag.model.job import Frame
from gpudiag.reference.stacks import find_installed, find_own, read_call

C10D = Frame("/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", "all_reduce", 9)
QUEUE = Frame("/opt/python/lib/python3.11/multiprocessing/queues.py", "Queue.get", 103)
SPAWN = Frame("/opt/python/lib/python3.11/multiprocessing/spawn.py", "spawn_main", 122)
IMPORT = Frame("<frozen importlib._bootstrap>", "_call_with_frames_removed", 241)
PACKAGES = "/opt/venv/lib/python3.11/site-packages"


def test_a_program_without_a_file_has_lines_of_its_own() -> None:
    """`python -c` and `python - <<EOF`: the interpreter's names of them stand for the file."""
    for name in ("<string>", "<stdin>"):
        own = Frame(name, "train", 7)
        assert read_call((C10D, own, Frame(name, "<module>", 12))).own == own


def test_what_starts_a_child_and_what_imports_is_no_line_of_the_users() -> None:
    assert find_own((QUEUE, SPAWN, Frame("<string>", "<module>", 1))) is None
    assert find_own((QUEUE, IMPORT)) is None


def test_a_users_file_comes_before_all_that_is_installed() -> None:
    script = Frame("/home/ann/train.py", "<module>", 3)
    trainer = Frame(f"{PACKAGES}/trainer/loop.py", "Loop.run", 44)
    call = read_call((C10D, trainer, script))
    assert call.own == script
    assert find_installed(call.library) == trainer
    assert read_call((C10D, trainer)).own == trainer


def test_no_frame_of_torch_python_or_of_a_known_wait_stands_for_a_trainer() -> None:
    """`requests.get()` in the user's line waits for the network: where in it says nothing."""
    requests = Frame(f"{PACKAGES}/requests/adapters.py", "HTTPAdapter.send", 667)
    jax = Frame(f"{PACKAGES}/jax/_src/pjit.py", "cache_miss", 188)
    assert find_installed((C10D, QUEUE, SPAWN, IMPORT, requests, jax)) is None
