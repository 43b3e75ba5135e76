"""Networks that consist of networks: one after the other, side by side, with a sum.

A part is a constructor, called with the spec of what it is given, such as
``EncodingNetwork``, ``LSTMEncodingNetwork``, another container or a ``torch.nn.Module``
of one's own; or a module itself. The states of parts with memory are the state of the
container. Every container can be an ``encoding_network_ctor``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from alf_lite import nest
from alf_lite.config import configurable
from alf_lite.errors import ConfigError, did_you_mean
from alf_lite.networks.encoding_networks import EncoderNetwork
from alf_lite.networks.input_encoders import ConvLayerParams
from alf_lite.networks.input_preprocessors import (
    Combiner,
    make_combiner,
    output_spec_of,
)
from alf_lite.networks.layers import Activation
from alf_lite.networks.network import require_module, takes_whole_sequences
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec

Nest = Any
Part = Callable[..., nn.Module] | nn.Module


class NetworkContainer(EncoderNetwork):
    """What containers have in common: their parts and the states of these.

    Args:
        input_spec: nest of TensorSpecs.
        fc_layer_params: for the constructor of the first part, or of all if they stand
            side by side, as what follows: what an :class:`EncodedNetwork` says to its
            encoder. None: they are not told.
        activation: of these layers.
        conv_layer_params: for images.
    """

    # What a part needs is asked of the part itself.
    output_spec: Any

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None:
        super().__init__(input_spec)
        options = {
            "fc_layer_params": fc_layer_params,
            "activation": activation,
            "conv_layer_params": conv_layer_params,
        }
        self._options = {n: value for n, value in options.items() if value is not None}

    def _set_parts(self, parts: Sequence[nn.Module], output_spec: Any) -> None:
        """Says what it consists of, and what comes out."""
        specs = tuple(getattr(part, "state_spec", ()) for part in parts)
        has_state = any(not nest.is_empty(spec) for spec in specs)
        self._state_spec = specs if has_state else ()
        self._parts = nn.ModuleList(parts)
        self._is_network = [hasattr(part, "state_spec") for part in parts]
        self.output_spec = output_spec
        if isinstance(output_spec, TensorSpec) and output_spec.ndim == 1:
            (self.output_size,) = output_spec.shape

    def _states(self, state: Nest) -> Sequence[Nest]:
        """Of each part."""
        if nest.is_empty(self.state_spec):
            return ((),) * len(self._parts)
        assert len(state) == len(self._parts), "start with initial_state(batch_size)"
        return state

    def _call(self, index: int, inputs: Nest, state: Nest) -> tuple[Any, Nest]:
        part = self._parts[index]
        if self._is_network[index]:
            return part(inputs, state)
        return part(inputs), ()

    def _new_state(self, states: Sequence[Nest]) -> Nest:
        return () if nest.is_empty(self.state_spec) else tuple(states)


@configurable
class Sequential(NetworkContainer):
    """One part after the other.

    Args:
        input_spec: nest of TensorSpecs.
        parts: in their order.
        **options: of the first part, see :class:`NetworkContainer`.
    """

    def __init__(
        self, input_spec: NestedTensorSpec, parts: Sequence[Part], **options: Any
    ) -> None:
        super().__init__(input_spec, **options)
        if not parts:
            raise ValueError("parts: expected at least one, got none")
        built: list[nn.Module] = []
        spec: Any = input_spec
        for i, part in enumerate(parts):
            own = {} if i else self._options
            built.append(_build(part, spec, f"parts[{i}]", own))
            spec = output_spec_of(built[-1], spec)
        self._set_parts(built, spec)

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Inputs [B, ...] → (what the last part gives, the states of all)."""
        states = []
        for i, before in enumerate(self._states(state)):
            inputs, after = self._call(i, inputs, before)
            states.append(after)
        return inputs, self._new_state(states)


@configurable
class Residual(NetworkContainer):
    """The input plus what parts, one after the other, make of it.

    Args:
        input_spec: of one tensor.
        parts: of a :class:`Sequential` whose output has the shape of the input.
        **options: of the first part, see :class:`NetworkContainer`.
    """

    def __init__(
        self, input_spec: NestedTensorSpec, parts: Sequence[Part], **options: Any
    ) -> None:
        super().__init__(input_spec, **options)
        body = Sequential(input_spec, parts, **options)
        output = body.output_spec
        if not (
            isinstance(input_spec, TensorSpec)
            and isinstance(output, TensorSpec)
            and input_spec.shape == output.shape
        ):
            raise ValueError(
                "Residual: expected parts whose output has the shape of the input, got "
                f"{output} from {input_spec}"
            )
        self._set_parts([body], output)

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Tensor, Nest]:
        """Inputs [B, *shape] → ([B, *shape], new state)."""
        (before,) = self._states(state)
        outputs, after = self._call(0, inputs, before)
        return inputs + outputs, self._new_state([after])


class _SideBySide(NetworkContainer):
    """Parts whose outputs are joined, or stay a nest."""

    def _set_named_parts(
        self,
        parts: Sequence[Part] | Mapping[str, Part],
        specs: Mapping[str, NestedTensorSpec],
        combiner: Combiner | None,
    ) -> None:
        """Builds the parts.

        Args:
            parts: constructors or modules.
            specs: of the input of each, by name.
            combiner: see :class:`Branch`.
        """
        if not parts:
            raise ValueError("parts: expected at least one, got none")
        built = {
            name: _build(part, specs[name], f"parts[{name!r}]", self._options)
            for name, part in _by_name(parts).items()
        }
        outputs = {
            name: output_spec_of(part, specs[name]) for name, part in built.items()
        }
        self._names = list(built)
        self._is_named = isinstance(parts, Mapping)
        self._combine = None
        output_spec = self._nest_of(outputs.values())
        if combiner is not None:
            for name, spec in outputs.items():
                if not isinstance(spec, TensorSpec) or spec.ndim != 1:
                    raise ValueError(
                        f"parts[{name!r}]: a combiner joins features [B, size], got "
                        f"{spec}. Let combiner=None give a nest."
                    )
            sizes = {name: spec.shape[0] for name, spec in outputs.items()}
            self._combine, size = make_combiner(combiner, sizes)
            output_spec = TensorSpec((size,))
        self._set_parts(list(built.values()), output_spec)

    def _joined(self, inputs: Sequence[Nest], state: Nest) -> tuple[Any, Nest]:
        """What the parts make of their inputs."""
        pairs = [
            self._call(i, each, before)
            for i, (each, before) in enumerate(
                zip(inputs, self._states(state), strict=True)
            )
        ]
        outputs = [output for output, _ in pairs]
        new_state = self._new_state([after for _, after in pairs])
        if self._combine is not None:
            return self._combine(outputs), new_state
        return self._nest_of(outputs), new_state

    def _nest_of(self, values: Iterable[Any]) -> Any:
        if self._is_named:
            return dict(zip(self._names, values, strict=True))
        return tuple(values)


@configurable
class Branch(_SideBySide):
    """Several parts that all get the same input.

    Args:
        input_spec: nest of TensorSpecs.
        parts: a sequence, or a dict with names.
        combiner: how the outputs [B, size] become one: "concat", "sum", "multiply" or a
            function of their list; None gives the nest of the outputs.
        **options: of all parts, see :class:`NetworkContainer`.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part] | Mapping[str, Part],
        combiner: Combiner | None = "concat",
        **options: Any,
    ) -> None:
        super().__init__(input_spec, **options)
        specs = dict.fromkeys(_by_name(parts), input_spec)
        self._set_named_parts(parts, specs, combiner)

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Inputs [B, ...] → (the outputs, joined or not, and the new states)."""
        return self._joined([inputs] * len(self._parts), state)


@configurable
class Parallel(_SideBySide):
    """A part for every entry of the input.

    Args:
        input_spec: a dict or NamedTuple, or a tuple or list.
        parts: a dict with a part for every entry, or a sequence of them.
        combiner: as of :class:`Branch`.
        **options: of all parts, see :class:`NetworkContainer`.
    """

    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part] | Mapping[str, Part],
        combiner: Combiner | None = "concat",
        **options: Any,
    ) -> None:
        super().__init__(input_spec, **options)
        named, specs = _by_name(parts), _entries(input_spec)
        for name in named:
            if name not in specs:
                raise ConfigError(
                    f"parts: the input has no entry {name!r}."
                    f"{did_you_mean(name, specs)} It has: {', '.join(specs)}."
                )
        without = [name for name in specs if name not in named]
        if without:
            raise ConfigError(f"parts: there is none for {', '.join(without)}")
        self._set_named_parts(parts, specs, combiner)

    @takes_whole_sequences
    def forward(self, inputs: Nest, state: Nest = ()) -> tuple[Any, Nest]:
        """Inputs [B, ...] → (the outputs, joined or not, and the new states)."""
        entries = _entries(inputs)
        return self._joined([entries[name] for name in self._names], state)


def _by_name(parts: Any) -> dict[str, Part]:
    if isinstance(parts, Mapping):
        return dict(parts)
    if not isinstance(parts, Sequence):
        raise TypeError(f"parts: expected a sequence or a dict, got {parts!r}")
    return {str(i): part for i, part in enumerate(parts)}


def _entries(inputs: Any) -> dict[str, Any]:
    """Those of the outermost node, by key, field or index."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    if hasattr(inputs, "_asdict"):
        return inputs._asdict()
    if isinstance(inputs, Sequence):
        return {str(i): entry for i, entry in enumerate(inputs)}
    raise ConfigError(f"Parallel: expected an input with entries, got {inputs}")


def _build(
    part: Part, spec: NestedTensorSpec, what: str, options: dict[str, Any]
) -> nn.Module:
    """The network or module of a part."""
    if isinstance(part, nn.Module):
        if options:
            raise ConfigError(
                f"{what} is a module already and takes no {', '.join(options)}. Give "
                "a constructor, or leave these options out."
            )
        return part
    try:
        return require_module(part(spec, **options), what)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}") from error
