"""`gpudiag train --script`: healthy waits go on, and of ranks that hang or die the right one is named at its
line.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.ranks.train_command import torchrun_train, train

pytestmark = [pytest.mark.ranks, pytest.mark.sliced, pytest.mark.timeout(120)]

MEET = (
    "import os, subprocess, sys, time\nimport torch, torch.distributed as dist\n"
    "dist.init_process_group('gloo')\n"
)
BUSY = "import time; end = time.monotonic() + 9\nwhile time.monotonic() < end: sum(range(1000))"
PREPARE = f"""{MEET}
def prepare():
    if sys.argv[1] == 'child':
        subprocess.run([sys.executable, '-c', {BUSY!r}])
    elif sys.argv[1] == 'sleep':
        time.sleep(9)
    else:
        time.sleep(3600)
if dist.get_rank() == 0:
    prepare()
dist.barrier()
"""
UNEVEN = f"""{MEET}
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
batches = 4 if dist.get_rank() == int(sys.argv[1]) else 6
data = DataLoader(TensorDataset(torch.randn(batches * 2, 8)), batch_size=2)
model = DistributedDataParallel(torch.nn.Linear(8, 8))
def train():
    for (inputs,) in data:
        model(inputs).sum().backward()
train()
dist.barrier()
"""
SHARDED = f"""{MEET}
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(8, 8)
fully_shard(model, mesh=init_device_mesh('cpu', (dist.get_world_size(),)))
def train():
    for _ in range(4 if dist.get_rank() == int(sys.argv[1]) else 6):
        model(torch.randn(4, 8)).sum().backward()
train()
dist.barrier()
"""
LOADER = f"""{MEET}
from torch.utils.data import DataLoader, Dataset
class Samples(Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, index):
        if os.environ['RANK'] == '1' and index > 20:
            time.sleep(3600)
        return torch.randn(8)
def train():
    for inputs in DataLoader(Samples(), batch_size=4, num_workers=1):
        dist.all_reduce(inputs)
train()
"""
READS = (
    f"{MEET}\ndef load():\n    return open(sys.argv[1]).read()\nif dist.get_rank() == 1:\n    load()\n"
    "dist.barrier()\n"
)
LOCKED = (
    f"{MEET}\nimport threading\nlock = threading.Lock()\ndef save():\n    with lock:\n        with lock:\n"
    "            pass\nif dist.get_rank() == 2:\n    save()\ndist.barrier()\n"
)
KEY = f"{MEET}\nsettings = {{}}\ndef step():\n    return settings['lr']\nstep()\n"
LIBRARY = (
    f"{MEET}\nimport json\ndef load():\n    return json.loads('{{bad')\nif dist.get_rank() == 1:\n"
    "    load()\ndist.barrier()\n"
)
SIZES = f"{MEET}\ndist.all_reduce(torch.ones(2000 if dist.get_rank() == 0 else 1000))\ndist.barrier()\n"
KILLED = (
    f"{MEET}\ndef work():\n    time.sleep(3)\n    os.kill(os.getpid(), 9)\nif dist.get_rank() == 1:\n"
    "    work()\ndist.barrier()\n"
)


def run_script(folder: Path, text: str, *arguments: str, launch: Any = None) -> tuple[Any, Any]:
    """The completed command, with two ranks or more, and its report."""
    path = folder / "script.py"
    path.write_text(text)
    flags = ("--script", str(path), "--hang-after", "3", "--json", "--", *arguments)
    completed = torchrun_train(3, *flags) if launch == "torchrun" else train("--nproc", "3", *flags)
    assert completed.left_behind == ()
    return completed, completed.document()


@pytest.mark.parametrize("how", ["child", "sleep"])
def test_ranks_that_wait_for_one_that_works_are_told_so_and_go_on(tmp_path: Path, how: str) -> None:
    completed, report = run_script(tmp_path, PREPARE, how)
    assert (completed.status, [one["code"] for one in report["findings"]]) == (
        0,
        ["train.no_gradient_crossed"],
    )
    assert "ranks 1 and 2 wait in" in completed.error
    assert "rank 0 works at" in completed.error
    assert "90 s (30 times --hang-after)" in completed.error


def test_a_rank_that_does_nothing_ends_the_run_and_the_limit_is_named(tmp_path: Path) -> None:
    completed, report = run_script(tmp_path, PREPARE, "nothing")
    (finding,) = report["findings"]
    assert (completed.status, finding["code"], finding["subject"]["rank"]) == (1, "train.script_hung", 0)
    assert "nothing has moved for 3 s (--hang-after)" in finding["message"]


@pytest.mark.each_run
def test_what_a_rank_waits_for_is_told_as_it_is_seen_from_outside(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    _, report = run_script(tmp_path, READS, str(tmp_path / "fifo"))
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("train.script_hung", 1)
    assert "it opens the FIFO" in finding["message"]
    assert f"{tmp_path}/fifo" in finding["message"]
    assert "script.py:6 in load" in finding["message"]
    assert "nothing has moved for 3 s (--hang-after)" in finding["message"]
    assert "process of rank 1" in [one["name"] for one in finding["evidence"]]


def test_a_lock_at_the_call_that_all_make_is_told_of_the_rank_that_waits_for_it(tmp_path: Path) -> None:
    _, report = run_script(tmp_path, LOCKED)
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("train.script_hung", 2)
    assert "it waits for a lock or another thread" in finding["message"]


@pytest.mark.parametrize("script", [UNEVEN, SHARDED], ids=["ddp", "fsdp2"])
@pytest.mark.parametrize(("short", "launch"), [(0, None), (2, None), (1, "torchrun")])
def test_the_rank_whose_data_is_shorter_is_named_and_not_those_in_backward(
    tmp_path: Path, script: str, short: int, launch: str | None
) -> None:
    completed, report = run_script(tmp_path, script, str(short), launch=launch)
    (finding,) = report["findings"]
    assert (completed.status, finding["code"], finding["subject"]["rank"]) == (1, "train.script_hung", short)
    assert f"rank {short} had 4 " in finding["message"]
    assert "shorter" in finding["message"]


def test_a_rank_that_waits_for_its_loader_is_named(tmp_path: Path) -> None:
    _, report = run_script(tmp_path, LOADER)
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("train.script_hung", 1)
    assert "data loader's workers" in finding["message"]


def test_one_exception_on_all_ranks_is_one_finding_at_the_users_line(tmp_path: Path) -> None:
    _, report = run_script(tmp_path, KEY)
    (finding,) = report["findings"]
    assert finding["message"] == f"all 3 ranks raised KeyError at {tmp_path}/script.py:7 in step: 'lr'"
    assert "CUDA" not in finding["remedy"]


def test_an_exception_in_a_library_is_told_at_the_users_line(tmp_path: Path) -> None:
    _, report = run_script(tmp_path, LIBRARY)
    (finding,) = report["findings"]
    assert f"raised JSONDecodeError at {tmp_path}/script.py:7 in load" in finding["message"]
    assert finding["subject"]["rank"] == 1


def test_a_killed_rank_is_told_at_the_users_line(tmp_path: Path) -> None:
    _, report = run_script(tmp_path, KILLED)
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"]["rank"]) == ("rank.died", 1)
    assert f"{tmp_path}/script.py:6" in finding["message"]


@pytest.mark.parametrize("launch", ["spawn", "torchrun"])
@pytest.mark.parametrize("elements", [2000, 500])
def test_the_rank_whose_tensor_differs_is_named_and_not_the_one_that_gloo_ended(
    tmp_path: Path, launch: str, elements: int
) -> None:
    _, report = run_script(tmp_path, SIZES.replace("2000", str(elements)), launch=launch)
    (finding,) = report["findings"]
    assert (finding["code"], finding["subject"].get("rank")) == ("collective.mismatched", 0)
    assert "Received data size doesn't match" in str(finding["evidence"])
    assert "same size and dtype" in finding["remedy"]


UNSEEDED = """import os, random, sys, torch, torch.distributed as dist
dist.init_process_group('gloo')
here = [torch.rand(1).item(), random.random(), float(torch.initial_seed())]
alike = [None] * dist.get_world_size()
drawn = torch.tensor(here, dtype=torch.float64)
both = [torch.zeros_like(drawn) for _ in alike]
dist.all_gather(both, drawn)
sys.exit(any((a == b).any().item() for i, a in enumerate(both) for b in both[i + 1:]))
"""


def test_ranks_of_a_script_without_a_seed_start_apart_as_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "unseeded.py"
    script.write_text(UNSEEDED)
    completed = train("--nproc", "3", "--script", str(script), "--json")
    assert (completed.status, completed.document()["outcome"]) == (0, "warn"), completed.error


@pytest.mark.parametrize("flag", ["--local-rank=0", "--local_rank=0"])
def test_a_script_gets_the_local_rank_as_its_launcher_wrote_it(tmp_path: Path, flag: str) -> None:
    script, told = tmp_path / "arguments.py", tmp_path / "told"
    script.write_text(f"import sys; open({str(told)!r}, 'w').write(' '.join(sys.argv[1:]))")
    place = ("--rank", "0", "--world-size", "1", "--init-method", f"file://{tmp_path}/meet")
    train(flag, *place, "--script", str(script), "--json", "--", "--epochs", "2")
    assert told.read_text() == f"{flag} --epochs 2"
