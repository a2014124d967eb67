"""Claims about training in a dtype: accuracy, speed, and values out of its range."""

import copy
import math
from functools import partial

import pytest
import torch

from accounting.devices import ROWS, peak_flop_per_s
from accounting.formats import element_bits, format_of
from test_claims.oracles import numbers
from test_claims.oracles.kernels import applied, has_bf16_unit
from test_claims.oracles.low_precision import E4M3, NETS, trained_net
from test_claims.oracles.messages import at_most, between, close, equal
from test_claims.oracles.mixed_precision import seeded
from test_claims.oracles.numbers import cast
from test_claims.oracles.tensors import relative_error
from test_claims.strategies import TORCH_DTYPES

# Written by hand: where a data sheet has a format's rate, by the accumulator of its products.
RATES = {
    ("fp16", "fp32"): "fp16",
    ("fp16", "fp16"): "fp16_acc16",
    ("fp8_e4m3", "fp32"): "fp8",
    ("fp8_e5m2", "fp32"): "fp8",
    ("fp8_e4m3", "fp16"): "fp8_acc16",
    ("fp8_e5m2", "fp16"): "fp8_acc16",
    ("fp8_e4m3fnuz", "fp32"): "fp8_fnuz",
    ("fp8_e5m2fnuz", "fp32"): "fp8_fnuz",
    ("int8", "fp32"): "int8",
    ("fp4_e2m1", "fp32"): "fp4",
}
EPS = {"fp16": 2**-10, "bf16": 2**-7, "fp8_e4m3": 2**-3, "fp8_e5m2": 2**-2}


@pytest.mark.claim("dtype.lower-is-less-accurate")
@pytest.mark.parametrize(
    ("rows", "k", "n"),
    [
        ((32,), 32, 32),
        ((4, 50), 64, 33),
        ((2, 3, 8), 200, 130),
    ],
)
def test_a_linear_layer_errs_by_a_third_of_eps_in_every_format(device, rows, k, n):
    x = seeded((*rows, k), 0, numbers.CPU)
    w = seeded((n, k), 1, numbers.CPU) / math.sqrt(k)
    exact = x.double() @ w.double().T
    last = 0.0
    for name, eps in EPS.items():
        dtype = TORCH_DTYPES[name]
        held = cast(x, dtype, device) @ cast(w, dtype, device).T
        error = relative_error(held, exact)
        # Two factors, each off by a uniform ±eps/2 at the low end of a binade and half of that at
        # its high end.
        times = error / eps
        between(times, 0.25, 0.37, "the error over eps", name=name)
        assert last < error, f"{name} errs by {error}, not by more than the finer one's {last}"
        last = error

        narrow = w.to(device, dtype)
        equal(narrow.nbytes, element_bits(name) // 8 * k * n, "bytes", name=name)

        product = applied(torch.nn.functional.linear, x.to(device, dtype), narrow)
        assert product is not None or dtype.itemsize == 1, f"{name} has no linear layer"
        if product is not None:
            # The layer itself adds one rounding to what the format holds.
            error = relative_error(numbers.on_the_host(product), held)
            at_most(error, eps / 2, "the layer's own error", name=name)


@pytest.mark.claim("dtype.lower-is-faster")
@pytest.mark.parametrize(("dtype", "accumulate"), RATES)
def test_each_format_has_the_rate_that_a_source_prints_for_it(dtype, accumulate):
    column = RATES[dtype, accumulate]
    for row in ROWS:
        should = 1e12 * row.peaks[column].value if column in row.peaks else None
        got = peak_flop_per_s(row, dtype, accumulate=accumulate)
        close(got, should, "FLOP/s", row=row.label)


@pytest.mark.claim("dtype.lower-is-faster")
def test_a_large_bf16_matmul_is_faster_than_fp32_with_a_bf16_unit(device, isa, speed):
    if not has_bf16_unit(device, isa):
        pytest.skip(f"torch reports no bf16 unit here ({', '.join(isa) or device.type})")
    n = 768 if device.type == "cpu" else 6144
    wide = torch.randn(n, n, device=device)
    narrow = wide.bfloat16()
    what = f"{n}^3 matmul in fp32 against bf16"
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, what)


@pytest.mark.claim("dtype.lower-is-faster")
# On some cards both have the same number of units.
@pytest.mark.needs("cpu")
def test_a_large_fp32_matmul_is_faster_than_fp64(speed):
    wide = torch.randn(256, 256, dtype=torch.float64)
    narrow = wide.float()
    what = "256^3 matmul in fp64 against fp32"
    speed.assert_slower(lambda: wide @ wide, lambda: narrow @ narrow, what)


@pytest.mark.claim("dtype.lower-is-faster")
# Elsewhere torch multiplies no fp8 without a unit for it.
@pytest.mark.needs("cpu")
def test_an_fp8_matmul_without_an_fp8_unit_is_slower_than_fp32(speed, isa):
    if any("fp8" in feature or "avx10" in feature for feature in isa):
        pytest.skip("this CPU has an fp8 unit")
    wide = torch.randn(64, 64)
    narrow = wide.to(E4M3)
    if applied(torch.matmul, narrow, narrow) is None:
        pytest.skip("this torch has no fp8 product on a CPU")
    what = "64^3 matmul in fp8 against fp32"
    speed.assert_slower(lambda: narrow @ narrow, lambda: wide @ wide, what, pairs=15)


@pytest.mark.claim("dtype.fp16-not-for-big-models", "dtype.fp16-small-models")
@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.gradscaler")
@pytest.mark.parametrize(
    ("words", "tokens", "log_scale"),
    [
        # Bytes in batches of 4096: far from it. The words of GPT-2: in one token more.
        (256, 4096, 0),
        (50_257, 667, 0),
        (50_257, 668, 0),
        (2, 2**20, 0),
        (4000, 2**14, 0),
        (4000, 2**20, 16),
        (4000, 2**19, 16),
    ],
)
def test_fp16_flushes_gradients_of_logits_from_2_to_the_25_words_by_tokens(
    device, words, tokens, log_scale
):
    """Before training a word has a chance of 1/V: a mean of T tokens gives each wrong one 1/VT."""
    should = 2.0**log_scale / (words * tokens)
    label = torch.zeros(1, dtype=torch.long, device=device)
    for dtype, least in ((torch.float16, 2**-25), (torch.bfloat16, 0)):
        logits = torch.zeros(1, words, dtype=dtype, device=device, requires_grad=True)
        loss = torch.nn.functional.cross_entropy(logits.float(), label)
        # One token's share of the mean, scaled.
        share = loss * (2.0**log_scale / tokens)
        share.backward()
        held = logits.grad[0, 1:].float()
        equal(not held.any(), should < least, "whether all are flushed", dtype=dtype)
        off_by = (held - should).abs().max().item()
        at_most(off_by, least + should * 2**-8, "the gradients' error", dtype=dtype)


class Attending(torch.nn.Module):
    """Causal attention of a sequence to itself, times the sequence."""

    def forward(self, x):
        heads = x[None, None]
        y = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True)
        return y[0, 0] * x


@pytest.mark.claim("dtype.bf16-sweet-spot", "amp.backward-caution")
@pytest.mark.parametrize(
    "layer",
    [
        *(torch.nn.Linear(3, 3), torch.nn.Conv1d(3, 3, 1), torch.nn.LayerNorm(3)),
        *(torch.nn.RMSNorm(3), torch.nn.GroupNorm(1, 3), torch.nn.PReLU()),
        *(torch.nn.LogSoftmax(-1), torch.nn.Softmax(-1), torch.nn.LogSigmoid()),
        *(torch.nn.GELU(), torch.nn.SiLU(), torch.nn.Tanh(), torch.nn.Sigmoid(), torch.nn.ELU()),
        *(torch.nn.Softplus(), Attending()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_gradients_of_a_billionth_reach_weights_biases_and_inputs_in_bf16_alone(device, layer):
    x, above = seeded((2, 3, 3), 0, device)
    gradients = {}
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        net = copy.deepcopy(layer).to(device, dtype)
        operands = [x.to(dtype).requires_grad_(), *net.parameters()]
        y = net(operands[0])
        gradients[dtype] = torch.autograd.grad(y, operands, (1e-9 * above).to(dtype))
    for fp32, bf16, fp16 in zip(*gradients.values(), strict=True):
        at_most(relative_error(bf16.float(), fp32), 2**-6, "the error in bf16")
        equal(fp16.any().item(), False, "whether any is left in fp16")


OF_FP16 = pytest.mark.claim("dtype.fp16-small-models", "dtype.fp16-not-for-big-models")
OF_BF16 = pytest.mark.claim("dtype.bf16-suffices")


@pytest.mark.parametrize(
    ("seed", "hidden", "function"),
    [(1, (32,), torch.nn.ReLU), (0, NETS["deep"], torch.nn.ReLU)],
    ids=["1", "deep"],
)
@pytest.mark.parametrize("loss_factor", [1.0, 1e-8])
@pytest.mark.parametrize(
    "name", [pytest.param("fp16", marks=OF_FP16), pytest.param("bf16", marks=OF_BF16)]
)
def test_a_net_trains_in_16_bits_but_in_fp16_on_tiny_gradients(
    device, record_figure, name, function, loss_factor, seed, hidden
):
    train = partial(trained_net, device, seed=seed, hidden=hidden, function=function)
    _, (first, *_, fp32) = train()
    _, (low_first, *_, low) = train(TORCH_DTYPES[name], loss_factor=loss_factor)
    ends = f"{first:.3f} to {fp32:.3f} in fp32, {low:.3f} in {name}"
    record_figure(f"loss {ends} [times {loss_factor}, {hidden=}]")
    at_most(fp32, 0.1 * first, "the loss in fp32")

    if name == "bf16" or loss_factor == 1:
        between(low / fp32, 0.8, 1.25, "the loss over that in fp32")
    else:
        at_most((low_first - low) / (first - fp32), 0.1, "what is learnt, as a share of fp32")


@pytest.mark.claim("dtype.bf16-suffices")
@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("dim", [None, 0, 1])
@pytest.mark.parametrize("length", [1, 257, 4097, 2**17 + 3])
def test_a_tensor_of_16_bits_is_added_up_in_more_bits_and_rounded_once(device, name, length, dim):
    values = torch.randint(0, 8, (length,))
    x = values.to(device, TORCH_DTYPES[name])
    if dim is None:
        got = x.sum().item()
    else:
        copies = torch.stack([x, x, x], 1 - dim)
        got = copies.sum(dim)[1].item()
    should = format_of(name).rounded(float(values.sum()))
    equal(got, should, "the sum")


@pytest.mark.claim("dtype.default-fp16-misconception")
@pytest.mark.parametrize(
    ("loss", "far", "term"),
    [
        ("mse_loss", 200.0, 400.0**2),
        ("l1_loss", 4e4, 8e4),
        ("smooth_l1_loss", 4e4, 8e4),
        ("cross_entropy", 4e4, 8e4),
    ],
)
@pytest.mark.parametrize("rows", [16, 33])
def test_with_fp16_by_default_a_loss_overflows_in_one_term(
    device, default_dtype, loss, far, term, rows
):
    function = getattr(torch.nn.functional, loss)
    for dtype, should in ((torch.float32, term / rows), (torch.float16, math.inf)):
        torch.set_default_dtype(dtype)
        out = torch.zeros(rows, 2, device=device)
        out[0, 0] = -far
        out[0, 1] = far
        target = -out
        if loss == "cross_entropy":
            target = torch.zeros(rows, dtype=torch.long, device=device)
        mean = function(out, target)
        equal(mean.dtype, dtype, "the loss's dtype")
        close(mean.item(), should, "the loss", rel=1e-3)


@pytest.mark.claim("dtype.default-fp16-misconception")
@pytest.mark.parametrize("adam", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
@pytest.mark.parametrize("log_size", [-12, -8, -7, 7])
def test_with_fp16_by_default_adams_moments_are_fp16_and_it_divides_by_0(
    device, default_dtype, adam, log_size
):
    moments = {}
    for dtype in (torch.float32, torch.float16):
        torch.set_default_dtype(dtype)
        # A weight of more elements than kernels take for few, and others.
        layers = [torch.nn.Linear(80, 60), torch.nn.LayerNorm(5), torch.nn.Embedding(4, 3)]
        parameters = [*torch.nn.ModuleList(layers).to(device).parameters()]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 2.0**log_size)
        optimizer = adam(parameters)
        optimizer.step()
        moments[dtype] = [optimizer.state[parameter] for parameter in parameters]

    finite = True
    for place, parameter in enumerate(parameters):
        equal(parameter.dtype, torch.float16, "the parameter's dtype")
        finite = finite and bool(parameter.isfinite().all())
        for name in ("exp_avg", "exp_avg_sq"):
            half = moments[torch.float16][place][name]
            equal(half.dtype, torch.float16, "the moment's dtype", name=name)
            rounded = moments[torch.float32][place][name].half()
            equal(half, rounded, "the moment", name=name)

    equal(finite, 0.001 * 4.0**log_size > 2**-25, "whether the parameters are finite")
