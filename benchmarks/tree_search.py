"""Milliseconds of a search, beside DeepMind's mctx compiled on the same core.

    python benchmarks/tree_search.py --peer_python=PEERS/bin/python

Gumbel MuZero's search of 50 simulations in 9 actions, from B roots at once. What is
searched in are tables, so that it is the tree that costs, or a learned model of the
same layers for both (64 latents, 128 hidden units, two-hot heads of 51). Ours and
mctx take turns on one core, each for half a second of CPU time; what is compared are
neighbours. Without ``--peer_python`` there are only ours.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NUM_ACTIONS, NUM_STATES, LATENT, HIDDEN, ATOMS = 9, 1000, 64, 128, 51
Search = Callable[[], Any]  # one, from B roots


def tables() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shape = (NUM_STATES, NUM_ACTIONS)
    return {
        "next": rng.integers(NUM_STATES, size=shape),
        "reward": rng.normal(size=shape).astype(np.float32),
        "logits": rng.normal(size=shape).astype(np.float32),
        "value": rng.normal(size=NUM_STATES).astype(np.float32),
    }


def our_search(library: str, model: str, batch_size: int, num: int) -> Search:
    import torch

    from alf_lite.algorithms.parts.search_model import (
        EveryAction,
        LearnedModel,
        ModelSearch,
    )
    from alf_lite.algorithms.parts.tree_search import Root, Step, TreeSearch
    from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

    torch.set_num_threads(1)
    search = TreeSearch(num)
    if model == "learned":
        torch.manual_seed(0)
        actions = EveryAction(BoundedTensorSpec((), torch.int64, 0, NUM_ACTIONS - 1))
        sizes = actions.vector_size, actions.num_outputs
        learned = LearnedModel(TensorSpec((4,)), *sizes)
        observation = torch.randn(batch_size, 4)
        in_model = ModelSearch(learned, actions, 0.99, False)
        return lambda: search.run(in_model.root(observation), in_model.step)
    convert = torch.from_numpy if library == "torch" else np.asarray
    table = {name: convert(array) for name, array in tables().items()}
    states = convert(np.arange(batch_size) % NUM_STATES)
    discount = convert(np.full(batch_size, 0.99, np.float32))

    def step(state: Any, action: Any) -> tuple[Step, Any]:
        after = table["next"][state, action]
        reward = table["reward"][state, action]
        predicted = table["logits"][after], table["value"][after]
        return Step(reward, discount, *predicted), after

    root = Root(table["logits"][states], table["value"][states], states)
    return lambda: search.run(root, step)


def mctx_search(model: str, batch_size: int, num: int) -> Search:
    import jax
    import jax.numpy as jnp
    import mctx

    table = {name: jnp.asarray(array) for name, array in tables().items()}
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 16))

    def layer(inputs: int, outputs: int) -> Any:
        return jax.random.normal(next(keys), (inputs, outputs)) / inputs**0.5

    dynamics, predictor = layer(LATENT + NUM_ACTIONS, HIDDEN), layer(LATENT, HIDDEN)
    heads = {
        name: layer(HIDDEN, size)
        for name, size in (
            *(("change", LATENT), ("reward", ATOMS), ("continues", 1)),
            *(("logits", NUM_ACTIONS), ("value", ATOMS)),
        )
    }
    atoms = jnp.linspace(-20.0, 20.0, ATOMS)

    def mean(logits: Any) -> Any:
        y = jax.nn.softmax(logits) @ atoms
        root = jnp.sqrt(1 + 4e-3 * (abs(y) + 1 + 1e-3))
        return jnp.sign(y) * (((root - 1) / 2e-3) ** 2 - 1)

    def normalized(z: Any) -> Any:
        return (z - z.mean(-1, keepdims=True)) / (z.std(-1, keepdims=True) + 1e-5)

    def predict(z: Any) -> tuple[Any, Any]:
        features = jax.nn.relu(z @ predictor)
        return features @ heads["logits"], mean(features @ heads["value"])

    def recurrent(_: Any, key: Any, action: Any, state: Any) -> Any:
        if model == "tables":
            after = table["next"][state, action]
            reward, discount = table["reward"][state, action], 0.99
            logits, value = table["logits"][after], table["value"][after]
        else:
            joined = jnp.concatenate([state, jax.nn.one_hot(action, NUM_ACTIONS)], -1)
            features = jax.nn.relu(joined @ dynamics)
            after = normalized(state + features @ heads["change"])
            reward = mean(features @ heads["reward"])
            discount = 0.99 * jax.nn.sigmoid(features @ heads["continues"])[:, 0]
            logits, value = predict(after)
        discount = jnp.broadcast_to(discount, reward.shape)
        step = {"prior_logits": logits, "value": value}
        step |= {"reward": reward, "discount": discount}
        return mctx.RecurrentFnOutput(**step), after

    if model == "tables":
        states = jnp.arange(batch_size) % NUM_STATES
        prior = table["logits"][states], table["value"][states]
    else:
        states = normalized(jax.random.normal(next(keys), (batch_size, LATENT)))
        prior = predict(states)

    @jax.jit
    def search(key: Any) -> Any:
        logits, value = prior
        root = mctx.RootFnOutput(prior_logits=logits, value=value, embedding=states)
        found = mctx.gumbel_muzero_policy((), key, root, recurrent, num)
        return found.action, found.action_weights, found.search_tree

    key = jax.random.PRNGKey(1)
    return lambda: jax.block_until_ready(search(key))


def make(library: str, model: str, batch_size: int, num: int) -> Search:
    if library == "mctx":
        return mctx_search(model, batch_size, num)
    return our_search(library, model, batch_size, num)


def milliseconds(search: Search, seconds: float) -> float:
    """CPU time of one search, over at least so many seconds."""
    number, start = 0, time.process_time()
    while (passed := time.process_time() - start) < seconds or not number:
        search()
        number += 1
    return passed / number * 1e3


def answer() -> None:
    """The other process: for each line that comes in, one measurement."""
    made = functools.cache(make)
    for line in sys.stdin:
        *which, seconds = json.loads(line)
        search = made("mctx", *which)
        search()  # compiled by the first call
        print(milliseconds(search, seconds), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peer_python", default="", help="one with jax and mctx")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[1, 8, 256])
    parser.add_argument("--simulations", type=int, default=50)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="of a turn")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.answer:
        answer()
        return
    core = {max(os.sched_getaffinity(0))}
    os.sched_setaffinity(0, core)
    child = None
    if args.peer_python:
        flags = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
        command = [args.peer_python, str(Path(__file__).resolve()), "--answer"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        env = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        child = subprocess.Popen(command, env=env, **pipes)
    print(f"{'model':8} {'tree':6} {'B':>4}  {'ms':>7}  {'mctx':>7}  ours / mctx")
    ours = (("tables", "numpy"), ("tables", "torch"), ("learned", "numpy"))
    for model, library in ours:
        for batch_size in args.batch_sizes:
            which = model, batch_size, args.simulations
            search = make(library, *which)
            search()
            pairs = []
            for _ in range(args.turns):
                own, other = milliseconds(search, args.seconds), float("nan")
                if child:
                    print(
                        json.dumps([*which, args.seconds]), file=child.stdin, flush=True
                    )
                    other = float(child.stdout.readline())
                pairs.append((own, other))
            own, other = (
                statistics.median(column) for column in zip(*pairs, strict=True)
            )
            ratios = sorted(own / other for own, other in pairs)
            low, median, high = statistics.quantiles(ratios, n=4)
            print(
                f"{model:8} {library:6} {batch_size:4}  {own:7.2f}  {other:7.2f}  "
                f"{median:.2f} ({low:.2f} to {high:.2f}; {args.turns} turns)",
                flush=True,
            )
    if child:
        child.stdin.close()
        child.wait()


if __name__ == "__main__":
    main()
