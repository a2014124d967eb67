"""The argument checks, and that every formula computes with the plain integers they return."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from accounting import (
    activations,
    allocator,
    attention,
    convolution,
    families,
    flops,
    formats,
    layout,
    memory,
    models,
    parallel,
    planning,
)
from accounting import roofline as roof
from accounting.checks import (
    validate_fields,
    validated_bool,
    validated_choice,
    validated_instance,
    validated_int,
    validated_ints,
    validated_model,
    validated_positive,
    validated_product,
    validated_real,
)
from meta_tests.accounting.refusals import refuses

INTEGERS = [int, float, np.int8, np.int64, np.uint16, np.float16, Fraction, torch.tensor]


@pytest.mark.parametrize("kind", INTEGERS)
def test_an_integer_of_any_type_becomes_a_plain_one(kind):
    for got in (validated_int("m", kind(7)), *validated_ints("shape", [kind(7)]), validated_choice("m", kind(7), [7])):
        assert (got, type(got)) == (7, int), f"{got!r} of {type(got)}"


def test_fields_become_plain_numbers_and_flags():
    @dataclass(frozen=True)
    class Shape:
        rows: int
        tied: bool

        def __post_init__(self):
            validate_fields(self, "rows", flags=["tied"])

    got = Shape(np.int32(7), np.bool_(True))
    assert [(each, type(each)) for each in (got.rows, got.tied)] == [(7, int), (True, bool)], f"{got}"
    with pytest.raises(TypeError, match="tied must be True or False, got 'no' of type str"):
        Shape(7, "no")


@given(sizes=st.lists(st.integers(0, 100), max_size=6))
def test_a_product_of_narrow_integers_is_exact(sizes):
    product = 1
    for size in sizes:
        product *= size
    got = validated_product(**{f"size{i}": np.int8(size) for i, size in enumerate(sizes)})
    assert (got, type(got)) == (product, int), f"{got!r} instead of {product} [{sizes=}]"


@pytest.mark.parametrize("kind", [int, float, np.float32, np.int64, Fraction])
def test_a_real_number_of_any_type_becomes_a_float(kind):
    for got in (validated_real("x", kind(2)), validated_positive("x", kind(2))):
        assert (got, type(got)) == (2.0, float), f"{got!r} of {type(got)}"


test_bad_input_is_named_with_its_value_and_what_is_valid = refuses(
    (lambda: validated_int("m", True), TypeError, "m must be an integer, got True of type bool"),
    (lambda: validated_int("m", 2.5), TypeError, "m must be an integer, got 2.5 of type float"),
    (lambda: validated_int("m", float("nan")), TypeError, "m must be an integer, got nan of type float"),
    (lambda: validated_int("m", float("inf")), TypeError, "m must be an integer, got inf of type float"),
    (lambda: validated_int("m", Fraction(2**60 + 1, 2)), TypeError, "m must be an integer, got Fraction"),
    (lambda: validated_int("m", np.bool_(True)), TypeError, r"m must be an integer, got (np\.)?True"),
    (lambda: validated_int("m", torch.tensor(True)), TypeError, "m must be an integer, got tensor"),
    (lambda: validated_int("m", np.ones(2, int)), TypeError, "m must be an integer, got array"),
    (lambda: validated_int("m", "3"), TypeError, "m must be an integer, got '3' of type str"),
    (lambda: validated_int("m", None), TypeError, "m must be an integer, got None of type NoneType"),
    (lambda: validated_int("m", 1, minimum=2), ValueError, "m must be at least 2, got 1"),
    (lambda: validated_int("m", np.int8(-1)), ValueError, "m must be at least 0, got -1"),
    (lambda: validated_product(m=2, k=-1), ValueError, "k must be at least 0, got -1"),
    (lambda: validated_ints("shape", "23"), TypeError, "shape must be a sequence of integers, got '23' of type str"),
    (lambda: validated_ints("shape", 3), TypeError, "shape must be a sequence of integers, got 3 of type int"),
    (lambda: validated_ints("shape", np.array(3)), TypeError, "shape must be a sequence of integers, got array"),
    (lambda: validated_ints("shape", (2, 1.5)), TypeError, r"shape\[1\] must be an integer, got 1.5"),
    (lambda: validated_bool("gated", 1), TypeError, "gated must be True or False, got 1 of type int"),
    (lambda: validated_bool("gated", None), TypeError, "gated must be True or False, got None"),
    (lambda: validated_instance("shape", 3, str), TypeError, "shape must be a str, got 3 of type int"),
    (lambda: validated_instance("x", 3, Exception), TypeError, "x must be an Exception, got 3 of type int"),
    (lambda: validated_real("x", np.bool_(True)), TypeError, "x must be a number"),
    (lambda: validated_real("x", 10**400), ValueError, "x must be at most 1.8e308"),
    (lambda: validated_real("x", True), TypeError, "x must be a number, got True of type bool"),
    (lambda: validated_real("x", 1j), TypeError, "x must be a number"),
    (lambda: validated_positive("x", float("inf")), ValueError, "x must be a finite number above 0, got inf"),
    (lambda: validated_positive("x", float("nan")), ValueError, "x must be a finite number above 0, got nan"),
    (
        lambda: validated_positive("x", float("nan"), or_zero=True),
        ValueError,
        "x must be a finite number of at least 0",
    ),
    (lambda: validated_positive("x", -1), ValueError, "x must be a finite number above 0, got -1"),
    (lambda: validated_choice("x", [1], {"a": 1}), ValueError, r"x must be one of a, got \[1\]"),
    (lambda: validated_choice("x", "bf61", ["bf16"]), ValueError, "got 'bf61'; did you mean 'bf16'"),
    (lambda: validated_choice("x", "BF16", ["bf16"]), ValueError, "got 'BF16'; did you mean 'bf16'"),
    (lambda: validated_choice("x", "1", [0, 1]), ValueError, r"x must be one of 0, 1, got '1'; did you mean 1\?"),
    (lambda: validated_choice("x", True, [0, 1]), ValueError, "x must be one of 0, 1, got True"),
    (lambda: validated_choice("x", np.ones(2), [0, 1]), ValueError, "x must be one of 0, 1, got array"),
)


def test_a_model_has_the_three_lists_itself_or_by_its_class_and_no_property_is_computed():
    class Slow:
        @property
        def linear_maps(self):
            raise AssertionError("was computed")

        attentions = other_parameters = ()

    lists = dict.fromkeys(("linear_maps", "attentions", "other_parameters"), ())
    for model in (Slow(), SimpleNamespace(**lists)):
        assert validated_model("model", model) is model
    with pytest.raises(TypeError, match="model must have linear_maps, attentions and other_parameters, got namespace"):
        validated_model("model", SimpleNamespace(linear_maps=()))


def test_a_model_of_another_kind_is_refused_by_the_name_of_the_kind():
    for call, kind in (
        (lambda: activations.deep_linear_peak_bytes(5, 1), "DeepLinear"),
        (lambda: planning.fitting_plans(NET(2, 2), 1, 1, 1), "Transformer"),
        (lambda: parallel.device_parameters(NARROW, 5), "Parallelism"),
    ):
        with pytest.raises(TypeError, match=f"must be a {kind}, got"):
            call()


# --- plain integers, whatever the caller's are ----------------------------------------------------------------------

NET = models.DeepLinear
GPT = models.Transformer
BLOCK = {"vocab_size": 50_000, "layers": 96, "dim": 12_288, "heads": 96, "hidden": 49_152, "kv_heads": 8}
NARROW = GPT(vocab_size=50_000, layers=4, dim=256, heads=4, hidden=1024)
GPT_2 = {"model_type": "gpt2", "n_layer": 2, "n_head": 16, "n_positions": 1024}
LARGE = 40_000  # its square is beyond 32 bits

# One call of every formula that takes integers; `n` makes an integer of the type under test.
CALLS: list[Callable[[type], object]] = [
    lambda n: flops.matmul_flops(n(LARGE), n(LARGE), n(LARGE), n(3)),
    lambda n: flops.matmul_backward_flops(n(LARGE), n(LARGE), n(LARGE), n(3)),
    lambda n: flops.broadcast_matmul_flops((n(3), n(LARGE), n(LARGE)), (n(LARGE), n(LARGE))),
    lambda n: flops.einsum_flops("ij,jk,kl->il", *[(n(LARGE), n(LARGE))] * 3, order=[(n(0), n(1)), (n(0), n(1))]),
    lambda n: flops.einsum_flops("ij->", (n(LARGE), n(LARGE))),
    lambda n: flops.einsum_backward_flops("ij,jk->ik", *[(n(LARGE), n(LARGE))] * 2, gradients=[n(1)]),
    lambda n: flops.einsum_order("ij,jk,kl->il", *[(n(LARGE), n(LARGE))] * 3),
    lambda n: flops.linear_flops(n(LARGE), n(LARGE), n(LARGE), bias=True),
    lambda n: flops.linear_backward_flops(n(LARGE), n(LARGE), n(LARGE), bias=True),
    lambda n: flops.linear_step(n(LARGE), n(LARGE), n(LARGE), bias=True, recomputed=True),
    lambda n: flops.elementwise_flops((n(LARGE), n(LARGE)), flops_per_element=n(3)),
    lambda n: flops.reduction_flops((n(LARGE), n(LARGE)), n(3)),
    lambda n: attention.attention_pairs(n(LARGE), n(2 * LARGE), "causal"),
    lambda n: attention.attention_flops(attention.Attention(n(9), n(96), n(LARGE), n(128))),
    lambda n: attention.attention_backward_flops(
        attention.Attention(n(9), n(96), n(LARGE), n(128), key_length=n(LARGE), kv_heads=n(8), value_dim=n(64))
    ),
    lambda n: attention.attention_step(attention.Attention(n(9), n(96), n(LARGE), n(128)), "flash", recomputed=True),
    lambda n: convolution.convolution_flops(
        convolution.Convolution(
            n(999), n(512), n(512), [n(99)] * 3, [n(3)] * 3, stride=n(2), padding=[n(1)] * 3, groups=n(2), bias=True
        )
    ),
    lambda n: convolution.convolution_backward_flops(
        convolution.Convolution(n(999), n(512), n(512), [n(99)] * 3, [n(3)] * 3, dilation=n(2))
    ),
    lambda n: models.parameter_count(NET(n(LARGE), n(10), n(3), n(LARGE), bias=True)),
    lambda n: models.parameter_counts(GPT(**{name: n(size) for name, size in BLOCK.items()})),
    lambda n: models.active_parameter_count(
        GPT(**{name: n(size) for name, size in BLOCK.items()}, experts=n(8), active_experts=n(2))
    ),
    lambda n: models.matmul_parameter_count(NET(n(LARGE), n(10))),
    lambda n: models.forward_flops(GPT(**BLOCK), n(LARGE), n(LARGE)),
    lambda n: models.backward_flops(GPT(**BLOCK), n(LARGE), n(LARGE), convention="flash"),
    lambda n: models.backward_flops(NET(LARGE, 10), n(LARGE), n(LARGE)),
    lambda n: models.recompute_flops(GPT(**BLOCK), n(LARGE), n(LARGE), every=n(2), early_stop=True),
    lambda n: models.recompute_flops(NET(LARGE, 10), n(LARGE), n(LARGE), every=n(1), early_stop=True),
    lambda n: models.step_flops(GPT(**BLOCK, learned_positions=n(LARGE)), n(LARGE), n(LARGE), checkpoint_every=n(3)),
    lambda n: models.rule_flops("step", n(LARGE), n(LARGE)),
    lambda n: models.cache_bytes(GPT(**{name: n(size) for name, size in BLOCK.items()}), n(LARGE), n(LARGE)),
    lambda n: models.decoding_work(GPT(**BLOCK), n(LARGE), n(LARGE)),
    lambda n: models.fine_tuning_state(models.with_adapters(GPT(**BLOCK), n(16))),
    lambda n: models.parameter_counts(models.from_config({**GPT_2, "n_embd": n(LARGE), "vocab_size": n(10 * LARGE)})),
    lambda n: models.forward_flops(n(99) * families.attention(*[n(LARGE)] * 3, window=n(9)), n(9), n(LARGE)),
    lambda n: models.forward_flops(n(99) * families.state_space(*[n(LARGE)] * 6, chunk=n(8)), n(9), n(LARGE)),
    lambda n: families.latent_attention(*[n(LARGE)] * 7) + families.delta_rule(*[n(LARGE)] * 6),
    lambda n: families.embedding(n(LARGE), n(LARGE), n(LARGE)) + families.mlp(n(LARGE), n(LARGE)),
    lambda n: families.diffusion_transformer(*[n(LARGE)] * 6) | families.vision_transformer(*[n(LARGE)] * 7),
    lambda n: families.mixture(*[n(LARGE)] * 4, shared=n(LARGE)) + families.selective_scan(*[n(LARGE)] * 5),
    lambda n: families.convolution("a", *[n(LARGE)] * 4) + families.encoder(*[n(LARGE)] * 4, "tokens"),
    lambda n: models.rule_errors(GPT(**BLOCK), "step", n(LARGE), n(LARGE)),
    lambda n: models.rule_errors(NET(LARGE, 10, bias=True), "step", n(LARGE), n(LARGE)),
    lambda n: activations.saved_tensors(GPT(**BLOCK), n(LARGE), n(LARGE), attention="math"),
    lambda n: activations.saved_tensors(NET(LARGE, 10), n(LARGE), autocast="bf16"),
    lambda n: activations.activation_bytes(GPT(**BLOCK), n(LARGE), n(LARGE), checkpoint_every=n(5)),
    lambda n: activations.activation_bytes(NET(LARGE, 9), n(LARGE), micro_batches=n(3), checkpoint_every=n(2)),
    lambda n: activations.recomputed_bytes(GPT(**BLOCK), n(LARGE), n(LARGE), checkpoint_every=n(5)),
    lambda n: activations.recomputed_bytes(NET(LARGE, 9), n(LARGE), checkpoint_every=n(5)),
    lambda n: activations.deep_linear_peak_bytes(NET(LARGE, 9), n(LARGE), model_state_bytes=n(2**31 - 1)),
    lambda n: memory.element_bytes(n(2**31 - 1), "fp64"),
    lambda n: memory.tensor_bytes((n(LARGE), n(LARGE))),
    lambda n: memory.storage_bytes((n(LARGE), n(LARGE)), (n(LARGE), n(1)), offset=n(2**31 - 1)),
    lambda n: memory.optimizer_state_bytes(n(2**31 - 1), tensors=n(2**31 - 1), steps=n(1)),
    lambda n: memory.model_state(n(2**31 - 1), recipe="bf16-fp32-master", tensors=n(2**31 - 1)),
    lambda n: memory.training_bytes(n(2**31 - 1), n(2**31 - 1)),
    lambda n: memory.training_phases(n(2**31 - 1), n(2**31 - 1)),
    lambda n: memory.optimizer_step_peak_bytes([n(2**31 - 1)] * 3, "for-loop"),
    lambda n: allocator.rounded_bytes(n(2**31 - 1)),
    lambda n: allocator.segment_bytes(n(2**31 - 1)),
    lambda n: allocator.charged_bytes(n(2**31 - 513), n(2**31 - 512)),
    lambda n: allocator.charge_bounds(n(2**31 - 1)),
    lambda n: allocator.cublas_workspace_bytes((n(9), n(0))),
    lambda n: layout.contiguous_strides([n(LARGE)] * 4),
    lambda n: layout.storage_offset([n(LARGE)] * 2, [n(LARGE)] * 2, n(2**31 - 1)),
    lambda n: layout.is_contiguous([n(LARGE)] * 4, [n(LARGE)] * 4),
    lambda n: layout.storage_extent([n(LARGE)] * 2, [n(LARGE)] * 2),
    lambda n: layout.broadcast_shape([n(LARGE), n(1)], [n(LARGE)]),
    lambda n: layout.inferred_shape([n(LARGE), n(LARGE)], [n(LARGE // 2), n(-1), n(2)]),
    lambda n: layout.view_strides([n(LARGE)] * 3, [n(LARGE**2 % 2**31)] * 3, [n(LARGE)] * 3),
    lambda n: layout.Layout((n(LARGE), n(LARGE)), (n(LARGE), n(1)), n(3)).transpose(n(0), n(1)),
    lambda n: layout.contiguous_layout([n(LARGE)] * 3).slice(n(0), n(1), n(9), n(2)).select(n(1), n(LARGE - 1)),
    lambda n: layout.contiguous_layout([n(4), n(LARGE)]).expand([n(3), n(4), n(-1)]).diagonal(n(1), n(0), n(1)),
    lambda n: layout.contiguous_layout([n(4), n(LARGE)]).unflatten(n(1), [n(2), n(-1)]),
    lambda n: layout.contiguous_layout([n(4), n(LARGE)]).as_strided([n(2)], [n(LARGE)], n(1)),
    lambda n: formats.format_of("int32").decode(n(2**31 - 1)),
    lambda n: formats.format_of("bf16").decode(n(2**15 - 1 - 128)),
    lambda n: formats.block_format_of("mxfp4").storage_bits(n(2**31 - 1)),
    lambda n: planning.sustained_flop_per_s(n(2**31 - 1), 1e12),
    lambda n: planning.training_s(n(2**31 - 1), n(2**31 - 1), 1e12, 0.5),
    lambda n: planning.training_days(n(2**31 - 1), n(2**31 - 1), n(1024), 1e12, 0.5),
    lambda n: planning.tokens_per_s(n(2**31 - 1), n(2**31 - 1), 1e12, 0.5),
    lambda n: planning.training_cost(9.5, n(2**31 - 1), 2.0),
    lambda n: planning.affordable_flops(9.5, n(2**31 - 1), 1e12, 0.5),
    lambda n: planning.device_state(n(2**31 - 1), n(64), n(2)),
    lambda n: planning.largest_model_parameters(n(2**31 - 1), n(64), n(3)),
    lambda n: planning.step_plan(
        GPT(**BLOCK),
        parallel.Parallelism(n(8), n(8), zero_stage=n(3)),
        n(LARGE),
        n(2048),
        recompute="full",
        memory_bytes=n(2**31 - 1),
        peak_flop_per_s=1e12,
        wire_bytes_per_s=1e9,
    ),
    lambda n: planning.fitting_plans(
        NARROW, n(4), n(8), n(2048), memory_bytes=n(2**31 - 1), peak_flop_per_s=1e12, wire_bytes_per_s=1e9
    ),
    lambda n: parallel.bus_factor("all-reduce", n(7)),
    lambda n: parallel.collectives(GPT(**BLOCK), parallel.Parallelism(n(8), n(8), n(2), n(4)), n(LARGE), n(2048)),
    lambda n: parallel.device_parameters(GPT(**BLOCK), parallel.Parallelism(tensor=n(8), pipeline=n(4))),
    lambda n: parallel.device_activation_bytes(GPT(**BLOCK), parallel.Parallelism(n(8), n(8)), n(LARGE), n(2048)),
    lambda n: roof.arithmetic_intensity(n(2**31 - 1), n(3)),
    lambda n: roof.matmul_work(n(LARGE), n(LARGE), n(LARGE), batch=n(3)),
    lambda n: roof.matvec_work(n(LARGE), n(LARGE)),
    lambda n: roof.dot_work(n(2**31 - 1)),
    lambda n: roof.elementwise_work((n(LARGE), n(LARGE)), operands=n(3)),
    lambda n: roof.softmax_work((n(LARGE), n(LARGE))),
    lambda n: roof.layer_norm_work((n(LARGE), n(LARGE))),
    lambda n: roof.attention_work(attention.Attention(n(9), n(96), n(LARGE), n(128)), fused=False),
    lambda n: roof.Work(n(2**31 - 1), n(2**31 - 1)) + roof.Work(n(2**31 - 1), n(2**31 - 1)),
    lambda n: roof.mfu(n(2**31 - 1), n(2), 1e12, n(8)),
    lambda n: roof.hfu(n(2**31 - 1), n(2**31 - 1), n(2), 1e12, n(8)),
]


def leaves(value: object) -> list[object]:
    """The numbers and names a result is made of."""
    value = vars(value) if is_dataclass(value) else value
    value = list(value.values()) if isinstance(value, Mapping) else value
    return [leaf for each in value for leaf in leaves(each)] if isinstance(value, (list, tuple)) else [value]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: inspect.getsource(call).split(": ")[-1].split("(")[0].strip())
def test_numpys_narrow_integers_give_the_exact_plain_result(call):
    with np.errstate(over="ignore"):
        got, exact = call(np.int32), call(int)
    assert got == exact, f"of int32 {got}, of int {exact}"
    foreign = {type(leaf).__name__ for leaf in leaves(got)} - {"int", "float", "str", "bool", "NoneType"}
    assert not foreign, f"the result has parts of type {foreign}: {got}"


def test_every_formula_that_takes_integers_is_called_above():
    source = inspect.getsource(inspect.getmodule(leaves))
    modules = (activations, allocator, attention, convolution, flops, layout, memory, models, parallel, planning, roof)
    missing = [
        f"{module.__name__}.{name}"
        for module in modules
        for name, function in vars(module).items()
        if inspect.isfunction(function) and function.__module__ == module.__name__ and not name.startswith("_")
        if any(
            str(each.annotation).startswith(("int", "Shape", "Sequence[int]", "Iterable[int]"))
            for each in inspect.signature(function).parameters.values()
        )
        if f".{name}(" not in source
    ]
    assert not missing, f"no call with narrow integers of {', '.join(missing)}"
