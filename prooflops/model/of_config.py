"""Models of a transformers config as users train them: in 16 bits, with AdamW, on labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from prooflops.counted import built
from prooflops.counted.library_step import without_values as without_library_values
from prooflops.memory.fits import cuda_card
from prooflops.model.fits import Fits, fits_of, growing_argument
from prooflops.model.progress import on_stderr
from prooflops.model.user_model import UserModel


def fits_of_config(
    values: Mapping[str, Any],
    sequence: int,
    cards: tuple[str, ...],
    *,
    longest: int,
) -> Fits:
    """The largest batch and the longest sequence whose training step fits, predicted per card.

    The batch is of so many tokens, and the sequence is `longest` at most. Parameters, gradients and
    AdamW's state are in bf16, attention is torch's fused one, and nothing is recomputed. Raises
    ValueError for a config that transformers does not train on tokens alone.
    """

    def factory(batch: int = 1, sequence: int = sequence) -> tuple[Any, ...]:
        net = built.net_of(values).to(torch.bfloat16).train()
        ids = torch.zeros(batch, sequence, dtype=torch.long)
        inputs = {"input_ids": ids, "labels": ids}
        if type(net).__name__.endswith("ForSequenceClassification"):
            inputs["labels"] = _labels_of_sequences(net, batch)
        return net, inputs, torch.optim.AdamW(net.parameters())

    model = UserModel(
        str(values.get("model_type")), factory, torch.device("cpu"), option="config of"
    )
    rows = tuple(cuda_card(name) for name in cards)
    stages = on_stderr("python -m prooflops")
    growing = {
        "batch": growing_argument(model, "batch"),
        "sequence": growing_argument(model, "sequence", longest),
    }
    with without_library_values():
        return fits_of(model.build_without_values(), rows, growing, stages)


def _labels_of_sequences(net: Any, batch: int) -> torch.Tensor:
    """A class for each sequence, or a score where the net has one output."""
    config = net.config.get_text_config()
    if config.pad_token_id is None:
        # Without one the library refuses more than one sequence.
        config.pad_token_id = 0
    return torch.zeros(batch, dtype=torch.long if config.num_labels > 1 else net.dtype)
