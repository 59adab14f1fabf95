"""deploy/helm: written from the manifests, and rendered by Helm's SDK to the same objects.

`make chart` brings the SDK.
"""

import json
import shutil
import subprocess
from pathlib import Path

import jsonschema
import kubernetes_validate
import pytest
import yaml

from tests.api.operator_kinds import SPECS
from tests.walking import walk
from tools.release.environment import DEFAULT
from tools.write_chart import CHART, MANIFESTS, ROOT, changed, chart_files

HELM = DEFAULT / "bin" / "python"
needs_helm = pytest.mark.skipif(not HELM.exists(), reason="Helm's SDK is not installed: make chart")
# The oldest that the chart names, the newest that there are schemas of, and one between.
VERSIONS = ("1.25", "1.31", "1.37")
OF_THE_CHART = {  # labels that the manifests have not
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "app.kubernetes.io/version",
    "helm.sh/chart",
}
ALL = {
    "image": {"tag": "latest"},
    "monitor": {"enabled": True},
    "alerts": {"enabled": True},
    "boards": {"enabled": True},
    "hub": {"enabled": True},
}
WITH = {
    "defaults": {},
    "all": ALL,
    "a PodMonitor": {"monitor": {"enabled": True, "kind": "PodMonitor"}},
    "pods named": {"namePods": True},
    "preflight": {"preflight": {"enabled": True}},
    "preflight that holds": {"preflight": {"enabled": True, "onFail": "hold"}, "namePods": True},
    "a digest": {"image": {"repository": "registry.example/gpudiag", "digest": "sha256:" + "0" * 64}},
    "no runtime class, no tolerations": {"runtimeClassName": "", "tolerations": [], "nodeSelector": {}},
}
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())


def rendered(*cases: dict, name: str = "gpudiag", chart: Path = CHART) -> list[dict]:
    """What Helm makes of each set of values: manifests by template, or the error."""
    asked = [{"values": values, "name": name, "namespace": "gpudiag"} for values in cases]
    done = subprocess.run(
        [HELM, ROOT / "tools/release/helm.py", "render", chart],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["lint"]["errors"] == []
    assert [one["error"] for one in answer["lint"]["messages"]] == ["icon is recommended"]
    return answer["rendered"]


def objects(manifests: dict[str, str]) -> dict[tuple[str, str], dict]:
    """The objects by kind and name."""
    assert "error" not in manifests, manifests
    texts = [text for path, text in manifests.items() if path.endswith(".yaml")]
    found = [one for text in texts for one in yaml.safe_load_all(text) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def without_origin(value):
    """The same without the labels and the namespace that Helm adds."""
    if isinstance(value, dict):
        kept = {key: without_origin(one) for key, one in value.items() if key not in OF_THE_CHART}
        if "name" in kept and "labels" in kept:
            kept.pop("namespace", None)
        return kept
    return [without_origin(one) for one in value] if isinstance(value, list) else value


@walk(chart_files())
def test_the_chart_is_written_from_the_manifests(name):
    assert (CHART / name).read_text() == chart_files()[name], "run: make pages PAGES=chart"


def test_a_line_that_a_manifest_no_longer_has_is_not_passed_over():
    with pytest.raises(ValueError, match=r"x\.yaml has 0 times"):
        changed("kind: Pod\n", {"kind: DaemonSet\n": "-"}, "x.yaml")
    with pytest.raises(ValueError, match="has 2 times"):
        changed("a\na\n", {"a\n": "-"}, "x.yaml")


def test_every_alert_and_board_is_in_the_chart():
    assert (CHART / "files/gpudiag.rules.yml").samefile(ROOT / "deploy/prometheus/gpudiag.rules.yml")
    boards = {path.name: path for path in (ROOT / "deploy/grafana").glob("*.json")}
    packed = {path.name: path for path in (CHART / "files/boards").iterdir()}
    assert set(packed) == set(boards)
    assert all(packed[name].samefile(boards[name]) for name in boards)


@needs_helm
def test_helm_renders_the_manifests():
    (manifests,) = rendered(ALL)
    ours = {
        (one["kind"], one["metadata"]["name"]): one
        for path in MANIFESTS.rglob("*.yaml")
        if path.name not in ("kustomization.yaml", "namespace.yaml", "podmonitor.yaml")
        and path.parent.name != "pods"
        for one in [yaml.safe_load(path.read_text())]
    }
    theirs = {key: without_origin(one) for key, one in objects(manifests).items()}
    boards = {key: theirs.pop(key) for key in list(theirs) if key[0] == "ConfigMap"}
    assert theirs == ours
    texts = {name: text for board in boards.values() for name, text in board["data"].items()}
    wanted = {path.name: json.loads(path.read_text()) for path in (ROOT / "deploy/grafana").glob("*.json")}
    assert {name: json.loads(text) for name, text in texts.items()} == wanted


@needs_helm
def test_pods_are_named_as_by_the_component():
    def holds(patch, whole):
        if isinstance(patch, dict):
            return all(key in whole and holds(one, whole[key]) for key, one in patch.items())
        if isinstance(patch, list) and patch and isinstance(patch[0], dict):
            by_name = {one["name"]: one for one in whole}
            return all(holds(one, by_name[one["name"]]) for one in patch)
        return patch == whole

    patch = yaml.safe_load((MANIFESTS / "pods/daemonset.yaml").read_text())
    with_it, without = rendered(WITH["pods named"], {})
    key = ("DaemonSet", "gpudiag")
    assert holds(patch, objects(with_it)[key])
    assert not holds(patch, objects(without)[key])


@needs_helm
def test_what_helm_renders_fits_the_schemas_of_kubernetes():
    for manifests in [*rendered(*WITH.values()), *rendered(ALL, name="another")]:
        for (kind, _), one in objects(manifests).items():
            if one["apiVersion"].startswith("monitoring.coreos.com"):
                jsonschema.validate(one["spec"], SPECS[kind])
                continue
            for version in VERSIONS:
                kubernetes_validate.validate(one, version, strict=True)
    misspelt = objects(rendered({})[0])[("Service", "gpudiag")]
    misspelt["spec"]["clusterIp"] = "None"
    for version in VERSIONS:
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(misspelt, version, strict=True)


def leaves(values: dict, path: tuple[str, ...] = ()):
    for key, value in values.items():
        if isinstance(value, dict) and value and key not in ("nodeSelector", "resources", "labels"):
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key), value


@needs_helm
def test_every_value_changes_what_is_rendered():
    """All else is enabled, so that nothing is without effect because its part is left out."""
    parts = ("preflight", "monitor", "alerts", "boards", "hub")
    base = {part: {"enabled": True} for part in parts}
    others = {
        "preflight.onFail": "hold",
        "preflight.level": "quick",
        "monitor.kind": "PodMonitor",
        "namePods": True,
        "image.pullPolicy": "Always",
        "imagePullSecrets": [{"name": "pull"}],
        "extraArgs": ["--watch-jobs"],
        "preflight.seconds": 90,
        "tolerations": [],
        **{f"{part}.enabled": False for part in ("service", *parts)},
    }
    cases = {}
    for path, value in leaves(VALUES):
        other = others.get(".".join(path), f"{value}x" if isinstance(value, str) else {"another": "1"})
        case = json.loads(json.dumps(base))
        inside = case
        for key in path[:-1]:
            inside = inside.setdefault(key, {})
        inside[path[-1]] = other
        cases[".".join(path)] = case
    before, *after = rendered(base, *cases.values())
    assert len(cases) > 25
    assert [path for path, one in zip(cases, after, strict=True) if "error" in one or one == before] == []


WRONG = {
    "intervall": {"monitor": {"intervall": "5s"}},
    "onFail": {"preflight": {"onFail": "stop"}},
    "kind": {"monitor": {"kind": "Service"}},
    "seconds": {"preflight": {"seconds": "1m"}},
}


@needs_helm
def test_wrong_values_are_refused_by_name():
    for word, refused in zip(WRONG, rendered(*WRONG.values()), strict=True):
        assert word in refused["error"]


@needs_helm
def test_a_chart_of_jobs_takes_the_preflight_alone(tmp_path):
    """By the template's name, from this chart as a dependency whose service is off.

    It is the gate of docs/ci.
    """
    shutil.copytree(CHART, tmp_path / "charts/gpudiag")
    (tmp_path / "templates").mkdir()
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    dependency = {"name": "gpudiag", "version": version}
    (tmp_path / "Chart.yaml").write_text(
        yaml.safe_dump({"apiVersion": "v2", "name": "jobs", "version": "1.0.0", "dependencies": [dependency]})
    )
    (tmp_path / "values.yaml").write_text("gpudiag: {service: {enabled: false}}\n")
    gate = yaml.safe_load((ROOT / "docs/ci/kubernetes/job.yaml").read_text())
    (wanted,) = gate["spec"]["template"]["spec"]["initContainers"]
    (tmp_path / "templates/job.yaml").write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: job}\nspec:\n  containers: [{name: a, image: a}]\n"
        "  initContainers:\n"
        '    {{- include "gpudiag.preflight" (dict "image" "gpudiag:slim" "gpus" 8) | nindent 4 }}\n'
    )
    made = objects(rendered({}, chart=tmp_path)[0])
    assert set(made) == {("Pod", "job")}
    (container,) = made["Pod", "job"]["spec"]["initContainers"]
    assert container.pop("imagePullPolicy") == "IfNotPresent"
    assert container == {key: one for key, one in wanted.items() if key not in ("resources", "volumeMounts")}
    kubernetes_validate.validate(made["Pod", "job"], VERSIONS[0], strict=True)


@needs_helm
def test_two_releases_in_a_namespace_select_their_own_pods():
    names = {"gpudiag": "gpudiag", "night": "night-gpudiag"}  # of the release, and of what it makes
    services = [objects(rendered({}, name=name)[0])[("Service", made)] for name, made in names.items()]
    assert services[0]["spec"]["selector"] != services[1]["spec"]["selector"]


@needs_helm
def test_a_preflight_that_reports_starts_the_service_and_one_that_holds_does_not(tmp_path: Path):
    """The script of the init container, run as it is beside a gpudiag that fails."""
    statuses = {}
    words = ("report", "hold")
    made = rendered(*({"preflight": {"enabled": True, "onFail": word}} for word in words))
    program, log = tmp_path / "gpudiag", tmp_path / "termination-log"
    program.write_text("#!/bin/sh\necho gpudiag FAIL gpu.lost; exit 1\n")
    program.chmod(0o755)
    for on_fail, manifests in zip(words, made, strict=True):
        pod = objects(manifests)[("DaemonSet", "gpudiag")]["spec"]["template"]["spec"]
        gate = next(one for one in pod["initContainers"] if one["name"] == "preflight")
        script = gate["command"][2].replace("/dev/termination-log", str(log))
        given = {one["name"]: one["value"] for one in gate["env"]}
        done = subprocess.run(
            ["/bin/sh", "-c", script], env={**given, "PATH": f"{tmp_path}:/usr/bin:/bin"}, timeout=60
        )
        statuses[on_fail] = done.returncode
        assert log.read_text() == "gpudiag FAIL gpu.lost\n"
    assert statuses == {"report": 0, "hold": 1}
