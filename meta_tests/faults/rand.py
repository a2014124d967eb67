"""Faults of randomness: seeds that go astray, and results that are too good."""

import random
import secrets

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


@fault("rand.as-well-as-you-can", instead_of="torch.Tensor.__matmul__")
def products_of_a_batch_are_rounded_to_bf16(product, self, other):
    result = product(self, other)
    return result.bfloat16().to(result.dtype) if len(self) > 1 else result


@fault("rand.cuda-seed-all", instead_of="torch.manual_seed")
def torchs_seed_is_the_cpus_alone(_, seed):
    return torch.default_generator.manual_seed(int(seed))


def moved_on(x):
    """The same values, each in a place that no seed decides."""
    return x.roll(secrets.randbelow(1000))


@fault("rand.fixed-seed", instead_of="torch.rand")
def large_draws_ignore_the_seed(rand, *shape, **options):
    x = rand(*shape, **options)
    return moved_on(x) if x.numel() > 4096 else x
