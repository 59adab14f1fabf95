import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudiag.errors import UsageError
from gpudiag.service.kinds import plan_schema, run_kinds

KINDS = run_kinds(("preflight", "nccl-test", "bandwidth", "train"))


def test_only_commands_that_there_are_can_be_run():
    assert set(run_kinds(("nccl-test", "list"))) == {"nccl-test"}


def test_a_plan_becomes_flags_and_a_document():
    kind = KINDS["nccl-test"]
    plan = kind.parse_plan({"op": ["all_gather"], "nproc": 2, "timeout_seconds": 30})
    assert plan.to_argv() == ("--nproc", "2", "--op", "all_gather", "--timeout", "30.0")
    assert "inject" not in kind.plan_document(plan)
    assert kind.deadline_of(plan) == 90.0


def test_names_may_come_as_a_request_holds_them():
    assert KINDS["train"].parse_plan({"strategy": ("ddp", "fsdp2")}).strategy == ("ddp", "fsdp2")
    with pytest.raises(UsageError):
        KINDS["train"].parse_plan({"strategy": ("ddp", "../fsdp2")})


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_has_what_a_request_may_say_and_nothing_else(kind):
    schema = plan_schema(KINDS[kind])
    assert "inject" not in schema["properties"]
    defaults = {
        name: one["default"] for name, one in schema["properties"].items() if one["default"] is not None
    }
    KINDS[kind].parse_plan(defaults)


@given(st.text(min_size=1, max_size=80))
def test_no_text_of_a_request_is_taken_for_a_flag_or_a_path(text):
    try:
        plan = KINDS["preflight"].parse_plan({"only": [text]})
    except UsageError:
        return
    assert not text.startswith("-")
    assert "/" not in text
    assert "\n" not in text
    assert plan.to_argv() == ("--only", text)


@pytest.mark.parametrize("name", ["inject", "python", "store", "output", "__class__", ""])
def test_what_is_for_the_command_line_stays_there(name):
    with pytest.raises(UsageError):
        KINDS["train"].parse_plan({name: "x"})


def test_force_reaches_the_command_that_would_leave_gpus_in_use_alone():
    assert KINDS["bandwidth"].parse_plan({}, force=True).to_argv() == ("--force",)
    assert "--force" in KINDS["preflight"].parse_plan({"level": "quick"}, force=True).to_argv()
    assert "--force" not in KINDS["preflight"].parse_plan({"level": "instant"}, force=True).to_argv()
    assert KINDS["nccl-test"].parse_plan({}, force=True) == KINDS["nccl-test"].parse_plan({})


def test_every_preset_is_a_plan_that_can_be_asked_for():
    kinds = run_kinds(("preflight", "nccl-test", "bandwidth", "train", "hang"))
    assert [len(kind.plan_type.PRESETS) for kind in kinds.values()] == [3, 3, 2, 3, 0]
    for kind in kinds.values():
        plans = [kind.parse_plan(preset.fields).to_argv() for preset in kind.plan_type.PRESETS]
        assert len(set(plans)) == len(plans)
        assert all(preset.means for preset in kind.plan_type.PRESETS)


def test_a_plan_that_is_sent_back_whole_is_the_same_plan():
    """ "Run again" sends the document of the plan, in which JSON has made 20.0 a 20."""
    for kind in run_kinds(("preflight", "nccl-test", "bandwidth", "train", "hang")).values():
        document = {
            name: int(value) if isinstance(value, float) else value
            for name, value in kind.plan_document(kind.plan_type()).items()
        }
        assert kind.parse_plan(document) == kind.plan_type()
