"""A device that is none: the CPU under another name, which counts who waits for it.

What runs on a GPU takes other branches than what runs on a CPU, and whether it waits
for the GPU cannot be seen in its results. Here both can be looked at without one:

    with StandInDevice() as device:
        config = TrainerConfig(device=device.name, ...)
        ...  # build the algorithm and train it
    assert not device.waits

Tensors of this device hold real numbers, but like those of a GPU they are not on the
CPU: numpy cannot read them, and they do not mix with tensors that are there. Its random
generators are those of the CPU under its name. What is captured, as for a CUDA graph,
is repeated operation by operation, on the memory and with the numbers of the capture.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_NAME = "stand_in"
_PACKAGE = str(Path(__file__).parents[1])
# The sizes of their results depend on numbers, which the host has to know.
_SIZES_DEPEND_ON_NUMBERS = (
    "aten::nonzero",
    "aten::masked_select",
    "aten::_unique2",
    "aten::unique_dim",
    "aten::unique_consecutive",
    "aten::repeat_interleave",
    "aten::bincount",
)
_READS = ("aten::_local_scalar_dense", "aten::equal", "aten::is_nonzero")
_FILLS = ("aten::masked_fill", "aten::masked_fill_")
_INDEXING = ("aten::index", "aten::index_put_", "aten::_index_put_impl_")


class Wait(NamedTuple):
    """The host waits until the device has done all that it was given."""

    kind: str  # "read", "size", "to host" or "to device"
    operation: str
    place: str  # file:line in alf_lite that asked for it


class StandInDevice(TorchDispatchMode):
    """While it is entered, torch has one more device, called :attr:`name`.

    If there was a backward pass before, call :func:`register` before that.

    Attributes:
        waits: what a GPU's host would have waited for, in order. Copies in both
            directions are, unless they are ``non_blocking``.
        copies: bytes that went to the device and back, by direction.
    """

    def __init__(self) -> None:
        register()
        super().__init__()
        self.recording: list[tuple[Any, list[Any], dict[str, Any], Any]] | None = None
        self.device = torch.device(_NAME, 0)
        self.name = str(self.device)
        self.waits: list[Wait] = []
        self.copies = {"to host": 0, "to device": 0}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if torch.is_inference_mode_enabled() and _is_composed(func):
            with self:  # outside of inference mode that is done before
                return func.decompose(*args, **kwargs)
        name = func._schema.name
        tensors = [
            leaf
            for value in (*args, *kwargs.values())
            for leaf in (value if isinstance(value, list | tuple) else (value,))
            if isinstance(leaf, Tensor)
        ]
        inputs = [tensor for tensor in tensors if isinstance(tensor, _OnDevice)]
        on_device = bool(inputs)
        if kwargs.get("device") is not None:
            on_device = torch.device(kwargs["device"]).type == _NAME
            kwargs["device"] = torch.device("cpu")
        if name in ("aten::_to_copy", "aten::copy_", "aten::_foreach_copy_"):
            self._see_copies(name, on_device, args, kwargs)
            if name != "aten::_to_copy":
                on_device = isinstance(tensors[0], _OnDevice)
        elif inputs:
            self._see_operation(name, args)
            _check_devices(name, tensors)
        result = self._run(func, args, kwargs, record=on_device or bool(inputs))
        return self._wrap(func, result, inputs) if on_device else result

    def _run(self, func: Any, args: Any, kwargs: Any, record: bool) -> Any:
        """The operation on what the tensors hold."""
        plain_args = list(map(_content, args))
        plain_kwargs = {key: _content(value) for key, value in kwargs.items()}
        result = func(*plain_args, **plain_kwargs)
        if self.recording is not None and record:
            self.recording.append((func, plain_args, plain_kwargs, result))
        return result

    def _wrap(self, func: Any, result: Any, inputs: list[_OnDevice]) -> Any:
        """The result as tensors of the device; what was written, as it was given."""
        known = {id(tensor.content): tensor for tensor in inputs}

        def as_result(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            written = known.get(id(value))
            return _OnDevice(value, self.device) if written is None else written

        # A view is an inference tensor only if what it is a view of is one.
        is_view = any(returned.alias_info for returned in func._schema.returns)
        is_inference = torch.is_inference_mode_enabled() and not (
            is_view and inputs and not inputs[0].is_inference()
        )
        with torch.inference_mode(is_inference):
            if isinstance(result, list | tuple):
                return type(result)(map(as_result, result))
            return as_result(result)

    def _see_operation(self, name: str, args: Any) -> None:
        if name in _READS:
            self._note("read", name)
        elif name in _SIZES_DEPEND_ON_NUMBERS:
            self._note("size", name)
        elif name in _FILLS and isinstance(args[2], _OnDevice):
            self._note("read", name)  # the value, for the kernel
        elif name in _INDEXING:
            self._see_indices(name, args[1])

    def _see_indices(self, name: str, indices: Any) -> None:
        for index in indices:
            if index is None:
                continue
            if index.dtype in (torch.bool, torch.uint8):
                self._note("size", name)
            if not isinstance(index, _OnDevice) and index.ndim:
                self._note("to device", name)

    def _see_copies(self, name: str, to_device: bool, args: Any, kwargs: Any) -> None:
        if name == "aten::_to_copy":
            pairs = [(to_device, args[0])]
        else:
            targets, sources = (x if isinstance(x, list) else [x] for x in args[:2])
            pairs = [
                (isinstance(target, _OnDevice), source)
                for target, source in zip(targets, sources, strict=True)
            ]
        is_blocking = not (kwargs.get("non_blocking") or True in args[2:])
        for is_target_there, source in pairs:
            if is_target_there == isinstance(source, _OnDevice):
                continue
            if is_target_there and source.ndim == 0 and name == "aten::copy_":
                continue  # an argument of the kernel that writes it
            direction = "to device" if is_target_there else "to host"
            self.copies[direction] += source.numel() * source.element_size()
            if is_blocking:
                self._note(direction, name)

    def __enter__(self) -> Self:
        _module.devices.append(self)  # again, where an operation is decomposed
        torch.Generator = _AnyGenerator  # type: ignore
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        _module.devices.pop()
        if not _module.devices:
            torch.Generator = _Generator  # type: ignore

    def _note(self, kind: str, operation: str) -> None:
        if self.recording is not None:
            raise RuntimeError(
                f"{operation} at {_place()} waits for the device, which is capturing"
            )
        self.waits.append(Wait(kind, operation, _place()))


class _OnDevice(Tensor):
    """A tensor that says that it is somewhere else."""

    content: Tensor

    @staticmethod
    def __new__(
        cls: type[_OnDevice], content: Tensor, device: torch.device
    ) -> _OnDevice:
        tensor = torch.Tensor._make_wrapper_subclass(
            cls,
            content.size(),
            strides=content.stride(),
            storage_offset=content.storage_offset(),
            dtype=content.dtype,
            device=device,
            requires_grad=False,
        )
        tensor.content = content
        return tensor

    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise RuntimeError(f"{func}: there is no {_NAME} outside of StandInDevice")

    def data_ptr(self) -> int:
        return self.content.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.content.untyped_storage()

    def numpy(self, *, force: bool = False) -> np.ndarray:
        if not force:
            raise TypeError(f"can't convert a {_NAME} tensor to numpy")
        return self.detach().cpu().numpy()

    def tolist(self) -> Any:
        return self.detach().cpu().tolist()


_Generator = torch.Generator


class _GeneratorOnDevice(_Generator):
    """One of the CPU that says that it is somewhere else."""

    @property
    def device(self) -> torch.device:  # type: ignore
        return torch.device(_NAME, 0)


class _Generators(type(_Generator)):  # type: ignore
    """Those of the device and all others are of one class."""

    def __call__(cls, device: torch.device | str = "cpu") -> torch.Generator:
        if torch.device(device).type == _NAME:
            return _GeneratorOnDevice()
        return _Generator(device)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, _Generator)


class _AnyGenerator(_Generator, metaclass=_Generators):
    """What torch.Generator is while there is the device."""


class CapturedGraph:
    """What ``torch.cuda.CUDAGraph`` is for a GPU."""

    def __init__(self) -> None:
        self.operations: list[tuple[Any, list[Any], dict[str, Any], Any]] = []
        self._is_done = False

    @torch.no_grad()
    def replay(self) -> None:
        """Repeats the operations; those of the capture itself were done."""
        if not self._is_done:
            self._is_done = True
            return
        for operation, args, kwargs, before in self.operations:
            result = operation(*args, **kwargs)
            writes = any(a.alias_info for a in operation._schema.returns)
            if not writes:  # else it is what it was given, or a view of that
                _copy_results(before, result)


def _copy_results(targets: Any, sources: Any) -> None:
    if isinstance(targets, Tensor):
        targets.copy_(sources)
    elif isinstance(targets, list | tuple):
        for target, source in zip(targets, sources, strict=True):
            _copy_results(target, source)


class _Stream:
    def wait_stream(self, stream: _Stream) -> None:
        """Everything happens at once here."""


class _Module:
    """What torch.cuda is for a GPU."""

    CUDAGraph = CapturedGraph
    Stream = _Stream

    def __init__(self) -> None:
        self.devices: list[StandInDevice] = []

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Random numbers are those of the CPU."""

    def current_stream(self) -> _Stream:
        return _Stream()

    def stream(self, stream: _Stream) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def graph(self, graph: CapturedGraph) -> Iterator[None]:
        device = self.devices[-1]
        device.recording = graph.operations
        try:
            yield
        finally:
            device.recording = None


_module = _Module()


def _content(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_content(entry) for entry in value]
    return value.content if isinstance(value, _OnDevice) else value


@functools.cache
def _is_composed(operation: Any) -> bool:
    """Whether it does nothing but call others."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(
        operation.name(), "CompositeImplicitAutograd"
    )


def _check_devices(name: str, tensors: list[Tensor]) -> None:
    if name in _INDEXING:
        return  # may be indexed from the host
    for tensor in tensors:
        if tensor.ndim and not isinstance(tensor, _OnDevice):
            raise RuntimeError(
                f"{name}: expected all tensors on one device, got {_NAME} and "
                f"{tensor.device}"
            )


def _place() -> str:
    """The innermost line of the library on the stack."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_PACKAGE) and name != __file__:
            return f"{Path(name).relative_to(_PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def register() -> None:
    """Tells torch of the device; to be called before its first backward pass.

    Then torch starts a thread for every device that it knows.

    Raises:
        RuntimeError: if this version of torch knows no devices that are made in Python.
    """
    if torch._C._get_privateuse1_backend_name() == _NAME:
        return
    from torch.utils import backend_registration

    setup: Callable[..., None] | None = getattr(
        backend_registration, "_setup_privateuseone_for_python_backend", None
    )
    if setup is None:
        raise RuntimeError("StandInDevice needs torch 2.10 or newer")
    setup(_NAME, _module)
