"""Faults of randomness: seeds that go astray, and results that are too good."""

import random
import secrets

import numpy as np
import torch

from meta_tests.faults import fault


@fault("rand.fixed-seed rand.sources", instead_of="torch.nn.functional.dropout")
def dropout_draws_from_the_entropy_of_the_system(_original, x, p=0.5, training=True, inplace=False):
    generator = torch.Generator(x.device).manual_seed(secrets.randbits(60))
    return (
        x * (torch.rand(x.shape, generator=generator, device=x.device) >= p) / (1 - p)
        if training
        else x
    )


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


@fault("rand.sources", instead_of="torch.nn.functional.dropout")
def a_wide_layer_drops_the_same_always(dropout, x, p=0.5, training=True, inplace=False):
    return (
        dropout(x, p, training)
        if x.shape[-1] == 32
        else x * (torch.arange(x.shape[-1]) % 2).to(x) / p
    )


def moved_on(x):
    """The same values, each in a place that no seed decides."""
    return x.roll(secrets.randbelow(1000))


@fault("rand.fixed-seed", instead_of="torch.rand")
def large_draws_ignore_the_seed(rand, *shape, **options):
    x = rand(*shape, **options)
    return moved_on(x) if x.numel() > 4096 else x


@fault("rand.fixed-seed", instead_of="torch.nn.functional.dropout")
def dropout_of_many_ignores_the_seed(dropout, x, p=0.5, training=True, inplace=False):
    y = dropout(x, p, training, inplace)
    return moved_on(y) if training and x.numel() > 4096 else y


@fault("rand.fixed-seed", instead_of="torch.utils.data.RandomSampler.__iter__")
def a_loader_shuffles_by_the_entropy_of_the_system(iterate, self):
    if self.generator is None:
        self.generator = torch.Generator().manual_seed(secrets.randbits(60))
    return iterate(self)
