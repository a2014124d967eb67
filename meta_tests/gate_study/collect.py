"""Takes the study's data: one fresh process after another, each running all kernels once, one line of JSON per process.

    python -m meta_tests.gate_study.collect --session quiet --processes 150
        nothing else on the machine
    python -m meta_tests.gate_study.collect --session loaded --processes 150 --load half
        another process competes, on and off
    python -m meta_tests.gate_study.collect --session third --processes 150 --load third
        a third party's bursts, at random
    python -m meta_tests.gate_study.collect --session planted --quads 12 --planted
        ABBA: 5 % and 10 % more work

A line is written after its process has ended, so a kill at any moment loses at most that process. `python -m
meta_tests.gate_study --pack` packs the lines into data/runs.csv.gz, which is what is committed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from prooflops.gate.child_plugin import OPTIONS
from prooflops.gate.process_plan import FIRST

DATA = Path(__file__).parent / "data"
PLANTED = (0.05, 0.10)
LOADS = ("none", "half", "third")


def steal_and_total_ticks() -> tuple[int, int]:
    """Ticks that the hypervisor took from this machine, and all ticks, since it started; zeros without /proc."""
    try:
        ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    except OSError:
        return 0, 0
    return ticks[7], sum(ticks)


def process(extra: float = 0.0) -> dict[str, Any]:
    """One fresh process: the times of its kernels, and its share of the machine."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run.json"
        command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(Path(__file__).parent)]
        command += ["--noconftest", "-p", "pytest_benchmark.plugin", "-p", "no:cacheprovider", "-q"]
        command += [f"{option}={FIRST[''][name]}" for name, option in OPTIONS.items()]  # the gate's pace
        command += [f"--benchmark-json={out}", str(Path(__file__).with_name("kernels.py"))]
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "STUDY_EXTRA": str(extra)}
        started, steal, usage = time.time(), steal_and_total_ticks(), resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wall_s = time.perf_counter() - start
        steal_after, after = steal_and_total_ticks(), resource.getrusage(resource.RUSAGE_CHILDREN)
        record = json.loads(out.read_text())
    kernels = {}
    for benchmark in record["benchmarks"]:
        times, facts = np.array(benchmark["stats"]["data"]), benchmark["extra_info"]
        low = np.quantile(times, [0, 0.10, 0.25, 0.50])
        kernels[benchmark["name"].split("[")[1].rstrip("]")] = {
            "n": len(times),
            **dict(zip(("min", "p10", "p25", "median"), map(float, low), strict=True)),
            "mean": float(times.mean()),
            "sd": float(times.std(ddof=1)),
            "cpu_over_wall": facts["cpu_s"] / facts["wall_s"],
            "involuntary_per_s": facts["involuntary_switches"] / facts["wall_s"],
        }
    return {
        "started": round(started, 2),
        "extra": extra,
        "wall_s": round(wall_s, 3),
        "load": os.getloadavg()[0],
        "steal": (steal_after[0] - steal[0]) / max(1, steal_after[1] - steal[1]),
        "cpu_over_wall": (after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime) / wall_s,
        "involuntary_per_s": (after.ru_nivcsw - usage.ru_nivcsw) / wall_s,
        "kernels": kernels,
    }


# Each ends by itself, so that no load remains if its parent was killed.
MATMULS = "import time, torch\na = torch.randn(700, 700)\nend = time.time() + {}\nwhile time.time() < end: a @ a"
SUMS = "import time\nend = time.time() + {}\nwhile time.time() < end: sum(range(1000))"


@contextmanager
def load(kind: str) -> Iterator[None]:
    """Another process that loads the machine within the block.

    half: torch matmuls on all cores, for 40 s of every 80 s. third: a neighbour's bursts on one core, of 0.2 to 8 s
    with pauses of 1 to 20 s between them, both log-uniform.
    """
    if kind == "none":
        yield
        return
    neighbour = subprocess.Popen([sys.executable, "-m", "meta_tests.gate_study.collect", "--be-the-load", kind])
    try:
        yield
    finally:
        neighbour.terminate()
        neighbour.wait()


def be_the_load(kind: str) -> None:
    """Loads the machine until its parent has exited."""
    parent = os.getppid()
    draw = random.Random(6)
    while os.getppid() == parent:
        if kind == "half":
            script, busy_s, pause_s = MATMULS, 40.0, 40.0
        else:
            script, busy_s, pause_s = SUMS, 0.2 * 40 ** draw.random(), 20 ** draw.random()
        subprocess.run([sys.executable, "-c", script.format(busy_s)], check=True)
        time.sleep(pause_s)


def schedule(options: argparse.Namespace) -> Iterator[float]:
    """The extra work of each process, in order."""
    if not options.planted:
        yield from [0.0] * options.processes
        return
    for _ in range(options.quads):
        for extra in PLANTED:
            yield from (0.0, extra, extra, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--session", help="label of the session; a known one is continued")
    parser.add_argument("--processes", type=int, default=150)
    parser.add_argument("--load", choices=LOADS, default="none")
    parser.add_argument("--planted", action="store_true", help="plain against 5 %% and 10 %% more work, in ABBA quads")
    parser.add_argument("--quads", type=int, default=12)
    parser.add_argument("--until", type=float, default=float("inf"), help="stop at this time (seconds since 1970)")
    parser.add_argument("--be-the-load", choices=LOADS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be_the_load:
        be_the_load(options.be_the_load)
        return
    if not options.session or not options.session.replace("-", "").isalnum():
        parser.error("--session NAME is required: letters, digits and hyphens")
    DATA.mkdir(exist_ok=True)
    with load(options.load), open(DATA / f"{options.session}.jsonl", "a") as lines:
        for index, extra in enumerate(schedule(options)):
            if time.time() > options.until:
                break
            try:
                run = process(extra)
            except subprocess.CalledProcessError as failure:  # printed, and the session goes on: it is long
                print(f"process {index} exited with {failure.returncode}", file=sys.stderr, flush=True)
                continue
            lines.write(json.dumps({"session": options.session, "load_kind": options.load, **run}) + "\n")
            lines.flush()
            if index % 10 == 0:
                print(f"{options.session}: {index + 1} processes, the last in {run['wall_s']:.1f} s", flush=True)


if __name__ == "__main__":
    main()
