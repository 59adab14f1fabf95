"""Every panel of every board has data: a real Prometheus scrapes two simulated machines, and answers what
Grafana would ask.

One machine is healthy and busy, in a Slurm job and with pods; the other has faults, of which one came while
it was watched.
"""

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.api.prometheus_server import INSTALLED, prometheus, with_variables
from tests.api.public_boards import BOARD_12239
from tests.api.serving import machine, serving
from tests.kubelet.fake_kubelet import fake_kubelet, pod
from tools.write_boards import FOLDER, board_text, boards

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'gpudiag[kubernetes]'")

GRID_COLUMNS = 24
SCRAPED_SECONDS = 120.0
BUSY, FAULTY = "h100x8-slurm4+busy:4", "h100x8+busy:0+hot:0"
LATER = f"{FAULTY}+xid:1:94"


def panels_of(board: dict) -> Iterator[dict]:
    for panel in board["panels"]:
        yield panel
        yield from panel.get("panels", ())


def expressions_of(board: dict) -> list[tuple[str, str]]:
    return [(panel["title"], target["expr"]) for panel in panels_of(board) for target in panel["targets"]]


# --- what needs no Prometheus


def test_the_boards_are_those_that_the_tool_writes():
    assert {path.name for path in FOLDER.glob("*.json")} == set(boards())
    for name, board in boards().items():
        assert (FOLDER / name).read_text() == board_text(board), "run: make pages"


def test_no_panel_lies_on_another_and_none_has_anothers_number():
    for board in boards().values():
        taken: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            place = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(place["x"], place["x"] + place["w"])
                for y in range(place["y"], place["y"] + place["h"])
            }
            assert not cells & taken, panel["title"]
            assert place["x"] + place["w"] <= GRID_COLUMNS, panel["title"]
            taken |= cells
        numbers = [panel["id"] for panel in board["panels"]]
        assert len(numbers) == len(set(numbers))


def test_a_link_leads_to_a_board_of_ours_with_variables_that_it_has_or_to_a_view_of_the_page():
    known = {
        board["uid"]: {one["name"] for one in board["templating"]["list"]} for board in boards().values()
    }
    views = {"explain", "gpu"}
    found = json.dumps(
        [panel["fieldConfig"]["overrides"] for board in boards().values() for panel in panels_of(board)]
    )
    links = [part.split('"')[0] for part in found.split('"url": "')[1:]]
    assert len(links) > 5
    for link in links:
        if link.startswith("/d/"):
            path = urlsplit(link)
            names = {
                part.partition("=")[0].removeprefix("var-")
                for part in path.query.split("&")
                if part.startswith("var-")
            }
            assert names <= known[path.path.removeprefix("/d/")], link
        else:
            view = link.partition("#/")[2].partition("/")[0]
            assert link.startswith("http://${"), link
            assert not view or view in views, link


# --- with one


@pytest.fixture(scope="module")
def scraped(tmp_path_factory):
    """A Prometheus that has scraped both machines in both dialects, and the variables of the boards by
    machine.
    """
    if not INSTALLED:
        pytest.skip("prometheus is not installed: tools/install-system-packages")
    folder = tmp_path_factory.mktemp("boards")
    with (
        fake_kubelet(folder / "kubelet.sock") as kubelet,
        machine(BUSY) as busy,
        machine(FAULTY) as faulty,
        serving(busy, folder / "a", "--kubelet-socket", str(kubelet.socket)) as one,
        serving(faulty, folder / "b") as other,
    ):
        one.wait_for_data()
        other.wait_for_data()
        uuids = [device["uuid"] for device in one.live()["devices"]]
        kubelet.tell(pods=[pod("ml", "llama-0", "train", uuids[4])], allocatable=uuids)
        other.change(LATER)
        addresses = [urlsplit(service.url).netloc for service in (one, other)]
        jobs = {"gpudiag": (addresses, {}), "dcgm": (addresses, {"dialect": ["dcgm"]})}
        with prometheus(folder / "prometheus", jobs) as started:
            for expression in (
                "gpudiag_gpu_pod_info",
                "gpudiag_gpu_job_info",
                "gpudiag_gpu_xid_last_timestamp_seconds",
                'gpudiag_finding{code=~"xid.*"}',
                "count(rate(gpudiag_gpu_pcie_replay_total[10s])) > 15",
                "count(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE) > 15",
            ):
                started.wait(lambda wanted=expression: started.query(wanted), SCRAPED_SECONDS)
            yield started, addresses


def test_the_queries_of_the_page_about_pods_and_jobs_give_data(scraped):
    prometheus, _ = scraped
    (block,) = re.findall(
        r"```promql\n(.*?)```", (FOLDER.parents[1] / "docs/kubernetes.md").read_text(), re.DOTALL
    )
    queries = block.splitlines()
    assert len(queries) == 4
    empty = [query for query in queries if not prometheus.query(query) and "gpudiag_finding" not in query]
    assert empty == []
    # The machine with the pods is healthy: what the fault's query would say of its GPU, by another series.
    joined = prometheus.query(queries[0].replace("gpudiag_finding", "gpudiag_gpu_up"))
    assert joined[0]["metric"]["pod"] == "llama-0"


def values_of(prometheus, label: str, metric: str) -> list[str]:
    return sorted({series["metric"][label] for series in prometheus.query(metric)})


def test_every_panel_of_ours_has_data(scraped):
    prometheus, (busy, faulty) = scraped
    empty = []
    for name, board in boards().items():
        for title, expression in expressions_of(board):
            answers = []
            for instance, gpu in ((busy, "4"), (faulty, "0")):
                host = prometheus.query(f'gpudiag_build_info{{instance="{instance}"}}')[0]["metric"]["host"]
                variables = {"host": host, "instance": instance, "gpu": gpu}
                answers.append(prometheus.query(with_variables(expression, variables)))
            # What is about faults, pods or jobs is on the machine that has them; all else on both.
            needed = any if "finding" in expression or "_xid_" in expression or "_info" in expression else all
            if not needed(map(bool, answers)):
                empty.append(f"{name}: {title}: {expression}")
    assert empty == []


def test_the_variables_of_ours_have_values(scraped):
    prometheus, addresses = scraped
    (variables,) = [
        {one["name"]: one["query"] for one in board["templating"]["list"]}
        for board in boards().values()
        if board["uid"] == "gpudiag-gpu"
    ]
    assert variables["host"] == "label_values(gpudiag_build_info, host)"
    assert values_of(prometheus, "instance", "gpudiag_build_info") == sorted(addresses)
    assert variables["gpu"] == 'label_values(gpudiag_gpu_up{instance=~"$instance"}, gpu)'
    assert values_of(prometheus, "gpu", f'gpudiag_gpu_up{{instance="{addresses[0]}"}}') == list("01234567")


def test_the_board_of_nvidia_has_data_in_every_panel(scraped):
    prometheus, (instance, _) = scraped
    host = prometheus.query("DCGM_FI_DEV_GPU_TEMP")[0]["metric"]["Hostname"]
    variables = {"instance": instance, "gpu": "4", "hostname": host, "Hostname": host}
    every = dict.fromkeys(variables, ".*")
    empty = [
        f"{version}: {expression}"
        for version, expressions in BOARD_12239.items()
        for expression in expressions
        for values in (variables, every)
        if not prometheus.query(with_variables(expression, values))
    ]
    assert empty == []
