"""The gate's processes as forks of the one that starts them, which has imported pytest.

Half a CPU second less each.
"""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

# Set in the environment of a run whose processes are forks.
FORKED = "FORKED_PROCESSES"
# Before the run imports anything of the repository.
HERE = frozenset(sys.modules)


class Fork:
    """What `subprocess.Popen` gives for a run of pytest by this Python, in a fork."""

    def __init__(self, command, cwd, env, stdout):
        self.returncode = None
        self.pid = os.fork()
        if not self.pid:
            _run_and_exit(command[3:], cwd, env, stdout.fileno())

    def poll(self):
        if self.returncode is None and (ended := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode

    def wait(self, limit_s=100):
        until = time.monotonic() + limit_s
        while (code := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired("pytest", limit_s)
            time.sleep(0.005)
        return code


def _run_and_exit(arguments, cwd, env, output):
    code = pytest.ExitCode.INTERNAL_ERROR
    try:
        os.setsid()
        signal.alarm(0)
        for stream in (1, 2):
            os.dup2(output, stream)
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        own = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        for name in sys.modules.keys() - HERE:
            if not name.startswith(
                ("prooflops_gate.", "numpy", "scipy", "pytest_benchmark", "_pytest")
            ):
                del sys.modules[name]
        rest = [path for path in sys.path if path not in own and not path.startswith(str(cwd))]
        sys.path[:] = [str(cwd), *env["PYTHONPATH"].split(os.pathsep), *rest]
        sys.argv[1:] = arguments
        code = pytest.main([*arguments])
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def fork_processes():
    """Has the gate of this process fork every run of pytest by the same Python, and start whatever
    else it starts.
    """
    from prooflops_gate import process

    def popen(command, **options):
        if [*command[:3]] != [sys.executable, "-m", "pytest"]:
            return subprocess.Popen(command, **options)
        return Fork(command, options["cwd"], options["env"], options["stdout"])

    standing_in = SimpleNamespace(**{**vars(subprocess), "Popen": popen})
    process.subprocess = standing_in
