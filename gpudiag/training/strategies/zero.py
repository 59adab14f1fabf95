"""DeepSpeed ZeRO: 0 averages gradients, 1 shards the optimizer's state, 2 the gradients too, 3 also the parameters."""

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from gpudiag.training.reference import make_optimizer
from gpudiag.training.strategies.base import Setup, Strategy, broadcast_model


class ZeroStrategy(Strategy):
    """A DeepSpeed engine of one stage, with torch's own optimizer inside."""

    framework = "deepspeed"

    def __init__(self, setup: Setup) -> None:
        """Bring every rank to the start of rank 0, and start the engine."""
        os.environ.setdefault("DS_ACCELERATOR", setup.group.device.type)
        import deepspeed

        self._deepspeed: Any = deepspeed
        self._asked = int(setup.job.strategy.removeprefix("zero"))
        self._folder = setup.folder
        _leave_shared_memory_out(deepspeed)
        if not deepspeed.comm.is_initialized():
            deepspeed.init_distributed(
                dist_backend=setup.job.backend, auto_mpi_discovery=False, verbose=False
            )
        super().__init__(setup)
        self.optimizer = self._engine.optimizer

    def _wrap(self, setup: Setup) -> nn.Module:
        # The engine broadcasts parameters; nobody broadcasts buffers.
        if setup.broadcasts:
            broadcast_model(setup.group, setup.model)
        with setup.group.announced("wrap"):
            self._engine, *_ = self._deepspeed.initialize(
                model=setup.model,
                optimizer=make_optimizer(setup.job, setup.model),
                config=_settings(setup, self._asked),
            )
        engine: nn.Module = self._engine
        return engine

    @property
    def world_size(self) -> int:
        """The ranks that DeepSpeed averages over."""
        return int(self._engine.dp_world_size)

    @property
    def version(self) -> str:
        """DeepSpeed's version, with torch's."""
        return f"deepspeed {self._deepspeed.__version__}, torch {torch.__version__}"

    @property
    def stage(self) -> int | None:
        """The stage that the engine says it runs."""
        return int(self._engine.zero_optimization_stage())

    def zero_gradients(self) -> None:
        """Forget the gradients of the last step."""
        self._engine.zero_grad()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's outputs for this rank's samples."""
        outputs: torch.Tensor = self._engine(inputs)
        return outputs.float()

    def backward(self, loss: torch.Tensor) -> None:
        """Leave the gradients averaged, where the engine keeps them."""
        self._engine.backward(loss)

    def step(self) -> bool:
        """Let the engine step."""
        self._engine.step()
        return bool(self._engine.was_step_applied())

    def gradients(self) -> dict[str, torch.Tensor]:
        """The whole gradients, put together from where the stage keeps them."""
        from deepspeed.utils import safe_get_full_grad

        found = {}
        with self.group.announced("gather"):
            for name, value in self.plain.named_parameters():
                gradient = value.grad if self._asked == 0 else safe_get_full_grad(value)
                if gradient is not None:
                    found[name] = gradient.detach().float() / self._loss_scale()
        return found

    def _loss_scale(self) -> float:
        """By how much the engine still scales the gradients, which it undoes in its step."""
        scaler = getattr(self._engine, "torch_autocast_z0_gradscaler", None)
        if scaler is None:
            scaler = getattr(self._engine.optimizer, "torch_autocast_gradscaler", None)
        return 1.0 if scaler is None else float(scaler.get_scale())

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters; of stage 3, put together from the shards."""
        parameters = dict(self.plain.named_parameters())
        gathered: Any = nullcontext()
        if self._asked == 3:
            gathered = self._deepspeed.zero.GatheredParameters(list(parameters.values()))
        with self.group.announced("gather"), gathered:
            return {name: value.detach().float().clone() for name, value in parameters.items()}

    def parameters_here(self) -> int:
        """Elements of parameters, or of their shards, on this rank."""
        values = list(self.plain.parameters())
        if self._asked == 3:
            shards: list[Any] = list(values)  # the engine hangs each shard on its parameter
            return sum(shard.ds_tensor.numel() for shard in shards)
        return sum(value.numel() for value in values)

    def optimizer_state_here(self) -> int:
        """Elements of the state of the optimizer inside the engine's."""
        inner = getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)
        tensors = [value for state in inner.state.values() for value in state.values()]
        return sum(value.numel() for value in tensors if isinstance(value, torch.Tensor) and value.dim() > 0)

    @property
    def checkpoint_obstacle(self) -> str | None:
        """Ranks read what others wrote, so it takes a file system that all hosts share."""
        one_host = self.group.local_world_size == self.group.world_size
        return None if one_host else "DeepSpeed needs a folder that all hosts share"

    def checkpoint(self) -> Any:
        """A checkpoint in the run's folder."""
        place = [f"{self._folder}/checkpoint"]
        with self.group.announced("checkpoint"):
            torch.distributed.broadcast_object_list(place)  # every rank writes its part beside rank 0's
            folder = place[0]
            self._engine.save_checkpoint(folder, tag="train")
        return folder

    def reload(self, checkpoint: Any) -> None:
        """Go on from a checkpoint."""
        with self.group.announced("checkpoint"):
            self._engine.load_checkpoint(checkpoint, tag="train")

    def close(self) -> None:
        """End the engine, and DeepSpeed's groups with the process group that they are made of."""
        self._engine.destroy()
        self._deepspeed.comm.destroy_process_group()


def _settings(setup: Setup, stage: int) -> dict[str, Any]:
    job = setup.job
    settings: dict[str, Any] = {
        "train_batch_size": job.batch_size * setup.group.world_size,
        "train_micro_batch_size_per_gpu": job.batch_size,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # left out, DeepSpeed 0.19 clips to a norm of 1 and says nothing
        "zero_force_ds_cpu_optimizer": False,
    }
    if job.dtype != "float32":
        settings["torch_autocast"] = {"enabled": True, "dtype": job.dtype}
    return settings


def _leave_shared_memory_out(deepspeed: Any) -> None:
    """Do without the operator that DeepSpeed compiles for CPU inference: training never calls it."""
    import deepspeed.ops as ops

    known = getattr(ops, "__compatible_ops__", {})
    if "deepspeed_shm_comm" in known:
        known["deepspeed_shm_comm"] = False
