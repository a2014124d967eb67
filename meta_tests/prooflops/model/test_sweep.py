"""The largest size that fits: found exactly, close to the prediction, and without a step far beyond the limit."""

from collections.abc import Callable

import pytest
import torch

from meta_tests.conftest import ROOT
from prooflops.machine import device as machine
from prooflops.model import sweep
from prooflops.model.factory import ModelError
from prooflops.model.sweep import default_of, largest, memory_limit, sweep_of
from prooflops.model.user_model import load_user_model

CPU = torch.device("cpu")
LIMIT = 10**6


@pytest.mark.parametrize("growth", [2, 64])
@pytest.mark.parametrize(
    "peak",
    [lambda n: 700 + 31 * n, lambda n: 10 * n * n + 5, lambda n: max(900_000, 100 * n), lambda n: 31 * (n // 8) * 8],
)
def test_the_largest_size_is_found_without_a_step_far_beyond_the_limit(peak: Callable[[int], int], growth: int) -> None:
    asked: list[int] = []

    def asking(size: int) -> int:
        asked.append(size)
        return peak(size)

    found, beyond = largest(asking, 4, LIMIT, growth)
    assert found
    assert beyond
    assert peak(found) <= LIMIT < peak(beyond)
    assert beyond - found <= max(1, 0.01 * found)
    assert len(asked) <= sweep.MOST_TRIALS
    assert growth > 2 or max(map(peak, asked)) <= 4 * LIMIT


def test_a_first_size_that_does_not_fit_and_a_size_that_cannot_run() -> None:
    assert largest(lambda size: LIMIT + size, 4, LIMIT, 2) == (None, 4)
    assert largest(lambda size: size if size <= 100 else None, 4, LIMIT, 2) == (100, 101), "such as the last position"


def test_the_found_batch_is_the_predicted_one() -> None:
    found = sweep_of(load_user_model("meta_tests.user_models.own:sized", ROOT, CPU), "batch", 2**20)
    assert found.found
    assert found.predicted == pytest.approx(found.found, rel=0.02)
    assert (found.limit_bytes, found.limit_of, found.unit) == (2**20, "--model-memory", "examples")
    assert found.trials[0].size == 8
    for trial in found.trials:
        assert (trial.seconds is not None) == (trial.size <= found.found)
        assert trial.tokens in (trial.size, 0)


def test_a_length_beyond_the_last_position_says_so() -> None:
    found = sweep_of(load_user_model("meta_tests.user_models.own:positions", ROOT, CPU), "length", 2**20)
    assert (found.found, found.next_larger) == (4, 5)
    assert "IndexError: index out of range" in next(each.why_not for each in found.trials if each.size == 5)


def test_an_argument_that_the_factory_does_not_have_is_refused() -> None:
    with pytest.raises(ModelError, match=r"--model-sweep length: must be .* one of batch"):
        default_of(load_user_model("meta_tests.user_models.own:sized", ROOT, CPU), "length")
    with pytest.raises(ModelError, match=r"none: give it one, such as def factory\(batch=8\)"):
        default_of(load_user_model("meta_tests.user_models.own:deep", ROOT, CPU), "batch")


def test_the_users_machine_is_never_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "free_bytes", lambda _: 1000)
    assert memory_limit(CPU, None) == (500, "half of the host's free memory")
    assert memory_limit(CPU, 400) == (400, "--model-memory")
    assert memory_limit(torch.device("cuda"), None) == (1000, "free on cuda")
