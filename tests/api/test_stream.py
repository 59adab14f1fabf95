import json
import time

import httpx
import pytest

from gpudiag_api.live_events import LiveEvents


def read_events(served, count: int, headers: dict | None = None) -> list[dict]:
    """The first events of a stream: id, name and document."""
    events: list[dict] = []
    event: dict = {}
    with httpx.stream("GET", f"{served.url}/api/v1/stream", headers=headers or {}, timeout=20) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["x-accel-buffering"] == "no"
        for line in response.iter_lines():
            name, colon, value = line.partition(": ")
            if not line and event.get("data"):
                events.append(event)
                event = {}
                if len(events) >= count:
                    return events
            elif colon and name in ("id", "event", "data"):
                event[name] = json.loads(value) if name == "data" else value
    return events


def test_the_first_tick_comes_at_once_and_then_one_a_second(served):
    began = time.monotonic()
    first, second = [event for event in read_events(served, 2) if event["event"] == "live"][:2]
    assert first["data"]["schema"] == "gpudiag.live/1"
    assert second["data"]["sequence"] > first["data"]["sequence"]
    assert time.monotonic() - began < 60


def test_what_was_missed_is_replayed(served):
    first = read_events(served, 1)[0]
    served.wait(lambda: served.live()["sequence"] > first["data"]["sequence"] + 2)
    replayed = read_events(served, 2, {"Last-Event-ID": first["id"]})
    numbers = [int(event["id"].partition("-")[2]) for event in replayed]
    assert numbers[0] == int(first["id"].partition("-")[2]) + 1
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("last_id", ["", "nonsense", "00000000-5", "-1", "x" * 60])
def test_an_id_of_another_life_gets_the_newest_tick(served, last_id):
    event = read_events(served, 1, {"Last-Event-ID": last_id})[0]
    assert event["event"] == "live"


def test_polling_gives_the_same_events(served):
    first = served.get("/api/v1/poll").json()
    assert [event["event"] for event in first["events"]] == ["live"]
    served.wait(lambda: served.get("/api/v1/poll", params={"since": first["last_id"]}).json()["events"])
    nonsense = served.get("/api/v1/poll", params={"since": "nonsense-1"}).json()
    assert nonsense["gap"] is True


def test_a_listener_that_leaves_is_forgotten(served):
    read_events(served, 1)
    served.wait(lambda: served.get("/healthz").json()["stream_clients"] == 0)


def test_of_waiting_ticks_only_the_newest_is_kept():
    events = LiveEvents()
    listener = events.listen(None)
    for number in range(5):
        events.publish("live", str(number))
    events.publish("event", '"x"')
    assert [event.data for event in listener._waiting] == ["4", '"x"']


def test_a_listener_that_takes_nothing_holds_a_bounded_number_of_events():
    events = LiveEvents()
    listener = events.listen(None)
    for number in range(1000):
        events.publish("run_log", str(number))
    assert len(listener._waiting) == 64
    assert listener._waiting[-1].data == "999"


def test_a_gap_is_said():
    events = LiveEvents()
    first = events.publish("event", "0")
    for number in range(200):
        events.publish("event", str(number))
    _, gap = events.since(f"{events.instance}-{first.number}")
    assert gap
    _, gap = events.since(f"{events.instance}-150")
    assert not gap
