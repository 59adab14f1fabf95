"""The rules, one file each, in the order in which the catalogue shows them."""

from importlib import import_module

from gpudiag.lint.rule import Rule

_FILES = (
    "wrapper_misspelt", "data_parallel_called_ddp", "data_parallel_in_group", "model_not_wrapped",
    "model_moved_after_wrapping", "module_in_step", "optimizer_before_sharding", "batch_norm_apart",
    "used_too_early", "undefined_name", "local_rank_string", "local_rank_from_argv", "rank_as_device",
    "set_device_missing", "cuda_visible_devices_late", "nccl_on_cpu", "tcp_under_torchrun",
    "file_store_left", "world_size_written_down", "ranks_in_a_loop", "spawn_mistake", "launch_module",
    "rendezvous_localhost", "launch_counts", "destroy_missing", "sampler_missing", "set_epoch_missing",
    "shuffle_with_sampler", "download_on_every_rank", "metrics_not_reduced", "collective_on_one_rank",
    "collective_mismatch", "collective_of_no_tensor", "broadcast_without_source", "send_recv_order",
    "loop_by_rank", "stop_by_signal", "join_extra_collective", "forward_on_one_rank", "step_on_one_rank",
    "function_not_called", "result_discarded", "gradients_not_divided", "clip_before_sync",
    "zero_grad_missing", "loss_keeps_graph", "item_every_step", "save_on_every_rank",
    "sharded_save_on_one_rank", "async_save_without_group", "generate_out_of_step",
    "load_without_map_location", "log_writer_on_every_rank", "deepspeed_config", "engine_step_gated",
    "horovod_rate_unscaled", "horovod_no_broadcast", "mirrored_scope", "deprecated_name", "nvml_bytes",
    "syntax_error",
)  # fmt: skip
RULES: tuple[Rule, ...] = tuple(import_module(f"{__name__}.{name}").RULE for name in _FILES)
BY_CODE = {rule.code: rule for rule in RULES}
