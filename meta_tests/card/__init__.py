"""A simulated accelerator to run claims and benchmarks on without a card.

    pytest -p meta_tests.card.plugin --device cuda --quick bench/test_matmul.py
    ... --card-share bf16=0.1 --card-share memory=0.8

The second line simulates a degraded card.

Operators are queued and take the time of the card's roofline on a simulated clock (`card`). Memory
comes in blocks of 512 bytes and segments, and ends in torch.OutOfMemoryError (`caching`). The
host's tensors are refused among operands, random numbers have their own generator, a non-blocking
copy arrives late (`kernels`). A tensor on the card is a tensor of the CPU to C++, whose storage is
marked; `torch.Tensor.device`, `torch.cuda` and NVML are patched (`api`). A back end of PrivateUse1
(torch 2.13) could not be called cuda, and lacked autocast and the allocator's statistics.

It cannot show kernels' own numerics, CUDA's autocast lists, kernels that C++ chooses by the device
(attention, cuDNN), profiler traces, CUDA graphs, torch.compile, several cards, or threads that use
the device.
"""
