"""Write deploy/kubernetes/monitoring/prometheusrule.yaml: the alert rules for the operator.

`python -m tools.write_prometheus_rule`; the rules themselves are deploy/prometheus/gpudiag.rules.yml.
"""

from pathlib import Path

_DEPLOY = Path(__file__).resolve().parents[1] / "deploy"
RULES = _DEPLOY / "prometheus" / "gpudiag.rules.yml"
MANIFEST = _DEPLOY / "kubernetes" / "monitoring" / "prometheusrule.yaml"
_HEAD = """\
# Written by `make pages` from deploy/prometheus/gpudiag.rules.yml: change the rules there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpudiag
  labels:
    app.kubernetes.io/name: gpudiag
spec:
"""


def manifest_text() -> str:
    """The manifest with the rules of now, word for word."""
    lines = (f"  {line}" if line.strip() else "" for line in RULES.read_text().splitlines())
    return _HEAD + "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    MANIFEST.write_text(manifest_text())


if __name__ == "__main__":
    main()
