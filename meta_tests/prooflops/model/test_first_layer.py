"""D is what the first layer says of the inputs, and not known where none does."""

import time
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

import prooflops
from prooflops.model.breakdown import StepTrace
from prooflops.model.user_model import UserModel

IMAGES = torch.ones(4, 3, 8, 8)
ROWS = torch.ones(8, 16)
SEQUENCES = torch.ones(2, 24, 16)


class Net(nn.Module):
    """A function of two layers and the inputs."""

    def __init__(self, function, first, second=None):
        super().__init__()
        self.function, self.first, self.second = function, first, second

    def forward(self, *inputs, **named):
        return self.function(self.first, self.second, *inputs, **named)


def ids(*shape):
    return torch.zeros(*shape, dtype=torch.long)


conv = partial(nn.Conv2d, 3, 4, 3)
linear = partial(nn.Linear, 16, 4)
table = partial(nn.Embedding, 9, 16)


def along_edges(first, second, x, edges):
    sent = first(x)[edges[0]]
    return second(torch.zeros(len(x), 4).index_add(0, edges[1], sent))


def step_by_step(cell, _, x):
    state = None
    for each in x:
        state = cell(each, state)
    return state


def of_hugging_face(first, second, attention_mask, input_ids, pixel_values):
    seen = second(pixel_values).mean()
    return (first(input_ids) + seen) * attention_mask[..., None]


def by_other_weights(change, first, second, x):
    """The bias of the first layer says nothing of its weights."""
    weight = change(first.weight, x)
    found = functional.linear(x, weight, first.bias)
    return found if second is None else second(found)


noisy = partial(by_other_weights, lambda weight, _: weight + torch.randn(weight.shape))
joined = partial(by_other_weights, lambda weight, x: torch.cat([weight, x[:0]]))
complex_linear = partial(nn.Linear, 16, 4, dtype=torch.cfloat)

NETS = {
    "one image": (conv(), IMAGES[0], "1 example"),
    "patches": (
        Net(lambda first, _, x: first(functional.unfold(x, 4, stride=4).mT), nn.Linear(48, 4)),
        IMAGES,
        "16 tokens",
    ),
    "rows": (linear(), ROWS, "8 examples"),
    "complex rows": (complex_linear(), ROWS.cfloat(), "8 examples"),
    "noise on a layer": (Net(noisy, linear(), nn.Linear(4, 4)), ROWS, "8 examples"),
    "a weight and nothing": (Net(joined, linear()), ROWS, "8 examples"),
    "RNN": (nn.RNN(16, 4), SEQUENCES, "48 tokens"),
    "cells": (Net(step_by_step, nn.GRUCell(16, 4)), SEQUENCES, "24 examples"),
    "ids": (nn.Sequential(table(), linear()), ids(8, 5), "40 tokens"),
    "bags": (nn.EmbeddingBag(9, 16), ids(8, 5), "8 examples"),
    "a graph": (Net(along_edges, linear(), nn.Linear(4, 4)), (ROWS, ids(2, 30)), "8 examples"),
    "its edges alone": (
        Net(lambda first, _, x, edges: first(x[edges[0]]), linear()),
        (ROWS, ids(2, 30)),
        "30 rows",
    ),
    "a dict": (
        Net(of_hugging_face, table(), conv()),
        {"attention_mask": ids(2, 24), "input_ids": ids(2, 24), "pixel_values": IMAGES},
        "48 tokens",
    ),
    "a scale": (nn.LayerNorm(16), ROWS, "not known"),
}


@pytest.mark.parametrize("name", NETS)
def test_the_first_layer_says_how_many_tokens_or_examples_there_are(name):
    net, inputs, size = NETS[name]
    instance = UserModel(name, lambda: (net, inputs), torch.device("cpu")).build()
    assert StepTrace(instance, time.perf_counter).flops.batch.size == size


def test_the_caller_states_it_and_the_rules_follow():
    report = partial(prooflops.model_report, nn.Conv1d(4, 4, 3), torch.ones(8, 4, 10), "SGD")
    parameters = 4 * 4 * 3 + 4
    assert report().rule_2nd == 2 * parameters * 8
    assert report(examples=2).rule_2nd == 2 * parameters * 2
    stated = report(tokens=80)
    assert stated.rule_6nd == 6 * parameters * 80
    assert "D: 80 tokens (as stated; input 0: float32 (8, 4, 10))" in str(stated)
    with pytest.raises(ValueError, match=r"Conv1d: give examples or tokens, got both"):
        report(examples=8, tokens=80)
    with pytest.raises(ValueError, match=r"Conv1d: examples must be at least 1, got 0"):
        report(examples=0)


def test_without_it_the_rules_are_not_known(tmp_path):
    report = prooflops.model_report(nn.LayerNorm(16), ROWS, "SGD")
    assert report.rule_2nd is report.rule_6nd is None
    assert "D: not known (no layer takes input 0: float32 (8, 16); state it by" in str(report)
    report.save(tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "without it 2ND, 4ND and 6ND are not known" in page
