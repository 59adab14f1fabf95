"""Frameworks that are installed, and cannot train on GPUs, or on the CPU, here: each is a SKIP with the
reason.
"""

import pytest

from gpudiag.runs import interpreters as gpu_frameworks
from gpudiag.runs.interpreters import lack_on_cpu, lack_on_gpus


def interpreter(folder, words):
    """A Python that answers so, whatever it is asked."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\n{words}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def bare(tmp_path, monkeypatch):
    monkeypatch.setattr(
        gpu_frameworks, "_finds_toolkit", lambda environment: finds(environment, tmp_path / "cuda")
    )
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


finds = gpu_frameworks._finds_toolkit


def test_a_deepspeed_that_asks_for_a_toolkit_when_imported_is_left_out_where_there_is_none(bare, monkeypatch):
    asks = interpreter(bare, "echo 'MissingCUDAException: CUDA_HOME does not exist' >&2; exit 1")
    assert "nvcc" in lack_on_gpus("deepspeed", asks)[0]
    monkeypatch.setenv("CUDA_HOME", "/opt/cuda")
    assert lack_on_gpus("deepspeed", asks) is None
    monkeypatch.delenv("CUDA_HOME")
    (bare / "nvcc").write_text("#!/bin/sh\n")
    (bare / "nvcc").chmod(0o755)
    assert lack_on_gpus("deepspeed", asks) is None


@pytest.mark.parametrize("words", ["exit 0", "echo 'ImportError: libfabric.so' >&2; exit 1"])
def test_one_that_does_not_is_tried(bare, words):
    assert lack_on_gpus("deepspeed", interpreter(bare, words)) is None


def test_horovod_says_itself_whether_it_knows_gpus(tmp_path):
    for words, lacks in (("echo 0", True), ("echo a warning; echo 1", False), ("exit 3", False)):
        folder = tmp_path / words.replace(" ", "-")
        folder.mkdir()
        python = interpreter(folder, words)
        lack = lack_on_gpus("horovod", python)
        assert (lack is not None) is lacks
        if lack is not None:
            assert str(lack[1]).endswith(f"| HOROVOD_GPU_OPERATIONS=NCCL sh -s -- {python}")


def test_torch_itself_lacks_nothing(bare):
    assert lack_on_gpus("torch", None) is None


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("2.4.0+cu121", "asks for a GPU's streams"),
        ("2.6.0a0+df5bbc09d1.nv24.12", "asks for a GPU's streams"),
        ("2.7.1", "sums its gradients"),
        ("2.8.0+cpu", "sums its gradients"),
        ("2.9.1", None),
        ("2.10.0", None),
        ("3.0", None),
        ("unknown", None),
    ],
)
def test_fsdp2_on_the_cpu_wants_a_torch_in_which_it_is_sound(tmp_path, version, why):
    python = interpreter(tmp_path, f"echo {version}")
    lack = lack_on_cpu("fsdp2", python)
    assert (lack is None) is (why is None)
    if lack is not None:
        assert why in lack[0]
        assert lack[1] == f"{python} -m pip install 'torch>=2.9'"
    assert lack_on_cpu("ddp", python) is None
