"""Xids that only NVML's events tell: a service in a container has no kernel log, and judges them all the
same.
"""

import pytest

from tests.api.serving import machine, serving

pytestmark = pytest.mark.timeout(180)

CONTAINER = "h100x8-container2"


def test_xids_without_a_kernel_log_are_judged(tmp_path):
    with machine(CONTAINER) as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        uuids = {device["nvml_index"]: device["uuid"] for device in service.live()["devices"]}
        service.change(f"{CONTAINER}+xid:0:31+xid:1:62")
        of_job = service.wait(lambda: finding(service, "xid.application", uuids[0]))
        broken = service.wait(lambda: finding(service, "xid.hardware", uuids[1]))
        told = service.get("/api/v1/events").json()["entries"]
        checks = {one["check"]: one for one in service.get("/api/v1/checks").json()["results"]}
    assert {(entry["uuid"], entry["xid_code"]) for entry in told if entry["kind"] == "xid"} == {
        (uuids[0], 31),
        (uuids[1], 62),
        (uuids[1], 154),
    }
    facts = {(fact["name"], fact["value"], fact["source"]) for fact in of_job["evidence"]}
    assert ("xid", 31, "NVML event") in facts
    assert "line" not in {name for name, _, _ in facts}
    assert "Xid 62" in broken["message"]
    assert checks["sxid.kernel_log"]["outcome"] == "skip"  # NVML's events are no kernel log


def test_an_xid_that_the_kernel_log_has_is_judged_by_its_line(tmp_path):
    with machine("h100x8") as session, serving(session, tmp_path) as service:
        service.wait_for_data()
        service.change("h100x8+xid:3:31")
        found = service.wait(lambda: logged(service))
        assert "times" not in found["message"]


def finding(service, code: str, uuid: str) -> dict | None:
    findings = service.get("/api/v1/findings").json()["findings"]
    return next((one for one in findings if (one["code"], one["subject"].get("uuid")) == (code, uuid)), None)


def logged(service) -> dict | None:
    """The finding about the job's Xid, once the kernel log has been read after it."""
    findings = service.get("/api/v1/findings").json()["findings"]
    return next(
        (
            one
            for one in findings
            if one["code"] == "xid.application" and any(fact["name"] == "line" for fact in one["evidence"])
        ),
        None,
    )
