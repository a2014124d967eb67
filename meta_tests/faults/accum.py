"""Faults in how torch accumulates gradients, in what a micro-batch keeps, and in its formulas."""

from meta_tests.faults import fault
from meta_tests.faults._kernels import FP32, last_forgotten, wrong


@fault("accum.memory", instead_of="torch.nn.Linear.forward")
def a_large_layer_hides_a_copy_of_its_input(forward, self, x):
    self.hidden = x.clone() if x.numel() > 65_536 else None
    return forward(self, x)


EQUIVALENT, FP32_NEEDED = "accum.equivalent", "accum.fp32-needed"
wrong("a_large_sum_forgets_its_last_column", EQUIVALENT, "add_", FP32, last_forgotten, above=4096)
