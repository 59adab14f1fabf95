"""Who owns a training loop, which loader and total is its own, and what a call in it runs."""

from gpudiag.lint.linter import lint_text
from tests.unit.lint.trained_script import TRAINED
from tests.walking import walk


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


def test_a_trainer_of_the_script_is_not_that_of_transformers() -> None:
    """Who defines a class of that name trains by itself.

    Who imports or extends that of transformers does not.
    """
    own = """
import torch.distributed as dist
from torchvision.datasets import MNIST
from transformers import AutoModel

class Trainer:
    def __init__(self):
        dist.init_process_group("gloo")
        self.data = MNIST("data", download=True)

Trainer()
dist.destroy_process_group()
"""
    assert [f.code for f in lint_text(own).findings] == ["lint.download_on_every_rank"]
    uncalled = own.replace("Trainer()\n", "")
    assert [f.code for f in lint_text(uncalled).findings] == ["lint.download_on_every_rank"]
    for line, instead in (
        ("from transformers import AutoModel", "from transformers import Trainer as HF, Trainer"),
        ("class Trainer:", "from transformers import Seq2SeqTrainer\nclass Trainer(Seq2SeqTrainer):"),
        ("Trainer()\n", "Trainer(); import transformers; transformers.Seq2SeqTrainer()\n"),
    ):
        assert lint_text(own.replace(line, instead)).findings == ()


def test_of_loaders_that_a_loop_takes_in_turn_the_one_that_trains_is_judged() -> None:
    """The loader of the test data needs no sampler, also where one loop goes over both."""
    text = f"""{TRAINED}
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


def test_a_loader_that_a_generator_begins_again_needs_set_epoch() -> None:
    text = f"""{TRAINED}
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
    text = f"""{TRAINED}
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
    everywhere = text.replace("    if rank == 0:\n        if loss > 1:", "    if step:\n        if step > 1:")
    assert lint_text(everywhere).findings == ()
    each = text.replace("    if rank == 0:\n", "    if step:\n")  # counts its own losses
    assert [(f.line, f.code) for f in lint_text(each).findings] == [(25, "lint.loop_by_rank")]
    sent = text.replace(
        "    if patience > 3:", "    dist.broadcast(torch.tensor(patience), 0)\n    if patience > 3:"
    )
    assert lint_text(sent).findings == ()


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
    assert "hvd.allreduce(torch.tensor(total), op=hvd.Sum)" in finding.fix


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
    text = f"{TRAINED.replace('gloo', 'nccl')}{item[0]}\ndist.destroy_process_group()\n"
    found = [f.code for f in lint_text(text).findings if f.code == "lint.load_without_map_location"]
    assert bool(found) is item[1]


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
    """Gradients accumulate over a few steps, and so does their metric."""
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


HARMLESS = {
    "a collective that a test lets fail": """import unittest
import horovod.torch as hvd
hvd.init()
try:
    hvd.allgather(1)
except RuntimeError:
    pass
""",
    "under raises": """import pytest
import horovod.torch as hvd
hvd.init()
with pytest.raises(ValueError):
    hvd.allgather(1)
""",
    "an optimizer for each model": """import torch
import torch.distributed as dist
dist.init_process_group("gloo")
models = [torch.nn.Linear(4, 4) for _ in range(3)]
optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
dist.destroy_process_group()
""",
    "a backend of another vendor": """import torch.distributed as dist
if dist.is_hccl_available():
    dist.init_process_group("hccl")
    dist.destroy_process_group()
""",
    "players and trainers under Fabric": """from lightning.fabric import Fabric

fabric = Fabric()


def train(loss):
    fabric.backward(loss)


if fabric.global_rank != 0:
    train(1)
""",
}


@walk(HARMLESS.items(), lambda item: item[0])
def test_what_public_code_does_by_right_is_left_alone(item) -> None:
    assert lint_text(item[1]).findings == ()
