"""Scenario files: a base with changes, faults in the file, and what is refused."""

import json
from pathlib import Path

import pytest

from gpudiag.errors import UsageError
from gpudiag.simulate.loader import load_scenario
from tests.unit.simulate_scenarios.machines import NOW, listed, machine


def write(folder: Path, text: str, name: str = "mine.toml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def test_a_file_lays_changes_over_its_base(tmp_path: Path):
    spec = write(
        tmp_path,
        """
        base = "h100x8"
        faults = ["lost:3"]
        [nvml]
        driver_version = "580.173.02"
        [gpu]
        persistence_mode = "disabled"
        [gpus.2]
        temperature_celsius = 71
        missing.not_supported = ["recovery_action"]
        [host]
        hostname = "a1"
        [environment]
        CUDA_VISIBLE_DEVICES = "0,1"
        """,
    )
    scenario = load_scenario(spec, now=NOW)
    assert scenario.hostname == "a1"
    assert scenario.nvml.driver_version == "580.173.02"
    assert "580.173.02" in scenario.host.files["proc/driver/nvidia/version"]
    assert scenario.gpus[2].readings["temperature_celsius"] == 71
    assert scenario.gpus[2].missing["recovery_action"] == "not_supported"
    assert scenario.gpus[1].readings["persistence_mode"] == "disabled"
    assert (
        scenario.gpus[1].readings["temperature_celsius"]
        == machine("h100x8").gpus[1].readings["temperature_celsius"]
    )
    assert scenario.gpus[3].missing["responding"] == "device_lost"
    assert len(scenario.torch["devices"]) == 2
    assert scenario.environment == {"CUDA_VISIBLE_DEVICES": "0,1"}


def test_faults_may_be_added_to_a_file(tmp_path: Path):
    spec = write(tmp_path, 'base = "t4x1"\n', "a+b.toml")
    scenario = load_scenario(f"{spec}+hot:0", now=NOW)
    assert scenario.name == f"{spec}+hot:0"
    assert "hw_slowdown" in scenario.gpus[0].readings["clocks_event_reasons"]


def test_a_file_may_build_on_a_file_beside_it(tmp_path: Path):
    write(tmp_path, 'base = "t4x1"\n[host]\nhostname = "one"\n', "one.toml")
    spec = write(tmp_path, 'base = "one.toml"\n[gpu]\ntemperature_celsius = 40\n', "two.toml")
    scenario = load_scenario(spec, now=NOW)
    assert (scenario.hostname, scenario.gpus[0].readings["temperature_celsius"]) == ("one", 40)


REFUSED = (
    ('base = "h100x9"', "h100x9"),
    ('base = "mine.toml"', "form a loop"),
    ("", "bus_id|GPUs"),
    ("base = ", "TOML"),
    ('base = "h100x8"\nfault = ["lost:3"]', "'fault'"),
    ('base = "h100x8"\nfaults = "lost:3"', "list"),
    ('base = "h100x8"\n[gpu]\ntemprature_celsius = 30', "temprature_celsius"),
    ('base = "h100x8"\n[gpu]\ntemperature_celsius = "warm"', "temperature_celsius"),
    ('base = "h100x8"\n[gpus.8]\ntemperature_celsius = 30', "8"),
    ('base = "h100x8"\n[gpu]\nmissing.broken = ["serial"]', "broken"),
    ('base = "h100x8"\n[gpu]\nmissing.not_supported = ["seriel"]', "seriel"),
    ('base = "h100x8"\n[each]\ntemperature_celsius = [30]', "temperature_celsius"),
    ('base = "h100x8"\n[host]\nhostnam = "a"', "hostnam"),
    ('base = "h100x8"\n[environment]\nLOCAL_RANK = 0', "LOCAL_RANK"),
    ('base = "h100x8"\nvisible_gpus = [9]', "visible_gpus"),
    ('[each]\nbus_id = ["00000000:01:00.0"]', "GPU 0"),
    ('base = "h100x8"\n[gpu]\ncalls = [{ cal = "nvmlDeviceGetName" }]', "cal"),
    ('base = "h100x8"\n[gpu]\ncalls = [{ code = 15 }]', "CallFault"),
    ('base = "h100x8"\n[gpu]\ncalls = [15]', "table"),
    ('base = "h100x8"\n[gpu]\nnvlinks = { links = 4 }', "nvlinks"),
    ('base = "h100x8"\n[host]\nlogical_processors = "many"', "logical_processors"),
    ('base = "h100x8"\n[nvml]\ninit_code = "broken"', "init_code"),
    ('base = "h100x8"\nhost = 3', "host"),
    ('base = "h100x8"\n[gpu]\nmissing = 3', "missing"),
    ('base = "h100x8"\ngpu = 3', "gpu"),
    ('base = "h100x8"\n[[host.interfaces]]\nmtu = 1500', "Interface"),
)


@pytest.mark.parametrize(("text", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, words: str):
    with pytest.raises(UsageError, match=words):
        load_scenario(write(tmp_path, text), now=NOW)


def test_a_file_that_is_not_there(tmp_path: Path):
    for name in ("no.toml", "no.json"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_scenario(str(tmp_path / name), now=NOW)


def test_a_json_file_that_is_no_machine(tmp_path: Path):
    for document in ({"schema": "gpudiag.collective/2"}, [1], {"name": "h100"}):
        with pytest.raises(UsageError):
            load_scenario(write(tmp_path, json.dumps(document), "x.json"), now=NOW)


def test_visible_gpus_are_numbered_anew(tmp_path: Path):
    spec = write(tmp_path, 'base = "h100x8"\nvisible_gpus = [6, 7]\n[gpus.1]\ntemperature_celsius = 50\n')
    scenario = load_scenario(spec, now=NOW)
    assert [gpu.readings["temperature_celsius"] for gpu in listed(scenario)] == [31, 50]


def test_a_reading_that_no_file_names_is_not_supported(tmp_path: Path):
    each = 'bus_id = ["00000000:01:00.0"]\nuuid = ["GPU-62f746b4-84e6-1ceb-95bd-447e7184d454"]'
    [gpu] = load_scenario(write(tmp_path, f'base = "h100x8"\n[each]\n{each}'), now=NOW).gpus
    assert gpu.readings["memory_total_bytes"] > 0
    assert gpu.missing["temperature_celsius"] == gpu.missing["serial"] == "not_supported"
