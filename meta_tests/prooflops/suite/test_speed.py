"""A claim about speed has three answers, and the interval behind them covers as often as it says."""

import random
from collections.abc import Callable, Iterator
from itertools import count, cycle

import pytest
import torch
from _pytest.outcomes import Failed, Skipped

from accounting.measured import one_thread
from prooflops.suite.speed import Speed


@pytest.fixture
def recorded() -> list[str]:
    return []


@pytest.fixture
def assert_slower(monkeypatch: pytest.MonkeyPatch, recorded: list[str]) -> Callable[..., object]:
    """Compares two functions whose times are made up: `slow()` takes the next of `times`, `fast()` one second."""

    def compared(times: Iterator[float], **options: float) -> object:
        speed = Speed(torch.device("cpu"), recorded.append)
        monkeypatch.setattr(speed, "seconds", lambda function, calls=1: function())
        return speed.assert_slower(lambda: next(times), lambda: 1.0, "A over B", **options)

    return compared


def noisy(centre: float, spread: float) -> Iterator[float]:
    generator = random.Random(0)
    return (centre * generator.lognormvariate(0, spread) for _ in count())


def test_a_clear_difference_holds_and_is_recorded(assert_slower: Callable[..., object], recorded: list[str]) -> None:
    assert_slower(noisy(1.5, 0.05))
    assert recorded[0].startswith("A over B: 1.5")


def test_a_clear_contradiction_fails_with_the_ratio(assert_slower: Callable[..., object]) -> None:
    with pytest.raises(Failed, match=r"A over B: the ratio of times is 0.5\dx \(.*\), but should be above 1$"):
        assert_slower(noisy(0.5, 0.05))


def test_a_ratio_above_its_upper_limit_fails(assert_slower: Callable[..., object]) -> None:
    with pytest.raises(Failed, match="should be above 1 and below 2"):
        assert_slower(noisy(3.0, 0.05), at_most=2.0)


@pytest.mark.parametrize("centre", [1.0, 1.02, 0.98])
def test_an_effect_within_the_noise_is_neither(assert_slower: Callable[..., object], centre: float) -> None:
    with pytest.raises(
        Skipped, match=r"noise \(\d+ %\) leaves open on which side of 1 the ratio of times is: A over B"
    ):
        assert_slower(noisy(centre, 0.5))


@pytest.mark.parametrize("centre", [1.0, 1.01, 0.98])
def test_the_same_time_measured_well_is_no_noise(assert_slower: Callable[..., object], centre: float) -> None:
    times = (centre * factor for factor in cycle((0.97, 1.03)))
    with pytest.raises(Failed, match=r"A over B: the ratio of times is .*, but should be above 1$"):
        assert_slower(times)
    assert_slower(noisy(1.02, 0.001))  # a small difference is one where the whole interval shows it
    with pytest.raises(Skipped, match=r"noise \(1 %\) leaves open on which side of 1.2 "):
        assert_slower(noisy(1.2, 0.02), at_least=1.2)


def test_one_distorted_comparison_does_not_fail_a_claim(
    assert_slower: Callable[..., object], recorded: list[str]
) -> None:
    calls = count()
    # Two calls warm up, then 61 pairs: the first comparison is distorted, the second is not.
    times = (0.1 if next(calls) < 63 else 2.0 for _ in count())
    assert_slower(times)
    assert recorded == ["A over B: 2.00x (2.00 to 2.00 at 99%, 61 pairs)"]


def test_pairs_are_interleaved_and_alternate_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    speed = Speed(torch.device("cpu"), print)
    speed.ratio(lambda: order.append("A"), lambda: order.append("B"), pairs=4, block_s=1e-12)
    assert "".join(order[4:]) == "ABBAABBA"


def test_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


def test_a_doubled_loop_takes_longer(recorded: list[str]) -> None:
    speed = Speed(torch.device("cpu"), recorded.append)
    speed.assert_slower(lambda: sum(range(40_000)), lambda: sum(range(20_000)), "twice the loop", at_least=1.2)
