"""Which ranks come to a place, and which GPU is theirs, in the shapes in which scripts ask for it."""

from gpudiag.lint.linter import lint_text
from tests.unit.lint.trained_script import TRAINED
from tests.walking import walk

ONE_RANK = {
    "environment": 'rank = int(os.environ.get("RANK", 0))\nif rank == 0:\n    dist.barrier()',
    "environment's text": 'if os.environ.get("LOCAL_RANK", "0") == "0":\n    dist.barrier()',
    "choice": "rank = dist.get_rank() if dist.is_initialized() else 0\nif rank == 0:\n    dist.barrier()",
    "nothing": 'rank = int(os.environ["RANK"]) if "RANK" in os.environ else -1\nif rank == 0:\n    dist.barrier()',
    "branch": "rank = 0\nif args.distributed:\n    rank = dist.get_rank()\nif rank == 0:\n    dist.barrier()",
    "handler": """try:
    rank = int(os.environ["RANK"])
except KeyError:
    rank = 0
if rank == 0:
    dist.barrier()""",
    "helper": """def get_rank():
    if not dist.is_initialized():
        return 0
    return dist.get_rank()

def is_main_process():
    return get_rank() == 0

if is_main_process():
    dist.barrier()""",
    "either": """def is_first():
    return not dist.is_initialized() or dist.get_rank() == 0

if is_first():
    dist.barrier()""",
    "both": """distributed = int(os.environ.get("WORLD_SIZE", 1)) > 1
rank = int(os.environ.get("RANK", 0))
if distributed and rank == 0:
    dist.barrier()""",
    "main process": """if int(os.environ.get("RANK", -1)) != -1:
    master_process = int(os.environ["RANK"]) == 0
else:
    master_process = True
if master_process:
    dist.barrier()""",
    "pair": """def setup():
    return int(os.environ.get("LOCAL_RANK", 0)), dist.get_world_size()

local_rank, size = setup()
if local_rank == 0:
    dist.barrier()""",
}
ONE_RANK |= {
    "case": "match dist.get_rank():\n    case 0:\n        dist.barrier()",
    "other case": "match dist.get_rank():\n    case 0:\n        pass\n    case _:\n        dist.barrier()",
    "last": "if dist.get_rank() == dist.get_world_size() - 1:\n    dist.barrier()",
}
EVERY_RANK = {
    "job": "if dist.is_initialized():\n    dist.barrier()",
    "size": 'if int(os.environ.get("WORLD_SIZE", 1)) > 1:\n    dist.barrier()',
    "argument": "if args.distributed:\n    dist.barrier()",
    "rank": 'if int(os.environ.get("RANK", -1)) != -1:\n    dist.barrier()',
    "choice": "if args.distributed or dist.get_rank() == 0:\n    dist.barrier()",
    "two": "if dist.get_rank() == 0 or dist.get_rank() == 1:\n    dist.barrier()",
    "one by one": "if dist.get_rank() == 0:\n    dist.barrier()\nif dist.get_rank() == 1:\n    dist.barrier()",
    "some": "if dist.get_rank() % 8 == 0:\n    dist.barrier(group)",
    "command": "import hydra\n\n@hydra.main\ndef run(cfg):\n    dist.barrier()\n\nrun()",
    "flag": """save = True
if args.one:
    save = dist.get_rank() == 0
if save:
    dist.barrier()""",
}
_RANKS_HEAD = """
import argparse
import os
import torch
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter

args = argparse.ArgumentParser().parse_args()
dist.init_process_group("gloo")
"""


@walk(ONE_RANK.items(), lambda item: item[0])
def test_a_rank_is_known_beside_what_stands_for_it_in_a_single_process(item) -> None:
    text = f"{_RANKS_HEAD}{item[1]}\ndist.destroy_process_group()\n"
    assert [f.code for f in lint_text(text).findings] == ["lint.collective_on_one_rank"]
    writer = item[1].replace("dist.barrier()", 'SummaryWriter("logs")')
    assert lint_text(f"{_RANKS_HEAD}{writer}\ndist.destroy_process_group()\n").findings == ()


@walk(EVERY_RANK.items(), lambda item: item[0])
def test_what_asks_for_a_job_lets_all_ranks_through(item) -> None:
    text = f"{_RANKS_HEAD}{item[1]}\ndist.destroy_process_group()\n"
    assert lint_text(text).findings == ()


SOME_RANKS = {
    "below": "if rank < 2:\n    dist.barrier()",
    "half": "if rank < dist.get_world_size() // 2:\n    dist.barrier()",
    "members": "if rank in members:\n    dist.barrier()",
    "literal": "if rank in (0, 3):\n    dist.barrier()",
    "even": "if rank % 2 == 0:\n    dist.barrier()",
    "odd": "if rank % 2:\n    dist.barrier()",
    "machine": "if rank // 8 == 0:\n    dist.barrier()",
    "named": "is_member = rank in members\nif is_member:\n    dist.barrier()",
    "and": "if args.pairs and rank in members:\n    dist.barrier()",
    "loop": "for members in plan:\n    if rank not in members:\n        continue\n    dist.new_group(members)",
    "mesh": "from torch.distributed.device_mesh import DeviceMesh\nif rank in members:\n"
    "    DeviceMesh('cpu', members)",
}
ALL_OR_A_GROUP = {
    "group": "if rank in members:\n    dist.barrier(group=group)",
    "place of the group": "if rank in members:\n    dist.barrier(part)",
    "all": "if rank < dist.get_world_size():\n    dist.barrier()",
    "range": "if rank in range(dist.get_world_size()):\n    dist.barrier()",
    "both sides": "if rank % 2 == 0:\n    dist.barrier()\nelse:\n    dist.barrier()",
    "one after the other": "if rank < 2:\n    dist.barrier()\nif rank >= 2:\n    dist.barrier()",
    "members alone": "if rank in members:\n    dist.new_group(members, use_local_synchronization=True)",
    "used by members": "group = dist.new_group(members)\nif rank in members:\n    dist.barrier(group)",
    "there is one": "if rank >= 0:\n    dist.barrier()",
    "send": "if rank < 2:\n    dist.send(torch.zeros(1), dst=2)",
}


@walk(SOME_RANKS.items(), lambda item: item[0])
def test_what_several_ranks_call_and_not_all_is_found(item) -> None:
    text = f"{_RANKS_HEAD}rank = dist.get_rank()\n{item[1]}\ndist.destroy_process_group()\n"
    assert [f.code for f in lint_text(text).findings] == ["lint.collective_on_one_rank"]


@walk(ALL_OR_A_GROUP.items(), lambda item: item[0])
def test_groups_and_conditions_that_all_ranks_meet_are_left_alone(item) -> None:
    text = f"{_RANKS_HEAD}rank = dist.get_rank()\n{item[1]}\ndist.destroy_process_group()\n"
    assert lint_text(text).findings == ()


LIGHTNING = """
import lightning as L
import torch


class Module(L.LightningModule):
    def on_validation_epoch_end(self):
        {}


class Watch(L.Callback):
    def on_train_epoch_end(self, trainer, pl_module):
        {}
"""
ON_ONE_RANK_OF_LIGHTNING = (
    "if self.trainer.is_global_zero: self.all_gather(self.score)",
    "if self.global_rank == 0: self.trainer.strategy.barrier()",
    "if self.trainer.is_global_zero: self.trainer.save_checkpoint('last.ckpt')",
    "if self.trainer.is_global_zero: self.log('score', 1.0, sync_dist=True)",
)
RIGHT_IN_LIGHTNING = (
    "if self.trainer.is_global_zero: self.log('score', 1.0)",
    "if self.trainer.is_global_zero: torch.save(self.state_dict(), 'last.pt')",
    "self.log('score', 1.0, sync_dist=True)",
    "self.trainer.save_checkpoint('last.ckpt')",
)


@walk(ON_ONE_RANK_OF_LIGHTNING)
def test_collectives_of_lightning_are_for_all_ranks(call) -> None:
    for text in (
        LIGHTNING.format(call, "pass"),
        LIGHTNING.format("pass", call.replace("self.trainer", "trainer").replace("self.", "pl_module.")),
    ):
        assert [f.code for f in lint_text(text).findings] == ["lint.collective_on_one_rank"]


@walk(RIGHT_IN_LIGHTNING)
def test_what_lightning_lets_one_rank_do_is_left_alone(call) -> None:
    assert lint_text(LIGHTNING.format(call, "pass")).findings == ()


DECORATORS = {
    "imported": ("from mine import rank_zero_only", "@rank_zero_only"),
    "of an object": ("from mine import accelerator", "@accelerator.on_main_process"),
    "with an argument": ("from mine import run_on", "@run_on(rank=0)"),
    "of this script": (
        """
def guarded(function):
    def inner(*given):
        if dist.get_rank() == 0:
            return function(*given)

    return inner
""",
        "@guarded",
    ),
}


@walk(DECORATORS.items(), lambda item: item[0])
def test_a_decorator_may_let_one_rank_alone_into_a_function(item) -> None:
    brought, decorator = item[1]
    text = f"""{_RANKS_HEAD}{brought}
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(4, 4))

{decorator}
def save():
    torch.save(model.module.state_dict(), "model.pt")
    return SummaryWriter("logs")

save()
dist.destroy_process_group()
"""
    assert lint_text(text).findings == ()
    codes = [f.code for f in lint_text(text.replace(decorator, "@torch.no_grad()")).findings]
    assert codes == ["lint.save_on_every_rank", "lint.log_writer_on_every_rank"]


def test_what_follows_a_function_that_ends_the_other_ranks_is_for_one() -> None:
    text = f"""{TRAINED}
import sys

def only_first():
    if dist.get_rank() != 0:
        sys.exit()

only_first()
torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
"""
    assert lint_text(text).findings == ()
    kept = text.replace("sys.exit()", "print(rank)")
    assert [f.code for f in lint_text(kept).findings] == ["lint.save_on_every_rank"]


def test_a_number_that_all_ranks_count_through_is_no_rank() -> None:
    """Each rank in its turn is the source.

    Where a process is started for each number, the number is its rank.
    """
    turns = """
import torch
import torch.distributed as dist

def send(part, source):
    dist.broadcast(part, source)

dist.init_process_group("gloo")
for rank in range(dist.get_world_size()):
    send(torch.zeros(1), rank)
    if rank == 0:
        dist.barrier()
dist.destroy_process_group()
"""
    assert lint_text(turns).findings == ()
    started = """
import torch
import torch.distributed as dist
from torch.multiprocessing import Process

def work(rank, size):
    dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29500", rank=rank, world_size=size)
    if rank == 0:
        dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    for rank in range(2):
        Process(target=work, args=(rank, 2)).start()
"""
    assert [(f.line, f.code) for f in lint_text(started).findings] == [(9, "lint.collective_on_one_rank")]


DEVICES = (
    *("torch.cuda.set_device(rank)", 'torch.device(f"cuda:{rank}")', 'torch.device("cuda:%d" % rank)'),
    *("net.to(rank)", "net.cuda(rank)", 'net.to(f"cuda:{rank}")', 'torch.device("cuda", rank)'),
)


@walk(DEVICES)
def test_the_rank_of_the_job_is_no_number_of_a_gpu_however_it_is_written(use) -> None:
    text = f"""
import os
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = int(os.environ.get("RANK", 0))
net = torch.nn.Linear(4, 4)
{use}
dist.destroy_process_group()
"""
    [finding] = lint_text(text).findings
    assert finding.code == "lint.rank_as_device"
    assert 'int(os.environ["LOCAL_RANK"])' in finding.fix
    for rank, local_rank in (
        ("SLURM_PROCID", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        [other] = lint_text(text.replace('"RANK"', f'"{rank}"')).findings
        assert f'int(os.environ["{local_rank}"])' in other.fix
    assert lint_text(text.replace('"RANK"', '"LOCAL_RANK"')).findings == ()
    assert lint_text(text.replace('"RANK", 0))', '"RANK", 0)) % torch.cuda.device_count()')).findings == ()


def test_the_fix_of_a_device_leaves_the_ranks_of_the_rest_of_the_line() -> None:
    text = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
part = torch.arange(rank).to(rank) + my.rank * rank
dist.destroy_process_group()
"""
    [finding] = lint_text(text).findings
    assert finding.fix == 'part = torch.arange(rank).to(int(os.environ["LOCAL_RANK"])) + my.rank * rank'


def test_the_fix_of_a_device_under_horovod_asks_horovod() -> None:
    text = "import torch\nimport horovod.torch as h\n\nh.init()\ntorch.cuda.set_device(h.rank())\n"
    [finding] = [f for f in lint_text(text).findings if f.code == "lint.rank_as_device"]
    assert finding.fix == "torch.cuda.set_device(h.local_rank())"


def test_a_fix_of_a_download_is_in_the_names_that_the_script_has() -> None:
    opened = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n'
    starts = {
        "from accelerate import Accelerator\nacc = Accelerator()\n": "with acc.local_main_process_first(): data = ",
        "import horovod.torch as hvd\nhvd.init()\n": "hvd.local_rank() == 0",
        f"{opened}local_rank = dist.get_node_local_rank()\n": "download=local_rank == 0",
        f'{opened}import os\nprint(os.environ["LOCAL_RANK"])\n': "int(os.environ['LOCAL_RANK']) == 0",
        opened: "download=dist.get_rank() == 0",
    }
    for start, fix in starts.items():
        text = f'import torchvision\n{start}data = torchvision.datasets.MNIST("data", download=True)\n'
        [finding] = [f for f in lint_text(text).findings if f.code == "lint.download_on_every_rank"]
        assert fix in finding.fix


SHARDED = (
    "model.load_state_dict(state)",
    "state = model.state_dict()",
    "FSDP.optim_state_dict(model, optimizer)",
    "with FSDP.summon_full_params(model):\n        print(model)",
)


@walk(SHARDED)
def test_what_a_sharded_model_needs_all_ranks_for_is_not_done_on_one(call) -> None:
    text = f"""
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

dist.init_process_group("nccl")
state = torch.load("model.pt", map_location="cpu")
whole = torch.nn.Linear(4, 4)
if dist.get_rank() == 0:
    whole.load_state_dict(state)
model = FSDP(whole, sync_module_states=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if dist.get_rank() == 0:
    {call}
dist.destroy_process_group()
"""
    wanted = (14, "lint.sharded_save_on_one_rank")
    assert [(f.line, f.code) for f in lint_text(text).findings if f.code != "lint.deprecated_name"] == [
        wanted
    ]
