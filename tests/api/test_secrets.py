"""Secrets planted wherever the service can meet one, and every answer, log line and command searched for
them.
"""

import json
from pathlib import Path

import httpx
import pytest

from gpudiag.cli.failures import describe_failure
from gpudiag.simulate.loader import load_scenario
from gpudiag.simulate.session import open_session
from tests.api.serving import serving
from tests.warm_start import IMPORT_PATH, run_python

PASSWORD = "planted-Passw0rd-in-the-store"
ARGUMENT = "planted-S3cret-on-a-command-line"
VARIABLE = "planted-S3cret-in-the-environment"
PROXY = "planted-S3cret-of-a-proxy"
HEADER = "planted-S3cret-in-a-header"
READ, ACT = "planted-read-token-0123456789", "planted-act-token-0123456789"
SECRETS = (PASSWORD, ARGUMENT, VARIABLE, PROXY, HEADER, READ, ACT)
STORE = f"postgresql://ann:{PASSWORD}@127.0.0.1:9/gpudiag"  # nobody listens there: it is down
COMMAND = [
    *("python", "train.py", f"--api-key={ARGUMENT}", "--hf-token", ARGUMENT, f"WANDB_API_KEY={ARGUMENT}"),
    *(f"--data=https://ann:{ARGUMENT}@data.example/x?token={ARGUMENT}", f"password={ARGUMENT}"),
]
ENVIRONMENT = (
    {"NCCL_HOSTID": f"https://ann:{VARIABLE}@x.example/", "TORCH_HUB_TOKEN": VARIABLE}
    | {"CUDA_API_KEY": VARIABLE, "HTTPS_PROXY": f"http://ann:{PROXY}@proxy.example:3128"}
    | {"PGPASSWORD": VARIABLE, "GPUDIAG_STORE": STORE, "DATABASE_URL": STORE, "NCCL_TOKEN": VARIABLE}
    | {"SLURM_JWT": VARIABLE, "MASTER_ADDR": f"http://ann:{VARIABLE}@head"}
    | {"NCCL_SOCKET_IFNAME": f"eth0,token={VARIABLE}", "CUDA_VISIBLE_DEVICES": f"--password={VARIABLE}"}
)
PATHS = tuple(
    """
    / /healthz /readyz /openapi.json /metrics /metrics?full=1&processes=1
    /metrics?dialect=dcgm&processes=1 /api/v1/devices /api/v1/devices/0 /api/v1/snapshot
    /api/v1/processes /api/v1/topology /api/v1/history /api/v1/sources /api/v1/checks /api/v1/findings
    /api/v1/events /api/v1/runs /api/v1/baselines /api/v1/explain/xid-79 /api/v1/schemas /api/v1/session
    /api/v1/poll?since=0 /nothing /api/v1/nothing
    """.split()
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A machine whose training has secrets on its command line, as a session."""
    folder = tmp_path_factory.mktemp("machine")
    words = json.dumps("\0".join(COMMAND) + "\0")
    file = folder / "planted.toml"
    file.write_text(
        f'base = "h100x8"\nfaults = ["busy:0"]\n[host]\nextra_files = {{ "proc/41200/cmdline" = {words} }}\n'
    )
    with open_session(load_scenario(str(file))) as session:
        yield session


@pytest.fixture(scope="module")
def guarded(planted, tmp_path_factory):
    """The service on that machine, whose store is down."""
    state = tmp_path_factory.mktemp("state")
    tokens = state / "tokens"
    tokens.write_text(f"read:{READ}\nact:{ACT}\n")
    tokens.chmod(0o600)
    planted.environment.update(ENVIRONMENT)
    options = ("--token-file", str(tokens), "--allow-actions", "--store", STORE)
    with serving(planted, state, *options) as service:
        service.wait_for_data()
        service.wait(lambda: service.get("/healthz").json()["warnings"], 30)
        yield service


def searched(text: str, where: str) -> None:
    found = [secret for secret in SECRETS if secret in text]
    assert not found, f"{where}: {found}: {text[max(0, text.find(found[0]) - 200) :][:400]}"


def test_the_store_is_down_and_says_so_without_its_password(guarded):
    warnings = guarded.get("/healthz").json()["warnings"]
    assert any("127.0.0.1:9" in words for words in warnings)
    assert any("***" in words for words in warnings)


def test_a_process_is_shown_without_what_its_command_line_gives_away(guarded):
    text = guarded.get("/api/v1/processes").text
    assert "train.py --api-key=***" in text
    searched(text, "processes")


def test_a_variable_is_shown_without_its_secret(guarded):
    shown = guarded.get("/api/v1/checks").json()["snapshot"]["machine"]["state"]["settings"]["environment"]
    assert shown["NCCL_HOSTID"] == "https://ann:***@x.example/"
    assert shown["TORCH_HUB_TOKEN"] == "(set)"


@pytest.mark.parametrize("path", PATHS)
def test_no_answer_holds_a_secret(guarded, path):
    headers = {"Proxy-Authorization": f"Basic {HEADER}", "X-Forwarded-For": HEADER, "X-Api-Key": HEADER}
    for more in ({}, headers, {"Authorization": f"Bearer {READ}", **headers}):
        answer = guarded.get(path, headers=more)
        searched(answer.text + str(answer.headers), path)


def test_no_event_of_the_stream_holds_one(guarded):
    heard = ""
    with httpx.stream("GET", f"{guarded.url}/api/v1/stream", timeout=20) as stream:
        for line in stream.iter_lines():
            heard += line + "\n"
            if heard.count("event:") >= 3:
                break
    assert "gpudiag.live/1" in heard
    searched(heard, "stream")


def test_no_run_holds_one(guarded):
    headers = {"Authorization": f"Bearer {ACT}"}
    run = guarded.client.post(
        "/api/v1/runs", json={"kind": "preflight", "plan": {"level": "instant"}}, headers=headers
    ).json()
    place = f"/api/v1/runs/{run['id']}"
    guarded.wait(lambda: guarded.get(place).json()["state"] not in ("queued", "running"), 60)
    formats = ("text", "json", "junit", "markdown", "prometheus", "github")
    reports = [f"{place}/report?format={one}" for one in formats]
    for path in (place, f"{place}/log", f"{place}/events", *reports):
        searched(guarded.get(path).text, path)


def test_no_line_of_the_log_holds_one(guarded):
    guarded.get(f"/api/v1/devices?token={ARGUMENT}", headers={"Authorization": f"Bearer {HEADER}"})
    searched(guarded.log.read_text(), "log")


def test_no_refusal_holds_one(guarded):
    """What is wrong with a request is told without what it carried."""
    cookie = {"Cookie": f"gpudiag_session={HEADER}"}
    wrong = {"Authorization": f"Bearer {HEADER}", "Proxy-Authorization": HEADER, **cookie}
    for method, path, body in (
        ("POST", "/api/v1/session", {"token": HEADER}),
        ("POST", "/api/v1/session", {"password": HEADER}),
        ("POST", "/api/v1/runs", {"kind": "preflight", "plan": {"level": "instant"}}),
        ("DELETE", "/api/v1/session", None),
        ("PUT", "/api/v1/devices", None),
    ):
        answer = guarded.client.request(method, path, json=body, headers=wrong)
        assert answer.status_code >= 204
        searched(answer.text + str(answer.headers), f"{method} {path}")
    searched(guarded.log.read_text(), "log")


def test_what_a_store_that_works_holds_shows_none(planted, tmp_path):
    """A stored run: in the file, by `history`, and by a service that reads it."""
    store = tmp_path / "history.db"
    environment = {
        **planted.environment,
        **ENVIRONMENT,
        "GPUDIAG_STATE_DIR": str(tmp_path),
        "PYTHONPATH": IMPORT_PATH,
    }
    for words in (
        ("preflight", "--level", "instant"),
        ("preflight", "--level", "instant"),
        ("history", "--json"),
        ("history",),
    ):
        done = run_python(("-m", "gpudiag", *words, "--store", f"sqlite:///{store}"), environment, 180)
        searched(done.out + done.err, " ".join(words))
    assert "preflight" in done.out
    for file in tmp_path.iterdir():
        if file.is_file():
            searched(file.read_bytes().decode("latin-1"), file.name)
    with serving(planted, tmp_path, "--store", f"sqlite:///{store}") as service:
        service.wait_for_data()
        stored = service.wait(lambda: (now := service.get("/api/v1/baselines")).json()["runs"] and now)
        searched(stored.text, "baselines")
        for path in ("/api/v1/runs", "/api/v1/topology", "/api/v1/checks", "/healthz", "/metrics?full=1"):
            searched(service.get(path).text, path)
        searched(service.log.read_text(), "log")


def test_what_the_service_says_as_it_starts_and_when_it_cannot_holds_none(planted, tmp_path):
    tokens = tmp_path / "tokens"
    environment = {
        **planted.environment,
        **ENVIRONMENT,
        "GPUDIAG_STATE_DIR": str(tmp_path / "s"),
        "PYTHONPATH": IMPORT_PATH,
    }
    for text, mode, more in (
        (f"{READ}\n", 0o600, ()),
        (f"read:{READ}\nwrite:{ACT}\n", 0o600, ()),
        (f"read:{READ}\n", 0o644, ()),
        (f"read:{READ}\n", 0o600, ("--host", "192.0.2.1")),
        (f"read:{READ}\n", 0o600, ("--tls-cert", str(tokens), "--tls-key", str(tokens))),
        (
            f"read:{READ}\n",
            0o600,
            ("--store", STORE.replace("5432", "nowhere").replace("postgresql", "oracle")),
        ),
        (f"read:{READ}\n", 0o600, ("--root-path", f"gpus?token={ARGUMENT}")),
    ):
        tokens.write_text(text)
        tokens.chmod(mode)
        words = ("-m", "gpudiag", "serve", "--port", "0", "--token-file", str(tokens), *more)
        done = run_python(words, environment, 90)
        assert done.status == 2, done.err
        searched(done.out + done.err, f"serve {mode:o} {more[:1]}")


LOG = f"""\
rank 0: connecting to https://ann:{ARGUMENT}@hub.example/model with api_key={ARGUMENT}
Traceback (most recent call last):
  File "/job/train.py", line 3, in <module>
    login(token="{ARGUMENT}")
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB (job password={ARGUMENT})
Authorization: Bearer {ARGUMENT}
NVRM: Xid (PCI:0000:5d:00): 79, pid=41200, name=python, GPU has fallen off the bus. HF_TOKEN={ARGUMENT}
"""


def test_no_explanation_of_a_log_holds_one(planted, tmp_path):
    file = tmp_path / "job.log"
    file.write_text(LOG)
    for words in (("explain", str(file)), ("explain", str(file), "--json"), ("explain", "-")):
        environment = {**planted.environment, "PYTHONPATH": IMPORT_PATH}
        done = run_python(("-m", "gpudiag", *words), environment, 90, given=LOG)
        assert done.out
        searched(done.out + done.err, " ".join(words))


@pytest.mark.parametrize(
    "words",
    [
        ("list",), ("list", "--free", "1", "--ids"), ("list", "--wide"), ("list", "--json"),
        ("list", "--sources", "all", "--json"), (),
        ("preflight", "--level", "instant"), ("preflight", "--level", "instant", "--json"),
        ("preflight", "--level", "instant", "--store", STORE), ("history", "--store", STORE),
        ("history", "--json", "--store", STORE), ("serve", "--store", STORE.replace("postgresql", "mysql")),
        ("nccl-test", "--nproc", "2", "--store", STORE.replace("://", ":/")), ("list", "--store", STORE),
        ("nccl-test", "--init-method", f"tcp://ann:{ARGUMENT}@nowhere.invalid:1", "--rank", "0",
            "--world-size", "2",
         "--rendezvous-timeout", "1"),
        ("bandwidth", "--store", STORE), ("train", "--script", f"/no/where?token={ARGUMENT}"),
        ("merge", f"/no/where?token={ARGUMENT}"), ("explain", f"token={ARGUMENT}"),
        ("simulate", "h100x8", "--", "python", "-m", "gpudiag", "list", f"--password={ARGUMENT}"),
        ("preflight", "--output", f"/no/where/?token={ARGUMENT}", "--level", "instant"),
    ],
)  # fmt: skip
def test_no_command_prints_one(planted, tmp_path, words):
    state = {"GPUDIAG_STATE_DIR": str(tmp_path), "PYTHONPATH": IMPORT_PATH}
    done = run_python(("-m", "gpudiag", *words), {**planted.environment, **ENVIRONMENT, **state}, 90)
    said = done.out + done.err
    assert said
    searched(said, " ".join(words[:1]))
    for file in Path(tmp_path).rglob("*.json"):
        searched(file.read_text(), file.name)


def test_a_traceback_for_a_bug_report_holds_none(monkeypatch):
    monkeypatch.setenv("GPUDIAG_DEBUG", "1")
    with pytest.raises(RuntimeError) as caught:
        raise RuntimeError(f"cannot connect to {STORE} with api_key={ARGUMENT}")
    failure = describe_failure(caught.value)
    assert len(failure.trace) > 1
    searched("\n".join(failure.lines), "traceback")
