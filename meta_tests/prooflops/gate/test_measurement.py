"""What a run of the gate says while it measures, and by which rule it compares."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prooflops.gate.decisions import look_at
from prooflops.gate.measurement import SILENT_S, Measurement
from prooflops.history.records import Timed
from prooflops.statistics.plan import LOOKS


def measurement(settings: Any) -> Measurement:
    plugins = SimpleNamespace(get_plugin=lambda _: None)
    config: Any = SimpleNamespace(pluginmanager=plugins, get_verbosity=lambda: -1, stash={}, rootpath=Path())
    return Measurement(config, settings, None)  # type: ignore[arg-type]


def test_progress_is_said_at_the_start_and_then_rarely() -> None:
    settings: Any = SimpleNamespace(budget_s=600.0)
    found, said = measurement(settings), list[str]()
    found.progress = lambda text, ahead_s: said.append(text)  # type: ignore[assignment]
    found.say("pair 1", 0, 8)
    found.say("pair 2", 1, 8)
    found.said_at -= SILENT_S
    found.say("pair 9", 8, 8)
    assert [text.partition(",")[0] for text in said] == ["pair 1", "pair 9"]
    assert said[1].endswith(", about 0 s to go"), said


def test_a_noise_floor_takes_all_pairs_where_a_comparison_would_stop() -> None:
    settings: Any = SimpleNamespace(noise_floor=True, direction="slower", min_effect=0.03, replicates=None)
    rule = measurement(settings).rule(1, paired=True)
    both: Any = {"a": ([], [])}
    while look_at(both, rule)[1]:
        both["a"][0].append(Timed(1.0, {}, {}))
        both["a"][1].append(Timed(1.001, {}, {}))
    ((row,), _) = look_at(both, rule)
    assert row.effect, row
    assert row.effect.pairs == len(both["a"][1]) == LOOKS[-1], row
    assert row.verdict == "SAME", row
