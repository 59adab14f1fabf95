"""The names of distributed training: what they are called in full, and what they do. Facts of torch 2.13."""

import re
from functools import cache

_CANONICAL = {
    "torch.nn.parallel.distributed.DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.data_parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.nn.DataParallel": "torch.nn.DataParallel",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.distributed.fsdp.fully_sharded_data_parallel.FullyShardedDataParallel": (
        "torch.distributed.fsdp.FullyShardedDataParallel"
    ),
    "torch.distributed._composable.fsdp.fully_shard": "torch.distributed.fsdp.fully_shard",
    "torch.distributed._composable.fsdp.fully_shard.fully_shard": "torch.distributed.fsdp.fully_shard",
    "torch.multiprocessing.spawn.spawn": "torch.multiprocessing.spawn",
    "torch.utils.tensorboard.writer.SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
    "tensorboardX.SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
    "accelerate.accelerator.Accelerator": "accelerate.Accelerator",
    "accelerate.state.PartialState": "accelerate.PartialState",
    "torch.cuda.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.amp.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.GradScaler": "torch.cuda.amp.GradScaler",
    "torch.nn.utils.clip_grad.clip_grad_norm_": "torch.nn.utils.clip_grad_norm_",
    "torch.distributed.device_mesh.init_device_mesh": "torch.distributed.init_device_mesh",
    "torch.distributed.device_mesh.DeviceMesh": "torch.distributed.DeviceMesh",
    "torch.distributed.tensor.DeviceMesh": "torch.distributed.DeviceMesh",
    "torch.distributed.tensor.init_device_mesh": "torch.distributed.init_device_mesh",
    "torch.distributed._tensor.DeviceMesh": "torch.distributed.DeviceMesh",
    "torch.distributed._tensor.init_device_mesh": "torch.distributed.init_device_mesh",
    "torch.distributed.checkpoint.state_dict_saver.async_save": "torch.distributed.checkpoint.async_save",
    "torch.distributed.algorithms.Join": "torch.distributed.algorithms.join.Join",
}
_PREFIXES = (
    ("torch.distributed.distributed_c10d.", "torch.distributed."),
    ("deepspeed.comm.", "torch.distributed."),
    ("pytorch_lightning.", "lightning.pytorch."),
    ("accelerate.utils.operations.", "accelerate.utils."),
    ("tf_keras.", "tensorflow.keras."),
    ("tensorflow.python.keras.", "tensorflow.keras."),
    ("keras.", "tensorflow.keras."),
    ("tensorflow.compat.v2.", "tensorflow."),
)

# Packages in which one class does as well as another: a table of them is one of them.
CLASSES_ALIKE = frozenset(
    {"torch.optim", "torch.optim.lr_scheduler", "torchvision.datasets", "torchaudio.datasets"}
)

# What a fence that imports nothing means by a name.
CONVENTIONAL_NAMES = {
    "torch": "torch",
    "nn": "torch.nn",
    "optim": "torch.optim",
    "dist": "torch.distributed",
    "DDP": "torch.nn.parallel.DistributedDataParallel",
    "DistributedDataParallel": "torch.nn.parallel.DistributedDataParallel",
    "DataParallel": "torch.nn.DataParallel",
    "DataLoader": "torch.utils.data.DataLoader",
    "DistributedSampler": "torch.utils.data.DistributedSampler",
    "SummaryWriter": "torch.utils.tensorboard.SummaryWriter",
    "hvd": "horovod.torch",
    "deepspeed": "deepspeed",
    "mp": "torch.multiprocessing",
    "os": "os",
    "tf": "tensorflow",
    "argparse": "argparse",
    "wandb": "wandb",
    "Accelerator": "accelerate.Accelerator",
    "fully_shard": "torch.distributed.fsdp.fully_shard",
    "torchvision": "torchvision",
}

DDP_CLASSES = frozenset(
    """
    torch.nn.parallel.DistributedDataParallel torch.nn.parallel.DistributedDataParallelCPU
    apex.parallel.DistributedDataParallel
    """.split()
)
DATA_PARALLEL = "torch.nn.DataParallel"
FSDP1 = "torch.distributed.fsdp.FullyShardedDataParallel"
FULLY_SHARD = "torch.distributed.fsdp.fully_shard"
INIT = "torch.distributed.init_process_group"
LOADER = "torch.utils.data.DataLoader"
SAMPLER = "torch.utils.data.DistributedSampler"
SPAWN = frozenset({"torch.multiprocessing.spawn", "torch.multiprocessing.start_processes"})

# What names and calls mean by themselves: the kinds of `values.py`.
RANK_NAMES = frozenset(
    {"rank", "global_rank", "world_rank", "dist_rank", "process_index", "proc_id", "rank_id"}
)
LOCAL_RANK_NAMES = frozenset({"local_rank", "localrank", "local_process_index", "local_proc_index"})
WORLD_SIZE_NAMES = frozenset(
    {"world_size", "worldsize", "num_replicas", "nprocs", "n_ranks", "num_processes"}
)
ENVIRONMENT = {
    "RANK": "rank",
    "SLURM_PROCID": "rank",
    "OMPI_COMM_WORLD_RANK": "rank",
    "PMI_RANK": "rank",
    "LOCAL_RANK": "local_rank",
    "SLURM_LOCALID": "local_rank",
    "OMPI_COMM_WORLD_LOCAL_RANK": "local_rank",
    "MPI_LOCALRANKID": "local_rank",
    "WORLD_SIZE": "world_size",
    "SLURM_NTASKS": "world_size",
    "OMPI_COMM_WORLD_SIZE": "world_size",
}
KINDS_OF_CALLS = {
    **dict.fromkeys(DDP_CLASSES, "ddp"),
    DATA_PARALLEL: "dp",
    FSDP1: "fsdp1",
    LOADER: "loader",
    SAMPLER: "sampler",
    "torch.distributed.get_rank": "rank",
    "torch.distributed.get_node_local_rank": "local_rank",
    "torch.distributed.get_world_size": "world_size",
    **dict.fromkeys("accelerate.Accelerator accelerate.PartialState".split(), "accelerator"),
    "torch.cuda.amp.GradScaler": "scaler",
    "argparse.ArgumentParser": "parser",
    "torch.device": "device",
    "torch.utils.tensorboard.SummaryWriter": "writer",
    "torch.utils.data.TensorDataset": "dataset",
    "torch.utils.data.Subset": "subset",
    "torch.utils.data.random_split": "dataset",
    "torch.utils.data.ConcatDataset": "dataset",
    "datasets.load_dataset": "dataset",
    "torch.nn.Sequential": "module",
    "torch.nn.SyncBatchNorm.convert_sync_batchnorm": "module",
}
SAME_VALUE_METHODS = frozenset(
    "to cuda cpu train eval half float double bfloat16 detach contiguous compile requires_grad_".split()
)
SAME_VALUE_CALLS = frozenset(
    """
    int torch.compile tqdm tqdm.tqdm tqdm.auto.tqdm tqdm.notebook.tqdm iter list copy.deepcopy
    torch.nn.SyncBatchNorm.convert_sync_batchnorm
    """.split()
)
MAIN_WORDS = re.compile(
    r"^_?(?:is_|am_i_|i_am_)?(?:the_)?(?:main|master|primary|chief|leader|root|rank_?zero|rank_?0|"
    r"global_zero|first)(?:_?(?:process|proc|rank|node|worker|only))?$"
    r"|^is_(?:local_)?(?:main|master)_process$|^is_(?:global_|world_process_)?zero$",
    re.IGNORECASE,
)
LAYERS = re.compile(r"^torch\.nn\.(?:[A-Z]\w+)$")
LOSSES = re.compile(r"^torch\.nn\.\w*Loss$")

# What each rank reads or draws for itself.
CLOCKS = frozenset(
    """
    time.time time.time_ns time.monotonic time.perf_counter time.strftime time.ctime time.localtime
    datetime.datetime.now datetime.datetime.utcnow datetime.datetime.today
    """.split()
)
RANDOM_NAMES = frozenset("uuid.uuid1 uuid.uuid4 secrets.token_hex".split())

# What every rank of the group must call; sends and receives are between two.
TORCH_COLLECTIVES = frozenset(
    """
    barrier monitored_barrier all_reduce all_reduce_coalesced broadcast broadcast_object_list reduce
    all_gather all_gather_object all_gather_into_tensor all_gather_single all_gather_coalesced gather
    gather_object scatter scatter_object_list reduce_scatter reduce_scatter_tensor reduce_scatter_single
    all_to_all all_to_all_single new_group
    """.split()
)
# What makes groups: every rank of the job calls it, those that are in none of them too.
GROUP_MAKERS = frozenset(
    "new_group new_subgroups new_subgroups_by_enumeration split_group init_device_mesh DeviceMesh".split()
)
HOROVOD_COLLECTIVES = frozenset(
    """
    allreduce allreduce_ grouped_allreduce allgather allgather_object broadcast broadcast_ broadcast_object
    broadcast_parameters broadcast_optimizer_state broadcast_variables alltoall reducescatter barrier
    """.split()
)
# Lightning 2: what every rank must call. `Trainer.save_checkpoint` and Fabric's save end with a barrier.
LIGHTNING_STRATEGY = frozenset({"barrier", "reduce", "all_gather", "broadcast", "reduce_boolean_decision"})
LIGHTNING_FABRIC = frozenset("barrier all_gather all_reduce broadcast save load".split())
# Ray Train waits until every worker has reported.
RAY_REPORTS = frozenset({"ray.train.report", "ray.air.session.report", "ray.train.save_checkpoint"})
ACCELERATE_COLLECTIVES = frozenset(
    "wait_for_everyone gather gather_for_metrics reduce pad_across_processes".split()
)

# Names of what holds a configuration: `cfg.tensor_parallel`, `args["rank"]`.
CONFIGURATION = re.compile(
    r"_?(?:args|cfg|conf|config|hparams|hps|opts?|options|params|settings|flags)", re.IGNORECASE
)

# Methods of Hugging Face's data sets whose result is the same data, or a part of them.
SAME_DATA = frozenset(
    """
    map filter shuffle select take skip with_format rename_column rename_columns cast_column
    remove_columns select_columns with_transform
    """.split()
)
ACCELERATE_FUNCTIONS = frozenset(
    f"accelerate.utils.{name}"
    for name in """
    gather gather_object reduce broadcast broadcast_object_list pad_across_processes wait_for_everyone
    """.split()
)

# Environment variables: NCCL's of its documentation (2.28) without the prefix, and others of a launch.
VARIABLES = (
    *(
        f"NCCL_{name}"
        for name in """
        SOCKET_IFNAME SOCKET_FAMILY SOCKET_NTHREADS NSOCKS_PERTHREAD CROSS_NIC IB_DISABLE IB_HCA
        IB_TIMEOUT IB_RETRY_CNT IB_GID_INDEX IB_SL IB_TC IB_FIFO_TC IB_QPS_PER_CONNECTION
        IB_SPLIT_DATA_ON_QPS IB_PCI_RELAXED_ORDERING IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_MERGE_NICS
        IB_ROCE_VERSION_NUM OOB_NET_ENABLE OOB_NET_IFNAME NET NET_PLUGIN TUNER_PLUGIN PROFILER_PLUGIN
        IGNORE_CPU_AFFINITY CONF_FILE DEBUG DEBUG_FILE DEBUG_SUBSYS COLLNET_ENABLE TOPO_FILE
        TOPO_DUMP_FILE P2P_DISABLE P2P_LEVEL P2P_DIRECT_DISABLE SHM_DISABLE BUFFSIZE NTHREADS
        MIN_NCHANNELS MAX_NCHANNELS MIN_P2P_NCHANNELS MAX_P2P_NCHANNELS MIN_CTAS MAX_CTAS MIN_NRINGS
        MAX_NRINGS CHECKS_DISABLE LAUNCH_MODE CUMEM_ENABLE CUMEM_HOST_ENABLE NET_GDR_LEVEL NET_GDR_READ
        NET_SHARED_BUFFERS ALGO PROTO NVB_DISABLE PXN_DISABLE DMABUF_ENABLE NVLS_ENABLE MNNVL_ENABLE
        GRAPH_REGISTER LOCAL_REGISTER RUNTIME_CONNECT COMM_BLOCKING RAS_ENABLE HOSTID COMM_ID
        BLOCKING_WAIT ASYNC_ERROR_HANDLING DESYNC_DEBUG
        """.split()
    ),
    *(
        "CUDA_VISIBLE_DEVICES CUDA_LAUNCH_BLOCKING CUDA_DEVICE_ORDER MASTER_ADDR MASTER_PORT OMP_NUM_THREADS"
    ).split(),
)

_TORCH_DISTRIBUTED = TORCH_COLLECTIVES | frozenset(
    """
    init_process_group destroy_process_group get_rank get_world_size is_initialized is_available send recv
    isend irecv ReduceOp
    """.split()
)


@cache
def canonical_name(name: str) -> str:
    """The one name of what has several, such as `torch.utils.data.DistributedSampler`."""
    for prefix, instead in _PREFIXES:
        if name.startswith(prefix):
            name = instead + name[len(prefix) :]
            break
    if (
        name.startswith("torch.optim.")
        and name.count(".") == 3
        and not name.startswith("torch.optim.lr_scheduler.")
    ):
        name = "torch.optim." + name.rsplit(".", 1)[1]  # torch.optim.adam.Adam
    return _CANONICAL.get(name, name)


def star_names(module: str) -> frozenset[str]:
    """The names of interest that `from MODULE import *` brings."""
    known = {
        "torch.distributed": _TORCH_DISTRIBUTED,
        "torch.nn.parallel": frozenset({"DistributedDataParallel", "DataParallel"}),
        "torch.nn": frozenset({"DataParallel"}),
        "torch.utils.data": frozenset({"DataLoader", "DistributedSampler"}),
        "torch.utils.data.distributed": frozenset({"DistributedSampler"}),
        "torch.optim": frozenset({"SGD", "Adam", "AdamW", "RMSprop"}),
    }
    return known.get(module, frozenset())
