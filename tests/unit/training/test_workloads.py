"""Models and data come from the seed; shards are disjoint, cover everything, and change order."""

import pytest
import torch

from gpudiag.training.reference import Reference
from gpudiag.training.tensors import digest
from gpudiag.training.training_job import TrainingFault, TrainingJob
from gpudiag.training.workloads import MODELS, Epochs, Samples, build_model, make_data


def make_job(workload: str = "regression", **values: object) -> TrainingJob:
    options = {"dtype": "float32", "optimizer": "sgd", "steps": 6, "batch_size": 4, "seed": 3, "workers": 2}
    return TrainingJob("ddp", workload, "gloo", **{**options, **values})  # type: ignore[arg-type]


def make_epochs(rank: int, *kinds: str) -> Epochs:
    job = make_job(faults=tuple(TrainingFault(kind, kind) for kind in kinds))
    return Epochs(job, Samples(*make_data(job.workload, job.sample_count, job.seed)), rank)


def read(epochs: Epochs, epoch: int) -> list[int]:
    return [index for indices, _, _ in epochs.batches(epoch) for index in indices.tolist()]


@pytest.mark.parametrize("workload", MODELS)
def test_the_same_seed_gives_the_same_start_and_another_one_another(workload: str) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (build_model(workload, seed) for seed in (1, 1, 2))
    assert [digest(value) for value in first.state_dict().values()] == [
        digest(value) for value in again.state_dict().values()
    ]
    assert all(digest(one) != digest(two) for one, two in zip(first.buffers(), other.buffers(), strict=True))
    assert torch.random.get_rng_state().equal(before)


@pytest.mark.parametrize("workload", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_single_process_learns_in_a_few_steps_and_uses_every_parameter(
    workload: str, optimizer: str
) -> None:
    job = make_job(workload, optimizer=optimizer)
    samples = Samples(*make_data(workload, job.sample_count, job.seed))
    reference = Reference(job, torch.device("cpu"), samples)
    before = reference.evaluate({name: value.clone() for name, value in reference.parameters().items()})
    for _ in range(job.steps):
        step = reference.step(torch.arange(job.sample_count))
        assert set(step.gradients) == set(reference.parameters())
        assert not step.skipped
    assert reference.evaluate(reference.parameters()) < before


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_mean_of_the_shards_gradients_is_the_gradient_of_the_whole(dtype: str) -> None:
    job = make_job(dtype=dtype)
    samples = Samples(*make_data(job.workload, job.sample_count, job.seed))
    reference = Reference(job, torch.device("cpu"), samples)
    shards = [torch.arange(4), torch.arange(4, 8)]
    own = [reference.alone(shard).gradients for shard in shards]
    whole = reference.step(torch.cat(shards)).gradients
    for name, gradient in whole.items():
        torch.testing.assert_close((own[0][name] + own[1][name]) / 2, gradient, rtol=2e-3, atol=2e-4)


def test_shards_are_disjoint_cover_everything_and_change_their_order() -> None:
    ranks = [make_epochs(rank) for rank in (0, 1)]
    for epoch in (0, 1):
        shares = [read(epochs, epoch) for epochs in ranks]
        assert sorted(shares[0] + shares[1]) == list(range(ranks[0].job.sample_count))
    assert read(ranks[0], 0) != read(ranks[0], 1)


def test_what_ranks_should_read_is_what_they_read() -> None:
    intended = make_epochs(0).intended(1)
    for rank in (0, 1):
        assert [index for step in intended[rank] for index in step.tolist()] == read(make_epochs(rank), 1)


def test_faults_of_the_data_do_what_they_say() -> None:
    assert read(make_epochs(1, "samedata"), 0) == read(make_epochs(0), 0)
    assert read(make_epochs(0, "noset_epoch"), 1) == read(make_epochs(0), 0)
    assert len(read(make_epochs(1, "uneven"), 0)) == len(read(make_epochs(0, "uneven"), 0)) - 4


def test_a_nan_comes_to_one_rank_in_one_step_only() -> None:
    job = make_job(faults=(TrainingFault("nan", "nan:1@2", 1, 2),))
    samples = Samples(*make_data(job.workload, job.sample_count, job.seed))
    spoilt = [
        (rank, epoch * 3 + step)
        for rank in (0, 1)
        for epoch in (0, 1)
        for step, (_, inputs, _) in enumerate(Epochs(job, samples, rank).batches(epoch))
        if inputs.isnan().any()
    ]
    assert spoilt == [(1, 2)]
    assert not samples.inputs.isnan().any()
