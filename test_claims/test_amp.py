"""Claims about autocast and the loss scaler: the dtype of each tensor and operation."""

import copy
import math
import re
import warnings
from contextlib import contextmanager
from functools import partial
from itertools import chain

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from test_claims.oracles import dispatched, tensors
from test_claims.oracles.dispatched import Recorded
from test_claims.oracles.messages import at_most, close, equal
from test_claims.oracles.mixed_precision import LOW, flattened, linear_layers, seeded, step
from test_claims.oracles.nets import NETS, net_and_batch
from test_claims.strategies import fewer, in_fp64, seeds, sizes


@pytest.mark.claim("amp.recipe-fp32-params", "amp.only-forward-cast")
@pytest.mark.claim("dtype.default-fp16-misconception", "optim.mixed-precision-answer")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("kind", NETS)
def test_under_autocast_all_that_is_kept_is_fp32_and_products_are_low(device, kind, low):
    net, x, labels = net_and_batch(device, 6, kind, dtype=torch.float32)
    in_fp32 = copy.deepcopy(net)
    optimizer = torch.optim.AdamW(net.parameters())
    with Recorded() as recorded:
        with torch.autocast(device.type, LOW[low]):
            logits = net(x)
            loss = functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        loss.backward()
        optimizer.step()
    equal((logits.dtype, loss.dtype), (LOW[low], torch.float32), "dtypes of output and loss")
    aten = torch.ops.aten
    multiplying = {*dispatched.PRODUCTS, aten.convolution, aten.convolution_backward}
    operands = [read for operation, read, _ in recorded.calls if operation in multiplying]
    equal({x.dtype for x in chain(*operands)}, {LOW[low]}, "dtypes of operands")

    parameters = list(net.parameters())
    # Among the state is the count of steps, which lies on the CPU.
    state = [each for of in optimizer.state.values() for each in of.values()]
    for name, held in (("parameters", parameters), ("state", state)):
        finer = any(tensors.difference(x, x.to(LOW[low]).float()) for x in held)
        assert finer, f"{name} hold no value finer than {low}"
    gradients = [parameter.grad for parameter in parameters]
    dtypes = {x.dtype for x in (*parameters, *gradients, *state)}
    equal(dtypes, {torch.float32}, "dtypes of what is kept")

    functional.cross_entropy(in_fp32(x).flatten(0, -2), labels.flatten()).backward()
    got, should = (
        torch.cat([x.flatten() for x in each])
        for each in (gradients, [parameter.grad for parameter in in_fp32.parameters()])
    )
    # Operands, activations and gradients are rounded in each of a few layers.
    most = 4 * torch.finfo(LOW[low]).eps
    at_most(tensors.relative_error(got, should), most, "the error of the gradients")


# The choices of autocast: its own dtype, fp32 on every device or on CUDA alone, or the operands'.
PRODUCTS = [
    "linear",
    "linear of 4 dimensions",
    "matmul",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "conv1d",
    "conv2d",
    "conv3d",
    "attention",
]
LOSSES = [
    *("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"),
    *("poisson_nll_loss", "hinge_embedding_loss", "binary_cross_entropy_with_logits"),
]
IN_FP32 = [*LOSSES, "prod", "cat with fp32"]
NORMALISED = ["softmax", "log_softmax", "layer_norm"]
IN_FP32_ON_CUDA = [*NORMALISED, "exp", "log", "pow", "sum", "cumsum", "norm"]
AS_OPERANDS_ARE = ["add", "relu", "gelu", "mm with out="]
BY_THE_DEVICE = ["matrix times vector"]
LEFT_ALONE = ["fp64 matmul"]
OPERATIONS = PRODUCTS + IN_FP32 + IN_FP32_ON_CUDA + AS_OPERANDS_ARE + BY_THE_DEVICE + LEFT_ALONE


# An index of None asks for CUDA itself, which no fake tensor stands in for.
CALLS = {
    "add": lambda x: torch.add(x, x),
    "matmul": lambda x: torch.matmul(x, x),
    "linear": lambda x: functional.linear(x, x),
    "linear of 4 dimensions": lambda x: functional.linear(x.view(1, 1, *x.shape), x),
    "bmm": lambda x: torch.bmm(x.unsqueeze(0), x.unsqueeze(0)),
    "addmm": lambda x: torch.addmm(x, x, x),
    "einsum": lambda x: torch.einsum("ij,jk", x, x),
    "baddbmm": lambda x: torch.baddbmm(*[x.unsqueeze(0)] * 3),
    "conv1d": lambda x: functional.conv1d(x.unsqueeze(0), x.unsqueeze(2)),
    "conv2d": lambda x: functional.conv2d(x.unsqueeze(0), x.view(1, 1, *x.shape)),
    "conv3d": lambda x: functional.conv3d(x.view(1, 1, *x.shape), x.view(1, 1, 1, *x.shape)),
    "attention": lambda x: functional.scaled_dot_product_attention(*[x.unsqueeze(0)] * 3),
    "cat with fp32": lambda x: torch.cat([x, x.float()]),
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[1:]),
    "log": lambda x: torch.log(x.abs()),
    "pow": lambda x: torch.pow(x, 2),
    "cumsum": lambda x: torch.cumsum(x, 0),
    "gelu": functional.gelu,
    "mm with out=": lambda x: torch.mm(x, x, out=torch.empty_like(x)),
    "matrix times vector": lambda x: torch.mv(x, x.select(0, 0)),
    "fp64 matmul": lambda x: torch.matmul(x.double(), x.double()),
}


def call(name, x):
    """The result of an operation whose operands are made of the matrix x."""
    if name in LOSSES:
        return getattr(functional, name)(x, x.mT)
    function = CALLS.get(name) or getattr(torch, name)
    return function(x)


def chosen_dtype(name, kind, low, dtype):
    """The dtype in which autocast to `low` runs an operation on operands of this dtype."""
    on_cuda = kind == "cuda"
    if name in LEFT_ALONE:
        return torch.float64
    if name in PRODUCTS or (on_cuda and name in BY_THE_DEVICE):
        return low
    if name in IN_FP32 or (on_cuda and name in IN_FP32_ON_CUDA):
        return torch.float32
    return dtype


@contextmanager
def autocast_without_a_device(kind, low):
    """Autocast on fake tensors of a kind of device; torch.autocast asks for a real one."""
    with FakeTensorMode():
        default = torch.get_autocast_dtype(kind)
        torch.set_autocast_dtype(kind, low)
        torch.set_autocast_enabled(kind, True)
        try:
            yield
        finally:
            torch.set_autocast_enabled(kind, False)
            torch.set_autocast_dtype(kind, default)
            torch.clear_autocast_cache()


@pytest.mark.claim("amp.autocast", "amp.recipe-not-switch")
# The CPU's table is the next test's, where a CPU is tested.
@pytest.mark.parametrize("low", LOW)
def test_autocast_chooses_each_dtype_by_the_table_of_the_kind_of_device(low):
    with autocast_without_a_device("cuda", LOW[low]):
        for name in OPERATIONS:
            for dtype in (torch.float32, LOW[low]):
                got = call(name, torch.empty(8, 8, device="cuda", dtype=dtype)).dtype
                should = chosen_dtype(name, "cuda", LOW[low], dtype)
                equal(got, should, "the result's dtype", name=name, dtype=dtype)


@pytest.mark.claim("amp.autocast", "amp.recipe-fp32-params", "dtype.bf16-suffices")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize("name", OPERATIONS)
def test_under_autocast_an_operation_has_the_values_of_its_dtype(device, name, low):
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"no table of autocast's choices on {device.type}")
    drawn = seeded((72, 72), 0, device)
    for dtype in (torch.float32, LOW[low]):
        x = drawn.to(dtype)
        with torch.autocast(device.type, LOW[low]):
            got = call(name, x)
        chosen = chosen_dtype(name, device.type, LOW[low], dtype)
        equal(got.dtype, chosen, "the result's dtype", dtype=dtype)
        equal(got, call(name, x.to(chosen)), "the values under autocast", dtype=dtype)


@pytest.mark.claim("amp.cross-entropy-fp32")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(
    ("shape", "nll_loss"),
    [
        ((8, 5), torch.ops.aten.nll_loss_forward),
        # Sequences: tokens stand behind the classes.
        ((8, 5, 3), torch.ops.aten.nll_loss2d_forward),
    ],
    ids=str,
)
def test_on_cuda_autocast_leaves_the_softmax_of_cross_entropy_in_16_bits(shape, nll_loss, low):
    examples, classes, *tokens = shape
    for kind, softmax_dtype in (("cuda", LOW[low]), ("cpu", torch.float32)):
        with autocast_without_a_device(kind, LOW[low]):
            logits = torch.empty(shape, device=kind, dtype=LOW[low])
            labels = torch.zeros(examples, *tokens, device=kind, dtype=torch.long)
            weight = torch.ones(classes, device=kind)
            for options in ({}, {"label_smoothing": 0.1}, {"weight": weight}, {"reduction": "sum"}):
                with Recorded() as recorded:
                    functional.cross_entropy(logits, labels, **options)
                made = {operation: made for operation, _, made in recorded.calls}
                (softmax,) = made[torch.ops.aten._log_softmax]
                loss, _ = made[nll_loss]
                got = softmax.dtype, loss.dtype
                should = softmax_dtype, torch.float32
                equal(got, should, "dtypes of softmax and loss", kind=kind, options=options)


@pytest.mark.claim("amp.cross-entropy-fp32", "amp.recipe-not-switch")
@pytest.mark.parametrize("low", LOW)
@pytest.mark.parametrize(("rows", "words"), [(8, 8), (3, 50_257)])
def test_logits_cast_before_cross_entropy_give_the_loss_of_fp32(
    device, record_figure, rows, words, low
):
    if device.type not in ("cpu", "cuda"):
        pytest.skip(f"no table of autocast's choices on {device.type}")
    logits = seeded((rows, words), 0, device).to(LOW[low])
    labels = torch.linspace(0, words - 1, rows).long().to(device)
    with torch.autocast(device.type, LOW[low]):
        cast_before = functional.cross_entropy(logits.float(), labels).item()
        loss = functional.cross_entropy(logits, labels)
    equal(loss.dtype, torch.float32, "the loss's dtype")
    as_they_are = loss.item()

    powers = in_fp64(logits).exp()
    of_labels = powers.gather(1, labels.to(powers.device)[:, None])
    chances = of_labels[:, 0] / powers.sum(dim=1)
    exact = -chances.log().mean().item()
    record_figure(f"{low}: {as_they_are:.5f} as they are, {cast_before:.5f} cast, {exact:.5f}")
    close(cast_before, exact, "the loss of logits that are cast before")

    within = 2e-6
    if device.type == "cuda":
        # A log-probability is rounded to half a unit at most, its mean by no more.
        within = torch.finfo(LOW[low]).eps
    close(as_they_are, exact, "the loss of logits as they are", rel=within)


def deprecations(make):
    """The result of `make`, and the texts of its deprecation warnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = make()

    ends = FutureWarning, DeprecationWarning
    warned = [warning.message for warning in caught if issubclass(warning.category, ends)]
    return made, [str(message) for message in warned]


def enabled_on(device):
    return torch.is_autocast_enabled(device.type)


def settings_of(made):
    """The settings of a scaler, or of a region of autocast, on CUDA."""
    if isinstance(made, torch.amp.GradScaler):
        return made.is_enabled(), made.state_dict()
    with made:
        return (
            torch.is_autocast_enabled("cuda"),
            torch.get_autocast_dtype("cuda"),
            torch.is_autocast_cache_enabled(),
        )


OPTIONS = {
    "autocast": [{"dtype": torch.bfloat16}, {"enabled": False}, {"cache_enabled": False}],
    "GradScaler": [{"init_scale": 4.0, "growth_interval": 3}, {"enabled": False}],
}


@pytest.mark.claim("amp.cuda-amp-api")
@pytest.mark.parametrize("name", OPTIONS)
def test_torch_cuda_amp_warns_of_its_end_and_torch_amp_does_not(device, name):
    old_name = getattr(getattr(torch.cuda, "amp", None), name, None)
    if old_name is None:
        pytest.skip(f"this torch has removed torch.cuda.amp.{name}")
    old, (warned, *_) = deprecations(old_name)
    named = re.search(rf"torch\.amp\.{name}\('cuda'", warned)
    assert named, f"the warning names no successor: {warned}"

    settings = [settings_of(old)]
    for kind in ("cuda", device.type):
        made, warned = deprecations(partial(getattr(torch.amp, name), kind))
        equal(warned, [], "warnings of torch.amp", kind=kind)
        settings.append(settings_of(made))
    equal(settings[0], settings[1], "the settings of the old name")
    for options in OPTIONS[name]:
        old, _ = deprecations(partial(old_name, **options))
        new, _ = deprecations(partial(getattr(torch.amp, name), "cuda", **options))
        equal(settings_of(old), settings_of(new), "the settings of both names", options=options)

    enabled = made.is_enabled if name == "GradScaler" else made(partial(enabled_on, device))
    assert enabled(), f"torch.amp.{name}({device.type!r}) is not enabled on {device}"


@pytest.mark.claim("amp.gradscaler")
@fewer
@given(seed=seeds, exponent=st.integers(0, 20))
def test_with_bf16_the_scaler_changes_no_bit(device, seed, exponent):
    ends = []
    for scaler in (None, torch.amp.GradScaler(device.type, init_scale=2.0**exponent)):
        net = linear_layers(device, (70, 60, 2), seed)
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        x = seeded((8, 70), seed, device)
        for _ in range(2):
            _, loss = step(net, x, optimizer, torch.bfloat16, scaler)
        ends.append((loss.item(), flattened(net).tolist()))
    equal(ends[0], ends[1], "loss and weights without a scaler and with one")


SHAPES = ((), (70, 80), (3,))
OVERFLOWN = math.inf, -math.inf, math.nan


@pytest.mark.claim("amp.gradscaler")
@fewer
@given(
    overflows=st.lists(
        st.none() | st.tuples(st.sampled_from(range(len(SHAPES))), st.sampled_from(OVERFLOWN)),
        max_size=10,
    ),
    interval=sizes(1, 3),
    factors=st.sampled_from([(2.0, 0.5), (4.0, 0.125)]),
)
@example([None, (1, math.inf), None, (2, math.nan), (0, math.inf), None], 2, (2.0, 0.5))
def test_the_scaler_skips_a_step_that_overflowed_and_finds_its_scale(
    device, overflows, interval, factors
):
    """Each overflow is in the last element of one of the gradients, or there is none.

    It is an infinity, or the NaN that a difference of two makes.
    """
    weights = [nn.Parameter(torch.zeros(shape, device=device)) for shape in SHAPES]
    optimizers = [torch.optim.SGD([weight], lr=1.0) for weight in weights]
    scaler = torch.amp.GradScaler(device.type, 1024.0, *factors, interval)
    growth, backoff = factors
    scale = 1024.0
    steps = [0] * len(SHAPES)
    good = 0
    for overflow in overflows:
        loss = -sum(weight.sum() for weight in weights)
        if overflow is not None:
            place, value = overflow
            loss = loss + weights[place].flatten()[-1] * value
        scaler.scale(loss).backward()
        scaler.unscale_(optimizers[0])
        for at, optimizer in enumerate(optimizers):
            scaler.step(optimizer)
            optimizer.zero_grad()
            # An overflow stops the optimizer of its own weight alone.
            steps[at] += overflow is None or at != place
        scaler.update()
        if overflow is None:
            good = good + 1
        else:
            scale = backoff * scale
            good = 0
        if good == interval:
            scale = growth * scale
            good = 0

    equal(scaler.get_scale(), scale, "the scale")
    for weight, taken in zip(weights, steps, strict=True):
        equal(weight.unique().tolist(), [taken], "steps of an optimizer")


@pytest.mark.claim("amp.origin-2017")
def test_the_arxiv_number_of_the_paper_says_october_2017(pytestconfig):
    registry = pytestconfig.rootpath / "test_claims/registry/amp.toml"
    text = registry.read_text(encoding="utf-8")
    number = r'key = "mixed-precision-2017"[^\[]*arxiv\.org/abs/(\d\d)(\d\d)\.'
    equal(re.search(number, text).groups(), ("17", "10"), "year and month of the paper's number")

    equal(re.search(r"dates to (\d{4})", text).group(1), "2017", "the year stated")
