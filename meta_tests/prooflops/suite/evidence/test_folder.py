"""A folder of evidence: what a kill leaves of a line, which folder goes on, in which order tests run."""

import json
from pathlib import Path
from typing import Any

from prooflops.suite.evidence.folder import MOST_LOSSES, Folder, chosen, ran_before

FACTS = {"name": "NVIDIA H100 80GB HBM3", "driver": "570.86", "torch": "2.11.0+cu130"}


def filled(path: Path, ended: dict[str, str], device: str = "cpu", **plan: Any) -> Folder:
    path.mkdir(parents=True)
    facts = {"arguments": [], "tests": ["a", "b"], "fingerprint": {"device": device}, **plan}
    (path / "plan.json").write_text(json.dumps(facts))
    folder = Folder(path)
    for test, status in ended.items():
        folder.append("tests.jsonl", event="end", test=test, status=status)
    return folder


def test_a_line_that_a_kill_cut_off_costs_that_line_only(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.append("tests.jsonl", event="end", test="a")
    with open(tmp_path / "tests.jsonl", "a") as file:
        file.write('{"event": "end", "te')
    folder.append("tests.jsonl", event="end", test="b")
    assert list(folder.ended()) == ["a", "b"]


def test_the_unfinished_folder_of_these_arguments_goes_on(tmp_path: Path) -> None:
    stem = "NVIDIA-H100-80GB-HBM3-570.86-torch2.11.0+cu130"
    first = chosen(tmp_path, FACTS, [], fresh=False)
    assert first.path.name.startswith(f"{stem}-20")
    filled(first.path, {"a": "passed"})
    assert chosen(tmp_path, FACTS, [], fresh=False).path == first.path
    for other in (chosen(tmp_path, FACTS, [], fresh=True), chosen(tmp_path, FACTS, ["--quick"], fresh=False)):
        assert other.path.name == f"{first.path.name}-2"
    first.append("tests.jsonl", event="end", test="b", status="passed")
    assert chosen(tmp_path, FACTS, [], fresh=False).path.name == f"{first.path.name}-2", "it is complete"
    assert chosen(tmp_path, {**FACTS, "driver": None}, [], fresh=False).path.name.startswith(
        "NVIDIA-H100-80GB-HBM3-no-"
    )


def test_what_was_only_skipped_elsewhere_has_never_run(tmp_path: Path) -> None:
    own = filled(tmp_path / "own", {"a": "passed"})
    filled(tmp_path / "cpu", {"a": "passed", "b": "unmet"})
    filled(tmp_path / "card", {"b": "failed"}, device="cuda")
    assert ran_before(tmp_path, own.path) == {"cpu": {"a"}, "cuda": {"b"}}


def test_a_test_that_no_process_survives_is_given_up(tmp_path: Path) -> None:
    folder = filled(tmp_path / "own", {})
    for _ in range(MOST_LOSSES):
        assert folder.remaining() == ["a", "b"]
        folder.append("tests.jsonl", event="start", test="a")
        folder.give_up_what_kills()
    assert folder.remaining() == ["b"]
    assert folder.ended()["a"]["status"] == "crashed"
