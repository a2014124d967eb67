"""Claims about data loading: token files, windows of them, loaders, and idle time."""

import contextlib
import itertools
import math
import os
import sys
import time
import warnings
from collections import deque
from functools import partial
from statistics import mean

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from accounting.formats import element_bits
from accounting.memory import tensor_bytes
from accounting.models import DeepLinear
from test_claims.oracles.kernels import timed_copy
from test_claims.oracles.messages import agree, at_most, between, close, equal
from test_claims.oracles.tokens import (
    batch,
    fresh,
    resident_bytes,
    sparse_file,
    window,
)
from test_claims.strategies import seeds, sizes

INTEGERS = ("uint8", "uint16", "int16", "int32", "int64")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of this module's token files."""
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
@pytest.mark.parametrize("dtype", INTEGERS)
def test_a_text_is_integers_that_a_model_takes_and_that_give_it_back(
    folder, device, text, length, dtype
):
    """Each byte of the text is a token, as in the vocabularies that every other is built on."""
    path, saved = (fresh(folder / name) for name in ("text.bin", "text.npy"))
    encoded = text.encode() + b"\n" * length
    array = np.frombuffer(encoded, dtype=np.uint8).astype(dtype)
    array.tofile(path)
    np.save(saved, array)
    tokens = np.memmap(path, dtype=dtype, mode="r")
    for read in (tokens, np.fromfile(path, dtype), np.load(saved)):
        equal((read.dtype, read.tolist()), (np.dtype(dtype), [*encoded]), "what a file gives")
    equal(path.stat().st_size, tensor_bytes(tokens.shape, dtype), "bytes of the file")

    x, y = window(tokens, 0, length)
    table = torch.eye(256, device=device)
    logits = nn.functional.embedding(x.to(device), table)
    equal(bytes(logits.argmax(-1).tolist()), encoded[:length], "the rows looked up")

    loss = nn.functional.cross_entropy(logits, y.to(device)).item()
    # Logits are 1 for the input's own token, and 0 for all others.
    pairs = itertools.pairwise(encoded[: length + 1])
    repeated = sum(one == next_one for one, next_one in pairs)
    should = math.log(255 + math.e) - repeated / length
    close(loss, should, "the loss", rel=1e-5)


TOUCHED = 64
# The largest page that a system may map for one that is touched.
READ_AROUND_BYTES = 2 * 2**20


@pytest.fixture
def large_file(folder):
    """A sparse .npy file twice as large as memory, where its tokens begin, and those at 64 places.

    The rest is zeros.
    """
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    number = max(2 * memory_bytes, 8 * 2**30) // 4
    header = {"descr": np.dtype(np.int32).str, "fortran_order": False, "shape": (number,)}
    apart = number // TOUCHED - 37
    marks = {place * apart: 1000 + place for place in range(TOUCHED)}
    try:
        path = sparse_file(folder / "large.npy", 4 * number)
        np.memmap(path, dtype=np.int32, mode="r")
    except OSError as error:
        pytest.skip(f"no file of {number / 2**28:.0f} GiB can be made and mapped: {error}")

    with open(path, "r+b") as file:
        np.lib.format.write_array_header_1_0(file, header)
        start = file.tell()
        file.truncate(start + 4 * number)
        for index, token in marks.items():
            file.seek(start + 4 * index)
            file.write(token.to_bytes(4, sys.byteorder))

    yield path, start, marks
    path.unlink()


# Ways to open the tokens that begin somewhere in a file.
MAPPED = {
    "np.memmap": lambda path, start: np.memmap(path, np.int32, "r")[start // 4 :],
    "from an offset": lambda path, start: np.memmap(path, np.int32, "r", start),
    "to write": lambda path, start: np.memmap(path, np.int32, "r+", start),
    "np.load": lambda path, _: np.load(path, mmap_mode="r"),
}


@pytest.mark.claim("data.memmap-lazy")
# Not on Windows, where a file is sparse only on request.
@pytest.mark.needs("resource")
@pytest.mark.parametrize("how", MAPPED)
def test_reading_64_tokens_of_a_huge_file_leaves_as_many_pages(large_file, record_figure, how):
    path, start, marks = large_file
    tokens = MAPPED[how](path, start)
    quarter = tokens[len(tokens) // 4 : len(tokens) // 2]
    opened = resident_bytes(tokens)
    got = {index: int(tokens[index]) for index in marks}
    touched = resident_bytes(tokens)
    equal(got, marks, "the tokens read")

    nbytes = path.stat().st_size - start
    record_figure(f"of {nbytes / 2**30:.0f} GiB, {touched / 2**20:.1f} MiB are in memory")
    equal(tokens.nbytes, nbytes, "bytes of the mapped array")

    close(quarter.nbytes, nbytes / 4, "bytes of a slice of a quarter", within=8)
    equal(opened, 0, "bytes in memory after opening")

    at_most(touched, TOUCHED * READ_AROUND_BYTES, "bytes in memory for 64 tokens")


# An array, backwards, and of two dimensions by rows and by columns.
ARRANGED = (
    lambda tokens: tokens,
    lambda tokens: tokens[::-1],
    lambda tokens: np.stack([tokens, tokens]),
    lambda tokens: np.stack([tokens, tokens], axis=1).T,
)


@pytest.mark.claim("data.memmap-npy")
@given(tokens=token_arrays(least=1), arranged=st.sampled_from(ARRANGED))
@example(tokens=np.arange(1000, dtype=np.int32), arranged=ARRANGED[0])
def test_np_memmap_reads_the_header_of_a_npy_file_as_tokens(folder, tokens, arranged):
    path = fresh(folder / "header.npy")
    raw = fresh(folder / "raw.npy")
    tokens = arranged(tokens)
    np.save(path, tokens)
    tokens.tofile(raw)
    contents = path.read_bytes()
    header = len(contents) - tokens.nbytes
    # A magic string, two bytes of version, two of the length that follows; padded to 64 bytes.
    declared = 10 + int.from_bytes(contents[8:10], "little")
    equal(header, declared, "bytes of the header")
    equal(header % 64, 0, "the header's bytes beyond a multiple of 64")

    as_written = np.memmap(path, dtype=tokens.dtype, mode="r")
    extra = header // tokens.itemsize
    equal(len(as_written), tokens.size + extra, "tokens mapped raw")

    equal(as_written[:extra].tobytes(), contents[:header], "what comes before the tokens")

    first = int.from_bytes(contents[:4], "little")
    if tokens.size == 1000:
        equal((extra, first), (32, 1297436307), "tokens of the header, and the first")

    by_columns = "F" if tokens.flags.fnc else "C"
    options = {"dtype": tokens.dtype, "mode": "r", "shape": tokens.shape}
    corrected = {
        "np.load(mmap_mode='r')": np.load(path, mmap_mode="r"),
        "np.memmap(offset=)": np.memmap(path, offset=header, order=by_columns, **options),
        "np.memmap of a raw file": np.memmap(raw, **options),
    }
    for name, array in corrected.items():
        equal(array.tolist(), tokens.tolist(), "the tokens", name=name)
        equal((type(array), array.dtype), (np.memmap, tokens.dtype), "their array", name=name)


@pytest.mark.claim("data.uint16")
@given(ids=st.lists(st.integers(0, 2**17), min_size=1, max_size=30))
@example(ids=[*range(2**16 + 9)])
def test_uint16_keeps_ids_below_65536_and_wraps_the_others_silently(folder, ids):
    path = fresh(folder / "narrow.bin")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.array(ids).astype(np.uint16).tofile(path)

    equal(path.stat().st_size, tensor_bytes((len(ids),), "uint16"), "bytes of the file")
    should = [token % 65536 for token in ids]
    for read in (np.memmap, np.fromfile):
        got = read(path, dtype=np.uint16)
        equal(got.tolist(), should, "the ids that come back", read=read)
        for convert in (torch.from_numpy, torch.as_tensor, torch.tensor):
            wide = convert(np.array(got)).long()
            equal(wide.tolist(), should, "the ids in a tensor", read=read, convert=convert)


@pytest.mark.claim("data.uint16")
@pytest.mark.parametrize("token", [-1, 65536, 70000])
def test_an_array_of_python_integers_does_not_take_what_does_not_fit(token):
    for made in (np.array, np.asarray):
        equal(made([65535], dtype=np.uint16).tolist(), [65535], "what fits")
        warned = pytest.warns(DeprecationWarning, match="bound")
        with pytest.raises(OverflowError) if np.__version__ >= "2" else warned:
            made([token], dtype=np.uint16)


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
        equal(back, list(range(vocabulary)), "ids that come back", dtype=dtype)
        got = path.stat().st_size // vocabulary * tokens
        formula = tensor_bytes((tokens,), dtype)
        agree("bytes", file=got, formula=formula, should=should)

    at_most((vocabulary - 1).bit_length(), element_bits("uint16"), "bits of the last id")


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
    for part in (x, y):
        equal((part.dtype, part.shape), should, "dtype and shape")

    equal(y[:, :-1], x[:, 1:], "targets")

    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(tokens) - length, (size,), generator=generator)
    # torch's own windows, of one token more.
    every_window = torch.tensor(tokens.tolist()).unfold(0, length + 1, 1)
    windows = every_window[starts]
    equal(x, windows[:, :-1], "inputs")
    equal(y, windows[:, 1:], "targets")


@pytest.mark.claim("data.randint-bound")
@pytest.mark.parametrize(("length", "spare"), [(1, 1), (16, 1), (7, 12), (3, 600)])
def test_every_start_that_randint_draws_leaves_a_full_window(length, spare):
    tokens = np.arange(length + spare)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(len(tokens) - length, (50 * spare,), generator=generator)
    starts = set(drawn.tolist())
    # One is missed once in e^50 / 600.
    equal(starts, set(range(spare)), "the starts drawn")

    for start in starts:
        x, y = window(tokens, start, length)
        equal((len(x), len(y)), (length, length), "tokens of a window", start=start)

    _, y = window(tokens, spare, length)
    equal(len(y), length - 1, "targets of one start more")


@pytest.mark.claim("data.randint-bound")
@pytest.mark.parametrize("tokens", [5000, 2**24 + 9, 2**31 + 9, 14 * 10**11])
def test_starts_are_drawn_from_all_of_a_large_file(tokens):
    """Beyond 2^24 fp32 has no odd numbers, and beyond 2^31 int32 has none."""
    generator = torch.Generator().manual_seed(0)
    bound = tokens - 16
    starts = torch.randint(bound, (2**16,), generator=generator)
    # Each bound is missed once in e^60.
    halves = starts.double() >= bound / 2
    for name, share in (("odd", starts % 2 == 1), ("in the second half", halves)):
        close(share.double().mean().item(), 0.5, "the share of starts", within=0.03, name=name)
    between(int(starts.max()), 0.998 * bound, bound - 1, "the last start")
    between(int(starts.min()), 0, 0.002 * bound, "the first start")


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
            equal(
                got.cpu().allclose(should, atol=1e-5), True, "whether values are right", dtype=dtype
            )
    return taken


@pytest.mark.claim("data.astype-int64", "data.int-sequences")
# The last: more words than 16 bits can count.
@pytest.mark.parametrize(("words", "tokens"), [(4, 3), (200, 300), (300, 5000), (70_000, 20)])
def test_int64_serves_both_embedding_and_targets(device, words, tokens):
    table = torch.randn(words, 2).bfloat16()
    logits = torch.randn(tokens, words)
    ids = -torch.arange(3, tokens + 3) * 7 % words

    def embedding(ids):
        return nn.Embedding.from_pretrained(table.float().to(device))(ids)

    def losses(ids):
        return nn.functional.cross_entropy(logits.to(device), ids, reduction="none")

    def losses_of_a_sequence(ids):
        one = logits.to(device).T[None]
        return nn.functional.cross_entropy(one, ids[None], reduction="none")[0]

    rows = table.double()[ids]
    wide = logits.double()
    chosen = wide[range(tokens), ids]
    by_hand = wide.exp().sum(dim=1).log() - chosen
    got = taken_by(embedding, ids.to(device), words, rows)
    equal(got, [torch.int32, torch.int64], "dtypes that an embedding takes")

    narrow = [torch.uint8] if words < 256 else []
    got = taken_by(losses, ids.to(device), words, by_hand)
    equal(got, [*narrow, torch.int64], "dtypes that losses take")
    got = taken_by(losses_of_a_sequence, ids.to(device), words, by_hand)
    equal(got, [torch.int64], "dtypes that losses of a sequence take")


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

    equal((shared.tolist(), x.tolist()), ([2, 3, 4], [2, 3, 4]), "the windows")

    x += 1
    equal(tokens[2:5].tolist(), [2, 3, 4], "the file after writing to the cast")


# The arguments that give a loader the order of windows, and the order where it is not drawn.
SAMPLED = {
    "in order": lambda order: {},
    "shuffled": lambda order: {"shuffle": True},
    "shuffled by a generator": lambda order: {"shuffle": True, "generator": torch.Generator()},
    "by a sampler": lambda order: {"sampler": order[::-1]},
}


def windows_of(folder, number, length):
    """Each window of a file with the place where it starts."""
    path = fresh(folder / "windows.bin")
    np.arange(number * length + 1, dtype=np.int32).tofile(path)
    tokens = np.memmap(path, dtype=np.int32, mode="r")
    return [(start, *window(tokens, start * length, length)) for start in range(number)]


def starts_of(loader, length):
    """The places of an epoch's windows, whose inputs and targets must be theirs."""
    seen = []
    for starts, x, y in loader:
        seen += starts.tolist()
        inputs = length * starts[:, None] + torch.arange(length)
        equal(x, inputs, "inputs")
        equal(y, inputs + 1, "targets")
    return seen


@pytest.mark.claim("data.dataloader")
@pytest.mark.parametrize("how", SAMPLED)
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize(
    ("windows", "length", "size"),
    [
        (1, 1, 1),
        (2, 3, 6),
        (29, 2, 5),
        (300, 1, 32),
    ],
)
def test_an_epoch_hands_out_each_window_once(folder, windows, length, size, drop, how):
    order = list(range(windows))
    options = SAMPLED[how](order)
    dataset = windows_of(folder, windows, length)
    loader = DataLoader(dataset, batch_size=size, drop_last=drop, **options)
    expected = windows - windows % size if drop else windows
    for _ in range(2):
        seen = starts_of(loader, length)
        agree("windows of an epoch", got=len(seen), distinct=len(set(seen)), should=expected)
        if not how.startswith("shuffled"):
            equal(seen, options.get("sampler", order)[:expected], "the order")


@pytest.mark.claim("data.dataloader")
@pytest.mark.parametrize("shuffle", [False, True])
def test_workers_and_ranks_share_an_epochs_windows(folder, shuffle):
    dataset = windows_of(folder, 12, 2)
    seen = []
    for rank in range(3):
        sampler = DistributedSampler(dataset, 3, rank, shuffle)
        # Starting workers takes longer than all the rest.
        workers = rank if shuffle else 0
        seen += starts_of(DataLoader(dataset, 2, sampler=sampler, num_workers=workers), 2)
    equal(sorted(seen), list(range(12)), "the windows of all ranks")


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
            equal(rows.is_pinned(), pin_memory, "whether a batch is pinned")
        copies = [timed_copy(target, rows) for _ in range(5)]
        shares = sorted(returned_s / copied_s for returned_s, copied_s, _ in copies)
        record_figure(f"{pin_memory=}: the host is held for {shares[2]:.0%} of the copy")
        equal(shares[2] < 0.5, pin_memory, "whether the host is free during a copy")
        equal((target.min(), target.max()), (1, 1), "what arrives")


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
        pinned_beside = partial(step, pinned, side)
        for slower, what in (
            (partial(step, pageable, side), "pageable against pinned batches"),
            (partial(step, pinned, same), "one stream against two"),
        ):
            speed.assert_slower(slower, pinned_beside, what, at_least=1.2)


@pytest.mark.claim("data.pipeline-bottleneck", "mfu.low-causes")
def test_with_a_slow_loader_a_training_step_takes_as_long_as_its_data(
    workloads, device, speed, record_figure
):
    model = DeepLinear(dim=256, layers=4)
    net = workloads.build(model, device=device)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4)
    item = torch.randn(64, 256)
    # The mean of many steps: beside other work some take much longer.
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
            time.sleep(times_a_step * max(mean(prompt_s), 0.001))
            return item

        return iter(DataLoader(range(10**6), batch_size=None, collate_fn=read))

    slow = batches(5)
    prompt = batches(0)
    what = "a step behind a loader"
    ratio = speed.assert_slower(lambda: step(slow), lambda: step(prompt), what, at_least=3)
    idle = 1 - 1 / ratio.value
    record_figure(f"behind a loader of five steps' time the model is idle {idle:.0%} of the time")
