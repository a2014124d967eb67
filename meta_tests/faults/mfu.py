"""Faults in the formula of utilisation, in the peak table, in the clock, and in what counts."""

import time
from dataclasses import replace

from accounting.devices import ACCELERATORS
from meta_tests.faults import fault, wrong_value


@fault("mfu.never-near-one mfu.target")
def a_published_run_slips_by_a_digit(patch):
    from test_claims.oracles import published

    patch.setattr(
        published,
        "LARGE_RUNS",
        {name: (95.0, source) for name, (_, source) in published.LARGE_RUNS.items()},
    )


@fault("mfu.benchmark-yourself", instead_of="torch.mm")
def large_products_are_as_inefficient_as_small_ones(mm, a, b, out=None):
    if len(a) >= 64:
        time.sleep(0.02)
    return mm(a, b, out=out)


@fault("mfu.definition", instead_of="accounting.roofline.mfu")
def mfu_forgets_the_seconds(mfu, flops, seconds, peak, count=1, devices=1):
    return mfu(flops, 1.0, peak, devices)


@fault("mfu.hfu", instead_of="accounting.roofline.hfu")
def recomputing_a_part_counts_as_a_whole_forward_pass(hfu, model, again, *rest):
    return hfu(model, model // 3 if again else 0, *rest)


@fault("mfu.term-for-kernel", instead_of="accounting.roofline.hfu")
def hfu_leaves_out_recomputation_and_counts_a_forward_instead(hfu, model, again, *rest):
    return hfu(model, model // 2, *rest)


wrong_value(
    "a_median_is_the_last_round",
    "mfu.recipe",
    target="prooflops.timing.Timing.median_s",
    value=property(lambda timing: timing.times_s[-1]),
)


@fault("mfu.low-causes data.pipeline-bottleneck", instead_of="time.sleep")
def sleeping_takes_no_time(_, seconds):
    return None


@fault("mfu.higher-if-matmul", instead_of="torch.nn.functional.layer_norm")
def a_norm_drops_all_rows_but_one(_, x, shape):
    return x[:1]


@fault("mfu.credits-avoided", instead_of="accounting.attention.attention_flops")
def attention_counts_only_the_pairs_that_are_needed(attention_flops, shape):
    return attention_flops(replace(shape, pairs="causal"))


@fault("mfu.fp32-example", instead_of="accounting.devices.peak_flop_per_s")
def fp32_has_the_peak_of_tf32(dense, device, dtype, **rest):
    return dense(device, dtype.replace("fp32", "tf32"), **rest)


@fault("mfu.bf16-example")
def an_h100_has_a_tenth_more_units(patch):
    patch.setitem(
        ACCELERATORS, "H100 SXM5 80GB", ACCELERATORS["H100 SXM5 80GB"]._replace(units=145)
    )
