"""Renders and packs the chart with Helm's own SDK, which the package helm-python-sdk brings as a library.

    python tools/release/helm.py render CHART < CASES
    python tools/release/helm.py package CHART FOLDER

CASES is a JSON list of {"values": ..., "name": ..., "namespace": ...}; the answer is a JSON list with, for
each, the manifests by the path of their template, as `helm template` makes them, or {"error": why Helm
refuses the values}. A Python of its own runs this file (tools/release/environment.py): the library is 85 MB,
and no test needs it loaded.
"""

import json
import sys
from typing import Any

# In the release's environment alone.
import helm_python as helm  # type: ignore[import-not-found, unused-ignore]


def render(chart: "helm.Chart", case: dict[str, Any]) -> dict[str, Any]:
    """The manifests of one case, or the error."""
    values = case.get("values") or {}
    try:
        chart.validate_schema(values)
        manifests = chart.render(values, name=case["name"], namespace=case["namespace"])
    except helm.HelmError as error:
        return {"error": str(error)}
    return {path: text for path, text in manifests.items() if text.strip()}


def main(act: str, chart: str, *rest: str) -> None:
    """Print the manifests of every case, or pack the chart."""
    if act == "package":
        print(helm.package(chart, destination=rest[0]))
        return
    findings = helm.lint(chart, strict=True)
    with helm.Chart.load(chart) as loaded:
        answers = [render(loaded, case) for case in json.load(sys.stdin)]
    json.dump({"lint": findings, "rendered": answers}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
