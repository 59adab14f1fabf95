"""The service against its own description: schemathesis over every route, where it is installed."""

import os
import subprocess
import sys

import pytest

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def test_the_description_names_every_route_with_its_documents(served):
    described = served.get("/openapi.json").json()
    assert described["openapi"].startswith("3.1")
    paths = described["paths"]
    assert {"/api/v1/devices", "/api/v1/runs", "/api/v1/stream", "/metrics", "/healthz"} <= paths.keys()
    for path, methods in paths.items():
        for method, operation in methods.items():
            statuses = operation["responses"].keys()
            assert {"401", "421", "422"} <= statuses, (path, method)
    live = paths["/api/v1/devices"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    assert live["$ref"].removeprefix("#/components/schemas/") in described["components"]["schemas"]


def test_every_reference_in_the_description_leads_somewhere(served):
    described = served.get("/openapi.json").json()
    known = described["components"]["schemas"].keys()
    assert references(described) <= {f"#/components/schemas/{name}" for name in known}


@pytest.mark.sliced
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_no_generated_request_breaks_it_or_gets_an_answer_that_is_not_described(served):
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{served.url}/openapi.json",
        "--checks",
        CHECKS,
    ]
    command += [
        "--max-examples",
        "15",
        "--generation-deterministic",
        "--exclude-path",
        "/api/v1/stream",
        "-H",
        f"Authorization: Bearer {served.token}",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=dict(os.environ))
    assert done.returncode == 0, done.stdout


def references(value) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values())) if value else own
    if isinstance(value, list):
        return set().union(*map(references, value)) if value else set()
    return set()
