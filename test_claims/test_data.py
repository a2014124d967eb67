"""Claims about data loading: token files and their types, windows of them, loaders, and who waits for whom."""

import contextlib
import itertools
import math
import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from accounting.formats import element_bits
from accounting.memory import tensor_bytes
from accounting.models import DeepLinear
from test_claims.oracles.kernels import timed_copy
from test_claims.oracles.tensors import difference
from test_claims.oracles.tokens import (
    TokenWindows,
    batch,
    fresh,
    read_ahead,
    resident_bytes,
    sparse_file,
    token_file,
    window,
)
from test_claims.strategies import seeds, sizes

INTEGERS = {name: np.dtype(name) for name in ("uint8", "uint16", "int16", "int32", "int64")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the token files of this module are."""
    return tmp_path_factory.mktemp("tokens")


@st.composite
def token_arrays(draw, names=tuple(INTEGERS), least=0):
    """Tokens of an integer type, its extreme values among them."""
    dtype = INTEGERS[draw(st.sampled_from(names))]
    limits = np.iinfo(dtype)
    ids = st.integers(int(limits.min), int(limits.max)) | st.sampled_from(
        [int(limits.min), int(limits.max)]
    )
    return np.array(draw(st.lists(ids, min_size=least, max_size=40)), dtype=dtype)


@pytest.mark.claim("data.int-sequences")
@given(text=st.text(min_size=1, max_size=30), length=sizes(1, 4))
def test_a_text_is_integers_that_a_model_takes_and_that_give_it_back(
    folder, device, text, length
):
    """Each byte of the text is a token, as in the vocabularies that every other is built on."""
    path = fresh(folder / "text.bin")
    encoded = text.encode() + b"\n" * length
    np.frombuffer(encoded, dtype=np.uint8).astype(np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    read = bytes(tokens.tolist())
    assert read == encoded, f"the file gives {read!r}, but should give {encoded!r} [{text=}]"
    x, y = window(tokens, 0, length)
    table = torch.eye(256, device=device)
    logits = nn.functional.embedding(x.to(device), table)
    chosen = bytes(logits.argmax(-1).tolist())
    loss = nn.functional.cross_entropy(logits, y.to(device)).item()
    assert chosen == encoded[:length], (
        f"the rows looked up are those of {chosen!r}, not of {encoded[:length]!r}"
    )
    hits = sum(a == b for a, b in itertools.pairwise(encoded[: length + 1])) / length
    should = (
        math.log(255 + math.e) - hits
    )  # logits of 1 for the input's own token, of 0 for all others
    assert loss == pytest.approx(should, rel=1e-5), (
        f"the loss is {loss}, but should be {should} [{text=}, {length=}]"
    )


@pytest.mark.claim("data.int-sequences", "data.uint16")
@given(tokens=token_arrays())
@example(tokens=np.arange(3, dtype=np.uint16))
def test_a_raw_file_is_the_integers_one_after_the_other_and_nothing_else(folder, tokens):
    path = folder / "plain.bin"
    tokens.tofile(path)
    signed = np.issubdtype(tokens.dtype, np.signedinteger)
    should = b"".join(
        token.to_bytes(tokens.itemsize, sys.byteorder, signed=signed) for token in tokens.tolist()
    )
    got = path.read_bytes()
    assert got == should, (
        f"the file holds {got.hex()}, but should hold {should.hex()} [{tokens}, {tokens.dtype}]"
    )
    formula = tensor_bytes(tokens.shape, str(tokens.dtype))
    assert formula == len(got), f"tensor_bytes={formula}, but the file has {len(got)} bytes"


TOUCHED = 64
READ_AROUND_BYTES = 2 * 2**20  # the largest page that a system may map for one that is touched


@pytest.fixture
def large_file(folder: Path) -> Iterator[tuple[Path, dict[int, int]]]:
    """A sparse file twice as large as memory, and the tokens at 64 places spread over it; the rest is zeros."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    nbytes = max(2 * memory_bytes, 8 * 2**30)
    try:
        path = sparse_file(folder / "large.bin", nbytes)
        np.memmap(path, dtype=np.int32, mode="r")
    except OSError as error:
        pytest.skip(
            f"no file of {nbytes / 2**30:.0f} GiB, twice the memory, can be made and mapped: {error}"
        )
    apart = path.stat().st_size // 4 // TOUCHED
    marks = {place * apart + 37 * place: 1000 + place for place in range(TOUCHED)}
    with open(path, "r+b") as file:
        for index, token in marks.items():
            file.seek(4 * index)
            file.write(token.to_bytes(4, sys.byteorder))
    yield path, marks
    path.unlink()


@pytest.mark.claim("data.memmap-lazy")
@pytest.mark.needs("resource")  # not on Windows, where a file is sparse only on request
def test_reading_64_tokens_of_a_huge_file_leaves_as_many_pages(
    large_file, record_figure
):
    path, marks = large_file
    tokens = np.memmap(path, dtype=np.int32, mode="r")
    quarter = tokens[len(tokens) // 4 : len(tokens) // 2]
    opened = resident_bytes(tokens)
    wrong = {index: got for index, token in marks.items() if (got := int(tokens[index])) != token}
    touched = resident_bytes(tokens)
    nbytes = path.stat().st_size
    record_figure(
        f"of {nbytes / 2**30:.0f} GiB, {touched / 2**20:.1f} MiB are in memory after reading 64 tokens"
    )
    assert tokens.nbytes == nbytes, (
        f"the mapped array has {tokens.nbytes} bytes, but should have {nbytes}"
    )
    first = next(iter(wrong), None)
    assert not wrong, (
        f"{len(wrong)} of 64 tokens are wrong, at {first} {wrong[first]}, not {marks[first]}"
    )
    assert abs(quarter.nbytes - nbytes / 4) < 8, (
        f"the slice of a quarter has {quarter.nbytes} bytes of {nbytes}"
    )
    for what, rise, most in (
        ("opening", opened, 0),
        ("64 tokens", touched, TOUCHED * READ_AROUND_BYTES),
    ):
        assert rise <= most, (
            f"{what} brought {rise / 2**20:.3f} MiB into memory, not at most {most / 2**20:.0f}"
        )


@pytest.mark.claim("data.memmap-lazy")
@given(start=st.integers(0, 40), length=sizes(0, 40))
def test_a_slice_of_a_mapped_file_is_a_view_of_it_and_a_cast_is_not(folder, start, length):
    path = fresh(folder / "some.bin")
    np.arange(50, dtype=np.int32).tofile(path)
    tokens = np.memmap(path, dtype=np.int32, mode="r")
    part = tokens[start : start + length]
    assert part.tolist() == list(range(start, min(start + length, 50))), (
        f"[{start}:{start + length}] is {part}"
    )
    assert part.base is not None, "a slice of the mapped array is a copy of it"
    assert not np.shares_memory(part.astype(np.int64), tokens), (
        "the cast slice still lies in the file's pages"
    )


@pytest.mark.claim("data.memmap-npy")
@given(tokens=token_arrays(least=1))
@example(tokens=np.arange(1000, dtype=np.int32))
def test_np_memmap_reads_the_header_of_a_npy_file_as_tokens(folder, tokens):
    path = fresh(folder / "header.npy")
    raw = fresh(folder / "raw.npy")
    np.save(path, tokens)
    tokens.tofile(raw)
    contents = path.read_bytes()
    header = len(contents) - tokens.nbytes
    # The format: magic string, two bytes of version, two of the length that follows; all of it padded to 64 bytes.
    declared = 10 + int.from_bytes(contents[8:10], "little")
    assert header == declared, f"the header has {header} bytes, but says it has {declared}"
    assert header % 64 == 0, f"the header has {header} bytes, not a multiple of 64"
    as_written = np.memmap(path, dtype=tokens.dtype, mode="r")
    extra = header // tokens.itemsize
    assert len(as_written) == len(tokens) + extra, (
        f"mapped raw there are {len(as_written)} tokens of {len(tokens)}"
    )
    assert as_written[:extra].tobytes() == contents[:header], (
        "what comes before the tokens is not the header"
    )
    of_1000 = extra, int.from_bytes(contents[:4], "little")
    assert len(tokens) < 1000 or of_1000 == (32, 1297436307), (
        f"{of_1000}, but should be 32 tokens, first 1297436307"
    )
    for name, corrected in (
        ("np.load(mmap_mode='r')", np.load(path, mmap_mode="r")),
        ("np.memmap(offset=header)", np.memmap(path, dtype=tokens.dtype, mode="r", offset=header)),
        ("np.memmap of a raw file", np.memmap(raw, dtype=tokens.dtype, mode="r")),
    ):
        assert corrected.tolist() == tokens.tolist(), (
            f"{name} gives {corrected}, but should give {tokens}"
        )
        assert isinstance(corrected, np.memmap), f"{name} is not mapped, but a {type(corrected)}"


@pytest.mark.claim("data.uint16")
@given(ids=st.lists(st.integers(0, 2**17), min_size=1, max_size=30))
def test_uint16_keeps_ids_below_65536_and_wraps_the_others_silently(folder, ids):
    path = fresh(folder / "narrow.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.array(ids).astype(np.uint16).tofile(path)
    got = np.memmap(path, dtype=np.uint16, mode="r").tolist()
    should = [token % 65536 for token in ids]
    assert got == should, f"the ids come back as {got}, but should come back as {should} [{ids=}]"
    assert (got == ids) == (max(ids) < 65536), f"{ids} come back as {got}"


@pytest.mark.claim("data.uint16")
@pytest.mark.parametrize("token", [-1, 65536, 70000])
def test_an_array_of_python_integers_does_not_take_what_does_not_fit(token):
    assert np.array([0, 65535], dtype=np.uint16).tolist() == [0, 65535]
    with (
        pytest.raises(OverflowError)
        if np.__version__ >= "2"
        else pytest.warns(DeprecationWarning, match="bound")
    ):
        np.array([token], dtype=np.uint16)


@pytest.mark.claim("data.llama-2.8tb")
def test_2_8_terabytes_are_1_4_trillion_tokens_of_uint16(folder):
    tokens = 14 * 10**11
    vocabulary = 32_000
    stated = 28 * 10**11
    for dtype, should in (("uint16", stated), ("int32", 2 * stated)):
        path, sample = folder / "sample.bin", np.arange(vocabulary).astype(dtype)  # each id once
        sample.tofile(path)
        assert np.fromfile(path, dtype=dtype).tolist() == list(range(vocabulary)), (
            f"{dtype} does not keep all ids"
        )
        got = path.stat().st_size // vocabulary * tokens
        formula = tensor_bytes((tokens,), dtype)
        assert got == formula == should, (
            f"1.4 trillion tokens of {dtype} take {got}, {formula=}, not {should} bytes"
        )
    assert (vocabulary - 1).bit_length() <= element_bits("uint16"), "the last id does not fit"


@pytest.mark.claim("data.batch-shift", "data.astype-int64")
@given(
    tokens=token_arrays(names=("uint16", "int32"), least=2),
    size=sizes(1, 5),
    seed=seeds,
    share=st.floats(0, 1),
)
def test_targets_are_the_inputs_shifted_by_one_token(folder, tokens, size, seed, share):
    length = 1 + int(share * (len(tokens) - 2))
    path = fresh(folder / "shift.bin")
    tokens.tofile(path)
    mapped = np.memmap(path, dtype=tokens.dtype, mode="r")
    x, y = batch(mapped, size, length, torch.Generator().manual_seed(seed))
    got = [(of.dtype, of.shape) for of in (x, y)]
    should = (torch.int64, (size, length))
    assert got == [should, should], f"inputs and targets are {got}, but should both be {should}"
    wrong = difference(y[:, :-1], x[:, 1:])
    assert not wrong, (
        f"targets against inputs one later: {wrong} [{len(tokens)} tokens, {size=}, {length=}, {seed=}]"
    )
    starts = torch.randint(
        len(tokens) - length, (size,), generator=torch.Generator().manual_seed(seed)
    )
    windows = torch.tensor(tokens.tolist()).unfold(0, length + 1, 1)[
        starts
    ]  # torch's own, of one token more
    for name, got, should in (("inputs", x, windows[:, :-1]), ("targets", y, windows[:, 1:])):
        wrong = difference(got, should)
        assert not wrong, f"{name} against the file's windows: {wrong} [{size=}, {length=}]"


@pytest.mark.claim("data.randint-bound")
@given(length=sizes(1, 16), spare=st.integers(1, 20), seed=seeds)
def test_every_start_that_randint_draws_leaves_a_full_window(
    length, spare, seed
):
    tokens = np.arange(length + spare)
    starts = torch.randint(
        len(tokens) - length, (50 * spare,), generator=torch.Generator().manual_seed(seed)
    ).tolist()
    for start in {*starts, 0, spare - 1}:
        x, y = window(tokens, start, length)
        assert (len(x), len(y)) == (length, length), (
            f"from {start} there are {len(x)} and {len(y)} of {length} tokens"
        )
    drawn = (min(starts), max(starts))  # an end is missed once in e^50
    assert drawn == (0, spare - 1), (
        f"starts were drawn from {drawn[0]} to {drawn[1]} [{length=}, {spare=}]"
    )
    _, y = window(tokens, spare, length)
    assert len(y) == length - 1, (
        f"one start more leaves {len(y)} of {length} targets, but should leave one too few"
    )


@pytest.mark.claim("data.astype-int64", "data.int-sequences")
def test_int64_serves_both_embedding_and_targets(device):
    table = torch.randn(4, 2, device=device)
    logits = torch.randn(3, 4, device=device)
    ids = [3, 0, 2]
    losses = [float(logits[i].exp().sum().log() - logits[i, token]) for i, token in enumerate(ids)]
    taken = {}
    for name, function, should in (
        (
            "embedding",
            lambda ids: nn.functional.embedding(ids, table),
            [table[token].tolist() for token in ids],
        ),
        (
            "cross_entropy",
            lambda ids: nn.functional.cross_entropy(logits, ids, reduction="none"),
            losses,
        ),
    ):
        for dtype in (
            torch.uint8,
            torch.int16,
            torch.uint16,
            torch.int32,
            torch.int64,
            torch.float32,
        ):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                got = function(torch.tensor(ids, dtype=dtype, device=device)).tolist()
                taken.setdefault(name, []).append(dtype)
                assert np.allclose(got, should, atol=1e-5), (
                    f"{name} of {dtype} gives {got}, but should give {should}"
                )
    embedded, targets = taken.values()
    assert embedded == [torch.int32, torch.int64], (
        f"embedding takes {embedded}, but should take int32 and int64"
    )
    assert targets == [torch.uint8, torch.int64], (
        f"targets can be {targets}, but should be uint8 or int64"
    )


@pytest.mark.claim("data.astype-int64")
def test_a_tensor_over_a_read_only_file_warns_and_over_the_cast_does_not(folder):
    path = folder / "read_only.bin"
    np.arange(10, dtype=np.int64).tofile(path)
    tokens = np.memmap(path, dtype=np.int64, mode="r")
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)  # else it is given once in a process
    try:
        with pytest.warns(UserWarning, match="not writable"):
            shared = torch.from_numpy(tokens[2:5])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, _ = window(tokens, 2, 3)
    finally:
        torch.set_warn_always(always)
    assert shared.tolist() == x.tolist() == [2, 3, 4], (
        f"the windows are {shared} and {x}, but should be 2, 3, 4"
    )
    x += 1
    assert tokens[2:5].tolist() == [2, 3, 4], (
        f"writing to the cast tensor changed the file to {tokens[2:5]}"
    )


@pytest.mark.claim("data.dataloader")
@given(
    windows=sizes(1, 30),
    length=sizes(1, 4),
    size=sizes(),
    drop=st.booleans(),
    seed=seeds,
    drawn=st.data(),
)
def test_an_epoch_hands_out_each_window_once(folder, windows, length, size, drop, seed, drawn):
    dataset = TokenWindows(token_file(folder, windows, length), length)
    samplers = st.permutations(range(windows)).map(lambda order: {"sampler": order})
    how = drawn.draw(st.sampled_from([{"shuffle": False}, {"shuffle": True}]) | samplers)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(dataset, batch_size=size, drop_last=drop, generator=generator, **how)
    for _ in range(2):
        batches = list(loader)
        seen = [index for item in batches for index in item.index.tolist()]
        for item in batches:
            should = [list(range(i * length, i * length + length + 1)) for i in item.index.tolist()]
            got = [[*x, y[-1]] for x, y in zip(item.x.tolist(), item.y.tolist(), strict=True)]
            assert got == should, f"the batch holds {got}, but should hold {should}"
        expected = windows - windows % size if drop else windows
        assert len(seen) == len(set(seen)) == expected, (
            f"an epoch of {windows} windows handed out {seen} [{size=}]"
        )
        should = [*how.get("sampler", range(windows))][:expected]
        assert how.get("shuffle") or seen == should, (
            f"the order is {seen}, but should be {should} [{size=}, {how}]"
        )


@pytest.mark.claim("data.dataloader")
@pytest.mark.filterwarnings(
    "ignore:.*fork:DeprecationWarning"
)  # Python 3.12 and later, where torch has threads
@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create 2 worker processes"
)  # on a single core
def test_two_workers_share_the_file_and_the_windows(folder):
    """The file is changed while they read: both see it, because they map it and do not copy it."""
    windows = 24
    length = 4
    size = 2
    dataset = TokenWindows(token_file(folder, windows, length), length)
    # Each worker has two batches in hand: the last ones are read after the change. A worker that hangs is an error.
    loader = DataLoader(dataset, batch_size=size, num_workers=2, prefetch_factor=2, timeout=120)
    batches = []
    changed = 1000
    for item in loader:
        if not batches:
            tokens = np.memmap(dataset.path, dtype=np.int32, mode="r+")
            tokens[-2 * size * length :] = changed
            tokens.flush()
        batches.append(item)
    seen = [index for item in batches for index in item.index.tolist()]
    assert seen == list(range(windows)), f"an epoch of two workers handed out {seen}"
    workers = {worker for item in batches for worker in item.worker.tolist()}
    processes = {process for item in batches for process in item.process.tolist()}
    assert workers == {0, 1}, (
        f"the windows were read by workers {workers}, but should be by 0 and 1"
    )
    assert len(processes - {os.getpid()}) == 2, (
        f"they were read by the processes {processes}, not by two others"
    )
    last = {item.worker[0].item(): item.y[-1, -1].item() for item in batches[-2:]}
    assert last == {0: changed, 1: changed}, (
        f"the workers read {last} at the end, but should both see {changed}"
    )


BATCH_FLOATS = [2**22, 2**24, 2**25]  # 16 to 128 MiB


def large_batches(pin_memory, floats):
    rows = torch.ones(4, floats // 2)
    return DataLoader(TensorDataset(rows), batch_size=2, pin_memory=pin_memory)


@pytest.mark.claim("data.pin-memory-flag")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("floats", BATCH_FLOATS)
def test_batches_are_pinned_by_the_flag_and_copied_while_the_host_goes_on(
    device, record_figure, pin_memory, floats
):
    with torch.cuda.device(device):
        target = torch.empty(2, floats // 2, device=device)
        for (rows,) in large_batches(pin_memory, floats):
            assert rows.is_pinned() == pin_memory, (
                f"with {pin_memory=} a batch is pinned: {rows.is_pinned()}"
            )
        copies = [timed_copy(target, rows) for _ in range(5)]
        shares = sorted(returned_s / copied_s for returned_s, copied_s, _ in copies)
        record_figure(f"{pin_memory=}: the host is held for {shares[2]:.0%} of the copy")
        assert (shares[2] < 0.5) == pin_memory, (
            f"the host was held for {shares[2]:.0%} of the copy [{pin_memory=}]"
        )
        assert target.min() == target.max() == 1, "the batch did not arrive"


@pytest.mark.claim("data.pin-memory-flag", "device.nonblocking-overlap")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("floats", BATCH_FLOATS)
def test_a_pinned_batch_is_copied_beside_the_kernels_of_another_stream(device, speed, floats):
    with torch.cuda.device(device):
        target = torch.empty(2, floats // 2, device=device)
        side = torch.cuda.Stream()
        a = torch.randn(
            1024, 1024, device=device
        )  # shorter than the copy over any link: some products balance it
        ((pinned,), *_), ((pageable,), *_) = (
            list(large_batches(flag, floats)) for flag in (True, False)
        )
        copy_s = speed.seconds(lambda: target.copy_(pinned, non_blocking=True), calls=3)
        products = max(1, round(copy_s / speed.seconds(lambda: a @ a, calls=3)))

        def step(source, stream):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                target.copy_(source, non_blocking=True)
            for _ in range(products):
                a @ a
            torch.cuda.current_stream().wait_stream(stream)

        same = torch.cuda.current_stream()
        what = "pageable against pinned batches"
        speed.assert_slower(
            lambda: step(pageable, side), lambda: step(pinned, side), what, at_least=1.2
        )
        what = "one stream against two"
        speed.assert_slower(
            lambda: step(pinned, same), lambda: step(pinned, side), what, at_least=1.2
        )


@pytest.mark.claim("data.pipeline-bottleneck", "mfu.low-causes")
@pytest.mark.parametrize("working", [False, pytest.param(True, marks=pytest.mark.needs("cpu"))])
def test_with_a_slow_loader_a_training_step_takes_as_long_as_its_data(
    workloads, device, speed, record_figure, working
):
    model = DeepLinear(dim=256, layers=4)
    net = workloads.build(model, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    item = torch.randn(64, 256)
    prompt_s = deque(
        [0.001], maxlen=20
    )  # of the prompt steps before: beside other work some take much longer

    def step(batches):
        began = time.perf_counter()
        x = next(batches).to(device)
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        loss.item()  # waits for the device
        if batches is prompt:
            prompt_s.append(time.perf_counter() - began)

    def batches(times_a_step):
        def read(_):
            end = time.perf_counter() + times_a_step * max(mean(prompt_s), 0.001)
            while working and time.perf_counter() < end:  # as a tokeniser does
                sorted(range(1000, 0, -1))
            time.sleep(max(0.0, end - time.perf_counter()))  # as for a disk
            return item

        return iter(DataLoader(range(10**6), batch_size=None, collate_fn=read))

    slow = batches(5)
    prompt = batches(0)
    ratio = speed.assert_slower(
        lambda: step(slow), lambda: step(prompt), "a step behind a loader", at_least=3
    )
    record_figure(
        f"behind a loader of five steps' time the model is idle {1 - 1 / ratio.value:.0%} of the time"
    )


@pytest.mark.claim("data.pipeline-bottleneck")
@pytest.mark.parametrize("times_a_step", [0.1, 20])
def test_a_loader_that_reads_ahead_costs_time_only_where_it_is_slower(
    device, speed, times_a_step
):
    """The model is busy whenever a batch is there, so that a step takes the longer of the two times."""
    # Milliseconds a step: a thread neither sleeps nor wakes within the microseconds that an accelerator would take.
    width, rows = (384, 256) if device.type == "cpu" else (4096, 1024)
    weight = torch.randn(width, width, device=device) / width**0.5
    batch = torch.randn(rows, width)

    def step(batches):
        x = next(batches).to(device)
        for _ in range(4):
            x = x @ weight

    step_s = median(speed.seconds(lambda: step(itertools.repeat(batch))) for _ in range(9))
    ahead = read_ahead(itertools.repeat(batch, 1000), times_a_step * step_s)
    bounds = {"at_least": 5} if times_a_step > 1 else {"at_least": 0.5, "at_most": 2}
    what = f"a step of {step_s * 1e3:.1f} ms behind a loader that reads ahead in {times_a_step} times its time"
    speed.assert_slower(
        lambda: step(ahead), lambda: step(itertools.repeat(batch)), what, pairs=15, **bounds
    )
