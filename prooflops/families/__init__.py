"""Reads the configs of published decoders, and has presets by name."""

from prooflops.families.config import from_config

__all__ = ["from_config"]
