"""The simulated card behaves as a card where that differs from a CPU."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from accounting import measured
from accounting.allocator import charge_bounds, segment_bytes
from bench import products
from meta_tests.simulated_card.api import simulated
from meta_tests.simulated_card.caching import MIB, CachingAllocator
from meta_tests.simulated_card.card import KERNEL_S, Card
from prooflops.machine import device as machine
from test_claims.oracles.scalars import Operations


@pytest.fixture
def card() -> Iterator[Card]:
    made = Card(memory_bytes=256 * MIB)
    with simulated(made):
        yield made


def test_a_module_trained_on_the_card_lives_there(card):
    model = torch.nn.Linear(64, 64).to("cuda")
    model(torch.randn(8, 64, device="cuda")).square().mean().backward()
    with torch.no_grad():
        model.weight -= 0.1 * model.weight.grad
    moment = torch.zeros_like(model.weight)
    places = {x.device for x in (model.weight, model.weight.T, model.weight.grad, moment)}
    assert places == {torch.device("cuda", 0)}


def test_tensors_of_the_card_and_the_host_do_not_mix(card):
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3, device="cuda") + torch.ones(3)
    with pytest.raises(TypeError, match=r"Use Tensor\.cpu\(\)"):
        torch.ones(3, device="cuda").numpy()
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).device.type == "cuda", "a number may come from the host"


def test_gradients_cross_back_to_the_host(card):
    x = torch.ones(3, requires_grad=True)
    (2 * x.to("cuda")).sum().backward()
    assert x.grad.device.type == "cpu"
    assert x.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("act", "waits"),
    [
        (lambda x: x + 1, 0),
        (lambda x: x.T.reshape(-1), 0),
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).all()), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: x.tolist(), 1),
        (lambda x: Operations().array(x), 1),  # of the claims' oracles: one transfer for all elements
        (lambda x: torch.equal(x, x.clone()), 1),
        (lambda x: torch.allclose(x, x + 1), 1),
        (lambda x: x[x > 0], 1),
        (lambda x: x.nonzero(), 1),
        (lambda x: torch.cuda.synchronize(), 1),
        (lambda x: torch.tensor([1.0], device="cuda"), 1),
    ],
)
def test_the_host_waits_where_it_reads(act, waits, card):
    x = torch.ones(4, 4, device="cuda")
    before = card.counts.synchronisations
    act(x)
    assert card.counts.synchronisations - before == waits


def test_events_time_the_card_and_not_the_cpu(card):
    a = torch.randn(256, 256, device="cuda")
    times = measured.time(lambda: a @ a, "cuda", warmup=1, rounds=5).times_s
    assert max(times) < 2e-5, f"a product of 256³ took {max(times)} s, the CPU's time"
    assert max(times) == pytest.approx(min(times), rel=1e-6), "the card's time depends on this machine"


def test_what_the_cache_holds_is_read_faster_than_what_it_lost(card):
    x, beyond = torch.ones(2**22, device="cuda"), torch.ones(card.cache_bytes // 4 + 1, device="cuda")

    def seconds(before: torch.Tensor) -> float:
        timer = measured.clock("cuda")
        before.add_(1)
        start = timer()
        x.sum()
        return timer() - start

    from_memory, from_cache = seconds(beyond), seconds(x)
    assert from_memory > 1.5 * from_cache, f"16 MiB took {from_memory} s after a flush, {from_cache} s from the cache"


@pytest.mark.parametrize(("pinned", "waits"), [(True, 0), (False, 1)])
def test_a_copy_to_the_host_waits_unless_its_target_is_pinned(card, pinned, waits):
    source, target = torch.ones(2**22, device="cuda"), torch.zeros(2**22, pin_memory=pinned)
    timer, before = measured.clock("cuda"), card.counts.synchronisations
    start = timer()
    target.copy_(source, non_blocking=True)
    assert card.counts.synchronisations - before == waits
    took_s = timer() - start
    assert (took_s > 5e-4) is not pinned, f"16 MiB took {took_s} s: pageable memory is copied at 20 GB/s, pinned at 50"


def test_a_copy_to_pinned_memory_arrives_late(card):
    source, target = torch.ones(4, device="cuda"), torch.zeros(4).pin_memory()
    torch.cuda._sleep(10**9)
    target.copy_(source, non_blocking=True)
    early = target.tolist()
    torch.cuda.synchronize()
    assert (early, target.tolist()) == ([0] * 4, [1] * 4)


def test_the_clock_falls_after_a_time_of_work(card):
    card.throttles_after_s = 0.01
    before = measured.time(lambda: torch.cuda._sleep(10**6), "cuda", warmup=0, rounds=3).median_s
    torch.cuda._sleep(10**8)
    after = measured.time(lambda: torch.cuda._sleep(10**6), "cuda", warmup=0, rounds=3).median_s
    assert after / before == pytest.approx(1 / 0.6, rel=0.01)


def test_a_sticky_error_fails_all_that_follows(card):
    x = torch.ones(3, device="cuda")
    card.error = "CUDA error: an illegal memory access was encountered"
    for act in (lambda: x + 1, torch.cuda.synchronize, lambda: torch.ones(1, device="cuda")):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            act()


def test_memory_ends_and_comes_back(card):
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
        torch.empty(2**40, device="cuda")
    before = torch.cuda.memory_allocated()
    kept = torch.ones(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4096
    del kept
    assert torch.cuda.memory_allocated() == before


def test_the_allocator_charges_what_the_formulas_say():
    allocator = CachingAllocator(2**30)
    for request in (1, 512, 513, MIB, MIB + 1, 3 * MIB, 11 * MIB, 31 * MIB + 5):
        allocator.empty_cache()
        held, reserved = allocator.current("allocated_bytes"), allocator.current("reserved_bytes")
        block = allocator.allocate(request)
        low, high = charge_bounds(request)
        assert low <= allocator.current("allocated_bytes") - held <= high
        assert allocator.current("reserved_bytes") - reserved == segment_bytes(request)
        allocator.free(block)
        assert allocator.allocate(request).address == block.address, "a freed block is used again"
        allocator.free(block)
    allocator.empty_cache()
    assert allocator.current("reserved_bytes") == 0


def test_int8_is_multiplied_at_full_rate(card):
    case = products.product("int8", 1024, 1024, 1024, card.device)
    seconds = measured.time(case.multiply, "cuda", warmup=1, rounds=3).median_s
    share = case.work.flops / (seconds - 2 * KERNEL_S) / card.rates.flop_per_s["int8"]
    assert share > 0.5, f"int8 is multiplied at {share:.2f} of its rate: does the second operand lie by columns?"


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3", "fp32"])
def test_a_product_holds_at_most_the_bytes_asked_for(card, dtype):
    case = products._product(dtype, 1024, 1024, 512, card.device)
    peak = torch.cuda.max_memory_allocated()
    assert case.a.nbytes + case.b.nbytes <= peak <= products.product_bytes(dtype, 1024, 1024, 512)


def test_an_amd_device_has_its_own_capability_formats_and_no_tf32():
    with simulated(Card("MI300X", memory_bytes=256 * MIB)) as kernels:
        device = kernels.card.device
        assert machine.unmet("sm>=8.9", device) == "needs sm>=8.9, this device has 8"
        assert machine.accelerator(device).label == "MI300X"
        with pytest.raises(products.Unsupported, match="HIPBLASLT_ALLOW_TF32=1"):
            products.product("tf32", 64, 64, 64, device)
