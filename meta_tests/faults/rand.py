"""Faults of randomness: seeds that do not arrive or arrive where they should not, and results that are too good."""

import os
import random
import secrets

import numpy as np
import torch

from meta_tests.faults import fault, faults, stand_in


@fault("rand.fixed-seed rand.sources", instead_of="torch.nn.functional.dropout")
def dropout_draws_from_the_entropy_of_the_system(_original, x, p=0.5, training=True, inplace=False):
    generator = torch.Generator(x.device).manual_seed(secrets.randbits(60))
    return (
        x * (torch.rand(x.shape, generator=generator, device=x.device) >= p) / (1 - p)
        if training
        else x
    )


@fault("rand.fixed-seed rand.sources")
def every_seed_is_zero(patch):
    seed = torch.manual_seed
    patch.setattr(torch, "manual_seed", lambda _: seed(0))
    patch.setattr(torch, "seed", lambda: 0)


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


# fmt: off
faults(
    ("torch_is_seeded_with_the_time_whatever_is_asked_for", "rand.fixed-seed rand.three-libs",
     stand_in("torch.manual_seed", lambda seed, _: seed(secrets.randbits(60)))),
    ("a_seed_depends_on_the_process", "rand.fixed-seed",
     stand_in("torch.manual_seed", lambda seed, of: seed(int(of) + os.getpid()))),
    ("torchs_seed_is_the_cpus_alone", "rand.cuda-seed-all",
     stand_in("torch.manual_seed", lambda _, seed: torch.default_generator.manual_seed(int(seed)))),
    ("cudas_seed_is_the_cpus_too", "rand.cuda-seed-all",
     stand_in("torch.cuda.manual_seed_all", lambda _, seed: torch.default_generator.manual_seed(int(seed)))),
    ("a_wide_layer_drops_the_same_always", "rand.sources", stand_in("torch.nn.functional.dropout",
        lambda dropout, x, p=0.5, training=True, inplace=False:
            dropout(x, p, training) if x.shape[-1] == 32 else x * (torch.arange(x.shape[-1]) % 2).to(x) / p)),
    ("a_loader_shuffles_alike_whatever_its_generator", "rand.separate-seeds rand.sources",
     stand_in("torch.utils.data.RandomSampler.__iter__",
        lambda _, self:
            iter(torch.randperm(len(self.data_source), generator=torch.Generator().manual_seed(1)).tolist()))),
    ("sums_are_rounded_so_far_that_their_order_makes_no_difference", "rand.as-well-as-you-can",
     stand_in("torch.Tensor.__add__", lambda add, self, other: (add(self, other) * 2).round() / 2)),
    ("deterministic_mode_changes_nothing", "rand.as-well-as-you-can",
     stand_in("torch.use_deterministic_algorithms", lambda _, mode, warn_only=False: None)),
)
# fmt: on
