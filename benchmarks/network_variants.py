"""Other networks for the benchmarks of CartPole, the same in alf_lite and in its peer.

    --activation elu    also relu, tanh, silu, gelu, leaky_relu
    --layer_norm        after each hidden layer, before its activation
    --dueling           of Q-networks: two output layers, V + A − mean A
    --dict              observations are a dict of two vectors

In Stable-Baselines3 the hidden layers are a features extractor of one's own where there
is normalization, and the Q-network is a class of one's own if it is dueling, as its
documentation tells users to write them.
"""

from __future__ import annotations

import argparse
from typing import Any

# isort: off
import measuring
import torch
from torch import Tensor, nn
# isort: on

ENCODER = {"activation": "", "layer_norm": False, "dict": False}
Q_NETWORK = {**ENCODER, "dueling": False}
_ACTIVATIONS = {
    "elu": nn.ELU,
    "gelu": nn.GELU,
    "leaky_relu": nn.LeakyReLU,
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def check(options: argparse.Namespace) -> None:
    """Ends the program if there is no such network."""
    if options.activation and options.activation not in _ACTIVATIONS:
        raise SystemExit(f"--activation is one of {sorted(_ACTIVATIONS)}")
    if options.dict and "native" in options.library:
        raise SystemExit(f"{options.library} has no --dict")


def env_id(options: argparse.Namespace, plain: str = measuring.CART_POLE) -> str:
    """Of the environment, which is ``plain`` without ``--dict``."""
    return measuring.DICT_CART_POLE if options.dict else plain


def bindings(options: argparse.Namespace, networks: tuple[str, ...]) -> list[str]:
    """Of gin, for these networks of alf_lite."""
    found = [f"create_environment.env_name = '{env_id(options)}'"] * options.dict
    found += ["EncodingNetwork.layer_norm = True"] * options.layer_norm
    if options.activation:
        found += [f"{name}.activation = '{options.activation}'" for name in networks]
    if getattr(options, "dueling", False):
        found.append("QNetwork.dueling = True")
    return found


def sb3_arguments(
    options: argparse.Namespace, sizes: tuple[int, ...], activation: str
) -> dict[str, Any]:
    """``policy`` and ``policy_kwargs`` of Stable-Baselines3.

    Args:
        options: with those at the top.
        sizes: of the hidden layers, of policy and value alike.
        activation: where no other one is wanted.
    """
    layer = _ACTIVATIONS[options.activation or activation]
    network: dict[str, Any] = {"net_arch": list(sizes), "activation_fn": layer}
    policy: Any = "MultiInputPolicy" if options.dict else "MlpPolicy"
    if options.layer_norm:
        network = {
            "net_arch": [],
            "features_extractor_class": _normalized_layers(),
            "features_extractor_kwargs": {"sizes": sizes, "activation": layer},
        }
        if not hasattr(options, "dueling"):
            network["share_features_extractor"] = False
    if getattr(options, "dueling", False):
        policy = _dueling_policy(options.dict)
    return {"policy": policy, "policy_kwargs": network}


def _normalized_layers() -> Any:
    from gymnasium import spaces
    from stable_baselines3.common.torch_layers import BaseFeaturesExtractor

    class NormalizedLayers(BaseFeaturesExtractor):
        def __init__(self, space: Any, sizes: tuple[int, ...], activation: Any) -> None:
            super().__init__(space, sizes[-1])
            layers: list[nn.Module] = []
            inputs = spaces.flatdim(space)
            for size in sizes:
                layers += [nn.Linear(inputs, size), nn.LayerNorm(size), activation()]
                inputs = size
            self.layers = nn.Sequential(*layers)

        def forward(self, observation: Any) -> Tensor:
            if isinstance(observation, dict):
                observation = torch.cat(list(observation.values()), dim=1)
            return self.layers(observation)

    return NormalizedLayers


class _Dueling(nn.Module):
    def __init__(self, hidden: nn.Module, size: int, num_actions: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.advantage = nn.Linear(size, num_actions)
        self.value = nn.Linear(size, 1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.hidden(features)
        advantage = self.advantage(hidden)
        return self.value(hidden) + advantage - advantage.mean(dim=1, keepdim=True)


def _dueling_policy(takes_dicts: bool) -> Any:
    from stable_baselines3.common.torch_layers import create_mlp
    from stable_baselines3.dqn import policies

    class DuelingQNetwork(policies.QNetwork):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            layers = create_mlp(
                self.features_dim, -1, self.net_arch, self.activation_fn
            )
            size = [self.features_dim, *self.net_arch][-1]
            hidden = nn.Sequential(*layers)
            self.q_net = _Dueling(hidden, size, int(self.action_space.n))

    base = policies.MultiInputPolicy if takes_dicts else policies.DQNPolicy

    class DuelingPolicy(base):
        def make_q_net(self) -> Any:
            arguments = self._update_features_extractor(
                self.net_args, features_extractor=None
            )
            return DuelingQNetwork(**arguments).to(self.device)

    return DuelingPolicy
