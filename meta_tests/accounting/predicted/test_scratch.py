"""Temporary workspace of kernels: named, measured, and next to none for the operators listed as scratch-free."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from accounting.measured import one_thread
from accounting.predicted import scratch
from meta_tests.accounting.predicted.predicting import NETS, assert_alike, both, of_functions
from meta_tests.accounting.predicted.random_nets import LOSSES


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


@one_thread()
def test_the_matrices_that_a_product_copies_are_those_that_blas_cannot_read():
    x, product = torch.ones(64, 128), torch.ops.aten.mm.default
    ready = [x, x.t(), x[:, :64], x[::2], x.t()[:, ::2], x[:1], x[:, :1], x.t()[:1]]
    overlapping = [x[:1].expand(64, -1), x[:1].expand(64, -1).t(), x.as_strided((64, 64), (32, 1))]
    calls = {}
    for matrix in (*ready, x[:, ::2], x.t()[::2], *overlapping, x[:, :1].expand(-1, 64), x[:, ::2][:, :1]):
        args = (matrix, torch.ones(matrix.shape[1], 64))
        calls[scratch.call_of(product, args, {})] = scratch.known_scratch(product, args, "cpu") == 0
    for call, kernel in scratch.kernels_of(calls, "cpu").items():
        assert calls[call] == (kernel.scratch_bytes == 0), f"{call.leaves[0]} took {kernel}, but {calls[call]=}"


FUNCTIONS = {
    "gelu": functional.gelu,
    "gelu of tanh": partial(functional.gelu, approximate="tanh"),
    "elu": functional.elu,
    "softmax": partial(torch.softmax, dim=-1),
    "softmax of columns": partial(torch.softmax, dim=0),
    "log softmax": partial(torch.log_softmax, dim=-1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "selected": lambda x: x.index_select(1, torch.arange(0, 32, 2)),
    "lower": lambda x: x.tril(),
    "batch of lower": lambda x: x.reshape(4, -1, x.shape[-1]).tril().flatten(0, 1),
    "compared": lambda x: functional.mse_loss(x, torch.zeros_like(x), reduction="none"),
    "of integers": lambda x: x + torch.arange(x.numel()).view(x.shape) * 0.5,
    "joined with fp64": lambda x: torch.cat([x, x.double()]),
    "counted": lambda x: x * (x > 0).sum() + (x > 0).int().sum(),
    "chosen": lambda x: torch.where(x > 0, x, x.double()),
    "of classes": lambda x: functional.cross_entropy(x, torch.zeros(len(x), dtype=torch.long), reduction="none"),
}
LAYOUTS = {
    "contiguous": lambda y: y * 2.0,
    "expanded": lambda y: y,
    "transposed": lambda y: (y.mT * 2.0).mT if y.dim() == 2 else y * 2.0,
    "sliced": lambda y: y[::2] * 2.0,
    "of columns": lambda y: y[..., ::2],
    "in fp64": lambda y: y.double(),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_peak_is_too_low_only_where_an_operator_is_named_unknown(name: str, layout: str) -> None:
    """The gradient of each function is contiguous, expanded, transposed, sliced or cast; then its input is."""
    for functions in ([FUNCTIONS[name], LAYOUTS[layout]], [LAYOUTS[layout], FUNCTIONS[name]]):
        build = partial(of_functions, *functions)
        guess, held = both(build, torch.randn(256, 64), loss=torch.sum, scratch=False)
        for phase, real in held.phases.items():
            ours = guess.phases[phase]
            assert ours.live_bytes == real.live_bytes, f"{phase}: {ours.live_bytes=}, but {real}"
            if phase != "built" and not guess.unknown:
                share = ours.peak_bytes / real.peak_bytes
                assert 0.99 < share < 1.01, f"{phase}: {ours.peak_bytes} with nothing unknown, but {real.peak_bytes}"


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_what_its_kernel_keeps_of_the_terms_that_it_sums(name: str) -> None:
    guess, held = both(partial(nn.Linear, 8, 512), torch.randn(64, 8), loss=LOSSES[name])
    assert_alike(guess, held, without_scratch=False)
    if name in ("mse", "sum of squares"):
        assert_alike(guess, held, without_scratch=True)
