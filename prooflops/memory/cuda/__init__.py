"""CUDA kernels on fake tensors: what they return, choose and hold, without a GPU."""
