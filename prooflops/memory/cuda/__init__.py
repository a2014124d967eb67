"""CUDA kernels on fake tensors: what they return, choose and allocate, without a GPU."""
