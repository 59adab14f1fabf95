"""What every rank of one training run is given."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TrainingFault:
    """A fault in the training itself, as in `--inject`; of one rank or of all, at one step or always."""

    kind: str
    specification: str
    rank: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class TrainingJob:
    """One strategy on one workload; the same on every rank. `batch_size` is per rank."""

    strategy: str
    workload: str
    backend: str
    dtype: str
    optimizer: str
    steps: int
    batch_size: int
    seed: int
    workers: int  # ranks, or replicas of one process
    run: int = 0  # counts the runs of one command: their keys in the store must differ
    measured: bool = True
    fresh_groups: bool = True  # load the checkpoint, and begin the repeat, in a new process group
    faults: tuple[TrainingFault, ...] = ()

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch, such that two or more verified steps reach into a second epoch."""
        return max(1, (self.steps + 1) // 2)

    @property
    def sample_count(self) -> int:
        """The size of the data set: every rank has the same whole number of batches in it."""
        return self.steps_per_epoch * self.batch_size * self.workers

    @property
    def learning_rate(self) -> float:
        """A rate at which every workload learns in a few steps, and a wrong gradient moves it far."""
        return 0.05 if self.optimizer == "sgd" else 0.01
