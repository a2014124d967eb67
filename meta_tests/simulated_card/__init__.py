"""A simulated accelerator: a card to test the suite against, without a card.

    python -m meta_tests.simulated_card test_claims/test_matmul.py --quick     a table of what each claim asks of a card
    pytest -p meta_tests.simulated_card.plugin --device cuda --quick ...       the same run, as pytest prints it

It behaves as a card does and the CPU does not: operators are queued and take the time of the card's roofline, on a
clock of its own (`card`); memory comes in blocks of 512 bytes and segments of 2 and 20 MiB, is reused, and ends in
torch.OutOfMemoryError (`caching`); a tensor of the host among operands is refused, random numbers come from another
generator, a copy that does not block arrives late (`kernels`); name, capability and rates are those of a row of
`accounting.devices.peaks`. It can be given a sticky error, a clock that throttles, dtypes it lacks, and the name mps.

How: a tensor on the card is a tensor of the CPU to C++, whose storage is marked; a dispatch mode sees every operator,
and `torch.Tensor.device`, `torch.cuda` and NVML are patched (`api`). torch's own way, PrivateUse1 with a Python back
end, was tried first (torch 2.13): the back end cannot be called cuda, so that no branch for CUDA would run; its tensors
have the address 0; `backward` and `torch.tensor(..., device=...)` end in internal assertions; generators, autocast and
the statistics of an allocator need C++.

What it cannot show: kernels' own numerics (tf32, order of summation), the lists of CUDA's autocast, choices that C++
makes by the device (attention's kernels, cuDNN), profiler traces, CUDA graphs, torch.compile, several cards, threads
that use the device (the mode is that of one thread).
"""
