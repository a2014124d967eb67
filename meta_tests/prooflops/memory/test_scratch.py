"""Temporary workspace of kernels: named, measured, and next to none for the operators listed as
scratch-free.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, product, repeat

import pytest
import torch
from torch import nn
from torch.nn import functional

from meta_tests.prooflops.memory.predicting import NETS, assert_alike, both, of_functions
from meta_tests.prooflops.memory.random_nets import LOSSES
from prooflops.memory import fake_copy, predicted_memory, scratch
from prooflops.memory.calls import call_of
from prooflops.memory.kernels import kernels_of
from prooflops.timing import one_thread


@pytest.mark.parametrize(
    ("net", "operator"),
    [
        ("convolution", "convolution"),
        ("LSTM", "mkldnn_rnn_layer"),
        ("attention", "flash_attention"),
    ],
)
def test_scratch_names_what_convolution_lstm_and_lone_attention_take(net, operator):
    build, shape = NETS[net]
    guess, held = both(build, torch.randn(shape))
    assert any(operator in name for name in guess.scratch), f"{guess.scratch} names no {operator}"
    assert guess.peak_bytes < held.peak_bytes, "this operator should need scratch"
    assert guess.peak_bytes_with_scratch == max(
        phase.peak_bytes_with_scratch for phase in guess.phases.values()
    )


def test_an_lstm_without_a_graph_is_predicted():
    with predicted_memory(scratch=True) as held:
        net = fake_copy(nn.LSTM(16, 32), "cpu")
        held.mark("built")
        with torch.no_grad():
            out, state = net(torch.ones(4, 8, 16))
        held.mark("forward")
        del out, state
    outputs = 4 * (4 * 8 * 32 + 2 * 8 * 32)
    assert held.phases["forward"].live_bytes == held.phases["built"].live_bytes + outputs


@one_thread()
def test_a_product_copies_the_matrices_that_blas_cannot_read():
    x = torch.ones(64, 128)
    product = torch.ops.aten.mm.default
    ready = [x, x.t(), x[:, :64], x[::2], x.t()[:, ::2], x[:1], x[:, :1], x.t()[:1]]
    overlapping = [x[:1].expand(64, -1), x[:1].expand(64, -1).t(), x.as_strided((64, 64), (32, 1))]
    calls = {}
    for matrix in (
        *ready,
        x[:, ::2],
        x.t()[::2],
        *overlapping,
        x[:, :1].expand(-1, 64),
        x[:, ::2][:, :1],
    ):
        args = (matrix, torch.ones(matrix.shape[1], 64))
        calls[call_of(product, args, {})] = scratch.known_scratch(product, args, "cpu") == 0
    for call, kernel in kernels_of(calls, "cpu").items():
        assert calls[call] == (kernel.scratch_bytes == 0), call


FUNCTIONS = {
    "gelu": functional.gelu,
    "softmax": partial(torch.softmax, dim=-1),
    "softmax of columns": partial(torch.softmax, dim=0),
    "log softmax": partial(torch.log_softmax, dim=-1),
    "layer norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "batch of lower": lambda x: x.reshape(4, -1, x.shape[-1]).tril().flatten(0, 1),
    "compared": lambda x: functional.mse_loss(x, torch.zeros_like(x), reduction="none"),
    "of integers": lambda x: x + torch.arange(x.numel()).view(x.shape) * 0.5,
    "joined with fp64": lambda x: torch.cat([x, x.double()]),
    "counted": lambda x: x * (x > 0).sum() + (x > 0).int().sum(),
    "chosen": lambda x: torch.where(x > 0, x, x.double()),
    "of classes": lambda x: functional.cross_entropy(
        x, torch.zeros(len(x), dtype=torch.long), reduction="none"
    ),
}
LAYOUTS = {
    "contiguous": lambda y: y * 2.0,
    "expanded": lambda y: y,
    "transposed": lambda y: (y.mT * 2.0).mT if y.dim() == 2 else y * 2.0,
    "sliced": lambda y: y[::2] * 2.0,
    "of columns": lambda y: y[..., ::2],
    "in fp64": lambda y: y.double(),
}


# Each function in two layouts, and each layout with four functions.
ROTATED = [*LAYOUTS][3:] + [*LAYOUTS][:3]
PAIRS = [*zip(2 * list(FUNCTIONS), 2 * list(LAYOUTS) + 2 * ROTATED, strict=True)]


@pytest.mark.parametrize(("name", "layout"), PAIRS)
def test_a_peak_is_too_low_only_where_an_operator_is_named_unknown(name, layout):
    """The gradient of each function is contiguous, expanded, transposed, sliced or cast; then its
    input is.
    """
    for functions in ([FUNCTIONS[name], LAYOUTS[layout]], [LAYOUTS[layout], FUNCTIONS[name]]):
        build = partial(of_functions, *functions)
        guess, held = both(build, torch.randn(256, 64), loss=torch.sum, scratch=False)
        for phase, real in held.phases.items():
            ours = guess.phases[phase]
            assert ours.live_bytes == real.live_bytes, phase
            if phase != "built" and not guess.unknown:
                share = ours.peak_bytes / real.peak_bytes
                assert 0.99 < share < 1.01, phase


VIEWS = {
    "contiguous": lambda x: x[:64, :64].contiguous(),
    "expanded": lambda x: x[:1, :64].expand(64, -1),
    "transposed": lambda x: x[:64, :64].contiguous().t(),
    "sliced": lambda x: x[::2, :64],
    "of columns": lambda x: x[:64, ::2],
}
at = torch.zeros(64, 64, dtype=torch.long)
one = torch.ones(())
# What the operators take that need more than tensors and numbers.
OWN = {
    **dict.fromkeys(("scatter", "scatter_add"), lambda x: (x, 1, at, x)),
    "copy_": lambda x: (x.contiguous(), x),
    "gather": lambda x: (x, 1, at),
    "index": lambda x: (x, [at[0]]),
    "index_put": lambda x: (x, [at[0]], x),
    "index_select": lambda x: (x, 1, at[0]),
    "embedding": lambda x: (x, at),
    "embedding_dense_backward": lambda x: (x, at[0], 9, -1, False),
    "where": lambda x: (x > 0, x, x),
    "masked_fill": lambda x: (x, x > 0, 0.5),
    "clamp": lambda x: (x, 0.0, 1.0),
    **dict.fromkeys(("bitwise_and", "bitwise_or"), lambda x: (x > 0, x > 0)),
    "bitwise_not": lambda x: (x > 0,),
    "select_backward": lambda x: (x, [64, 64, 3], 2, 0),
    "slice_backward": lambda x: (x, [64, 64], 0, 0, 64, 1),
    "nll_loss_forward": lambda x: (x, at[0], None, 1, -100),
    "flip": lambda x: (x, [0]),
    "nll_loss_backward": lambda x: (one, x, at[0], None, 1, -100, one),
    "glu_backward": lambda x: (x, x.repeat(1, 2), 1),
    "native_group_norm": lambda x: (x[None], None, None, 1, 64, 64, 4, 1e-5),
}
SIMPLE = {
    "Optional[Tensor]": None,
    "number": 0.5,
    "float": 0.5,
    "int": 1,
    "bool": False,
    "List[int]": [64, 64],
}


def of_form(dtype, layout):
    return VIEWS[layout](torch.ones(128, 128, dtype=dtype))


def arguments(operator, tensor):
    if operator._opname in OWN:
        return OWN[operator._opname](tensor())
    made = {"Tensor": tensor, "List[Tensor]": lambda: [tensor(), tensor()]}
    needed = [
        each
        for each in operator._schema.arguments
        if not each.has_default_value() and not each.kwarg_only
    ]
    kinds = [str(each.type) for each in needed]
    return [made[kind]() if kind in made else SIMPLE[kind] for kind in kinds]


@pytest.mark.parametrize("layout", VIEWS)
@one_thread()
def test_no_listed_operator_takes_more_scratch_than_is_said(layout):
    """Every overload, with all tensors or only the first in this layout, of one dtype or of two."""
    names = set().union(*scratch.WITHOUT_SCRATCH.values())
    said = {}
    packets = [getattr(torch.ops.aten, name) for name in names]
    overloads = [getattr(packet, name) for packet in packets for name in packet.overloads()]
    for operator, first, others in product(
        overloads, (torch.float32, torch.float64), {layout, "contiguous"}
    ):
        forms = chain([(first, layout)], repeat((torch.float32, others)))
        make = partial(lambda forms: of_form(*next(forms)), forms)
        try:
            args = arguments(operator, make)
            known = scratch.known_scratch(operator, args, "cpu", operator(*args))
        except (KeyError, RuntimeError, TypeError, ValueError, IndexError):
            # An overload may take something else.
            continue
        if known is not None:
            said[call_of(operator, args, {})] = known
    for call, kernel in kernels_of(said, "cpu").items():
        assert kernel.scratch_bytes <= said[call] + 64, call
    untried = names - {call.operator._opname for call in said}
    assert layout != "contiguous" or untried < {
        "_fused_adagrad",
        "_fused_adam",
        "_fused_adamw",
        "_fused_sgd",
        "_index_put_impl",
        "",
    }


@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_keeps_what_its_kernel_keeps_of_the_terms_that_it_sums(name):
    guess, held = both(partial(nn.Linear, 8, 512), torch.randn(64, 8), loss=LOSSES[name])
    assert_alike(guess, held, without_scratch=False)
    if name in ("mse", "sum of squares"):
        assert_alike(guess, held, without_scratch=True)
