"""One input of a net of transformers, in the shape that its config states."""

from __future__ import annotations

from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from accounting.parts import Lengths, length

USUAL_IMAGE_SIDE = 224
USUAL_CHANNELS = 3
USUAL_MEL_BINS = 80


def inputs_of(net: Any, batch: int, sequence: Lengths) -> dict[str, Tensor]:
    """The inputs that a step needs, by their names: text where the net reads text."""
    names, config = signature(net.forward).parameters, net.config
    main = str(getattr(net, "main_input_name", "input_ids"))
    if "input_ids" in names and main.startswith("pixel_values"):
        main = "input_ids"
    inputs = {}
    has_decoder = getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in names
    if has_decoder:
        tokens = length("tokens", sequence)
        inputs["decoder_input_ids"] = torch.zeros(batch, tokens, dtype=torch.long)
    stream = "source" if has_decoder else "tokens"
    if main == "input_ids":
        inputs[main] = torch.zeros(batch, length(stream, sequence), dtype=torch.long)
        image = names.get("pixel_values")
        compares_texts_with_images = hasattr(net, "logit_scale")
        if image and (compares_texts_with_images or image.default is Parameter.empty):
            inputs["pixel_values"] = torch.zeros(batch, *_image(config, "pixel_values"))
    elif main.startswith("pixel_values"):
        inputs[main] = torch.zeros(batch, *_image(config, main))
    else:
        # A recording's length may follow from the config alone.
        frames = 0 if has_decoder and isinstance(sequence, int) else length(stream, sequence)
        inputs[main] = torch.zeros(batch, *_recording(config, main, frames))
    return {
        name: each.to(net.dtype) if each.is_floating_point() else each
        for name, each in inputs.items()
    }


def _image(config: Any, name: str) -> tuple[int, ...]:
    """The shape of one image, or of one clip."""
    side = _size(config, "image_size", "input_size", "crop_size") or USUAL_IMAGE_SIDE
    sides = tuple(side)[-2:] if isinstance(side, (list, tuple)) else (side, side)
    channels = _size(config, "num_channels", "in_channels", "in_chans") or USUAL_CHANNELS
    is_clip = "video" in f"{name}{config.model_type}" or hasattr(config, "tubelet_size")
    frames = (_size(config, "num_frames"),) if is_clip else ()
    return (*frames, channels, *sides)


def _recording(config: Any, name: str, frames: int) -> tuple[int, ...]:
    """The shape of one recording: samples, or mel bins of each frame."""
    names = ("num_mel_bins", "input_feat_per_channel", "feature_size", "input_dim")
    bins = _size(config, *names) or USUAL_MEL_BINS
    if config.model_type == "whisper":
        return bins, 2 * config.max_source_positions
    if name == "input_features" or hasattr(config, "num_mel_bins"):
        return _size(config, "max_length") or frames, bins
    return (frames,)


def _size(config: Any, *names: str) -> Any:
    """The first of these sizes that the config, its backbone's or its images' states, else 0."""
    parts = [getattr(config, name, None) for name in ("backbone_config", "vision_config")]
    found = (getattr(each, name, None) for each in (config, *parts) for name in names)
    return next((size for size in found if size), 0)
