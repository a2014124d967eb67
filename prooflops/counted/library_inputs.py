"""Inputs of a library's net, by what its config states; the numbers in what it returns."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from accounting.parts import Lengths, length


def inputs_of(net: Any, batch: int, sequence: Lengths) -> dict[str, Tensor]:
    """One input of each shape that the config states, by the name of the model's main input; text
    where it has text.
    """
    names, config = signature(net.forward).parameters, net.config
    takes_a_sample_as_diffusers_do = "sample" in names
    if takes_a_sample_as_diffusers_do:
        side, width = (config.get(key) or 0 for key in ("sample_size", "cross_attention_dim"))
        shapes = {"sample": (batch, config["in_channels"], side, side), "timestep": ()}
        shapes["encoder_hidden_states"] = batch, length("tokens", sequence), width
        return {
            name: torch.zeros(shape, dtype=net.dtype)
            for name, shape in shapes.items()
            if name in names
        }
    main = str(getattr(net, "main_input_name", "input_ids"))
    if "input_ids" in names and main.startswith("pixel_values"):
        main = "input_ids"
    given = {}
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names:
        given["decoder_input_ids"] = torch.zeros(
            batch, length("tokens", sequence), dtype=torch.long
        )
    if main == "input_ids":
        rows = length("source" if given else "tokens", sequence)
        image = names.get("pixel_values")
        compares_texts_with_images = hasattr(net, "logit_scale")
        if image and (compares_texts_with_images or image.default is Parameter.empty):
            given["pixel_values"] = torch.zeros(
                batch, *_shape(config, "pixel_values", 0), dtype=net.dtype
            )
        return {"input_ids": torch.zeros(batch, rows, dtype=torch.long), **given}
    tokens = (
        0
        if given and isinstance(sequence, int)
        else length("source" if given else "tokens", sequence)
    )
    return {main: torch.zeros(batch, *_shape(config, main, tokens), dtype=net.dtype), **given}


def _shape(config: Any, name: str, tokens: int) -> tuple[int, ...]:
    """The shape of one image, clip or recording."""

    def size(*names: str, default: int = 0) -> Any:
        found = (
            getattr(each, key, None)
            for each in (
                config,
                *(getattr(config, part, None) for part in ("backbone_config", "vision_config")),
            )
            for key in names
        )
        return next((each for each in found if each), default)

    if name.startswith("pixel_values"):
        side = size("image_size", "input_size", "crop_size", default=224)
        sides = tuple(side)[-2:] if isinstance(side, (list, tuple)) else (side, side)
        frames = (
            size("num_frames")
            if "video" in f"{name}{config.model_type}" or hasattr(config, "tubelet_size")
            else 0
        )
        return (
            *((frames,) if frames else ()),
            size("num_channels", "in_channels", "in_chans", default=3),
            *sides,
        )
    mels = size("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim", default=80)
    if positions := size("max_source_positions") if config.model_type == "whisper" else 0:
        return (mels, 2 * positions)
    if name == "input_features" or hasattr(config, "num_mel_bins"):
        return (size("max_length", default=tokens), mels)
    return (tokens,)


def numbers_in(found: Any) -> Iterator[Tensor]:
    """The numbers in an output or a cache, of whatever classes it is made."""
    if isinstance(found, Tensor) and found.is_floating_point():
        yield found
    elif isinstance(found, (list, tuple, dict)) or type(found).__module__.startswith(
        "transformers.cache"
    ):
        found = found if isinstance(found, (list, tuple, dict)) else vars(found)
        for each in found.values() if isinstance(found, dict) else found:
            yield from numbers_in(each)
