import pytest

from gpudiag.errors import UsageError
from gpudiag.runs.advise import nodes_of_job, parse_parameters, with_other_tasks
from gpudiag.training.advise import Model, Place, advise
from gpudiag.units import GIB

H100 = 80 * GIB


@pytest.mark.parametrize(
    ("parameters", "gpus", "first"),
    [
        (1_000_000_000, 8, "ddp"),
        (7_000_000_000, 8, "zero1"),
        (14_000_000_000, 8, "zero2"),
        (25_000_000_000, 8, "fsdp2"),
        (70_000_000_000, 8, "zero3"),
        (1_000_000_000, 1, "ddp"),
        (7_000_000_000, 1, "zero3"),
        (1_000_000_000, 0, "ddp"),
    ],
)
def test_the_simplest_strategy_that_fits_comes_first(parameters: int, gpus: int, first: str) -> None:
    advice = advise(Model(parameters), Place([H100] * gpus))
    assert advice[0].strategy == first
    assert all(advice_.reasons for advice_ in advice)


def test_the_smallest_gpu_decides() -> None:
    assert advise(Model(1_000_000_000), Place([H100, 12 * GIB]))[0].strategy != "ddp"


def test_sizes_are_read_as_people_write_them() -> None:
    assert [parse_parameters(text) for text in ("350M", "7b", "1.5B", "1000")] == [
        350_000_000,
        7_000_000_000,
        1_500_000_000,
        1000,
    ]
    for text in ("", "0", "seven", "7BB", "-1"):
        with pytest.raises(UsageError):
            parse_parameters(text)


def test_memory_that_gpu_and_host_share_is_no_place_to_offload_to() -> None:
    assert "the host's memory" in advise(Model(7_000_000_000), Place([H100]))[0].reasons[1]
    assert "NVMe" in advise(Model(7_000_000_000), Place([H100], unified=True))[0].reasons[1]


def test_sizes_are_said_as_they_are_written() -> None:
    assert advise(Model(1_500_000_000), Place([H100]))[0].reasons[0].startswith("1.5B parameters in bfloat16")


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_kept_of_a_parameter_is_what_torch_keeps(dtype: str, optimizer: str) -> None:
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(300, 200).to(getattr(torch, dtype))
    kinds = {"adam": torch.optim.Adam, "sgd": lambda p: torch.optim.SGD(p, momentum=0.9)}
    chosen = kinds[optimizer](layer.parameters())
    layer(torch.ones(2, 300, dtype=layer.weight.dtype)).sum().backward()
    chosen.step()
    state = [value for kept in chosen.state.values() for value in kept.values() if value.dim()]
    tensors = [*layer.parameters(), *(one.grad for one in layer.parameters()), *state]
    found = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    model = Model(sum(one.numel() for one in layer.parameters()), dtype, optimizer, dtype == "float32")
    assert model.in_torch.whole == pytest.approx(found, rel=0.1)


def test_autocast_keeps_what_float32_keeps() -> None:
    for dtype in ("bfloat16", "float16"):
        assert Model(1000, dtype).in_torch == Model(1000, "float32").in_torch


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_deepspeed_keeps_what_its_own_estimate_of_zero_2_says(gpus: int) -> None:
    kept = Model(1000).in_deepspeed
    estimate = 2 * 1000 + 18 * 1000 / gpus  # estimate_zero2_model_states_mem_needs of DeepSpeed 0.19.8
    assert kept.weights + (kept.whole - kept.weights) / gpus == pytest.approx(estimate, rel=0.01)


def test_half_of_it_is_enough_without_float32_weights() -> None:
    alone = Model(7_000_000_000, "bfloat16", "adam", master_weights=False)
    assert alone.in_torch.whole * 2 == Model(7_000_000_000).in_torch.whole
    assert advise(alone, Place([H100]))[0].strategy == "ddp"
    assert "in bfloat16 alone with adam" in advise(alone, Place([H100]))[0].reasons[0]
    for dtype in ("float16", "float32"):
        with pytest.raises(UsageError):
            Model(1, dtype, master_weights=False)


def test_more_hosts_share_what_one_cannot_hold() -> None:
    one, four = (advise(Model(25_000_000_000), Place([H100] * 4, hosts))[0] for hosts in (1, 4))
    assert (one.strategy, "offload" in one.reasons[1]) == ("zero3", True)
    assert (four.strategy, "16 GPUs" in four.reasons[0]) == ("fsdp2", True)


def test_the_smallest_offload_that_is_enough_is_named_with_the_hosts_memory() -> None:
    def where(parameters: int, host: int | None) -> str:
        return advise(Model(parameters), Place([H100], host_memory_bytes=host))[0].reasons[1]

    assert "offload the optimizer to the host's memory: 104 GiB" in where(7_000_000_000, 512 * GIB)
    assert "parameters and optimizer to the host's memory" in where(20_000_000_000, 512 * GIB)
    assert "to NVMe" in where(7_000_000_000, 64 * GIB)


def test_activations_are_said_to_be_left_out() -> None:
    for gpus in (1, 8):
        for size in (1_000_000_000, 70_000_000_000):
            assert any("activations" in one for one in advise(Model(size), Place([H100] * gpus))[0].reasons)


def test_the_hosts_of_the_job_are_those_that_its_scheduler_or_launcher_says() -> None:
    assert nodes_of_job({}, 8) == 1
    assert nodes_of_job({"SLURM_JOB_NUM_NODES": "4"}, 8) == 4
    assert nodes_of_job({"WORLD_SIZE": "16"}, 8) == 2
    assert nodes_of_job({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "4"}, 8) == 4


def test_the_gpus_that_slurm_shows_to_other_tasks_are_counted_too() -> None:
    one_each = {"SLURM_GPUS_ON_NODE": "8", "SLURM_TASKS_PER_NODE": "8(x2)"}
    assert with_other_tasks((H100,), one_each) == (H100,) * 8
    one_task = {"SLURM_GPUS_ON_NODE": "8", "SLURM_TASKS_PER_NODE": "1"}
    assert with_other_tasks((H100,), one_task) == (H100,)  # the user took 1 of 8
    assert with_other_tasks((H100,) * 8, one_each) == (H100,) * 8
    assert with_other_tasks((H100,) * 2, {}) == (H100,) * 2
