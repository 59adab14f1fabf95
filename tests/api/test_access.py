"""The attack list: each is refused with the right status, and nothing is changed."""

import contextlib
import re
import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from gpudiag.cli.main import main
from gpudiag.errors import UsageError
from gpudiag_api.server import describe_addresses
from gpudiag_api.settings import Settings
from gpudiag_api.tokens import MAX_GUESSES, Sessions, make_act_token, read_token_file
from tests.api.serving import machine, serving

READ, ACT = "read-token-0123456789abcdef", "act-token-0123456789abcdef"
# What is no origin: brackets without an address, the origin of a sandboxed frame, words.
NO_ORIGINS = ("http://[", "http://[::1", "http://]", "null", "x")
RUN = {"kind": "nccl-test", "plan": {"backend": "gloo", "nproc": 2, "max_bytes": 64}}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A service for others: on every address, with a read and an act token."""
    state = tmp_path_factory.mktemp("state")
    tokens = state / "tokens"
    tokens.write_text(f"# who may do what\nread:{READ}\nact:{ACT}\n")
    tokens.chmod(0o600)
    options = ("--host", "0.0.0.0", "--token-file", str(tokens), "--allow-actions")
    with machine() as session, serving(session, state, *options) as service:
        service.wait_for_data()
        yield service


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def runs_of(service) -> list:
    return service.get("/api/v1/runs", headers=bearer(READ)).json()["runs"]


@pytest.mark.parametrize(
    "path", ["/api/v1/devices", "/api/v1/stream", "/metrics", "/openapi.json", "/api/v1/runs"]
)
def test_reading_needs_a_token_where_others_can_come(guarded, path):
    for headers in ({}, bearer("wrong-token-0123456789"), {"Authorization": f"Basic {READ}"}):
        response = guarded.get(path, headers=headers)
        assert response.status_code == 401
        assert response.headers["www-authenticate"] == "Bearer"
    if path != "/api/v1/stream":
        assert guarded.get(path, headers=bearer(READ)).status_code == 200


def test_health_and_the_page_need_none_and_the_page_then_holds_no_numbers(guarded):
    assert guarded.get("/healthz").status_code == 200
    page = guarded.get("/")
    assert page.status_code == 200
    assert "gpudiag.live/1" not in page.text


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({}, 401, "access.token"),
        (bearer("wrong-token-0123456789"), 401, "access.token"),
        (bearer(READ), 403, "access.role"),
        ({**bearer(ACT), "Origin": "https://elsewhere.example"}, 403, "access.origin"),
        ({**bearer(ACT), "Sec-Fetch-Site": "cross-site"}, 403, "access.origin"),
        *(({**bearer(ACT), "Origin": origin}, 403, "access.origin") for origin in NO_ORIGINS),
        ({**bearer(ACT), "Host": "elsewhere.example"}, 421, "access.host"),
        ({**bearer(ACT), "Content-Type": "text/plain"}, 415, "request.content_type"),
    ],
)
def test_nothing_is_started_for_who_may_not(guarded, headers, status, code):
    response = guarded.client.post("/api/v1/runs", json=RUN, headers=headers)
    assert response.status_code == status
    assert response.json()["code"] == code
    assert runs_of(guarded) == []


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"\xff\xfe", 400),
        (b"null", 422),
        (b"[]", 422),
        (b'{"kind": "nccl-test", "plan": {"nproc": -1}}', 422),
        (b'{"kind": "nccl-test", "plan": {"nproc": 1e400}}', 422),
        (b'{"kind": "nccl-test", "plan": {"max_bytes": 99999999999999999999999999}}', 422),
        (b'{"kind": "nccl-test", "plan": {"nproc": true}}', 422),
        (b'{"kind": "nccl-test", "plan": {"op": ["../../etc/passwd"]}}', 422),
        (b'{"kind": "nccl-test", "plan": {"backend": "--python"}}', 422),
        (b'{"kind": "nccl-test", "plan": {"inject": ["kill:0@1"]}}', 422),
        (b'{"kind": "nccl-test", "plan": {"init_method": "tcp://elsewhere:1"}}', 422),
        (b'{"kind": "preflight", "plan": {"only": ["--store"]}}', 422),
        (b'{"kind": "preflight", "plan": {"expect_driver": "$(id)"}}', 422),
        (b'{"kind": "simulate", "plan": {}}', 422),
        (b'{"kind": "nccl-test", "gpus": ["GPU-none"]}', 422),
        (b'{"kind": "nccl-test", "command": "id"}', 422),
        (b"[" * 20_000, 422),
        (b'{"kind": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
def test_a_bad_body_is_refused_whole(guarded, body, status):
    headers = {**bearer(ACT), "Content-Type": "application/json"}
    response = guarded.client.post("/api/v1/runs", content=body, headers=headers)
    assert response.status_code in (status, 400) if body.startswith(b"[[") else response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert runs_of(guarded) == []


def test_a_body_without_a_length_is_bounded_too(guarded):
    chunks = (b"x" * 8192 for _ in range(64))
    headers = {**bearer(ACT), "Content-Type": "application/json"}
    assert guarded.client.post("/api/v1/runs", content=chunks, headers=headers).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/..%2f..%2fetc%2fpasswd",
        "/assets/..%2f..%2f__init__.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "//etc/passwd",
        "/assets/%00",
        "/api/v1/runs/..%2f..%2fetc/report",
    ],
)
def test_a_path_leads_nowhere_else(guarded, path):
    response = guarded.get(path, headers=bearer(READ))
    assert response.status_code in (400, 404, 422)
    assert b"root:" not in response.content
    assert b"import" not in response.content


def test_headers_and_addresses_are_bounded(guarded):
    assert guarded.get("/healthz", headers={"X-Long": "x" * 20_000}).status_code in (400, 431)
    assert guarded.get("/healthz?" + "x" * 5000).status_code == 414


@pytest.mark.parametrize("host", ["192.0.2.7:4783", "[2001:db8::7]:4783", "10.1.2.3"])
def test_an_address_of_the_machine_may_be_one_that_it_did_not_know(guarded, host):
    """An address is no name that another site could have had resolved to here."""
    headers = {**bearer(READ), "Host": host}
    assert guarded.get("/api/v1/devices", headers=headers).status_code == 200


@pytest.mark.parametrize(
    "host", ["elsewhere.example@127.0.0.1", "127.0.0.1/path", "127.0.0.1?", "127.0.0.1:port", "::1"]
)
def test_what_only_contains_a_known_name_is_no_host(guarded, host):
    refused = guarded.get("/healthz", headers={"Host": host})
    assert refused.status_code == 400
    assert refused.json()["code"] == "request.host"


def test_the_hint_of_a_wrong_name_leads_to_success(guarded):
    refused = guarded.get("/healthz", headers={"Host": "gpus.example"})
    assert refused.status_code == 421
    told = re.search(r"ask for (\S+), or start it with --allow-host gpus.example", refused.json()["hint"])
    assert told is not None
    assert httpx.get(told[1] + "healthz", timeout=20).status_code == 200


def test_an_address_that_works_from_elsewhere_is_printed():
    lines = describe_addresses(Settings(host="0.0.0.0", port=4783))
    there = [line.split()[-1] for line in lines if "from elsewhere" in line]
    assert there
    assert not any("127.0.0.1" in line or "0.0.0.0" in line for line in there)


def test_a_get_changes_nothing(guarded):
    for path in ("/api/v1/runs/20261120-000000-abcdef/cancel", "/api/v1/session"):
        assert guarded.get(path, headers=bearer(ACT)).status_code in (200, 405)
    assert runs_of(guarded) == []


def test_a_cookie_stands_for_a_token_and_says_where_it_comes_from(guarded):
    opened = guarded.client.post("/api/v1/session", json={"token": READ}, headers={"Origin": guarded.url})
    assert opened.status_code == 204
    cookie = opened.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert READ not in cookie
    try:
        assert guarded.get("/api/v1/session").json()["role"] == "read"
        assert guarded.get("/api/v1/devices").status_code == 200
        session = "; ".join(f"{name}={value}" for name, value in guarded.client.cookies.items())
        for foreign in ('a b="c', "{x}=1", "x[0]=2; bad, one", '=;;"'):  # of other programs of the same host
            beside = guarded.get("/api/v1/devices", headers={"Cookie": f"{foreign}; {session}"})
            assert beside.status_code == 200, foreign
        refused = guarded.client.post("/api/v1/runs", json=RUN)
        assert (refused.status_code, refused.json()["code"]) == (403, "access.origin")
        assert guarded.client.delete("/api/v1/session", headers={"Origin": guarded.url}).status_code == 204
    finally:
        guarded.client.cookies.clear()
    assert guarded.get("/api/v1/devices").status_code == 401


def test_two_services_of_one_host_have_cookies_of_their_own():
    names = {Settings(port=port).cookie for port in (4783, 4784)}
    assert len(names) == 2


def test_guesses_of_a_token_are_limited_and_who_was_right_goes_on(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read:{READ}\nact:{ACT}\n")
    tokens.chmod(0o600)
    options = ("--host", "0.0.0.0", "--token-file", str(tokens))
    with machine() as session, serving(session, tmp_path, *options) as service:
        service.wait_for_data()
        assert service.get("/api/v1/devices", headers=bearer(READ)).status_code == 200
        told = [
            service.get("/api/v1/devices", headers=bearer(f"guess-{number:016}")).status_code
            for number in range(MAX_GUESSES + 5)
        ]
        assert told == [401] * MAX_GUESSES + [429] * 5
        assert service.get("/api/v1/devices", headers=bearer(READ)).status_code == 200
        new = service.get("/api/v1/devices", headers=bearer(ACT))  # it may be a guess too
        assert new.status_code == 429
        assert 0 < int(new.headers["retry-after"]) <= 60
        assert service.client.post("/api/v1/session", json={"token": "guess"}).status_code == 429


def test_a_reader_ends_no_session_of_who_may_act():
    sessions = Sessions()
    acting = sessions.open("act")
    reading = [sessions.open("read") for _ in range(1100)]
    assert sessions.role_of(acting) == "act"
    assert sessions.role_of(reading[0]) is None
    assert sessions.role_of(reading[-1]) == "read"


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o602, 0o660, 0o777])
def test_a_token_file_that_others_may_read_is_refused(tmp_path, mode):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"act:{ACT}\n")
    tokens.chmod(mode)
    with pytest.raises(UsageError) as refused:
        read_token_file(tokens)
    assert f"chmod 600 {tokens}" in refused.value.hint
    tokens.chmod(0o440)  # a group of readers is the operator's choice, as Kubernetes has it
    assert read_token_file(tokens)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/v1/session", b'{"token": "\\ud800"}'),
        ("POST", "/api/v1/runs", b'{"kind": "\\ud800"}'),
        ("POST", "/api/v1/runs", b'{"kind": "nccl-test", "plan": {"\\udfff": "\\ud800"}}'),
        ("POST", "/api/v1/runs", b'{"kind": "nccl-test", "gpus": ["\\ud800"]}'),
        ("GET", "/api/v1/devices/%ED%A0%80", None),
        ("GET", "/api/v1/history?device=%ED%A0%80", None),
        ("GET", "/api/v1/runs/%ED%A0%80", None),
    ],
)
def test_half_a_character_is_refused_and_not_a_bug(guarded, method, path, body):
    headers = {} if "session" in path else bearer(ACT)
    headers = {**headers, "Content-Type": "application/json"}
    answer = guarded.client.request(method, path, content=body, headers=headers)
    assert 400 <= answer.status_code < 500
    assert answer.json()["status"] == answer.status_code


@pytest.mark.parametrize(
    "path",
    ["/", "/healthz", "/metrics", "/api/v1/devices", "/api/v1/history", "/api/v1/stream", "/openapi.json"],
)
def test_head_answers_as_get_does_without_a_body(guarded, path):
    answer = guarded.client.head(path, headers=bearer(READ))
    assert answer.status_code == 200
    assert answer.content == b""
    assert guarded.client.head("/api/v1/nothing", headers=bearer(READ)).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/api/v1/runs", "GET, HEAD, POST"),
        ("POST", "/api/v1/devices", "GET, HEAD"),
        ("PUT", "/api/v1/session", "DELETE, GET, HEAD, POST"),
        ("GET", "/api/v1/runs/20261120-000000-abcdef/cancel", None),
    ],
)
def test_what_an_address_takes_is_told(guarded, method, path, allowed):
    answer = guarded.client.request(method, path, headers=bearer(ACT), json=None if method == "GET" else {})
    assert answer.status_code in ((405,) if allowed else (404, 405))
    assert allowed is None or answer.headers["allow"] == allowed


def test_a_wrong_token_opens_no_session(guarded):
    response = guarded.client.post("/api/v1/session", json={"token": "wrong-token-0123456789"})
    assert response.status_code == 401
    assert "set-cookie" not in response.headers


def test_no_token_is_ever_logged(guarded):
    guarded.get("/api/v1/devices", headers=bearer(READ), params={"token": "in-the-query-0123456"})
    log = guarded.log.read_text()
    for secret in (READ, "wrong-token-0123456789", "in-the-query-0123456"):
        assert secret not in log


def test_a_request_that_never_ends_is_cut_off(guarded):
    host, _, port = guarded.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        began = time.monotonic()
        assert slow.recv(1024) == b""
        assert time.monotonic() - began < 60  # it would wait for ever


def test_connections_beyond_the_limit_are_told_so_and_cost_nobody_else(tmp_path):
    with machine() as session, serving(session, tmp_path, descriptors=160) as service:
        service.wait_for_data()
        host, _, port = service.url.removeprefix("http://").partition(":")
        with contextlib.ExitStack() as held:
            waiting = [
                held.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(80)
            ]
            refused = held.enter_context(socket.create_connection((host, int(port)), timeout=20))
            assert refused.recv(1024).startswith(b"HTTP/1.1 503")
            assert service.live()["devices"]  # who is connected is answered
            assert service.children()  # and the sampler goes on
        assert len(waiting) == 80
        service.wait(lambda: httpx.get(f"{service.url}/healthz", timeout=20).status_code == 200)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory) -> tuple[Path, Path]:
    """A certificate that this machine's loopback addresses sign themselves, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = (folder / "cert.pem", folder / "key.pem")
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed, which makes the certificate")
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:::1"]
    command += ["-days", "2", "-out", str(files[0]), "-keyout", str(files[1])]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return files


def test_tls_by_files_on_the_loopback_of_ipv6(certificate, tmp_path):
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    cert, key = certificate
    options = ("--host", "::1", "--tls-cert", str(cert), "--tls-key", str(key))
    with machine() as session, serving(session, tmp_path, *options) as service:
        assert service.url.startswith("https://[::1]:")
        service.wait_for_data()
        known = ssl.create_default_context(cafile=str(cert))
        with httpx.Client(base_url=service.url, verify=known, timeout=20) as client:
            assert client.get("/api/v1/devices").status_code == 200
            assert client.get("/api/v1/devices", headers={"Host": "elsewhere.example"}).status_code == 421
        host, _, port = service.url.removeprefix("https://").rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=20) as plain:
            plain.sendall(b"GET /healthz HTTP/1.1\r\nHost: [::1]\r\n\r\n")
            assert not plain.recv(1024).startswith(b"HTTP/1.1 200")


def test_a_key_with_a_passphrase_is_refused_and_nobody_is_asked_for_it(certificate, tmp_path, capsys):
    """OpenSSL asks at the terminal: the service would wait there for ever."""
    cert, key = certificate
    locked = tmp_path / "locked.key"
    command = [
        "openssl",
        "pkey",
        "-in",
        str(key),
        "-aes256",
        "-passout",
        "pass:secret-words",
        "-out",
        str(locked),
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert main(["serve", "--port", "0", "--tls-cert", str(cert), "--tls-key", str(locked)]) == 2
    told = capsys.readouterr().err
    assert f"{locked} is encrypted" in told
    assert "openssl pkey" in told


def test_a_body_that_never_ends_is_cut_off(guarded):
    host, _, port = guarded.url.removeprefix("http://").partition(":")
    head = f"POST /api/v1/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {ACT}\r\n"
    head += "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((host, int(port)), timeout=60) as slow:
        slow.sendall(head.encode())
        assert slow.recv(1024).startswith(b"HTTP/1.1 408")


def test_without_allow_actions_nothing_is_started_for_anybody(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"act:{ACT}\n")
    tokens.chmod(0o600)
    with machine() as session, serving(session, tmp_path, "--token-file", str(tokens)) as service:
        service.wait_for_data()
        response = service.client.post("/api/v1/runs", json=RUN, headers=bearer(ACT))
        assert (response.status_code, response.json()["code"]) == (403, "access.actions_off")


def test_a_token_of_a_file_is_never_printed(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"act:{ACT}\n")
    tokens.chmod(0o600)
    settings = Settings(tokens=read_token_file(tokens), allow_actions=True)
    assert ACT not in "\n".join(describe_addresses(settings))
    made = make_act_token()
    assert made.known[0][1] in describe_addresses(replace(settings, tokens=made))[0]


def test_behind_a_proxy_with_a_prefix_and_a_name(tmp_path):
    options = ("--root-path", "/gpus", "--allow-host", "gpus.example", "--allow-actions")
    with machine() as session, serving(session, tmp_path, *options) as service:
        service.url = service.url.removesuffix("/gpus")
        service.client.base_url = service.url
        name = {"Host": "gpus.example"}
        service.wait(lambda: service.get("/gpus/readyz", headers=name).status_code == 200, 30)
        assert service.get("/gpus/api/v1/devices", headers=name).status_code == 200
        assert service.get("/api/v1/devices", headers=name).status_code == 200  # a proxy that takes it off
        assert service.get("/gpus", headers=name).headers["location"] == "/gpus/"
        started = service.client.post("/gpus/api/v1/runs", json=RUN, headers={**name, **service.act})
        assert started.headers["location"].startswith("/gpus/api/v1/runs/")
        assert service.get(started.headers["location"], headers=name).status_code == 200


@pytest.mark.parametrize(
    "options",
    [
        ("--host", "0.0.0.0"),
        ("--port", "99999"),
        ("--root-path", "gpus"),
        ("--tls-cert", "/nonexistent"),
        ("--token-file", "/nonexistent"),
        ("--host", "203.0.113.1", "--token-file", "TOKENS"),
    ],
)
def test_a_service_that_cannot_be_right_does_not_start(tmp_path, capsys, options):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read:{READ}\n")
    tokens.chmod(0o600)
    words = [str(tokens) if word == "TOKENS" else word for word in options]
    assert main(["serve", *words]) == 2
    told = capsys.readouterr().err
    assert told.startswith("gpudiag: ")
    assert "Traceback" not in told


@pytest.mark.parametrize(
    "host",
    ["203.0.113.1", "no-such-host.invalid", "fe80::1", "1.2.3.4.5", "[::1]", "a..b", "a" * 70, "", " "],
)
def test_an_address_that_is_not_of_this_machine_is_no_matter_of_the_port(tmp_path, capsys, host):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"read:{READ}\n")
    tokens.chmod(0o600)
    assert main(["serve", "--host", host, "--token-file", str(tokens)]) == 2
    told = capsys.readouterr().err
    assert "--host" in told
    assert "--port" not in told


def test_a_port_in_use_says_how_to_see_who_has_it(capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["serve", "--port", str(port)]) == 2
    told = capsys.readouterr().err
    assert "--port" in told
    assert f"sport = :{port}" in told


def test_a_token_file_of_another_editor_is_read(tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_bytes(b"\xef\xbb\xbf" + f"read:{READ}\r\nact:{ACT}\r\n".encode())
    tokens.chmod(0o600)
    assert read_token_file(tokens).known == (("read", READ), ("act", ACT))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "read:short\n",
        "write:0123456789abcdef\n",
        "0123456789abcdefgh\n",
        "read: 0123456789abcdefgh\n",  # no header can carry the space: this token would never be right
        "act:0123456789abcdefgh # of the night shift\n",
    ],
)
def test_a_token_file_that_is_wrong_is_refused(tmp_path, capsys, text):
    tokens = tmp_path / "tokens"
    tokens.write_text(text)
    tokens.chmod(0o600)
    assert main(["serve", "--token-file", str(tokens)]) == 2
    assert str(tokens) in capsys.readouterr().err
