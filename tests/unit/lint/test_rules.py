"""Every rule is proved by its own examples, and all together by the corpus."""

import ast
from collections import Counter

from gpudiag.lint.linter import lint_file, lint_text
from gpudiag.lint.rule import Rule
from gpudiag.lint.rules import RULES
from gpudiag.model.lint import Severity
from tests.corpus.linted import corpus_files, expected_places
from tests.walking import walk


def code_of(rule: Rule) -> str:
    return rule.code


@walk(RULES, code_of)
def test_the_wrong_example_is_found_and_nothing_else(rule: Rule) -> None:
    assert {finding.code for finding in lint_text(rule.wrong).findings} == {rule.code}


@walk(RULES, code_of)
def test_the_right_example_and_the_near_miss_are_clean(rule: Rule) -> None:
    assert lint_text(rule.right).findings == ()
    assert lint_text(rule.near_miss).findings == ()


@walk(RULES, code_of)
def test_the_mistake_is_found_in_a_function_and_in_a_page(rule: Rule) -> None:
    if rule.code not in ("lint.syntax_error", "lint.destroy_missing", "lint.undefined_name"):
        page = f"# A page\n\n- item\n\n  ```{{.python}}\n{indented(rule.wrong, '  ')}  ```\n"
        if rule.code not in SCRIPTS_ONLY:
            assert rule.code in {finding.code for finding in lint_text(page, suffix=".md").findings}
    with_crlf = rule.wrong.replace("\n", "\r\n")
    assert [f.line for f in lint_text(with_crlf).findings] == [f.line for f in lint_text(rule.wrong).findings]


# What a page leaves out stands elsewhere, or its fences do not run one after the other.
SCRIPTS_ONLY = {"lint.used_too_early", "lint.nccl_on_cpu", "lint.spawn_mistake"}


@walk(RULES, code_of)
def test_the_entry_of_the_catalogue_is_whole(rule: Rule) -> None:
    assert rule.why.endswith(".")
    assert not rule.title.endswith(".")
    assert rule.wrong != rule.right
    ast.parse(rule.right)
    ast.parse(rule.near_miss)
    for finding in lint_text(rule.wrong).findings:
        assert finding.severity in Severity
        assert finding.mend or rule.code == "lint.syntax_error"
        assert not finding.message.endswith(".")
        assert finding.source in rule.wrong


def test_there_is_one_rule_for_each_file() -> None:
    assert [code for code, count in Counter(rule.code for rule in RULES).items() if count > 1] == []
    assert len(RULES) > 50


@walk(corpus_files(), lambda path: path.name)
def test_what_is_planted_is_found_and_nothing_else(path) -> None:
    found = Counter((finding.line, finding.code) for finding in lint_file(path).findings)
    assert found == expected_places(path)


def test_the_corpus_has_wrong_and_right_scripts() -> None:
    planted = [path for path in corpus_files() if expected_places(path)]
    assert len(planted) > 15
    assert len(corpus_files()) - len(planted) > 7


def test_what_rules_share_finds_aliases_and_helpers() -> None:
    """The same mistake under another name, behind a function, a class and a lambda's argument."""
    text = """
import torch.distributed as td
from torch.distributed import barrier as meet

def rank_of():
    return td.get_rank()

class Job:
    def __init__(self):
        self.first = rank_of() == 0

    def run(self):
        if self.first:
            meet()

td.init_process_group("gloo")
Job().run()
td.destroy_process_group()
"""
    assert [(f.line, f.code) for f in lint_text(text).findings] == [(14, "lint.collective_on_one_rank")]


def test_a_call_of_an_object_runs_its_method_and_builds_nothing() -> None:
    """What a module gives is no module, and a job that is called goes where its `__call__` goes."""
    text = """
import torch
import torch.distributed as dist
import tensorflow as tf

class Scorer(torch.nn.Module):
    def forward(self, batch):
        return batch.sum()

class Job:
    def __init__(self, rank):
        self.rank = rank

    def __call__(self):
        if self.rank == 0:
            dist.barrier()

class Keras(tf.keras.Model):
    pass

dist.init_process_group("gloo")
scorer = Scorer()
scorer.eval()
score = scorer(torch.ones(4))
dist.broadcast(score, src=0)
job = Job(dist.get_rank())
job()
strategy = tf.distribute.MirroredStrategy()
with strategy.scope():
    model = Keras()
model(tf.ones((1, 4)))
dist.destroy_process_group()
"""
    assert [(f.line, f.code) for f in lint_text(text).findings] == [(16, "lint.collective_on_one_rank")]
    handed = text.replace("broadcast(score", "broadcast(scorer")
    assert (25, "lint.collective_of_no_tensor") in [(f.line, f.code) for f in lint_text(handed).findings]


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
EVERY_RANK = {
    "job": "if dist.is_initialized():\n    dist.barrier()",
    "size": 'if int(os.environ.get("WORLD_SIZE", 1)) > 1:\n    dist.barrier()',
    "argument": "if args.distributed:\n    dist.barrier()",
    "rank": 'if int(os.environ.get("RANK", -1)) != -1:\n    dist.barrier()',
    "choice": "if args.distributed or dist.get_rank() == 0:\n    dist.barrier()",
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


def test_a_mend_of_a_download_is_in_the_names_that_the_script_has() -> None:
    opened = 'import torch.distributed as dist\ndist.init_process_group("gloo")\n'
    starts = {
        "from accelerate import Accelerator\nacc = Accelerator()\n": "with acc.local_main_process_first(): data = ",
        "import horovod.torch as hvd\nhvd.init()\n": "hvd.local_rank() == 0",
        f"{opened}local_rank = dist.get_node_local_rank()\n": "(local_rank == 0)",
        opened: 'int(os.environ["LOCAL_RANK"]) == 0',
        f"{opened}from torch.multiprocessing import Process\n": "(dist.get_rank() == 0)",
    }
    for start, mend in starts.items():
        text = f'import torchvision\n{start}data = torchvision.datasets.MNIST("data", download=True)\n'
        [finding] = [f for f in lint_text(text).findings if f.code == "lint.download_on_every_rank"]
        assert mend in finding.mend


def test_a_training_loop_that_lacks_its_backward_pass_is_no_test_of_a_share() -> None:
    text = """
import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

hvd.init()
torch.cuda.set_device(hvd.local_rank())
sampler = DistributedSampler(data, num_replicas=hvd.size(), rank=hvd.rank())
loader = DataLoader(data, sampler=sampler)
total = 0
for batch in loader:
    optimizer.zero_grad()
    total += model(batch).item()
print(total)
"""
    assert lint_text(text).findings == ()
    [finding] = lint_text(text.replace("    optimizer.zero_grad()\n", "")).findings
    assert finding.code == "lint.metrics_not_reduced"
    assert "hvd.allreduce(torch.tensor(total), op=hvd.Sum)" in finding.mend


SHARDED = (
    "model.load_state_dict(state)", "state = model.state_dict()", "FSDP.optim_state_dict(model, optimizer)",
    "with FSDP.summon_full_params(model):\n        print(model)",
)  # fmt: skip


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


def test_a_trainer_of_the_script_is_not_that_of_transformers() -> None:
    """Who defines a class of that name trains by itself; who imports or extends that of transformers does not."""
    own = """
import torch.distributed as dist
from torch.utils.tensorboard import SummaryWriter
from transformers import AutoModel

class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self.writer = SummaryWriter("logs")

Trainer()
dist.destroy_process_group()
"""
    assert [f.code for f in lint_text(own).findings] == ["lint.log_writer_on_every_rank"]
    uncalled = own.replace("Trainer()\n", "")
    assert [f.code for f in lint_text(uncalled).findings] == ["lint.log_writer_on_every_rank"]
    for line, instead in (
        ("from transformers import AutoModel", "from transformers import Trainer as HF, Trainer"),
        ("class Trainer:", "from transformers import Seq2SeqTrainer\nclass Trainer(Seq2SeqTrainer):"),
        ("Trainer()\n", "Trainer(); import transformers; transformers.Seq2SeqTrainer()\n"),
    ):
        assert lint_text(own.replace(line, instead)).findings == ()


def test_a_number_of_the_epoch_that_never_moves_is_found_on_a_loader_from_elsewhere() -> None:
    text = """
import torch.distributed as dist

def train(model, loader, epochs):
    step = 0

    def count():
        nonlocal step
        step += 1

    for epoch in range(epochs):
        loader.sampler.set_epoch(step)
        for batch in loader:
            model(batch).backward()
"""
    assert lint_text(text).findings == ()
    stuck = text.replace("        nonlocal step\n        step += 1", "        return step")
    assert [(f.line, f.code) for f in lint_text(stuck).findings] == [(11, "lint.set_epoch_missing")]


_TRAINED = """
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(64, 4))
"""


def test_of_loaders_that_a_loop_takes_in_turn_the_one_that_trains_is_judged() -> None:
    """The loader of the test data needs no sampler, also where one loop goes over both."""
    text = f"""{_TRAINED}
sampler = DistributedSampler(data)
loaders = {{"train": DataLoader(data, sampler=sampler), "val": DataLoader(data)}}
for epoch in range(9):
    sampler.set_epoch(epoch)
    for phase in ("train", "val"):
        for (batch,) in loaders[phase]:
            optimizer.zero_grad()
            loss = model(batch).sum()
            if phase == "train":
                loss.backward()
                optimizer.step()
dist.destroy_process_group()
"""
    assert lint_text(text).findings == ()
    without = text.replace("data, sampler=sampler", "data, shuffle=True")
    [finding] = lint_text(without).findings
    assert finding.code == "lint.sampler_missing"
    assert finding.column < without.splitlines()[finding.line - 1].index("val")


def test_a_loader_that_a_generator_begins_again_needs_set_epoch() -> None:
    text = f"""{_TRAINED}
def forever(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        for (batch,) in loader:
            yield batch
        epoch += 1

batches = forever(DataLoader(data, sampler=DistributedSampler(data)))
for step in range(1000):
    optimizer.zero_grad()
    model(next(batches)).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    assert lint_text(text).findings == ()
    never = text.replace("        loader.sampler.set_epoch(epoch)\n", "")
    assert [f.code for f in lint_text(never).findings] == ["lint.set_epoch_missing"]
    once = never.replace("    while True:\n", "").replace("    epoch += 1", "epoch += 1")
    once = once.replace(
        "        for (batch,) in loader:\n            yield", "    for (batch,) in loader:\n        yield"
    )
    assert lint_text(once).findings == ()


def test_a_count_that_one_rank_keeps_does_not_end_the_loop_of_all() -> None:
    text = f"""{_TRAINED}
patience = 0
for step in range(100):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 4)).sum()
    loss.backward()
    optimizer.step()
    if rank == 0:
        if loss > 1:
            patience += 1
    if patience > 3:
        break
dist.destroy_process_group()
"""
    assert [(f.line, f.code) for f in lint_text(text).findings] == [(25, "lint.loop_by_rank")]
    everywhere = text.replace("    if rank == 0:\n        if loss > 1:", "    if step:\n        if loss > 1:")
    assert lint_text(everywhere).findings == ()
    sent = text.replace(
        "    if patience > 3:", "    dist.broadcast(torch.tensor(patience), 0)\n    if patience > 3:"
    )
    assert lint_text(sent).findings == ()


def test_the_mend_of_a_device_leaves_the_ranks_of_the_rest_of_the_line() -> None:
    text = """
import torch
import torch.distributed as dist

dist.init_process_group("nccl")
rank = dist.get_rank()
part = torch.arange(rank).to(rank) + my.rank * rank
dist.destroy_process_group()
"""
    [finding] = lint_text(text).findings
    assert finding.mend == 'part = torch.arange(rank).to(int(os.environ["LOCAL_RANK"])) + my.rank * rank'


def test_a_number_that_all_ranks_count_through_is_no_rank() -> None:
    """Each rank in its turn is the source; where a process is started for each number, the number is its rank."""
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


def test_the_mend_of_a_device_under_horovod_asks_horovod() -> None:
    text = "import torch\nimport horovod.torch as h\n\nh.init()\ntorch.cuda.set_device(h.rank())\n"
    [finding] = [f for f in lint_text(text).findings if f.code == "lint.rank_as_device"]
    assert finding.mend == "torch.cuda.set_device(h.local_rank())"


def test_what_follows_a_function_that_ends_the_other_ranks_is_for_one() -> None:
    text = f"""{_TRAINED}
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


LOADS = {
    "features = torch.load(cached_features_file)": False,
    'data = torch.load("train.pt")': False,
    "labels, images = torch.load(path)": False,
    "checkpoint = torch.load(path)": True,
    "model.module.load_state_dict(torch.load(path))": True,
    'data = torch.load("checkpoint.pt")': True,
    "features = torch.load(cached)\nsnapshot = torch.load(path)": True,
}


@walk(LOADS.items(), lambda item: item[0])
def test_prepared_data_is_no_checkpoint_of_a_gpu(item) -> None:
    text = f"{_TRAINED.replace('gloo', 'nccl')}{item[0]}\ndist.destroy_process_group()\n"
    found = [f.code for f in lint_text(text).findings if f.code == "lint.load_without_map_location"]
    assert bool(found) is item[1]


DEVICES = (
    "torch.cuda.set_device(rank)", 'torch.device(f"cuda:{rank}")', 'torch.device("cuda:%d" % rank)', "net.to(rank)",
    "net.cuda(rank)", 'net.to(f"cuda:{rank}")', 'torch.device("cuda", rank)',
)  # fmt: skip


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
    assert 'int(os.environ["LOCAL_RANK"])' in finding.mend
    for rank, local_rank in (
        ("SLURM_PROCID", "SLURM_LOCALID"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ):
        [other] = lint_text(text.replace('"RANK"', f'"{rank}"')).findings
        assert f'int(os.environ["{local_rank}"])' in other.mend
    assert lint_text(text.replace('"RANK"', '"LOCAL_RANK"')).findings == ()
    assert lint_text(text.replace('"RANK", 0))', '"RANK", 0)) % torch.cuda.device_count()')).findings == ()


RESETS = {
    "in some rounds": "            total = 0",
    "with another": "            steps, total = 0, 0",
    "by a list": "            total = []",
    "cleared": "            total.clear()",
    "detached": "            total = total.detach()",
    "in a function": "            report()",
}


@walk(RESETS.items(), lambda item: item[0])
def test_a_total_that_begins_anew_in_some_rounds_does_not_keep_all_graphs(item) -> None:
    """Gradients accumulate over a few steps, and so does what is told of them."""
    text = f"""
import torch
from torch.nn.parallel import DistributedDataParallel

def report():
    global total
    total = 0

def train(batches):
    global total
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    total = 0
    for step, batch in enumerate(batches):
        loss = model(batch).sum() / 8
        total += loss
        loss.backward()
        if (step + 1) % 8 == 0:
{item[1]}
"""
    assert [f.code for f in lint_text(text).findings] == []
    kept = text.replace(item[1], "            print(step)")
    assert [f.code for f in lint_text(kept).findings] == ["lint.loss_keeps_graph"]


def indented(text: str, margin: str) -> str:
    return "".join(f"{margin}{line}".rstrip() + "\n" for line in text.splitlines())
