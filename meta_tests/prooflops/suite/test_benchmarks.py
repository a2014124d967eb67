"""Runs of the suite's benchmarks: by the gate, and with a line of progress."""

import shutil

from meta_tests.prooflops_gate import forked_processes

# What opens a device, were the parent of a gate run to call it.
PARENT = """
import os
if "PROOFLOPS_RECORD_TO" not in os.environ:
    from prooflops import timing
    from prooflops.machine import device
    def opened(*_):
        raise AssertionError("the parent opened the device")
    device.headline = device.fingerprint = device.unmet = timing.clock = opened
"""


# A process of the suite takes seconds to import torch.
FORKING = """
import os
from forked_processes import fork_processes
if "PROOFLOPS_RECORD_TO" not in os.environ:
    fork_processes()
"""


def test_the_parent_of_a_gate_run_asks_the_device_nothing_and_writes_no_report(house):
    shutil.copy(forked_processes.__file__, house.root)
    (house.root / "forking.py").write_text(FORKING)
    with open(house.root / "conftest.py", "a", encoding="utf-8") as conftest:
        conftest.write(PARENT)
    house.test(
        "def test_time(benchmark):\n    benchmark.pedantic(sum, args=([1, 2],), rounds=3)\n",
        "bench/test_b.py",
    )
    done = house.run(
        "bench", "-p", "forking", "--gate-noise-floor", "--gate-replicates", "2", "--quick"
    )
    assert done.code == 0
    assert "2 pairs in " in done.output
    assert not (house.root / "reports").exists()


def test_the_line_disturbs_neither_the_dots_nor_the_captured_output(house):
    house.test(
        "def test_long(progress):\n"
        "    print('captured before')\n"
        "    progress('searching', 60)\n"
        "    print('captured after')\n"
        "    assert False, 'BELOW FLOOR: slow'\n\n"
        "def test_short(progress):\n    progress('not to be seen')\n",
        file="bench/test_demo.py",
    )
    child = house.run("bench", "-p", "no:randomly")
    lines = child.output.splitlines()
    assert "not to be seen" not in child.output
    assert "BELOW FLOOR bench/test_demo.py::test_long - " in child.output
    captured = lines.index("captured before")
    assert lines[captured : captured + 2] == ["captured before", "captured after"]
    announced = lines.index("  test_long: searching, about 60 s")
    assert lines[announced + 1] == "F"
    assert lines[announced + 2].startswith("bench/test_demo.py .")
