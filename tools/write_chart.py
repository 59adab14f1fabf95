"""Write deploy/helm: the chart's templates, values, their schema and its version.

`python -m tools.write_chart`. Every template is a manifest of deploy/kubernetes, or the gate of
docs/ci/kubernetes, in which some lines are replaced: change those files. A replaced line that a manifest no
longer has ends the program.
`_names.tpl`, `alerts.yaml`, `boards.yaml` and `NOTES.txt` have no manifest, and are written by hand.
"""

import json
import textwrap
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from gpudiag import __version__

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm"
MANIFESTS = ROOT / "deploy" / "kubernetes"
GATE = ROOT / "docs" / "ci" / "kubernetes" / "job.yaml"
_HEAD = "{{/* Written by `make pages` from %s: change it there. */}}\n"

Changes = dict[str, str]  # the manifest's lines, which it has exactly once, and the template's

_IMAGE = "          image: gpudiag:latest\n          imagePullPolicy: IfNotPresent\n"
_CHART_IMAGE = (
    '          image: {{ include "gpudiag.image" . | quote }}\n'
    "          imagePullPolicy: {{ .Values.image.pullPolicy }}\n"
)


def named(part: str = "", more: str = "") -> Changes:
    """Name and labels of an object; `more` are lines after its labels."""
    suffix = f"-{part}" if part else ""
    labels = f"gpudiag.{part}.labels" if part else "gpudiag.labels"
    return {
        f"metadata:\n  name: gpudiag{suffix}\n  labels:\n    app.kubernetes.io/name:"
        f" gpudiag{suffix}\nspec:\n": (
            f'metadata:\n  name: {{{{ include "gpudiag.fullname" . }}}}{suffix}\n'
            "  namespace: {{ .Release.Namespace }}\n"
            f'  labels:\n    {{{{- include "{labels}" . | nindent 4 }}}}\n{more}spec:\n'
        )
    }


def selected(before: str, indent: int, part: str = "") -> Changes:
    """The labels that select pods, below the line `before`."""
    suffix, selector = (f"-{part}", f"gpudiag.{part}.selector") if part else ("", "gpudiag.selector")
    return {
        f"{before}\n{' ' * indent}app.kubernetes.io/name: gpudiag{suffix}\n": (
            f'{before}\n{" " * indent}{{{{- include "{selector}" . | nindent {indent} }}}}\n'
        )
    }


def of_pods(part: str = "") -> Changes:
    """Labels and annotations of the pods of a template."""
    suffix, selector = (f"-{part}", f"gpudiag.{part}.selector") if part else ("", "gpudiag.selector")
    return {
        f"    metadata:\n      labels:\n        app.kubernetes.io/name: gpudiag{suffix}\n": (
            f'    metadata:\n      labels:\n        {{{{- include "{selector}" . | nindent 8 }}}}\n'
            + _optional("podAnnotations", 6, "annotations")
        )
    }


def _optional(value: str, indent: int, key: str | None = None) -> str:
    """A key of the manifest, where its value is not empty."""
    space = " " * indent
    return (
        f"{space}{{{{- with .Values.{value} }}}}\n{space}{key or value}:\n"
        f"{space}  {{{{- toYaml . | nindent {indent + 2} }}}}\n{space}{{{{- end }}}}\n"
    )


def _word(value: str, indent: int) -> str:
    space = " " * indent
    return f"{space}{{{{- with .Values.{value} }}}}\n{space}{value}: {{{{ . }}}}\n{space}{{{{- end }}}}\n"


_DAEMONSET: Changes = {
    **named(),
    **selected("    matchLabels:", 6),
    **of_pods(),
    '      nodeSelector:\n        nvidia.com/gpu.present: "true"\n': _optional("nodeSelector", 6),
    (
        "      tolerations:\n        - key: nvidia.com/gpu\n          operator: Exists\n"
        "          effect: NoSchedule\n"
    ): _optional("tolerations", 6),
    "      runtimeClassName: nvidia\n": (
        _word("runtimeClassName", 6) + _word("priorityClassName", 6) + _optional("imagePullSecrets", 6)
    ),
    '"chown", "10001:10001",': '"chown", "{{ ternary "0:0" "10001:10001" .Values.namePods }}",',
    f"      containers:\n        - name: gpudiag\n{_IMAGE}": (
        "        {{- if .Values.preflight.enabled }}\n"
        '        {{- include "gpudiag.preflight.of.node" . | nindent 8 }}\n'
        f"        {{{{- end }}}}\n      containers:\n        - name: gpudiag\n{_CHART_IMAGE}"
    ),
    f"        - name: own-state\n{_IMAGE}": f"        - name: own-state\n{_CHART_IMAGE}",
    '"--allow-host", "$(POD_IP)"]': (
        '"--allow-host", "$(POD_IP)"{{ range .Values.extraArgs }}, {{ . | quote }}{{ end }}]'
    ),
    "          securityContext:\n            allowPrivilegeEscalation: false\n": (
        "          securityContext:\n            {{- if .Values.namePods }}\n            runAsUser: 0\n"
        "            runAsNonRoot: false\n            {{- end }}\n"
        "            allowPrivilegeEscalation: false\n"
    ),
    (
        "          resources:\n            requests:\n              cpu: 50m\n              memory: 128Mi\n"
        "            limits:\n              memory: 512Mi\n"
    ): _optional("resources", 10),
    "secretName: gpudiag-tokens\n": "secretName: {{ .Values.tokensSecret }}\n",
    "            path: /var/lib/gpudiag\n": (
        "            path: {{ .Values.stateDirectory }}{{ if .Values.namePods }}-root{{ end }}\n"
    ),
}
_SERVICE: Changes = {**named(), **selected("  selector:", 4)}
_HUB: Changes = {
    **named("hub"),
    **selected("    matchLabels:", 6, "hub"),
    **of_pods("hub"),
    "      automountServiceAccountToken: false\n": (
        "      automountServiceAccountToken: false\n" + _optional("imagePullSecrets", 6)
    ),
    _IMAGE: _CHART_IMAGE,
    "            - dns:gpudiag\n": '            - dns:{{ include "gpudiag.fullname" . }}\n',
    "            - gpudiag-hub\n": '            - {{ include "gpudiag.fullname" . }}-hub\n',
    "            secretName: gpudiag-hub\n": "            secretName: {{ .Values.hub.tokensSecret }}\n",
}
_HUB_SERVICE: Changes = {**named("hub"), **selected("  selector:", 4, "hub")}
_MONITOR: Changes = {
    **named(more="    {{- with .Values.monitor.labels }}\n    {{- toYaml . | nindent 4 }}\n    {{- end }}\n"),
    **selected("    matchLabels:", 6),
    "interval: 15s": "interval: {{ .Values.monitor.interval }}",
    "name: gpudiag-scrape": "name: {{ .Values.monitor.tokenSecret }}",
}
_VALUES = """\
# Written by `make pages` from the manifests of deploy/kubernetes (tools/write_chart.py).
# The service on every node. false: only the template "gpudiag.preflight", for a chart of jobs that depends
# on this one.
service:
  enabled: true
image:
  repository: gpudiag # your registry's
  tag: "" # the chart's appVersion
  digest: "" # sha256:..., instead of the tag
  pullPolicy: IfNotPresent
imagePullSecrets: []
# The nodes that have GPUs, by the label that GPU feature discovery gives them.
nodeSelector:
@nodeSelector
tolerations:
@tolerations
runtimeClassName: @runtimeClassName # "" where nvidia is the node's own runtime
priorityClassName: ""
podAnnotations: {}
resources:
@resources
# More arguments of `gpudiag serve`.
extraArgs: []
# The secret with the key `tokens`: read:TOKEN and act:TOKEN lines.
tokensSecret: gpudiag-tokens
# A folder of the node, in which a machine's history outlives the pod.
stateDirectory: /var/lib/gpudiag
# Metrics and page show which pod has which GPU. The kubelet answers root alone, so the container's user is
# root, without capabilities, and the folder is stateDirectory with "-root" behind it.
namePods: false
# An init container judges the node's GPUs before the service starts: `kubectl get pod -o yaml` shows the
# reason in a line.
preflight:
  enabled: false
  # report: the service starts whatever is found. hold: on FAIL, or without a verdict, the pod does not
  # start, and the kubelet tries again: what waits for the DaemonSet waits too, and nobody can look at the
  # node's page or metrics.
  onFail: report
  level: instant # the other levels start work on the GPUs, and need an image with torch
  seconds: 60
# For clusters with the Prometheus operator.
monitor:
  enabled: false
  kind: ServiceMonitor # or PodMonitor, where Services are not watched
  interval: 15s
  tokenSecret: gpudiag-scrape # its key `token` is one of the read tokens
  labels: {} # by which your Prometheus selects monitors, such as {release: NAME}
alerts:
  enabled: false
  labels: {} # by which your Prometheus selects rules
# Boards as ConfigMaps, for the sidecar of Grafana's chart.
boards:
  enabled: false
  labels: {grafana_dashboard: "1"}
  annotations: {}
# One page for all nodes.
hub:
  enabled: false
  tokensSecret: gpudiag-hub # its keys: `machines`, with a line `* TOKEN`, and `tokens`
"""
# Values that a site fills with what it likes; every other key is known.
_FREE = {"nodeSelector", "podAnnotations", "resources", "labels", "annotations"}
_WORDS = {
    "preflight.onFail": ["report", "hold"],
    "preflight.level": ["instant", "quick", "standard"],
    "monitor.kind": ["ServiceMonitor", "PodMonitor"],
    "image.pullPolicy": ["IfNotPresent", "Always", "Never"],
}


def chart_files() -> dict[str, str]:
    """The written files of the chart, by their path in it."""
    values = values_text()
    return {
        "Chart.yaml": chart_text(),
        "values.yaml": values,
        "values.schema.json": json.dumps(schema_of(yaml.safe_load(values)), indent=2) + "\n",
        "templates/daemonset.yaml": template("daemonset.yaml", _DAEMONSET, "service.enabled"),
        "templates/service.yaml": template("service.yaml", _SERVICE, "service.enabled"),
        "templates/hub-deployment.yaml": template("hub/deployment.yaml", _HUB, "hub.enabled"),
        "templates/hub-service.yaml": template("hub/service.yaml", _HUB_SERVICE, "hub.enabled"),
        **{
            f"templates/{kind.lower()}.yaml": template(
                f"monitoring/{kind.lower()}.yaml",
                _MONITOR,
                f'and .Values.monitor.enabled (eq .Values.monitor.kind "{kind}")',
            )
            for kind in ("ServiceMonitor", "PodMonitor")
        },
        "templates/_preflight.tpl": preflight_text(),
    }


def template(manifest: str, changes: Changes, condition: str = "") -> str:
    """A manifest with its changes; in the chart only where `condition` is true."""
    place = MANIFESTS / manifest
    text = _HEAD % place.relative_to(ROOT) + changed(place.read_text(), changes, manifest)
    if condition:
        asked = condition if " " in condition else f".Values.{condition}"
        return f"{{{{- if {asked} }}}}\n{text}{{{{- end }}}}\n"
    return text


def changed(text: str, changes: Changes, name: str) -> str:
    """The text with every change made.

    Raises:
        ValueError: a line that is to be replaced is not there exactly once.
    """
    for old, new in changes.items():
        if text.count(old) != 1:
            raise ValueError(
                f"{name} has {text.count(old)} times what tools/write_chart.py replaces once:\n{old}"
            )
        text = text.replace(old, new)
    return text


def chart_text() -> str:
    """Chart.yaml; its version is gpudiag's."""
    return textwrap.dedent(f"""\
        # Written by `make pages`: the version is that of gpudiag/__init__.py.
        apiVersion: v2
        name: gpudiag
        description: Which GPUs of a cluster are fit to train on; of the others, which part is to blame,
          and what to do.
        type: application
        version: {__version__}
        appVersion: "{__version__}"
        kubeVersion: ">=1.25.0-0"
        keywords: [gpu, nvidia, nccl, diagnostics, monitoring]
        """)


def values_text() -> str:
    """values.yaml, with the manifests' own where a site may choose another."""
    pod = yaml.safe_load((MANIFESTS / "daemonset.yaml").read_text())["spec"]["template"]["spec"]
    defaults = {
        "nodeSelector": _block(pod["nodeSelector"]),
        "tolerations": _block(pod["tolerations"]),
        "resources": _block(pod["containers"][0]["resources"]),
        "runtimeClassName": pod["runtimeClassName"],
    }
    text = _VALUES
    for name, default in defaults.items():
        text = text.replace(f"@{name}", default)
    return text


def _block(value: Any) -> str:
    return textwrap.indent(yaml.safe_dump(value, sort_keys=False), "  ").rstrip("\n")


def schema_of(values: dict[str, Any]) -> dict[str, Any]:
    """A JSON Schema that refuses values that the chart does not read, but for `global`."""
    schema = _schema(values, "")
    schema["properties"]["global"] = {"type": "object"}
    return {"$schema": "http://json-schema.org/draft-07/schema#", **schema}


def _schema(value: Any, path: str) -> dict[str, Any]:
    name = path.rpartition(".")[2]
    if path in _WORDS:
        return {"enum": _WORDS[path]}
    if isinstance(value, dict) and name not in _FREE:
        properties = {key: _schema(one, f"{path}.{key}".lstrip(".")) for key, one in value.items()}
        return {"type": "object", "additionalProperties": False, "properties": properties}
    kinds = {dict: "object", list: "array", bool: "boolean", int: "integer", str: "string"}
    return {"type": kinds[type(value)]}


def preflight_text() -> str:
    """The init container of docs/ci/kubernetes/job.yaml, for charts of jobs and for the DaemonSet's pod."""
    lines = GATE.read_text().splitlines()
    first = lines.index("      initContainers:") + 1
    last = lines.index("          terminationMessagePolicy: FallbackToLogsOnError") + 1
    container = textwrap.dedent("\n".join(lines[first:last]))
    gate = changed(
        container + "\n",
        {
            "image: gpudiag:slim # docker build -t gpudiag:slim . ; quick and above need gpudiag:full, which"
            " has torch\n": (
                'image: {{ .image | quote }}\n  imagePullPolicy: {{ .pullPolicy | default "IfNotPresent" }}\n'
            ),
            'value: &gpus "8"\n': 'value: {{ .gpus | default "" | quote }}\n',
            "value: instant #": 'value: {{ .level | default "instant" }} #',
            'value: "60"\n': "value: {{ .seconds | default 60 | quote }}\n",
            "value: stop #": 'value: {{ .unsure | default "stop" }} #',
            "      exit $status\n": (
                '      exit {{ if eq (.onFail | default "hold") "report" }}0{{ else }}$status{{ end }}\n'
            ),
        },
        "docs/ci/kubernetes/job.yaml",
    )
    return (_HEAD % GATE.relative_to(ROOT)) + _PREFLIGHT.replace("@gate", gate.rstrip("\n"))


_PREFLIGHT = """\
{{/*
An init container that keeps a pod off GPUs that are not fit. In a chart that has this one as a dependency:

  initContainers:
    {{- include "gpudiag.preflight" (dict "image" "gpudiag:slim" "gpus" 8) | nindent 4 }}

and gives it the `resources` of the container whose GPUs are to be judged, by `"resources" .Values.resources`.
Others: pullPolicy, level (instant), seconds (60), unsure (stop; or run), onFail (hold; or report).
*/}}
{{- define "gpudiag.preflight" -}}
@gate
{{- with .resources }}
  resources:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end -}}

{{/* That of the DaemonSet: it asks for no GPU, sees all of the node's, and adds its report to the node's
history. */}}
{{- define "gpudiag.preflight.of.node" -}}
{{- $asked := dict "image" (include "gpudiag.image" .) "pullPolicy" .Values.image.pullPolicy -}}
{{- include "gpudiag.preflight" (merge $asked .Values.preflight) | replace "- name: gpudiag" \
"- name: preflight" }}
  securityContext:
    {{- if .Values.namePods }}
    runAsUser: 0
    runAsNonRoot: false
    {{- end }}
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities:
      drop: ["ALL"]
  volumeMounts:
    - name: state
      mountPath: /var/lib/gpudiag
    - name: tmp
      mountPath: /tmp
{{- end -}}
"""


def main() -> None:
    """Write the files."""
    for name, text in chart_files().items():
        (CHART / name).write_text(text)


if __name__ == "__main__":
    main()
