"""Temporary workspace of kernels: named, measured, and next to none for the operators listed as scratch-free."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_map

from accounting import predicted
from accounting.measured import one_thread
from accounting.predicted import scratch, tracker
from meta_tests.accounting.predicted.predicting import (
    OPTIMIZERS,
    POINTWISE,
    WITH_SCRATCH,
    Gathering,
    Net,
    assert_alike,
    both,
)


@pytest.mark.parametrize("operator", WITH_SCRATCH)
def test_the_scratch_line_names_what_convolution_lstm_and_lone_attention_take(operator):
    build, shape = WITH_SCRATCH[operator]
    guess, held = both(build, torch.randn(shape))
    assert_alike(guess, held, without_scratch=False)
    assert any(operator in name for name in guess.scratch), f"{guess.scratch} names no {operator}"
    assert guess.peak_bytes < held.peak_bytes, "this operator should need scratch"
    assert guess.peak_bytes_with_scratch == max(phase.peak_bytes_with_scratch for phase in guess.phases.values())


def test_without_measuring_an_operator_of_unknown_scratch_is_named_and_its_peak_left_open():
    build, shape = WITH_SCRATCH["convolution"]
    guess, _ = both(build, torch.randn(shape), scratch=False)
    assert guess.unknown == {"aten.convolution.default": 4, "aten.convolution_backward.default": 4}, f"{guess.unknown}"
    assert guess.peak_bytes_with_scratch is None
    assert "≥" in repr(guess)


def test_an_lstm_is_refused_unless_its_kernel_may_run():
    build, shape = WITH_SCRATCH["mkldnn_rnn_layer"]
    with pytest.raises(RuntimeError, match=r"mkldnn_rnn_layer.* returns sizes that only the kernel knows: use scratch"):
        predicted.TrainingStep(build, torch.empty(shape), loss=torch.mean).predict()


def test_an_embedding_bag_whose_kernel_keeps_more_than_its_fake_is_predicted():
    guess, held = both(partial(nn.EmbeddingBag, 1, 512), torch.zeros(8, 5, dtype=torch.long))
    assert_alike(guess, held, without_scratch=False)


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_operators_listed_as_scratch_free_are_measured_to_be(workloads, monkeypatch):
    monkeypatch.setattr(tracker, "is_scratch_free", lambda operator, *_: operator.is_view)
    every = Net(("linear", "layernorm", "rmsnorm", *POINTWISE), 64, 100, True, False, torch.float32)
    steps = [both(every.build, every.batch(), optimizer=optimizer)[0] for optimizer in sorted(OPTIMIZERS)]
    steps += [both(every.build, every.batch(), autocast=torch.bfloat16)[0]]
    every = replace(every, dtype=torch.bfloat16)
    steps += [both(every.build, every.batch())[0]]
    steps.append(both(Gathering, torch.randn(100, 64))[0])
    measured_scratch = {}
    for step in steps:
        for call, kernel in step._ledger.kernels.items():
            if scratch.is_scratch_free(call.operator, thawed(call), "cpu"):
                name = call.operator._opname
                measured_scratch[name] = max(measured_scratch.get(name, 0), kernel.scratch_bytes)
    assert len(measured_scratch) > 50, f"only {sorted(measured_scratch)}"
    wrong = {name: taken for name, taken in measured_scratch.items() if taken > 16}
    assert not wrong, f"{wrong} bytes of scratch where there should be next to none"


def test_a_step_of_listed_operators_needs_no_measurement():
    every = Net(("linear", "layernorm", "rmsnorm", *POINTWISE), 64, 100, True, False, torch.float32)
    step = predicted.TrainingStep(every.build, every.batch(), torch.mean, optimizer=OPTIMIZERS["adamw foreach"])
    names = ("bernoulli_.float", "var.correction", "native_layer_norm_backward.default")
    assert step.predict().unknown == {f"aten.{name}": 2 for name in names}
    gathering = predicted.TrainingStep(Gathering, torch.empty(100, 64), torch.mean, optimizer=OPTIMIZERS["adamw fused"])
    assert gathering.predict().unknown == {}


@one_thread()
def test_the_matrices_that_a_product_copies_are_those_that_blas_cannot_read():
    x, product = torch.ones(64, 128), torch.ops.aten.mm.default
    ready = [x, x.t(), x[:, :64], x[::2], x.t()[:, ::2], x[:1], x[:, :1], x.t()[:1]]
    overlapping = [x[:1].expand(64, -1), x[:1].expand(64, -1).t(), x.as_strided((64, 64), (32, 1))]
    calls = []
    for matrix in (*ready, x[:, ::2], x.t()[::2], *overlapping, x[:, :1].expand(-1, 64), x[:, ::2][:, :1]):
        args = (matrix, torch.ones(matrix.shape[1], 64))
        calls.append((scratch.is_scratch_free(product, args, "cpu"), scratch.call_of(product, args, {})))
    assert [said for said, _ in calls] == [True] * len(ready) + [False] * 7
    kernels = scratch.kernels_of([call for _, call in calls], "cpu")
    for said, call in calls:
        assert said == (kernels[call].scratch_bytes == 0), f"{call.leaves[0]}: {said=}, but it took {kernels[call]}"


@one_thread()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_products_and_tables_take_scratch_in_16_bits_alone(dtype):
    x, places, aten = torch.ones(64, 64, dtype=dtype), torch.zeros(64, 16, dtype=torch.long), torch.ops.aten
    given = {aten.mm: (x, x), aten.addmm: (x, x, x), aten.bmm: (x[None], x[None]), aten.baddbmm: (x[None],) * 3}
    given |= {aten.gather: (x, 1, places), aten.scatter_add: (x, 1, places, x[:, :16])}
    calls = {scratch.call_of(op.default, args, {}): (op.default, args) for op, args in given.items()}
    packs = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # without AVX-512, oneDNN leaves bf16 products to others
    for call, kernel in scratch.kernels_of(calls, "cpu").items():
        assert scratch.is_scratch_free(*calls[call], "cpu") == (dtype == torch.float32), f"{call.operator}"
        takes = dtype == torch.bfloat16 and (packs or calls[call][0]._opname not in scratch.PRODUCTS)
        assert (kernel.scratch_bytes > 0) == takes, f"{call.operator}: {kernel}"


def dtypes_of_layer_norm(is_scaled: bool) -> list[torch.dtype | None]:
    x, aten = torch.ones(4, 8, dtype=torch.bfloat16), torch.ops.aten
    weight = torch.ones(8) if is_scaled else None
    out = aten.native_layer_norm(x, [8], weight, weight, 1e-5)
    wanted = [True, is_scaled, is_scaled]
    gradients = aten.native_layer_norm_backward(x, x, [8], out[1], out[2], weight, weight, wanted)
    return [each if each is None else each.dtype for each in (*out, *gradients)]


def test_a_layer_norm_of_wider_weights_or_none_returns_the_dtypes_of_its_kernel():
    with predicted.memory():
        fake = dtypes_of_layer_norm(True), dtypes_of_layer_norm(False)
    assert fake == (dtypes_of_layer_norm(True), dtypes_of_layer_norm(False))
    for name, place in scratch.WEIGHTS_OF_LAYER_NORM.items():
        operator = getattr(torch.ops.aten, name.removeprefix("aten::")).default
        assert operator._schema.arguments[place].name == "weight"


def test_a_call_is_repeated_with_arguments_of_the_same_layout():
    given = torch.ones(4, 6, dtype=torch.int16).t(), [torch.ones(2, 0), torch.empty(3, device="meta")], (1.5,)
    named = {"name": torch.ones(2, 3)[:, ::2]}
    assert tree_map(layout, scratch.call_of(None, given, named).arguments()) == tree_map(layout, (given, named))


def layout(value: Any) -> Any:
    is_tensor = isinstance(value, torch.Tensor)
    return (value.shape, value.stride(), value.dtype, value.device) if is_tensor else value


def thawed(call: scratch.Call) -> Any:
    return call.arguments()[0]
