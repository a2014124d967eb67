"""One training step of a net of transformers on the meta device: its products, counted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from accounting import models
from accounting.flops import StepFlops
from accounting.parts import Lengths, Part, Parts, length
from prooflops.counted.counter import flops
from prooflops.counted.library_inputs import inputs_of

# Nets that loop over tokens, or over chunks of 64, dispatch operators for each of them.
DELTA_RULE = ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "olmo_hybrid", "kimi_linear")
# The longest step of each that is counted: about a minute.
LONGEST_LOOP = (
    dict.fromkeys(("mamba", "falcon_mamba", "jamba", "rwkv"), 256)
    | dict.fromkeys(DELTA_RULE, 2048)
    | {"minimax": 8192}
)


@dataclass(frozen=True)
class CountedProducts(Part):
    """The FLOPs of a counted step beyond those of its linear maps: both add up to the count."""

    net: Any
    name: str
    parts: Parts

    def forward_flops(self, batch: int, sequence: Lengths, pairs: str) -> int:
        counted = self._step(batch, sequence, pairs)
        return counted.forward - models.forward_flops(self.parts, batch, sequence)

    def backward_flops(self, batch: int, sequence: Lengths, pairs: str, _convention: str) -> int:
        counted = self._step(batch, sequence, pairs)
        return counted.backward - models.backward_flops(self.parts, batch, sequence)

    def decoding_flops(self, *_: Any) -> int:
        raise ValueError(f"the FLOPs of one further token are unknown for {self.name}")

    def cached_elements(self, *_: Any) -> int:
        raise ValueError(f"the cache of {self.name} is unknown")

    def _step(self, batch: int, sequence: Lengths, pairs: str) -> StepFlops:
        if pairs != "full":
            raise ValueError(
                f"pairs must be 'full' for {self.name}, whose masks are not read, got {pairs!r}"
            )
        tokens = length("tokens", sequence)
        longest = LONGEST_LOOP.get(self.net.config.get_text_config().model_type, tokens)
        if tokens > longest:
            raise ValueError(
                f"sequence must be at most {longest:,} to count {self.name}, "
                f"which loops over tokens, got {tokens:,}"
            )
        streams = tuple(sequence.items()) if isinstance(sequence, Mapping) else sequence
        return counted_step(self.net, self.name, batch, streams)


@lru_cache(maxsize=16)
def counted_step(
    net: Any, name: str, batch: int, streams: int | tuple[tuple[str, int], ...]
) -> StepFlops:
    """FLOPs of a step's products, forward and backward, from the net's outputs on."""
    sequence = dict(streams) if isinstance(streams, tuple) else streams
    try:
        with torch.device("meta"), without_values(), flops() as count:
            found = net(**inputs_of(net, batch, sequence))
            outputs = [each for each in _numbers_in(found) if each.requires_grad]
            torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])
    except Exception as error:
        raise ValueError(
            f"the FLOPs of this model are unknown: {name} does not run on tensors without "
            f"values, {type(error).__name__}: {error}; its parameters are known"
        ) from error
    finally:
        net.zero_grad()
    return count.step


def _numbers_in(found: Any) -> Iterator[Tensor]:
    """The floating-point tensors of an output."""
    if isinstance(found, Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, Mapping):
        yield from _numbers_in(list(found.values()))
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _numbers_in(each)


@contextmanager
def without_values() -> Iterator[None]:
    """Within the block transformers reads no tensor's values, and prints nothing of its own."""
    # It compares positions to see whether sequences are packed, and tokens to warn of padding.
    packed = "transformers.masking_utils.find_packed_sequence_indices"
    padded = "transformers.PreTrainedModel.warn_if_padding_and_no_attention_mask"
    logger = logging.getLogger("transformers")
    level = logger.level
    with mock.patch(packed, return_value=None, create=True), mock.patch(padded, create=True):
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
