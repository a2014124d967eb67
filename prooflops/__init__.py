"""prooflops: what makes a verification suite of the accounting formulas, the claims and the benchmarks."""

__version__ = "0.1.0"
