"""Faults that the claims about torch.compile must notice."""

import functools

import torch

from meta_tests.faults import fault
from test_claims.oracles.dispatched import fresh


@fault("compile.once-then-reuse", instead_of="torch.compile")
def every_call_is_compiled_anew(original, function, **options):
    def call(*arguments):
        torch.compiler.reset()
        return original(function, **options)(*arguments)

    return call


@fault("compile.best-order compile.better-than-hand", instead_of="torch.compile")
def the_cheapest_order_is_found(original, function, **options):
    def from_the_right(*matrices):
        return functools.reduce(lambda product, matrix: matrix @ product, reversed(matrices))

    def both_from_the_right(*matrices):
        return from_the_right(*matrices[:3]), from_the_right(*matrices[3:])

    name = getattr(function, "__name__", "")
    cheapest = both_from_the_right if name.startswith("chains") else from_the_right
    return original(fresh(cheapest) if "chain" in name else function, **options)


@fault("compile.mixed-precision", instead_of="torch.compile")
def compiled_products_run_in_bf16(original, function, **options):
    compiled = original(function, **options)

    def call(*arguments):
        with torch.autocast(arguments[0].device.type, torch.bfloat16):
            return compiled(*arguments)

    return call


@fault("compile.fuses compile.same-values", instead_of="torch.compile")
def graphs_are_captured_but_no_code_is_generated(original, function, backend="aot_eager", **_):
    return original(function, backend=backend)
