"""A log that nobody reads stops nothing."""

import logging
import os
import subprocess
import sys
import time

import httpx
import pytest

from gpudiag_api import log_writer
from gpudiag_api.log_writer import LogWriter
from tests.api.serving import START_SECONDS, machine
from tests.warm_start import IMPORT_PATH

REQUESTS = 1500  # a pipe of 64 kB holds some 400 of their lines


def record(number: int) -> logging.LogRecord:
    return logging.LogRecord("gpudiag", logging.INFO, "", 0, "line %s", (number,), None)


@pytest.fixture
def pipe():
    reading, writing = os.pipe()
    yield reading, writing
    os.close(reading)
    os.close(writing)


def read_until(reading: int, last: str) -> list[str]:
    """The lines in the pipe, up to one that begins like that."""
    told = ""
    while not any(line.startswith(last) for line in told.splitlines()) or not told.endswith("\n"):
        told += os.read(reading, 65536).decode()
    return told.splitlines()


def test_lines_come_in_order_and_all_of_them_where_somebody_reads(pipe):
    writer = LogWriter(pipe[1])
    for number in range(1000):
        writer.handle(record(number))
    assert read_until(pipe[0], "line 999") == [f"line {number}" for number in range(1000)]
    writer.flush()


def test_what_nobody_reads_is_bounded_and_counted_once_somebody_reads(monkeypatch, pipe):
    monkeypatch.setattr(log_writer, "_FLUSH_SECONDS", 0.05)
    writer = LogWriter(pipe[1])
    for number in range(20_000):
        writer.handle(record(number))
    writer.flush()  # it comes back although not all was written
    told, lines, dropped = "", [], 0
    while len(lines) + dropped < 20_000:
        told += os.read(pipe[0], 65536).decode()
        whole = told[: told.rfind("\n") + 1].splitlines()
        lines = [int(line.split()[1]) for line in whole if line.startswith("line ")]
        dropped = sum(int(line.split()[0]) for line in whole if "dropped" in line)
    assert dropped > 0
    assert lines == sorted(lines)


def test_a_reader_that_has_gone_ends_nothing():
    reading, writing = os.pipe()
    writer = LogWriter(writing)
    os.close(reading)
    for number in range(10):
        writer.handle(record(number))
    writer.flush()
    os.close(writing)


@pytest.mark.timeout(180)
def test_a_service_answers_and_ends_although_its_log_is_not_read(tmp_path):
    with machine("h100x8") as session:
        environment = {**session.environment, "GPUDIAG_STATE_DIR": str(tmp_path), "PYTHONPATH": IMPORT_PATH}
        command = [sys.executable, "-m", "gpudiag", "serve", "--port", "0"]
        reading, writing = os.pipe()
        with subprocess.Popen(command, env=environment, stdout=writing, stderr=writing) as process:
            try:
                os.close(writing)
                told = b""
                while b"read only" not in told:  # the addresses; after them, nobody reads
                    told += os.read(reading, 4096)
                url = told.decode().split("gpudiag serve: ")[1].split()[0]
                until = time.monotonic() + START_SECONDS
                with httpx.Client(base_url=url, timeout=60) as client:
                    while not answers(client):
                        assert time.monotonic() < until
                        time.sleep(0.1)
                    for _ in range(REQUESTS):
                        assert client.get("/api/v1/events").status_code == 200
                process.terminate()
                assert process.wait(60) == 0
            finally:
                process.kill()
                os.close(reading)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/healthz").status_code == 200
    except httpx.TransportError:
        return False
