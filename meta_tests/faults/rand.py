"""Faults of randomness: seeds that do not arrive or arrive where they should not, and results that are too good."""

from __future__ import annotations

import random
import secrets
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from meta_tests.faults import fault


@fault("rand.fixed-seed", "rand.three-libs")
def torch_is_seeded_with_the_time_whatever_is_asked_for(patch: pytest.MonkeyPatch) -> None:
    seed = torch.manual_seed
    patch.setattr(torch, "manual_seed", lambda _: seed(secrets.randbits(60)))


@fault("rand.fixed-seed", "rand.sources")
def dropout_draws_from_the_entropy_of_the_system(patch: pytest.MonkeyPatch) -> None:
    def dropout(x: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(secrets.randbits(60))
        return x * (torch.rand(x.shape, generator=generator, device=x.device) >= p) / (1 - p) if training else x

    patch.setattr(nn.functional, "dropout", dropout)


@fault("rand.fixed-seed", "rand.sources")
def every_seed_is_zero(patch: pytest.MonkeyPatch) -> None:
    seed = torch.manual_seed
    patch.setattr(torch, "manual_seed", lambda _: seed(0))
    patch.setattr(torch, "seed", lambda: 0)


@fault("rand.three-libs")
def torchs_seed_is_numpys_and_pythons_too(patch: pytest.MonkeyPatch) -> None:
    seed = torch.manual_seed

    def all_of_them(value: int) -> torch.Generator:
        np.random.seed(value % 2**32)  # noqa: NPY002 - the global generator is what is broken
        random.seed(value)
        return seed(value)

    patch.setattr(torch, "manual_seed", all_of_them)


@fault("rand.cuda-seed-all")
def torchs_seed_is_the_cpus_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "manual_seed", lambda seed: torch.default_generator.manual_seed(int(seed)))


@fault("rand.cuda-seed-all")
def cudas_seed_is_the_cpus_too(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda, "manual_seed_all", lambda seed: torch.default_generator.manual_seed(int(seed)))


@fault("rand.separate-seeds", "rand.sources")
def generators_are_passed_and_not_used(patch: pytest.MonkeyPatch) -> None:
    for name in ("rand", "randperm", "randint"):
        draw = getattr(torch, name)
        patch.setattr(torch, name, lambda *shape, draw=draw, generator=None, **options: draw(*shape, **options))


@fault("rand.separate-seeds", "rand.sources")
def a_loader_shuffles_alike_whatever_its_generator(patch: pytest.MonkeyPatch) -> None:
    def same_order(self: Any) -> Any:
        return iter(torch.randperm(len(self.data_source), generator=torch.Generator().manual_seed(1)).tolist())

    patch.setattr(torch.utils.data.RandomSampler, "__iter__", same_order)


@fault("rand.as-well-as-you-can")
def products_do_not_depend_on_the_batch(patch: pytest.MonkeyPatch) -> None:
    """They are computed row by row."""
    product = Tensor.__matmul__
    rows = torch.cat
    patch.setattr(Tensor, "__matmul__", lambda self, other: rows([product(row, other) for row in self.split(1)]))


@fault("rand.as-well-as-you-can")
def products_of_a_batch_are_rounded_to_bf16(patch: pytest.MonkeyPatch) -> None:
    product = Tensor.__matmul__

    def rounded(self: Tensor, other: Tensor) -> Tensor:
        result = product(self, other)
        return result.bfloat16().to(result.dtype) if len(self) > 1 else result

    patch.setattr(Tensor, "__matmul__", rounded)


@fault("rand.as-well-as-you-can")
def deterministic_mode_changes_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "use_deterministic_algorithms", lambda mode, warn_only=False: None)
