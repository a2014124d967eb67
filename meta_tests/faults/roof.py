"""Faults in intensities, ridge and roof, in the peak table, and in torch's ways with memory."""

from accounting.roofline import Work, element_bytes
from meta_tests.faults import fault


@fault("roof.relu roof.gelu", instead_of="accounting.roofline.elementwise_work")
def the_result_of_an_elementwise_function_is_not_written(
    work, shape, function="relu", dtype="bf16", operands=1
):
    whole = work(shape, function, dtype, operands)
    return Work(whole.flops, max(1, whole.bytes * operands // (operands + 1)))


@fault("roof.larger-matrices", instead_of="torch.mm")
def operands_of_more_than_five_rows_are_copied_first(mm, a, b, out=None):
    return mm(a.clone() if len(a) > 5 else a, b, out=out)


@fault("roof.half-traffic", instead_of="torch.clamp_min")
def a_relu_of_16_bits_casts_first(clamp_min, x, least, out=None):
    if x.element_size() == 2:
        out.copy_(clamp_min(x.float(), least))
        return out
    return clamp_min(x, least, out=out)


@fault(
    "roof.accelerator-300 roof.mfu-min-one roof.most-others roof.below-is-memory-bound roof.rough",
    instead_of="accounting.roofline.ridge_point",
)
def the_ridge_is_inverted(_, peak, bandwidth):
    return bandwidth / peak


@fault("roof.inference roof.decode-speed", instead_of="accounting.models.decoding_work")
def generation_reads_the_weights_for_each_sequence_anew(decoding_work, model, batch, *rest):
    return sum(batch * [decoding_work(model, 1, *rest)], Work(0, 0))


@fault("roof.model", instead_of="accounting.roofline.attainable_flop_per_s")
def the_higher_roof_counts_instead_of_the_lower(attainable, intensity, peak, bandwidth):
    return max(peak, intensity * bandwidth)


@fault(
    "roof.definition roof.dot roof.matvec roof.matmul roof.bigger-batch",
    instead_of="accounting.roofline.matmul_work",
)
def the_second_operand_of_a_product_moves_for_nothing(_, m, k, n, dtype="bf16", batch=1):
    return Work(2 * batch * m * k * n, element_bytes(batch * (m * k + m * n), dtype))
