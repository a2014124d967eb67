"""What reading torch's sources said would go wrong in the first hour on a card: red on the simulated one as it was.

`as_it_was` plants the code before, and expects the suite's own check, most often a claim's test, to fail.
"""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch

from accounting import measured
from bench import checks, products
from bench.products import _product, product_bytes
from meta_tests.accounting import test_clock_agreement as clocks
from meta_tests.conftest import ROOT, ChildRun, House, new_house
from meta_tests.simulated_card.api import simulated
from meta_tests.simulated_card.caching import MIB
from meta_tests.simulated_card.card import KERNEL_S, Card
from meta_tests.simulated_card.plugin import NOT_ON_MPS, time_alone
from prooflops.machine import device as machine
from prooflops.suite import speed as comparisons
from prooflops.suite.sizing import Sizing
from prooflops.suite.speed import Speed
from test_claims import conftest as claims
from test_claims import strategies
from test_claims import test_act as activations
from test_claims import test_device as devices
from test_claims import test_matmul as matmul
from test_claims import test_mfu as mfu
from test_claims import test_spec as spec
from test_claims import test_storage as storage


@pytest.fixture
def card(request: pytest.FixtureRequest) -> Iterator[Card]:
    """A card with 256 MiB, of the label that the test gives."""
    made = Card(getattr(request, "param", "H100 SXM5 80GB"), memory_bytes=256 * MIB)
    with simulated(made):
        machine.name.cache_clear()
        yield made
    machine.name.cache_clear()


as_it_was = pytest.mark.parametrize("was", [False, True], ids=["now", "as it was"])


def red(error: type[BaseException], match: str, was: bool) -> AbstractContextManager[object]:
    """Expects the claim's own failure where the code before is planted."""
    return pytest.raises(error, match=match) if was else nullcontext()


# ---- items 5 and 6: whole runs -----------------------------------------------------------------------------------

DEMO = """
import torch

@pytest.mark.claim("demo.reads", "demo.half")
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
    from meta_tests.simulated_card.plugin import KERNELS
    pytestconfig.stash[KERNELS].card.error = "CUDA error: an illegal memory access was encountered"
    torch.ones(3, device=device)

@pytest.mark.claim("demo.partly", "demo.after", "demo.half")
def test_comes_after(device):
    torch.ones(3, device=device)
"""


AS_IT_WAS = """
import prooflops.suite.hooks as suite
from prooflops.suite.run import Run

suite.crash_of = lambda error: ""  # whatever a test raised contradicted its claims
Run._outcomes = lambda run, claim: run.outcomes.get(claim, [])  # of those that ran alone
"""


def run_of_demo(folder: Path, *plugins: str) -> ChildRun:
    """Claims that meet what a card does to them, in one run on the simulated card."""
    house: House = new_house(folder)
    for claim in ("reads", "full", "crash", "wrong", "elsewhere", "lost", "partly", "after", "half"):
        house.claim(f"demo.{claim}")
    house.test(DEMO)
    (house.root / "meta_tests").mkdir()
    (house.root / "meta_tests" / "__init__.py").touch()
    shutil.copytree(ROOT / "meta_tests" / "simulated_card", house.root / "meta_tests" / "simulated_card")
    (house.root / "as_it_was.py").write_text(AS_IT_WAS, encoding="utf-8")
    options = [part for name in ("meta_tests.simulated_card.plugin", *plugins) for part in ("-p", name)]
    return house.run(*options, "--card-counts=counts.jsonl", "--device", "cuda", "--quick", path=house.root)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("card")


@pytest.fixture(scope="module")
def demo(folder: Path) -> ChildRun:
    return run_of_demo(folder)


def test_a_test_that_measured_the_cpu_is_counted_as_such(demo: ChildRun, folder: Path) -> None:
    rows = map(json.loads, (folder / "counts.jsonl").read_text("utf-8").splitlines())
    elsewhere = [row["test"].rpartition("::")[2] for row in rows if row["result"] == "elsewhere"]
    assert elsewhere == ["test_measures_the_cpu"]


@pytest.mark.prove
def test_items_5_and_6_crashes_failed_and_untested_claims_held_as_it_was(tmp_path: Path) -> None:
    found = run_of_demo(tmp_path, "as_it_was").verdicts
    claims = ("demo.full", "demo.crash", "demo.half")
    assert [found[claim]["verdict"] for claim in claims] == ["FAILS", "FAILS", "holds"]


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
    assert len(demo.verdicts) == 9, "what was measured before is lost"


def test_item_6_a_claim_that_the_lost_card_left_untested_is_not_checked(demo: ChildRun) -> None:
    assert demo.verdicts["demo.after"]["verdict"] == "not checked"
    assert "the device is lost" in demo.verdicts["demo.after"]["reason"]
    assert demo.verdicts["demo.partly"]["verdict"] == "error", "one of its two tests met the lost card"
    assert demo.verdicts["demo.half"]["verdict"] == "not checked", "one of its two tests did not run"


# ---- items 2 to 4 and 7 to 11: single functions ------------------------------------------------------------------


@as_it_was
def test_item_2_a_clone_takes_ten_times_six_views_at_any_bandwidth(card: Card, was: bool) -> None:
    card.memory_bytes = card.memory.limit_bytes = 4 * 2**30
    sizing, speed = Sizing(card.device), Speed(card.device, lambda text: None)
    old = patch.object(sizing, "bytes_moved_in", lambda seconds: 2 * 32 * MIB)
    with time_alone(card), old if was else nullcontext(), red(pytest.fail.Exception, "over making six views", was):
        storage.test_making_views_takes_a_time_that_does_not_grow_with_their_size(
            card.device, sizing, speed, lambda text: None
        )


@as_it_was
def test_item_3_int8_is_multiplied_at_full_rate(card: Card, was: bool) -> None:
    old = patch.object(products, "lies_by_columns", lambda dtype, device: dtype == "fp8_e4m3")
    with time_alone(card), old if was else nullcontext():
        case = products.product("int8", 1024, 1024, 1024, card.device)
        seconds = measured.time(case.multiply, "cuda", warmup=1, rounds=3).median_s
    share = case.work.flops / (seconds - KERNEL_S) / (machine.peak_flop_per_s(card.device, "int8") or 0)
    assert (share > 0.5) is not was, f"int8 is multiplied at {share:.2f} of the peak"


@as_it_was
def test_item_4_looking_at_a_call_keeps_nothing_that_the_call_frees(card: Card, was: bool) -> None:
    x = torch.zeros(8 * MIB, device="cuda")  # 32 MiB of 256

    def call() -> None:
        for _ in range(10):
            x + 1

    old = patch.object(checks, "StorageWeakRef", lambda storage: storage)
    with old if was else nullcontext(), red(torch.OutOfMemoryError, "CUDA out of memory", was):
        checks.examine(call)


@as_it_was
@pytest.mark.parametrize("size_bytes", [4 * 2**30, 12 * 2**30])
def test_item_4_operands_are_chosen_by_the_memory_that_is_free(card: Card, size_bytes: int, was: bool) -> None:
    old = patch.object(machine, "free_bytes", lambda device: None)
    with old if was else nullcontext(), red(torch.OutOfMemoryError, "CUDA out of memory", was):
        fitting = Sizing(card.device).fitting(size_bytes, float)
        assert torch.empty(fitting, dtype=torch.int8, device="cuda").nbytes > card.memory_bytes // 4


@pytest.mark.parametrize("dtype", ["int8", "fp8_e4m3", "fp32"])
def test_item_4_a_product_holds_at_most_what_is_asked_for(card: Card, dtype: str) -> None:
    case = _product(dtype, 1024, 1024, 512, card.device)
    peak = torch.cuda.max_memory_allocated()
    assert case.a.nbytes + case.b.nbytes <= peak <= product_bytes(dtype, 1024, 1024, 512)


@as_it_was
def test_item_7_comparing_two_clocks_keeps_a_card_busy_for_seconds(card: Card, was: bool) -> None:
    """Blocks of 20 ms, six a pair, 256 pairs a kernel: two minutes of the ten that a whole run may take."""
    old = patch.multiple(clocks, SHORTEST_DEVICE_CALL_S=0.02, DEVICE_SHARE=1)
    one_kernel = patch.object(clocks, "kernels", lambda device: {"sleep": partial(torch.cuda._sleep, 2 * 10**6)})
    compare = clocks.compare.__wrapped__(card.device, "default", lambda name, value: None)
    with one_kernel, patch.object(clocks, "assert_within"), old if was else nullcontext():
        clocks.test_timer("sleep", card.device, compare)
    seconds, asked = len(clocks.KERNELS) * card.busy_s, f"{card.counts.launches} launches a kernel"
    with red(AssertionError, "should take 10 at most", was):
        assert seconds < 10, f"comparing the clocks takes {seconds:.0f} s, {asked}, but should take 10 at most"


@as_it_was
@pytest.mark.parametrize("card", ["H100 SXM5 80GB", "RTX 4090"], indirect=True)
def test_item_8_tf32_gains_what_the_peak_table_says_of_the_card(card: Card, was: bool) -> None:
    """A GeForce's tensor cores multiply tf32 no faster than its other units fp32: 1.5 times, without a look, is red."""
    card.memory_bytes = card.memory.limit_bytes = 2**30
    peak = partial(machine.peak_flop_per_s, card.device)
    speed = Speed(card.device, lambda text: None)
    with time_alone(card), red(pytest.fail.Exception, "the ratio of times is 1", was and card.label == "RTX 4090"):
        matmul.test_tensor_cores_multiply_faster_than_fp32_by_default(
            card.device, speed, "tf32", (lambda dtype: None) if was else peak
        )


@pytest.mark.parametrize("card", ["MI300X"], indirect=True)
def test_item_9_an_amd_devices_capability_is_that_of_its_formats(card: Card) -> None:
    assert machine.unmet("sm>=8.9", card.device) == "needs sm>=8.9, this device has 8"
    with patch.object(machine, "capability", lambda device: float("{}.{}".format(*torch.cuda.get_device_capability()))):
        assert machine.unmet("sm>=8.9", card.device) is None, "as it was: (9, 4) is above the 8.9 of e4m3fn"
    assert machine.accelerator(card.device).label == card.label


@as_it_was
@pytest.mark.parametrize("card", ["MI300X"], indirect=True)
def test_item_9_products_that_keep_the_bits_of_fp32_have_no_row_as_tf32(card: Card, was: bool) -> None:
    old = patch.object(products, "probe_tf32", lambda device: None)
    with old if was else pytest.raises(products.Unsupported, match="HIPBLASLT_ALLOW_TF32=1"):
        products.product("tf32", 64, 64, 64, card.device)


@pytest.mark.parametrize("card", ["MI300X"], indirect=True)
def test_item_9_without_a_known_clock_no_bound_holds(card: Card) -> None:
    bound, peak = (partial(ask, card.device) for ask in (machine.bound_flop_per_s, machine.peak_flop_per_s))
    with patch.object(spec, "LARGE", 512), pytest.raises(pytest.skip.Exception, match="no clock, or no peak on record"):
        spec.test_no_product_here_exceeds_what_the_units_can_do(card.device, bound, peak, lambda text: None, "fp32")


@as_it_was
def test_item_10_products_of_fp32_keep_every_bit_whatever_the_image_asked_for(card: Card, was: bool) -> None:
    torch.set_float32_matmul_precision("high")  # what TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 does as torch starts
    claim = matmul.test_a_product_of_fp32_matrices_keeps_every_bit_of_fp32.hypothesis.inner_test
    try:
        assert was or machine.ignore_tf32_override()
        with red(AssertionError, "products of fp32 do not keep its 23 bits", was):
            claim(card.device, bit=12, rows=16)
    finally:
        torch.set_float32_matmul_precision("highest")


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
    card.memory_bytes = card.memory.limit_bytes = 2**30
    torch.empty(132 * MIB, dtype=torch.int8, device="cuda")  # freed; of its segment a fixture of the session takes 2
    pinned = torch.empty(2 * MIB, dtype=torch.int8, device="cuda")
    old = patch.object(torch.cuda, "memory_stats", dict)  # a temporary tensor of 64 MiB, whatever is free
    with old if was else nullcontext(), red(AssertionError, "memory_reserved fell only from", was):
        devices.test_empty_cache_gives_back_cached_blocks_and_frees_no_tensor(card.device)
    assert pinned.nbytes == 2 * MIB


@as_it_was
def test_item_11_each_timed_copy_pins_fresh_memory(card: Card, was: bool) -> None:
    """The claim held before too, since its copy into the block that was kept takes long; but it timed no pinning."""
    card.memory_bytes = card.memory.limit_bytes = 2**30
    old = patch.object(devices, "empty_host_cache", lambda: None)
    with time_alone(card), old if was else nullcontext():
        speed = Speed(card.device, lambda text: None)
        devices.test_pinning_for_one_copy_is_slower_than_not_pinning(card.device, speed)
    assert (card.counts.pinned_blocks == 1) is was


def test_item_11_freed_memory_is_used_again_at_the_same_address(card: Card) -> None:
    """Why addresses of freed tensors say nothing: the CPU hands out others, now and then."""
    first = torch.ones(1000, device="cuda").data_ptr()
    assert torch.ones(1000, device="cuda").data_ptr() == first


@as_it_was
def test_item_11_two_that_take_the_same_time_are_no_noise(card: Card, was: bool) -> None:
    work = partial(torch.cuda._sleep, 10**8)
    noise = pytest.raises(pytest.skip.Exception, match="this machine's noise")
    answer = pytest.raises(pytest.fail.Exception, match=r"the ratio of times is 1\.00x")
    with patch.object(comparisons, "SAME_TIME", 1.0 if was else comparisons.SAME_TIME), noise if was else answer:
        Speed(card.device, lambda text: None).assert_slower(work, work, "one over the other", pairs=9)


# ---- item 12: MPS ------------------------------------------------------------------------------------------------


@as_it_was
def test_item_12_claims_draw_the_dtypes_that_a_device_has(was: bool) -> None:
    card = Card(kind="mps", memory_bytes=256 * MIB, refused=frozenset(NOT_ON_MPS))
    old = patch.object(strategies, "has_dtype", lambda kind, dtype: True)
    with simulated(card), old if was else nullcontext(), red(TypeError, "the MPS framework doesn't support it", was):
        x = torch.ones(3, device=strategies.with_dtype(card.device), dtype=torch.float64)
        assert strategies.in_fp64(x).tolist() == [1, 1, 1]


@as_it_was
def test_item_12_recomputing_is_compared_without_dropout_where_torch_keeps_no_random_state(was: bool) -> None:
    train = activations.trained_in_segments
    trained = lambda device, segments, dropout, **options: train(device, segments, 0.3, **options)  # noqa: E731
    old = patch.object(activations, "trained_in_segments", trained) if was else nullcontext()
    with (
        simulated(Card(kind="mps", memory_bytes=256 * MIB)) as kernels,
        old,
        red(AssertionError, "weights differ", was),
    ):
        activations.test_training_is_bitwise_the_same_for_any_number_of_segments(kernels.card.device, False)


@as_it_was
def test_item_12_gradients_go_through_a_socket_that_buffers_8_kib(was: bool) -> None:
    """macOS's: 16 KiB at once, and the one thread that sends and receives waits for itself."""
    here, there = socket.socketpair()
    here.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    here.settimeout(1)
    once = SimpleNamespace(assert_slower=lambda slow, fast, what: slow())
    pair = patch.object(socket, "socketpair", lambda: (here, there))
    old = patch.object(mfu, "SOCKET_BUFFER_BYTES", 2**16 if was else mfu.SOCKET_BUFFER_BYTES)
    with pair, old, red(TimeoutError, "timed out", was):
        mfu.test_communication_lowers_it(torch.device("cpu"), once)
