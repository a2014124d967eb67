"""Clocks that must wait for the device, and what a share of the peak is without."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
import torch

from accounting.flops import matmul_flops
from accounting.roofline import mfu
from prooflops import timing
from test_claims.oracles.kernels import product

# Half the peak, or less where a kernel sleeps longer.
KERNEL_S = 0.003
KERNEL_FLOPS = 3 * 10**9
STANDIN_PEAK = 2e12


class Event:
    """A moment in a stream that works behind the host, with the methods of torch.cuda.Event that a
    clock needs.
    """

    def __init__(self, enable_timing=True):
        self.reached = None

    def record(self, stream):
        self.reached = stream.submit(time.perf_counter)

    def synchronize(self):
        self.reached.result()

    def elapsed_time(self, later):
        return 1e3 * (later.reached.result() - self.reached.result())


@pytest.fixture
def standin(monkeypatch):
    """A stand-in for a CUDA device: a thread that runs kernels in order, and torch.cuda's events in
    it.
    """
    with ThreadPoolExecutor(1) as stream:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        yield stream


@pytest.mark.claim("mfu.recipe")
@pytest.mark.timed
def test_a_timer_that_does_not_wait_reports_an_impossible_share(standin, record_figure):
    share, launches = 0.0, 0
    while share <= 1 and launches < 100:  # a busy host can hold a launch up, not all of them
        start = time.perf_counter()
        standin.submit(lambda: time.sleep(KERNEL_S))
        share = max(share, mfu(KERNEL_FLOPS, time.perf_counter() - start, STANDIN_PEAK))
        launches = launches + 1
    record_figure(f"launch timed on a stand-in device: {share:.0f} times the peak")
    assert share > 1, (
        f"mfu={share:.2f} from a timer that does not wait, but should be impossible, above 1"
    )


@pytest.mark.claim("mfu.recipe")
@pytest.mark.parametrize("seconds", [0.003, 0.008, 0.02])
@pytest.mark.timed
def test_the_devices_own_clock_reports_the_share_of_each_kernel(standin, seconds):
    ran_s = []

    def kernel():
        start = time.perf_counter()
        time.sleep(
            seconds * (5 if len(ran_s) == 9 else 1)
        )  # longest in the last trial, which shall not decide
        ran_s.append(time.perf_counter() - start)

    rounds = timing.time(lambda: standin.submit(kernel), "cuda", warmup=1, rounds=9)
    share = mfu(KERNEL_FLOPS, rounds.median_s, STANDIN_PEAK)
    should = KERNEL_FLOPS / median(ran_s[1:]) / STANDIN_PEAK
    assert 0.8 * should < share <= should, (
        f"mfu={share:.3f} by the device's clock, but should be {should:.3f}"
    )


@pytest.mark.claim("mfu.recipe")
@pytest.mark.timed
def test_a_first_call_that_prepares_itself_is_left_to_the_warm_up(standin):
    prepared = []

    def kernel():
        time.sleep(KERNEL_S if prepared else 20 * KERNEL_S)
        prepared.append(True)

    cold = timing.time(lambda: standin.submit(kernel), "cuda", warmup=0, rounds=5)
    prepared.clear()
    warm = timing.time(lambda: standin.submit(kernel), "cuda", warmup=1, rounds=5)
    assert cold.times_s[0] >= 20 * KERNEL_S, (
        f"the first call took {cold.times_s[0]} s, and should have been timed"
    )
    assert len(prepared) == 6, (
        f"{len(prepared)} calls were made, but should be 5 trials behind one that warms up"
    )
    first = [warm.times_s[0]]
    while min(first) >= 20 * KERNEL_S and len(first) < 5:  # a busy host can hold one trial up
        prepared.clear()
        first.append(
            timing.time(lambda: standin.submit(kernel), "cuda", warmup=1, rounds=1).times_s[0]
        )
    assert min(first) < 20 * KERNEL_S, (
        f"the first trial took {min(first)} s at least, but should not prepare anything"
    )


@pytest.mark.claim("mfu.recipe")
@pytest.mark.needs("cuda")
@pytest.mark.timed
def test_on_a_gpu_the_launch_alone_passes_for_a_share_above_one(
    device, bound_flop_per_s, record_figure
):
    multiply = product(device, "fp32", 8192)
    flops = matmul_flops(8192, 8192, 8192)
    true = min(timing.time(multiply, device, warmup=2, rounds=5).times_s)
    start = time.perf_counter()
    multiply()
    launch = time.perf_counter() - start
    torch.cuda.synchronize(device)
    record_figure(f"launch {launch * 1e6:.0f} us, product {true * 1e6:.0f} us")
    assert launch < true / 2, (
        f"launching took {launch} s, but should be far below the {true} s of the product"
    )
    bound = bound_flop_per_s("tf32") or bound_flop_per_s("fp32")
    if bound is not None:
        assert mfu(flops, true, bound) <= 1, "a synchronised time should give a possible share"
