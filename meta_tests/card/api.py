"""Shows the card to Python: the attributes of tensors, the functions of `torch.cuda`, NVML.

The patches last as long as the block, and reach what asks torch at call time. The host's clock
reaches those modules that import `time.perf_counter` within the block.
"""

import time
import warnings
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext

from meta_tests.card.card import SLEEP_HZ, Stream
from meta_tests.card.kernels import Kernels, _state_of

CPU = torch.device("cpu")
ROUNDING_S = 1e-12


@contextmanager
def simulated(card):
    """Within, torch has this card."""
    from prooflops.machine import device

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        # torch.jit reads functions that are patched below.
        import torch.distributed.optim

    getattr(torch._C, "_ensureCUDADeviceGuardSet", lambda: None)()
    kernels = Kernels(card)
    device.name.cache_clear()
    with ExitStack() as stack:
        stack.callback(device.name.cache_clear)
        for place, names in _patches(card, kernels):
            for name, value in names.items():
                stack.enter_context(patch.object(place, name, value, create=True))
        stack.enter_context(kernels)
        yield kernels


def _patches(card, kernels):
    from prooflops.machine import sampling
    from prooflops.memory import prediction, tracker
    from prooflops.memory.cuda import fake
    from prooflops_gate.machine import nvml

    made = [
        (torch.Tensor, _tensor(card, kernels)),
        (torch.UntypedStorage, _storage(card, kernels)),
        (torch, _factories(card, kernels)),
        (time, _host_clock(card)),
        (torch.accelerator, {"empty_host_cache": kernels.pinned_cache.clear}),
    ]
    # What DataLoader and the optimizers ask.
    there = {"is_available": lambda: True, "current_accelerator": lambda *_, **__: card.device}
    there |= {"current_stream": lambda *_: SimpleNamespace(is_capturing=lambda: False)}
    made += [(torch.accelerator, there)]
    # A thread that samples would make this one wait for Python's lock, which counts as sleep.
    made += [(sampling, {"FIRST_S": 1e6})]
    # C++ would ask the driver for a stream.
    no = {"can_fake_cuda": lambda: False}
    made += [(module, no) for module in (fake, prediction, tracker)]
    made += [(nvml, {"library": lambda: _nvml(card)})]
    made += [(torch.version, {"hip": None, "cuda": "13.0"})]
    return [*made, (torch.cuda, _cuda(card, kernels))]


def _host_clock(card):
    def perf_counter():
        return card.now()

    # pytest-benchmark finds its timers by their names.
    perf_counter.__module__ = "time"
    return {"perf_counter": perf_counter, "perf_counter_ns": lambda: round(1e9 * card.now())}


def _to(card, kernels):
    """Tensor.to, which C++ would ask a driver for."""
    real = torch.Tensor.to

    class Crossing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, device, options):
            ctx.origin = x.device
            ctx.dtype = x.dtype
            return crossed(x, device, **options)

        @staticmethod
        def backward(ctx, gradient):
            return to(gradient, ctx.origin, ctx.dtype), None, None

    def crossed(x, device, **options):
        options = {name: value for name, value in options.items() if value is not None}
        if device.type == card.device.type:
            return torch.ops.aten._to_copy.default(x, device=device, **options)
        with kernels.to_host():
            return torch.ops.aten._to_copy.default(x, device=CPU, **options)

    def to(x, *args, **kwargs):
        if "torch_dtype" in kwargs:
            kwargs["dtype"] = kwargs.pop("torch_dtype")
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args, kwargs = args[1:], {"device": args[0].device, "dtype": args[0].dtype, **kwargs}
        device, dtype, late, layout = torch._C._nn._parse_to(*args, **kwargs)
        plain = type(x) in (Tensor, torch.nn.Parameter) and not x.is_meta
        if not plain or (device is not None and device.type not in ("cpu", card.device.type)):
            return real(x, *args, **kwargs)
        device = device or x.device
        if device.type == x.device.type:
            options = {"memory_format": layout} if layout is not None else {}
            return real(x, dtype=dtype or x.dtype, copy=copy, **options)
        options = {"dtype": dtype, "non_blocking": late, "memory_format": layout}
        if x.requires_grad and torch.is_grad_enabled():
            return Crossing.apply(x, device, options)
        return crossed(x, device, **options)

    return to


def _tensor(card, kernels):
    real = {name: getattr(torch.Tensor, name) for name in ("device", "tolist", "data_ptr", "numpy")}
    to = _to(card, kernels)

    def numpy(x, *, force=False):
        if kernels.has(x) and not force:
            raise TypeError(f"can't convert {x.device} device type tensor to numpy")
        return real["numpy"](x.cpu() if kernels.has(x) else x, force=force)

    def data_ptr(x):
        begin = kernels.address(x.untyped_storage()) if kernels.has(x) else None
        return (
            real["data_ptr"](x) if begin is None else begin + x.storage_offset() * x.element_size()
        )

    def pin_memory(x, device=None):
        return x if kernels.is_pinned(x) else kernels.pin(x.detach().clone())

    def device(x):
        return card.device if kernels.has(x) else real["device"].__get__(x)

    def new_tensor(x, data, *, dtype=None, device=None, **options):
        return torch.tensor(data, dtype=dtype or x.dtype, device=device or x.device, **options)

    return {
        "new_tensor": new_tensor,
        "is_cuda": property(lambda x: device(x).type == "cuda"),
        "is_cpu": property(lambda x: device(x).type == "cpu"),
        "device": property(device),
        "get_device": lambda x: 0 if kernels.has(x) else -1,
        "to": to,
        "cpu": lambda x, memory_format=None: to(x, CPU),
        "numpy": numpy,
        "tolist": lambda x: real["tolist"](to(x.detach(), CPU) if kernels.has(x) else x),
        "data_ptr": data_ptr,
        "pin_memory": pin_memory,
        "is_pinned": lambda x, device=None: kernels.is_pinned(x),
    }


def _storage(card, kernels):
    real = {name: getattr(torch.UntypedStorage, name) for name in ("device", "data_ptr", "clone")}

    def data_ptr(storage):
        begin = kernels.address(storage)
        return real["data_ptr"](storage) if begin is None else begin

    def bytes_of(storage):
        return torch.empty(0, dtype=torch.uint8).set_(storage)

    def clone(storage):
        here = kernels.address(storage) is not None
        return bytes_of(storage).clone().untyped_storage() if here else real["clone"](storage)

    def to(storage, *, device, non_blocking=False):
        return bytes_of(storage).to(device, non_blocking=non_blocking).untyped_storage()

    def device(storage):
        if kernels.address(storage) is None:
            return real["device"].__get__(storage)
        return card.device

    # torch.load puts storages on the card by `to`.
    return {
        "device": property(device),
        "data_ptr": data_ptr,
        "clone": clone,
        "to": to,
    }


def _factories(card, kernels):
    real_tensor = torch.tensor
    real_as_tensor = torch.as_tensor
    real_generator = torch._C.Generator
    real_enable = torch.set_autocast_enabled
    real_dtype = torch.set_autocast_dtype

    def tensor(
        data,
        *,
        dtype=None,
        device=None,
        requires_grad=False,
        pin_memory=False,
    ):
        device = torch.device(device) if device is not None else _default_device()
        if device.type == card.device.type:
            made = real_tensor(data, dtype=dtype, device=CPU).to(device)
        else:
            made = real_tensor(data, dtype=dtype, device=device)
            if pin_memory:
                made = made.pin_memory()
        return made.requires_grad_(requires_grad)

    def as_tensor(data, dtype=None, device=None):
        if isinstance(data, Tensor):
            return data.to(device=device or data.device, dtype=dtype or data.dtype)
        made = real_as_tensor(data, dtype=dtype, device=CPU)
        return made.to(device if device is not None else _default_device())

    class Generator(real_generator):
        def __new__(cls, *_, **__):
            return super().__new__(cls)

        def __init__(self, device="cpu"):
            self._device = card.device if torch.device(device).type == card.device.type else CPU
            if self._device != CPU:
                kernels.addresses_of_generators.add(self._cdata)
                self.manual_seed(0)

        @property
        def device(self):
            return self._device

        def manual_seed(self, seed):
            if self._device != CPU:
                self.set_state(_state_of(seed))
                return self
            return super().manual_seed(seed)

    def set_autocast_enabled(kind, enabled=None):
        if isinstance(kind, str) and kind == card.device.type:
            # C++ sees tensors of the CPU, which autocast by the CPU's lists.
            real_enable("cpu", enabled)
        real_enable(kind, enabled) if enabled is not None else real_enable(kind)

    def set_autocast_dtype(kind, dtype):
        if kind == card.device.type:
            real_dtype("cpu", dtype)
        real_dtype(kind, dtype)

    return {
        "tensor": tensor,
        "as_tensor": as_tensor,
        "Generator": Generator,
        "set_autocast_enabled": set_autocast_enabled,
        "set_autocast_dtype": set_autocast_dtype,
    }


def _default_device():
    """As torch.get_default_device, which makes a tensor to find out."""
    contexts = [
        mode for mode in _get_current_function_mode_stack() if isinstance(mode, DeviceContext)
    ]
    return torch.device(contexts[-1].device) if contexts else CPU


def _streams(card):
    class CardStream(Stream):
        device = card.device

        def __init__(self, device=None, **_):
            CardStream.made = stream_id = getattr(CardStream, "made", 0) + 1
            super().__init__(stream_id)

        def query(self):
            return self.ready_s <= card.queue_now() + ROUNDING_S

        def synchronize(self):
            card.synchronise(self.ready_s)

        def wait_stream(self, other):
            self.ready_s = max(self.ready_s, other.ready_s)

    class Event:
        def __init__(self, enable_timing=False, **_):
            self.time_s = None

        def record(self, stream=None):
            card.check()
            card.counts.operations += 1
            stream = stream or card.stream
            self.time_s = stream.ready_s = max(stream.ready_s, card.queue_now())

        def query(self):
            return self.time_s is None or self.time_s <= card.queue_now() + ROUNDING_S

        def synchronize(self):
            if self.time_s is not None:
                card.synchronise(self.time_s)

        def elapsed_time(self, later):
            assert self.time_s is not None, "the event was not recorded"
            assert later.time_s is not None, "the event was not recorded"
            if not (self.query() and later.query()):
                raise RuntimeError("CUDA error: device not ready")
            return 1e3 * (later.time_s - self.time_s)

    card.default_stream = card.stream = CardStream()
    return CardStream, Event


def _properties(card):
    major, minor = map(int, card.row.arch.split("."))
    return SimpleNamespace(
        name=card.name,
        major=major,
        minor=minor,
        total_memory=card.memory_bytes,
        multi_processor_count=card.row.units,
        L2_cache_size=card.cache_bytes,
        uuid="00000000-0000-0000-0000-000000000000",
        gcnArchName="",
    )


def _cuda(card, kernels):
    """The functions of `torch.cuda` except those about memory and random numbers."""
    stream_class, event_class = _streams(card)
    properties = _properties(card)

    @contextmanager
    def stream(chosen):
        before = card.stream
        card.stream = chosen or card.stream
        try:
            yield
        finally:
            card.stream = before

    return _cuda_state(card, kernels) | {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_initialized": True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        # A class, of which torch asks whether a device is one.
        "device": nullcontext,
        "_is_in_bad_fork": lambda: False,
        "synchronize": lambda device=None: card.synchronise(),
        "Stream": stream_class,
        "Event": event_class,
        "current_stream": lambda device=None: card.stream,
        "set_stream": lambda chosen: setattr(card, "stream", chosen),
        "stream": stream,
        "_sleep": lambda cycles: card.launch(cycles / SLEEP_HZ),
        "get_device_properties": lambda device=None: properties,
        "get_device_capability": lambda device=None: (properties.major, properties.minor),
        "get_device_name": lambda device=None: card.name,
        "is_bf16_supported": lambda including_emulation=True: properties.major >= 8,
    }


def _cuda_state(card, kernels):
    """Memory and random numbers of `torch.cuda`."""
    memory = card.memory
    random_numbers = _random_numbers(kernels)

    return {
        "get_allocator_backend": lambda: "native",
        "get_per_process_memory_fraction": lambda device=None: 1.0,
        "memory_allocated": lambda device=None: memory.allocated_bytes,
        "max_memory_allocated": lambda device=None: memory.peaks["allocated_bytes"],
        "memory_reserved": lambda device=None: memory.reserved_bytes,
        "memory_stats": lambda device=None: (
            memory.stats() if str(device) in ("None", "0", "cuda", "cuda:0") else {}
        ),
        "reset_peak_memory_stats": lambda device=None: memory.reset_peak(),
        "empty_cache": memory.empty_cache,
        "mem_get_info": lambda device=None: (
            card.memory_bytes - memory.reserved_bytes,
            card.memory_bytes,
        ),
        **random_numbers,
        "manual_seed_all": random_numbers["manual_seed"],
    }


def _random_numbers(kernels):
    def set_state(state, device=None):
        kernels.random_state = state.clone()

    return {
        "manual_seed": lambda seed: set_state(_state_of(int(seed))),
        "get_rng_state": lambda device=None: kernels.random_state.clone(),
        "set_rng_state": set_state,
    }


# Read on one H200: what a process without tensors allocates.
CONTEXT_BYTES = 543_162_368


def _nvml(card):
    """The part of pynvml that is asked."""

    def of(value):
        return lambda *_: value() if callable(value) else value

    nominal, of_matrices = card.row.clocks_mhz
    clock = int(of_matrices or nominal or 1500)
    # A card's highest clock is that of its vector units: 1980 MHz of an H200.
    highest = int(max(nominal or 0, of_matrices or 0) or 1620)
    process = SimpleNamespace(pid=1, usedGpuMemory=CONTEXT_BYTES)
    reading = card.readings
    return SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        NVML_TEMPERATURE_GPU=0,
        NVML_MEMORY_ERROR_TYPE_UNCORRECTED=1,
        NVML_VOLATILE_ECC=0,
        nvmlSystemGetDriverVersion=of("580.00 (simulated)"),
        nvmlDeviceGetHandleByUUID=of(card.name),
        nvmlDeviceGetMaxClockInfo=of(highest),
        nvmlDeviceGetClockInfo=of(lambda: round(clock * card.rates.clock)),
        nvmlDeviceGetCurrentClocksEventReasons=of(lambda: reading["reasons"]),
        nvmlDeviceGetTotalEnergyConsumption=of(
            lambda: round(1e3 * card.rates.joules_per_s * card.queue_now())
        ),
        nvmlDeviceGetEnforcedPowerLimit=of(lambda: reading["power_limit"]),
        nvmlDeviceGetPowerManagementDefaultLimit=of(700_000),
        nvmlDeviceGetTemperature=of(lambda: reading["temperature"]),
        nvmlDeviceGetComputeRunningProcesses=of(lambda: [process] * reading["processes"]),
        nvmlDeviceGetCurrPcieLinkGeneration=of(lambda: reading["generation"]),
        nvmlDeviceGetCurrPcieLinkWidth=of(lambda: reading["width"]),
        nvmlDeviceGetMaxPcieLinkGeneration=of(5),
        nvmlDeviceGetMaxPcieLinkWidth=of(16),
        nvmlDeviceGetTotalEccErrors=of(lambda: reading["errors"]),
        nvmlDeviceGetRemappedRows=of(lambda: (0, 0, reading["rows_to_remap"], 0)),
    )
