"""Runs claims and benchmarks on the simulated card: `-p meta_tests.card.plugin --device
cuda`.

A test that has the device under test, passes, and never touched the card has measured the CPU: it
fails.
"""

import functools
import re
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from unittest.mock import patch

import pytest

from meta_tests.card.api import simulated
from meta_tests.card.caching import MIB
from meta_tests.card.card import Card
from meta_tests.card.kernels import Kernels
from prooflops import timing

# Fixtures by which a test says what it measures.
ON_THE_DEVICE = {*"device cuda memory_device measure speed".split()}
# Tests that need no more than the name of the device: of meta tensors, of what torch says of it.
NAMES_ALONE = re.compile(
    r"\[meta\]|test_torch_cuda_amp_warns_of_its_end|test_torch_and_the_specifications_agree"
)
KERNELS = pytest.StashKey[Kernels]()
_SIMULATED = pytest.StashKey[ExitStack]()


def pytest_addoption(parser):
    group = parser.getgroup("simulated card")
    group.addoption("--card-memory", metavar="MIB", type=int, default=8192, help="default: 8192")
    group.addoption(
        "--card-share",
        metavar="NAME=SHARE",
        action="append",
        default=[],
        help="lowers the rate of a dtype, or of memory, link, launch, clock; may be repeated",
    )


def small_steps():
    """Training steps that learn, and that a CPU has the time for."""
    from accounting.models import GPT2_SMALL, DeepLinear
    from bench.models import reduced
    from bench.training import Workload

    transformer = Workload(reduced(GPT2_SMALL), batch=4, sequence=32)
    return {
        "deep-linear": Workload(DeepLinear(dim=128, layers=4), batch=64),
        "transformer": transformer,
    }


@contextmanager
def time_alone(card):
    """Has comparisons of times, which look at no value, leave large kernels uncomputed, and
    benchmarks be short.
    """
    from prooflops.suite import speed

    def without_values(timed):
        @functools.wraps(timed)
        def call(*arguments, **options):
            before = card.only_timed
            card.only_timed = not any(map(learns, arguments))
            try:
                return timed(*arguments, **options)
            finally:
                card.only_timed = before

        return call

    def briefly(ratio):
        """The card's clock has next to no noise: so few pairs of short blocks tell what 61 tell
        elsewhere.
        """
        return lambda *arguments, **options: ratio(*arguments, **{**options, "pairs": 9})

    def learns(argument):
        """Whether it is a step of `bench.training`, whose loss is looked at after all rounds."""
        return type(getattr(argument, "function", argument)).__name__ == "Step"

    with ExitStack() as stack:
        stack.enter_context(patch.object(speed.Speed, "ratio", briefly(speed.Speed.ratio)))
        stack.enter_context(patch.object(speed, "BLOCK_S", 3e-5))
        places = [(speed.Speed, "seconds"), (timing, "time")]
        # A house of the tests has no benchmarks.
        if find_spec("bench.rounds"):
            from bench import cache, ceilings, launch, measuring, rounds, search, training
            from bench import timing as bench_timing

            of_rounds = ("call_s", "warm_up", "preparation_s")
            places += [(search, "calls_s"), (cache, "check_flush_worked"), (launch, "figures")]
            places += [
                (ceilings.Ceilings, name)
                for name in ("_search", "burst_s", "rest_before", "remeasure")
            ]
            places += [
                (measuring, "run_rounds"),
                *((bench_timing.CallTimer, name) for name in of_rounds),
            ]
            # The card takes the same time in each round, and this Python some 50 times as long for
            # it.
            short = rounds.Pace(0.0002, 0.0005, 0.002, 0.0001, width=0.04, most_rounds=10)
            stack.enter_context(patch.dict(rounds.PACES, quick=short))
            stack.enter_context(patch.object(rounds, "SETTLED_S", (0.002, 0.01)))
            stack.enter_context(patch.object(rounds, "RESETTLED_S", (0.002, 0.01)))
            stack.enter_context(patch.object(ceilings, "REST_S", 0.002))
            stack.enter_context(patch.object(bench_timing, "SHORTEST_ROUND_S", 1e-5))
            stack.enter_context(patch.object(bench_timing, "SHORTEST_DEVICE_ROUND_S", 2e-5))
            for sizes in (training.ON_ACCELERATOR, training.IN_FP32_ON_ACCELERATOR):
                stack.enter_context(patch.dict(sizes, small_steps()))
        for place, name in places:
            stack.enter_context(patch.object(place, name, without_values(getattr(place, name))))
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Before the suite is imported, which takes the host's clock when it is."""
    options = early_config.known_args_namespace
    stack = early_config.stash[_SIMULATED] = ExitStack()
    card = Card(memory_bytes=options.card_memory * MIB)
    for name, share in (each.split("=") for each in options.card_share):
        card.rates.lower(name, float(share))
    early_config.stash[KERNELS] = stack.enter_context(simulated(card))
    stack.enter_context(time_alone(card))


def pytest_unconfigure(config):
    if _SIMULATED in config.stash:
        config.stash[_SIMULATED].close()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef, request):
    """Remembers which fixtures worked on the card, for the tests that share them."""
    card = request.config.stash[KERNELS].card
    before = card.counts.operations
    try:
        return (yield)
    finally:
        fixturedef.touched_card = card.counts.operations > before


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item):
    card = item.config.stash[KERNELS].card
    before = card.counts.operations
    value = yield
    if card.counts.operations == before and not touches_the_card_otherwise(item):
        pytest.fail(
            "the test has the device under test, but never touched it: it measured the CPU",
            pytrace=False,
        )
    return value


def touches_the_card_otherwise(item):
    """Whether a fixture worked on the card, or the test need not."""
    if not ON_THE_DEVICE & {*item._fixtureinfo.argnames} or NAMES_ALONE.search(item.name):
        return True
    fixtures = [made[-1] for made in item._fixtureinfo.name2fixturedefs.values()]
    return any(getattr(fixture, "touched_card", False) for fixture in fixtures)
