"""What names a machine, a list of them, and their tokens; where lists come from."""

import asyncio
import os
import stat

import pytest

from gpudiag.errors import UsageError
from gpudiag.fleet import discovery
from gpudiag.fleet.addresses import (
    MOST_MACHINES,
    MachineTokens,
    parse_address,
    parse_addresses,
    read_machine_file,
    read_machine_tokens,
)
from gpudiag.fleet.discovery import Discovery, parse_sources
from gpudiag.fleet.machine import is_older
from gpudiag.reference.service_port import SERVICE_PORT

GOOD = {
    "gpu1": ("gpu1", SERVICE_PORT, False, "", f"http://gpu1:{SERVICE_PORT}/"),
    "gpu1:9000": ("gpu1", 9000, False, "", "http://gpu1:9000/"),
    "http://gpu1": ("gpu1", 80, False, "", "http://gpu1/"),
    "https://proxy.example/gpus/": ("proxy.example", 443, True, "/gpus", "https://proxy.example/gpus/"),
    "[2001:db8::7]": ("2001:db8::7", SERVICE_PORT, False, "", f"http://[2001:db8::7]:{SERVICE_PORT}/"),
}


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_a_host_or_a_url(text) -> None:
    found = parse_address(text)
    assert (found.host, found.port, found.is_tls, found.path, found.url) == GOOD[text]
    assert found.name == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://gpu1",
        "gpu1:port",
        "gpu1:0",
        "http://",
        "gpu1?x=1",
        "gpu1#x",
        "gpu 1",
        "http://[::1",
        "gpu1\r\nX: y",
        "a\\b",
        "{",
        "gpu1,gpu2",
        "<html>",
    ],
)
def test_what_is_no_address_is_refused(text) -> None:
    with pytest.raises(UsageError, match="no address of a service"):
        parse_address(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match="a user or a password") as caught:
        parse_address("http://ann:geheim@gpu1")
    assert "geheim" not in caught.value.message


def test_each_machine_is_listed_once_and_not_too_many() -> None:
    assert [one.host for one in parse_addresses(["gpu1", f"gpu1:{SERVICE_PORT}", "gpu2"])] == ["gpu1", "gpu2"]
    with pytest.raises(UsageError, match="more than one view shows"):
        parse_addresses([f"gpu{number}" for number in range(MOST_MACHINES + 1)])
    with pytest.raises(UsageError, match="no machine is named"):
        parse_addresses([" "])


def test_a_file_of_machines_has_names_and_pages_and_a_wrong_line_is_named(tmp_path) -> None:
    listed = tmp_path / "machines"
    listed.write_text(
        "# rack 3\ngpu1 name=rack3-gpu1 page=https://gpus.example/1  # the first\n\ngpu2 slots=8\n"
    )
    first, second = read_machine_file(listed)
    assert (first.name, first.url, first.host) == ("rack3-gpu1", "https://gpus.example/1", "gpu1")
    assert second.name == "gpu2"
    for line, words in {
        "gpu1 nmae=x": "neither name=NAME",
        "gpu1 page=javascript:1": "neither name=NAME",
        "ftp://x": "no address",
    }.items():
        listed.write_text(f"gpu0\n{line}\n")
        with pytest.raises(UsageError, match=f"line 2: .*{words}"):
            read_machine_file(listed)
    listed.write_text("# nothing\n")
    with pytest.raises(UsageError, match="lists no machine"):
        read_machine_file(listed)
    with pytest.raises(UsageError, match="cannot read"):
        read_machine_file(tmp_path / "absent")


def test_tokens_are_by_host_and_port_then_by_host_then_for_all(tmp_path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# read tokens\ngpu1 one\ngpu1:9000 two\nGPU2 three\n* rest\n[2001:db8::7] six\n")
    file.chmod(0o600)
    tokens = read_machine_tokens(file)
    hosts = ("gpu1", "gpu1:9000", "gpu2", "gpu3", "[2001:db8::7]")
    assert [tokens.of(parse_address(host)) for host in hosts] == ["one", "two", "three", "rest", "six"]
    assert "one" not in repr(tokens)
    assert "one" not in repr(parse_address("gpu1"))


def test_a_file_of_tokens_that_is_not_there_is_not_taken_for_one_of_machines(tmp_path) -> None:
    with pytest.raises(UsageError) as caught:
        read_machine_tokens(tmp_path / "gone")
    assert "HOST TOKEN" in caught.value.hint


def test_tokens_that_others_can_read_and_lines_that_are_none_are_refused(tmp_path) -> None:
    file = tmp_path / "tokens"
    file.write_text("gpu1 one\n")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="other users can read"):
        read_machine_tokens(file)
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    for text, words in {
        "gpu1\n": "line 1: not `HOST TOKEN`",
        "gpu1 a b\n": "line 1",
        "#\n": "holds no token",
    }.items():
        file.write_text(text)
        with pytest.raises(UsageError, match=words):
            read_machine_tokens(file)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ([","], "names no machine"),
        (["@/nonexistent/list"], "cannot read"),
        (["dns:https://gpus"], "certificate is issued for a name"),
        (["gpu1,slurm"], "sinfo, which is not installed"),
    ],
)
def test_sources_that_cannot_be_are_refused_at_the_start(texts, words, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match=words):
        parse_sources(texts, MachineTokens())


async def _machines(found: Discovery, count: int) -> list[str]:
    task = asyncio.create_task(found.run())
    try:
        for _ in range(600):
            if len(found.machines()) >= count and (count or found.problems):
                break
            await asyncio.sleep(0.05)
        return [f"{one.host}:{one.port} {one.token}".strip() for one in found.machines()]
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_a_name_of_dns_stands_for_all_its_addresses(monkeypatch) -> None:
    async def resolve(host: str) -> list[str]:
        assert host == "gpudiag.gpudiag.svc"
        return ["10.0.0.9", "10.0.0.10"]

    monkeypatch.setattr(discovery, "resolve", resolve)
    found = Discovery(parse_sources(["dns:gpudiag.gpudiag.svc"], MachineTokens((("*", "word"),))))
    assert asyncio.run(_machines(found, 2)) == [
        f"10.0.0.10:{SERVICE_PORT} word",
        f"10.0.0.9:{SERVICE_PORT} word",
    ]


def test_slurm_lists_its_nodes_and_a_failure_is_said(tmp_path, monkeypatch) -> None:
    sinfo = tmp_path / "sinfo"
    sinfo.write_text(
        '#!/bin/sh\ncase "$*" in *"--partition gpu"*) printf "node2\\nnode1\\nnode1\\n";; *) echo "slurm_load_partitions: no contact" >&2; exit 1;; esac\n'
    )
    sinfo.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = Discovery(parse_sources(["slurm:gpu"], MachineTokens()))
    assert asyncio.run(_machines(found, 2)) == [f"node1:{SERVICE_PORT}", f"node2:{SERVICE_PORT}"]
    failing = Discovery(parse_sources(["slurm"], MachineTokens()))
    assert asyncio.run(_machines(failing, 0)) == []
    assert failing.notes() == (
        "slurm cannot be read, and what it listed last is shown: sinfo: slurm_load_partitions: no contact",
    )


def test_versions_are_compared_as_numbers() -> None:
    assert is_older("0.9.0", "0.10.0")
    assert is_older("0.1.0", "0.1.1.dev3")
    assert not any(
        is_older(*pair)
        for pair in [("0.10.0", "0.9.0"), ("0.1.0", "0.1.0"), ("?", "0.1.0"), ("x.y", "0.1.0")]
    )
