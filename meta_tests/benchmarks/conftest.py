"""Leaves out the comparison with other tools where they are not installed."""

from importlib.util import find_spec

TOOLS = ("torchinfo", "transformers")
collect_ignore = [] if all(map(find_spec, TOOLS)) else ["test_model_tools.py"]
