"""Faults of randomness: seeds that go astray, and results that are too good."""

import random

import numpy as np
import torch

from meta_tests.faults import fault


@fault("rand.three-libs", instead_of="torch.manual_seed")
def torchs_seed_is_numpys_and_pythons_too(seed, value):
    np.random.seed(value % 2**32)  # noqa: NPY002 - the global generator is what is broken
    random.seed(value)
    return seed(value)


@fault("rand.separate-seeds rand.sources")
def generators_are_passed_and_not_used(patch):
    for name in ("rand", "randperm", "randint"):
        draw = getattr(torch, name)
        patch.setattr(
            torch,
            name,
            lambda *shape, draw=draw, generator=None, **options: draw(*shape, **options),
        )


@fault("rand.cuda-seed-all", instead_of="torch.manual_seed")
def torchs_seed_is_the_cpus_alone(_, seed):
    return torch.default_generator.manual_seed(int(seed))
