"""A repository that knows nothing of this suite, and runs of pytest with the plugin in it."""

from meta_tests.conftest import ROOT, fork_pytest
from prooflops_gate.history import records


class Foreign:
    """A repository with a benchmark and a conftest of its own, and runs of pytest with the plugin
    in it.
    """

    def __init__(self, root):
        self.root = root
        (root / "conftest.py").write_text(
            "def pytest_addoption(parser):\n"
            "    parser.addoption('--device', default='tpu')\n"
            "    parser.addoption('--model', default='m')\n"
        )
        self.test(3)

    def test(self, flops, name="test_sum"):
        (self.root / "test_it.py").write_text(
            f"def {name}(benchmark, request):\n"
            "    assert request.config.getoption('--device') == 'tpu'\n"
            f"    benchmark.extra_info['flops'] = {flops}\n"
            # A list in JSON: unchanged all the same.
            "    benchmark.extra_info['bytes'] = (1, 2)\n"
            "    benchmark.pedantic(sum, args=([1, 2],), rounds=5, iterations=10)\n"
        )

    def run(self, *arguments, path="", **variables):
        return fork_pytest(
            self.root, "-p", "prooflops_gate.plugin", *arguments, path=path or ROOT, **variables
        )

    def records(self, folder=".prooflops/history"):
        return records.record_files(self.root / folder)
