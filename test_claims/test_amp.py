"""Claims about mixed precision: the dtype of each tensor and operation, losses and gains."""

import copy
import math
import re
import warnings
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from accounting.activations import activation_bytes
from accounting.formats import format_of
from accounting.memory import element_bytes
from accounting.models import DeepLinear
from prooflops import measured
from test_claims.oracles import low_precision, tensors
from test_claims.oracles.dispatched import Recorded
from test_claims.strategies import in_fp64, seeds, sizes

LOW = {"bf16": torch.bfloat16, "fp16": torch.float16}
HIDDEN_WIDTHS = [(32,), *low_precision.NETS.values()]
UNIT_OF_BF16 = 2.0**-8


def linear_layers(device, dims, seed=0):
    torch.manual_seed(seed)
    layers = [nn.Linear(*widths) for widths in pairwise(dims)]
    return nn.Sequential(*layers).to(device)


def seeded(shape, seed, device):
    """The same normal numbers on every device."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(device)


def flattened(net):
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def step(net, x, optimizer, dtype=None, scaler=None):
    """One training step under autocast where a dtype is given; its output and loss."""
    optimizer.zero_grad()
    with torch.autocast(x.device.type, dtype or torch.bfloat16, enabled=dtype is not None):
        y = net(x)
        loss = functional.mse_loss(y, x[:, : y.shape[1]])

    if scaler is None:
        loss.backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return y, loss


@pytest.mark.claim("amp.recipe-fp32-params", "dtype.default-fp16-misconception")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(("dims", "batch"), [((9, 2), 3), ((16, 12, 5), 32)])
def test_under_autocast_all_that_is_kept_is_fp32_and_products_are_low(device, dims, batch, low):
    net = linear_layers(device, dims)
    optimizer = torch.optim.AdamW(net.parameters())
    with Recorded() as products:
        y, loss = step(net, torch.ones(batch, dims[0], device=device), optimizer, LOW[low])
    parameters = list(net.parameters())
    kept = {"parameters": parameters, "gradients": [p.grad for p in parameters]}
    # Among the state is the count of steps, which lies on the CPU.
    kept["state"] = [value for state in optimizer.state.values() for value in state.values()]
    for name, held in kept.items():
        dtypes = {tensor.dtype for tensor in held}
        assert dtypes == {torch.float32}, f"{name} are {dtypes}, but should be fp32 [{low}]"
        finer = any(tensors.difference(x, x.to(LOW[low]).float()) for x in held)
        assert finer or name == "gradients", f"{name} hold no value finer than {low}"

    ran = set(products.product_dtypes)
    assert ran == {LOW[low]}, f"products ran in {ran}, not in {low}"

    got = y.dtype, loss.dtype
    assert got == (LOW[low], torch.float32), f"output and loss are in {got} [{low}]"


@pytest.mark.claim("amp.recipe-fp32-params")
@pytest.mark.parametrize("hidden", HIDDEN_WIDTHS)
@pytest.mark.parametrize("compute", ["bf16", "fp8"])
def test_training_with_low_products_follows_fp32(device, record_figure, compute, hidden):
    low = {"dtype": torch.bfloat16} if compute == "bf16" else {"layer": low_precision.Fp8Linear}
    _, (first, *_, should) = low_precision.trained_net(device, hidden=hidden)
    _, (*_, got) = low_precision.trained_net(device, hidden=hidden, **low)
    record_figure(f"loss {first:.3f} to {should:.3f} in fp32, {got:.3f} with {compute} products")
    assert should < 0.9 * first, f"the fp32 run did not learn: {first} to {should}"

    near = abs(got - should) < 0.2 * (first - should)
    assert near, f"with {compute} the loss is {got}, but should be near {should}"


class UnscaledFp8Linear(low_precision.Fp8Linear):
    scaled = False


@pytest.mark.claim("amp.fp8-inference")
@pytest.mark.parametrize("hidden", HIDDEN_WIDTHS)
def test_a_trained_net_keeps_its_outputs_in_fp8_without_a_scale(device, record_figure, hidden):
    trained, _ = low_precision.trained_net(device, hidden=hidden)
    cast = low_precision.layers(hidden, UnscaledFp8Linear).to(device)
    cast.load_state_dict(trained.state_dict())
    x = torch.randn(1000, 16, device=device)
    with torch.no_grad():
        error = tensors.relative_error(cast(x), trained(x))
    record_figure(f"the outputs are off by {error:.1%} in fp8 e4m3, unscaled")
    # Each operand is off by up to 2^-4, by a third of that on average.
    assert 0 < error < 0.05, f"in fp8 the outputs are off by {error:.1%}, not by a few percent"


@pytest.mark.claim("amp.fp8-training", "amp.fp8-inference")
@pytest.mark.parametrize("hidden", HIDDEN_WIDTHS)
@pytest.mark.parametrize(("factor", "trains"), [(1.0, True), (1e-6, False)])
def test_fp8_trains_where_operands_are_in_range_as_they_are_or_scaled(
    device, record_figure, factor, trains, hidden
):
    """Gradients as usual, and a millionth of that: below e5m2's least value, unless scaled."""
    train = partial(low_precision.trained_net, device, loss_factor=factor, hidden=hidden)
    _, (_, *_, fp32) = train()
    _, (first, *_, scaled) = train(layer=low_precision.Fp8Linear)
    _, (unscaled_first, *_, unscaled) = train(layer=UnscaledFp8Linear)
    ends = f"{fp32:.3f} in fp32, {scaled:.3f} in scaled and {unscaled:.3f} in unscaled fp8"
    record_figure(f"{hidden}: {first:.3f} to {ends}")
    near = abs(scaled - fp32) < 0.2 * (first - fp32)
    assert near, f"the losses end at {ends}, but scaled should be near fp32"

    # The biases alone, which are in no product, still learn a little.
    gained = (unscaled_first - unscaled) / (first - fp32)
    right = gained > 0.8 if trains else gained < 0.1
    assert right, f"unscaled fp8 came {gained:.0%} of the way: {ends}"


@pytest.mark.claim("amp.recipe-bf16-params")
@pytest.mark.parametrize(("dims", "batch"), [((9, 2), 3), ((16, 12, 5), 32)])
def test_beside_a_master_copy_all_but_the_state_is_in_bf16(device, dims, batch):
    net = linear_layers(device, dims).bfloat16()
    activations = []
    parameters = list(net.parameters())
    masters = [parameter.detach().float() for parameter in parameters]
    optimizer = torch.optim.AdamW(masters)

    def keep(tensor):
        activations.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        y = net(torch.ones(batch, dims[0], device=device, dtype=torch.bfloat16))
    y.sum().backward()
    for master, parameter in zip(masters, parameters, strict=True):
        master.grad = parameter.grad.float()
    optimizer.step()
    held = {"parameters": parameters, "activations": [y, *activations]}
    held["gradients"] = [parameter.grad for parameter in parameters]
    held["state"] = [value for state in optimizer.state.values() for value in state.values()]
    for name, group in held.items():
        found = {tensor.dtype for tensor in group}
        should = {torch.float32 if name == "state" else torch.bfloat16}
        assert found == should, f"{name} are in {found}, but should be in {should}"


@pytest.mark.claim("amp.recipe-bf16-params", "optim.fp32-state-needed")
@given(
    weight=st.floats(1, 2, exclude_max=True, width=16), update=st.integers(2**9, 2**17), seed=seeds
)
def test_an_update_below_half_a_spacing_needs_a_repair_in_bf16(device, weight, update, seed):
    bf16 = format_of("bf16")
    copies = 4096
    steps = 8
    # fp32 holds every difference exactly.
    start = bf16.rounded(weight)
    update = update * 2.0**-23
    predicted = start
    exact = start - steps * update
    torch.manual_seed(seed)
    master = torch.tensor(start, device=device)
    nearest = master.bfloat16()
    stochastic = nearest.expand(copies).clone()
    for _ in range(steps):
        predicted = bf16.rounded(predicted - update)
        nearest = (nearest.float() - update).bfloat16()
        master = master - update
        stochastic = low_precision.stochastically_rounded(stochastic.float() - update)

    said = f"[{start=}, {update=}, {seed=}]"
    assert nearest.item() == predicted, f"bf16 ends at {nearest.item()}, not {predicted} {said}"

    # Below 1 the spacing is 2^-8, above it 2^-7: less than half the smaller one goes nowhere.
    stays = nearest.item() == start
    assert stays or update >= 2**-9, f"the update moved bf16 to {nearest.item()} {said}"
    assert master.item() == exact, f"the master copy is at {master.item()}, not {exact} {said}"

    # A rounding deviates by half a spacing of 2^-7 at most; seven deviations: once in 4e11.
    off = in_fp64(stochastic).mean().item() - exact
    noise = 2**-8 * math.sqrt(steps / copies)
    assert abs(off) < 7 * noise, f"stochastic rounding is off by {off} on average {said}"


# How autocast chooses: its own dtype, fp32 on every device or on CUDA alone, or as operands are.
PRODUCTS = ["linear", "matmul", "bmm", "addmm", "einsum", "conv1d", "attention"]
IN_FP32 = ["mse_loss", "l1_loss", "prod", "cat with fp32"]
IN_FP32_ON_CUDA = [
    *("softmax", "log_softmax", "layer_norm", "exp", "log", "pow", "sum", "cumsum", "norm"),
]
AS_OPERANDS_ARE = ["add", "relu", "gelu", "mm with out="]
OPERATIONS = [
    *(*PRODUCTS, *IN_FP32, *IN_FP32_ON_CUDA, *AS_OPERANDS_ARE),
    *("matrix times vector", "fp64 matmul"),
]


def call(name, x):
    """The result of an operation whose operands are made of the matrix x."""
    batch = x.unsqueeze(0)
    transposed = x.mT
    calls = {
        "add": (torch.add, x, x),
        "matmul": (torch.matmul, x, x),
        "linear": (functional.linear, x, x),
        "bmm": (torch.bmm, batch, batch),
        "addmm": (torch.addmm, x, x, x),
        "einsum": (torch.einsum, "ij,jk", x, x),
        "conv1d": (functional.conv1d, batch, x.unsqueeze(2)),
        "attention": (functional.scaled_dot_product_attention, batch, batch, batch),
        "mse_loss": (functional.mse_loss, x, transposed),
        "l1_loss": (functional.l1_loss, x, transposed),
        "cat with fp32": (torch.cat, [x, x.float()]),
        "softmax": (torch.softmax, x, -1),
        "log_softmax": (torch.log_softmax, x, -1),
        "layer_norm": (functional.layer_norm, x, x.shape[1:]),
        "log": (torch.log, x.abs()),
        "pow": (torch.pow, x, 2),
        "cumsum": (torch.cumsum, x, 0),
        "gelu": (functional.gelu, x),
        "mm with out=": (partial(torch.mm, out=torch.empty_like(x)), x, x),
        "matrix times vector": (torch.mv, x, x.select(0, 0)),
        "fp64 matmul": (torch.matmul, x.double(), x.double()),
    }
    function, *operands = calls.get(name, (getattr(torch, name, None), x))
    return function(*operands)


def chosen_dtype(name, kind, low, dtype):
    """The dtype in which autocast to `low` runs an operation on operands of this dtype."""
    if name == "fp64 matmul":
        return torch.float64
    if name in PRODUCTS or (name == "matrix times vector" and kind == "cuda"):
        return low
    if name in IN_FP32 or (name in IN_FP32_ON_CUDA and kind == "cuda"):
        return torch.float32
    return dtype


@contextmanager
def autocast_without_a_device(kind, low):
    """Autocast on fake tensors of a kind of device; torch.autocast asks for a real one."""
    with FakeTensorMode():
        torch.set_autocast_dtype(kind, low)
        torch.set_autocast_enabled(kind, True)
        try:
            yield
        finally:
            torch.set_autocast_enabled(kind, False)
            torch.clear_autocast_cache()


@pytest.mark.claim("amp.autocast")
@pytest.mark.parametrize("kind", ["cpu", "cuda"])
@pytest.mark.parametrize("low", LOW)
def test_autocast_chooses_each_dtype_by_the_table_of_the_kind_of_device(kind, low):
    with autocast_without_a_device(kind, LOW[low]):
        for name in OPERATIONS:
            for dtype in (torch.float32, LOW[low]):
                got = call(name, torch.empty(8, 8, device=kind, dtype=dtype)).dtype
                should = chosen_dtype(name, kind, LOW[low], dtype)
                assert got == should, f"{name} of {dtype} on {kind} gives {got}, not {should}"


@pytest.mark.claim("amp.autocast")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", OPERATIONS)
def test_under_autocast_an_operation_has_the_values_of_its_dtype(device, name, low):
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"no table of autocast's choices on {device.type}")
    for dtype in (torch.float32, LOW[low]):
        x = seeded((8, 8), 0, device).to(dtype)
        with torch.autocast(device.type, LOW[low]):
            got = call(name, x)
        chosen = chosen_dtype(name, device.type, LOW[low], dtype)
        assert got.dtype == chosen, f"{name} of {dtype} is in {got.dtype}, not in {chosen}"
        wrong = tensors.difference(got, call(name, x.to(chosen)))
        assert not wrong, f"{name} of {dtype} under autocast, against {chosen}: {wrong}"


@pytest.mark.claim("amp.cross-entropy-fp32")
@pytest.mark.parametrize("low", LOW)
def test_on_cuda_autocast_leaves_the_softmax_of_cross_entropy_in_16_bits(low):
    for kind, softmax_dtype in (("cuda", LOW[low]), ("cpu", torch.float32)):
        with autocast_without_a_device(kind, LOW[low]), Recorded() as recorded:
            logits = torch.empty(8, 5, device=kind, dtype=LOW[low])
            functional.cross_entropy(logits, torch.zeros(8, device=kind, dtype=torch.long))
        made = {operation: made for operation, _, made in recorded.calls}
        aten = torch.ops.aten
        got = made[aten._log_softmax][0].dtype, made[aten.nll_loss_forward][0].dtype
        assert got == (softmax_dtype, torch.float32), (
            f"on {kind} the softmax and the loss of {low} logits are in {got}, "
            f"but should be in {softmax_dtype} and fp32 (torch {torch.__version__})"
        )


@pytest.mark.claim("amp.cross-entropy-fp32")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(("rows", "words"), [(8, 8), (3, 5000)])
def test_logits_cast_before_cross_entropy_give_the_loss_of_fp32(
    device, record_figure, rows, words, low
):
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"no table of autocast's choices on {device.type}")
    logits = seeded((rows, words), 0, device).to(LOW[low])
    labels = torch.arange(rows).to(device)
    with torch.autocast(device.type, LOW[low]):
        cast_before = functional.cross_entropy(logits.float(), labels).item()
        loss = functional.cross_entropy(logits, labels)
    assert loss.dtype == torch.float32, f"the loss of {low} logits is in {loss.dtype}"
    as_they_are = loss.item()

    wide = in_fp64(logits)
    chances = wide.exp() / wide.exp().sum(dim=1, keepdim=True)
    exact = -chances[range(rows), range(rows)].log().mean().item()
    record_figure(f"{low}: {as_they_are:.5f} as they are, {cast_before:.5f} cast, {exact:.5f}")
    off = abs(cast_before - exact)
    assert off < 1e-6 * exact, f"cast before, the loss is {cast_before}, but should be {exact}"

    # A log-probability is rounded to half a unit at most, its mean by no more.
    half_unit = torch.finfo(LOW[low]).eps / 2 if device.type == "cuda" else 1e-6
    off = abs(as_they_are - exact)
    assert off < 2 * half_unit * exact, f"the loss is {as_they_are}, further than {half_unit}"


def deprecations(make):
    """What `make` returns, and the texts of the deprecations of which it warns."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()

    ends = FutureWarning, DeprecationWarning
    return made, [str(warning.message) for warning in caught if issubclass(warning.category, ends)]


def enabled_on(device):
    return torch.is_autocast_enabled(device.type)


@pytest.mark.claim("amp.cuda-amp-api")
@pytest.mark.parametrize("name", ["autocast", "GradScaler"])
def test_torch_cuda_amp_warns_of_its_end_and_torch_amp_does_not(device, name):
    # torch will remove it one day.
    if hasattr(torch.cuda, "amp") and hasattr(torch.cuda.amp, name):
        _, (warned, *_) = deprecations(getattr(torch.cuda.amp, name))
        named = re.search(rf"torch\.amp\.{name}\('cuda'", warned)
        assert named, f"the warning names no successor: {warned}"

    for kind in ("cuda", device.type):
        made, warned = deprecations(partial(getattr(torch.amp, name), kind))
        assert not warned, f"torch.amp.{name}({kind!r}) warns: {warned}"

    enabled = made.is_enabled if name == "GradScaler" else made(partial(enabled_on, device))
    assert enabled(), f"torch.amp.{name}({device.type!r}) is not enabled on {device}"


@pytest.mark.claim("amp.only-forward-cast", "grad.same-shape")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("dims", [(3, 8), (8, 3, 3, 8)])
def test_backward_products_run_low_too_and_gradients_end_in_fp32(device, dims, low):
    net = linear_layers(device, dims)
    x = torch.randn(4, dims[0], device=device)
    dtype = LOW[low]
    with Recorded() as forward, torch.autocast(device.type, dtype):
        y = net(x)
    # Outside the region, as it is recommended.
    with Recorded() as backward:
        y.float().sum().backward()
    layers = len(dims) - 1
    for ran, products in ((forward, layers), (backward, 2 * layers - 1)):
        got = ran.product_dtypes
        should = [dtype] * 2 * products
        assert got == should, f"operands were in {got}, but should be in {should}"

    for parameter in net.parameters():
        grad = parameter.grad
        assert grad.dtype == torch.float32, f"a gradient is in {grad.dtype}, not fp32"
        finer = tensors.difference(grad, grad.to(dtype).float())
        assert not finer, f"a gradient is finer than {low}: {finer}"


def off_by_low_operands(net, x, dtype, scale, backward):
    """How far gradients are off where each layer's input, or the gradient of its output, is cast.

    The cast is to `dtype` and back; a gradient is multiplied by `scale` before and divided after.
    """
    largest = torch.finfo(dtype).max

    def through(tensor):
        return (tensor * scale).clamp(-largest, largest).to(dtype).float() / scale

    exact = copy.deepcopy(net)
    cast = copy.deepcopy(net)
    for layer in cast:
        if backward:
            layer.register_full_backward_pre_hook(lambda _, above: (through(above[0]),))
        else:
            # Without a gradient of its own: the backward pass is left as it is.
            layer.register_forward_pre_hook(
                lambda _, given: given[0] + (through(given[0]) - given[0]).detach()
            )

    gradients = []
    for of in (cast, exact):
        (of(x.requires_grad_()).square().mean() * 1e-6).backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in of.parameters()]))

    return tensors.relative_error(*gradients)


@pytest.mark.claim("amp.backward-caution")
@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e5m2"])
@pytest.mark.parametrize(("dims", "batch"), [((16, 8, 4), 32), ((64, 96, 64, 32), 512)])
def test_gradients_are_lost_in_formats_that_do_for_activations(
    device, record_figure, name, dims, batch
):
    row = format_of(name)
    dtype = getattr(torch, format_of(name).torch_name)
    net = linear_layers(device, dims)
    x = seeded((batch, dims[0]), 1, device)
    forward, as_they_are, scaled = (
        off_by_low_operands(net, x, dtype, scale, backward)
        for scale, backward in ((1.0, False), (1.0, True), (2.0**20, True))
    )
    record_figure(f"{name}: forward {forward:.1%}, backward {as_they_are:.1%}, scaled {scaled:.1%}")
    # Each layer rounds once, by half of eps at most.
    bound = row.eps / 2 * len(dims)
    assert 0 < forward < bound, f"activations in {name} move the gradients by {forward}"
    assert 0 < scaled < bound, f"scaled gradients in {name} are off by {scaled}, not {bound}"

    # The mean over the batch and the factor leave gradients below the least numbers of five bits.
    should_be_lost = row.exponent_bits < 8
    lost = as_they_are > 10 * bound if row.bits == 16 else as_they_are > 0.99
    assert lost == should_be_lost, f"in {name} as they are gradients are off by {as_they_are}"


@pytest.mark.claim("amp.gradscaler")
@given(seed=seeds, exponent=st.integers(0, 20))
def test_with_bf16_the_scaler_changes_no_bit(device, seed, exponent):
    ends = []
    for scaler in (None, torch.amp.GradScaler(device.type, init_scale=2.0**exponent)):
        net = linear_layers(device, (3, 4, 2), seed)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        x = seeded((8, 3), seed, device)
        for _ in range(3):
            _, loss = step(net, x, optimizer, torch.bfloat16, scaler)
        ends.append((loss.item(), flattened(net).tolist()))
    assert ends[0] == ends[1], f"a scaler changes bf16 [{seed=}, scale 2^{exponent}]"


@pytest.mark.claim("amp.gradscaler")
@given(overflows=st.lists(st.booleans(), max_size=10), interval=sizes(1, 3))
def test_the_scaler_skips_a_step_that_overflowed_and_finds_its_scale(device, overflows, interval):
    weight = nn.Parameter(torch.zeros((), device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=interval)
    scale = 1024.0
    taken = 0
    good = 0
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight * (math.inf if overflow else -1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        if overflow:
            scale = scale / 2
            good = 0
        else:
            taken = taken + 1
            good = good + 1
        if good == interval:
            scale = 2 * scale
            good = 0

    got = (scaler.get_scale(), weight.item())
    should = (scale, taken)
    assert got == should, f"scale and steps are {got}, not {should} [{overflows}, {interval=}]"


@pytest.mark.claim("amp.ex-clip-bf16")
@pytest.mark.parametrize(
    ("dims", "seed"), [((16, 8, 4), 0), ((64, 64, 64, 64), 1), ((1024, 1100, 3), 2)], ids=str
)
def test_a_bf16_nets_gradients_have_the_norm_of_fp32_and_are_clipped(device, dims, seed):
    """The last net has gradients of more elements than kernels add up in one piece."""
    low = linear_layers(device, dims, seed).bfloat16()
    x = seeded((64, dims[0]), seed, device).bfloat16()
    norms = []
    for net in (low, copy.deepcopy(low).float()):
        net(x.to(net[0].weight.dtype)).square().mean().backward()
        gradients = [parameter.grad for parameter in net.parameters()]
        norms.append(math.sqrt(sum(in_fp64(grad).square().sum().item() for grad in gradients)))

    # Activations and gradients of each layer are rounded, and most of the errors cancel.
    within = len(dims) * UNIT_OF_BF16
    assert norms[0] == pytest.approx(norms[1], rel=within), (
        f"gradients in bf16 have the norm {norms[0]}, those in fp32 {norms[1]}"
    )

    gradients = [parameter.grad for parameter in low.parameters()]
    said = nn.utils.clip_grad_norm_(low.parameters(), 0.5 * norms[0]).item()
    # Each tensor's norm and the whole are rounded to bf16 once.
    assert said == pytest.approx(norms[0], rel=4 * UNIT_OF_BF16), f"torch's norm is {said}"

    clipped = math.sqrt(sum(in_fp64(grad).square().sum().item() for grad in gradients))
    assert clipped == pytest.approx(0.5 * norms[0], rel=6 * UNIT_OF_BF16), (
        f"clipped to half, gradients have the norm {clipped} of {norms[0]}"
    )


@pytest.mark.claim("amp.ex-clip-bf16")
@pytest.mark.parametrize("low", [None, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bf16_needs_clipping_where_fp32_does_at_a_batch_of_outliers(
    device, record_figure, low, seed
):
    """Targets are a hundred times as large in step 20 of 30."""
    x = seeded((64, 16), seed, device)
    y = x.sum(dim=1, keepdim=True).sin() + x[:, :1]
    losses = {}
    for most in (math.inf, 1.0):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
        optimizer, losses[most] = torch.optim.SGD(net.parameters(), lr=0.1), []
        for number in range(30):
            optimizer.zero_grad()
            with torch.autocast(device.type, low, enabled=low is not None):
                loss = functional.mse_loss(net(x), 100 * y if number == 20 else y)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), most)
            optimizer.step()
            losses[most].append(loss.item())

    free = losses[math.inf]
    clipped = losses[1.0]
    record_figure(f"loss {free[19]:.2f}, then {free[21]:.0f} unclipped, {clipped[21]:.2f} clipped")
    assert free[21] > 100 * free[0], f"unclipped, the loss goes only to {free[21]}"
    assert clipped[21] < clipped[0] / 2, f"clipped, the loss goes to {clipped[21]}"


@pytest.mark.claim("amp.ex-clip-bf16", "dtype.bf16-resolution", "dtype.bf16-suffices")
@pytest.mark.parametrize("number", [1000, 5000, 2**17 + 3])
def test_a_sum_of_squares_kept_in_bf16_stands_still_at_256(device, number):
    ones = torch.ones(number, device=device, dtype=torch.bfloat16)
    kept = torch.zeros((), device=device, dtype=torch.bfloat16)
    for one in ones[:1000]:
        kept += one * one
    assert kept.item() == 256, f"1000 ones add up to {kept.item()} in bf16, but should to 256"

    parameter = nn.Parameter(ones)
    parameter.grad = ones
    norm = nn.utils.clip_grad_norm_([parameter], math.inf).item()
    assert norm == pytest.approx(math.sqrt(number), rel=UNIT_OF_BF16), f"torch's norm is {norm}"


@pytest.mark.claim("amp.ex-clip-bf16")
@given(seed=seeds, exponent=st.integers(4, 16))
def test_scaled_gradients_must_be_unscaled_before_they_are_clipped(device, seed, exponent):
    x = seeded((16, 3), seed, device)

    def clipped_step(scaled, unscale=False):
        """The norm before clipping, and the length of the step."""
        net = linear_layers(device, (3, 2), seed)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler(device.type, init_scale=2.0**exponent, enabled=scaled)
        start = flattened(net)
        scaler.scale(net(x).square().mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-3).item()
        scaler.step(optimizer)
        return norm, (flattened(net) - start).norm().item()

    plain = clipped_step(False)
    unscaled = clipped_step(True, True)
    scaled = clipped_step(True)
    assume(plain[0] > 1e-2)
    same = unscaled == pytest.approx(plain, rel=1e-5)
    assert same, f"unscaled, norm and step are {unscaled}, not {plain} [{seed=}]"

    should = pytest.approx(plain[0] * 2**exponent, rel=1e-5)
    assert scaled[0] == should, f"the scaled norm is {scaled[0]}, not {should} [{seed=}]"

    # Clipped to 1e-3 and only then divided by the scale: the step all but vanishes.
    far_below = scaled[1] < plain[1] / 2 ** (exponent - 2)
    assert far_below, f"the step is {scaled[1]}, not far below {plain[1]} [{seed=}]"


@pytest.mark.claim("amp.activation-memory", "act.BDL")
@pytest.mark.parametrize(
    ("batch", "dim", "layers"),
    [(2, 16, 1), (16, 2, 4), (48, 32, 2), (48, 32, 4), (16, 16, 3), (33, 16, 2)],
)
def test_autocast_halves_activations_and_keeps_copies_of_weights(
    workloads, metered_device, batch, dim, layers
):
    model = DeepLinear(dim, layers, outputs=dim)
    net = workloads.build(model, device=metered_device)
    x = workloads.inputs(model, batch, device=metered_device)

    def forward(enabled):
        with torch.autocast(metered_device.type, torch.bfloat16, enabled=enabled):
            return net(x)

    fp32 = tensors.graph_bytes(metered_device, partial(forward, False))
    low = tensors.graph_bytes(metered_device, partial(forward, True))
    said = f"[{batch=}, {dim=}, {layers=}]"
    # The first weight's gradient needs no other weight.
    activations = batch * dim * layers
    weights = dim * dim * layers
    input_cast = batch * dim
    assert fp32 == element_bytes(activations, "fp32"), f"fp32 keeps {fp32} B {said}"

    should = element_bytes(activations + weights + input_cast, "bf16")
    formula = activation_bytes(model, batch, autocast="bf16")
    assert low == formula == should, f"autocast keeps {low} B, not {should}, {formula=} {said}"

    # B·L that are kept halve, against copies of D·L weights and of the input's B.
    gains = batch * (layers - 1) > dim * layers
    assert (low < fp32) == gains, f"autocast keeps {low} B, fp32 {fp32}, but {gains=} {said}"


@pytest.mark.claim("amp.ex-bf16-linear-32")
@pytest.mark.parametrize("dim", [2, 33, 300])
def test_a_linear_layer_on_a_batch_of_32_takes_half_the_bytes_in_bf16(metered_device, dim):
    device = metered_device
    taken = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        ones = partial(torch.ones, device=device, dtype=dtype)
        warm = functional.linear(ones(32, dim), ones(32, dim))
        with measured.memory(device) as held:
            weight = ones(dim, dim)
            x = ones(32, dim)
            y = functional.linear(x, weight)
        taken[name] = held.live_bytes
        formula = element_bytes(dim * dim + 2 * 32 * dim, name)
        assert taken[name] == formula, f"{name} takes {taken[name]} B, not {formula}"
        del warm, weight, x, y

    assert taken["fp32"] == 2 * taken["bf16"], f"bytes are {taken}, but should be 2 to 1"


def layer_in_fp32_and_bf16(device, width):
    """The product of a linear layer on a batch of 32, in fp32 and in bf16."""
    x = torch.randn(32, width, device=device)
    weight = torch.randn(width, width, device=device)
    low_x = x.bfloat16()
    low_weight = weight.bfloat16()
    return lambda: x @ weight, lambda: low_x @ low_weight


@pytest.mark.claim("amp.ex-bf16-linear-32")
def test_a_large_layer_is_faster_in_bf16_with_a_unit_for_it(
    device, speed, record_figure, bound_flop_per_s
):
    dim = 1024 if device.type == "cpu" else 8192
    fp32, bf16 = layer_in_fp32_and_bf16(device, dim)
    rates = bound_flop_per_s("bf16"), bound_flop_per_s("fp32")
    if None in rates or rates[0] <= rates[1]:
        record_figure(f"no bf16 unit is known here: {speed.ratio(fp32, bf16)}")
    else:
        speed.assert_slower(fp32, bf16, f"batch 32, width {dim}, fp32 against bf16")


@pytest.mark.claim("amp.ex-bf16-linear-32", "dtype.lower-is-faster")
@pytest.mark.parametrize("width", [4, 8, 32])
def test_a_small_layer_is_not_twice_as_fast_in_bf16(device, speed, width):
    fp32, bf16 = layer_in_fp32_and_bf16(device, width)
    speed.assert_slower(bf16, fp32, f"batch 32, width {width}, bf16 against fp32", at_least=0.6)


def steps_of_two_layers(device, dim, batch):
    """Training steps of a net of two linear layers, in fp32 and in mixed precision."""
    net = linear_layers(device, (dim, dim, dim))
    x = torch.randn(batch, dim, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    return partial(step, net, x, optimizer), partial(step, net, x, optimizer, torch.bfloat16)


def casts_of(function):
    with Recorded() as dispatched:
        function()
    return dispatched.casts


@pytest.mark.claim("amp.half-epoch-time")
@pytest.mark.parametrize(("width", "batch"), [(8, 8), (32, 16)])
def test_for_small_layers_mixed_precision_is_slower_than_fp32(device, speed, width, batch):
    fp32, mixed = steps_of_two_layers(device, width, batch)
    # Of x, of two weights and biases, of the output for the loss; and back.
    casts = casts_of(fp32), casts_of(mixed)
    assert casts[0] == 0 < casts[1], f"fp32 and mixed precision cast {casts} tensors a step"

    what = f"two layers of width {width}, mixed precision against fp32"
    speed.assert_slower(mixed, fp32, what, at_least=0.9)


@pytest.mark.claim("amp.half-epoch-time")
@pytest.mark.parametrize("times", [1, 2])
def test_for_large_layers_mixed_precision_gains_at_most_what_products_do(
    device, speed, record_figure, times
):
    dim, batch = (384 * times, 256) if device.type == "cpu" else (4096 * times, 4096)
    fp32, mixed = steps_of_two_layers(device, dim, batch)
    x = torch.randn(batch, dim, device=device)
    weight = torch.randn(dim, dim, device=device)
    low_x = x.bfloat16()
    low_weight = weight.bfloat16()
    # Each step takes milliseconds.
    few = {"pairs": 15}
    product = speed.ratio(lambda: x @ weight, lambda: low_x @ low_weight, **few)
    record_figure(f"a product alone, fp32 against bf16: {product}")
    what = f"two layers of width {dim}"
    if product.high < 1:
        speed.assert_slower(mixed, fp32, f"{what}, mixed precision against fp32", **few)
        return

    # Products of other shapes go back, which may gain more.
    bounds = {"at_least": float(product.low > 2), "at_most": 2 * product.value}
    speed.assert_slower(fp32, mixed, f"{what}, fp32 against mixed precision", **bounds, **few)


@pytest.mark.claim("amp.recipe-not-switch")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("wide", [False, True])
@given(exponent=st.integers(-4, 12), rows=sizes(most=5))
def test_large_scores_need_another_dtype_or_attention_in_fp32(device, low, wide, exponent, rows):
    """The largest scores are 8 · 4^exponent: from 2^17 on infinite in fp16, their softmax NaN."""
    net = low_precision.Attention(wide).to(device)
    nn.init.eye_(net.project.weight)
    x = 2.0**exponent * (2.0 * torch.randint(0, 2, (rows, 8), device=device) - 1)
    with Recorded() as products, torch.no_grad(), torch.autocast(device.type, LOW[low]):
        got = net(x)
    of_attention = torch.float32 if wide else LOW[low]
    dtypes = [LOW[low]] * 2 + [of_attention] * 4
    ran = products.product_dtypes
    assert ran == dtypes, f"products are of {ran}, not {dtypes} [{wide=}]"

    exact = (in_fp64(x) @ in_fp64(x).mT).softmax(-1) @ in_fp64(x)
    close = torch.allclose(in_fp64(got), exact, rtol=1e-5, atol=1e-5 * 2.0**exponent)
    assert close or not wide, f"attention in fp32 gives {got}, not {exact} [{exponent=}]"

    fits = bool(got.isfinite().all())
    should = low == "bf16" or wide or 3 + 2 * exponent < 16
    assert fits == should, f"in {low} attention is finite: {fits} [{wide=}, {exponent=}, {rows=}]"


@pytest.mark.claim("amp.origin-2017")
def test_the_arxiv_number_of_the_paper_says_october_2017(pytestconfig):
    registry = pytestconfig.rootpath / "test_claims/registry/amp.toml"
    text = registry.read_text(encoding="utf-8")
    number = r'key = "mixed-precision-2017"[^\[]*arxiv\.org/abs/(\d\d)(\d\d)\.'
    got = re.search(number, text).groups()
    assert got == ("17", "10"), f"the paper's number says {got}, but should October 2017"

    stated = re.search(r"dates to (\d{4})", text).group(1)
    assert stated == "2017", f"the claim says {stated}, but the paper is of 2017"
