"""Claims about activations and checkpointing: the bytes kept, and the cost of recomputing."""

from contextlib import nullcontext
from functools import partial
from itertools import accumulate, pairwise, product
from math import isqrt, prod

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from accounting.activations import RANDOM_STATE_BYTES, activation_bytes
from accounting.models import DeepLinear, Transformer, recompute_flops
from prooflops import counted
from prooflops.memory import measured_memory
from test_claims.oracles import tensors
from test_claims.oracles.messages import agree, at_least, at_most, between, close, equal
from test_claims.oracles.nets import NETS, net_and_batch
from test_claims.strategies import TORCH_DTYPES, with_dtype


def ends_of_segments(layers, segments):
    """The ends of each segment of `layers`, divided as evenly as possible."""
    return list(pairwise(layers * end // segments for end in range(segments + 1)))


def in_segments(layers, x, segments, sequential=False, **options):
    """`x` after all `layers`, keeping only each segment's input; all is kept with 0 segments.

    `sequential` leaves the segments to torch, which keeps all of the last one.
    """
    if not segments:
        return nn.Sequential(*layers)(x)
    options = {"use_reentrant": False, **options}
    if sequential:
        return checkpoint_sequential(nn.Sequential(*layers), segments, x, **options)
    for start, end in ends_of_segments(len(layers), segments):
        x = checkpoint(nn.Sequential(*layers[start:end]), x, **options)

    return x


def measured_peaks(layers, x, counts):
    """The peak bytes of both passes for each number of segments, without parameters and `x`.

    The random state is not kept, which would take as much as a small activation.
    """
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    above = torch.ones_like(x)
    with measured_memory(x.device) as held:
        for segments in counts:
            y = in_segments(layers, x, segments, preserve_rng_state=False)
            y.backward(above)
            del y
            for tensor in (x, *parameters):
                tensor.grad = None
            held.mark(str(segments))

    return {segments: held.phases[str(segments)].peak_bytes for segments in counts}


def peak_bytes(layers, segments, activation, weight=0):
    """The expected result of `measured_peaks`, from the bytes of an activation and a weight.

    Backward runs from the last segment to the first. While the last layer of segment s (from 0) of
    k layers is differentiated there are the net's output, the inputs of segments 1 to s, k − 1
    recomputed inputs within it, the gradients of its output (that of the net came from outside) and
    of its input, and the gradients of the weights from it on. One layer further down there is one
    activation less and one weight's gradient more.
    """
    moments = []
    for segment, (start, end) in enumerate(ends_of_segments(layers, segments)):
        size = end - start
        behind = layers - end
        activations = 1 + segment + size - 1 + (2 if behind else 1)
        moments.append(activations * activation + (behind + 1) * weight)
        if size > 1 and not behind:
            moments.append(activations * activation + 2 * weight)
        elif size > 1:
            moments.append((activations - 1) * activation + (behind + 2) * weight)

    return max(moments)


MODELS = [
    DeepLinear(dim=1, layers=1, outputs=1),
    DeepLinear(dim=12, layers=5, outputs=3, bias=True),
    DeepLinear(dim=7, layers=3, outputs=2),
    DeepLinear(dim=130, layers=2, outputs=1),
]
SMALL = Transformer(vocab_size=50, layers=2, dim=32, heads=4, hidden=64)
FUSED = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]

# Elements kept by a layer of a linear map and this function: per output, and per row.
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
    """`layers` maps of one width, each with the function behind it, and a map to one output."""
    parts = []
    for _ in range(layers):
        parts.append(nn.Linear(width, width))
        if function is nn.LayerNorm:
            parts.append(nn.LayerNorm(width))
        elif function is not None:
            parts.append(function())

    return nn.Sequential(*parts, nn.Linear(width, 1)).to(device)


def kept_by(net, x):
    return tensors.graph_bytes(x.device, partial(net, x))


@pytest.mark.claim("act.BDL", "act.can-dominate", "amp.activation-memory")
@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16", "fp16"])
@pytest.mark.parametrize(
    ("model", "rows"), [*zip(MODELS, [(1,), (2, 4), (5,), (3, 20, 10)], strict=True)], ids=str
)
def test_a_deep_linear_net_keeps_batch_times_width_times_layers(
    workloads, metered_device, model, rows, dtype
):
    """The batch is of rows, or of sequences of them."""
    element = TORCH_DTYPES[dtype]
    device = with_dtype(metered_device, element)
    net = workloads.build(model, device=device, dtype=element)
    batch = prod(rows)
    x = workloads.inputs(model, batch, device=device)
    got = kept_by(net, x.to(element).view(*rows, -1))
    should = batch * model.dim * model.layers * element.itemsize
    formula = activation_bytes(model, batch, dtype=dtype)
    agree("bytes kept", got=got, formula=formula, by_hand=should)


# In 16 bits LayerNorm's mean and deviation are of a dtype that the device chooses.
@pytest.mark.claim("act.BDL", "grad.needs-activations")
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *product(KEPT, [torch.float32]),
        *product([*KEPT][:-1], [torch.bfloat16]),
    ],
)
@pytest.mark.parametrize(
    ("rows", "width", "layers"),
    [
        ((1,), 2, 1),
        ((2, 4), 16, 4),
        ((21, 100), 33, 2),
    ],
)
def test_a_function_that_keeps_its_input_doubles_it(
    metered_device, name, dtype, rows, width, layers
):
    """ReLU and tanh keep their output, as the next map does anyway; GELU and SiLU their input."""
    function, each, per_row = KEPT[name]
    net = deep_net(width, layers, function, metered_device).to(dtype)
    x = torch.randn(*rows, width, device=metered_device, dtype=dtype)
    got = kept_by(net, x)
    of_a_row = each * width + per_row
    should = dtype.itemsize * layers * prod(rows) * of_a_row
    equal(got, should, "bytes kept")


@pytest.mark.claim("grad.needs-activations")
def test_the_gradient_of_a_table_of_50257_words_needs_their_ids(device):
    table = torch.ones(50_257, 1, device=device, requires_grad=True)
    ids = torch.tensor([3, 300, 2**15, 50_256], device=device)
    both = nn.functional.embedding(ids, table) + nn.functional.embedding_bag(ids[:, None], table)
    both.sum().backward()
    rows = table.grad.nonzero()[:, 0]
    equal(rows, ids, "rows with a gradient")


# Linear maps of one width; the convolutions have a kernel and an input of one place.
MAPS = [nn.Linear, *(partial(conv, kernel_size=1) for conv in (nn.Conv1d, nn.Conv2d, nn.Conv3d))]


@pytest.mark.claim("act.why", "grad.needs-activations")
@pytest.mark.parametrize("learning", [[0, 0], [1, 1, 1], [0, 1, 0, 1], [1, 0, 0]], ids=str)
@pytest.mark.parametrize(("rows", "width"), [((1,), 2), ((5,), 8), ((2, 4, 8), 96)])
@torch.backends.cudnn.flags(enabled=True, deterministic=True)
def test_what_is_kept_are_the_inputs_of_layers_whose_weights_learn(
    metered_device, rows, width, learning
):
    for places, linear in enumerate(MAPS):
        maps = [linear(width, width, bias=False) for _ in learning]
        net = nn.Sequential(*maps).to(metered_device)
        for layer, learns in zip(net, learning, strict=True):
            layer.weight.requires_grad_(bool(learns))
        x = torch.randn(*rows, width, device=metered_device)
        if places:
            x = x.view(-1, width, *[1] * places)
        held = kept_by(net, x)
        # A convolution with a fixed weight keeps its input, too, once a layer before it learns.
        kept = [*accumulate(learning, max)] if places else learning
        # The net's input was there before.
        within = x.nbytes * sum(kept[1:])
        equal(held, within, "bytes kept by the allocator", of=net[0])

        weights = {parameter.data_ptr() for parameter in net.parameters()}

        def twice_unless_a_weight(tensor, weights=weights):
            return tensor if tensor.data_ptr() in weights else 2 * tensor

        with torch.autograd.graph.saved_tensors_hooks(torch.detach, twice_unless_a_weight):
            y = net(x)
        equal(y.requires_grad, any(learning), "whether the output needs a gradient")

        if any(learning):
            learned = [layer.weight for layer in net if layer.weight.requires_grad]
            twice = torch.autograd.grad(y.sum(), learned)
            right = torch.autograd.grad(net(x).sum(), learned)
            for got, should in zip(twice, right, strict=True):
                equal(got, 2 * should, "a gradient with what is kept doubled")


INFERENCE = {
    "set_grad_enabled(False)": partial(torch.set_grad_enabled, False),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


@pytest.mark.claim("act.inference-one-layer")
@pytest.mark.parametrize("name", [name for name in KEPT if name != "LayerNorm"])
@pytest.mark.parametrize(
    ("rows", "width", "layers"),
    [
        ((1,), 1, 2),
        ((2, 3), 12, 6),
        ((1100,), 65, 3),
    ],
)
def test_inference_holds_the_input_and_output_of_one_layer(
    metered_device, name, rows, width, layers
):
    function, each, _ = KEPT[name]
    for dtype in (torch.float32, torch.bfloat16):
        *maps, _ = deep_net(width, layers, function, metered_device)
        # The mode of evaluation alone keeps what training keeps.
        net = nn.Sequential(*maps).to(dtype).eval()
        x = torch.ones(*rows, width, device=metered_device, dtype=dtype)
        tensors.warm_up(metered_device)
        with measured_memory(metered_device) as held:
            with torch.no_grad():
                maps[0](x)
            held.mark("one map")
            for mode, entered in INFERENCE.items():
                with entered():
                    net(x)
                held.mark(mode)
            net(x)
            held.mark("training")

        peaks = {phase: figures.peak_bytes for phase, figures in held.phases.items()}
        # A kernel's own scratch, as oneDNN's for bf16 where the CPU multiplies it.
        scratch = peaks.pop("one map") - x.nbytes
        training = peaks.pop("training")
        for mode, inference in peaks.items():
            should = 2 * x.nbytes + scratch
            equal(inference, should, "the peak of inference in bytes", mode=mode, dtype=dtype)

        # The input of these is there until they return.
        at_work = function in (nn.ReLU, nn.Tanh, nn.Sigmoid)
        at_last_function = (layers * each + at_work) * x.nbytes
        at_last_map = ((layers - 1) * each + 1) * x.nbytes + scratch
        should = max(at_last_function, at_last_map)
        equal(training, should, "the peak with gradients in bytes", dtype=dtype)


@pytest.mark.claim("act.inference-one-layer", "act.why", "grad.graph-built-in-forward")
@pytest.mark.parametrize("kind", NETS)
@pytest.mark.parametrize("mode", INFERENCE)
def test_inference_leaves_nothing_but_the_result(metered_device, kind, mode):
    net, x, _ = net_and_batch(metered_device, 5, kind, dtype=torch.float32)

    def inferred():
        with INFERENCE[mode]():
            return net(x)

    (y, _), held = tensors.held_after(metered_device, inferred, inferred)
    equal(held, [y.nbytes, 2 * y.nbytes], "bytes held by one result, and by two")


@pytest.mark.claim("act.can-dominate")
def test_activations_grow_with_the_batch_until_they_dominate(
    workloads, memory_device, record_figure
):
    model = DeepLinear(dim=32, layers=8)
    batches = [64, 128, 512, 2048]
    net = workloads.build(model, device=memory_device)
    x = workloads.inputs(model, batches[-1], device=memory_device)
    net(x)
    with measured_memory(memory_device) as held:
        for batch in batches:
            y = net(x[:batch])
            held.mark(str(batch))
            del y

    stepper = torch.optim.AdamW(net.parameters())
    tensors.train(net, stepper, x[:1])
    state = tensors.parameter_bytes(net) + tensors.gradient_bytes(net)
    state += tensors.state_bytes(stepper)
    shares = []
    for batch in batches:
        kept = held.phases[str(batch)].live_bytes - 4 * batch * model.outputs
        shares.append(kept / (kept + state))

    record_figure(f"shares at batches of {batches}: {[f'{share:.0%}' for share in shares]}")
    at_most(shares[0], 1 / 2, "the share of activations at a small batch")
    at_least(shares[-1], 0.9, "the share of activations at a large batch")


@pytest.mark.claim("act.BDL", "act.can-dominate")
@pytest.mark.parametrize(
    ("backends", "attention", "growth", "dtype"),
    [
        (FUSED, "flash", (1.95, 2.05), "fp32"),
        ([SDPBackend.MATH], "math", (3, 4), "fp32"),
        (FUSED, "flash", (1.95, 2.05), "bf16"),
        (FUSED, "flash", (1.95, 2.05), "fp16"),
    ],
    ids=["fused", "math", "bf16", "fp16"],
)
def test_activations_grow_with_the_sequence(
    workloads, metered_device, record_figure, backends, attention, growth, dtype
):
    net = workloads.build(SMALL, device=metered_device, dtype=TORCH_DTYPES[dtype])
    kept = []
    for tokens in (256, 512):
        x = workloads.inputs(SMALL, 2, tokens, device=metered_device)
        with sdpa_kernel(backends):
            got = kept_by(net, x)
        formula = activation_bytes(SMALL, 2, tokens, attention=attention, dtype=dtype)
        # A fused kernel of CUDA adds dropout's random state.
        if metered_device.type == "cpu":
            equal(got, formula, "activation_bytes", tokens=tokens)
        kept.append(got)

    ratio = kept[1] / kept[0]
    record_figure(f"{ratio:.2f} times for twice the tokens")
    between(ratio, *growth, "the growth for twice the tokens")


def trained_in_segments(device, segments, dropout=0.3, seed=0, low="fp32", **options):
    """Gradients and weights of a net with dropout after three steps in checkpointed segments.

    Products run in the dtype `low`: the recomputed ones must, too.
    """
    torch.manual_seed(seed)

    def layer():
        linear = nn.Linear(24, 24)
        return nn.Sequential(linear, nn.Tanh(), nn.Dropout(dropout)).to(device)

    layers = [layer() for _ in range(6)]
    parameters = [parameter for layer in layers for parameter in layer.parameters()]
    stepper = torch.optim.AdamW(parameters, lr=1e-2)
    for _ in range(3):
        stepper.zero_grad()
        x = torch.randn(4, 50, 24, device=device, requires_grad=True)
        with torch.autocast(device.type, TORCH_DTYPES[low], enabled=low != "fp32"):
            y = in_segments(layers, x, segments, **options)
        y.float().pow(2).mean().backward()
        stepper.step()

    ends = [x.grad, *parameters, *(parameter.grad for parameter in parameters)]
    return torch.cat([end.detach().flatten() for end in ends])


@pytest.mark.claim("act.checkpoint-same-grads")
@pytest.mark.parametrize("reentrant", [False, True], ids=["non-reentrant", "reentrant"])
@pytest.mark.parametrize(
    ("segments", "dropout", "low"),
    [
        (1, 0.5, "fp32"),
        (2, 0.0, "bf16"),
        (3, 0.9, "fp16"),
        (4, 0.3, "bf16"),
        (6, 0.1, "fp32"),
    ],
)
def test_training_is_bitwise_the_same_for_any_number_of_segments(
    device, reentrant, segments, dropout, low
):
    """With dropout, but on mps, where checkpoints keep no random state (pytorch issue 127676)."""
    dropout = 0.0 if device.type == "mps" else dropout
    whole = trained_in_segments(device, 0, dropout, segments, low)
    options = {"use_reentrant": reentrant, "sequential": segments > 3}
    got = trained_in_segments(device, segments, dropout, segments, low, **options)
    equal(got, whole, "gradients and weights")


@pytest.mark.claim("act.checkpoint-same-grads")
@pytest.mark.parametrize(("dropout", "same"), [(0.3, False), (0.0, True)])
def test_dropout_is_drawn_anew_where_the_random_state_is_not_kept(device, dropout, same):
    whole = trained_in_segments(device, 0, dropout)
    got = trained_in_segments(device, 3, dropout, preserve_rng_state=False)
    equal(torch.equal(got, whole), same, "whether gradients are the same without the random state")


@pytest.mark.claim("act.checkpoint-same-grads")
def test_the_running_statistics_of_batch_norm_move_twice(device):
    """Recomputing runs the layer again, which moves its statistics again, and no gradient."""
    ends = {}
    for segments in (0, 1):
        torch.manual_seed(0)
        norm = nn.BatchNorm1d(4)
        layer = nn.Sequential(nn.Linear(4, 4), norm, nn.Tanh()).to(device)
        x = torch.randn(32, 4).to(device).requires_grad_()
        y = in_segments([layer], x, segments)
        y.pow(2).sum().backward()
        ends[segments] = x.grad, norm.num_batches_tracked.item(), norm.running_mean

    gradient, moved, mean = ends[0]
    again, moved_again, mean_again = ends[1]
    equal(again, gradient, "gradients with recomputation")
    equal((moved, moved_again), (1, 2), "moves of the statistics")

    # The second move adds 0.9 of the first.
    close((mean_again / mean).median().item(), 1.9, "how far the mean moves", rel=1e-4)


LAYERS = 8
WIDTH = 6
BATCH = 5


def step_flops_in_segments(segments, early_stop, device, function=None, **options):
    """FLOPs of the products of a step of linear layers, over BN: those of one parameter's use."""
    layers = [nn.Linear(WIDTH, WIDTH, bias=False).to(device) for _ in range(LAYERS)]
    if function is not None:
        layers = [nn.Sequential(linear, function()) for linear in layers]
    x = torch.randn(BATCH, WIDTH, device=device, requires_grad=True)
    # It is the default.
    stopping = nullcontext() if early_stop else set_checkpoint_early_stop(False)
    with counted.flops() as count, stopping:
        y = in_segments(layers, x, segments, **options)
        y.backward(torch.ones_like(y))

    return count.total / (BATCH * LAYERS * WIDTH**2)


def without_early_stop(segments):
    return pytest.param(segments, {}, False, 8, marks=pytest.mark.claim("act.sqrt-L"))


@pytest.mark.claim("act.ckpt-cost")
@pytest.mark.parametrize(
    ("segments", "options", "early_stop", "should"),
    [
        (0, {}, True, 6),
        (8, {}, True, 6),
        (4, {}, True, 7),
        (2, {}, True, 7.5),
        (1, {}, True, 7.75),
        *map(without_early_stop, (1, 3, 8)),
        *((segments, {"use_reentrant": True}, True, 8) for segments in (1, 4, 8)),
        # It keeps its output.
        *((segments, {"function": nn.Tanh}, True, 8) for segments in (1, 4, 8)),
        (4, {"sequential": True}, True, 6.75),
        (2, {"sequential": True, "use_reentrant": True}, True, 7),
    ],
)
def test_a_step_costs_six_to_eight_flops_per_parameter_and_example(
    device, segments, options, early_stop, should
):
    got = step_flops_in_segments(segments, early_stop, device, **options)
    equal(got, should, "FLOPs of a step over BN")


@pytest.mark.claim("act.ckpt-cost", "act.sqrt-L")
@pytest.mark.parametrize("early_stop", [False, True])
@pytest.mark.parametrize(
    ("model", "batch", "tokens", "every"),
    [
        (MODELS[0], 1, 1, 1),
        (MODELS[1], 5, 1, 1),
        (MODELS[1], 5, 1, 2),
        (MODELS[2], 3, 1, 6),
        (MODELS[3], 64, 1, 1),
        (SMALL, 2, 7, 1),
        (SMALL, 3, 40, 2),
    ],
    ids=str,
)
def test_what_is_recomputed_is_what_the_formula_says(
    workloads, device, model, batch, tokens, every, early_stop
):
    totals = []
    for checkpoint_every in (0, every):
        net = workloads.build(model, device=device, checkpoint_every=checkpoint_every)
        x = workloads.inputs(model, batch, tokens, device=device)
        with counted.flops() as count, set_checkpoint_early_stop(early_stop):
            y = net(x)
            y.backward(torch.ones_like(y))
        totals.append(count.total)

    formula = recompute_flops(model, batch, tokens, every=every, early_stop=early_stop)
    equal(formula, totals[1] - totals[0], "recompute_flops")


@pytest.mark.claim("act.ckpt-cost")
@pytest.mark.parametrize("every", [0, 1, 2, 4, 8])
def test_the_memory_bought_is_all_but_one_activation_per_segment(workloads, memory_device, every):
    model = DeepLinear(dim=16, layers=8)
    batch = 256
    rows = workloads.inputs(model, batch, device=memory_device)
    x = rows.view(2, -1, model.inputs)
    net = workloads.build(model, device=memory_device, checkpoint_every=every)
    with measured_memory(memory_device) as held:
        y = net(x)
    segments = 0
    if every:
        segments = -(-model.layers // every)
    random_state = 0
    if memory_device.type == "cpu":
        random_state = segments * RANDOM_STATE_BYTES
    got = held.live_bytes - y.nbytes - random_state
    kept = segments or model.layers
    should = 4 * batch * model.dim * kept
    formula = activation_bytes(model, batch, checkpoint_every=every)
    agree("bytes kept", got=got, formula=formula, by_hand=should)


@pytest.mark.claim("act.sqrt-L")
@pytest.mark.parametrize("number", [16, 36])
def test_the_peak_is_least_near_the_root_of_the_number_of_layers(
    memory_device, record_figure, number
):
    """Matrices for 16 layers; functions for more, in up to 10 segments and every seventh number."""
    width = 8
    batch = 128
    layers = []
    for _ in range(number):
        layer = nn.Linear(width, width, bias=False) if number == 16 else nn.SiLU()
        layers.append(layer.to(memory_device))

    weight = sum(4 * parameter.numel() for parameter in layers[0].parameters())
    activation = 4 * batch * width
    x = torch.randn(batch, width, device=memory_device, requires_grad=True)
    peaks = measured_peaks(layers, x, [*range(1, 11), *range(15, number, 7), number])
    for segments, peak in peaks.items():
        formula = peak_bytes(number, segments, activation, weight)
        equal(peak, formula, "the peak in bytes", segments=segments)

    root = isqrt(number)
    least = min(peaks, key=peaks.__getitem__)
    record_figure(
        f"{number} layers: least at {least} segments, {peaks[least] / activation:.1f} B·D"
    )
    between(least, root - 1, root + 1, "the number of segments with the least peak")

    at_most(peaks[root], 1.05 * peaks[least], "the peak at the root")

    whole = number * activation
    at_least(min(peaks[1], peaks[number]), whole, "the peak at the ends")
