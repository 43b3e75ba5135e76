"""Which optimizers train a tree of modules, and which parameters each of them takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from alf_lite.config.bindings import call_with_defaults
from alf_lite.errors import ConfigError
from alf_lite.optimizers.gradient_average import GradientAverage
from alf_lite.optimizers.optimizers import Adam, Optimizer
from alf_lite.optimizers.parameter_ownership import Claim, assign_parameters, unclaimed


class OptimizerOwner(nn.Module):
    """A module with optimizers for what is below it; others below may have some, too.

    Owners claim when they are built. The root of what is trained hands the parameters
    out by its first :meth:`optimizers`, by the rule of ``parameter_ownership``.

    Args:
        name: in messages.
        optimizer: trains every parameter below this module that no other owner's
            optimizer claims. More are added with :meth:`add_optimizer`.
    """

    def __init__(self, name: str, optimizer: Optimizer | None) -> None:
        super().__init__()
        self._name = name
        self._claims: list[tuple[Optimizer, list[nn.Module] | None]] = []
        if optimizer is not None:
            self._claims.append((_checked(optimizer), None))
        self._optimizers: list[tuple[str, Optimizer]] | None = None
        # Of the root, in all owners below it
        self._optimizers_of_run: list[tuple[str, Optimizer]] | None = None
        self._part_of = ""  # the name of what it is trained by, if not by itself
        self._gradient_average: GradientAverage | None = None

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._gradient_average = None  # moving to another device
        return super()._apply(*args, **kwargs)

    def add_optimizer(self, optimizer: Optimizer, modules: list[nn.Module]) -> None:
        """Gives the parameters of ``modules``, parts of this one, to ``optimizer``."""
        self._claims.append((_checked(optimizer), list(modules)))

    def optimizers(self) -> list[tuple[str, Optimizer]]:
        """Every optimizer in this tree with the name of its owner.

        Raises:
            ConfigError: if a parameter has no optimizer or more than one, or if this is
                only a part of what is trained.
        """
        if self._optimizers is not None:
            return self._optimizers
        if self._part_of:
            raise ConfigError(
                f"{self._name} is trained as a part of {self._part_of}, and has no "
                "optimizers() of its own. Once that is set up, optimizers_of_run() are "
                "those that train all parts."
            )
        self._complete_claims()
        self._optimizers = assign_parameters(
            dict(self.named_parameters(remove_duplicate=False)), self._collect_claims()
        )
        for owner in self._owners():
            owner._optimizers_of_run = self._optimizers
            if owner is not self:
                owner._part_of = owner._part_of or self._name
        return self._optimizers

    def optimizers_of_run(self) -> list[tuple[str, Optimizer]]:
        """Those of the root, which train this one and others: its ``optimizers()``."""
        if self._optimizers_of_run is None:
            return self.optimizers()
        return self._optimizers_of_run

    def begin_optimizers_anew(self) -> None:
        """Has the optimizers forget all that they keep for the parameters below this.

        They may be those of the root, and train others, too.
        """
        parameters = set(self.parameters())
        for _, optimizer in self.optimizers_of_run():
            optimizer.forget(parameters)

    def check_optimizers(self) -> None:
        """Refuses optimizers that do not suit this one, once all are known.

        Raises:
            ConfigError: saying which are needed.
        """

    def average_gradients(self, loss: Tensor, weight: Tensor) -> Tensor:
        """Makes the gradients those of all ranks, see :class:`GradientAverage`."""
        if self._gradient_average is None:
            self._gradient_average = GradientAverage(
                [p for _, o in self.optimizers_of_run() for p in o.parameters]
            )
        return self._gradient_average(loss, weight)

    # Claims

    def _complete_claims(self) -> None:
        """Before the optimizers get their parameters."""

    def _claim_by_default(self, defaults: Mapping[str, Any], is_alone: bool) -> None:
        """Adam with ``defaults`` trains what is left, if anything is.

        Args:
            defaults: parameters of Adam.
            is_alone: False: there are optimizers elsewhere in what is trained. Then it
                is built in the scope ``default``, by which a conf tells it from them.
        """
        has_others = self._has_optimizer()
        if has_others and not self._has_unclaimed_parameters():
            return
        scope = "" if is_alone and not has_others else "default"
        self._claims.append((call_with_defaults(Adam, defaults, scope), None))

    def _has_optimizer(self) -> bool:
        """Whether this or an owner below has an optimizer."""
        return any(owner._claims for owner in self._owners())

    def _has_unclaimed_parameters(self) -> bool:
        """Whether something is left that no optimizer in this tree asks for."""
        parameters = dict(self.named_parameters(remove_duplicate=False))
        return bool(unclaimed(parameters, self._collect_claims()))

    def _owners(self) -> list[OptimizerOwner]:
        """This one and those below it."""
        return [m for m in self.modules() if isinstance(m, OptimizerOwner)]

    def _collect_claims(self) -> list[Claim]:
        paths = {id(module): path for path, module in self.named_modules()}
        claims = []
        for owner in self._owners():
            for optimizer, modules in owner._claims:
                parts = [owner] if modules is None else modules
                prefixes = [paths[id(part)] for part in parts]
                claims.append(Claim(prefixes, optimizer, explicit=modules is not None))
        return claims


def _checked(optimizer: Optimizer) -> Optimizer:
    if not isinstance(optimizer, Optimizer):
        raise ConfigError(
            f"an optimizer was expected, such as @Adam() in a conf, got {optimizer!r}"
        )
    return optimizer
