"""Each module of torch's own tests holds, behind a linear layer, the bytes that are predicted."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal import common_modules
from torch.utils._pytree import tree_leaves

from prooflops.memory import TrainingStep
from prooflops.timing import one_thread

MODULES = {
    info.name: info
    for info in common_modules.module_db
    # Their parameters are made by the first call.
    if "Lazy" not in info.name
}
SAMPLES_PER_MODULE = 2
READS_VALUES = "the block reads values"


class BehindLinear(nn.Module):
    """A module of the table, whose first input is the output of a linear layer."""

    def __init__(self, info, sample):
        super().__init__()
        self.module = info.module_cls(
            *sample.constructor_input.args, **sample.constructor_input.kwargs
        )
        first = first_input(sample)
        width = first.shape[-1]
        self.linear = nn.Linear(width, width) if first.is_floating_point() else nn.Identity()

    def forward(self, args, keywords):
        if args:
            first, *others = args
            return self.module(self.linear(first), *others, **keywords)
        (name, first), *_ = keywords.items()
        return self.module(**{**keywords, name: self.linear(first)})


def first_input(sample):
    return next(iter(tree_leaves((sample.forward_input.args, sample.forward_input.kwargs))))


def samples_of(info):
    options = {"device": "cpu", "dtype": torch.float32, "requires_grad": False, "training": True}
    samples = info.module_inputs_func(info, **options)
    # A linear layer needs a dimension, and one sample in three has none.
    return [each for each in samples if first_input(each).dim()][:SAMPLES_PER_MODULE]


def sum_of_outputs(out):
    leaves = [each for each in tree_leaves(out) if isinstance(each, Tensor)]
    return sum(each.sum() for each in leaves if each.requires_grad)


@pytest.mark.prove
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MODULES)
@one_thread()
def test_a_module_behind_a_linear_layer_holds_what_is_predicted(name):
    info = MODULES[name]
    for number, sample in enumerate(samples_of(info)):
        given = sample.forward_input.args, sample.forward_input.kwargs
        step = TrainingStep(
            partial(BehindLinear, info, sample), given, sum_of_outputs, optimizer=torch.optim.SGD
        )
        try:
            held = step.measure()
        except RuntimeError as error:
            pytest.skip(f"torch cannot run sample {number} behind a linear layer: {error}")
        try:
            guess = step.predict()
        except RuntimeError as error:
            if not str(error).startswith(READS_VALUES):
                raise
            pytest.skip(str(error))
        assert beyond_built(guess) == beyond_built(held), f"sample {number} of {name}"
        for phase, real in held.phases.items():
            at_most = real.peak_bytes - held.phases["built"].live_bytes
            got = guess.phases[phase].peak_bytes - guess.phases["built"].live_bytes
            assert phase == "built" or got <= at_most, f"{phase} of sample {number} of {name}"


def beyond_built(held):
    """Live bytes at the end of each phase beyond those of the module itself."""
    built = held.phases["built"].live_bytes
    return {name: phase.live_bytes - built for name, phase in held.phases.items()}
