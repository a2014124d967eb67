"""Activations and activation checkpointing: the bytes that autograd keeps, and the savings and cost of recomputing."""

from collections.abc import Sequence
from itertools import accumulate
from math import isqrt
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from accounting import memory
from accounting.activations import RANDOM_STATE_BYTES, activation_bytes, recomputed_bytes
from accounting.models import DeepLinear, Transformer, recompute_flops
from prooflops import counted, measured
from test_claims.oracles import tensors
from test_claims.oracles.tensors import difference
from test_claims.strategies import TORCH_DTYPES, dtypes_among, seeds, sizes


def sizes_of_segments(layers: int, segments: int) -> list[int]:
    """`layers` divided as evenly as possible."""
    ends = [layers * (segment + 1) // segments for segment in range(segments)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


def in_segments(layers: Sequence[nn.Module], x: Tensor, segments: int, **options: Any) -> Tensor:
    """`x` after all `layers`, keeping only each segment's input; with 0 segments everything is kept."""
    if not segments:
        return nn.Sequential(*layers)(x)
    start = 0
    for size in sizes_of_segments(len(layers), segments):
        part = nn.Sequential(*layers[start : start + size])
        x = checkpoint(part, x, **{"use_reentrant": False, **options})
        start += size
    return x


def measured_peaks(layers: Sequence[nn.Module], x: Tensor, counts: Sequence[int]) -> dict[int, int]:
    """The peak bytes of forward and backward for each number of segments, parameters and `x` not included.

    The random state is not kept, which would take as much as a small activation; nothing here is random.
    """
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    above = torch.ones_like(x)
    with measured.memory(x.device) as held:
        for segments in counts:
            y = in_segments(layers, x, segments, preserve_rng_state=False)
            y.backward(above)
            del y
            for tensor in (x, *parameters):
                tensor.grad = None
            held.mark(str(segments))
    return {segments: held.phases[str(segments)].peak_bytes for segments in counts}


def peak_bytes(layers: int, segments: int, activation: int, weight: int = 0) -> int:
    """Expected result of `measured_peaks` for layers that keep their input, with these bytes of activation and weight.

    Backward runs from the last segment to the first. While the last layer of segment s (from 0) of k layers is
    differentiated there are the output of the net, the inputs of segments 1 to s, k − 1 recomputed inputs within it,
    the gradients of its output (that of the net came from outside) and of its input, and the gradients of the weights
    from it on. One layer further down there is one activation less and one weight's gradient more.
    """
    moments = []
    sizes = sizes_of_segments(layers, segments)
    for segment, (size, end) in enumerate(zip(sizes, accumulate(sizes), strict=True)):
        behind = layers - end
        activations = 1 + segment + size - 1 + (2 if behind else 1)
        moments.append(activations * activation + (behind + 1) * weight)
        if size > 1 and not behind:
            moments.append(activations * activation + 2 * weight)
        elif size > 1:
            moments.append((activations - 1) * activation + (behind + 2) * weight)
    return max(moments)


nets = st.builds(DeepLinear, dim=sizes(most=12), layers=sizes(most=5), outputs=sizes(most=3))
SMALL = Transformer(vocab_size=50, layers=2, dim=32, heads=4, hidden=64)

# Elements kept by a layer of a linear map and this function, per element of its output, and per row.
KEPT = {
    "linear alone": (None, 1, 0),
    "ReLU": (nn.ReLU, 1, 0),
    "tanh": (nn.Tanh, 1, 0),
    "sigmoid": (nn.Sigmoid, 1, 0),
    "GELU": (nn.GELU, 2, 0),
    "SiLU": (nn.SiLU, 2, 0),
    "LayerNorm": (nn.LayerNorm, 2, 2),
}


def deep_net(width, layers, function, device):
    """So many linear maps of one width, each with the function behind it, and a linear map to one output."""
    parts = []
    for _ in range(layers):
        parts.append(nn.Linear(width, width))
        if function is not None:
            parts.append(nn.LayerNorm(width) if function is nn.LayerNorm else function())
    return nn.Sequential(*parts, nn.Linear(width, 1)).to(device)


def kept_by(net, x):
    return tensors.graph_bytes(x.device, lambda: net(x))


@pytest.mark.claim("act.BDL", "act.can-dominate", "amp.activation-memory")
@given(model=nets, batch=sizes(most=8), dtype=dtypes_among(["fp64", "fp32", "bf16", "fp16"]))
def test_a_deep_linear_net_keeps_batch_times_width_times_layers(
    workloads, metered_device, model, batch, dtype
):
    net = workloads.build(model, device=metered_device, dtype=TORCH_DTYPES[dtype])
    got = kept_by(
        net, workloads.inputs(model, batch, device=metered_device).to(TORCH_DTYPES[dtype])
    )
    elements = batch * model.dim * model.layers
    formula = activation_bytes(model, batch, dtype=dtype)
    should = elements * TORCH_DTYPES[dtype].itemsize
    assert got == should, (
        f"autograd keeps {got} bytes, but should keep {should} [{model}, {batch=}, {dtype}]"
    )
    assert formula == got, (
        f"activation_bytes={formula}, but should be {got} [{model}, {batch=}, {dtype}]"
    )


@pytest.mark.claim("act.BDL")
@pytest.mark.parametrize("name", KEPT)
@given(batch=sizes(most=8), width=sizes(2, 16), layers=sizes(most=4))
def test_a_function_that_keeps_its_input_doubles_it(metered_device, name, batch, width, layers):
    """ReLU and tanh keep their output, which the next linear map keeps anyway; GELU and SiLU keep their input."""
    function, each, per_row = KEPT[name]
    got = kept_by(
        deep_net(width, layers, function, metered_device),
        torch.randn(batch, width, device=metered_device),
    )
    should = 4 * layers * batch * (each * width + per_row)
    assert got == should, (
        f"with {name} {got} bytes are kept, but should be {should} [{batch=}, {width=}, {layers=}]"
    )


@pytest.mark.claim("act.BDL", "act.can-dominate")
@pytest.mark.parametrize("fused", [False, True], ids=["math", "fused"])
@pytest.mark.parametrize("tokens", [32, 64, 128])
def test_attention_keeps_all_pairs_of_tokens_unless_it_is_fused(
    metered_device, record_figure, fused, tokens
):
    query, key, value = (
        torch.randn(2, 3, tokens, 16, device=metered_device).requires_grad_() for _ in range(3)
    )
    backends = (
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION] if fused else [SDPBackend.MATH]
    )

    def attend():
        with sdpa_kernel(backends):
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    got = tensors.graph_bytes(metered_device, attend)
    rows = 4 * query[..., 0].numel()
    output = query.nbytes
    record_figure(f"{tokens} tokens, {'fused' if fused else 'math'}: {got} bytes")
    # The pairs, scaled queries and keys; or the output and a number a row, to which CUDA adds dropout's random state.
    should = output + rows if fused else rows * tokens + 2 * output
    more = 64 if fused and metered_device.type != "cpu" else 0
    assert should <= got <= should + more, (
        f"it keeps {got} bytes, but should keep {should} [{fused=}, {tokens=}]"
    )


@pytest.mark.claim("act.why", "grad.needs-activations")
@given(batch=sizes(most=5), width=sizes(2, 8), layers=sizes(2, 4), data=st.data())
def test_what_is_kept_are_the_inputs_of_the_layers_whose_weights_learn(
    metered_device, batch, width, layers, data
):
    net = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(
        metered_device
    )
    learning = data.draw(
        st.lists(st.booleans(), min_size=layers, max_size=layers), label="learning"
    )
    inputs = []
    kept = []
    for layer, learns in zip(net, learning, strict=True):
        layer.weight.requires_grad_(learns)
    held = kept_by(net, torch.randn(batch, width, device=metered_device))
    for layer in net:
        layer.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    weights = {parameter.data_ptr() for parameter in net.parameters()}
    x = torch.randn(batch, width, device=metered_device)
    doubled = torch.autograd.graph.saved_tensors_hooks(
        lambda t: (kept.append(t), t)[1], lambda t: t if t.data_ptr() in weights else 2 * t
    )
    with doubled:
        y = net(x)
    got = {tensor.data_ptr() for tensor in kept} - weights
    should = {x.data_ptr() for x, learns in zip(inputs, learning, strict=True) if learns}
    assert got == should, (
        f"{len(got - should)} tensors too many and {len(should - got)} too few are kept [{learning=}]"
    )
    assert y.requires_grad == any(learning), (
        f"the output needs a gradient: {y.requires_grad} [{learning}]"
    )
    if learned := [layer.weight for layer in net if layer.weight.requires_grad]:
        twice, right = (torch.autograd.grad(of.sum(), learned) for of in (y, net(x)))
        off = [difference(a, 2 * b) for a, b in zip(twice, right, strict=True)]
        assert not any(off), (
            f"with what is kept doubled, the weights' gradients should double: {off} [{learning=}]"
        )
    within = 4 * batch * width * sum(learning[1:])  # the net's input was there before
    assert held == within, (
        f"the allocator holds {held} bytes for them, but should hold {within} [{learning=}]"
    )


@pytest.mark.claim("act.why", "grad.graph-built-in-forward")
@pytest.mark.parametrize("name", KEPT)
def test_nothing_is_kept_where_no_gradient_will_be_asked_for(metered_device, name):
    net = deep_net(8, 3, KEPT[name][0], metered_device)
    x = torch.randn(4, 8, device=metered_device)
    with torch.no_grad():
        got = kept_by(net, x)
    assert got == 0, f"under no_grad {got} bytes are kept, but should be none"
    assert kept_by(net, x) > 0, "with gradients some bytes should be kept, but none are"


@pytest.mark.claim("act.inference-one-layer")
@pytest.mark.parametrize("name", [name for name in KEPT if name != "LayerNorm"])
@given(batch=sizes(), width=sizes(most=12), layers=sizes(2, 6))
def test_inference_holds_one_layers_input_and_output_however_many_there_are(
    metered_device, name, batch, width, layers
):
    function, each, _ = KEPT[name]
    *maps, _ = deep_net(width, layers, function, metered_device)
    net = nn.Sequential(*maps)
    x = torch.ones(batch, width, device=metered_device)
    tensors.warm_up(metered_device)
    with measured.memory(metered_device) as held:
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients):
                net(x)
            held.mark(str(gradients))
    inference = held.phases["False"].peak_bytes
    training = held.phases["True"].peak_bytes
    one = memory.tensor_bytes((batch, width))
    assert inference == 2 * one, (
        f"inference peaks at {inference} bytes, not at two activations [{layers=}]"
    )
    should = layers * each + (
        function in (nn.ReLU, nn.Tanh, nn.Sigmoid)
    )  # whose input is there until they return
    assert training == should * one, (
        f"with gradients it peaks at {training} bytes, not at {should} activations"
    )


@pytest.mark.claim("act.can-dominate")
def test_activations_grow_with_the_batch_until_they_dominate(
    workloads, memory_device, record_figure
):
    model = DeepLinear(dim=32, layers=8)
    batches = [64, 128, 512, 2048]
    net = workloads.build(model, device=memory_device)
    x = workloads.inputs(model, batches[-1], device=memory_device)
    net(x)
    with measured.memory(memory_device) as held:
        for batch in batches:
            y = net(x[:batch])
            held.mark(str(batch))
            del y
    kept = {
        batch: held.phases[str(batch)].live_bytes - 4 * batch * model.outputs for batch in batches
    }
    stepper = torch.optim.AdamW(net.parameters())
    tensors.train(net, stepper, x[:1])
    state = sum(
        (tensors.parameter_bytes(net), tensors.gradient_bytes(net), tensors.state_bytes(stepper))
    )
    shares = [got / (got + state) for got in kept.values()]
    record_figure(
        ", ".join(f"B={batch}: {share:.0%}" for batch, share in zip(batches, shares, strict=True))
    )
    assert shares[0] < 1 / 2 < 0.9 < shares[-1], (
        f"activations are {shares} of all, but should come to dominate"
    )


@pytest.mark.claim("act.can-dominate")
@pytest.mark.parametrize(("backend", "growth"), [("fused", (1.95, 2.05)), ("math", (3, 4))])
def test_activations_grow_with_the_sequence(
    workloads, metered_device, record_figure, backend, growth
):
    backends = (
        [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        if backend == "fused"
        else SDPBackend.MATH
    )
    net = workloads.build(SMALL, device=metered_device)
    with sdpa_kernel(backends):
        kept = [
            kept_by(net, workloads.inputs(SMALL, 1, tokens, device=metered_device))
            for tokens in (256, 512)
        ]
    ratio = kept[1] / kept[0]
    record_figure(f"{backend}: {ratio:.2f} times for twice the tokens")
    least, most = growth
    assert least < ratio < most, (
        f"twice the tokens keep {ratio:.2f} times as much, not {least} to {most} times"
    )


def trained_in_segments(device, segments, dropout=0.3, seed=0, low="fp32", **options):
    """Gradients and weights of a net with dropout after three steps, run in `segments` checkpointed segments.

    Products run in the dtype `low`: the recomputed ones must, too.
    """
    torch.manual_seed(seed)
    layers = [
        nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(dropout)).to(device) for _ in range(6)
    ]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    stepper = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(3):
        stepper.zero_grad()
        x = torch.randn(16, 8, device=device, requires_grad=True)
        with torch.autocast(device.type, TORCH_DTYPES[low], enabled=low != "fp32"):
            y = in_segments(layers, x, segments, **options)
        y.float().pow(2).mean().backward()
        stepper.step()
    return torch.cat(
        [tensor.flatten() for p in (*parameters, x) for tensor in (p.grad, p.detach())]
    )


@pytest.mark.claim("act.checkpoint-same-grads")
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@given(
    segments=sizes(most=6),
    dropout=st.floats(0, 0.9),
    seed=seeds,
    low=dtypes_among(["bf16", "fp16", "fp32"]),
)
def test_training_is_bitwise_the_same_for_any_number_of_segments(
    device, reentrant, segments, dropout, seed, low
):
    """With dropout, but where torch keeps no random state: on mps its checkpoints have none (pytorch issue 127676)."""
    dropout = 0.0 if device.type == "mps" else dropout
    whole = trained_in_segments(device, 0, dropout, seed, low)
    got = trained_in_segments(device, segments, dropout, seed, low, use_reentrant=reentrant)
    apart = (got != whole).sum().item()
    assert apart == 0, (
        f"{apart} gradients and weights differ, not none [{segments=}, {dropout=}, {seed=}, {low=}]"
    )


@pytest.mark.claim("act.checkpoint-same-grads")
def test_dropout_is_drawn_anew_where_the_random_state_is_not_kept(device):
    for dropout, same in ((0.3, False), (0.0, True)):
        whole = trained_in_segments(device, 0, dropout)
        got = trained_in_segments(device, 3, dropout, preserve_rng_state=False)
        assert torch.equal(got, whole) == same, (
            f"without the random state gradients should be {same=} [{dropout=}]"
        )


@pytest.mark.claim("act.checkpoint-same-grads")
def test_the_running_statistics_of_batch_norm_move_twice(device):
    """Recomputing runs the layer again, which moves its statistics again. Gradients are the same."""
    ends = {}
    for segments in (0, 1):
        torch.manual_seed(0)
        layer = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh()).to(device)
        x = torch.randn(32, 4).to(device).requires_grad_()
        in_segments([layer], x, segments).pow(2).sum().backward()
        ends[segments] = x.grad, layer[1].num_batches_tracked.item(), layer[1].running_mean
    wrong = difference(ends[1][0], ends[0][0])
    assert not wrong, f"gradients with recomputation: {wrong}"
    moves = ends[0][1], ends[1][1]
    assert moves == (1, 2), (
        f"the running statistics move {moves} times, but should move once and twice"
    )
    ratio = (ends[1][2] / ends[0][2]).median().item()
    assert ratio == pytest.approx(1.9, rel=1e-4), (
        f"the running mean moves {ratio} times as far, not 1 + 0.9"
    )


LAYERS = 8
WIDTH = 6
BATCH = 5


def step_flops_in_segments(segments, early_stop, device, function=None, **options):
    """Product FLOPs of forward and backward of linear layers, over those of one forward and one parameter: BN."""
    linears = [nn.Linear(WIDTH, WIDTH, bias=False).to(device) for _ in range(LAYERS)]
    layers = (
        linears if function is None else [nn.Sequential(linear, function()) for linear in linears]
    )
    x = torch.randn(BATCH, WIDTH, device=device, requires_grad=True)
    with counted.flops() as count, set_checkpoint_early_stop(early_stop):
        y = in_segments(layers, x, segments, **options)
        y.backward(torch.ones_like(y))
    return count.total / (BATCH * LAYERS * WIDTH**2)


@pytest.mark.claim("act.ckpt-cost")
@pytest.mark.parametrize(
    ("segments", "options", "early_stop", "should"),
    [
        (0, {}, True, 6),
        (8, {}, True, 6),
        (4, {}, True, 7),
        (2, {}, True, 7.5),
        (1, {}, True, 7.75),
        *(
            pytest.param(n, {}, False, 8, marks=pytest.mark.claim("act.sqrt-L"))
            for n in range(1, LAYERS + 1)
        ),
        *((segments, {"use_reentrant": True}, True, 8) for segments in (1, 2, 4, 8)),
        *(
            (segments, {"function": nn.Tanh}, True, 8) for segments in (1, 2, 4, 8)
        ),  # which keeps its output
    ],
)
def test_a_step_costs_six_to_eight_flops_per_parameter_and_example(
    device, segments, options, early_stop, should
):
    got = step_flops_in_segments(segments, early_stop, device, **options)
    assert got == should, (
        f"a step costs {got} BN, but should cost {should} [{segments=}, {options}, {early_stop=}]"
    )


@pytest.mark.claim("act.ckpt-cost")
@given(model=nets, batch=sizes(most=5), every=sizes(most=6), early_stop=st.booleans())
def test_what_is_recomputed_is_what_the_formula_says(
    workloads, device, model, batch, every, early_stop
):
    totals = []
    for checkpoint_every in (0, every):
        net = workloads.build(model, device=device, checkpoint_every=checkpoint_every)
        x = workloads.inputs(model, batch, device=device)
        with counted.flops() as count, set_checkpoint_early_stop(early_stop):
            y = net(x)
            y.backward(torch.ones_like(y))
        totals.append(count.total)
    got = totals[1] - totals[0]
    formula = recompute_flops(model, batch, every=every, early_stop=early_stop)
    assert formula == got, (
        f"recompute_flops={formula}, not {got} [{model}, {batch=}, {every=}, {early_stop=}]"
    )


@pytest.mark.claim("act.ckpt-cost")
def test_the_memory_bought_is_all_but_one_activation_per_segment(workloads, memory_device):
    model = DeepLinear(dim=16, layers=8)
    batch = 256
    x = workloads.inputs(model, batch, device=memory_device)
    spacings = [0, 1, 2, 4, 8]
    nets = {
        every: workloads.build(model, device=memory_device, checkpoint_every=every)
        for every in spacings
    }
    with measured.memory(memory_device) as held:
        for every in spacings:
            y = nets[every](x)
            held.mark(str(every))
            del y
    for every in spacings:
        segments = -(-model.layers // every) if every else 0
        random_state = segments * RANDOM_STATE_BYTES if memory_device.type == "cpu" else 0
        got = held.phases[str(every)].live_bytes - 4 * batch - random_state
        should = 4 * batch * model.dim * (segments or model.layers)
        formula = activation_bytes(model, batch, checkpoint_every=every)
        assert got == formula == should, (
            f"{got} bytes are kept, {formula=}, but should be {should} [{every=}]"
        )


@pytest.mark.claim("act.sqrt-L")
@pytest.mark.parametrize("number", [16, 36, 64])
def test_the_peak_is_least_near_the_root_of_the_number_of_layers(
    memory_device, record_figure, number
):
    """Matrices in any number of segments for 16 layers; for more, functions in numbers up to 16 and every seventh."""
    width = 8
    batch = 128
    layers = [
        nn.Linear(width, width, bias=False) if number == 16 else nn.SiLU() for _ in range(number)
    ]
    layers = [layer.to(memory_device) for layer in layers]
    weight = sum(4 * parameter.numel() for parameter in layers[0].parameters())
    activation = 4 * batch * width
    root = isqrt(number)
    x = torch.randn(batch, width, device=memory_device, requires_grad=True)
    peaks = measured_peaks(layers, x, [*range(1, 17), *range(22, number + 1, 7)])
    for segments, peak in peaks.items():
        formula = peak_bytes(number, segments, activation, weight)
        assert peak == formula, (
            f"the peak is {peak} bytes, but should be {formula} [{segments=} of {number} layers]"
        )
    least = min(peaks, key=peaks.__getitem__)
    record_figure(
        f"{number} layers: least {peaks[least] / activation:.1f} B·D at {least} segments, "
        f"{peaks[1] / activation:.1f} at 1 and {peaks[number] / activation:.1f} at {number}"
    )
    assert abs(least - root) <= 1, (
        f"the peak is least at {least} segments, but should be near {root}"
    )
    assert peaks[root] < 1.05 * peaks[least], (
        f"at {root} segments it is {peaks[root]}, but should be near the least"
    )
    whole = number * activation
    assert min(peaks[1], peaks[number]) > whole, (
        f"at either end it is {peaks[1]}, but should exceed {whole}"
    )


@pytest.mark.claim("act.sqrt-L")
@pytest.mark.parametrize("number", [16, 36, 64])
def test_the_formula_of_kept_and_recomputed_bytes_has_its_least_there_too(number):
    model = DeepLinear(dim=8, layers=number)
    batch = 128
    activation = 4 * batch * model.dim
    held = {
        every: sum(
            of(model, batch, checkpoint_every=every) for of in (activation_bytes, recomputed_bytes)
        )
        for every in range(1, number + 1)
        if number % every == 0
    }
    for every, formula in held.items():
        # The peak also has the gradients that pass through a layer; the formula leaves out the first segment's input.
        peak = peak_bytes(number, number // every, activation)
        beyond = (peak - formula) / activation
        assert 1 <= beyond <= 2, (
            f"the peak {peak} is {beyond} activations beyond {formula=}, not 1 or 2 [{every=}]"
        )
    least = min(held, key=held.__getitem__)
    assert least == isqrt(number), (
        f"the formula is least at every {least} layers, not at every {isqrt(number)}"
    )
