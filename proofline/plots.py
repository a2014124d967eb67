"""The plots of the report. matplotlib is imported only when there is something to draw."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def roofline_svg(benchmarks: Sequence[dict[str, Any]], title: str) -> str | None:
    """The products of a run over their arithmetic intensity, each dtype under its measured ceiling; None if none ran.

    A point far below its ceiling at high intensity is bound by something else than arithmetic or memory: launches,
    a shape the library handles badly, or another process.
    """
    points: dict[str, list[tuple[float, float]]] = {}
    ceilings: dict[str, float] = {}
    for bench in benchmarks:
        info = bench.get("extra_info", {})
        rate = info.get("flop_per_s") or info.get("op_per_s")
        if rate and all(info.get(key) for key in ("dtype", "flops", "bytes")):
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
    axes.set(xscale="log", yscale="log", title=title)
    axes.set_xlabel("arithmetic intensity, FLOPs per byte of operands and result")
    axes.set_ylabel("FLOP/s (int8: OP/s)")
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(title="dashed: own ceiling", fontsize="small")
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()
