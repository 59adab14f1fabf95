"""Mistakes in the shapes in which people write them: options in a dict, batches by `next`, two ways to train
in one file.
"""

from gpudiag.lint.linter import lint_text
from tests.walking import walk

TRAINED = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
data = TensorDataset(torch.randn(64, 4))
model = DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
{}
dist.destroy_process_group()
"""
STEP = """        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()"""
EPOCHS = f"for epoch in range(3):\n    for (batch,) in loader:\n{STEP}"
BY_NEXT = """batches = iter(loader)
for step in range(100):
    try:
        (batch,) = next(batches)
    except StopIteration:
        batches = iter(loader)
        (batch,) = next(batches)
    optimizer.zero_grad()
    model(batch).sum().backward()
    optimizer.step()"""

WITHOUT_SAMPLER = {
    "by next": f"loader = DataLoader(data, 8, shuffle=True)\n{BY_NEXT}",
    "by next, while": f"loader = DataLoader(data, 8)\n{BY_NEXT}".replace(
        "for step in range(100)", "while True"
    ),
    "options": f"options = {{'batch_size': 8, 'shuffle': True}}\nloader = DataLoader(data, **options)\n{EPOCHS}",
    "dict()": f"options = dict(batch_size=8, num_workers=2)\nloader = DataLoader(data, **options)\n{EPOCHS}",
}
WITH_SAMPLER = {
    "by next": f"loader = DataLoader(data, 8, sampler=DistributedSampler(data))\n{BY_NEXT}",
    "options": f"options = {{'sampler': DistributedSampler(data, shuffle=False)}}\n"
    f"loader = DataLoader(data, 8, **options)\n{EPOCHS}",
    "changed": f"options = {{}}\noptions['sampler'] = DistributedSampler(data, shuffle=False)\n"
    f"loader = DataLoader(data, 8, **options)\n{EPOCHS}",
    "added": "options = dict(batch_size=8)\noptions.update(sampler=DistributedSampler(data, shuffle=False))\n"
    f"loader = DataLoader(data, **options)\n{EPOCHS}",
    "given": "def make(**options):\n    return DataLoader(data, 8, **options)\n\n"
    f"loader = make(sampler=DistributedSampler(data, shuffle=False))\n{EPOCHS}",
}


@walk(WITHOUT_SAMPLER.items(), lambda item: item[0])
def test_a_loader_without_a_sampler_is_found(item) -> None:
    assert [f.code for f in lint_text(TRAINED.format(item[1])).findings] == ["lint.sampler_missing"]


@walk(WITH_SAMPLER.items(), lambda item: item[0])
def test_a_loader_with_a_sampler_is_left_alone(item) -> None:
    assert lint_text(TRAINED.format(item[1])).findings == ()


TWO_WAYS = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

data = TensorDataset(torch.randn(64, 4))


def train_alone():
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 8, shuffle=True)
    for epoch in range(3):
        for (batch,) in loader:
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
    torch.save(model.state_dict(), "alone.pt")


def train_on_ranks():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for (batch,) in loader:
            optimizer.zero_grad()
            loss = model(batch).sum()
            loss.backward()
            optimizer.step()
    dist.destroy_process_group()
"""


def test_a_function_for_one_process_is_left_alone_beside_one_for_ranks() -> None:
    assert lint_text(TWO_WAYS).findings == ()
    wrong = TWO_WAYS.replace("DataLoader(data, 8, sampler=sampler)", "DataLoader(data, 8)")
    assert [(f.code, f.line) for f in lint_text(wrong).findings] == [("lint.sampler_missing", 28)]


LOCAL_RANK = {
    "click": (
        "import click",
        '@click.command()\n@click.option("--local-rank", type=int, default=0)\ndef main(local_rank):',
    ),
    "click's name": (
        "import click",
        '@click.command()\n@click.option("--rank-here", "local_rank", type=int)\ndef main(local_rank):',
    ),
    "typer": ("import typer", "def main(local_rank: int = typer.Option(0)):"),
}


@walk(LOCAL_RANK.items(), lambda item: item[0])
def test_a_local_rank_that_only_an_option_gives_is_found(item) -> None:
    brought, head = item[1]
    text = f"""
{brought}
import torch
import torch.distributed as dist


{head}
    torch.cuda.set_device(local_rank)
    dist.init_process_group("nccl")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
"""
    assert [f.code for f in lint_text(text).findings] == ["lint.local_rank_from_argv"]
    right = text.replace("set_device(local_rank)", 'set_device(int(os.environ["LOCAL_RANK"]))').replace(
        brought, f"{brought}\nimport os"
    )
    assert lint_text(right).findings == ()
