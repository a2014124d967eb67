"""The limits of control groups in version 1, version 2 and both: files of hosts and containers."""

import pytest

from prooflops_gate.machine import cpu, limits
from prooflops_gate.machine.contention import Watch

GIB = 2**30
NO_LIMIT = str(2**63 - 4096)
V1 = "1:cpu,cpuacct:{0}\n4:memory:{0}\n0::/\n"
V1_MOUNTS = (
    "31 23 0:28 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
    "32 31 0:29 {0} /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
    "35 31 0:32 {0} /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
)
V2_MOUNT = "29 23 0:26 {0} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID_MOUNT = "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
# A layout: /proc/self/cgroup and mountinfo, files under /sys/fs/cgroup, free GiB, usable cores.
LAYOUTS = {
    "no groups": ("", "", {}, 8, 8),
    "v2, the container's own root": (
        "0::/\n",
        V2_MOUNT.format("/"),
        {"memory.max": 2 * GIB, "memory.current": GIB // 2, "cpu.max": "150000 100000"},
        1.5,
        1,
    ),
    "v2, a service of systemd in a limited slice": (
        "0::/user.slice/run-1.scope\n",
        V2_MOUNT.format("/"),
        {
            "user.slice/memory.max": 3 * GIB,
            "user.slice/memory.current": 2 * GIB,
            "user.slice/memory.stat": f"anon 7\nactive_file {GIB // 2}\ninactive_file {GIB // 2}",
            "user.slice/cpu.max": "300000 100000",
            "user.slice/run-1.scope/memory.max": "max",
            "user.slice/run-1.scope/cpu.max": "max 100000",
        },
        2,
        3,
    ),
    "v2, slowed from a high mark on": (
        "0::/\n",
        V2_MOUNT.format("/"),
        {"memory.high": GIB, "memory.max": 4 * GIB},
        1,
        8,
    ),
    "v1, docker run -m 1g --cpus 2": (
        V1.format("/docker/7f"),
        V1_MOUNTS.format("/docker/7f"),
        {
            "memory/memory.limit_in_bytes": GIB,
            "memory/memory.usage_in_bytes": GIB // 4,
            "cpu/cpu.cfs_quota_us": 200000,
            "cpu/cpu.cfs_period_us": 100000,
        },
        0.75,
        2,
    ),
    "v1, a path outside the mount": (
        V1.format("/../../job"),
        V1_MOUNTS.format("/"),
        {"memory/memory.limit_in_bytes": GIB, "cpu/cpu.cfs_quota_us": -1},
        1,
        8,
    ),
    "v1, the path of the host": (
        V1.format("/kubepods/7f"),
        V1_MOUNTS.format("/docker/8e"),
        {"memory/memory.limit_in_bytes": GIB},
        1,
        8,
    ),
    "v1, a limit that the container does not see": (
        V1.format("/"),
        V1_MOUNTS.format("/"),
        {
            "memory/memory.limit_in_bytes": NO_LIMIT,
            "memory/memory.usage_in_bytes": GIB,
            "memory/memory.stat": f"hierarchical_memory_limit {2 * GIB}\ntotal_active_file 0",
        },
        1,
        8,
    ),
    "v1, Slurm": (
        V1.format("/slurm/uid_1/job_2/step_0/task_0"),
        V1_MOUNTS.format("/"),
        {
            "memory/slurm/uid_1/job_2/memory.limit_in_bytes": 4 * GIB,
            "memory/slurm/uid_1/job_2/memory.usage_in_bytes": 3 * GIB,
            "memory/slurm/uid_1/job_2/memory.stat": f"inactive_file 0\ntotal_inactive_file {GIB}",
            "memory/slurm/uid_1/job_2/step_0/task_0/memory.limit_in_bytes": NO_LIMIT,
            "cpu/slurm/uid_1/cpu.cfs_quota_us": 50000,
            "cpu/slurm/uid_1/cpu.cfs_period_us": 100000,
        },
        2,
        1,
    ),
    "both, the CPU in v2": (
        "4:memory:/a\n0::/b\n",
        V1_MOUNTS.format("/") + HYBRID_MOUNT,
        {"memory/a/memory.limit_in_bytes": GIB, "unified/b/cpu.max": "400000 100000"},
        1,
        4,
    ),
    "v2, a name that mountinfo escapes": (
        "0::/a b\\x2d/c\n",
        V2_MOUNT.format(r"/a\040b\134x2d"),
        {"c/memory.max": GIB, "cpu.max": "200000 100000"},
        1,
        2,
    ),
    "v2, more in use than allowed": (
        "0::/\n",
        V2_MOUNT.format("/"),
        {"memory.max": GIB, "memory.current": 2 * GIB},
        0,
        8,
    ),
}


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(f"{text}\n", encoding="ascii")


@pytest.fixture
def host(tmp_path, monkeypatch):
    """A host with 8 cores and 8 GiB that are available."""
    monkeypatch.setattr(cpu, "allowed_cores", lambda: list(range(8)))
    monkeypatch.setattr(cpu, "memory_bytes", lambda: 9 * GIB)
    write(tmp_path, {"proc/meminfo": f"MemTotal: 9 kB\nMemAvailable: {8 * GIB // 1024} kB"})
    return tmp_path


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_process_may_use_what_its_group_and_each_ancestor_allow(layout, host):
    groups, mounts, files, free_gib, cores = LAYOUTS[layout]
    own = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    write(host, own | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})
    assert limits.free_bytes(host) == free_gib * GIB
    assert limits.usable_cores(host) == cores


def test_without_linux_the_memory_of_the_host_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(cpu, "memory_bytes", lambda: 9 * GIB)
    assert limits.free_bytes(tmp_path) == limits.memory_bytes(tmp_path) == 9 * GIB
    assert limits.stopped_s(tmp_path) is None


@pytest.mark.parametrize(
    ("layout", "file", "stat"),
    [
        ("v1, Slurm", "cpu/slurm/uid_1/cpu.stat", "throttled_time 4000000000"),
        ("v2, the container's own root", "cpu.stat", "throttled_usec 4000000"),
    ],
)
def test_a_quota_that_stops_the_process_is_contention(layout, file, stat, host):
    groups, mounts, *_ = LAYOUTS[layout]
    own = {"proc/self/cgroup": groups, "proc/self/mountinfo": mounts}
    write(host, own | {f"sys/fs/cgroup/{file}": stat.replace("4", "0")})
    watch = Watch(host)
    assert not watch.stop()["contended"]
    write(host, {f"sys/fs/cgroup/{file}": stat})
    seen = watch.stop()
    assert limits.stopped_s(host) == 4
    assert seen["contended"]
    assert "the container's CPU quota stopped" in seen["why"]
