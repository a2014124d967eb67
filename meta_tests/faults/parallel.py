"""Faults in what devices that train together are said to send, hold and wait for."""

from accounting import parallel
from meta_tests.faults import faults, replaced

# fmt: off
faults(
    ("an_all_reduce_goes_around_once", "parallel.all-reduce",
     lambda patch: patch.setitem(parallel.PASSES, "all-reduce", 1)),
    ("an_exchange_sends_what_stays_at_home_too", "parallel.experts",
     lambda patch: patch.setitem(parallel.PASSES, "all-to-all", 2)),
    ("the_bubble_counts_every_stage", "parallel.bubble",
     replaced("accounting.parallel.Parallelism.bubble", property(lambda of: of.pipeline / of.micro_batches))),
    ("norms_are_divided_as_matrices_are", "parallel.tensor", replaced("accounting.parallel.REPLICATED", ())),
)
# fmt: on
