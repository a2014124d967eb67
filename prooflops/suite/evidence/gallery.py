"""The gallery: one table of the runs that a folder keeps, with a row per machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from prooflops import timing
from prooflops.suite.evidence import page
from prooflops.suite.evidence.file import EvidenceFile
from prooflops.suite.page import delivery
from prooflops.suite.page.measurement import Measurement
from prooflops.suite.page.run_report import RunReport
from prooflops.suite.page.tables import best_products, memory_stream
from prooflops.suite.peaks import share_of_peak
from prooflops_gate.console.tables import markdown_table
from prooflops_gate.history.records import write_atomically

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8_e4m3")
# Benchmarks of whole training steps.
STEPS = ("step", "mfu")
HEAD = """# Gallery

Each row is one run of the suite on one machine. Columns of dtypes have the rate of the fastest
matrix product in TFLOP/s (int8: TOP/s). Its share of the dense peak follows, if known. The memory
column has the fastest stream in GB/s. The last column has the best training step of a transformer.

**Send yours.** In a clone, repeat `make evidence`, nine minutes a call, until it prints `complete:`
and a path. `python -m prooflops.suite.evidence --check results/NAME.jsonl` says whether the gallery
accepts the file. Open a pull request with this file alone, without what else `make evidence`
changed in `results/`. After the merge, a maintainer writes that by `make evidence ARGS=--index`.
"""
APART = f"""
## Older measuring methods, and partial runs

Today's [method](../docs/explanation/measuring.md#history-of-the-method) is {timing.METHOD}. These
runs used an older one, or are partial. Their rates are not compared with those of today's method.

"""
Run = tuple[EvidenceFile, RunReport]


def write_gallery(folder: Path) -> None:
    """Writes the pages of a folder's files, and its README.md with a row per file."""
    files = [EvidenceFile(path) for path in sorted(folder.glob("*.jsonl"))]
    runs = [(file, page.write(file)) for file in files if file.plan]
    write_atomically(folder / "README.md", gallery(runs))


def gallery(runs: Sequence[Run]) -> str:
    """The text of the gallery: accepted runs, then the runs that it lists apart."""
    taken = [run for run in runs if not why_refused(run[1])]
    apart = [run for run in runs if run not in taken]
    text = f"{HEAD}\n{table(taken)}"
    if apart:
        text += APART + table(apart)
    return text


def why_refused(report: RunReport) -> str:
    """Why the gallery lists a run apart; empty for a whole run by today's measuring method."""
    if report.partial:
        return f"the run is partial: {report.partial}"
    if report.methods != (str(timing.METHOD),):
        found = ", ".join(report.methods) or "an unknown one"
        return f"it was measured by method {found}, and today's method is {timing.METHOD}"
    return ""


def table(runs: Sequence[Run]) -> str:
    """One row per run."""
    if not runs:
        return f"No run by today's measuring method ({timing.METHOD}) exists yet: send the first.\n"
    best = [best_products(report.benchmarks) for _, report in runs]
    dtypes = [dtype for dtype in DTYPES if any(dtype in each for each in best)]
    rows = [["device", "torch", "date", "pace", "method", "verdict", *dtypes, "memory", "MFU"]]
    for (file, report), products in zip(runs, best, strict=True):
        name, torch = report.machine["name"], report.machine["torch"]
        row = [f"[{name}]({file.path.stem}.md)", str(torch), report.date[:10], report.pace]
        row += [
            ", ".join(report.methods),
            delivery.answer(report.figures, report.benchmarks, report.unfinished)[0].word,
        ]
        row += [rate(products.get(dtype), 1e12, report) for dtype in dtypes]
        row += [rate(memory_stream(report.benchmarks), 1e9, report), best_step(report)]
        rows.append(row)
    return "\n".join([*markdown_table(rows), ""])


def rate(bench: Measurement | None, unit: float, report: RunReport) -> str:
    """A rate in units of `unit` per second, and its share of the dense peak."""
    if bench is None or bench.rate is None:
        return "-"
    number = bench.rate[0] / unit
    share = share_of_peak(bench.info, report.peaks)
    digits = ".3g" if number < 100 else ".0f"
    return f"{number:{digits}}" + f" ({share})" * share[:1].isdigit()


def best_step(report: RunReport) -> str:
    """The highest MFU of a training step of a transformer, and which step that is."""
    steps = [each for each in report.benchmarks if each.family in STEPS and each.has("mfu")]
    steps = [each for each in steps if not each.case.startswith("deep-linear")]
    best = max(steps, key=lambda each: each.number("mfu"), default=None)
    return f"{100 * best.number('mfu'):.0f}% ({best.case})" if best else "-"
