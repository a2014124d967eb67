"""Claims about training memory: the allocator's bytes against the formulas."""

import copy
import gc
import tempfile
import time
from dataclasses import replace
from itertools import product
from math import prod

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from accounting import memory, optimizers
from accounting.activations import activation_bytes, deep_linear_peak_bytes
from accounting.models import DeepLinear, Transformer, parameter_count
from prooflops.memory import measured_memory
from prooflops.memory.allocator import rounded_bytes, segment_bytes
from prooflops.memory.caching_allocator import CachingAllocator
from test_claims.oracles import tensors
from test_claims.oracles.messages import agree, at_least, at_most, between, equal
from test_claims.strategies import (
    TORCH_DTYPES,
    dtypes_among,
    fewer,
    sizes,
)

nets = st.builds(
    DeepLinear,
    dim=sizes(most=12),
    layers=sizes(most=4),
    outputs=sizes(most=3),
    inputs=sizes(most=12),
)
# In smaller nets the numbers of the loss decide the peak.
wide_nets = st.builds(
    DeepLinear, dim=sizes(3, 16), layers=sizes(), outputs=sizes(most=20), inputs=sizes(most=30)
)
# Each new shape of a bf16 product costs the CPU 0.1 s of compilation.
few_nets = st.builds(DeepLinear, dim=st.sampled_from([1, 7]), layers=sizes(most=3))
# A tied table, and norms and attention of both kinds.
GPT = Transformer(
    vocab_size=11, layers=1, dim=8, heads=2, hidden=12, learned_positions=4, tied_embedding=True
)
LLAMA = replace(GPT, layers=2, norm="rmsnorm", gated=True, kv_heads=1, tied_embedding=False)
stepping = st.sampled_from([{}, {"foreach": True}, {"fused": True}, {"maximize": True}])
nets_of_dtypes = st.tuples(st.just("fp32"), nets) | st.tuples(dtypes_among(["bf16"]), few_nets)


def batch_of(workloads, device, model, batch, dtype=torch.float32):
    """Features in this dtype, or sequences of three tokens."""
    x = workloads.inputs(model, batch, 3, device=device)
    return x.to(dtype) if x.is_floating_point() else x


def in_groups(net):
    """The first parameter apart from the others."""
    first, *others = net.parameters()
    return [{"params": [first]}, {"params": others, "lr": 1e-4}]


def held_bytes(
    workloads, device, model, batch, optimizer, dtype=torch.float32, activations=True, **options
):
    """Bytes held after a training step, beside data and step counts.

    The next step's activations are among them where wanted.
    """
    x = batch_of(workloads, device, model, batch, dtype)

    def train():
        net = workloads.build(model, device=device, dtype=dtype)
        stepper = tensors.OPTIMIZERS[optimizer](in_groups(net), **options)
        tensors.train(net, stepper, x)
        return net, stepper, net(x).grad_fn if activations else None

    ((net, *_),), (held,) = tensors.held_after(device, train)
    return held - memory.optimizer_state_bytes(
        0, optimizer, tensors=step_counts(device, net, optimizer, **options)
    )


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [
        pytest.param("adamw", 16, marks=pytest.mark.claim("mem.16-bytes")),
        pytest.param("adagrad", 12, marks=pytest.mark.claim("mem.adagrad-12")),
        pytest.param("adam", 16, marks=pytest.mark.claim("mem.adam-formula", "optim.adam-doubles")),
        pytest.param("sgd", 8, marks=pytest.mark.claim("optim.adam-doubles")),
    ],
)
@fewer
@given(model=nets, options=stepping)
@example(model=GPT, options={"foreach": True, "weight_decay": 0.1})
@example(model=LLAMA, options={"fused": True})
def test_fp32_training_holds_so_many_bytes_per_parameter(
    workloads, metered_device, optimizer, each, model, options
):
    # torch fuses AdaGrad on a CPU alone.
    options = {} if (optimizer, *options) == ("adagrad", "fused") else options
    got = held_bytes(workloads, metered_device, model, 2, optimizer, activations=False, **options)
    formula = memory.bytes_per_parameter(optimizer) * parameter_count(model)
    shapes = [p.shape for p in workloads.build(model, device="meta").parameters()]
    counts = memory.optimizer_state_bytes(0, optimizer, tensors=len(shapes))
    by_shapes = memory.model_state(shapes, optimizer).total - counts
    should = each * sum(map(prod, shapes))
    agree("bytes", got=got, formula=formula, by_shapes=by_shapes, should=should)
    of_a_model = memory.training_bytes(10**13, 7, optimizer)
    equal(of_a_model, each * 10**13 + 7, "bytes for 10^13 parameters and 7 of activations")


@pytest.mark.claim("mem.16-bytes", "mem.omits-activations")
@pytest.mark.needs("cuda")
@given(model=nets)
@tensors.without_collector()
def test_memory_allocated_rises_by_blocks_of_four_tensors_a_parameter(workloads, device, model):
    """Of tensors up to 1 MiB: their blocks follow the formula whatever was allocated before."""
    tensors.warm_up(device)
    x = workloads.inputs(model, 2, device=device)
    gc.collect()
    with torch.cuda.device(device):
        before = torch.cuda.memory_allocated()
        net = workloads.build(model, device=device)
        stepper = torch.optim.AdamW(net.parameters())
        tensors.train(net, stepper, x)
        gc.collect(0)
        rise = torch.cuda.memory_allocated() - before
    should = sum(4 * rounded_bytes(parameter.nbytes) for parameter in stepper.state)

    equal(rise, should, "the rise of memory_allocated")


@pytest.mark.claim("mem.4gb-per-1b")
def test_a_billion_parameters_take_4_gb_as_weights_and_16_in_training():
    """The net is built on the meta device, where tensors have sizes and no memory."""
    net = torch.nn.Linear(10**5, 10**4, bias=False, device="meta")
    stepper = torch.optim.AdamW(net.parameters())
    net(torch.empty(1, 10**5, device="meta")).sum().backward()
    stepper.step()
    weights = net.weight.nbytes
    gradients = net.weight.grad.nbytes
    state = stepper.state[net.weight]
    total = weights + gradients + state["exp_avg"].nbytes + state["exp_avg_sq"].nbytes
    formula = memory.model_state(10**9)

    agree("bytes", weights=weights, formula=formula.parameters, should=4 * 10**9)
    equal(weights + gradients, 8 * 10**9, "bytes with gradients")
    agree("bytes in training", total=total, formula=formula.total, should=16 * 10**9)


@pytest.mark.claim("mem.496", "mem.470gb")
@pytest.mark.parametrize(("optimizer", "total"), [("adagrad", 496), ("adam", 640)])
def test_the_lectures_example_takes_496_bytes_and_640_with_adam(
    workloads, metered_device, optimizer, total
):
    model = DeepLinear(dim=4, layers=2)
    batch = 2
    got = held_bytes(workloads, metered_device, model, batch, optimizer)
    formula = memory.training_bytes(
        parameter_count(model), activation_bytes(model, batch), optimizer
    )

    agree("bytes", got=got, formula=formula, total=total)
    between(470e9 / got, 1e8, 1e9, "470 GB over the example")


@pytest.mark.claim("mem.single-dtype", "mem.adam-formula", "mem.omits-activations")
@fewer
@given(
    model=few_nets,
    batch=st.sampled_from([1, 6]),
    dtype=dtypes_among(["fp64", "fp32", "bf16", "fp16"]),
)
def test_one_bytes_per_element_is_right_where_all_classes_share_a_dtype(
    workloads, metered_device, model, batch, dtype
):
    got = held_bytes(workloads, metered_device, model, batch, "adam", TORCH_DTYPES[dtype])
    n = parameter_count(model)
    should = (n + 3 * n + batch * model.dim * model.layers) * TORCH_DTYPES[dtype].itemsize
    recipe = optimizers.Recipe(dtype, dtype, dtype)
    activations = activation_bytes(model, batch, dtype=dtype)
    formula = memory.training_bytes(n, activations, "adam", recipe)
    agree("bytes", got=got, formula=formula, should=should)


def recipe_bytes(workloads, device, model, recipe):
    """Bytes by class after a step of an optimizer that keeps the recipe's dtypes.

    The allocator holds no more.
    """
    names = optimizers.recipe_of(recipe)
    dtype = TORCH_DTYPES[names.parameters]
    kept = TORCH_DTYPES[names.gradients], TORCH_DTYPES[names.state], TORCH_DTYPES.get(names.master)
    x = workloads.inputs(model, 2, device=device).to(dtype)

    def train():
        net = workloads.build(model, device=device, dtype=dtype)
        stepper = tensors.RecipeAdamW(net.parameters(), *kept)
        tensors.train(net, stepper, x)
        return net, stepper

    ((net, stepper),), (held,) = tensors.held_after(device, train)
    found = memory.ModelState(
        parameters=tensors.parameter_bytes(net),
        gradients=tensors.gradient_bytes(net) + tensors.tensor_sum(stepper.tensors("main_grad")),
        state=tensors.tensor_sum(stepper.tensors("exp_avg", "exp_avg_sq")),
        master=tensors.tensor_sum(stepper.tensors("master")),
    )
    equal(held, found.total, "bytes held")
    return found


# Bytes a parameter: in all, and of AdamW's state with the master copy.
SAID = {
    "fp32": (16, 8),
    "bf16": (8, 4),
    "bf16-fp32-state": (12, 8),
    "bf16-fp32-master": (16, 12),
    "bf16-fp32-gradients-master": (18, 12),
}


@pytest.mark.claim(
    "mem.single-dtype",
    "mem.bf16-recipe",
    "optim.mixed-precision-answer",
    "optim.state-ON",
    "dtype.lower-is-less-accurate",
)
@pytest.mark.parametrize("recipe", optimizers.RECIPES)
@fewer
@given(model=few_nets)
def test_each_class_is_multiplied_by_the_bytes_of_its_own_dtype(
    workloads, metered_device, model, recipe
):
    got = recipe_bytes(workloads, metered_device, model, recipe)
    n = parameter_count(model)
    equal(got, memory.model_state(n, "adamw", recipe), "bytes by class")

    per_parameter = memory.bytes_per_parameter(recipe=recipe)
    said, of_state = SAID[recipe]
    agree("bytes per parameter", got=got.total / n, formula=per_parameter, said=said)
    equal((got.state + got.master) / n, of_state, "bytes of state a parameter")


@pytest.mark.claim("mem.grads-equal-params")
@fewer
@given(of=nets_of_dtypes, frozen=st.booleans())
@example(of=("fp32", GPT), frozen=True)
@example(of=("bf16", LLAMA), frozen=False)
def test_gradients_take_the_bytes_of_the_parameters_until_zero_grad(
    workloads, metered_device, of, frozen
):
    name, model = of
    dtype = TORCH_DTYPES[name]
    net = workloads.build(model, device=metered_device, dtype=dtype)
    x = batch_of(workloads, metered_device, model, 2, dtype)
    net.layers[0].requires_grad_(not frozen)
    zeroing = torch.optim.SGD(in_groups(net))
    parameters = tensors.tensor_sum(p for p in net.parameters() if p.requires_grad)
    _, (gradients, zeroed, freed) = tensors.held_after(
        metered_device,
        lambda: net(x).pow(2).mean().backward(),
        lambda: zeroing.zero_grad(set_to_none=False),
        zeroing.zero_grad,
    )

    equal(gradients, parameters, "bytes of gradients")
    equal(zeroed, parameters, "bytes of zeroed gradients")
    equal(freed, 0, "bytes of gradients after zero_grad()")


@pytest.mark.claim("mem.checkpoint-copy")
@fewer
@given(of=nets_of_dtypes)
@example(of=("fp32", GPT))
def test_a_copied_checkpoint_takes_12_bytes_a_parameter_and_a_file_none(
    workloads, metered_device, of
):
    """The copy is what saving in the background keeps until the file is written."""
    name, model = of
    dtype = TORCH_DTYPES[name]
    net = workloads.build(model, device=metered_device, dtype=dtype)
    stepper = torch.optim.AdamW(in_groups(net))
    tensors.train(net, stepper, batch_of(workloads, metered_device, model, 2, dtype))
    with measured_memory(metered_device) as held, tempfile.TemporaryFile() as file:
        states = {"net": net.state_dict(), "optimizer": stepper.state_dict()}
        torch.save(states, file)
        held.mark("saved")
        copied = copy.deepcopy(states)
        held.mark("copied")
    n, counts = parameter_count(model), step_counts(metered_device, net, "adamw")
    agree(
        "bytes of a copied checkpoint",
        got=held.phases["copied"].live_bytes - held.phases["saved"].live_bytes,
        formula=memory.element_bytes(n, name)
        + memory.optimizer_state_bytes(n, "adamw", name, tensors=counts),
        by_hand=3 * dtype.itemsize * n + 4 * counts,
    )
    equal(held.phases["saved"].allocated_bytes, 0, "bytes on the device that saving allocates")
    equal(copied.keys(), states.keys(), "parts")


@pytest.mark.claim("mem.fragmentation")
@given(
    size=st.sampled_from([2**12, 2**15, 2**18]) | st.integers(2, 6).map(lambda mib: mib * 2**20),
    segments=st.integers(1, 4),
    times=st.integers(2, 3),
)
@example(size=512, segments=1, times=2)
def test_free_memory_between_used_blocks_serves_no_larger_request(size, segments, times):
    larger = times * size
    each = segment_bytes(size) // size

    def allocated():
        allocator = CachingAllocator()
        return allocator, [allocator.allocate(size) for _ in range(each * segments)]

    allocator, blocks = allocated()
    for block in blocks[::2]:
        allocator.free(block)
    before = allocator.reserved_bytes
    unused = before - allocator.allocated_bytes
    at_least(unused, size * len(blocks[::2]), "bytes that are reserved and free")
    allocator.allocate(larger)
    at_least(allocator.reserved_bytes, before + larger, "bytes reserved, with the larger request")

    # A segment of one block alone is returned.
    allocator.empty_cache()
    still_unused = allocator.reserved_bytes - allocator.allocated_bytes
    at_least(still_unused, unused * (each > 1), "bytes that emptying the cache does not return")

    allocator, blocks = allocated()
    for block in blocks[:each]:
        allocator.free(block)
    allocator.allocate(larger)
    equal(allocator.reserved_bytes, before, "bytes reserved where neighbours were freed")


@pytest.mark.claim("mem.fragmentation")
@pytest.mark.needs("cuda")
def test_emptying_the_cache_returns_no_block_between_used_ones(device):
    """Blocks of 4 MiB lie five to a segment of 20 MiB; the allocator may also use old segments."""

    def unused_after(freed):
        blocks = [torch.empty(2**22, dtype=torch.uint8, device=device) for _ in range(100)]
        del blocks[freed]
        torch.cuda.empty_cache()
        unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
        del blocks
        torch.cuda.empty_cache()
        return unused

    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    at_least(
        unused_after(slice(0, None, 2)) - before, 25 * 2**22, "unused bytes, every second freed"
    )
    at_most(unused_after(slice(None)) - before, 2**22, "unused, all freed")


def step_counts(device, net, optimizer="", fused=False, **_):
    """The number of step counts on the device."""
    return len(list(net.parameters())) if has_step_counts(device, optimizer, fused=fused) else 0


def has_step_counts(device, optimizer="", *, fused):
    """Whether step counts are on the device: on an accelerator a fused kernel's and ASGD's are."""
    return device.type == "cpu" or fused or optimizer == "asgd"


def train_two_steps(workloads, device, model, batch, optimizer, set_to_none=True):
    """Bytes of each phase of building a net and training it for two steps, and the net."""
    with measured_memory(device) as held:
        net = workloads.build(model, device=device)
        stepper = tensors.OPTIMIZERS[optimizer](net.parameters())
        x = workloads.inputs(model, batch, device=device)
        held.mark("built")
        for turn in ("", "second "):
            loss = net(x).pow(2).mean()
            held.mark(f"{turn}forward")
            loss.backward()
            del loss
            held.mark(f"{turn}backward")
            stepper.step()
            held.mark(f"{turn}step")
            if not turn:
                stepper.zero_grad(set_to_none)
                held.mark("zero_grad")
    return held.phases, net


@pytest.mark.claim("mem.total-formula", "mem.adam-formula", "mem.grads-freed")
@pytest.mark.parametrize(
    ("optimizer", "set_to_none"),
    [*product(tensors.OPTIMIZERS, [True]), ("sgd", False), ("adamw", False)],
)
def test_each_class_counts_while_it_is_alive(workloads, memory_device, optimizer, set_to_none):
    model = DeepLinear(dim=16, layers=3, outputs=2, inputs=8)
    batch = 5
    phases, net = train_two_steps(workloads, memory_device, model, batch, optimizer, set_to_none)
    n = parameter_count(model)
    counts = step_counts(memory_device, net, optimizer)
    loss = memory.tensor_bytes((batch, model.outputs)) + memory.tensor_bytes(())
    alive = activation_bytes(model, batch) + loss
    formula = memory.training_phases(n, alive, optimizer, tensors=counts, set_to_none=set_to_none)
    data = memory.tensor_bytes((batch, model.inputs))

    for moment, phase in phases.items():
        equal(phase.live_bytes - data, formula[moment], f"bytes after {moment}")
    # All classes are there where gradients are kept.
    whole = formula["second forward"] + 4 * n * set_to_none
    for kept in (0, alive):
        total = memory.training_bytes(n, kept, optimizer, tensors=counts)
        equal(total, whole - alive + kept, "training_bytes", activations=kept)


def peak_of(phases, moments):
    return max(phases[moment].peak_bytes for moment in moments)


@pytest.mark.claim("mem.grads-freed")
@fewer
@given(model=nets, batch=sizes(most=12))
# The peak falls by less than half of the gradients.
@example(model=DeepLinear(dim=9, layers=3, inputs=10), batch=1)
def test_freed_gradients_give_back_their_bytes_until_the_next_backward(
    workloads, metered_device, model, batch
):
    tensors.warm_up(metered_device)
    freed, kept = (
        train_two_steps(workloads, metered_device, model, batch, "sgd", set_to_none)[0]
        for set_to_none in (True, False)
    )
    gradients = 4 * parameter_count(model)
    moments = ("zero_grad", "second forward", "second backward")
    given_back = [kept[moment].live_bytes - freed[moment].live_bytes for moment in moments]

    equal(given_back, [gradients, gradients, 0], f"bytes less at {moments}")

    fall = peak_of(kept, moments) - peak_of(freed, moments)
    # Kept ones are there beside all activations, the tensors of the loss, and the gradient that is
    # to be added next.
    weight = model.dim * max(model.dim, model.inputs, model.outputs)
    output = batch * model.outputs
    most = min(gradients, activation_bytes(model, batch) + 4 * (weight + 5 * output + 2))

    assert 0 < fall <= most, f"the peak falls by {fall} bytes, not by up to {most}"


@pytest.mark.claim("mem.grads-freed")
@pytest.mark.parametrize(
    "model", [DeepLinear(dim=9, layers=3, inputs=10), DeepLinear(dim=40, layers=2)]
)
def test_freed_gradients_lower_no_peak_that_the_optimizers_step_makes(
    workloads, metered_device, model
):
    freed, _ = train_two_steps(workloads, metered_device, model, 1, "adamw")
    kept, _ = train_two_steps(workloads, metered_device, model, 1, "adamw", set_to_none=False)
    equal(peak_of(freed, freed), peak_of(kept, kept), "the peak")


@pytest.mark.claim("mem.total-formula", "mem.adam-formula")
@fewer
@given(model=wide_nets, batch=sizes(most=24), optimizer=st.sampled_from(["adagrad", "adam"]))
def test_the_sum_errs_from_the_peak_by_no_more_than_is_said(
    workloads, metered_device, model, batch, optimizer
):
    tensors.warm_up(metered_device)
    phases, net = train_two_steps(workloads, metered_device, model, batch, optimizer)
    peak = peak_of(phases, ("second forward", "second backward"))
    n = parameter_count(model)
    activations = activation_bytes(model, batch)
    state = memory.optimizer_state_bytes(n, optimizer, tensors=step_counts(metered_device, net))
    formula = deep_linear_peak_bytes(model, batch, model_state_bytes=4 * n + state)

    equal(peak, formula, "the peak in bytes")

    total = memory.training_bytes(n, activations, optimizer)
    output = memory.tensor_bytes((batch, model.outputs))
    layer = memory.tensor_bytes((batch, model.dim))
    data = memory.tensor_bytes((batch, model.inputs))
    scalars = state - memory.optimizer_state_bytes(n, optimizer) + 2 * memory.tensor_bytes(())
    least = total - min(4 * n, activations)
    most = total + data + max(layer + output, 5 * output) + scalars

    between(peak, least, most, "the peak in bytes")


@pytest.mark.claim("mem.omits-activations")
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("implementation", ["foreach", "for-loop", "fused"])
def test_the_step_of_adamw_needs_scratch_beyond_its_state(memory_device, implementation, amsgrad):
    elements = (700, 10_000, 2_000, 30)
    with measured_memory(memory_device) as held:
        parameters = [torch.nn.Parameter(torch.ones(n, device=memory_device)) for n in elements]
        # The for-loop is neither of the two.
        options = {name: name == implementation for name in ("foreach", "fused")}
        stepper = torch.optim.AdamW(parameters, amsgrad=amsgrad, **options)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        stepper.step()
        held.mark("first step")
        stepper.step()
        held.mark("second step")
    optimizer = "adamw-amsgrad" if amsgrad else "adamw"
    formula = memory.optimizer_step_peak_bytes(elements, implementation, optimizer=optimizer)
    if not has_step_counts(memory_device, fused=implementation == "fused"):
        formula -= optimizers.STEP_BYTES * len(elements)

    # The CPU boxes the 1 that is added to a step count, as an integer and as a float.
    between(held.phases["second step"].peak_bytes, formula, formula + 12, "the peak in bytes")


@pytest.fixture
def process_group(gloo):
    """This process as the only one of a group."""
    distributed = torch.distributed
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


SMALL_BUCKETS = {"static_graph": True, "bucket_cap_mb": 2**-10}


@pytest.mark.claim("mem.communication-buffers")
@pytest.mark.parametrize(
    ("width", "layers", "dtype", "options"),
    [
        pytest.param(16, 1, torch.float32, {}, id="16-1"),
        pytest.param(40, 3, torch.bfloat16, {}, id="40-3"),
        pytest.param(7, 5, torch.float32, {}, id="7-5"),
        pytest.param(40, 3, torch.float32, {"find_unused_parameters": True}, id="find unused"),
        pytest.param(40, 3, torch.bfloat16, SMALL_BUCKETS, id="static graph"),
    ],
)
@pytest.mark.parametrize("gradients_are_buckets", [None, False, True])
def test_the_buckets_of_data_parallel_take_the_bytes_of_the_gradients(
    process_group, monkeypatch, memory_device, gradients_are_buckets, width, layers, options, dtype
):
    # Leaves out to send the first parameters and their shapes around: gloo's threads free its
    # copies some time later, which this thread does not see. The parameter init_sync does the same,
    # and is newer than torch 2.6.
    for sent in ("_sync_module_states", "_verify_param_shape_across_processes"):
        monkeypatch.setattr(torch.nn.parallel.distributed, sent, lambda *_, **__: None)
    kind = {"device": memory_device, "dtype": dtype}
    x = torch.ones(4, width, **kind)
    with measured_memory(memory_device) as held:
        net = torch.nn.Sequential(*(torch.nn.Linear(width, width, **kind) for _ in range(layers)))
        held.mark("net")
        if gradients_are_buckets is not None:
            net = torch.nn.parallel.DistributedDataParallel(
                net, gradient_as_bucket_view=gradients_are_buckets, **options
            )
        held.mark("wrapped")
        for step in range(6):
            net(x).sum().backward()
            time.sleep(0.002)
            held.mark(f"step {step}")
    parameters = tensors.parameter_bytes(net)
    built, wrapped, _, *later = (phase.live_bytes for phase in held.phases.values())
    # Parameters, buckets and gradients; where the gradients are views of the buckets, no more than
    # without buckets.
    times = {None: (1, 1, 2), False: (1, 2, 3), True: (1, 2, 2)}[gradients_are_buckets]

    # The first step makes the gradients. After any one, a thread of gloo's may not have freed its
    # copy of a bucket yet.
    for got, least in zip((built, wrapped, min(later)), times, strict=True):
        # The reducer keeps a number or two.
        between(got - least * parameters, 0, 64, f"bytes beyond {least} times the parameters")
