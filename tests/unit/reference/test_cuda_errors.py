"""Every error of CUDA belongs to one known failure, and is recognised in each form that programs print."""

from gpudiag.explain.recipe import explain_name, explain_text
from gpudiag.reference.cuda_errors import cuda_errors, find_cuda_error
from gpudiag.reference.failures import failures
from tests.walking import walk


def failure_of(number):
    return next(name for name, failure in failures().items() if number in failure.cuda_errors)


def told_of(line):
    """The failures that one of the patterns made from the table finds in a line."""
    return {
        name
        for name, failure in failures().items()
        if failure.cuda_errors and any(pattern.search(line) for pattern in failure.patterns)
    }


def of_the_text(error):
    """The failures of the errors with this text: some texts stand for two errors."""
    return {failure_of(other.number) for other in cuda_errors().values() if other.text == error.text}


def test_every_error_belongs_to_one_failure():
    told = sorted(number for failure in failures().values() for number in failure.cuda_errors)
    assert told == sorted(cuda_errors())
    assert len(told) > 100


@walk(cuda_errors().values(), lambda error: str(error.number))
def test_an_error_is_recognised_by_name_number_and_text(error):
    names = [name for name in (error.driver_name, error.runtime_name) if name]
    for form in (
        *(f"jaxlib.XlaRuntimeError: INTERNAL: {name}: it failed" for name in names),
        f"RuntimeError: CUDA error: {error.number}",
        f"what():  cuda runtime error ({error.number}) : it failed",
    ):
        assert told_of(form) == {failure_of(error.number)}, form
    if error.text:
        assert told_of(f"RuntimeError: CUDA error: {error.text}") == of_the_text(error)


def test_a_log_with_an_error_of_each_failure_shows_that_failure():
    for name, failure in failures().items():
        if failure.cuda_errors:
            error = cuda_errors()[failure.cuda_errors[0]]
            answer = explain_text(f"RuntimeError: {error.driver_name or error.runtime_name}: it failed\n")
            assert [one.explanation.topic for one in answer.sightings] == [name]


@walk(cuda_errors().values(), lambda error: str(error.number))
def test_an_error_is_explained_by_its_number_and_its_names(error):
    explained = explain_name(f"cuda-{error.number}")
    assert explained.look_also == (failure_of(error.number),)
    for name in filter(None, (error.driver_name, error.runtime_name)):
        assert find_cuda_error(name) is error
        assert explain_name(name) == explained


def test_lines_that_only_count_or_name_errors_are_no_failures():
    for line in (
        "INFO memcheck: CUDA errors: 0",
        "CUDA error checking is on, 2 streams",
        "INFO bench: cudaErrorHandler installed, CUDA_ERROR_LEVEL=2",
        "step 700: loss 1.2, CUDA events: 719",
    ):
        assert not told_of(line)
