"""prooflops-gate.

Compares the benchmarks of any pytest-benchmark suite with those of another revision.
"""

__version__ = "0.1.0"
