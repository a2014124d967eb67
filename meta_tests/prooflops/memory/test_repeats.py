"""A prediction is the same where results of repeated operations are made again, and where torch
makes them all.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import nn

from meta_tests.prooflops.memory.predicting import OPTIMIZERS, of_functions
from meta_tests.prooflops.memory.random_nets import RandomNet
from prooflops.memory import TrainingStep
from prooflops.memory.repeats import Repeats


def with_other_strides(x):
    # The second is no view, since its clone is laid out as it is.
    return x.clone().flatten() + x.mT.clone().flatten()


def with_other_numbers(x):
    rows = torch.arange(len(x), device=x.device)
    return x * rows.mul(2) * rows.mul(2.0)


def of_other_storages(x):
    """A sum takes over the storage of a gradient that nothing else refers to."""
    parts = x.split(len(x) // 2)
    return torch.cat([x[: len(x) // 2] * parts[0], parts[0] * parts[1], parts[1] + parts[1]])


@pytest.fixture
def check(monkeypatch):
    def torchs(self, mode, func, args, kwargs, fake):
        return fake()

    def check(step, **options):
        repeated = step.predict(**options)
        with monkeypatch.context() as patched:
            patched.setattr(Repeats, "result", torchs)
            plain = step.predict(**options)
        assert repeated.phases == plain.phases
        assert repeated.unknown == plain.unknown

    return check


@pytest.mark.parametrize("seed", [1, 2, 5, 7, 8, 13])
def test_a_random_net_is_predicted_as_without_repeats(seed, check):
    net = RandomNet(seed)
    chosen = net.optimizer
    optimizer = OPTIMIZERS[chosen] if isinstance(chosen, str) else chosen
    given = net.batch.to("meta"), net.loss, None, optimizer
    check(TrainingStep(net.build, *given, net.micro_batches, net.autocast), scratch=True)


@pytest.mark.parametrize("of", [with_other_strides, with_other_numbers, of_other_storages])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_operations_that_differ_in_one_trait_are_no_repeats(of, device, check):
    build = partial(of_functions, of)
    step = TrainingStep(
        build, torch.empty(64, 64, device="meta"), torch.mean, None, torch.optim.AdamW,
        device=device,
    )  # fmt: skip
    check(step, **({"compute_capability": (9, 0)} if device == "cuda" else {}))


def test_layers_of_a_stack_are_repeats(monkeypatch):
    """Each layer after the first asks torch for little or nothing."""
    asked = []
    right = Repeats.result

    def counted(self, mode, func, args, kwargs, fake):
        def noted():
            asked[-1] += func.namespace == "aten"
            return fake()

        return right(self, mode, func, args, kwargs, noted)

    monkeypatch.setattr(Repeats, "result", counted)
    for layers in (4, 12):
        asked.append(0)
        stack = nn.Sequential(*(nn.TransformerEncoderLayer(64, 4, 128) for _ in range(layers)))
        TrainingStep(stack, torch.empty(16, 4, 64, device="meta"), torch.mean).predict()
    assert asked[1] - asked[0] < 0.2 * asked[0], asked
