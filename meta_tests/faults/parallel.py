"""Faults in what devices that train together are said to send, hold and wait for."""

from accounting import parallel
from meta_tests.faults import fault, wrong_value


@fault("parallel.all-reduce")
def an_all_reduce_goes_around_once(patch):
    patch.setitem(parallel.PASSES, "all-reduce", 1)


@fault("parallel.experts")
def an_exchange_sends_what_stays_at_home_too(patch):
    patch.setitem(parallel.PASSES, "all-to-all", 2)


wrong_value(
    "the_bubble_counts_every_stage",
    "parallel.bubble",
    target="accounting.parallel.Parallelism.bubble",
    value=property(lambda of: of.pipeline / of.micro_batches),
)


wrong_value(
    "norms_are_divided_as_matrices_are",
    "parallel.tensor",
    target="accounting.parallel.REPLICATED",
    value=(),
)
