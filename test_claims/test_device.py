"""Claims about devices: creating tensors there, moving them, and the cost of a move."""

import gc
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from accounting.devices import has_dtype
from accounting.memory import tensor_bytes
from prooflops.memory import measured_memory
from prooflops.memory.allocator import charged_bytes, rounded_bytes
from test_claims.oracles.dispatched import crossings, host_to_device_copies, linear_net
from test_claims.oracles.kernels import empty_host_cache, timed_copy
from test_claims.oracles.messages import agree, at_least, at_most, close, equal
from test_claims.oracles.nets import NETS, net_and_batch
from test_claims.oracles.tensors import metered, without_collector
from test_claims.strategies import TORCH_DTYPES, dtypes

# A device without data: shows on any machine where a tensor is put, and by which operation.
META = torch.device("meta")
CPU = torch.device("cpu")
# 256 MiB: beyond every cache.
COPIED_FLOATS = 2**26

FACTORIES = dict.fromkeys(("empty", "zeros", "ones", "rand", "randn"), (300, 300))
FACTORIES |= dict.fromkeys(("arange", "eye", "randperm"), (600,))
FACTORIES |= dict.fromkeys(("linspace", "logspace"), (0, 1, 6))
FACTORIES |= {"full": ((2, 3), 7.0), "randint": (9, (2, 3)), "empty_strided": ((2, 3), (1, 2))}
FACTORIES |= {"nn.Linear": (2, 3), "nn.LayerNorm": (4,), "nn.Conv2d": (1, 2, 3)}
GIVEN_DATA = dict.fromkeys(("tensor", "as_tensor", "asarray"), ([1.0, 2.0],))
FACTORIES |= GIVEN_DATA
HOME = torch.ones(2, 3)
LIKE = ("zeros_like", "ones_like", "empty_like", "rand_like", "randn_like")
COMPUTED = sorted(FACTORIES.keys() - GIVEN_DATA)


def made_by(factory, **options):
    """The tensor that a factory makes of its arguments above."""
    name = factory.removeprefix("nn.")
    arguments = FACTORIES.get(factory, (HOME,))
    made = getattr(torch if name == factory else nn, name)(*arguments, **options)
    return made if name == factory else made.weight


@pytest.fixture
def default_device():
    """Leaves the process's default device as it was."""
    yield
    torch.set_default_device(None)


def placed(target, device):
    """The device a tensor says it is on when it was made on this target."""
    return torch.empty(0, device="meta" if target == "meta" else device).device


@pytest.fixture
def cuda(device):
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
    for options in ({}, {"dtype": torch.bfloat16}):
        equal(made_by(factory, **options).device, CPU, "where it is made", options=options)

    with META:
        inside = made_by(factory).device
    torch.set_default_device("meta")
    default = made_by(factory).device
    equal((inside, default), (META, META), "where it is made within a device, and by default")

    equal(made_by(factory, device="cpu").device, CPU, "where it is made on request")


@pytest.mark.claim("device.move-forms")
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 1, 5)], ids=str)
@pytest.mark.parametrize("target", ["device under test", "meta"])
def test_a_tensor_gets_to_a_device_by_to_and_by_device(device, target, shape):
    there = placed(target, device)
    for name, dtype in TORCH_DTYPES.items():
        if not has_dtype(device.type, name):
            continue
        home = torch.zeros(shape, dtype=dtype)
        made = torch.zeros(shape, dtype=dtype, device=there)
        module = nn.Module()
        module.register_buffer("x", home)
        forms = {
            ".to(device)": home.to(there),
            ".to(device, dtype)": home.bool().to(there, dtype),
            "a module's .to": module.to(there).x,
            "device=": made,
        }
        for form, x in forms.items():
            got = x.device, x.dtype, tuple(x.shape)
            equal(got, (there, dtype, shape), form)
            assert x.to(there, dtype) is x, f"{form}, moved again, is another tensor"
        assert module.to(there).x is module.x, "a module moved again holds another tensor"


def round_trip(x, device):
    there = x.to(device, copy=True)
    return there.to("cpu", copy=True)


@pytest.mark.claim("device.move-forms")
@given(pattern=st.binary(min_size=8, max_size=64), dtype=dtypes)
def test_values_come_back_from_the_device_bit_for_bit(device, pattern, dtype):
    # The largest elements have 16 bytes of it.
    whole = pattern[: len(pattern) // 16 * 16]
    if dtype == "bool":
        # Other patterns are no bool.
        whole = bytes(byte & 1 for byte in whole)

    read = torch.tensor(list(whole), dtype=torch.uint8)
    back = round_trip(read.view(TORCH_DTYPES[dtype]), device)
    equal(bytes(back.view(torch.uint8).tolist()), whole, "what comes back")


@pytest.mark.claim("device.move-forms")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64], ids=str)
@pytest.mark.parametrize("elements", [4_099, 2**20 + 3])
def test_a_large_tensor_comes_back_whole(device, dtype, elements):
    x = torch.arange(elements).to(dtype)
    for laid_out in (x, x[::2], x[2:].view(-1, 1).expand(-1, 3), x[3:].view(-1, 2).T):
        equal(round_trip(laid_out, device), laid_out, "what comes back")
        written = torch.zeros_like(laid_out, device=device).copy_(laid_out)
        equal(written.cpu(), laid_out, "what copy_ writes")


@pytest.mark.claim("device.create-direct")
# Not randn_like, for which torch takes 32 bytes on the host.
@pytest.mark.parametrize("factory", [*COMPUTED, *LIKE[:-1]])
def test_creating_on_a_device_dispatches_no_copy_and_takes_no_host_memory(factory):
    def within():
        with META:
            return made_by(factory)

    told = partial(made_by, factory, device=META)
    for create in (told,) if factory in LIKE else (told, within):
        equal(crossings(create), [], "copies")

        with measured_memory("cpu") as host:
            kept = create()
        equal(host.allocated_bytes, 0, "bytes allocated on the host")
        equal(kept.device, META, "where it is made")


@pytest.mark.claim("device.create-direct")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("factory", FACTORIES)
def test_creating_on_the_gpu_copies_nothing_but_data_of_the_host(factory, cuda):
    copies = host_to_device_copies(partial(made_by, factory, device=cuda))
    equal(copies, int(factory not in COMPUTED), "copies")


@pytest.mark.claim("device.zeros-to-is-direct")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((), "fp32"),
        ((40, 3), "bf16"),
        ((7, 33, 40), "fp64"),
        ((5,), "int8"),
    ],
)
def test_zeros_then_to_fills_host_memory_and_copies_all_of_it(shape, dtype):
    def through_the_host():
        torch.zeros(shape, dtype=TORCH_DTYPES[dtype]).to(META)

    nbytes = tensor_bytes(shape, dtype)
    copied = [copy.nbytes for copy in crossings(through_the_host)]
    equal(copied, [nbytes], "bytes copied")

    with measured_memory("cpu") as host:
        through_the_host()
    equal(host.allocated_bytes, nbytes, "bytes allocated on the host")

    with measured_memory("cpu") as host:
        torch.zeros(shape, dtype=TORCH_DTYPES[dtype], device=META)
    equal(host.allocated_bytes, 0, "bytes allocated on the host by device=")


@pytest.mark.claim("device.zeros-to-is-direct")
@pytest.mark.needs("cuda")
def test_zeros_then_to_traces_one_copy_and_the_direct_form_none(cuda):
    through_the_host = host_to_device_copies(lambda: torch.zeros(32, 32).to(cuda))
    direct = host_to_device_copies(lambda: torch.zeros(32, 32, device=cuda))
    equal((through_the_host, direct), (1, 0), "copies to the device")


@pytest.mark.claim("device.allocated-8192")
def test_one_matrix_moved_and_one_created_take_8192_bytes(device):
    home = torch.zeros(32, 32)
    with measured_memory(metered(device)) as held:
        moved = home.to(metered(device), copy=True)
        created = torch.randn(32, 32, device=metered(device))

    formula = tensor_bytes(moved.shape) + tensor_bytes(created.shape)
    agree("bytes", measured=held.live_bytes, formula=formula, stated=8192)


@pytest.mark.claim("device.allocated-8192")
@pytest.mark.needs("cuda")
@without_collector()
def test_memory_allocated_rises_by_8192_bytes(cuda):
    home = torch.zeros(32, 32)
    before = torch.cuda.memory_allocated()
    kept = [home.to(cuda), torch.randn(32, 32, device=cuda)]
    rise = torch.cuda.memory_allocated() - before
    formula = sum(charged_bytes(x.nbytes) for x in kept)
    agree("bytes", measured=rise, formula=formula, stated=8192)


@pytest.mark.claim("device.memory-tools")
# Up to 1 MiB, where the charge does not depend on history.
@given(floats=st.integers(1, 2**18))
@without_collector()
def test_memory_allocated_rises_by_whole_blocks_and_falls_back(device, floats):
    with torch.cuda.device(device):
        before = torch.cuda.memory_allocated()
        x = torch.empty(floats, device=device)
        # On the host, and not to be seen.
        elsewhere = torch.empty(floats)
        rise = torch.cuda.memory_allocated() - before
        reserved = torch.cuda.memory_reserved()
        should = rounded_bytes(x.nbytes)
        del x, elsewhere
        back = torch.cuda.memory_allocated() - before

    equal((rise, back), (should, 0), "rise and fall of memory_allocated")

    at_least(reserved, before + rise, "memory_reserved")


@pytest.mark.claim("device.empty-cache")
@without_collector()
def test_empty_cache_gives_back_cached_blocks_and_frees_no_tensor(cuda):
    live = torch.ones(2**24, device=cuda)
    # More than is free in segments that fixtures of the session keep: it takes one of its own.
    free = torch.cuda.memory_stats().get("inactive_split_bytes.all.current", 0)
    temporary_bytes = torch.ones(free // 4 + 2**24, device=cuda).nbytes
    allocated = torch.cuda.memory_allocated()
    reserved = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    equal(torch.cuda.memory_allocated(), allocated, "memory_allocated")

    fell = reserved - torch.cuda.memory_reserved()
    at_least(fell, temporary_bytes, "the fall of memory_reserved")
    equal(live.sum().item(), 2**24, "the sum of a live tensor")

    del live
    fell = allocated - torch.cuda.memory_allocated()
    at_least(fell, 2**26, "what deleting the last reference frees")


class Everything(nn.Module):
    """One of each kind of tensor that a module can hold."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.several = nn.ParameterList([torch.ones(2)])
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
    empty = Everything().to_empty(device=there)
    model.to(there)
    kept = [x.data_ptr() for x in model.parameters()]
    model.to(there)
    again = [x.data_ptr() for x in model.parameters()]
    equal(again, kept, "places of parameters after a second move")
    left = {x.device for x in (*empty.parameters(), *empty.buffers())}
    equal(left, {there}, "devices of a model without values")
    held = dict([*model.named_parameters(), *model.named_buffers()])
    left = [name for name, tensor in held.items() if tensor.device != there]
    equal(left, [], "what is left behind")

    buffers = {"running", "scratch", "inner.0.0.running_mean"}
    equal(buffers - set(held), set(), "buffers that are missing")

    equal(model.weight.grad.device, there, "the gradient's device")

    stayed = {model.plain.device, model.listed[0].device}
    equal(stayed, {CPU}, "devices of plain tensors")


def results_of(x):
    """Results of operations on x alone, and with a number of the CPU."""
    results = {name: getattr(torch, name)(x) for name in LIKE}
    results |= {name: getattr(x, name)(3) for name in ("new_zeros", "new_ones", "new_empty")}
    return results | {
        "full_like": torch.full_like(x, 7),
        "randint_like": torch.randint_like(x, 9),
        "new_full": x.new_full((3,), 7),
        "new_tensor": x.new_tensor([1.0]),
        "sum": x.sum(),
        "exp": x.exp(),
        "argmax": x.argmax(),
        "x * 2": x * 2,
        "x @ x": x @ x,
        "x > 0": x > 0,
        "x[0]": x[0],
        "cat": torch.cat([x, x]),
        "gelu": nn.functional.gelu(x),
        "softmax": x.softmax(-1),
        "x + 0-dim cpu": x + torch.tensor(1.0),
    }


@pytest.mark.claim("device.intermediates-by-hand")
@pytest.mark.parametrize("target", ["device under test", "meta"])
def test_results_are_on_the_device_of_their_operands(device, target):
    there = placed(target, device)
    first = results_of(torch.ones(4, 4, device=there))
    again = results_of(first["x @ x"].softmax(-1))
    for results in (first, again):
        for name, y in results.items():
            equal(y.device, there, name)


@pytest.mark.claim("device.intermediates-by-hand")
def test_only_a_fresh_factory_in_forward_must_be_told_the_device():
    x = torch.ones(4, 4, device=META)
    mask = torch.zeros(4, 4)
    equal(mask.device, CPU, "a fresh mask's device")

    with pytest.raises(RuntimeError, match="device"):
        x + mask
    moved = (x + torch.zeros(4, 4, device=x.device)).device
    equal(moved, META, "where the sum is")


PAIRED = ("add", "sub", "mul", "div", "pow", "eq", "fmod", "minimum", "hypot")


def checked_on_meta(a, b):
    """Operations whose shape functions meta tensors share with all devices."""
    paired = {f"torch.{name}": partial(getattr(torch, name), a, b) for name in PAIRED}
    return paired | {
        "add": lambda: a + b,
        "compare": lambda: a < b,
        "maximum": lambda: torch.maximum(a, b),
        "addcmul": lambda: torch.addcmul(a, a, b),
        "cat": lambda: torch.cat([a, b]),
        "where": lambda: torch.where(a > 0, a, b),
    }


def checked_by_kernels(a, b):
    return {
        "matmul": lambda: a @ b,
        "linear": lambda: nn.functional.linear(a, b),
        "in place": lambda: a.clone().add_(b),
    }


@pytest.mark.claim("device.assert-location", "device.all-on-gpu")
@pytest.mark.parametrize("there", ["meta", pytest.param("cuda", marks=pytest.mark.needs("cuda"))])
def test_an_operation_on_cpu_and_another_device_raises(there):
    here = torch.ones(3, 3)
    elsewhere = torch.ones(3, 3, device=there)
    for a, b in ((here, elsewhere), (elsewhere, here)):
        operations = checked_on_meta(a, b)
        if there == "cuda":
            operations |= checked_by_kernels(a, b)
        for name, operation in operations.items():
            with pytest.raises(RuntimeError, match="device"):
                pytest.fail(f"{name} of {a.device} and {b.device} gives {operation()}")


@pytest.mark.claim("device.assert-location")
@pytest.mark.parametrize(
    "operation", ["add", "compare", "where", *(f"torch.{name}" for name in PAIRED)]
)
def test_a_cpu_tensor_without_dimensions_mixes_with_any_device(device, operation):
    number = torch.tensor(2.0)
    for there in (META, placed("device under test", device)):
        x = torch.ones(3, device=there)
        for operands in ((x, number), (number, x)):
            where = checked_on_meta(*operands)[operation]().device
            equal(where, there, "where the result is")
        # A type alone is no device.
        by_type = x.device == torch.device(there.type)
        equal(by_type, there.index is None, "whether its type equals a device", device=there)

    with pytest.raises(RuntimeError, match="device"):
        checked_on_meta(torch.ones(3), number.to(META))[operation]()
    assert torch.device("cuda") != torch.device("cuda:0"), "no index equals that of a tensor"


@pytest.mark.claim("device.all-on-gpu")
@pytest.mark.parametrize(("b", "d", "k"), [(1, 1, 1), (6, 5, 4), (64, 33, 130)])
@without_collector()
def test_a_training_step_on_the_cpu_touches_no_other_device(b, d, k):
    x = torch.rand(b, d)
    w = torch.rand(d, k, requires_grad=True)
    start = w.detach().numpy().copy()
    before = torch.cuda.memory_allocated()

    def step():
        ((x @ w) ** 2).sum().backward()
        torch.optim.SGD([w], lr=0.1).step()

    equal(crossings(step), [], "copies between devices")

    # The derivative of a sum of squares, by numpy.
    expected = start - 0.1 * 2 * x.numpy().T @ (x.numpy() @ start)
    close(w.detach().numpy(), expected, "the weights after a step", rel=1e-4, within=1e-4)

    where = {tensor.device.type for tensor in (x, w, w.grad)}
    equal(where, {"cpu"}, "devices of the step")

    equal(torch.cuda.memory_allocated(), before, "memory_allocated")


@pytest.mark.claim("device.all-on-gpu")
@pytest.mark.parametrize("kind", NETS)
def test_the_cpu_trains_every_kind_of_layer(kind):
    net, x, labels = net_and_batch(CPU, 4, kind)

    def step():
        logits = net(x).flatten(0, -2)
        nn.functional.cross_entropy(logits, labels.flatten()).backward()
        torch.optim.AdamW(net.parameters()).step()

    equal(crossings(step), [], "copies between devices")


@pytest.mark.claim("device.parameters-resident")
@pytest.mark.parametrize(
    ("widths", "batch", "steps"),
    [
        ([1, 1], 1, 1),
        ([12, 3, 7, 5], 6, 2),
        ([64, 200], 33, 2),
    ],
)
def test_steps_move_batches_alone_unless_parameters_live_on_the_host(widths, batch, steps):
    resident = linear_net(widths, META)
    on_host = linear_net(widths)
    x = torch.ones(batch, widths[0])

    def train():
        for _ in range(steps):
            resident(x.to(META)).sum().backward()
            torch.optim.SGD(resident.parameters(), lr=0.1).step()

    def forward():
        for _ in range(steps):
            moved = {name: p.to(META) for name, p in on_host.named_parameters()}
            torch.func.functional_call(on_host, moved, x.to(META))

    batches = batch * widths[0]
    parameters = sum(m * n for m, n in pairwise(widths))
    for run, elements in ((train, batches), (forward, batches + parameters)):
        copies = crossings(run)
        moved = sum(copied.nbytes for copied in copies)
        equal(moved, 4 * steps * elements, "bytes moved", by=run.__name__)


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
    within = partial(there.copy_, other)
    speed.assert_slower(partial(target.copy_, source), within, what, at_least=2)
    target.zero_()
    target.copy_(source)
    equal(target, source, "the copy that was timed")


@pytest.mark.claim("device.pinned-faster")
def test_a_copy_from_a_buffer_pinned_before_is_faster(cuda, speed):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)
    pinned = pageable.pin_memory()
    from_pageable = partial(target.copy_, pageable)
    speed.assert_slower(from_pageable, partial(target.copy_, pinned), "pageable against pinned")


@pytest.mark.claim("device.pinned-faster")
def test_pinning_for_one_copy_is_slower_than_not_pinning(cuda, speed):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)

    def pin_and_copy():
        # torch keeps pinned blocks: the second call would pin nothing.
        empty_host_cache()
        target.copy_(pageable.pin_memory(), non_blocking=True)

    what = "pin_memory() and copy against a plain copy"
    speed.assert_slower(pin_and_copy, partial(target.copy_, pageable), what)


@pytest.mark.claim("device.nonblocking-overlap")
@pytest.mark.timed
def test_a_non_blocking_copy_returns_early_only_from_pinned_memory(cuda, record_figure):
    pageable = torch.ones(COPIED_FLOATS)
    target = torch.empty(COPIED_FLOATS, device=cuda)
    pinned = pageable.pin_memory()
    # The first copy of each warms up.
    from_pinned = [timed_copy(target, pinned) for _ in range(10)][1:]
    from_pageable = [timed_copy(target, pageable) for _ in range(10)][1:]
    # The least of nine, since a busy host can come back late from one.
    returned_s, copied_s, still_running = min(from_pinned)
    record_figure(f"host free after {returned_s * 1e6:.0f} us of a copy of {copied_s * 1e3:.1f} ms")
    assert still_running, f"a pinned copy of {copied_s:.4f} s was over when the call returned"

    at_most(returned_s, copied_s / 2, "seconds for which a pinned copy holds the host")

    returned_s, copied_s, _ = sorted(from_pageable)[4]
    at_least(returned_s, copied_s / 2, "seconds for which a pageable copy holds the host")


@pytest.mark.claim("device.nonblocking-overlap")
def test_a_copy_to_the_host_must_be_waited_for_before_it_is_read(cuda):
    source = torch.ones(2**20, device=cuda)
    target = torch.zeros(2**20).pin_memory()
    torch.cuda.synchronize()
    # Cycles: about a tenth of a second before the copy can begin.
    torch.cuda._sleep(200_000_000)
    target.copy_(source, non_blocking=True)
    early = target[-1].item()
    torch.cuda.synchronize()
    late = target[-1].item()
    equal((early, late), (0, 1), "what is read before and after the wait")


@pytest.mark.claim("device.not-magic")
def test_pinning_gains_less_the_more_computation_there_is_per_copy(cuda, speed, record_figure):
    floats = 2**24
    pageable = torch.ones(floats)
    target = torch.empty(floats, device=cuda)
    pinned = pageable.pin_memory()
    a = torch.randn(4096, 4096, device=cuda)
    result = torch.empty(4096, 4096, device=cuda)
    copy_s = speed.seconds(lambda: target.copy_(pageable), calls=3)
    product_s = speed.seconds(lambda: torch.mm(a, a, out=result), calls=3)

    def step(source, products):
        target.copy_(source, non_blocking=True)
        target.mul_(2)
        for _ in range(products):
            torch.mm(a, a, out=result)

    what = "copy and one light kernel"
    light = speed.assert_slower(partial(step, pageable, 0), partial(step, pinned, 0), what)
    many = max(1, round(20 * copy_s / product_s))
    what = "copy and products of 20 times its time"
    bounds = {"at_least": 0.5, "at_most": 1 + (light.value - 1) / 2}
    speed.assert_slower(partial(step, pageable, many), partial(step, pinned, many), what, **bounds)


@pytest.mark.claim("device.cpu-too-slow")
@pytest.mark.parametrize(
    ("all_threads", "at_least"), [(False, 10), (True, 2)], ids=["one core", "all cores"]
)
def test_a_large_product_is_far_slower_on_the_cpu(cuda, speed, all_threads, at_least):
    """Large for the GPU; a CPU's core takes a tenth of a second for it, so few pairs are timed."""
    n = 2048
    here = torch.randn(n, n)
    there = here.to(cuda)
    what = f"{n} x {n} fp32 product, CPU against GPU"
    options = {"at_least": at_least, "all_threads": all_threads, "pairs": 9}
    speed.assert_slower(lambda: here @ here, lambda: there @ there, what, **options)


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

    def row_by_row():
        for source, target in zip(here, there, strict=True):
            target.copy_(source, non_blocking=True)

    at_once = partial(there.copy_, here, non_blocking=True)
    what = f"{rows} copies of {4 * floats} B against one"
    speed.assert_slower(row_by_row, at_once, what, at_least=2)
    equal(there, here, "the copy that was timed")
