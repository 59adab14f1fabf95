"""What lies beside the manifests: naming pods, and the kinds of the Prometheus operator.

The manifests: test_deploy.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.api.operator_kinds import SPECS
from tools.write_prometheus_rule import MANIFEST, RULES, manifest_text

KUBERNETES = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
MONITORING = KUBERNETES / "monitoring"
SOCKETS = "/var/lib/kubelet/pod-resources"
needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def built(folder: Path) -> dict[str, dict]:
    """What `kubectl apply -k` would send, by kind."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


def monitors() -> list[dict]:
    return [read(MONITORING / name) for name in ("servicemonitor.yaml", "podmonitor.yaml")]


def endpoint_of(monitor: dict) -> dict:
    (endpoint,) = monitor["spec"].get("endpoints") or monitor["spec"]["podMetricsEndpoints"]
    return endpoint


def test_the_rule_of_the_operator_has_the_rules_of_now():
    assert MANIFEST.read_text() == manifest_text(), "run: make pages"
    assert read(MANIFEST)["spec"] == read(RULES)


def test_the_operators_kinds_have_no_field_that_it_does_not_know():
    kinds = [*monitors(), read(MANIFEST)]
    for kind in kinds:
        assert kind["apiVersion"] == "monitoring.coreos.com/v1"
        jsonschema.validate(kind["spec"], SPECS[kind["kind"]])
    assert {kind["kind"] for kind in kinds} == set(SPECS)
    misspelt = {**kinds[0]["spec"], "endpoints": [{**endpoint_of(kinds[0]), "intervall": "15s"}]}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(misspelt, SPECS["ServiceMonitor"])


def test_the_monitors_find_the_service_by_its_labels_port_and_path():
    service = read(KUBERNETES / "service.yaml")
    pod = read(KUBERNETES / "daemonset.yaml")["spec"]["template"]
    labels = {"ServiceMonitor": service["metadata"]["labels"], "PodMonitor": pod["metadata"]["labels"]}
    ports = {
        "ServiceMonitor": [port["name"] for port in service["spec"]["ports"]],
        "PodMonitor": [port["name"] for port in pod["spec"]["containers"][0]["ports"]],
    }
    for monitor in monitors():
        kind, endpoint = monitor["kind"], endpoint_of(monitor)
        assert monitor["spec"]["selector"]["matchLabels"].items() <= labels[kind].items()
        assert endpoint["port"] in ports[kind]
        assert endpoint["path"] == "/metrics"
        # The operator takes the job's name from that label; rules that name a job must mean this one.
        named = set(re.findall(r'job="(\w+)"', RULES.read_text()))
        assert named <= {labels[kind][monitor["spec"]["jobLabel"]]}


def test_what_the_monitors_drop_is_what_the_metrics_say_themselves():
    for monitor in monitors():
        to_node, drop = endpoint_of(monitor)["relabelings"]
        assert to_node == {"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "instance"}
        assert {"pod", "namespace", "container"} <= set(drop["regex"].split("|"))


def test_no_cluster_needs_the_operator_for_the_service_itself():
    for path in KUBERNETES.glob("*.yaml"):
        assert "monitoring.coreos.com" not in path.read_text()
    assert set(read(MONITORING / "kustomization.yaml")["resources"]) == {
        "servicemonitor.yaml",
        "prometheusrule.yaml",
    }


def test_the_socket_of_the_kubelet_is_mounted_read_only_and_nothing_else_of_its_folder():
    pod = read(KUBERNETES / "daemonset.yaml")["spec"]["template"]["spec"]
    (mount,) = [
        one for one in pod["containers"][0]["volumeMounts"] if one["mountPath"].startswith("/var/lib/kubelet")
    ]
    assert (mount["mountPath"], mount["readOnly"]) == (SOCKETS, True)
    (volume,) = [one for one in pod["volumes"] if one["name"] == mount["name"]]
    assert volume["hostPath"]["path"] == SOCKETS


@needs_kubectl
def test_kustomize_builds_all_of_it_and_pods_gives_root_no_right_of_roots(tmp_path):
    assert set(built(MONITORING)) == {"ServiceMonitor", "PrometheusRule"}
    base = built(KUBERNETES)["DaemonSet"]
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    text = (copy / "kustomization.yaml").read_text()
    (copy / "kustomization.yaml").write_text(
        re.sub(r"^# (components:)\n# (  - pods).*$", r"\1\n\2", text, flags=re.M)
    )
    changed = built(copy)["DaemonSet"]
    pods = [one["spec"]["template"]["spec"] for one in (base, changed)]
    container = pods[1]["containers"][0]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": False,
        "runAsUser": 0,
    }
    for name in ("args", "env", "volumeMounts", "resources", "livenessProbe"):
        assert container[name] == pods[0]["containers"][0][name]
    assert {one["name"] for one in pods[1]["volumes"]} == {one["name"] for one in pods[0]["volumes"]}
    manifest = tmp_path / "daemonset.yaml"
    manifest.write_text(yaml.safe_dump(changed))
    validate = Path(sys.executable).parent / "kubernetes-validate"
    done = subprocess.run([validate, "--strict", manifest], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
