"""Claims about mixed precision: the dtype of each tensor and operation, losses and gains."""

import math
import re
import warnings
from itertools import pairwise

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn
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


def linear_layers(device, dims, seed=0, layer=nn.Linear):
    torch.manual_seed(seed)
    return nn.Sequential(*(layer(m, n) for m, n in pairwise(dims))).to(device)


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
@given(
    widths=st.lists(sizes(2, 16), min_size=2, max_size=4),
    batch=sizes(2, 32),
    dtype=st.sampled_from([*LOW]),
)
def test_under_autocast_parameters_gradients_and_state_are_fp32_and_products_low(
    device, widths, batch, dtype
):
    net = linear_layers(device, sorted(widths, reverse=True))
    optimizer = torch.optim.AdamW(net.parameters())
    with Recorded() as products:
        y, loss = step(net, torch.ones(batch, max(widths), device=device), optimizer, LOW[dtype])
    state = [kept for state in optimizer.state.values() for kept in state.values()]
    wide = {
        "parameters": list(net.parameters()),
        "gradients": [p.grad for p in net.parameters()],
        "state": state,
    }
    for name, held in wide.items():
        dtypes = {tensor.dtype for tensor in held}
        assert dtypes == {torch.float32}, f"{name} are {dtypes}, but should be fp32 [{dtype}]"
        values = torch.cat([tensor.detach().flatten() for tensor in held])
        finer = not torch.equal(values, values.to(LOW[dtype]).float())
        assert finer or name == "gradients", f"{name} hold no value finer than {dtype} [{widths=}]"
    assert set(products.product_dtypes) == {LOW[dtype]}, (
        f"products ran in {products.product_dtypes}, not in {dtype}"
    )
    assert (y.dtype, loss.dtype) == (LOW[dtype], torch.float32), (
        f"output {y.dtype} and loss {loss.dtype} [{dtype}]"
    )


@pytest.mark.claim("amp.recipe-fp32-params")
@pytest.mark.parametrize("compute", ["bf16", "fp8"])
def test_training_with_fp32_parameters_and_low_products_follows_fp32(
    device, record_figure, compute
):
    low = {"dtype": torch.bfloat16} if compute == "bf16" else {"layer": low_precision.Fp8Linear}
    for hidden in ((32,), *low_precision.NETS.values()):
        losses = [
            low_precision.trained_net(device, hidden=hidden, **options)[1] for options in ({}, low)
        ]
        (first, *_, should), (*_, got) = losses
        record_figure(
            f"loss {first:.3f} to {should:.3f} in fp32, {got:.3f} with {compute} products [{hidden=}]"
        )
        assert should < 0.9 * first, f"the fp32 run did not learn: {first} to {should} [{hidden=}]"
        near = abs(got - should) < 0.2 * (first - should)
        assert near, f"with {compute} the loss is {got}, but should be near {should} [{hidden=}]"


class UnscaledFp8Linear(low_precision.Fp8Linear):
    scaled = False


@pytest.mark.claim("amp.fp8-inference")
@pytest.mark.parametrize(
    ("seed", "hidden"),
    [
        *((seed, (32,)) for seed in range(3)),
        *((0, hidden) for hidden in low_precision.NETS.values()),
    ],
    ids=["0", "1", "2", *low_precision.NETS],
)
def test_a_trained_net_keeps_its_outputs_in_fp8_without_a_scale(
    device, record_figure, seed, hidden
):
    trained = low_precision.trained_net(device, seed=seed, hidden=hidden)[0]
    cast = low_precision.layers(hidden, UnscaledFp8Linear).to(device)
    cast.load_state_dict(trained.state_dict())
    x = torch.randn(1000, 16, device=device)
    with torch.no_grad():
        should, got = trained(x), cast(x)
    error = tensors.relative_error(got, should)
    record_figure(f"the outputs are off by {error:.1%} in fp8 e4m3, unscaled")
    # Each operand is off by up to 2^-4, by a third of that on average.
    assert 0 < error < 0.05, (
        f"with fp8 products the outputs are off by {error:.1%}, but should be by a few percent"
    )


@pytest.mark.claim("amp.fp8-training", "amp.fp8-inference")
@pytest.mark.parametrize(("factor", "trains"), [(1.0, True), (1e-6, False)])
def test_fp8_products_train_if_their_operands_are_in_range_by_a_scale_or_as_they_are(
    device, record_figure, factor, trains
):
    """Gradients as usual, and a millionth of that: below e5m2's least value, unless scaled."""
    for hidden in ((32,), *low_precision.NETS.values()):
        (_, *_, fp32), (first, *_, scaled), (unscaled_first, *_, unscaled) = (
            low_precision.trained_net(device, layer=layer, loss_factor=factor, hidden=hidden)[1]
            for layer in (nn.Linear, low_precision.Fp8Linear, UnscaledFp8Linear)
        )
        record_figure(
            f"{hidden}: {first:.3f} to {fp32:.3f} in fp32, {scaled:.3f} scaled fp8, {unscaled:.3f} unscaled"
        )
        assert abs(scaled - fp32) < 0.2 * (first - fp32), (
            f"scaled fp8 ends at {scaled}, not near {fp32} [{hidden=}]"
        )
        # The biases alone, which are in no product, still learn a little.
        gained = (unscaled_first - unscaled) / (first - fp32)
        alike = gained > 0.8 if trains else gained < 0.1
        assert alike, (
            f"unscaled fp8 came {gained:.0%} of the way, to {unscaled} [{hidden=}, {factor=}]"
        )


@pytest.mark.claim("amp.recipe-bf16-params")
@given(widths=st.lists(sizes(2, 16), min_size=2, max_size=4), batch=sizes(2, 32))
def test_beside_a_master_copy_parameters_activations_and_gradients_are_bf16_and_the_state_fp32(
    device, widths, batch
):
    net, kept = linear_layers(device, sorted(widths, reverse=True)).bfloat16(), []
    masters = [parameter.detach().float() for parameter in net.parameters()]
    optimizer = torch.optim.AdamW(masters)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t), t)[1], lambda t: t):
        kept.append(net(torch.ones(batch, max(widths), device=device, dtype=torch.bfloat16)))
    kept[-1].sum().backward()
    for master, parameter in zip(masters, net.parameters(), strict=True):
        master.grad = parameter.grad.float()
    optimizer.step()
    state = [held for of in optimizer.state.values() for held in of.values()]
    held = {
        "parameters": net.parameters(),
        "activations": kept,
        "gradients": [p.grad for p in net.parameters()],
    }
    for name, tensors_ in {**held, "state": state}.items():
        found, should = (
            {of.dtype for of in tensors_},
            {torch.float32 if name == "state" else torch.bfloat16},
        )
        assert found == should, f"{name} are in {found}, but should be in {should} [{widths=}]"


@pytest.mark.claim("amp.recipe-bf16-params", "optim.fp32-state-needed")
@given(
    weight=st.floats(1, 2, exclude_max=True, width=16), update=st.integers(2**9, 2**17), seed=seeds
)
def test_an_update_below_half_a_spacing_is_lost_in_bf16_and_kept_by_either_repair(
    device, weight, update, seed
):
    bf16, copies, steps = format_of("bf16"), 4096, 8
    start, update = bf16.rounded(weight), update * 2.0**-23  # fp32 holds every difference exactly
    predicted, exact = start, start - steps * update
    for _ in range(steps):
        predicted = bf16.rounded(predicted - update)
    torch.manual_seed(seed)
    master = torch.tensor(start, device=device)
    nearest = master.bfloat16()
    stochastic = nearest.expand(copies).clone()
    for _ in range(steps):
        nearest = (nearest.float() - update).bfloat16()
        master = master - update
        stochastic = low_precision.stochastically_rounded(stochastic.float() - update)
    assert nearest.item() == predicted, (
        f"bf16 ends at {nearest.item()}, by the format at {predicted} [{start=}]"
    )
    # Below 1 the spacing is 2^-8, above it 2^-7: less than half the smaller one goes nowhere.
    if update < 2**-9:
        assert nearest.item() == start, (
            f"an update of {update} moved {start} to {nearest.item()} in bf16"
        )
    assert master.item() == exact, (
        f"the master copy is at {master.item()}, not {exact} [{start=}, {update=}]"
    )
    # A rounding errs by half a spacing of 2^-7 at most in deviation; seven deviations: one false alarm in 4e11.
    off, noise = in_fp64(stochastic).mean().item() - exact, 2**-8 * math.sqrt(steps / copies)
    assert abs(off) < 7 * noise, (
        f"stochastic rounding is off by {off} on average [{start=}, {update=}, {seed=}]"
    )


# Given operands in fp32 and in bf16: does the result have autocast's dtype (low), fp32, or that of its operands (kept)?
OPERATIONS = {
    # name: (on the CPU, on CUDA, the operation)
    "linear": ("low", "low", lambda x: functional.linear(x, x)),
    "matmul": ("low", "low", lambda x: x @ x),
    "bmm": ("low", "low", lambda x: torch.bmm(x[None], x[None])),
    "addmm": ("low", "low", lambda x: torch.addmm(x, x, x)),
    "einsum": ("low", "low", lambda x: torch.einsum("ij,jk", x, x)),
    "conv1d": ("low", "low", lambda x: functional.conv1d(x[None], x[:, :, None])),
    "attention": (
        "low",
        "low",
        lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    ),
    "matrix times vector": ("kept", "low", lambda x: x.mv(x[0])),
    "mse_loss": ("fp32", "fp32", lambda x: functional.mse_loss(x, x.mT)),
    "l1_loss": ("fp32", "fp32", lambda x: functional.l1_loss(x, x.mT)),
    "cross_entropy": (
        "fp32",
        "fp32",
        lambda x: functional.cross_entropy(x, torch.zeros_like(x[0], dtype=torch.long)),
    ),
    "prod": ("fp32", "fp32", lambda x: x.prod()),
    "softmax": ("kept", "fp32", lambda x: x.softmax(-1)),
    "log_softmax": ("kept", "fp32", lambda x: x.log_softmax(-1)),
    "layer_norm": ("kept", "fp32", lambda x: functional.layer_norm(x, x.shape[1:])),
    "exp": ("kept", "fp32", torch.exp),
    "log": ("kept", "fp32", lambda x: x.abs().log()),
    "pow": ("kept", "fp32", lambda x: x.pow(2)),
    "sum": ("kept", "fp32", torch.sum),
    "cumsum": ("kept", "fp32", lambda x: x.cumsum(0)),
    "norm": ("kept", "fp32", torch.norm),
    "add": ("kept", "kept", lambda x: x + x),
    "relu": ("kept", "kept", torch.relu),
    "gelu": ("kept", "kept", functional.gelu),
    "cat with fp32": ("fp32", "fp32", lambda x: torch.cat([x, x.float()])),
    "mm with out=": ("kept", "kept", lambda x: torch.mm(x, x, out=torch.empty_like(x))),
    "fp64 matmul": ("fp64", "fp64", lambda x: x.double() @ x.double()),
}


@pytest.mark.claim("amp.autocast")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", OPERATIONS)
def test_autocast_chooses_each_operations_dtype_by_the_table_of_the_device(device, name, low):
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"no table of autocast's choices on {device.type}")
    on_cpu, on_cuda, operation = OPERATIONS[name]
    fixed = {"low": LOW[low], "fp32": torch.float32, "fp64": torch.float64}
    for dtype in (torch.float32, LOW[low]):
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).to(device, dtype)
        with torch.autocast(device.type, LOW[low]):
            got = operation(x)
        chosen = fixed.get(on_cpu if device.type == "cpu" else on_cuda, dtype)
        assert got.dtype == chosen, (
            f"{name} of {dtype} gives {got.dtype} under autocast to {low}, not {chosen}"
        )
        wrong = tensors.difference(got, operation(x.to(chosen)))
        assert not wrong, f"{name} of {dtype} under autocast, against the same in {chosen}: {wrong}"


@pytest.mark.claim("amp.cuda-amp-api")
@pytest.mark.parametrize("name", ["autocast", "GradScaler"])
def test_torch_cuda_amp_warns_of_its_end_and_torch_amp_does_not(device, name):
    def deprecations(make):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            made = make()
        return made, [
            str(w.message)
            for w in caught
            if issubclass(w.category, (FutureWarning, DeprecationWarning))
        ]

    if hasattr(torch.cuda, "amp") and hasattr(torch.cuda.amp, name):  # torch will remove it one day
        _, warned = deprecations(getattr(torch.cuda.amp, name))
        assert warned, f"torch.cuda.amp.{name} gives no deprecation warning"
        assert re.search(rf"torch\.amp\.{name}\('cuda'", warned[0]), (
            f"the warning names no successor: {warned[0]}"
        )
    for kind in ("cuda", device.type):
        made, warned = deprecations(lambda kind=kind: getattr(torch.amp, name)(kind))
        assert not warned, f"torch.amp.{name}({kind!r}) warns: {warned}"
    enabled = (
        made.is_enabled() if name == "GradScaler" else made(torch.is_autocast_enabled)(device.type)
    )
    assert enabled, f"torch.amp.{name}({device.type!r}) is not enabled on {device}"


@pytest.mark.claim("amp.only-forward-cast", "grad.same-shape")
@given(
    widths=st.lists(st.sampled_from([3, 8]), min_size=2, max_size=4),
    low=st.sampled_from(list(LOW.values())),
)
def test_the_backward_products_run_low_too_and_the_gradients_end_in_fp32(device, widths, low):
    net, x = linear_layers(device, widths), torch.randn(4, widths[0], device=device)
    with Recorded() as forward, torch.autocast(device.type, low):
        y = net(x)
    with Recorded() as backward:  # outside the region, as it is recommended
        y.float().sum().backward()
    layers = len(widths) - 1
    for ran, products in ((forward, layers), (backward, 2 * layers - 1)):
        got, should = ran.product_dtypes, [low] * 2 * products
        assert got == should, (
            f"operands of products were in {got}, but should be in {should} [{widths=}]"
        )
    for grad in (p.grad for p in net.parameters()):
        assert grad.dtype == torch.float32, (
            f"a gradient is in {grad.dtype}, but should be in fp32 [{widths=}]"
        )
        assert not (finer := tensors.difference(grad, grad.to(low).float())), (
            f"finer than {low}: {finer} [{widths=}]"
        )


@pytest.mark.claim("amp.gradscaler")
@given(seed=seeds, exponent=st.integers(0, 20))
def test_with_bf16_the_scaler_changes_no_bit(device, seed, exponent):
    ends = []
    for scaler in (None, torch.amp.GradScaler(device.type, init_scale=2.0**exponent)):
        net = linear_layers(device, (3, 4, 2), seed)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        x = torch.randn(8, 3, generator=torch.Generator().manual_seed(seed)).to(device)
        losses = [step(net, x, optimizer, torch.bfloat16, scaler)[1].item() for _ in range(3)]
        ends.append((losses, nn.utils.parameters_to_vector(net.parameters()).tolist()))
    assert ends[0] == ends[1], (
        f"bf16 with a scaler trains otherwise than without [{seed=}, scale 2^{exponent}]"
    )


@pytest.mark.claim("amp.gradscaler")
@given(overflows=st.lists(st.booleans(), max_size=10), interval=sizes(1, 3))
def test_the_scaler_skips_a_step_that_overflowed_and_finds_its_scale(device, overflows, interval):
    weight = nn.Parameter(torch.zeros((), device=device))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0, growth_interval=interval)
    scale, taken, good = 1024.0, 0, 0
    for overflow in overflows:
        optimizer.zero_grad()
        scaler.scale(weight * (math.inf if overflow else -1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        taken, good = (taken, 0) if overflow else (taken + 1, good + 1)
        scale = scale / 2 if overflow else scale
        if good == interval:
            scale, good = 2 * scale, 0
    got = scaler.get_scale(), weight.item()
    assert got == (scale, taken), (
        f"scale and steps are {got}, not {(scale, taken)} [{overflows}, {interval=}]"
    )


@pytest.mark.claim("amp.ex-clip-bf16")
@given(
    seed=seeds,
    shapes=st.lists(st.tuples(sizes(), sizes(1, 40)), min_size=1, max_size=3),
    share=st.floats(0.1, 2),
)
def test_the_norm_of_bf16_gradients_is_that_of_fp32_to_a_rounding(device, seed, shapes, share):
    generator = torch.Generator().manual_seed(seed)
    gradients = [torch.randn(shape, generator=generator).to(device) for shape in shapes]
    exact = math.sqrt(sum(g.double().square().sum().item() for g in (g.cpu() for g in gradients)))
    assume(exact > 1e-3)
    parameters = [nn.Parameter(torch.zeros_like(g, dtype=torch.bfloat16)) for g in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.bfloat16()
    norm = nn.utils.clip_grad_norm_(parameters, share * exact).item()
    # Each gradient, each tensor's norm and the whole are rounded to bf16 once, the clipped ones once more.
    assert norm == pytest.approx(exact, rel=4 * 2**-8), (
        f"the norm in bf16 is {norm}, but should be {exact} [{seed=}]"
    )
    clipped = math.sqrt(sum(in_fp64(p.grad).square().sum().item() for p in parameters))
    assert clipped == pytest.approx(min(1, share) * exact, rel=6 * 2**-8), (
        f"{clipped}, not {share} of {exact} at most"
    )


@pytest.mark.claim("amp.ex-clip-bf16", "dtype.bf16-resolution", "dtype.bf16-suffices")
def test_a_sum_of_squares_kept_in_bf16_stands_still_at_256(device):
    ones = torch.ones(1000, device=device, dtype=torch.bfloat16)
    kept = torch.zeros((), device=device, dtype=torch.bfloat16)
    for one in ones:
        kept += one * one
    norm = nn.utils.get_total_norm([ones]) if hasattr(nn.utils, "get_total_norm") else ones.norm()
    assert kept.item() == 256, (
        f"1000 ones summed in bf16 give {kept.item()}, but should stop at 256"
    )
    assert norm.item() == pytest.approx(math.sqrt(1000), rel=2**-8), (
        f"torch's norm is {norm.item()}, not 31.6"
    )


@pytest.mark.claim("amp.ex-clip-bf16")
@given(seed=seeds, exponent=st.integers(4, 16))
def test_scaled_gradients_must_be_unscaled_before_they_are_clipped(device, seed, exponent):
    x = torch.randn(16, 3, generator=torch.Generator().manual_seed(seed)).to(device)

    def clipped_step(unscale):
        net = linear_layers(device, (3, 2), seed)
        optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
        scaler = torch.amp.GradScaler(
            device.type, init_scale=2.0**exponent, enabled=unscale is not None
        )
        start = nn.utils.parameters_to_vector(net.parameters()).detach().clone()
        scaler.scale(net(x).square().mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(net.parameters(), 1e-3).item()
        scaler.step(optimizer)
        return norm, (nn.utils.parameters_to_vector(net.parameters()) - start).norm().item()

    plain, unscaled, scaled = (clipped_step(unscale) for unscale in (None, True, False))
    assume(plain[0] > 1e-2)
    assert unscaled == pytest.approx(plain, rel=1e-5), (
        f"unscaled, norm and step are {unscaled}, not {plain} [{seed=}]"
    )
    assert scaled[0] == pytest.approx(plain[0] * 2**exponent, rel=1e-5), (
        f"the scaled norm is {scaled[0]}"
    )
    # Clipped to 1e-3 and only then divided by the scale: the step all but vanishes.
    assert scaled[1] < plain[1] / 2 ** (exponent - 2), (
        f"the step is {scaled[1]}, but should be far below {plain[1]}"
    )


@pytest.mark.claim("amp.activation-memory", "act.BDL")
@given(batch=st.sampled_from([2, 16, 48]), dim=st.sampled_from([2, 16, 32]), layers=sizes(1, 4))
def test_autocast_halves_the_activations_and_keeps_copies_of_the_weights(
    workloads, metered_device, batch, dim, layers
):
    model = DeepLinear(dim, layers, outputs=dim)
    net, x = (
        workloads.build(model, device=metered_device),
        workloads.inputs(model, batch, device=metered_device),
    )

    def forward():
        with torch.autocast(metered_device.type, torch.bfloat16):
            return net(x)

    fp32, low = (
        tensors.graph_bytes(metered_device, lambda: net(x)),
        tensors.graph_bytes(metered_device, forward),
    )
    activations, weights = (
        batch * dim * layers,
        dim * dim * layers,
    )  # the first weight's gradient needs no other weight
    assert fp32 == element_bytes(activations, "fp32"), (
        f"fp32 keeps {fp32} B [{batch=}, {dim=}, {layers=}]"
    )
    should = element_bytes(activations + weights, "bf16") + element_bytes(
        batch * dim, "bf16"
    )  # and x, cast
    formula = activation_bytes(model, batch, autocast="bf16")
    assert low == formula == should, (
        f"autocast keeps {low} B, not {should}, {formula=} [{batch=}, {dim=}, {layers=}]"
    )
    gains = (
        batch * (layers - 1) > dim * layers
    )  # B·L kept halves against D·L of copies and B of the input's
    assert (low < fp32) == gains, (
        f"autocast keeps {low} B, fp32 {fp32}, but {gains=} [{batch=}, {dim=}, {layers=}]"
    )


@pytest.mark.claim("amp.ex-bf16-linear-32")
@given(dim=sizes(2, 300))
def test_a_linear_layer_on_a_batch_of_32_takes_half_the_bytes_in_bf16(metered_device, dim):
    device, taken = metered_device, {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        warm = functional.linear(
            *(torch.ones(32, dim, device=device, dtype=dtype) for _ in range(2))
        )
        with measured.memory(device) as held:
            weight = torch.ones(dim, dim, device=device, dtype=dtype)
            x = torch.ones(32, dim, device=device, dtype=dtype)
            y = functional.linear(x, weight)
        taken[name] = held.live_bytes
        formula = element_bytes(dim * dim + 2 * 32 * dim, name)
        assert taken[name] == formula, (
            f"{name} takes {taken[name]} B, but should take {formula} [{dim=}]"
        )
        del warm, weight, x, y
    assert taken["fp32"] == 2 * taken["bf16"], f"bytes are {taken}, but should be 2 to 1 [{dim=}]"


@pytest.mark.claim("amp.ex-bf16-linear-32")
def test_a_large_layer_is_faster_in_bf16_with_a_unit_for_it(
    device, speed, record_figure, bound_flop_per_s
):
    dim = 1024 if device.type == "cpu" else 8192
    x, weight = torch.randn(32, dim, device=device), torch.randn(dim, dim, device=device)
    low = x.bfloat16(), weight.bfloat16()
    rates = bound_flop_per_s("bf16"), bound_flop_per_s("fp32")
    if None in rates or rates[0] <= rates[1]:
        record_figure(
            f"no bf16 unit is known here: {speed.ratio(lambda: x @ weight, lambda: low[0] @ low[1])}"
        )
    else:
        speed.assert_slower(
            lambda: x @ weight, lambda: low[0] @ low[1], f"batch 32, width {dim}, fp32 against bf16"
        )


@pytest.mark.claim("amp.ex-bf16-linear-32", "dtype.lower-is-faster")
@pytest.mark.parametrize("width", [4, 8, 32])
def test_a_small_layer_is_not_twice_as_fast_in_bf16(device, speed, width):
    x, weight = torch.randn(32, width, device=device), torch.randn(width, width, device=device)
    low = x.bfloat16(), weight.bfloat16()
    what = f"batch 32, width {width}, bf16 against fp32"
    speed.assert_slower(lambda: low[0] @ low[1], lambda: x @ weight, what, at_least=0.6)


def epochs(device, dim, batch):
    """Training steps of a net of two linear layers, in fp32 and in mixed precision."""
    net = linear_layers(device, (dim, dim, dim))
    x, optimizer = (
        torch.randn(batch, dim, device=device),
        torch.optim.SGD(net.parameters(), lr=1e-3),
    )
    return lambda: step(net, x, optimizer), lambda: step(net, x, optimizer, torch.bfloat16)


@pytest.mark.claim("amp.half-epoch-time")
@pytest.mark.parametrize(("width", "batch"), [(8, 8), (16, 16), (32, 16)])
def test_for_small_layers_mixed_precision_is_slower_than_fp32(device, speed, width, batch):
    fp32, mixed = epochs(device, width, batch)
    casts = []
    for run in (fp32, mixed):
        with Recorded() as dispatched:
            run()
        casts.append(dispatched.casts)
    # Forward x, the second layer's input (bf16 already), two weights and biases, the output for the loss; and back.
    assert casts[0] == 0 < casts[1], (
        f"a step casts {casts[0]} tensors in fp32 and {casts[1]} in mixed precision"
    )
    speed.assert_slower(
        mixed, fp32, f"two layers of width {width}, mixed precision against fp32", at_least=0.9
    )


@pytest.mark.claim("amp.half-epoch-time")
@pytest.mark.parametrize("times", [1, 2])
def test_for_large_layers_mixed_precision_gains_at_most_what_products_in_bf16_do(
    device, speed, record_figure, times
):
    dim, batch = (512 * times, 256) if device.type == "cpu" else (4096 * times, 4096)
    fp32, mixed = epochs(device, dim, batch)
    x, weight = torch.randn(batch, dim, device=device), torch.randn(dim, dim, device=device)
    low = x.bfloat16(), weight.bfloat16()
    few = {"pairs": 15}  # each step takes milliseconds
    product = speed.ratio(lambda: x @ weight, lambda: low[0] @ low[1], **few)
    record_figure(f"a product alone, fp32 against bf16: {product}")
    what = f"two layers of width {dim}"
    if product.high < 1:
        speed.assert_slower(mixed, fp32, f"{what}, mixed precision against fp32", **few)
    else:
        bounds = {
            "at_least": float(product.low > 2),
            "at_most": 2 * product.value,
        }  # other shapes go back
        speed.assert_slower(fp32, mixed, f"{what}, fp32 against mixed precision", **bounds, **few)


@pytest.mark.claim("amp.recipe-not-switch")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("wide", [False, True])
@given(exponent=st.integers(-4, 12), rows=sizes(most=5))
def test_large_scores_need_another_dtype_or_attention_in_fp32(device, low, wide, exponent, rows):
    """The largest scores are 8 · 4^exponent, from 2^17 on infinite in fp16, and their softmax is NaN."""
    net, signs = (
        low_precision.Attention(wide).to(device),
        2.0 * torch.randint(0, 2, (rows, 8), device=device) - 1,
    )
    x = 2.0**exponent * signs
    nn.init.eye_(net.project.weight)
    with Recorded() as products, torch.no_grad(), torch.autocast(device.type, LOW[low]):
        got = net(x)
    dtypes = [LOW[low]] * 2 + [
        torch.float32 if wide else LOW[low]
    ] * 4  # of a projection, and of attention's products
    assert products.product_dtypes == dtypes, (
        f"products are of {products.product_dtypes}, not {dtypes} [{wide=}]"
    )
    fits, exact = bool(got.isfinite().all()), (x.double() @ x.double().mT).softmax(-1) @ x.double()
    close = torch.allclose(got.double(), exact, rtol=1e-5, atol=1e-5 * 2.0**exponent)
    assert close or not wide, (
        f"attention in fp32 gives {got}, but should give {exact} [{exponent=}]"
    )
    should = low == "bf16" or wide or 3 + 2 * exponent < 16
    assert fits == should, (
        f"under autocast in {low} attention is finite: {fits} [{wide=}, {exponent=}, {rows=}]"
    )


@pytest.mark.claim("amp.origin-2017")
def test_the_arxiv_number_of_the_paper_says_october_2017(pytestconfig):
    text = (pytestconfig.rootpath / "test_claims/registry/amp.toml").read_text(encoding="utf-8")
    year, month = re.search(
        r'key = "mixed-precision-2017"[^\[]*arxiv\.org/abs/(\d\d)(\d\d)\.', text
    ).groups()
    assert (year, month) == ("17", "10"), (
        f"the paper's number says month {month} of 20{year}, but should October 2017"
    )
    stated = re.search(r"dates to (\d{4})", text).group(1)
    assert stated == f"20{year}", f"the claim says {stated}, but the paper is of 20{year}"
