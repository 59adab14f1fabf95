"""DeepSpeed ZeRO: 0 averages gradients, 1 shards optimizer state, 2 gradients too, 3 also parameters."""

import os
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from gpudiag.model.reading import NOT_ASKED, Reading
from gpudiag.model.training import KeptTensor
from gpudiag.training.reference import make_optimizer
from gpudiag.training.strategies.base import BUCKETS, ScriptState, Setup, Strategy, broadcast_model
from gpudiag.training.tensors import Digests, Tensors, digest_optimizer, digest_values

_SPLITS_EACH = 3  # the stage that splits every parameter by itself
# Stages 1 and 2 split all parameters in a row, filled up to this number of elements for each rank
# (DeepSpeed's nccl_start_alignment_factor).
_ALIGNED_TO = 2


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
        self._most_gradients = 0
        # After the engine's own hooks, which may release a gradient.
        for value in self.plain.parameters():
            value.register_post_accumulate_grad_hook(self._note_gradients)  # type: ignore[no-untyped-call]
        if self._scaler is not None:  # DeepSpeed begins with 65536, and would skip the first steps
            own = self.precision.scaler.get_scale()
            self._scaler.load_state_dict({**self._scaler.state_dict(), "scale": own})

    def _wrap(self, setup: Setup) -> nn.Module:
        # The engine broadcasts parameters, but not buffers.
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
        """The number of ranks that DeepSpeed averages over."""
        return int(self._engine.dp_world_size)

    @property
    def version(self) -> str:
        """DeepSpeed's version, with torch's."""
        return f"deepspeed {self._deepspeed.__version__}, torch {torch.__version__}"

    @property
    def stage(self) -> int | None:
        """The stage that the engine reports."""
        return int(self._engine.zero_optimization_stage())

    def zero_gradients(self) -> None:
        """Clear the gradients of the last step."""
        self._engine.zero_grad()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The model's outputs for this rank's samples."""
        outputs: torch.Tensor = self._engine(inputs)
        return outputs.float()

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass; it leaves the averaged gradients where the engine keeps them."""
        self._engine.backward(loss)

    def step(self) -> bool:
        """Step the engine; False if its loss scaler skipped the step, which stage 0 does not report."""
        scale = self.loss_scale()
        self._engine.step()
        return bool(self._engine.was_step_applied()) and self.loss_scale() >= scale

    def gradients(self) -> dict[str, torch.Tensor]:
        """The whole gradients, gathered from where the stage keeps them."""
        from deepspeed.utils import safe_get_full_grad

        found = {}
        with self.group.announced("gather"):
            for name, value in self.plain.named_parameters():
                gradient = value.grad if self._asked == 0 else safe_get_full_grad(value)
                if gradient is not None:
                    found[name] = gradient.detach().float() / self.loss_scale()
        return found

    def gradients_here(self) -> Reading[int]:
        """The peak number of gradient elements that the parameters had in any backward pass so far.

        After it, every stage but 0 has only the rank's part; from stage 2 on, at most a bucket is ever whole.
        """
        return self._most_gradients

    def gradients_kept(self) -> dict[str, torch.Tensor]:
        """None: the engine's step clears them."""
        return {}

    def own_part(self, whole: Tensors) -> Tensors:
        """What of each tensor this rank steps: stages 1 and 2 a range of all, stage 3 one of each."""
        rank, size = self.group.rank, self.group.world_size
        stage = self.stage or 0
        if stage == 0:
            return whole
        if stage == _SPLITS_EACH:
            each = {name: -(-value.numel() // size) for name, value in whole.items()}
            return {
                name: value.flatten()[rank * each[name] : (rank + 1) * each[name]]
                for name, value in whole.items()
            }
        order = [name for name, _ in self.plain.named_parameters() if name in whole]
        aligned = _ALIGNED_TO * size
        part = -(-sum(whole[name].numel() for name in order) // aligned) * aligned // size
        parts, start = {}, 0
        for name in order:
            value = whole[name].flatten()
            parts[name] = value[max(rank * part - start, 0) : max((rank + 1) * part - start, 0)]
            start += value.numel()
        return parts

    def foreign_in_optimizer(self) -> Reading[int]:
        """Not asked: the engine's optimizer steps flat tensors of its own."""
        return NOT_ASKED

    def _note_gradients(self, _: torch.Tensor) -> None:
        alive = sum(value.grad.numel() for value in self.plain.parameters() if value.grad is not None)
        self._most_gradients = max(self._most_gradients, alive)

    def loss_scale(self) -> float:
        """The factor by which gradients are scaled until the engine's step undoes it."""
        return 1.0 if self._scaler is None else float(self._scaler.get_scale())

    @property
    def _scaler(self) -> Any:
        """The loss scaler of the engine; None where the dtype needs none."""
        of_stage_0 = getattr(self._engine, "torch_autocast_z0_gradscaler", None)
        return of_stage_0 or getattr(self._engine.optimizer, "torch_autocast_gradscaler", None)

    def parameters(self) -> dict[str, torch.Tensor]:
        """The whole parameters; in stage 3, gathered from the shards."""
        parameters = dict(self.plain.named_parameters())
        gathered: Any = nullcontext()
        if self._splits_parameters:
            gathered = self._deepspeed.zero.GatheredParameters(list(parameters.values()))
        with self.group.announced("gather"), gathered:
            return {name: value.detach().float().clone() for name, value in parameters.items()}

    def parameters_here(self) -> int:
        """The number of elements of parameters, or of their shards, on this rank."""
        return sum(kept.elements for kept in self.parameters_kept())

    def parameters_kept(self) -> tuple[KeptTensor, ...]:
        """The number of elements of each parameter on this rank, and of the whole one."""
        named: list[tuple[str, Any]] = list(self.plain.named_parameters())
        if not self._splits_parameters:
            return tuple(KeptTensor(name, one.numel(), one.numel()) for name, one in named)
        # the engine hangs each shard on its parameter, and keeps the number of its elements
        return tuple(KeptTensor(name, one.ds_tensor.numel(), one.ds_numel) for name, one in named)

    @property
    def _splits_parameters(self) -> bool:
        """Whether the engine shards parameters, whatever stage it was asked for."""
        return all(hasattr(value, "ds_tensor") for value in self.plain.parameters())

    def _inner_optimizer(self) -> Any:
        """The optimizer of torch, which the engine's own drives."""
        return getattr(self._engine.optimizer, "optimizer", self._engine.optimizer)

    def optimizer_state_here(self) -> int:
        """The number of elements in the state of the optimizer inside the engine's."""
        tensors = [value for state in self._inner_optimizer().state.values() for value in state.values()]
        return sum(value.numel() for value in tensors if isinstance(value, torch.Tensor) and value.dim() > 0)

    @property
    def checkpoint_obstacle(self) -> str | None:
        """Why no checkpoint can be tried: ranks read what others wrote, so all hosts must share a folder."""
        return None if self.group.on_one_host else "DeepSpeed needs a folder that all hosts share"

    def kept_state(self) -> Digests:
        """Digests of parameters or shards, buffers, the inner optimizer with its copy of them, and steps."""
        parameters: dict[str, Any] = dict(self.plain.named_parameters())
        split = self._splits_parameters
        kept = {name: value.ds_tensor if split else value for name, value in parameters.items()}
        inner = self._inner_optimizer()
        copies = {
            f"{number}.{place}": value
            for number, group in enumerate(inner.param_groups)
            for place, value in enumerate(group["params"])
        }
        steps = {"global_steps": self._engine.global_steps, "loss_scale": self.loss_scale()}
        return {
            **digest_values("model", {**kept, **self.buffers()}),
            **digest_values("copy", copies if self._asked else {}),
            **digest_optimizer(inner, {}),
            **digest_values("engine", steps),
        }

    def checkpoint(self, script: ScriptState) -> Any:
        """A checkpoint in the run's folder."""
        place = [f"{self._folder}/checkpoint"]
        scripts: list[Any] = [None] * self.group.world_size
        with self.group.announced("checkpoint"):
            torch.distributed.broadcast_object_list(place)  # every rank writes its part to rank 0's folder
            torch.distributed.all_gather_object(scripts, script)  # one rank writes the client's state
            self._engine.save_checkpoint(place[0], tag="train", client_state={"scripts": scripts})
        return place[0]

    def reload(self, checkpoint: Any) -> ScriptState:
        """Load a checkpoint; the script's state in it."""
        with self.group.announced("checkpoint"):
            _, client_state = self._engine.load_checkpoint(checkpoint, tag="train")
        script: ScriptState = client_state["scripts"][self.group.rank]
        return script

    def close(self) -> None:
        """Destroy the engine, and DeepSpeed's groups together with the process group behind them."""
        self._engine.destroy()
        self._deepspeed.comm.destroy_process_group()


def _settings(setup: Setup, stage: int) -> dict[str, Any]:
    job = setup.job
    elements = sum(value.numel() for value in setup.model.parameters())
    settings: dict[str, Any] = {
        "train_batch_size": job.batch_size * setup.group.world_size,
        "train_micro_batch_size_per_gpu": job.batch_size,
        "zero_optimization": {
            "stage": stage,
            "stage3_param_persistence_threshold": 0,
            "reduce_bucket_size": elements // BUCKETS + 1,
        },
        "zero_allow_untested_optimizer": True,
        "gradient_clipping": 0.0,  # without it, DeepSpeed 0.19 silently clips to a norm of 1
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
