import torch

from gpudiag.training.training_job import TrainingJob
from gpudiag.training.workloads import Epochs, Samples

JOB = TrainingJob("data-parallel", "regression", "nccl", "float32", "sgd", 4, 3, 1, workers=3)
SAMPLES = Samples(torch.arange(JOB.sample_count).float().view(-1, 1), torch.zeros(JOB.sample_count))


def test_one_process_reads_the_batches_of_all_workers_in_the_intended_order():
    epochs = Epochs(JOB, SAMPLES, 0, whole=True)
    intended = epochs.intended(1)
    read = [indices.tolist() for indices, _, _ in epochs.batches(1)]
    assert read == [
        torch.cat([rank[step] for rank in intended]).tolist() for step in range(JOB.steps_per_epoch)
    ]
    assert epochs.batch_size == 9


def test_a_worker_with_a_process_of_its_own_reads_its_own_batches():
    epochs = Epochs(JOB, SAMPLES, 2)
    read = [indices.tolist() for indices, _, _ in epochs.batches(0)]
    assert read == [step.tolist() for step in epochs.intended(0)[2]]
    assert epochs.batch_size == 3
