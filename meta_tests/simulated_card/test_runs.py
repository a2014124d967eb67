"""Claims and benchmarks on the simulated card: a sample of those that need one, and all of them with `make prove`."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from meta_tests.conftest import ROOT, SUITE, fork_pytest
from meta_tests.simulated_card.__main__ import COLUMNS, SECONDS

# What this card cannot show, by the beginning of the node id without its folder. Whatever else fails is a finding.
CANNOT_SHOW: dict[str, str] = {
    **{
        f"test_data.py::test_batches[{dtype}-{order}-0]": "its queue leaves out what the host's Python does"
        for dtype in ("uint16", "int32")
        for order in ("random", "sequential")
    },
    "test_data.py::test_a_loader_that_reads_ahead_costs_time_only_where_it_is_slower_than_the_model[20]": (
        "its loader reads for 20 of the card's steps, in less time than the CPU takes for one"
    ),
    "test_training.py::test_checkpointing": "torch's own fake tensors on CUDA need its C++",
    "test_data.py::test_batches_are_pinned_by_the_flag": "DataLoader asks C++ for an accelerator before it pins",
    "test_data.py::test_a_pinned_batch_is_copied_beside": "DataLoader asks C++ for an accelerator before it pins",
    "test_quant.py::test_one_token_times_quantised": "the CPU has no kernel for 4-bit weights packed as CUDA's are",
    "test_quant.py::test_weights_written_out": "the CPU has no kernel for 4-bit weights packed as CUDA's are",
    "test_quant.py::test_a_large_batch_gains_less": "the CPU has no kernel for 4-bit weights packed as CUDA's are",
    "test_spec.py::test_this_device_has_the_memory_that_its_label": "it has less memory than the card of its name",
    "test_mem.py::test_the_buckets_of_data_parallel": "C++ makes the buckets where it sees the parameters, on the CPU",
    "test_spec.py::test_a_sparse_product_is_right": "the CPU has no kernel for two values in four",
    "test_amp.py::test_autocast_chooses_each_operations_dtype": "C++ autocasts by the CPU's lists",
    "test_amp.py::test_autocasts_default_is_fp16_on_cuda_and_bf16": "autocast of the card is that of the CPU here",
}
CLAIMS = ROOT / "test_claims"
SAMPLE = {
    "test_claims/test_device.py": "8192_bytes or empty_cache or waited_for",
    "test_claims/test_storage.py": "making_views_allocates or contiguous_copies",
    "bench/test_transfer.py": "to-host-pinned-non-blocking",
}
# Of several ranks; of a user's model, see below; torch.compile compiles nothing while a dispatch mode is active.
ELSEWHERE = {"test_collectives.py", "test_user_model.py", "test_compile.py"}
BENCHMARKS = sorted({path.name for path in (ROOT / "bench").glob("test_*.py")} - ELSEWHERE)
# Those whose products a CPU has the time for.
SMALL = ("--card-memory=1024", "-k", "not 2048 and not 4096 and not 8192 and not gpt2 and not llama3")
ON_MPS = ("act", "dtype", "grad", "init", "matmul", "module", "storage", "tensor")
LONGEST_S = 10 * 60  # that the default run may take on an H100


def counted(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The counts of each test of a run on the simulated card; one whose fixtures raise an error counts as failed."""
    file = folder / "counts.jsonl"
    options = ["-p", "meta_tests.simulated_card.plugin", "--device", "cuda", "--quick", f"--card-counts={file}"]
    run = fork_pytest(ROOT, *options, f"--report={folder}", *arguments, imported=SUITE, path=ROOT)
    errors = re.findall(r"^ERROR (.+?)(?: - .*)?$", run.output, re.MULTILINE)
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    return rows + [{"test": test, "result": "failed", **dict.fromkeys(COLUMNS, 0)} for test in errors]


def test_what_needs_a_card_holds_on_the_fake_one(tmp_path: Path) -> None:
    names = " or ".join(SAMPLE.values())
    rows = counted(tmp_path, *SAMPLE, "-k", names)
    assert {row["result"] for row in rows} == {"passed"}, [row["test"] for row in rows if row["result"] != "passed"]
    assert len(rows) >= 6, "the sample is named by words of its tests: some have another name now"
    silent = [row["test"] for row in rows if not row["launches"] and not row["allocations"]]
    assert not silent, f"these did nothing on the card: {silent}"


def findings(rows: list[dict[str, Any]], red: Collection[str] = ("failed", "elsewhere")) -> list[str]:
    failed = [row["test"].rpartition("/")[2] for row in rows if row["result"] in red]
    return [test for test in failed if not test.startswith(tuple(CANNOT_SHOW))]


@pytest.mark.prove
@pytest.mark.parametrize("topic", ON_MPS)
def test_claims_hold_on_mps(tmp_path: Path, topic: str) -> None:
    """What needs fp64, or bytes that are counted, they show on the CPU there."""
    rows = counted(tmp_path, "--card-kind=mps", "--device=mps", f"test_claims/test_{topic}.py")
    assert not (found := findings(rows, red=["failed"])), "\n".join(found)
    assert len(rows) > 20, "some have left"


@pytest.mark.prove
def test_a_users_model_is_measured_on_the_simulated_card(tmp_path: Path) -> None:
    model = "--model=meta_tests/user_models/gpt.py:factory"
    rows = counted(tmp_path, model, "test_claims/test_user_model.py", "bench/test_user_model.py")
    assert not (found := findings(rows)), "\n".join(found)
    assert len(rows) > 15, "some have left"


@pytest.mark.prove
@pytest.mark.parametrize("file", BENCHMARKS)
def test_the_quick_benchmarks_of_a_file_run_on_the_simulated_card(tmp_path: Path, file: str) -> None:
    rows = counted(tmp_path, *SMALL, f"bench/{file}")
    assert not (found := findings(rows)), "\n".join(found)


@pytest.mark.prove
@pytest.mark.parametrize("file", sorted({path.name for path in CLAIMS.glob("test_*.py")} - ELSEWHERE))
def test_all_claims_of_a_file_hold_on_the_simulated_card(tmp_path: Path, file: str) -> None:
    rows = counted(tmp_path, f"test_claims/{file}")
    assert not (found := findings(rows)), "\n".join(found)
    total: Counter[str] = Counter()
    for row in rows:
        total.update({name: row[name] for name in COLUMNS})
    seconds = sum(each * total[name] for name, each in SECONDS.items())
    assert 5 * seconds < LONGEST_S / 10, f"{file} alone takes about {5 * seconds:.0f} s with 100 examples a property"
