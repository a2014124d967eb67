"""Claims about timing: clocks that wait for the device, and shares of the peak without them."""

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
import torch

from accounting.flops import matmul_flops
from accounting.roofline import mfu
from prooflops import timing
from test_claims.oracles.kernels import product
from test_claims.oracles.messages import at_least, at_most, between, equal

# Half the peak, or less where a kernel sleeps longer.
KERNEL_S = 0.003
KERNEL_FLOPS = 3 * 10**9
STANDIN_PEAK = 2e12


class Event:
    """A moment in a stream behind the host, with what clocks need of torch.cuda.Event."""

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
    """A stand-in for a CUDA device: a thread that runs kernels in order, with its events."""
    with ThreadPoolExecutor(1) as stream:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stream)
        yield stream


@pytest.mark.claim("mfu.recipe")
@pytest.mark.timed
def test_a_timer_that_does_not_wait_reports_an_impossible_share(standin, record_figure):
    share = 0.0
    # A busy host can delay a launch, not all of them.
    for _ in range(100):
        start = time.perf_counter()
        standin.submit(lambda: time.sleep(KERNEL_S))
        share = max(share, mfu(KERNEL_FLOPS, time.perf_counter() - start, STANDIN_PEAK))
        if share > 1:
            break
    record_figure(f"launch timed on a stand-in device: {share:.0f} times the peak")
    at_least(share, 1, "mfu from a timer that does not wait")


@pytest.mark.claim("mfu.recipe")
@pytest.mark.parametrize("seconds", [0.003, 0.008, 0.02])
@pytest.mark.timed
def test_the_devices_own_clock_reports_the_share_of_each_kernel(standin, seconds):
    ran_s = []

    def kernel():
        start = time.perf_counter()
        # The last trial is the longest, and decides nothing.
        time.sleep(5 * seconds if len(ran_s) == 9 else seconds)
        ran_s.append(time.perf_counter() - start)

    rounds = timing.time(lambda: standin.submit(kernel), "cuda", warmup=1, rounds=9)
    share = mfu(KERNEL_FLOPS, rounds.median_s, STANDIN_PEAK)
    should = KERNEL_FLOPS / median(ran_s[1:]) / STANDIN_PEAK

    between(share, 0.8 * should, should, "mfu by the device's clock")


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

    at_least(cold.times_s[0], 20 * KERNEL_S, "seconds of a cold first call")
    equal((len(prepared), len(warm.times_s)), (6, 5), "calls, and those that are timed")


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

    at_most(launch, true / 2, "seconds of the launch")

    bound = bound_flop_per_s("tf32") or bound_flop_per_s("fp32")
    if bound is not None:
        at_most(mfu(flops, true, bound), 1, "mfu by a synchronised time")
