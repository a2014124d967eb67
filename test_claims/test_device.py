"""Claims about devices: where tensors are made, how they move, and the cost of moving."""

import gc
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accounting.allocator import charged_bytes, rounded_bytes
from accounting.memory import tensor_bytes
from prooflops.measured import memory
from test_claims.oracles.dispatched import crossings, host_to_device_copies, linear_net
from test_claims.oracles.kernels import empty_host_cache, timed_copy
from test_claims.oracles.tensors import metered, without_collector
from test_claims.strategies import TORCH_DTYPES, dtypes, shapes, sizes

META = torch.device(
    "meta"
)  # a device without data: shows on any machine where a tensor is put, and by which operation
COPIED_FLOATS = 2**26  # 256 MiB: beyond every cache

FACTORIES = {
    **{
        name: partial(getattr(torch, name), 2, 3)
        for name in ("empty", "zeros", "ones", "rand", "randn")
    },
    **{name: partial(getattr(torch, name), 6) for name in ("arange", "eye", "randperm")},
    **{name: partial(getattr(torch, name), 0, 1, 6) for name in ("linspace", "logspace")},
    "full": lambda **at: torch.full((2, 3), 7.0, **at),
    "randint": lambda **at: torch.randint(9, (2, 3), **at),
    "tensor": lambda **at: torch.tensor([1.0, 2.0], **at),
    "nn.Linear": lambda **at: nn.Linear(2, 3, **at).weight,
}
COMPUTED = sorted(set(FACTORIES) - {"tensor"})


@pytest.fixture
def default_device() -> Iterator[None]:
    """Leaves the process's default device as it was."""
    yield
    torch.set_default_device(None)


def placed(target: str, device: torch.device) -> torch.device:
    """The device a tensor says it is on when it was made on this target."""
    return torch.empty(0, device="meta" if target == "meta" else device).device


@pytest.fixture
def cuda(device: torch.device) -> Iterator[torch.device]:
    """The CUDA device under test, current, idle, and without cached blocks of earlier tests."""
    with torch.cuda.device(device):
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        yield device
        torch.cuda.synchronize()


@pytest.mark.claim("device.default-cpu")
@pytest.mark.parametrize("factory", FACTORIES)
def test_a_factory_makes_its_tensor_on_the_cpu(factory, default_device):
    where = FACTORIES[factory]().device
    assert where == torch.device("cpu"), (
        f"torch.{factory} made its tensor on {where}, but should be on the cpu"
    )
    with META:
        inside = FACTORIES[factory]().device
    torch.set_default_device("meta")
    default = FACTORIES[factory]().device
    chosen = FACTORIES[factory](device="cpu").device
    assert (inside, default) == (META, META), (
        f"torch.{factory} made {inside} and {default}, but should meta both times"
    )
    assert chosen == torch.device("cpu"), f"torch.{factory}(device='cpu') made {chosen}"


@pytest.mark.claim("device.move-forms")
@pytest.mark.parametrize("target", ["device under test", "meta"])
@given(dtype=dtypes, shape=shapes())
def test_a_tensor_gets_to_a_device_by_to_and_by_device(device, target, dtype, shape):
    there = placed(target, device)
    home = torch.zeros(shape, dtype=TORCH_DTYPES[dtype])
    moved = home.to(there)
    made = torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=there)
    for form, x in ((".to(device)", moved), ("device=", made)):
        got = (x.device, x.dtype, tuple(x.shape))
        should = (there, home.dtype, shape)
        assert got == should, f"{form} gives {got}, but should give {should}"
        assert x.to(there) is x, f"a tensor on {there} that is moved there is another tensor"


@pytest.mark.claim("device.move-forms")
@given(pattern=st.binary(min_size=8, max_size=64).map(lambda b: b[: len(b) // 8 * 8]), dtype=dtypes)
def test_values_come_back_from_the_device_bit_for_bit(device, pattern, dtype):
    if dtype == "bool":
        pattern = bytes(byte & 1 for byte in pattern)  # other patterns are no bool
    home = torch.tensor(list(pattern), dtype=torch.uint8).view(TORCH_DTYPES[dtype])
    back = home.to(device, copy=True).to("cpu", copy=True)
    got = bytes(back.view(torch.uint8).tolist())
    assert got == pattern, (
        f"the round trip made {got.hex()} of {pattern.hex()} [{dtype=}, {device=}]"
    )


@pytest.mark.claim("device.create-direct")
@pytest.mark.parametrize("factory", COMPUTED)
def test_creating_on_a_device_dispatches_no_copy_and_takes_no_host_memory(factory):
    copies = crossings(lambda: FACTORIES[factory](device=META))
    with memory("cpu") as host:
        kept = FACTORIES[factory](device=META)
    assert copies == [], (
        f"torch.{factory}(device='meta') made {len(copies)} copies, but should make none: {copies}"
    )
    assert host.allocated_bytes == 0, (
        f"torch.{factory}(device='meta') allocated {host.allocated_bytes} B on the host"
    )
    assert kept.device == META, f"torch.{factory}(device='meta') is on {kept.device}"


@pytest.mark.claim("device.create-direct")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("factory", FACTORIES)
def test_creating_on_the_gpu_copies_nothing_but_data_of_the_host(factory, cuda):
    copies = host_to_device_copies(lambda: FACTORIES[factory](device=cuda))
    should = int(factory not in COMPUTED)
    assert copies == should, (
        f"torch.{factory}(device='cuda') made {copies} host-to-device copies, not {should}"
    )


@pytest.mark.claim("device.zeros-to-is-direct")
@given(shape=shapes((0, 3), (0, 40)), dtype=dtypes)
def test_zeros_then_to_fills_host_memory_and_copies_all_of_it(shape, dtype):
    torch_dtype = TORCH_DTYPES[dtype]
    nbytes = tensor_bytes(shape, dtype)
    copied = [
        copy.nbytes for copy in crossings(lambda: torch.zeros(shape, dtype=torch_dtype).to(META))
    ]
    with memory("cpu") as host:
        torch.zeros(shape, dtype=torch_dtype).to(META)
    with memory("cpu") as host_of_direct:
        torch.zeros(shape, dtype=torch_dtype, device=META)
    assert copied == [nbytes], (
        f"zeros.to(device) copied {copied} B, but should copy {[nbytes]} [{shape=}, {dtype=}]"
    )
    assert host.allocated_bytes == nbytes, (
        f"it allocated {host.allocated_bytes} B of host memory, not {nbytes}"
    )
    assert host_of_direct.allocated_bytes == 0, (
        f"zeros(device=) took {host_of_direct.allocated_bytes} B of host memory"
    )


@pytest.mark.claim("device.zeros-to-is-direct")
@pytest.mark.needs("cuda")
def test_zeros_then_to_traces_one_copy_and_the_direct_form_none(cuda):
    through_the_host = host_to_device_copies(lambda: torch.zeros(32, 32).to(cuda))
    direct = host_to_device_copies(lambda: torch.zeros(32, 32, device=cuda))
    assert (through_the_host, direct) == (1, 0), (
        f"host-to-device copies: {through_the_host} and {direct}, not 1 and 0"
    )


@pytest.mark.claim("device.allocated-8192")
def test_one_matrix_moved_and_one_created_take_8192_bytes(device):
    home = torch.zeros(32, 32)
    with memory(metered(device)) as held:
        moved = home.to(metered(device), copy=True)
        created = torch.randn(32, 32, device=metered(device))
    formula = tensor_bytes(moved.shape) + tensor_bytes(created.shape)
    assert held.live_bytes == formula == 8192, (
        f"measured={held.live_bytes}, {formula=}, but both should be 8192"
    )


@pytest.mark.claim("device.allocated-8192")
@pytest.mark.needs("cuda")
@without_collector()
def test_memory_allocated_rises_by_8192_bytes(cuda):
    home = torch.zeros(32, 32)
    before = torch.cuda.memory_allocated()
    kept = [home.to(cuda), torch.randn(32, 32, device=cuda)]
    rise = torch.cuda.memory_allocated() - before
    formula = sum(charged_bytes(x.nbytes) for x in kept)
    assert rise == formula == 8192, (
        f"memory_allocated rose by {rise}, {formula=}, but both should be 8192"
    )


@pytest.mark.claim("device.memory-tools")
@given(floats=st.integers(1, 2**18))  # up to 1 MiB, where the charge does not depend on history
@without_collector()
def test_memory_allocated_rises_by_whole_blocks_and_falls_back(device, floats):
    with torch.cuda.device(device):
        before = torch.cuda.memory_allocated()
        x, _on_host = (
            torch.empty(floats, device=device),
            torch.empty(floats),
        )  # the second is not to be seen
        rise = torch.cuda.memory_allocated() - before
        reserved = torch.cuda.memory_reserved()
        should = rounded_bytes(x.nbytes)
        del x
        back = torch.cuda.memory_allocated() - before
    assert (rise, back) == (should, 0), (
        f"memory_allocated rose by {rise} to {back}, not by {should} to 0"
    )
    assert reserved >= before + rise, (
        f"{reserved=} B is less than the {before + rise} B that are allocated"
    )


@pytest.mark.claim("device.empty-cache")
@without_collector()
def test_empty_cache_gives_back_cached_blocks_and_frees_no_tensor(cuda):
    live = torch.ones(2**24, device=cuda)
    # More than is free within segments that fixtures of the session keep: it takes a segment of its own.
    free = torch.cuda.memory_stats().get("inactive_split_bytes.all.current", 0)
    temporary_bytes = torch.ones(free // 4 + 2**24, device=cuda).nbytes
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    after = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    assert after[0] == before[0], (
        f"empty_cache changed memory_allocated from {before[0]} to {after[0]}"
    )
    assert after[1] <= before[1] - temporary_bytes, (
        f"memory_reserved fell only from {before[1]} to {after[1]}"
    )
    assert live.sum().item() == 2**24, "a live tensor lost its values"
    allocated = torch.cuda.memory_allocated()
    del live
    assert torch.cuda.memory_allocated() <= allocated - 2**26, (
        "deleting the last reference did not free the tensor"
    )


class Everything(nn.Module):
    """One of each kind of tensor that a module can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("running", torch.ones(2))
        self.register_buffer("scratch", torch.ones(2), persistent=False)
        self.plain = torch.ones(2)
        self.listed = [torch.ones(2)]
        self.inner = nn.Sequential(nn.Sequential(nn.BatchNorm1d(2)))


@pytest.mark.claim("device.model-to-params-only")
@pytest.mark.parametrize("target", ["device under test", "meta"])
def test_a_model_takes_parameters_and_buffers_along_not_plain_tensors(device, target):
    there = placed(target, device)
    model = Everything()
    model.weight.grad = torch.ones(2)
    model.to(there)
    moved = {
        name: tensor.device for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    left = [name for name, where in moved.items() if where != there]
    assert not left, (
        f"model.to({there}) left {left} behind, but should move every parameter and buffer"
    )
    assert {"running", "scratch", "inner.0.0.running_mean"} <= set(moved), (
        f"not all buffers are there: {sorted(moved)}"
    )
    assert model.weight.grad.device == there, (
        f"the gradient is on {model.weight.grad.device}, but should be on {there}"
    )
    stayed = {model.plain.device, model.listed[0].device}
    assert stayed == {torch.device("cpu")}, (
        f"plain tensors are on {stayed}, but should have stayed on the cpu"
    )


INHERITING = {
    **{name: getattr(torch, name) for name in ("sum", "exp", "argmax", "zeros_like", "rand_like")},
    "x * 2": lambda x: x * 2,
    "x @ x": lambda x: x @ x,
    "x > 0": lambda x: x > 0,
    "x[0]": lambda x: x[0],
    "cat": lambda x: torch.cat([x, x]),
    "gelu": nn.functional.gelu,
    "softmax": lambda x: x.softmax(-1),
    "new_zeros": lambda x: x.new_zeros(3),
    "x + 0-dim cpu": lambda x: x + torch.tensor(1.0),
}


@pytest.mark.claim("device.intermediates-by-hand")
@pytest.mark.parametrize("target", ["device under test", "meta"])
@given(chain=st.lists(st.sampled_from(sorted(INHERITING)), min_size=1, max_size=4))
def test_results_are_on_the_device_of_their_operands(device, target, chain):
    there = placed(target, device)
    x = torch.ones(4, 4, device=there)
    for step in chain:
        y = INHERITING[step](x)
        assert y.device == there, f"{step} of a tensor on {there} gave one on {y.device}"
        x = y if y.shape == x.shape and y.dtype == x.dtype else x


@pytest.mark.claim("device.intermediates-by-hand")
def test_only_a_fresh_factory_in_forward_must_be_told_the_device():
    x = torch.ones(4, 4, device=META)
    mask = torch.zeros(4, 4)
    assert mask.device == torch.device("cpu"), (
        f"a fresh mask is on {mask.device}, but should be on the cpu"
    )
    with pytest.raises(RuntimeError, match="device"):
        x + mask
    assert (x + torch.zeros(4, 4, device=x.device)).device == META, (
        "a mask that is told the device moved the sum"
    )


CHECKED_ON_META = {  # by the shape functions that meta tensors share with all devices
    "add": lambda a, b: a + b,
    "compare": lambda a, b: a < b,
    "maximum": torch.maximum,
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "cat": lambda a, b: torch.cat([a, b]),
    "where": lambda a, b: torch.where(a > 0, a, b),
}
BY_KERNELS = {
    "matmul": torch.matmul,
    "linear": nn.functional.linear,
    "in place": lambda a, b: a.clone().add_(b),
}


MIXED = [("meta", name) for name in CHECKED_ON_META]
MIXED += [
    pytest.param("cuda", name, marks=pytest.mark.needs("cuda"))
    for name in CHECKED_ON_META | BY_KERNELS
]


@pytest.mark.claim("device.assert-location")
@pytest.mark.parametrize(("there", "operation"), MIXED)
def test_an_operation_on_cpu_and_another_device_raises(operation, there):
    here = torch.ones(3, 3)
    elsewhere = torch.ones(3, 3, device=there)
    for a, b in ((here, elsewhere), (elsewhere, here)):
        with pytest.raises(RuntimeError, match="device"):
            (CHECKED_ON_META | BY_KERNELS)[operation](a, b)


@pytest.mark.claim("device.assert-location")
@pytest.mark.parametrize("operation", ["add", "compare", "maximum", "where"])
def test_a_cpu_tensor_without_dimensions_mixes_with_any_device(device, operation):
    mixed = CHECKED_ON_META[operation]
    number = torch.tensor(2.0)
    for there in (META, placed("device under test", device)):
        x = torch.ones(3, device=there)
        where = {mixed(x, number).device, mixed(number, x).device}
        assert where == {there}, (
            f"{operation} of a tensor on {there} and a number on the cpu gives one on {where}"
        )
        by_type = x.device == torch.device(there.type)
        assert by_type == (there.index is None), (
            f"on {there} its type alone equals its device: {by_type}"
        )
    with pytest.raises(RuntimeError, match="device"):
        mixed(torch.ones(3), number.to(META))
    assert torch.device("cuda") != torch.device("cuda:0"), (
        "a device without an index equals that of a tensor"
    )


@pytest.mark.claim("device.all-on-gpu")
@given(b=sizes(), d=sizes(), k=sizes())
@without_collector()
def test_a_training_step_on_the_cpu_touches_no_other_device(b, d, k):
    x = torch.rand(b, d)
    w = torch.rand(d, k, requires_grad=True)
    start = w.detach().numpy().copy()
    before = torch.cuda.memory_allocated()

    def step() -> None:
        ((x @ w) ** 2).sum().backward()
        torch.optim.SGD([w], lr=0.1).step()

    copies = crossings(step)
    expected = start - 0.1 * 2 * x.numpy().T @ (x.numpy() @ start)  # d(sum of squares)/dw, by numpy
    assert np.allclose(w.detach().numpy(), expected, atol=1e-5), (
        "the step on the CPU differs from numpy's"
    )
    where = {tensor.device.type for tensor in (x, w, w.grad)}
    assert where == {"cpu"}, f"tensors of the step are on {where}"
    assert copies == [], f"the step copied between devices: {copies}"
    assert torch.cuda.memory_allocated() == before, "the step on the CPU allocated GPU memory"


@pytest.mark.claim("device.parameters-resident")
@given(widths=st.lists(sizes(most=12), min_size=2, max_size=5), batch=sizes(), steps=sizes(most=2))
def test_steps_move_batches_alone_unless_parameters_live_on_the_host(widths, batch, steps):
    resident = linear_net(widths, META)
    on_host = linear_net(widths)
    x = torch.ones(batch, widths[0])

    def step():
        resident(x.to(META)).sum().backward()
        torch.optim.SGD(resident.parameters(), lr=0.1).step()

    def forward():
        torch.func.functional_call(
            on_host, {name: p.to(META) for name, p in on_host.named_parameters()}, x.to(META)
        )

    batches = batch * widths[0]
    parameters = sum(m * n for m, n in pairwise(widths))
    for run, elements in ((step, batches), (forward, batches + parameters)):
        moved = sum(
            copied.nbytes for copied in crossings(lambda run=run: [run() for _ in range(steps)])
        )
        assert moved == 4 * steps * elements, (
            f"{steps} times {run.__name__} moved {moved} bytes [{widths=}, {batch=}]"
        )


@pytest.mark.claim("device.transfer-costs")
@pytest.mark.parametrize("direction", ["to the device", "to the host"])
@pytest.mark.parametrize("host_memory", ["pageable", "pinned"])
def test_a_copy_over_the_bus_takes_longer_than_one_within_the_device(
    cuda, speed, host_memory, direction
):
    here = torch.ones(COPIED_FLOATS, pin_memory=host_memory == "pinned")
    there = torch.empty(COPIED_FLOATS, device=cuda)
    other = torch.ones(COPIED_FLOATS, device=cuda)
    source, target = (here, there) if direction == "to the device" else (other, here)
    what = f"{host_memory} copy {direction}"
    speed.assert_slower(lambda: target.copy_(source), lambda: there.copy_(other), what, at_least=2)
    target.zero_()
    target.copy_(source)
    assert torch.equal(target.cpu(), source.cpu()), "the copy that was timed did not arrive"


@pytest.mark.claim("device.pinned-faster")
def test_a_copy_from_a_buffer_pinned_before_is_faster(cuda, speed):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)
    pinned = pageable.pin_memory()
    speed.assert_slower(
        lambda: target.copy_(pageable), lambda: target.copy_(pinned), "pageable against pinned"
    )


@pytest.mark.claim("device.pinned-faster")
def test_pinning_for_one_copy_is_slower_than_not_pinning(cuda, speed):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)

    def pin_and_copy() -> None:
        empty_host_cache()  # torch keeps pinned blocks: the second call would pin nothing
        target.copy_(pageable.pin_memory(), non_blocking=True)

    speed.assert_slower(
        pin_and_copy, lambda: target.copy_(pageable), "pin_memory() and copy against a plain copy"
    )


@pytest.mark.claim("device.nonblocking-overlap")
def test_a_non_blocking_copy_returns_early_only_from_pinned_memory(cuda, record_figure):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)
    pinned = pageable.pin_memory()
    for source in (pinned, pageable):
        timed_copy(target, source)  # warm
    # Of nine, since a busy host can come back late from one.
    returned_s, copied_s, still_running = min(timed_copy(target, pinned) for _ in range(9))
    record_figure(f"host free after {returned_s * 1e6:.0f} us of a copy of {copied_s * 1e3:.1f} ms")
    assert still_running, (
        f"a copy of {copied_s:.4f} s from pinned memory was over when the call returned"
    )
    assert returned_s < copied_s / 2, (
        f"the host was held {returned_s:.4f} s of the {copied_s:.4f} s of a pinned copy"
    )
    returned_s, copied_s, _ = sorted(timed_copy(target, pageable) for _ in range(9))[4]
    assert returned_s > copied_s / 2, (
        f"the host was free after {returned_s:.4f} of {copied_s:.4f} s of a pageable copy"
    )


@pytest.mark.claim("device.nonblocking-overlap")
def test_a_copy_to_the_host_must_be_waited_for_before_it_is_read(cuda):
    source = torch.ones(2**20, device=cuda)
    target = torch.zeros(2**20).pin_memory()
    torch.cuda.synchronize()
    torch.cuda._sleep(200_000_000)  # cycles: about a tenth of a second before the copy can begin
    target.copy_(source, non_blocking=True)
    early = target[-1].item()
    torch.cuda.synchronize()
    late = target[-1].item()
    assert (early, late) == (0, 1), (
        f"read before and after the wait: {early} and {late}, but should be 0 and 1"
    )


@pytest.mark.claim("device.not-magic")
def test_pinning_gains_less_the_more_computation_there_is_per_copy(cuda, speed, record_figure):
    floats = 2**24
    pageable = torch.ones(floats)
    target = torch.empty(floats, device=cuda)
    pinned = pageable.pin_memory()
    a = torch.randn(4096, 4096, device=cuda)
    product = torch.empty(4096, 4096, device=cuda)
    copy_s = speed.seconds(lambda: target.copy_(pageable), calls=3)
    product_s = speed.seconds(lambda: torch.mm(a, a, out=product), calls=3)

    def step(source: torch.Tensor, products: int) -> None:
        target.copy_(source, non_blocking=True)
        target.mul_(2)
        for _ in range(products):
            torch.mm(a, a, out=product)

    light = speed.assert_slower(
        lambda: step(pageable, 0), lambda: step(pinned, 0), "copy and one light kernel"
    )
    many = max(1, round(20 * copy_s / product_s))
    what = "copy and products of 20 times its time"
    most = 1 + (light.value - 1) / 2
    speed.assert_slower(
        lambda: step(pageable, many), lambda: step(pinned, many), what, at_least=0.5, at_most=most
    )


@pytest.mark.claim("device.cpu-too-slow")
@pytest.mark.parametrize(
    ("all_threads", "at_least"), [(False, 10), (True, 2)], ids=["one core", "all cores"]
)
def test_a_large_product_is_far_slower_on_the_cpu(cuda, speed, all_threads, at_least):
    here = torch.randn(4096, 4096)
    there = here.to(cuda)
    what = "4096 x 4096 fp32 product, CPU against GPU"
    speed.assert_slower(
        lambda: here @ here, lambda: there @ there, what, at_least=at_least, all_threads=all_threads
    )


@pytest.mark.claim("device.cpu-too-slow")
def test_a_tiny_operation_is_slower_on_the_gpu(cuda, speed):
    here = torch.ones(1)
    there = torch.ones(1, device=cuda)
    speed.assert_slower(lambda: there.add(1), lambda: here.add(1), "adding one number, GPU")


@pytest.mark.claim("device.batch-once")
@pytest.mark.parametrize(("rows", "floats"), [(256, 16), (256, 1024), (32, 4096)])
def test_many_small_copies_take_longer_than_one_of_the_same_bytes(cuda, speed, rows, floats):
    here = torch.ones(rows, floats).pin_memory()
    there = torch.empty(rows, floats, device=cuda)

    def row_by_row() -> None:
        for source, target in zip(here, there, strict=True):
            target.copy_(source, non_blocking=True)

    what = f"{rows} copies of {4 * floats} B against one"
    speed.assert_slower(row_by_row, lambda: there.copy_(here, non_blocking=True), what, at_least=2)
    assert torch.equal(there.cpu(), here), "the copy that was timed did not arrive"
