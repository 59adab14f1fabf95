"""Training as a preflight sees it: which check judges what, and what is left out."""

from gpudiag.checks.runner import run_checks
from gpudiag.checks.training.strategy import train_ddp, train_strategies
from gpudiag.model.context import Context
from gpudiag.model.finding import CheckResult, Outcome
from gpudiag.model.reading import Reading
from gpudiag.model.report import Measures
from gpudiag.model.training import StrategyMeasurement
from tests.unit.model.nouns import make_device, make_snapshot
from tests.unit.training.measurements import make_measurement, make_proof, make_start

WRONG = make_measurement(starts=(make_start(0, world_size=1), make_start(1, world_size=1)))
SHARDED = make_measurement(
    strategy="fsdp2",
    starts=tuple(make_start(rank, parameters_here=50) for rank in (0, 1)),
    proofs=tuple(make_proof(rank, optimizer_state_here=50) for rank in (0, 1)),
)


def judge(training: Reading[tuple[StrategyMeasurement, ...]]) -> list[CheckResult]:
    context = Context(make_snapshot(make_device(0)), Measures(training=training))
    return list(run_checks(context, (train_ddp, train_strategies)))


def outcomes(training: Reading[tuple[StrategyMeasurement, ...]]) -> list[Outcome]:
    return [result.outcome for result in judge(training)]


def test_each_check_judges_its_own_strategies() -> None:
    assert outcomes((make_measurement(), SHARDED)) == [Outcome.PASS, Outcome.PASS]
    assert outcomes((WRONG, SHARDED)) == [Outcome.FAIL, Outcome.PASS]
    ddp, others = judge((WRONG,))
    assert [finding.code for finding in ddp.findings] == ["train.not_parallel"]
    assert ddp.findings[0].message.startswith("ddp: ")
    assert (others.outcome, others.reason) == (Outcome.SKIP, "no other strategy is installed")
