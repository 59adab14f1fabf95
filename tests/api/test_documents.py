import gzip

import jsonschema
import pytest

from gpudiag.checks.on_topology import TOPOLOGY_CHECKS
from gpudiag.model.documents import DOCUMENTS, from_document, json_schema

ROUTES = {
    "/api/v1/devices": "gpudiag.live/1",
    "/api/v1/devices/0": "gpudiag.device/1",
    "/api/v1/snapshot": "gpudiag.snapshot/1",
    "/api/v1/processes": "gpudiag.processes/1",
    "/api/v1/topology": "gpudiag.topology/1",
    "/api/v1/history?series=utilization_percent": "gpudiag.series/1",
    "/api/v1/sources": "gpudiag.sources/1",
    "/api/v1/checks": "gpudiag.report/1",
    "/api/v1/findings": "gpudiag.findings/1",
    "/api/v1/events": "gpudiag.timeline/1",
    "/api/v1/baselines": "gpudiag.history/1",
    "/api/v1/explain/xid-79": "gpudiag.explanation/1",
    "/api/v1/explain/gpu.lost": "gpudiag.explanation/1",
    "/api/v1/session": "gpudiag.session/1",
    "/healthz": "gpudiag.health/1",
}


@pytest.mark.parametrize("route", ROUTES)
def test_each_route_answers_with_its_document(served, route):
    document = served.get(route).raise_for_status().json()
    assert document["schema"] == ROUTES[route]
    jsonschema.validate(document, json_schema(document["schema"]))
    from_document(document)


def test_the_topology_is_that_of_the_command(served):
    """The same document: cards, NCCL's choice, and the findings that the checks have."""
    topology = served.get("/api/v1/topology").json()
    assert {link["label"] for link in topology["links"]} == {"NV18"}
    assert [device["nics"] for device in topology["devices"]] == [[f"mlx5_{number}"] for number in range(8)]
    assert {path["label"] for path in topology["nic_paths"]} == {"PIX", "NODE", "SYS"}
    names = {check.name for check in TOPOLOGY_CHECKS}
    results = [one for one in served.get("/api/v1/checks").json()["results"] if one["check"] in names]
    assert topology["verdict"] in {one["outcome"] for one in results}
    assert [one["code"] for one in topology["findings"]] == [
        finding["code"] for one in results for finding in one["findings"] if finding["outcome"] != "pass"
    ]


def test_every_schema_that_is_listed_can_be_had(served):
    names = served.get("/api/v1/schemas").json()["schemas"]
    assert set(names) == set(DOCUMENTS)
    for name in names:
        found = served.get(f"/api/v1/schemas/{name.removeprefix('gpudiag.')}").json()
        assert found["title"] == name


def test_the_tick_names_the_machine_and_its_busy_gpu(served):
    live = served.live()
    assert live["simulated"] == "h100x8+busy:0"
    assert [device["nvml_index"] for device in live["devices"]] == list(range(8))
    busy = live["devices"][0]
    assert busy["utilization_percent"] > 90
    assert busy["processes"][0]["user"] == "ann"
    assert busy["fan_speed_percent"] is None
    assert busy["missing"]["fan_speed_percent"] == "not_supported"


def test_one_gpu_by_index_and_by_uuid_is_the_same(served):
    by_index = served.get("/api/v1/devices/3").json()
    by_uuid = served.get(f"/api/v1/devices/{by_index['device']['uuid']}").json()
    assert by_index["device"]["serial"] == by_uuid["device"]["serial"]
    assert by_index["live"]["nvml_index"] == 3


def test_who_has_the_document_is_not_sent_it_again(served):
    first = served.get("/api/v1/explain/gpu.lost")
    again = served.get("/api/v1/explain/gpu.lost", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == 304
    assert again.content == b""


def test_documents_are_compressed_for_who_takes_that(served):
    with served.client.stream("GET", "/api/v1/snapshot", headers={"Accept-Encoding": "gzip"}) as packed:
        body = b"".join(packed.iter_raw())
    assert packed.headers["content-encoding"] == "gzip"
    assert len(body) * 5 < len(gzip.decompress(body))
    # Of public reports: jonbaldie/varnish 57, gwtproject/gwt 10307, Kludex/starlette 3495, and the header of
    # a crawler that friedelwolff/django-compression-middleware 12 answered with 500.
    reported = (
        "gzip ;q=0, deflate",
        "gzip;\tq=0, br",
        "gzip;q=0, *;q=1",
        "x-gzip;q=0",
        "gzip;q=nan",
        "text/plain,*/*; charset=utf-8",
    )
    for refused in ("identity", "gzip;q=0", "gzip; q=0.0, *", "br, *;q=0", *reported):
        plain = served.get("/api/v1/snapshot", headers={"Accept-Encoding": refused})
        assert "content-encoding" not in plain.headers, refused
    for taken in ("GZIP", "*", "br, x-gzip;q=0.2", "gzip;q=0, x-gzip"):
        packed = served.get("/api/v1/snapshot", headers={"Accept-Encoding": taken})
        assert packed.headers.get("content-encoding") == "gzip", taken


def test_history_fills_up_second_by_second(served):
    def points():
        series = served.get("/api/v1/history?series=power_draw_watts&device=0&step=1").json()
        values = series["devices"][0]["series"]["power_draw_watts"] if series["devices"] else []
        assert len(series["times"]) <= 2000
        return [value for value in values if value is not None]

    served.wait(lambda: points() and max(points()) > 100)


def test_history_as_a_table(served):
    served.wait(lambda: served.get("/api/v1/history").json()["devices"])
    text = served.get("/api/v1/history?format=csv&series=temperature_celsius&device=1").text
    head, *rows = text.splitlines()
    assert head == "time,uuid,nvml_index,temperature_celsius"
    assert rows
    assert all(row.split(",")[2] == "1" for row in rows)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/api/v1/devices/99", 404, "device.not_found"),
        ("/api/v1/runs/nothing", 404, "run.not_found"),
        ("/api/v1/runs/UPPER", 422, "request.invalid"),
        ("/api/v1/explain/nonsense", 404, "topic.not_found"),
        ("/api/v1/schemas/nonsense/1", 404, "schema.not_found"),
        ("/api/v1/history?series=nonsense", 422, "usage"),
        ("/api/v1/history?from=yesterday", 422, "usage"),
        ("/api/v1/history?from=-1", 422, "usage"),
        ("/api/v1/history?to=1e400", 422, "usage"),
        ("/api/v1/history?from=200&to=100", 422, "usage"),
        ("/api/v1/history?device=77", 422, "usage"),
        ("/api/v1/history?format=xml", 422, "request.invalid"),
        ("/api/v1/history?step=0", 422, "request.invalid"),
        *(
            (f"/api/v1/history?step={step}", 422, "request.invalid")
            for step in ("nan", "inf", "1e400", "two", "")
        ),
        (f"/api/v1/history?series={'x' * 1001}", 422, "request.invalid"),
        (f"/api/v1/poll?since={'x' * 65}", 422, "request.invalid"),
        ("/metrics?dialect=latin", 422, "request.invalid"),
        ("/metrics?host_label=none", 422, "request.invalid"),
        *((f"/metrics?full={word}", 422, "request.invalid") for word in ("perhaps", "")),
        *(
            (f"/api/v1/runs/a/events?since={number}", 422, "request.invalid")
            for number in ("-1", "1e2", "0x1", "9" * 12)
        ),
        ("/api/v1/runs/a%0A", 422, "request.invalid"),
        ("/api/v1/runs/a/comparison", 422, "request.invalid"),
        ("/api/v1/runs?state=asleep", 422, "request.invalid"),
        ("/api/v1/nothing", 404, "not_found"),
        ("/nothing", 404, "not_found"),
    ],
)
def test_what_cannot_be_answered_is_a_problem_document(served, path, status, code):
    response = served.get(path)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"]) == (status, code)
    assert problem["detail"]


def test_the_page_holds_the_first_numbers(served):
    page = served.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
