"""Repeats the claims' drawn tests, to find a rare value that breaks what they expect.

    python -m meta_tests.seeds [TOPIC]

Properties get the examples of a thorough run. Any other test that draws numbers runs with all its
seeds moved by 0 to 999, or for 3 CPU seconds if these end first. Tests of time are left out.
"""

import argparse
import random
import sys
import time

import numpy as np
import pytest
import torch

from meta_tests.conftest import ROOT

SEEDS = 1000
SECONDS = 3.0


class Seeds:
    """A pytest plugin that calls a test again and again, and moves its seeds each time."""

    def __init__(self):
        self.by = 0
        self.seeded = False
        self.calls = {}

    def moved(self, seed):
        self.seeded = True
        return seed + self.by

    def install(self, patch):
        """Has torch and numpy seed generators with moved seeds."""
        moved = self.moved
        manual_seed = torch.manual_seed
        default_rng = np.random.default_rng

        def rng_of(seed=None):
            return default_rng(moved(seed) if isinstance(seed, int) else seed)

        class Generator(torch.Generator):
            def manual_seed(self, seed):
                return super().manual_seed(moved(seed))

        patch.setattr(torch, "Generator", Generator)
        patch.setattr(torch, "manual_seed", lambda seed: manual_seed(moved(seed)))
        patch.setattr(np.random, "default_rng", rng_of)

    def pytest_collection_modifyitems(self, items):
        timed = {"speed", "sizing", "benchmark"}
        items[:] = [item for item in items if timed.isdisjoint(item.fixturenames)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        if hasattr(pyfuncitem.obj, "hypothesis"):
            return None
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        end = time.process_time() + SECONDS
        for self.by in range(SEEDS):
            torch.manual_seed(0)
            random.seed(self.by)
            np.random.seed(self.by)  # noqa: NPY002
            before = torch.get_rng_state()
            self.seeded = False
            try:
                pyfuncitem.obj(**arguments)
            except AssertionError as error:
                raise AssertionError(f"{error} [all seeds moved by {self.by}]") from error
            finally:
                self.calls[pyfuncitem.nodeid] = self.by + 1
            drew = self.seeded or not torch.equal(before, torch.get_rng_state())
            if not drew or time.process_time() > end:
                break
        self.by = 0
        return True


def main():
    parser = argparse.ArgumentParser(prog="python -m meta_tests.seeds", description=__doc__)
    parser.add_argument("topics", nargs="*", metavar="TOPIC")
    options = parser.parse_args()
    seeds = Seeds()
    claims = [f"--claim={topic}" for topic in options.topics]
    with pytest.MonkeyPatch.context() as patch:
        seeds.install(patch)
        quiet = ["-q", "--thorough", "-p", "no:cacheprovider", "--tb=short"]
        code = pytest.main([str(ROOT / "test_claims"), *claims, *quiet], plugins=[seeds])
    drawn = [calls for calls in seeds.calls.values() if calls > 1]
    print(f"{len(drawn)} drawn tests were called {sum(drawn):,} times")
    return code


if __name__ == "__main__":
    sys.exit(main())
