"""Work, roofs and utilisation.

They are held against numbers that count their operations and arrays that count their bytes.
"""

import math

import numpy as np
import pytest
import torch

from accounting import roofline
from accounting.roofline import Work
from test_claims.oracles.scalars import Operations


def random(tally: Operations, *shape: int) -> np.ndarray:
    return tally.array(torch.rand(shape))


def gelu(x):
    return (x * 0.5) * ((x * 2**-0.5).through(math.erf) + 1)


def gelu_tanh(x):
    return x * 0.5 * (((x * x * x * 0.044715 + x) * math.sqrt(2 / math.pi)).through(math.tanh) + 1)


def silu(x):
    return ((x * -1).through(math.exp) + 1).through(lambda value: float(x) / value)


FUNCTIONS = {
    "silu": silu,
    "relu": lambda x: x.through(lambda value: max(value, 0.0)),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
}
FUNCTIONS |= {"add": lambda x: x + x, "multiply": lambda x: x * x}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_elementwise_work_is_what_the_formula_of_the_function_does(name):
    tally = Operations()
    for x in random(tally, 6):
        FUNCTIONS[name](x)
    assert roofline.elementwise_work((2, 3), name, "fp32") == Work(tally.flops, 2 * 6 * 4)
