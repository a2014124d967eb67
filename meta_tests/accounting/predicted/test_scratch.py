"""Temporary workspace of kernels: named, measured, and next to none for the operators listed as scratch-free."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from accounting.measured import one_thread
from accounting.predicted import scratch, tracker
from meta_tests.accounting.predicted.predicting import NETS, OPTIMIZERS, POINTWISE, Net, both

EVERY = Net(("linear", "layernorm", "rmsnorm", *POINTWISE), 64, 100, True, False, torch.float32)


@pytest.mark.parametrize(
    ("net", "operator"),
    [("convolution", "convolution"), ("LSTM", "mkldnn_rnn_layer"), ("attention", "flash_attention")],
)
def test_the_scratch_line_names_what_convolution_lstm_and_lone_attention_take(net, operator):
    build, shape = NETS[net]
    guess, held = both(build, torch.randn(shape))
    assert any(operator in name for name in guess.scratch), f"{guess.scratch} names no {operator}"
    assert guess.peak_bytes < held.peak_bytes, "this operator should need scratch"
    assert guess.peak_bytes_with_scratch == max(phase.peak_bytes_with_scratch for phase in guess.phases.values())


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_operators_listed_as_scratch_free_are_measured_to_be(monkeypatch):
    measured_scratch = {}

    def kernels_of(calls, device):
        kernels = kernels_of_calls(calls, device)
        for call, kernel in kernels.items():
            if scratch.is_scratch_free(call.operator, call.arguments()[0], "cpu"):
                name = call.operator._opname
                measured_scratch[name] = max(measured_scratch.get(name, 0), kernel.scratch_bytes)
        return kernels

    kernels_of_calls = scratch.kernels_of
    monkeypatch.setattr("accounting.predicted.ledger.kernels_of", kernels_of)
    monkeypatch.setattr(tracker, "is_scratch_free", lambda operator, *_: operator.is_view)
    for optimizer in sorted(OPTIMIZERS):
        both(EVERY.build, EVERY.batch(), optimizer=optimizer)
    both(EVERY.build, EVERY.batch(), autocast=torch.bfloat16)
    narrow = replace(EVERY, dtype=torch.bfloat16)
    both(narrow.build, narrow.batch())
    both(NETS["gathered"][0], torch.randn(100, 64))
    assert len(measured_scratch) > 50, f"only {sorted(measured_scratch)}"
    wrong = {name: taken for name, taken in measured_scratch.items() if taken > 16}
    assert not wrong, f"{wrong} bytes of scratch where there should be next to none"


@one_thread()
def test_the_matrices_that_a_product_copies_are_those_that_blas_cannot_read():
    x, product = torch.ones(64, 128), torch.ops.aten.mm.default
    ready = [x, x.t(), x[:, :64], x[::2], x.t()[:, ::2], x[:1], x[:, :1], x.t()[:1]]
    overlapping = [x[:1].expand(64, -1), x[:1].expand(64, -1).t(), x.as_strided((64, 64), (32, 1))]
    calls = {}
    for matrix in (*ready, x[:, ::2], x.t()[::2], *overlapping, x[:, :1].expand(-1, 64), x[:, ::2][:, :1]):
        args = (matrix, torch.ones(matrix.shape[1], 64))
        calls[scratch.call_of(product, args, {})] = scratch.is_scratch_free(product, args, "cpu")
    for call, kernel in scratch.kernels_of(calls, "cpu").items():
        assert calls[call] == (kernel.scratch_bytes == 0), f"{call.leaves[0]} took {kernel}, but {calls[call]=}"
