import work


def test_busy_loop(benchmark, device):
    benchmark.extra_info["flops"] = 2 * work.STEPS
    benchmark.pedantic(work.busy, rounds=15, iterations=4)
    assert device in ("none", "abacus")


def test_is_no_benchmark():
    assert work.busy(3) == 5
