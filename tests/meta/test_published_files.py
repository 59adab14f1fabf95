"""What a publisher's readers find beside the code: the citation, the way to report a weakness, the forms for
issues.
"""

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]


def test_the_version_has_one_home():
    """gpudiag/__init__.py; the chart's is written from it (tests/api/test_chart.py), and the citation has
    none.
    """
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["license"] == "Apache-2.0"
    assert "version" not in cited


def test_every_form_for_an_issue_is_one_that_github_takes():
    forms = [path for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.stem != "config"]
    assert len(forms) >= 3
    for path in forms:
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= set(form), path.name
        assert {field["type"] for field in form["body"]} <= {
            "textarea",
            "input",
            "dropdown",
            "checkboxes",
            "markdown",
        }
        # A text of the form itself has a value, all else a label.
        assert all(
            field["attributes"]["value" if field["type"] == "markdown" else "label"] for field in form["body"]
        )


def test_a_weakness_has_a_private_way():
    assert "in private" in (ROOT / "SECURITY.md").read_text()


def test_the_scheduled_comparison_runs_a_module_that_is_there_and_hides_no_exit_status():
    text = (ROOT / ".github/workflows/upstream.yml").read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True]["schedule"], "`on` is YAML's true"
    steps = workflow["jobs"]["compare"]["steps"]
    assert workflow["permissions"] == {}
    assert workflow["jobs"]["compare"]["permissions"] == {"contents": "read", "issues": "write"}
    modules = re.findall(r"python -m ([\w.]+)", "\n".join(step.get("run", "") for step in steps))
    assert modules == ["tools.upstream"]
    assert find_spec(modules[0]) is not None
    # Each step that is a program ends with a status of its own; the last hands on that of the comparison.
    assert steps[-1]["run"] == 'exit "$STATUS"'
    assert "steps.compare.outputs.status" in steps[-1]["env"]["STATUS"]
    for step in steps:
        if "run" in step:
            checked = subprocess.run(
                ["bash", "-n"], input=step["run"], text=True, capture_output=True, check=False
            )
            assert checked.returncode == 0, (step["name"], checked.stderr)
