"""Faults that the claims about torch.compile must notice."""

import torch

from meta_tests.faults import fault
from test_claims.oracles.compiled import fresh

COMPILE = torch.compile


@fault(
    "compile.once-then-reuse",
    "compile.fuses",
    "compile.better-than-hand",
    "compile.best-order",
    "compile.mixed-precision",
    "compile.same-values",
)
def torch_compile_gives_its_argument_back(patch):
    patch.setattr(torch, "compile", lambda function, **_: function)


@fault("compile.once-then-reuse")
def every_call_is_compiled_anew(patch):
    def forgetful(function, **options):
        def call(*arguments):
            torch.compiler.reset()
            return COMPILE(function, **options)(*arguments)

        return call

    patch.setattr(torch, "compile", forgetful)


@fault("compile.once-then-reuse")
def no_shape_is_ever_compiled_for_any_size(patch):
    patch.setattr(torch, "compile", lambda function, **options: COMPILE(function, **{"dynamic": False, **options}))


@fault("compile.once-then-reuse")
def the_first_shape_is_compiled_for_any_size_already(patch):
    patch.setattr(torch, "compile", lambda function, **options: COMPILE(function, **{**options, "dynamic": True}))


@fault("compile.fuses", "compile.same-values")
def graphs_are_captured_but_no_code_is_generated(patch):
    patch.setattr(torch, "compile", lambda function, backend="aot_eager", **_: COMPILE(function, backend=backend))


@fault("compile.best-order", "compile.better-than-hand")
def the_cheapest_order_is_found(patch):
    def from_the_right(a, b, c):
        return a @ (b @ c)

    def ordering(function, **options):
        chained = "chain" in getattr(function, "__name__", "")
        return COMPILE(fresh(from_the_right) if chained else function, **options)

    patch.setattr(torch, "compile", ordering)


@fault("compile.mixed-precision")
def compiled_products_run_in_bf16(patch):
    def lowered(function, **options):
        compiled = COMPILE(function, **options)

        def call(*arguments):
            with torch.autocast(arguments[0].device.type, torch.bfloat16):
                return compiled(*arguments)

        return call

    patch.setattr(torch, "compile", lowered)


@fault("compile.same-values")
def compiled_functions_round_their_results_to_16_bits(patch):
    def rounding(function, **options):
        compiled = COMPILE(function, **options)

        def call(*arguments):
            result = compiled(*arguments)
            exact = isinstance(result, torch.Tensor) and result.dtype == torch.float32
            return result.half().float() if exact else result

        return call

    patch.setattr(torch, "compile", rounding)
