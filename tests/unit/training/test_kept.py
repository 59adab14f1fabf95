"""What a checkpoint gave back is told by name: every kind of thing that it must hold."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from gpudiag.training.tensors import differing_names, digest_optimizer, digest_values, names_by_id  # noqa: E402


def trained(optimizer_type: Any) -> tuple[Any, Any]:
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    settings = {"lr": 0.1, "momentum": 0.9} if optimizer_type is torch.optim.SGD else {"lr": 0.1}
    optimizer = optimizer_type(model.parameters(), **settings)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize(
    ("optimizer_type", "key"),
    [(torch.optim.SGD, "momentum_buffer"), (torch.optim.Adam, "exp_avg_sq"), (torch.optim.Adam, "step")],
)
def test_state_that_was_lost_or_changed_is_named(optimizer_type: Any, key: str) -> None:
    model, optimizer = trained(optimizer_type)
    names = names_by_id(model.named_parameters())
    written = digest_optimizer(optimizer, names)
    assert differing_names(written, digest_optimizer(optimizer, names)) == ()
    optimizer.state[model.bias][key] = optimizer.state[model.bias][key] + 1
    assert differing_names(written, digest_optimizer(optimizer, names)) == (f"optimizer.bias.{key}",)
    del optimizer.state[model.bias][key]
    assert differing_names(written, digest_optimizer(optimizer, names)) == (f"optimizer.bias.{key}",)


def test_a_learning_rate_of_its_own_is_named_and_a_list_is_as_good_as_a_tuple() -> None:
    _, optimizer = trained(torch.optim.Adam)
    written = digest_optimizer(optimizer, {})
    optimizer.param_groups[0]["betas"] = list(optimizer.param_groups[0]["betas"])
    assert differing_names(written, digest_optimizer(optimizer, {})) == ()
    optimizer.param_groups[0]["lr"] = 0.2
    assert differing_names(written, digest_optimizer(optimizer, {})) == ("optimizer.group0.lr",)


def test_a_generator_that_was_drawn_from_and_another_step_are_named() -> None:
    before = digest_values("script", {"step": 4, "generator": torch.get_rng_state()})
    torch.rand(1)
    after = digest_values("script", {"step": 5, "generator": torch.get_rng_state()})
    assert differing_names(before, after) == ("script.generator", "script.step")
