"""Which optimizer trains which parameter: every parameter has exactly one.

The rule. An algorithm's own optimizer takes the parameters below the algorithm that no
optimizer further down claims. An optimizer that is given for certain modules claims the
parameters of these and nobody may claim them, too. A parameter that is claimed twice or
not at all is an error that names it; one that needs no gradient is nobody's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from torch.nn import Parameter

from alf_lite.errors import ConfigError
from alf_lite.optimizers.optimizer import Optimizer

# More names would not help to find the mistake.
_MAX_NAMES_IN_MESSAGE = 8


@dataclasses.dataclass(frozen=True, eq=False)
class Claim:
    """What one optimizer asks for.

    Attributes:
        prefixes: dotted paths of modules or parameters; "" is the root.
        optimizer: who asks.
        explicit: False: the optimizer of the algorithm at ``prefixes``, which leaves
            out what is claimed further down. True: it was given for these modules.
    """

    prefixes: Sequence[str]
    optimizer: Optimizer
    explicit: bool = False

    @property
    def name(self) -> str:
        """For checkpoints and summaries: the paths it asks for."""
        return "+".join(prefix or "root" for prefix in self.prefixes)

    def __str__(self) -> str:
        return f"{type(self.optimizer).__name__} of {self.name!r}"


def assign_parameters(
    named_parameters: Mapping[str, Parameter], claims: Sequence[Claim]
) -> list[tuple[str, Optimizer]]:
    """Gives every parameter to its optimizer, by the rule at the top of this module.

    Args:
        named_parameters: of the root, best with ``remove_duplicate=False``: a shared
            parameter may be claimed by any of its names.
        claims: of all algorithms in the tree.

    Returns:
        (name, optimizer) of each claim, in the order of the claims.

    Raises:
        ConfigError: naming the parameters that are claimed twice or not at all.
    """
    _check_claims(claims)
    owned = resolve_claims(named_parameters, claims)
    for claim, parameters in zip(claims, owned, strict=True):
        claim.optimizer.setup(parameters)
    return [(claim.name, claim.optimizer) for claim in claims]


def resolve_claims(
    named_parameters: Mapping[str, Parameter], claims: Sequence[Claim]
) -> list[list[tuple[str, Parameter]]]:
    """The parameters of each claim with their names; see :func:`assign_parameters`."""
    owned: list[list[tuple[str, Parameter]]] = [[] for _ in claims]
    unclaimed, contested = [], []
    for names, parameter in _names_of_parameters(named_parameters):
        winners = _winners(names, claims)
        if len(winners) == 1:
            index, name = winners[0]
            owned[index].append((name, parameter))
        elif winners:
            who = " and ".join(f"{claims[i]} (as {name})" for i, name in winners)
            contested.append(f"{names[0]}: {who}")
        else:
            unclaimed.append(names[0])
    if contested:
        raise ConfigError(
            "these parameters are claimed by more than one optimizer: "
            f"{_shorten(contested, '; ')}. Every parameter needs exactly one."
        )
    if unclaimed:
        raise ConfigError(
            f"these parameters have no optimizer: {_shorten(unclaimed, ', ')}. Give "
            "the algorithm an optimizer, add one for these modules with add_optimizer, "
            "or set requires_grad=False."
        )
    return owned


def unclaimed(
    named_parameters: Mapping[str, Parameter], claims: Sequence[Claim]
) -> list[str]:
    """Names of the trainable parameters that no claim asks for."""
    return [
        names[0]
        for names, _ in _names_of_parameters(named_parameters)
        if not _winners(names, claims)
    ]


def _names_of_parameters(
    named_parameters: Mapping[str, Parameter],
) -> list[tuple[list[str], Parameter]]:
    """All names of every trainable parameter, which is shared if it has several."""
    found: dict[int, tuple[list[str], Parameter]] = {}
    for name, parameter in named_parameters.items():
        if parameter.requires_grad:
            found.setdefault(id(parameter), ([], parameter))[0].append(name)
    return list(found.values())


def _winners(names: Sequence[str], claims: Sequence[Claim]) -> list[tuple[int, str]]:
    """(index of the claim, name it goes by) of each claim that does not give way."""
    candidates: dict[int, tuple[str, str]] = {}  # index -> (name, prefix)
    for index, claim in enumerate(claims):
        for name in names:
            matching = [p for p in claim.prefixes if _is_below(name, p)]
            if matching:
                candidates[index] = name, max(matching, key=len)
                break
    return [
        (index, name)
        for index, (name, prefix) in candidates.items()
        if claims[index].explicit
        or not any(
            other != prefix and _is_below(other, prefix)
            for _, other in candidates.values()
        )
    ]


def _is_below(name: str, prefix: str) -> bool:
    """Whether the dotted path ``name`` is ``prefix`` or below it."""
    return not prefix or name == prefix or name.startswith(prefix + ".")


def _check_claims(claims: Sequence[Claim]) -> None:
    by_optimizer: dict[int, Claim] = {}
    by_name: dict[str, Claim] = {}
    for claim in claims:
        same_optimizer = by_optimizer.setdefault(id(claim.optimizer), claim)
        same_modules = by_name.setdefault(claim.name, claim)
        if same_optimizer is not claim:
            raise ConfigError(
                f"the same optimizer object is given twice: {same_optimizer} and "
                f"{claim}. Each needs its own; in a conf, write @Adam() for each."
            )
        if same_modules is not claim:
            raise ConfigError(
                f"two optimizers for the same modules: {same_modules} and {claim}"
            )


def _shorten(items: Sequence[str], separator: str) -> str:
    text = separator.join(items[:_MAX_NAMES_IN_MESSAGE])
    left = len(items) - _MAX_NAMES_IN_MESSAGE
    return f"{text} and {left} more" if left > 0 else text
