"""Faults in the peak table, in published figures, in what ties them together, and in torch."""

import accounting.models
from accounting.devices import ACCELERATORS, Figure, rates
from meta_tests.faults import fault, replace

A100, H100 = ACCELERATORS["A100 SXM4 80GB"], ACCELERATORS["H100 SXM5 80GB"]


def give_16_bits(patch, row, figure):
    """Gives a row of the peak table another figure for bf16 and fp16."""
    for dtype in ("bf16", "fp16"):
        patch.setitem(row.peaks, dtype, figure)


def published():
    """The table of published figures, which each run under a fault imports again."""
    from test_claims.oracles import published

    return published


@fault(
    "spec.h100-fp32-67 spec.fp32-slower spec.dtype-dependent spec.peak-is-bound spec.tensor-core"
)
def fp32_and_tf32_change_places_in_the_table(patch):
    columns = rates._MATRIX_COLUMNS
    patch.setitem(columns, "fp32", ("tf32",))
    patch.setitem(rates._COLUMNS["vector"], "fp32", ("tf32",))
    patch.setitem(columns, "tf32", ("fp32",))


@fault("spec.h100-80gb")
def the_nvl_is_given_80_gb(patch):
    from test_claims import test_spec

    rows = [
        row._replace(memory="80 GB HBM3") if row.label == "H100 NVL 94GB" else row
        for row in test_spec.ROWS
    ]
    patch.setattr(test_spec, "ROWS", rows)


@fault("spec.gpt3 spec.gpt3-323 spec.thresholds-v-models")
def the_gradient_of_the_weights_is_forgotten(patch):
    patch.setitem(accounting.models.RULES, "step", 4)
    forward_flops = accounting.models.forward_flops
    replace(
        patch,
        forward_flops,
        lambda model, batch, sequence=1, **rest: forward_flops(model, batch) * 2 // 3,
    )


@fault("spec.us-eo spec.eu-ai-act spec.thresholds-v-models")
def the_two_laws_exchange_their_thresholds(patch):
    laws = published().THRESHOLDS
    order, act = laws["US order"], laws["EU AI Act"]
    patch.setitem(laws, "US order", order._replace(operations=act.operations))
    patch.setitem(laws, "EU AI Act", act._replace(operations=order.operations))


@fault("spec.fp8-faster spec.dtype-dependent")
def fp8_has_the_peak_of_fp16(patch):
    patch.setitem(rates._MATRIX_COLUMNS, "fp8_e4m3", ("fp16",))


CONVERSIONS = "torch.sparse._semi_structured_conversions."


@fault(
    "spec.sparsity-2of4",
    instead_of=CONVERSIONS + "sparse_semi_structured_from_dense_cutlass",
)
def torch_repeats_the_first_four_of_each_row(compress, dense):
    return compress(dense[:, :4].repeat(1, dense.shape[1] // 4))


@fault(
    "spec.h100-1979 spec.h100-989 spec.mixed-comparison spec.fp32-orders-worse",
    "spec.sparsity-unused spec.newer-faster",
)
def the_h100s_row_holds_the_sparse_peak(patch):
    give_16_bits(patch, H100, Figure(1978.9, sparse=1978.9))


@fault("spec.a100-312 spec.gpt4 spec.halved-in-practice")
def the_a100s_row_holds_the_sparse_peak(patch):
    give_16_bits(patch, A100, Figure(624, sparse=624))
