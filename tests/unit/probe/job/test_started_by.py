"""Which line started a thread that runs a library's code alone, by the sources of the process."""

import os

from gpudiag.model.job import Frame, ThreadLook
from gpudiag.probe.job.started_by import add_starters

SOURCE = """\
class Keeper:
    def save(self, model):
        self.pending = dcp.async_save(model, checkpoint_id="a")

def main():
    pass
"""
LIBRARY = "/opt/venv/lib/python3.11/site-packages/torch/distributed/checkpoint/"


def threads(file):
    main = ThreadLook(1, "MainThread", "S", 0.0, frames=(Frame(str(file), "main", 6),))
    saver = ThreadLook(
        2,
        "AsyncCheckpointExecutor_0",
        "S",
        0.0,
        frames=(
            Frame(LIBRARY + "utils.py", "gather_object", 135),
            Frame(LIBRARY + "_async_thread_executor.py", "save_wrapper", 30),
        ),
    )
    return main, saver


def test_the_line_and_its_function_are_named(tmp_path):
    file = tmp_path / "job.py"
    file.write_text(SOURCE)
    main, saver = add_starters(os.getpid(), threads(file))
    assert saver.started_by == "async_save at job.py:3 in Keeper.save"
    assert main.started_by == ""


def test_the_function_alone_is_named_where_no_line_is_found(tmp_path):
    file = tmp_path / "job.py"
    file.write_text("import trainer\n")
    assert add_starters(os.getpid(), threads(file))[1].started_by == "async_save"
    assert add_starters(os.getpid(), threads(tmp_path / "gone.py"))[1].started_by == "async_save"


def test_other_threads_are_left_as_they_are(tmp_path):
    main, saver = threads(tmp_path / "job.py")
    other = ThreadLook(3, "prefetch", "S", 0.0, frames=(*saver.frames, *main.frames))
    assert add_starters(os.getpid(), (main, other)) == (main, other)
