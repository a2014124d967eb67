"""The examples run as they stand, and say what a user may expect of them."""

import re

import pytest

from examples import napkin, own_kernel


def test_the_napkin_adds_up() -> None:
    text = "\n".join(napkin.lines())
    found = {line[:20].strip(): line[20:] for line in text.splitlines()}
    assert found["parameters"] == "1.34 billion"
    assert "16 bytes a parameter" in found["weights and state"]
    days, price = (float(re.search(r"[\d.,]+", found[name])[0].replace(",", "")) for name in ("training", "price"))  # type: ignore[index]
    assert price == pytest.approx(days * 24 * napkin.COUNT * napkin.USD_PER_HOUR, rel=0.02)


def test_a_kernel_is_placed_under_the_measured_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_kernel, "ROWS", 64)
    monkeypatch.setattr(own_kernel, "SIZE", 64)
    roofs, place, share = own_kernel.lines()
    assert re.fullmatch(r"roofs: .+ GB/s and .+ GFLOP/s, which meet at .+ FLOP/B", roofs)
    assert place.startswith("the kernel does 0.417 FLOP/B")
    assert share.endswith("%")
