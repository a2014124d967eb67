"""Claims about checkpoints: the state that exact resuming needs, and its bytes."""

import io
import pickle
import zipfile
from functools import lru_cache

import numpy as np
import pytest
import torch
from torch import nn

from accounting.memory import element_bytes, model_state
from accounting.models import DeepLinear, Transformer, parameter_count
from accounting.optimizers import STEP_BYTES
from test_claims.oracles import tensors
from test_claims.oracles.messages import agree, at_most, between, equal
from test_claims.oracles.training import KINDS, Training, generators_kept, kinds_on
from test_claims.strategies import TORCH_DTYPES

STEPS = 12
# In the middle of the second pass over the data, after the loss scale was cut and grew.
CUT = 6
MODEL_AND_OPTIMIZER = ("model", "optimizer")
GPUS = pytest.param("accelerator", marks=pytest.mark.needs("cuda"))


@pytest.fixture(autouse=True, scope="module")
def generators():
    """The process's generators, which these runs seed and set, as they were before."""
    with generators_kept():
        yield


@lru_cache
def uninterrupted(device, kinds, optimizer=torch.optim.AdamW, cuts=(CUT,)):
    """Losses, final weights, and checkpoints after so many steps, of a whole run."""
    run = Training(device, kinds, optimizer)
    losses = []
    checkpoints = {}
    for done in range(STEPS + 1):
        if done in cuts:
            checkpoints[done] = run.saved()
        if done < STEPS:
            losses.append(run.step())

    return losses, run.weights(), checkpoints


def difference(device, kinds, kept, cut=CUT, optimizer=torch.optim.AdamW, cuts=(CUT,)):
    """The distance of losses and final weights between a run resumed at `cut` and an unbroken one.

    It is a fresh run from the same seed, as a script started again would be; of the checkpoint it
    restores only the parts `kept`.
    """
    losses, weights, checkpoints = uninterrupted(device, kinds, optimizer, cuts)
    resumed = Training(device, kinds, optimizer).restored(checkpoints[cut], kept)
    got = np.array([*resumed.losses(STEPS - cut), *resumed.weights()])
    return np.abs(got - np.array([*losses[cut:], *weights])).max()


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param((), marks=pytest.mark.claim("ckpt.model-plus-optimizer"), id="no other state"),
        pytest.param(
            ("step", "torch", "accelerator"),
            marks=pytest.mark.claim("ckpt.full"),
            id="step and generator",
        ),
        pytest.param(
            (*KINDS, "accelerator"),
            marks=pytest.mark.claim("ckpt.full", "ckpt.model-plus-optimizer"),
            id="every kind",
        ),
    ],
)
def test_a_run_resumes_exactly_at_every_cut_from_all_its_state(device, kinds):
    kinds = tuple(kind for kind in kinds if kind in kinds_on(device))
    every = range(STEPS + 1)
    for cut in every:
        off = difference(device, kinds, (*MODEL_AND_OPTIMIZER, *kinds), cut, cuts=every)
        equal(off, 0, "how far the resumed run is off", cut=cut)


@pytest.mark.claim("ckpt.full", "ckpt.model-plus-optimizer")
@pytest.mark.parametrize("lost", [*MODEL_AND_OPTIMIZER, *KINDS, GPUS])
def test_without_any_one_part_the_run_goes_another_way(device, record_figure, lost):
    kinds = kinds_on(device)
    kept = [part for part in (*MODEL_AND_OPTIMIZER, *kinds) if part != lost]
    off = difference(device, kinds, kept)
    record_figure(f"without {lost} off by {off:.2g}")
    assert off > 0, f"resumed exactly although {lost} was not restored"


@pytest.mark.claim("ckpt.optimizer-matters")
@pytest.mark.parametrize("name", tensors.OPTIMIZERS)
def test_dropping_an_optimizers_state_changes_training_if_it_has_any(device, record_figure, name):
    optimizer = tensors.OPTIMIZERS[name]
    late = {"cut": STEPS - 3, "optimizer": optimizer, "cuts": (STEPS - 3,)}
    dropped = difference(device, (), ("model",), **late)
    kept = difference(device, (), MODEL_AND_OPTIMIZER, **late)
    record_figure(f"{name} off by {dropped:.2g}")
    equal(kept, 0, "how far the resumed run is off")

    equal(dropped > 0, name != "sgd", "whether a run without the state is off")


@pytest.mark.claim("ckpt.periodic")
@pytest.mark.parametrize(
    ("every", "crashes"),
    [
        (1, [5]),
        (4, [4, 4]),
        (5, [3, 12]),
        (13, [1, 7]),
        (3, []),
    ],
    ids=str,
)
def test_a_run_goes_on_from_a_checkpoint_as_if_it_never_crashed(device, every, crashes):
    kinds = kinds_on(device)
    losses, weights, _ = uninterrupted(device, kinds)
    run = Training(device, kinds)
    got = []
    for crash in crashes:
        while run.steps < crash:
            if run.steps % every == 0:
                checkpoint = run.saved()
            got.append(run.step())
        run = Training(device, kinds)
        run.restored(checkpoint, run.parts)
        between(crash - run.steps, 1, every, "steps to be repeated")
        del got[run.steps :]

    got += run.losses(STEPS - run.steps)
    equal(got, losses, "the losses")
    equal(run.weights(), weights, "the weights")


def saved(thing):
    file = io.BytesIO()
    torch.save(thing, file)
    return file


def loaded(thing, **options):
    file = saved(thing)
    file.seek(0)
    return torch.load(file, **options)


@pytest.mark.claim("ckpt.load", "ckpt.periodic")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("elements", [5, 4_099, 2**20 + 3])
def test_tensors_that_share_memory_come_back_whole_and_sharing_it(
    device, tmp_path, elements, dtype
):
    table = torch.randn(elements).to(device, dtype)
    thing = {"embedding": table, "head": table, "tail": table[1:], "third": table[::3]}
    # The last one saved is what is loaded.
    for each in ({}, thing):
        torch.save(each, tmp_path / "file")
    ways = {
        "load": loaded(thing),
        "map_location": loaded(thing, map_location="cpu"),
        "a path": torch.load(tmp_path / "file"),
        "mmap": torch.load(tmp_path / "file", mmap=True, map_location="cpu"),
        "weights_only=False": loaded(thing, weights_only=False),
    }
    for way, back in ways.items():
        for name, x in thing.items():
            equal(back[name], x, name, way=way)
            equal(back[name].stride(), x.stride(), f"strides of {name}", way=way)
            shared = tensors.shares_storage(back[name], back["embedding"])
            equal(shared, True, f"whether {name} shares the table's storage", way=way)


@pytest.mark.claim("ckpt.load")
def test_torch_load_returns_what_load_state_dict_must_put_back(device):
    run = Training(device)
    fresh = Training(device, seed=1)
    run.losses(3)
    before = fresh.weights()
    checkpoint = loaded({"model": run.net.state_dict(), "optimizer": run.optimizer.state_dict()})
    equal(fresh.weights(), before, "the weights after torch.load")
    assert not fresh.optimizer.state, "torch.load changed an optimizer by itself"

    fresh.net.load_state_dict(checkpoint["model"])
    fresh.optimizer.load_state_dict(checkpoint["optimizer"])
    equal(fresh.weights(), run.weights(), "the weights after load_state_dict")

    restored = list(fresh.optimizer.state.values())
    saved_state = list(run.optimizer.state.values())
    equal(len(restored), len(saved_state), "parameters with a state")

    for got, should in zip(restored, saved_state, strict=True):
        for name in ("exp_avg", "exp_avg_sq", "step"):
            equal(got[name], should[name], "the state", name=name)

    equal(fresh.losses(2), run.losses(2), "the losses of the restored run")


REFUSED = {
    "numpy's generator": np.random.get_state(),  # noqa: NPY002 - the global one
    "a numpy generator": np.random.default_rng(0),
    "np.float64": {"loss": np.float64(0.5)},
    "an array": np.zeros(3),
    "a class of one's own": Training,
    "a frozen set": frozenset({1}),
    "a range": range(3),
}


@pytest.mark.claim("ckpt.load")
@pytest.mark.parametrize("thing", REFUSED)
def test_what_is_no_tensor_and_no_plain_type_is_refused_by_default(thing):
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        loaded(REFUSED[thing])
    trusted = loaded(REFUSED[thing], weights_only=False)
    equal(type(trusted), type(REFUSED[thing]), "what weights_only=False gives")


@pytest.mark.claim("ckpt.load")
def test_another_shape_is_refused_and_optimizer_state_goes_by_position():
    wide = nn.Linear(4, 2)
    narrow = nn.Linear(3, 2)
    with pytest.raises(RuntimeError, match="size mismatch"):
        narrow.load_state_dict(loaded(wide.state_dict()))
    a = nn.Parameter(torch.zeros(2))
    b = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([a, b], lr=0.1, momentum=0.9)
    a.grad = torch.ones(2)
    b.grad = torch.zeros(3)
    optimizer.step()
    swapped = torch.optim.SGD([b, a], lr=0.1, momentum=0.9)
    swapped.load_state_dict(loaded(optimizer.state_dict()))
    # State goes by position: b took the place of a.
    equal(swapped.state[b]["momentum_buffer"].tolist(), [1, 1], "the momentum of b")


def entries(file):
    """Bytes of the storages in a checkpoint file, and of all the rest of it."""
    with zipfile.ZipFile(file) as archive:
        sizes = [entry.file_size for entry in archive.infolist() if "/data/" in entry.filename]
    storages = sum(sizes)
    return storages, len(file.getbuffer()) - storages


MODELS = [
    DeepLinear(dim=1, layers=1),
    DeepLinear(dim=40, layers=4, bias=True),
    DeepLinear(dim=130, layers=2),
    Transformer(vocab_size=30, layers=1, dim=8, heads=2, hidden=16, tied_embedding=True),
]


@pytest.mark.claim("ckpt.size")
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_checkpoint_takes_four_bytes_per_parameter_and_twelve_with_adamw(
    workloads, device, model
):
    net = workloads.build(model, device=device)
    stepper = torch.optim.AdamW(net.parameters())
    tensors.train(net, stepper, workloads.inputs(model, 2, device=device))
    n = parameter_count(model)
    count = len(list(net.parameters()))
    weights, header = entries(saved(net.state_dict()))
    training = {"model": net.state_dict(), "optimizer": stepper.state_dict()}
    both, header_of_both = entries(saved(training))
    formula = model_state(n)
    agree("bytes of the model", file=weights, formula=formula.parameters, by_hand=4 * n)

    should = formula.parameters + formula.state + STEP_BYTES * count
    by_hand = 12 * n + 4 * count
    agree("bytes with AdamW", file=both, formula=should, by_hand=by_hand)
    # A zip entry's two headers, its name twice, padding to 64 bytes and the pickled description:
    # under 400 bytes each.
    at_most(header, 2000 + 400 * count, "bytes of the header")

    at_most(header_of_both, 4000 + 4 * 400 * count, "bytes of the header with AdamW")


@pytest.mark.claim("ckpt.size")
@pytest.mark.parametrize(
    ("floats", "dtype"),
    [
        (1, "fp64"),
        (2000, "fp32"),
        (77, "bf16"),
        (2**17 + 1, "fp8_e4m3"),
    ],
)
def test_bytes_follow_the_dtype_and_a_view_is_saved_with_all_its_storage(floats, dtype):
    x = torch.zeros(floats, dtype=TORCH_DTYPES[dtype])
    whole, _ = entries(saved(x))
    view, _ = entries(saved(x[:1]))
    copy, _ = entries(saved(x[:1].clone()))
    should = element_bytes(floats, dtype)
    one = element_bytes(1, dtype)
    equal(whole, should, "bytes in the file")
    equal(view, whole, "bytes of a view of one element")
    equal(copy, one, "bytes of a copy of one element")
