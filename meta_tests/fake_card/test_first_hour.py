"""What reading torch's sources said would go wrong in the first hour on a card: red on the fake one as it was.

Where a card shows the difference by itself, `as_it_was` plants the code before.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch

from bench.cache import flush_bytes
from bench.call_inspection import _Reads
from bench.products import DTYPES, _product, product_bytes
from bench.streams import memory_size
from bench.test_matmul import SHAPES, SIDES
from bench.test_training import LECTURE
from bench.training import ON_ACCELERATOR, step_bytes, workload
from meta_tests.conftest import ROOT, ChildRun, House, new_house
from meta_tests.fake_card.api import plugged
from meta_tests.fake_card.caching import MIB
from meta_tests.fake_card.card import Card
from prooflops.machine import device as machine
from prooflops.machine.caches import caches_of
from prooflops.suite.sizing import Sizing
from prooflops.suite.speed import Speed
from test_claims import conftest as claims
from test_claims.oracles import devices as oracle


@pytest.fixture
def card(request: pytest.FixtureRequest) -> Iterator[Card]:
    """A card with 256 MiB, of the label that the test gives."""
    made = Card(getattr(request, "param", "H100 SXM5 80GB"), memory_bytes=256 * MIB)
    with plugged(made):
        machine.name.cache_clear()
        yield made
    machine.name.cache_clear()


as_it_was = pytest.mark.parametrize("was", [False, True], ids=["now", "as it was"])


# ---- items 5, 6, 7: whole runs -----------------------------------------------------------------------------------

DEMO = """
import torch

@pytest.mark.claim("demo.reads")
def test_reads(device):
    assert torch.ones(3, device=device).sum().item() == 3

@pytest.mark.claim("demo.full")
def test_takes_more_than_there_is(device):
    torch.empty(2**40, device=device)

@pytest.mark.claim("demo.crash")
def test_crashes(device):
    {}[torch.ones(1, device=device).item()]

@pytest.mark.claim("demo.wrong")
def test_is_refuted(device):
    assert torch.ones(1, device=device).item() == 2

@pytest.mark.claim("demo.elsewhere")
def test_measures_the_cpu(device):
    assert torch.ones(3).sum() == 3

@pytest.mark.claim("demo.lost", "demo.partly")
def test_loses_the_card(device, pytestconfig):
    from meta_tests.fake_card.plugin import KERNELS
    pytestconfig.stash[KERNELS].card.error = "CUDA error: an illegal memory access was encountered"
    torch.ones(3, device=device)

@pytest.mark.claim("demo.partly", "demo.after")
def test_comes_after(device):
    torch.ones(3, device=device)
"""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> ChildRun:
    """Claims that meet what a card does to them, in one run on the fake card."""
    house: House = new_house(tmp_path_factory.mktemp("card"))
    for claim in ("reads", "full", "crash", "wrong", "elsewhere", "lost", "partly", "after"):
        house.claim(f"demo.{claim}")
    house.test(DEMO)
    (house.root / "meta_tests").mkdir()
    (house.root / "meta_tests" / "__init__.py").touch()
    shutil.copytree(ROOT / "meta_tests" / "fake_card", house.root / "meta_tests" / "fake_card")
    return house.run("-p", "meta_tests.fake_card.plugin", "--device", "cuda", "--quick", path=house.root)


@pytest.mark.parametrize(
    ("claim", "verdict", "reason"),
    [
        ("demo.reads", "holds", ""),
        ("demo.full", "error", "OutOfMemoryError: CUDA out of memory"),
        ("demo.crash", "error", "KeyError: 1.0"),
        ("demo.wrong", "FAILS", "assert 1.0 == 2"),
        ("demo.elsewhere", "FAILS", "never touched it: it measured the CPU"),
        ("demo.lost", "error", "the device is lost: AcceleratorError: CUDA error: an illegal memory access"),
    ],
)
def test_item_5_only_a_refuted_claim_fails_on_a_card(demo: ChildRun, claim: str, verdict: str, reason: str) -> None:
    found = demo.verdicts[claim]
    assert found["verdict"] == verdict, found
    assert reason in found["reason"]


def test_item_5_a_sticky_error_ends_the_run_and_keeps_what_was_measured(demo: ChildRun) -> None:
    assert "the device is lost: AcceleratorError" in demo.output
    assert len(demo.verdicts) == 8, "what was measured before is lost"


def test_item_6_a_claim_that_the_lost_card_left_untested_is_not_checked(demo: ChildRun) -> None:
    assert demo.verdicts["demo.after"]["verdict"] == "not checked"
    assert "the device is lost" in demo.verdicts["demo.after"]["reason"]
    assert demo.verdicts["demo.partly"]["verdict"] == "error", "one of its two tests met the lost card"


# ---- items 2, 4, 8 to 11: single functions -----------------------------------------------------------------------


@as_it_was
def test_item_2_a_clone_takes_ten_times_six_views_by_the_cards_bandwidth(card: Card, was: bool) -> None:
    """Timed at 1.5 µs of the host a view: this Python's own time is not a host's with a card."""
    elements = 2**23 if was else Sizing(card.device).bytes_moved_in(5e-4) // 8
    clone_s = card.kernel_s(0, 2 * 4 * elements, "fp32")
    assert (clone_s / (6 * 1.5e-6) > 10) is not was


class KeepsAll(_Reads):
    """Keeps what a call wrote, as it did."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.kept.append(out := super().__torch_dispatch__(func, types, args, kwargs))
        return out


@as_it_was
def test_item_4_looking_at_a_call_keeps_nothing_that_the_call_frees(card: Card, was: bool) -> None:
    x = torch.zeros(8 * MIB, device="cuda")  # 32 MiB of 256

    def call() -> None:
        with KeepsAll() if was else _Reads():
            for _ in range(10):
                x + 1

    if was:
        with pytest.raises(torch.OutOfMemoryError):
            call()
    else:
        call()


@pytest.mark.parametrize("size_bytes", [4 * 2**30, 12 * 2**30])
def test_item_4_operands_are_chosen_by_the_memory_that_is_free(card: Card, size_bytes: int) -> None:
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(size_bytes, dtype=torch.int8, device="cuda")
    fitting = Sizing(card.device).fitting(size_bytes, float)
    assert torch.empty(fitting, dtype=torch.int8, device="cuda").nbytes > card.memory_bytes // 4


@pytest.mark.parametrize("memory_gib", [4.75, 9.75, 8, 24], ids=["MIG 1g.5gb", "MIG 1g.10gb", "8 GB", "24 GB"])
def test_item_4_every_benchmark_fits_a_small_card_or_says_what_it_needs(memory_gib: float) -> None:
    with plugged(Card("RTX 4090", memory_bytes=int(memory_gib * 2**30))) as kernels:
        sizing, memory = Sizing(kernels.card.device), kernels.card.memory_bytes
        for name in ON_ACCELERATOR:  # two of either net need 10.7 and 11.0 GiB with the least batch
            small = memory_gib < 10.7
            with pytest.raises(pytest.skip.Exception, match=r"needs \S+ GiB of free") if small else nullcontext():
                assert step_bytes(workload(name, kernels.card.device, sizing.fitting)) < memory
        for dtype in DTYPES:
            sizing.require(product_bytes(dtype, *SHAPES[f"square-{max(SIDES)}"]))
        caches = caches_of(kernels.card.device)
        assert flush_bytes(kernels.card.device, caches, sizing.room_bytes())[0] < memory / 2
        assert 3 * 4 * memory_size(kernels.card.device, "default", caches, sizing.room_bytes()).elements < memory
        with pytest.raises(pytest.skip.Exception, match="GiB of free memory") if memory_gib < 7 else nullcontext():
            sizing.require(product_bytes("fp32", *LECTURE))


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3", "fp32"])
def test_item_4_a_product_holds_at_most_what_is_asked_for(card: Card, dtype: str) -> None:
    case = _product(dtype, 1024, 1024, 512, card.device)
    peak = torch.cuda.max_memory_allocated()
    assert case.a.nbytes + case.b.nbytes <= peak <= product_bytes(dtype, 1024, 1024, 512)


@pytest.mark.parametrize(("card", "ratio"), [("H100 SXM5 80GB", 494.7 / 66.9), ("RTX 4090", 1.0)], indirect=["card"])
def test_item_8_tf32_gains_what_the_peak_table_says_of_the_card(card: Card, ratio: float) -> None:
    peaks = [machine.peak_flop_per_s(card.device, dtype) for dtype in ("tf32", "fp32")]
    assert peaks[0] / peaks[1] == pytest.approx(ratio, rel=0.02)
    assert (card.kernel_s(1e12, 0, "fp32") / card.kernel_s(1e12, 0, "tf32") > 1.5) is (ratio > 1.5)


@pytest.mark.parametrize("card", ["MI300X"], indirect=True)
def test_item_9_an_amd_devices_capability_is_that_of_its_formats(card: Card) -> None:
    assert torch.cuda.get_device_capability() == (9, 4), "as it was, above the 8.9 of e4m3fn"
    assert machine.unmet("sm>=8.9", card.device) == "needs sm>=8.9, this device has 8"
    assert machine.accelerator(card.device).label == card.label
    assert machine.bound_flop_per_s(card.device, "bf16") is None, "without NVML no clock is known"


@as_it_was
def test_item_10_products_of_fp32_keep_every_bit_whatever_the_image_asked_for(card: Card, was: bool) -> None:
    a = torch.full((4, 4), 1 + 2.0**-12, device="cuda")
    torch.set_float32_matmul_precision("high")  # what TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does as torch starts
    try:
        if not was:
            assert machine.ignore_tf32_override()
        exact = (a @ torch.eye(4, device="cuda")).tolist() == a.tolist()
    finally:
        torch.set_float32_matmul_precision("highest")
    assert exact is not was


@as_it_was
def test_item_11_a_biased_layer_adds_no_workspace_to_live_bytes(card: Card, was: bool) -> None:
    if was:
        x = torch.ones(64, 8, device="cuda", requires_grad=True)
        (x @ torch.ones(8, 8, device="cuda")).sum().backward()
    else:
        claims.memory_device.__wrapped__(card.device)
    layer, x = torch.nn.Linear(8, 8, device="cuda"), torch.ones(4, 8, device="cuda")
    before = torch.cuda.memory_allocated()
    y = layer(x)
    assert (torch.cuda.memory_allocated() - before == y.nbytes + 512 - y.nbytes % 512) is not was


@as_it_was
def test_item_11_empty_cache_gives_back_a_segment_of_its_own(card: Card, was: bool) -> None:
    pinned = [torch.ones(2 * MIB, device="cuda") for _ in range(2)]  # of a fixture of the session, in one segment
    del pinned[0]
    free = torch.cuda.memory_stats()["inactive_split_bytes.all.current"]
    temporary_bytes = torch.ones(2 * MIB if was else free // 4 + 2**22, device="cuda").nbytes
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    assert (before - torch.cuda.memory_reserved() >= temporary_bytes) is not was


@as_it_was
def test_item_11_each_timed_copy_pins_fresh_memory(card: Card, was: bool) -> None:
    pageable = torch.ones(2**20)
    for _ in range(3):
        pageable.pin_memory()
        if not was:
            oracle.empty_host_cache()
    assert card.counts.pinned_blocks == (1 if was else 3)


def test_item_11_freed_memory_is_used_again_at_the_same_address(card: Card) -> None:
    """Why addresses of freed tensors say nothing: the CPU hands out others, now and then."""
    first = torch.ones(1000, device="cuda").data_ptr()
    assert torch.ones(1000, device="cuda").data_ptr() == first


def test_item_11_two_that_take_the_same_time_are_no_noise(card: Card) -> None:
    work = partial(torch.cuda._sleep, 10**8)
    with pytest.raises(pytest.fail.Exception, match=r"the ratio of times is 1\.00x"):
        Speed(card.device, lambda text: None).assert_slower(work, work, "one over the other", pairs=9)
