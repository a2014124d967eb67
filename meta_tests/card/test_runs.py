"""Claims and benchmarks on the simulated card: a sample of those that need one, and all of them
with `make prove`.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from meta_tests.card.card import SHORTEST_KERNEL_S, Card
from meta_tests.conftest import (
    ROOT,
    SUITE,
    child_environment,
    fork_pytest,
    new_house,
    recorded,
)

CANNOT_SHOW = tuple(recorded("simulated_card.txt"))
SAMPLE = {
    "test_claims/test_device.py": "8192_bytes or empty_cache or waited_for or tiny_operation",
    "test_claims/test_storage.py": "making_views_allocates or contiguous_copies",
}
# Collectives need several ranks, a user's model has a test below, and torch.compile compiles
# nothing while a dispatch mode is active.
ELSEWHERE = {"test_collectives.py", "test_user_model.py", "test_compile.py"}
ELSEWHERE |= {"test_mfu.py", "test_mfu_recipe.py"}
FILES = sorted(
    f"{room}/{path.name}"
    for room in ("bench", "test_claims")
    for path in (ROOT / room).glob("test_*.py")
)
# Products that a CPU has the time for.
SMALL = (
    "--card-memory=1024",
    "-k",
    "not 2048 and not 4096 and not 8192 and not gpt2 and not llama3",
)


def run_on_card(folder, *arguments):
    options = [
        "-p",
        "meta_tests.card.plugin",
        "--device=cuda",
        "--quick",
        "-rfEp",
        f"--report={folder}",
    ]
    # The history of this clone is what its owner measured.
    elsewhere = str(folder / "history")
    return fork_pytest(
        ROOT, *options, *arguments, imported=SUITE, path=ROOT, PROOFLOPS_HISTORY=elsewhere
    )


def assert_holds(run, least=1):
    """All tests pass but those that the card cannot show."""
    red = re.findall(
        r"^(?:FAILED|ERROR) \S*?/?([^/\s]+\.py::.+?)(?: - .*)?$", run.output, re.MULTILINE
    )
    found = [test for test in red if not test.startswith(CANNOT_SHOW)]
    assert not found
    assert len(re.findall("^PASSED ", run.output, re.MULTILINE)) >= least


def test_claims_that_need_a_card_hold_on_the_simulated_one(tmp_path):
    assert_holds(run_on_card(tmp_path, *SAMPLE, "-k", " or ".join(SAMPLE.values())), least=6)


@pytest.mark.prove
@pytest.mark.parametrize("file", [file for file in FILES if Path(file).name not in ELSEWHERE])
def test_a_file_holds_on_the_simulated_card(tmp_path, file):
    assert_holds(run_on_card(tmp_path, file, *(SMALL if file.startswith("bench") else ())), least=0)


@pytest.mark.prove
def test_a_users_model_is_measured_on_the_simulated_card(tmp_path):
    model = "--model=meta_tests/user_models/gpt.py:factory"
    assert_holds(run_on_card(tmp_path, model, "bench/test_user_model.py"), least=1)


def test_a_card_at_a_tenth_of_its_bf16_peak_is_red(tmp_path):
    ceilings = [
        f"bench/test_matmul.py::test_ceiling[{dtype}-sustainable]" for dtype in ("bf16", "fp16")
    ]
    # A square is no row of the floor, however well or badly it does.
    square = "bench/test_matmul.py::test_matmul[bf16-square-1024]"
    # Products of the simulated pace are short: the shortest kernel takes a tenth of their time.
    shares = "--card-share=bf16=0.1", "--card-share=fp16=1.1"
    run = run_on_card(tmp_path, *shares, square, *ceilings, "bench/test_launch.py")
    assert run.code == 1
    assert re.search(
        r"^BELOW FLOOR +bf16 .* % of the dense peak, .*; floor: at least 63 % .* by ceiling",
        run.output,
        re.MULTILINE,
    )
    again = r"^measure the figures below .*: pytest .* '\S*ceiling\[bf16-sustainable\]'$"
    assert re.search(again, run.output, re.MULTILINE)
    assert re.search(
        r"^BELOW FLOOR: bf16 \(.*; floor missed by 1 of \d figures$", run.output, re.MULTILINE
    )
    assert re.search(r"^delivers +fp16 ", run.output, re.MULTILINE)
    assert re.search(r"^delivers +kernel launch +4.4\d µs", run.output, re.MULTILINE)


RATED = {
    "test_matmul[fp32-square-1024]": ("fp32", "flop_per_s"),
    "test_matmul[bf16-square-1024]": ("bf16", "flop_per_s"),
    "test_matmul[int8-square-1024]": ("int8", "op_per_s"),
    "test_stream[memory-copy]": ("memory", "bytes_per_s"),
    "test_copy[to-device-pinned-blocking]": ("link", "bytes_per_s"),
}


@pytest.mark.parametrize(
    "shares", [pytest.param({}, marks=pytest.mark.prove), {"bf16": 0.5, "memory": 0.8, "link": 0.5}]
)
def test_benchmarks_measure_the_rates_that_the_card_is_set_to(tmp_path, shares):
    """To within a kernel of the shortest time: int8 has two kernels."""
    rates = Card().rates
    options = [f"--card-share={name}={share}" for name, share in shares.items()]
    for name, share in shares.items():
        rates.lower(name, share)
    names = " or ".join(["test_overlap", *(name.partition("[")[2].rstrip("]") for name in RATED)])
    files = ("bench/test_matmul.py", "bench/test_bandwidth.py", "bench/test_transfer.py")
    record = tmp_path / "record.json"
    floors = ["--floor=memory=0.1", "--floor=link=0.1", "--floor=bf16=0.1"]
    run = run_on_card(
        tmp_path,
        *options,
        *floors,
        *files,
        "-k",
        names,
        f"--benchmark-json={record}",
        "--card-memory=1024",
    )
    assert_holds(run, least=len(RATED))
    rows = {row["name"]: row for row in json.loads(record.read_text("utf-8"))["benchmarks"]}
    for way in ("to-device", "to-host"):
        overlap = rows[f"test_overlap[{way}]"]["extra_info"]
        assert overlap["compute_s"] == pytest.approx(overlap["copy_s"], rel=0.1), (
            "which is hidden behind the other?"
        )
    for name, (of, figure) in RATED.items():
        info = rows[name]["extra_info"]
        seconds = rows[name]["stats"]["median"]
        set_to = {"memory": rates.memory_bytes_per_s, "link": rates.link_bytes_per_s}.get(
            of
        ) or rates.flop_per_s[of]
        work = info[figure] * seconds
        assert seconds == pytest.approx(
            work / set_to + SHORTEST_KERNEL_S, rel=0.05, abs=1.1 * SHORTEST_KERNEL_S
        ), name


@pytest.mark.prove
def test_the_energy_of_a_token_is_that_of_the_steps_alone(tmp_path):
    """Untimed ones included, each of which keeps the card busy before a round."""
    record = tmp_path / "record.json"
    # Short rounds must take enough energy to be read.
    watts = 1e6 * Card().rates.joules_per_s
    step = "bench/test_training.py::test_step[deep-linear-bf16-eager]"
    run = run_on_card(tmp_path, "--card-share=power=1e6", step, f"--benchmark-json={record}")
    assert_holds(run)
    info = json.loads(record.read_text("utf-8"))["benchmarks"][0]["extra_info"]
    assert info["joules_per_token"] * info["tokens_per_s"] == pytest.approx(watts, rel=0.01)


DEMO = """
import torch

@pytest.mark.claim("demo.reads", "demo.half")
def test_reads(device):
    assert torch.ones(3, device=device).sum().item() == 3

@pytest.mark.claim("demo.full")
def test_takes_more_than_there_is(device):
    torch.empty(2**40, device=device)

@pytest.mark.claim("demo.wrong")
def test_is_refuted(device):
    assert torch.ones(1, device=device).item() == 2

@pytest.mark.claim("demo.elsewhere")
def test_measures_the_cpu(device):
    assert torch.ones(3).sum() == 3

@pytest.mark.claim("demo.lost", "demo.partly")
def test_loses_the_card(device, pytestconfig):
    from meta_tests.card.plugin import KERNELS
    pytestconfig.stash[KERNELS].card.error = "CUDA error: an illegal memory access was encountered"
    torch.ones(3, device=device)

@pytest.mark.claim("demo.partly", "demo.after", "demo.half")
def test_comes_after(device):
    torch.ones(3, device=device)
"""
VERDICTS = {
    "reads": ("holds", ""),
    "full": ("error", "OutOfMemoryError: CUDA out of memory"),
    "wrong": ("FAILS", "assert 1.0 == 2"),
    "elsewhere": ("FAILS", "never touched it: it measured the CPU"),
    "lost": ("error", "the device is lost: AcceleratorError: CUDA error: an illegal memory access"),
    # One of its two tests met the lost card.
    "partly": ("error", ""),
    "after": ("not checked", "the device is lost"),
    # One of its two tests did not run.
    "half": ("not checked", ""),
}


@pytest.fixture
def house_on_a_card(tmp_path):
    house = new_house(tmp_path)
    for claim in VERDICTS:
        house.claim(f"demo.{claim}")
    house.test(DEMO)
    (house.root / "meta_tests").mkdir()
    (house.root / "meta_tests" / "__init__.py").touch()
    card = "meta_tests/card"
    shutil.copytree(ROOT / card, house.root / card)
    return house


ON_CARD = ("-p", "meta_tests.card.plugin", "--device", "cuda", "--quick")


def test_a_lost_card_ends_plain_pytest_which_says_how_to_go_on(house_on_a_card):
    run = house_on_a_card.run(*ON_CARD, path=house_on_a_card.root)
    assert "the device is lost: AcceleratorError" in run.output
    for claim, (verdict, reason) in VERDICTS.items():
        found = run.verdicts[f"demo.{claim}"]
        assert found["verdict"] == verdict, found
        assert reason in found["reason"]
    go_on = re.search(r"^to resume: python -m (prooflops.*)$", run.output, re.MULTILINE)
    assert go_on
    code, verdicts = run_in_processes(house_on_a_card, *go_on[1].split()[1:], "-n", "0")
    assert code == 1
    assert verdicts["after"] == "holds", "the one test that was left"
    assert verdicts["lost"] == "error"


def run_in_processes(house, *arguments):
    """The exit code and the verdicts of a call of the runner."""
    done = subprocess.run(
        [sys.executable, "-m", "prooflops.suite.evidence", *arguments],
        cwd=house.root,
        # A worker of xdist reads the options of `-p` too late for the card.
        env=child_environment(house.root, PYTEST_PLUGINS="meta_tests.card.plugin"),
        capture_output=True,
        text=True,
        timeout=300,
    )
    print(done.stdout, done.stderr)
    content = json.loads((house.root / "reports" / "verdicts.json").read_text())
    return done.returncode, {
        row["id"].removeprefix("demo."): row["verdict"] for row in content["claims"]
    }
