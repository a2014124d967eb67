"""The arithmetic of training neural networks: bytes, FLOPs, precision, utilisation.

The formulas need only the standard library. `import accounting` loads none of them: import the
module that you need, as in `from accounting import flops`.
"""
