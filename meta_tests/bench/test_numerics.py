"""What products keep, measured on a stand-in for a unit of fp4."""

import torch

from accounting.formats import format_of
from bench.numerics import kept_by_products

CPU = torch.device("cpu")


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
