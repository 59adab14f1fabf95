import sys

from gpudiag.runs.interpreters import absent_modules


def test_an_interpreter_is_asked_as_the_ranks_are_started(tmp_path, monkeypatch):
    """With PYTHONPATH, as on clusters that load torch by a module file; without the current folder."""
    for folder, module in (("path", "on_the_path"), ("here", "only_here")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{module}.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "path"))
    monkeypatch.chdir(tmp_path / "here")
    assert absent_modules(("on_the_path", "only_here"), sys.executable) == ("only_here",)
