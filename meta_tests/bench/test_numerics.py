"""What products keep, measured on stand-ins for units of a known width."""

from __future__ import annotations

import pytest
import torch

from accounting.formats import format_of
from bench.numerics import kept_by_products, sum_bits

CPU = torch.device("cpu")


def to_bits(x, bits, rounding):
    fraction, exponent = torch.frexp(x)
    return torch.ldexp(rounding(fraction * 2.0**bits) / 2.0**bits, exponent)


@pytest.mark.parametrize("apart", [1, 256])
@pytest.mark.parametrize("rounding", [torch.round, torch.trunc])
@pytest.mark.parametrize("bits", [11, 12, 14, 22, 24])
def test_the_bits_of_a_sum_are_those_of_the_accumulator(monkeypatch, bits, rounding, apart):
    def mm(a, b, **_):
        found = torch.zeros(a.shape[0], 1, dtype=torch.float64)
        for term in (a[:, :, None].double() * b[None, :, :1].double()).unbind(1):
            found = to_bits(found + term, bits, rounding)
        return found.expand(-1, b.shape[1])

    monkeypatch.setattr(torch, "mm", mm)
    got = sum_bits("fp16", apart, CPU)
    assert got == bits, f"an accumulator of {bits} bits was measured as {got}"


def test_products_of_fp4_are_examined_where_a_device_multiplies_them(monkeypatch):
    """No CPU does, so a stand-in unpacks the operands: the first of two in the lower half of the
    byte.
    """
    values = torch.tensor([format_of("fp4_e2m1").decode(pattern) for pattern in range(16)])

    def unpacked(packed):
        codes = packed.view(torch.uint8).long()
        return values[torch.stack([codes & 15, codes >> 4], dim=-1)].flatten(1)

    def scaled_mm(a, b, *scales, out_dtype):
        assert [scale.numel() for scale in scales] == [128 * 4, 128 * 4], (
            "a scale for 16 elements, padded to 128 rows of 4"
        )
        return (unpacked(a) @ unpacked(b.t()).t()).to(out_dtype)

    monkeypatch.setattr(torch, "_scaled_mm", scaled_mm)
    kept = kept_by_products("fp4_e2m1", CPU)
    assert kept == {"subnormal_operands": "kept", "fraction_bits": 1, "label": "subnormals kept"}
