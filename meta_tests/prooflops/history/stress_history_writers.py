"""Kills writers of a history at random moments and looks for what was lost.

    python -m meta_tests.prooflops.history.stress_history_writers [KILLS]

A writer says before each record that it begins, and after it that it is stored. Whatever happens to it, all that it
said is there afterwards, and every other file is a whole record too. Of each two writers one is killed while it stores
a record, the other at any moment.
"""

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prooflops.history import records

ROOT = Path(__file__).resolve().parents[3]
FINGERPRINT = {"name": "a"}
BEGINS = "begins"
# Two writers a round, each storing a record, naming it as a baseline and reading all: the three ways to write. The
# record is mostly text, so that storing it is mostly writing.
WRITER = """
import sys
from pathlib import Path
from prooflops.history import records
folder, size = Path(sys.argv[1]), int(sys.argv[2])
stats = {"min": 1.0, "data": [1.0] * size}
record = {"benchmarks": [{"fullname": "a", "stats": stats}], "padding": "x" * 4_000_000}
record |= {"prooflops": {"fingerprint": {"name": "a"}}}
while True:
    print("begins", flush=True)
    path = records.append(folder, record, {"name": "a"})
    print(path.name, flush=True)
    records.store_baseline("main", [path])
    records.summaries(folder, ["flops"])
"""


def kill_writers(folder: Path, kills: int, seed: int = 0, size: int = 2_000) -> dict[str, int]:
    """Kills so many writers, two at work at a time, and returns what is there. Raises AssertionError for a loss."""
    moment = random.Random(seed)
    said: set[str] = set()
    done = 0
    while done < kills:
        command = [sys.executable, "-c", WRITER, str(folder), str(size)]
        writers = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        storing, anywhere = writers
        lines, took = until_it_stores_again(storing)
        time.sleep(moment.uniform(0, took))
        storing.kill()
        time.sleep(moment.uniform(0, 3 * took))
        anywhere.kill()
        done += 2
        lines += storing.communicate()[0] + "\n" + anywhere.communicate()[0]
        # A last line without its end was cut short, and is the name of no record.
        said |= {name for name in lines.split("\n") if name.endswith(".json")}
    return check_history(folder, said) | {"kills": done}


def until_it_stores_again(writer: subprocess.Popen[str]) -> tuple[str, float]:
    """The lines of a writer until it began its second record, and the seconds that storing the first one took."""
    assert writer.stdout is not None
    lines = [writer.stdout.readline()]
    began = time.perf_counter()
    lines.append(writer.stdout.readline())
    took = time.perf_counter() - began
    while lines[-1].strip() != BEGINS:
        lines.append(writer.stdout.readline())
        assert lines[-1], f"a writer ended by itself after {lines}"
    return "".join(lines), took


def check_history(folder: Path, said: set[str]) -> dict[str, int]:
    """Reads the whole history. Raises AssertionError for what is lost or broken."""
    found = dict(records.records(folder))
    broken = [str(each) for each in found.values() if isinstance(each, records.UnreadableRecord)]
    assert not broken, f"{len(broken)} records are broken: {broken[:3]}"
    lost = said - {path.name for path in found}
    assert not lost, f"{len(lost)} records were said to be stored and are gone: {sorted(lost)[:3]}"
    inner = folder / records.fingerprint_id(FINGERPRINT)
    (named,) = records.baseline(folder, "main", inner.name, ["flops"])
    assert named.path.name in {path.name for path in found}
    unfinished = len(list(inner.rglob("*.part")))
    return {"records": len(found), "said": len(said), "unfinished": unfinished}


def main() -> None:
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory() as folder:
        found = kill_writers(Path(folder), kills, seed=time.time_ns())
    print(
        f"{found['kills']} kills: {found['records']} whole records, {found['said']} of them said to be stored, "
        f"none lost or broken; {found['unfinished']} writes were cut short"
    )


if __name__ == "__main__":
    main()
