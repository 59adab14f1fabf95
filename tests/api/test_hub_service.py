"""`gpudiag serve --hub` as a process: its routes, its access, its stream; and a real service under it."""

import json
import os
from types import SimpleNamespace

import httpx
import pytest
from starlette.requests import Request

from gpudiag.fleet.discovery import Sources
from gpudiag_api.hub_routes import HubService
from gpudiag_api.settings import Settings
from tests.api.serving import machine, serving
from tests.api.test_stream import read_events
from tests.cli.simulated import run_gpudiag
from tests.fake_machines import FAILED, FakeMachine, machines_on_sockets

HERE = SimpleNamespace(environment=dict(os.environ))


@pytest.fixture(scope="module")
def fakes():
    with machines_on_sockets(
        [FakeMachine("gpu1"), FakeMachine("gpu2", changes=FAILED), FakeMachine("gpu3", kind="closed")]
    ) as known:
        yield known


@pytest.fixture(scope="module")
def hub(fakes, tmp_path_factory):
    addresses = ",".join(fake.address for fake in fakes)
    with serving(HERE, tmp_path_factory.mktemp("state"), "--hub", addresses) as service:
        service.wait(lambda: machines(service)["counts"]["failed"] and machines(service)["counts"]["silent"])
        yield service


def machines(hub) -> dict:
    answer = hub.get("/api/v1/machines")
    return answer.json() if answer.status_code == 200 else {"counts": {"failed": 0}}


def test_the_document_and_its_etag(hub, fakes) -> None:
    document = machines(hub)
    assert document["schema"] == "gpudiag.hub/1"
    assert [one["verdict"] for one in document["machines"]] == ["fail", "error", "pass"]
    answer = hub.get("/api/v1/machines", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["etag"]


def test_documents_are_as_their_schemas_say(hub) -> None:
    import jsonschema

    for path in ("/api/v1/machines", "/api/v1/events"):
        document = hub.get(path).json()
        name = document["schema"].removeprefix("gpudiag.")
        schema = hub.get(f"/api/v1/schemas/{name}").json()
        jsonschema.validate(document, schema)


def test_the_stream_has_all_machines_at_once(hub) -> None:
    (first,) = read_events(hub, 1)
    assert first["event"] == "machines"
    assert first["data"]["schema"] == "gpudiag.hub/1"


def test_a_hub_has_no_route_of_a_machine_and_starts_nothing(hub) -> None:
    for path in ("/api/v1/devices", "/api/v1/snapshot", "/api/v1/runs", "/api/v1/history"):
        assert hub.get(path).status_code == 404
    assert hub.client.post("/api/v1/runs", json={"kind": "preflight"}).status_code == 403
    paths = hub.get("/openapi.json").json()["paths"]
    assert "/api/v1/machines" in paths
    assert "/api/v1/devices" not in paths


def test_no_parameter_of_a_request_names_a_machine(hub, fakes) -> None:
    before = len(fakes[0].requests)
    for query in ("url=http://127.0.0.1:1", "hub=http://127.0.0.1:1", "machine=gpu1"):
        assert hub.get(f"/api/v1/machines?{query}").json()["counts"]["machines"] == 3
    headers = {
        "Authorization": "Bearer a-viewers-own-token",
        "Cookie": "gpudiag_session_1=abc",
        "X-Forwarded-For": "10.9.8.7",
    }
    httpx.get(f"{hub.url}/", headers=headers)
    hub.wait(lambda: len(fakes[0].requests) > before + 2)
    sent = json.dumps(fakes[0].requests[before:])
    assert "viewers-own" not in sent
    assert "10.9.8.7" not in sent
    assert "cookie" not in sent


def test_metrics_and_health(hub) -> None:
    text = hub.get("/metrics").text
    assert text.count("gpudiag_hub_machine_up{") == 3
    assert (
        "gpudiag_hub_machine_up"
        in hub.get("/metrics", headers={"Accept": "application/openmetrics-text"}).text
    )
    assert hub.get("/readyz").json()["sampler_state"] == "off"
    assert hub.get("/healthz").json()["ready"] is True


def test_the_page_holds_the_machines(hub) -> None:
    page = hub.get("/")
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    if 'id="gpudiag-live"' in page.text:  # where the page is built
        assert '"schema": "gpudiag.hub/1"' in page.text
    assert hub.get("/index.html").status_code == 404


def test_without_a_token_the_page_and_the_api_show_nothing(fakes, tmp_path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("read:" + "r" * 20)
    tokens.chmod(0o600)
    options = ("--hub", fakes[0].address, "--host", "0.0.0.0", "--token-file", str(tokens))
    with serving(HERE, tmp_path / "state", *options) as service:
        assert service.get("/api/v1/machines").status_code == 401
        assert "gpu1" not in service.get("/").text
        allowed = {"Authorization": "Bearer " + "r" * 20}
        service.wait(lambda: "gpu1" in service.get("/api/v1/machines", headers=allowed).text)
        assert service.get("/metrics").status_code == 401


def test_a_real_service_is_read_with_its_gpus_and_serial_numbers(tmp_path) -> None:
    with machine("h100x8+busy:0+lost:5") as session, serving(session, tmp_path / "machine") as service:
        service.wait_for_data()
        with serving(HERE, tmp_path / "hub", "--hub", service.url) as hub:
            one = hub.wait(
                lambda: (
                    (machines(hub).get("machines") or [{}])[0].get("report") and machines(hub)["machines"][0]
                )
            )
            assert (one["state"], one["verdict"], one["notes"]) == ("answers", "fail", [])
            assert one["report"]["lacks"] == []
            assert len(one["report"]["gpus"]) == 8
            assert one["report"]["findings"][0]["code"].startswith("gpu.")
            hub.wait(lambda: any(gpu["serial"] for gpu in machines(hub)["machines"][0]["report"]["gpus"]))


def test_a_question_of_a_hub_that_nobody_looks_at_is_no_look() -> None:
    """Nor does it make the machine's service read its GPUs once a second."""
    looks = []

    class Counted(HubService):
        def note_look(self) -> None:
            looks.append(self)

    service = Counted(Settings(), Sources())
    for viewers in ("0", "3", None):
        headers = [] if viewers is None else [(b"gpudiag-viewers", viewers.encode())]
        service.note_request(Request({"type": "http", "headers": headers}))
    assert len(looks) == 2


REFUSED = {
    ("--hub", "gpu1", "--allow-actions"): "--allow-actions does nothing beside --hub",
    ("--hub", "gpu1", "--watch-jobs"): "--watch-jobs does nothing beside --hub",
    ("--hub", "gpu1", "--no-poll"): "--no-poll does nothing beside --hub",
    ("--hub", "ftp://gpu1"): "no address of a service",
    ("--hub", ","): "names no machine",
    ("--hub", "@/nonexistent"): "cannot read /nonexistent",
    ("--hub-tokens", "x"): "--hub-tokens is for a hub",
    ("--hub", "gpu1", "--hub-ca", "/nonexistent"): "--hub-ca /nonexistent cannot be read",
    ("--hub", "gpu1", "--hub-tokens", "/nonexistent"): "cannot read /nonexistent",
}


@pytest.mark.parametrize("arguments", REFUSED, ids=" ".join)
def test_what_cannot_be_is_refused_in_a_sentence(arguments) -> None:
    done = run_gpudiag("none", "serve", "--port", "0", *arguments)
    assert done.status == 2
    assert REFUSED[arguments] in done.err
