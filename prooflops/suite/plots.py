"""The plots of the report. matplotlib is imported only when there is something to draw."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def roofline_svg(benchmarks: Sequence[dict[str, Any]], title: str) -> str | None:
    """The products and kernels of a run over their arithmetic intensity, under the roofs measured; None if none ran.

    Roofs: each dtype's ceiling, and the bandwidths of the traffic that reads most and least. A point far below both is
    bound by something else than arithmetic or memory: launches, a shape the library handles badly, another process.
    Streams through the memory and the caches are not drawn: they have the bandwidths as their own figures.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    ceilings: dict[str, float] = {}
    slopes: dict[float, float] = {}
    for bench in benchmarks:
        info = bench.get("extra_info", {})
        rate = info.get("flop_per_s") or info.get("op_per_s")
        if info.get("roof_bytes_per_s"):
            reads = round(info["read_share"], 2)
            slopes[reads] = max(slopes.get(reads, 0.0), info["roof_bytes_per_s"])
        if rate and not info.get("memory_level") and all(info.get(key) for key in ("dtype", "flops", "bytes")):
            points.setdefault(info["dtype"], []).append((info["flops"] / info["bytes"], rate))
            ceilings[info["dtype"]] = max(ceilings.get(info["dtype"], 0.0), info.get("ceiling_flop_per_s") or 0.0)
    if not points:
        return None

    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for number, (dtype, pairs) in enumerate(points.items()):
        colour = f"C{number}"
        intensities, rates = zip(*pairs, strict=True)
        axes.scatter(intensities, rates, s=18, color=colour, label=dtype, zorder=3)
        if ceilings[dtype]:
            axes.axhline(ceilings[dtype], color=colour, linewidth=1, linestyle="--")
    _draw_slopes(axes, slopes, [place for pairs in points.values() for place, _ in pairs], max(ceilings.values()))
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel("arithmetic intensity, FLOPs per byte of operands and result")
    axes.set_ylabel("FLOP/s (int8: OP/s)")
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(title="dashed: own ceilings", fontsize="small")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()


def _draw_slopes(axes: Any, slopes: dict[float, float], intensities: Sequence[float], ceiling: float) -> None:
    """The measured bandwidths as roofs: those of the largest and of the smallest share of reads, up to the ceiling."""
    left = min(intensities) / 2
    for reads, style in zip(sorted({max(slopes), min(slopes)}) if slopes else (), ("-", "-."), strict=False):
        bandwidth = slopes[reads]
        right = max(ceiling / bandwidth, 2 * left) if ceiling else 2 * max(intensities)
        axes.plot(
            [left, right],
            [left * bandwidth, right * bandwidth],
            color="0.4",
            linewidth=1,
            linestyle=style,
            label=f"{bandwidth / 1e9:.3g} GB/s, {reads:.0%} reads",
        )
