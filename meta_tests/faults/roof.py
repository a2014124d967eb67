"""Faults in intensities, in ridge and roof, in the peak table, and in how torch works through memory."""

import time

import torch

import accounting.roofline
from accounting import devices
from accounting.roofline import Work
from meta_tests.faults import fault, replace


@fault("roof.accelerator-300", "roof.matmul", "roof.most-others", "roof.below-is-memory-bound", "roof.rough")
def the_ridge_is_inverted(patch):
    replace(patch, accounting.roofline.ridge_point, lambda peak, bandwidth: bandwidth / peak)


@fault("roof.accelerator-300", "roof.matmul", "roof.relu", "roof.bigger-batch")
def the_peak_is_the_one_with_sparsity(patch):
    dense = devices.peak_flop_per_s
    replace(patch, dense, lambda *args, **rest: (peak := dense(*args, **rest)) and 2 * peak)


@fault("roof.model", "roof.relu", "roof.matmul")
def the_higher_roof_counts_instead_of_the_lower(patch):
    attainable = accounting.roofline.attainable_flop_per_s
    replace(patch, attainable, lambda intensity, peak, bandwidth: max(peak, intensity * bandwidth))


@fault("roof.definition", "roof.dot", "roof.matvec", "roof.matmul", "roof.bigger-batch")
def the_second_operand_of_a_product_moves_for_nothing(patch):
    element_bytes = accounting.roofline.element_bytes

    def without_b(m, k, n, dtype="bf16", batch=1):
        return Work(2 * batch * m * k * n, element_bytes(batch * (m * k + m * n), dtype))

    replace(patch, accounting.roofline.matmul_work, without_b)


@fault("roof.relu", "roof.gelu")
def the_result_of_an_elementwise_function_is_not_written(patch):
    work = accounting.roofline.elementwise_work

    def unwritten(shape, function="relu", dtype="bf16", operands=1):
        whole = work(shape, function, dtype, operands)
        return Work(whole.flops, max(1, whole.bytes * operands // (operands + 1)))

    replace(patch, work, unwritten)


@fault("roof.gelu")
def gelu_is_composed_of_many_passes(patch):
    from test_claims.oracles import streaming

    patch.setitem(streaming.OPERATIONS, "gelu", streaming.gelu_by_hand)


@fault("roof.below-is-memory-bound", "roof.most-others", "roof.model")
def every_launch_takes_a_tenth_of_a_millisecond(patch):
    """Then the pieces that fit a cache take longer than the whole that does not."""
    for name in ("clamp_min", "add", "mul", "neg"):
        operation = getattr(torch, name)
        patch.setattr(torch, name, lambda *args, out, run=operation: (time.sleep(1e-4), run(*args, out=out)))


@fault("roof.bigger-batch")
def each_row_of_a_batch_takes_a_millisecond(patch):
    mm = torch.mm

    def row_by_row(a, b, out=None):
        time.sleep(1e-3 * (len(a) - 1))
        return mm(a, b, out=out)

    patch.setattr(torch, "mm", row_by_row)


@fault("roof.matmul")
def a_product_takes_no_time_at_all(patch):
    patch.setattr(torch, "mm", lambda a, b, out=None: out)
