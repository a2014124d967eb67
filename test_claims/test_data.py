"""Claims about data loading: token files, windows of them, loaders, and who waits for whom."""

import contextlib
import functools
import itertools
import math
import os
import sys
import time
import warnings
from collections import deque
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

INTEGERS = ("uint8", "uint16", "int16", "int32", "int64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the token files of this module are."""
    return tmp_path_factory.mktemp("tokens")


@st.composite
def token_arrays(draw, names=INTEGERS, least=0):
    """Tokens of an integer type, its extreme values among them."""
    name = draw(st.sampled_from(names))
    limits = np.iinfo(name)
    ends = [int(limits.min), int(limits.max)]
    ids = st.integers(*ends) | st.sampled_from(ends)
    drawn = draw(st.lists(ids, min_size=least, max_size=40))
    return np.array(drawn, dtype=name)


@pytest.mark.claim("data.int-sequences")
@pytest.mark.parametrize("text", ["a", "Ein Wort, é und 字", "0" * 30])
@pytest.mark.parametrize("length", [1, 4])
def test_a_text_is_integers_that_a_model_takes_and_that_give_it_back(folder, device, text, length):
    """Each byte of the text is a token, as in the vocabularies that every other is built on."""
    path = fresh(folder / "text.bin")
    encoded = text.encode() + b"\n" * length
    np.frombuffer(encoded, dtype=np.uint8).astype(np.uint16).tofile(path)
    tokens = np.memmap(path, dtype=np.uint16, mode="r")
    read = bytes(tokens.tolist())
    assert read == encoded, f"the file gives {read!r}, but should give {encoded!r}"

    x, y = window(tokens, 0, length)
    table = torch.eye(256, device=device)
    logits = nn.functional.embedding(x.to(device), table)
    chosen = bytes(logits.argmax(-1).tolist())
    assert chosen == encoded[:length], f"the rows looked up are those of {chosen!r}"

    loss = nn.functional.cross_entropy(logits, y.to(device)).item()
    # Logits are 1 for the input's own token, and 0 for all others.
    pairs = itertools.pairwise(encoded[: length + 1])
    repeated = sum(one == next_one for one, next_one in pairs)
    should = math.log(255 + math.e) - repeated / length
    assert loss == pytest.approx(should, rel=1e-5), f"the loss is {loss}, but should be {should}"


@pytest.mark.claim("data.int-sequences", "data.uint16")
@given(tokens=token_arrays())
@example(tokens=np.arange(3, dtype=np.uint16))
def test_a_raw_file_is_the_integers_one_after_the_other_and_nothing_else(folder, tokens):
    path = folder / "plain.bin"
    tokens.tofile(path)
    signed = np.issubdtype(tokens.dtype, np.signedinteger)
    should = b""
    for token in tokens.tolist():
        should += token.to_bytes(tokens.itemsize, sys.byteorder, signed=signed)
    got = path.read_bytes()
    assert got == should, f"the file holds {got.hex()}, not {should.hex()} [{tokens.dtype}]"

    formula = tensor_bytes(tokens.shape, str(tokens.dtype))
    assert formula == len(got), f"tensor_bytes={formula}, but the file has {len(got)} bytes"


TOUCHED = 64
# The largest page that a system may map for one that is touched.
READ_AROUND_BYTES = 2 * 2**20


@pytest.fixture
def large_file(folder):
    """A sparse file twice as large as memory, and the tokens at 64 places; the rest is zeros."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    nbytes = max(2 * memory_bytes, 8 * 2**30)
    try:
        path = sparse_file(folder / "large.bin", nbytes)
        np.memmap(path, dtype=np.int32, mode="r")
    except OSError as error:
        pytest.skip(f"no file of {nbytes / 2**30:.0f} GiB can be made and mapped: {error}")

    apart = path.stat().st_size // 4 // TOUCHED + 37
    marks = {}
    with open(path, "r+b") as file:
        for place in range(TOUCHED):
            index = place * apart
            token = 1000 + place
            marks[index] = token
            file.seek(4 * index)
            file.write(token.to_bytes(4, sys.byteorder))

    yield path, marks
    path.unlink()


@pytest.mark.claim("data.memmap-lazy")
# Not on Windows, where a file is sparse only on request.
@pytest.mark.needs("resource")
def test_reading_64_tokens_of_a_huge_file_leaves_as_many_pages(large_file, record_figure):
    path, marks = large_file
    tokens = np.memmap(path, dtype=np.int32, mode="r")
    quarter = tokens[len(tokens) // 4 : len(tokens) // 2]
    opened = resident_bytes(tokens)
    got = {index: int(tokens[index]) for index in marks}
    touched = resident_bytes(tokens)
    assert got == marks, f"the tokens read are {got}, but should be {marks}"

    nbytes = path.stat().st_size
    record_figure(f"of {nbytes / 2**30:.0f} GiB, {touched / 2**20:.1f} MiB are in memory")
    assert tokens.nbytes == nbytes, f"the mapped array has {tokens.nbytes} bytes, not {nbytes}"

    quarter_off = abs(quarter.nbytes - nbytes / 4)
    assert quarter_off < 8, f"the slice of a quarter has {quarter.nbytes} bytes of {nbytes}"
    assert opened == 0, f"opening brought {opened} bytes into memory, but should bring none"

    most = TOUCHED * READ_AROUND_BYTES
    assert touched <= most, f"64 tokens brought {touched} bytes into memory, not at most {most}"


@pytest.mark.claim("data.memmap-lazy")
@pytest.mark.parametrize(("start", "length"), [(0, 0), (0, 50), (40, 40), (7, 3)])
def test_a_slice_of_a_mapped_file_is_a_view_of_it_and_a_cast_is_not(folder, start, length):
    path = fresh(folder / "some.bin")
    np.arange(50, dtype=np.int32).tofile(path)
    tokens = np.memmap(path, dtype=np.int32, mode="r")
    end = start + length
    part = tokens[start:end]
    should = list(range(50))[start:end]
    assert part.tolist() == should, f"[{start}:{end}] is {part}"
    assert part.base is not None, "a slice of the mapped array is a copy of it"

    shared = np.shares_memory(part.astype(np.int64), tokens)
    assert not shared, "the cast slice still lies in the file's pages"


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
    # A magic string, two bytes of version, two of the length that follows; padded to 64 bytes.
    declared = 10 + int.from_bytes(contents[8:10], "little")
    assert header == declared, f"the header has {header} bytes, but says it has {declared}"
    assert header % 64 == 0, f"the header has {header} bytes, not a multiple of 64"

    as_written = np.memmap(path, dtype=tokens.dtype, mode="r")
    extra = header // tokens.itemsize
    mapped = len(as_written)
    number = len(tokens)
    assert mapped == number + extra, f"mapped raw there are {mapped} of {number} tokens"

    before = as_written[:extra].tobytes()
    assert before == contents[:header], "what comes before the tokens is not the header"

    first = int.from_bytes(contents[:4], "little")
    if number == 1000:
        got = extra, first
        assert got == (32, 1297436307), f"{got}, but should be 32 tokens, first 1297436307"

    corrected = {
        "np.load(mmap_mode='r')": np.load(path, mmap_mode="r"),
        "np.memmap(offset=)": np.memmap(path, dtype=tokens.dtype, mode="r", offset=header),
        "np.memmap of a raw file": np.memmap(raw, dtype=tokens.dtype, mode="r"),
    }
    for name, array in corrected.items():
        assert array.tolist() == tokens.tolist(), f"{name} gives {array}, but should give {tokens}"
        assert isinstance(array, np.memmap), f"{name} is not mapped, but a {type(array)}"


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
    warned = pytest.warns(DeprecationWarning, match="bound")
    with pytest.raises(OverflowError) if np.__version__ >= "2" else warned:
        np.array([token], dtype=np.uint16)


@pytest.mark.claim("data.llama-2.8tb")
def test_2_8_terabytes_are_1_4_trillion_tokens_of_uint16(folder):
    tokens = 14 * 10**11
    vocabulary = 32_000
    stated = 28 * 10**11
    path = folder / "sample.bin"
    for dtype, should in (("uint16", stated), ("int32", 2 * stated)):
        # Each id once.
        np.arange(vocabulary).astype(dtype).tofile(path)
        back = np.fromfile(path, dtype=dtype).tolist()
        assert back == list(range(vocabulary)), f"{dtype} does not keep all ids"
        got = path.stat().st_size // vocabulary * tokens
        formula = tensor_bytes((tokens,), dtype)
        assert got == formula == should, f"in {dtype} they take {got}, {formula=}, not {should} B"

    assert (vocabulary - 1).bit_length() <= element_bits("uint16"), "the last id does not fit"


@pytest.mark.claim("data.batch-shift", "data.astype-int64")
@given(
    tokens=token_arrays(names=("uint16", "int32"), least=2),
    size=sizes(1, 5),
    seed=seeds,
    share=st.floats(0, 1),
)
@example(tokens=np.arange(6000, dtype=np.uint16) * 11, size=9, seed=0, share=0.2)
def test_targets_are_the_inputs_shifted_by_one_token(folder, tokens, size, seed, share):
    length = 1 + int(share * (len(tokens) - 2))
    path = fresh(folder / "shift.bin")
    tokens.tofile(path)
    mapped = np.memmap(path, dtype=tokens.dtype, mode="r")
    x, y = batch(mapped, size, length, torch.Generator().manual_seed(seed))
    should = torch.int64, (size, length)
    for name, part in (("inputs", x), ("targets", y)):
        got = part.dtype, part.shape
        assert got == should, f"{name} are {got}, but should be {should}"

    wrong = difference(y[:, :-1], x[:, 1:])
    assert not wrong, f"targets against inputs one later: {wrong} [{size=}, {length=}, {seed=}]"

    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - length, (size,), generator=generator)
    # torch's own windows, of one token more.
    every_window = torch.tensor(tokens.tolist()).unfold(0, length + 1, 1)
    windows = every_window[starts]
    inputs = windows[:, :-1]
    targets = windows[:, 1:]
    for name, got, should in (("inputs", x, inputs), ("targets", y, targets)):
        wrong = difference(got, should)
        assert not wrong, f"{name} against the file's windows: {wrong} [{size=}, {length=}]"


@pytest.mark.claim("data.randint-bound")
@pytest.mark.parametrize(("length", "spare"), [(1, 1), (16, 1), (1, 20), (7, 12)])
def test_every_start_that_randint_draws_leaves_a_full_window(length, spare):
    tokens = np.arange(length + spare)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(tokens) - length, (50 * spare,), generator=generator)
    starts = set(drawn.tolist())
    every_one = set(range(spare))
    # One is missed once in e^50 / 20.
    assert starts == every_one, f"the starts drawn are {starts}"

    for start in starts:
        x, y = window(tokens, start, length)
        got = len(x), len(y)
        assert got == (length, length), f"from {start} there are {got} of {length} tokens"

    _, y = window(tokens, spare, length)
    assert len(y) == length - 1, f"one start more leaves {len(y)} of {length} targets"


@pytest.mark.claim("data.randint-bound")
@given(length=sizes(most=64), spare=st.integers(2**31, 2**42), seed=seeds)
def test_starts_are_safe_in_more_tokens_than_32_bits_count(length, spare, seed):
    # So many tokens that take no memory.
    tokens = np.broadcast_to(np.uint16(0), length + spare)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(len(tokens) - length, (64,), generator=generator)
    starts = drawn.tolist()
    # None is in the upper half once in 2^64.
    in_range = min(starts) >= 0 and spare // 2 <= max(starts) < spare
    assert in_range, f"the starts drawn of {spare} are {starts} [{seed=}]"

    for start in starts:
        x, y = window(tokens, start, length)
        got = len(x), len(y)
        assert got == (length, length), f"from {start} there are {got} of {length} tokens"


# The integers of up to 64 bits that torch has, with the largest of each.
WIDTHS = {
    torch.uint8: 2**8 - 1,
    torch.int16: 2**15 - 1,
    torch.uint16: 2**16 - 1,
    torch.int32: 2**31 - 1,
    torch.int64: 2**63 - 1,
}


def taken_by(function, ids, words, should):
    """The dtypes of ids that a function takes; each of their results must be as it should."""
    taken = []
    for dtype in [*WIDTHS, torch.float32]:
        if WIDTHS.get(dtype, words) < words:
            continue
        with contextlib.suppress(RuntimeError, NotImplementedError):
            got = function(ids.to(dtype)).double()
            taken.append(dtype)
            close = torch.allclose(got.cpu(), should, atol=1e-5)
            assert close, f"{function.__name__} of {dtype} gives {got}, not {should}"
    return taken


@pytest.mark.claim("data.astype-int64", "data.int-sequences")
# The last: more words than 16 bits can count.
@pytest.mark.parametrize(("words", "tokens"), [(4, 3), (1000, 5000), (70_000, 20)])
def test_int64_serves_both_embedding_and_targets(device, words, tokens):
    table = torch.randn(words, 2)
    logits = torch.randn(tokens, words)
    ids = -torch.arange(3, tokens + 3) * 7 % words

    def embedding(ids):
        return nn.functional.embedding(ids, table.to(device))

    def losses(ids):
        return nn.functional.cross_entropy(logits.to(device), ids, reduction="none")

    rows = table.double()[ids]
    wide = logits.double()
    chosen = wide[range(tokens), ids]
    by_hand = wide.exp().sum(dim=1).log() - chosen
    got = taken_by(embedding, ids.to(device), words, rows)
    assert got == [torch.int32, torch.int64], f"an embedding takes {got}"

    got = taken_by(losses, ids.to(device), words, by_hand)
    should = [torch.uint8, torch.int64] if words < 256 else [torch.int64]
    assert got == should, f"cross entropy takes {got}, but should take {should}"


@pytest.mark.claim("data.astype-int64")
def test_a_tensor_over_a_read_only_file_warns_and_over_the_cast_does_not(folder):
    path = folder / "read_only.bin"
    np.arange(10, dtype=np.int64).tofile(path)
    tokens = np.memmap(path, dtype=np.int64, mode="r")
    always = torch.is_warn_always_enabled()
    # Else it is given once in a process.
    torch.set_warn_always(True)
    try:
        with pytest.warns(UserWarning, match="not writable"):
            shared = torch.from_numpy(tokens[2:5])
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            x, _ = window(tokens, 2, 3)
    finally:
        torch.set_warn_always(always)

    got = shared.tolist(), x.tolist()
    assert got == ([2, 3, 4], [2, 3, 4]), f"the windows are {got}, but should be 2, 3, 4"

    x += 1
    assert tokens[2:5].tolist() == [2, 3, 4], f"writing to the cast changed the file to {tokens}"


@pytest.mark.claim("data.dataloader")
@pytest.mark.parametrize("how", ["in order", "shuffled", "by a sampler"])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    ("windows", "length", "size"),
    [
        (1, 1, 1),
        (2, 3, 6),
        (24, 4, 6),
        (29, 2, 5),
    ],
)
def test_an_epoch_hands_out_each_window_once(folder, windows, length, size, drop, how):
    dataset = TokenWindows(token_file(folder, windows, length), length)
    order = list(range(windows))
    if how == "by a sampler":
        order.reverse()
    options = {"sampler": order} if how == "by a sampler" else {"shuffle": how == "shuffled"}
    loader = DataLoader(dataset, batch_size=size, drop_last=drop, **options)
    expected = windows - windows % size if drop else windows
    places = torch.arange(length)
    for _ in range(2):
        seen = []
        for item in loader:
            seen += item.index.tolist()
            inputs = length * item.index[:, None] + places
            wrong = difference(item.x, inputs)
            assert not wrong, f"inputs of a batch: {wrong}"
            wrong = difference(item.y, inputs + 1)
            assert not wrong, f"targets of a batch: {wrong}"
        assert len(seen) == len(set(seen)) == expected, f"an epoch handed out {seen}"
        right = how == "shuffled" or seen == order[:expected]
        assert right, f"the order is {seen}, but should be {order[:expected]}"


@pytest.mark.claim("data.dataloader")
@pytest.mark.parametrize("windows", [2, 5_000, 2**17 + 3])
def test_a_shuffle_of_many_windows_names_each_once(windows):
    loader = DataLoader(range(windows), batch_size=None, shuffle=True)
    order = torch.tensor(list(loader.sampler))
    wrong = difference(order.sort().values, torch.arange(windows))
    assert not wrong, f"the windows of a shuffled epoch, sorted: {wrong}"


@pytest.mark.claim("data.dataloader")
# Of Python 3.12 and later where torch has threads, and of a single core.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")
def test_two_workers_share_the_file_and_the_windows(folder):
    """The file is changed while they read: both see it, because they map it and do not copy it."""
    windows = 24
    length = 4
    size = 2
    dataset = TokenWindows(token_file(folder, windows, length), length)
    # Each worker has two batches in hand: the last ones are read after the change. A worker that
    # hangs is an error.
    loader = DataLoader(dataset, batch_size=size, num_workers=2, prefetch_factor=2, timeout=120)
    batches = []
    changed = 1000
    for item in loader:
        if not batches:
            tokens = np.memmap(dataset.path, dtype=np.int32, mode="r+")
            tokens[-2 * size * length :] = changed
            tokens.flush()
        batches.append(item)

    seen = torch.cat([item.index for item in batches]).tolist()
    assert seen == list(range(windows)), f"an epoch of two workers handed out {seen}"

    workers = {worker for item in batches for worker in item.worker.tolist()}
    assert workers == {0, 1}, f"the windows were read by workers {workers}, not by 0 and 1"

    processes = {process for item in batches for process in item.process.tolist()}
    others = processes - {os.getpid()}
    assert len(others) == 2, f"they were read by the processes {processes}, not by two others"

    last = {item.worker[0].item(): item.y[-1, -1].item() for item in batches[-2:]}
    assert last == {0: changed, 1: changed}, f"the workers read {last} at the end, not {changed}"


# 16 to 128 MiB.
BATCH_FLOATS = [2**22, 2**24, 2**25]


def large_batches(pin_memory, floats):
    rows = torch.ones(4, floats // 2)
    return DataLoader(TensorDataset(rows), batch_size=2, pin_memory=pin_memory)


@pytest.mark.claim("data.pin-memory-flag")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("pin_memory", [True, False])
@pytest.mark.parametrize("floats", BATCH_FLOATS)
@pytest.mark.timed
def test_batches_are_pinned_by_the_flag_and_copied_while_the_host_goes_on(
    device, record_figure, pin_memory, floats
):
    with torch.cuda.device(device):
        target = torch.empty(2, floats // 2, device=device)
        for (rows,) in large_batches(pin_memory, floats):
            assert rows.is_pinned() == pin_memory, f"a batch is pinned: {rows.is_pinned()}"
        copies = [timed_copy(target, rows) for _ in range(5)]
        shares = sorted(returned_s / copied_s for returned_s, copied_s, _ in copies)
        record_figure(f"{pin_memory=}: the host is held for {shares[2]:.0%} of the copy")
        held = shares[2] >= 0.5
        assert held != pin_memory, f"the host was held for {shares[2]:.0%} of the copy"
        assert target.min() == target.max() == 1, "the batch did not arrive"


@pytest.mark.claim("data.pin-memory-flag", "device.nonblocking-overlap")
@pytest.mark.needs("cuda")
@pytest.mark.parametrize("floats", BATCH_FLOATS)
def test_a_pinned_batch_is_copied_beside_the_kernels_of_another_stream(device, speed, floats):
    with torch.cuda.device(device):
        target = torch.empty(2, floats // 2, device=device)
        side = torch.cuda.Stream()
        # Shorter than the copy over any link: some products balance it.
        a = torch.randn(1024, 1024, device=device)
        (pinned,), *_ = large_batches(True, floats)
        (pageable,), *_ = large_batches(False, floats)
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
        pinned_beside = functools.partial(step, pinned, side)
        for slower, what in (
            (functools.partial(step, pageable, side), "pageable against pinned batches"),
            (functools.partial(step, pinned, same), "one stream against two"),
        ):
            speed.assert_slower(slower, pinned_beside, what, at_least=1.2)


@pytest.mark.claim("data.pipeline-bottleneck", "mfu.low-causes")
@pytest.mark.parametrize("working", [False, pytest.param(True, marks=pytest.mark.needs("cpu"))])
def test_with_a_slow_loader_a_training_step_takes_as_long_as_its_data(
    workloads, device, speed, record_figure, working
):
    model = DeepLinear(dim=256, layers=4)
    net = workloads.build(model, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    item = torch.randn(64, 256)
    # Of the prompt steps before: beside other work some take much longer.
    prompt_s = deque([0.001], maxlen=20)

    def step(batches):
        began = time.perf_counter()
        x = next(batches).to(device)
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        # Waits for the device.
        loss.item()
        if batches is prompt:
            prompt_s.append(time.perf_counter() - began)

    def batches(times_a_step):
        def read(_):
            end = time.perf_counter() + times_a_step * max(mean(prompt_s), 0.001)
            # A tokeniser works, a disk lets wait.
            while working and time.perf_counter() < end:
                sorted(range(1000, 0, -1))
            time.sleep(max(0.0, end - time.perf_counter()))
            return item

        return iter(DataLoader(range(10**6), batch_size=None, collate_fn=read))

    slow = batches(5)
    prompt = batches(0)
    what = "a step behind a loader"
    ratio = speed.assert_slower(lambda: step(slow), lambda: step(prompt), what, at_least=3)
    idle = 1 - 1 / ratio.value
    record_figure(f"behind a loader of five steps' time the model is idle {idle:.0%} of the time")


@pytest.mark.claim("data.pipeline-bottleneck")
@pytest.mark.parametrize("times_a_step", [0.1, 20])
def test_a_loader_that_reads_ahead_costs_time_only_where_it_is_slower(device, speed, times_a_step):
    """The model is busy whenever a batch is there: a step takes the longer of the two times."""
    # Milliseconds a step: a thread neither sleeps nor wakes within microseconds.
    width, rows = (384, 256) if device.type == "cpu" else (4096, 1024)
    weight = torch.randn(width, width, device=device) / width**0.5
    batch = torch.randn(rows, width)

    def step(batches):
        x = next(batches).to(device)
        for _ in range(4):
            x = x @ weight

    def alone():
        step(itertools.repeat(batch))

    step_s = median(speed.seconds(alone) for _ in range(9))
    ahead = read_ahead(itertools.repeat(batch, 1000), times_a_step * step_s)
    bounds = {"at_least": 5} if times_a_step > 1 else {"at_least": 0.5, "at_most": 2}
    what = f"a step of {step_s * 1e3:.1f} ms behind a loader of {times_a_step} times its time"
    speed.assert_slower(lambda: step(ahead), alone, what, pairs=15, **bounds)
