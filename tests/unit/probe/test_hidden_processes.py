import pytest

from gpudiag.probe.host.processes import hides_processes, read_process


@pytest.mark.parametrize(
    ("options", "hides"),
    [
        ("rw,nosuid", False),
        ("rw,hidepid=1", False),
        ("rw,hidepid=2,gid=4", True),
        ("rw,hidepid=invisible", True),
        ("rw,hidepid=ptraceable", True),
    ],
)
def test_a_proc_that_hides_processes_is_known_by_its_mount(tmp_path, options, hides):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "mounts").write_text(f"tmpfs /dev tmpfs rw 0 0\nproc /proc proc {options} 0 0\n")
    root = str(tmp_path)
    assert hides_processes(root) is hides
    reason = read_process(4711, root)["missing"]["user"]
    assert reason == ("no_permission" if hides else "source_absent")
