"""Models of published decoders: their configs read, and presets by name."""

from prooflops.families.config import from_config

__all__ = ["from_config"]
