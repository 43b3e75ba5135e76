"""alf_lite beside Stable-Baselines3, as one who uses both would write it.

    python benchmarks/outsider.py --peer_python=PEERS/bin/python
    python benchmarks/outsider.py --tasks ppo_cartpole dqn --rounds=3
    python benchmarks/outsider.py report            # what there is so far

A second opinion: it shares no code with ``duel.py`` and the programs beside it. Each
run is a fresh process that trains by the public names alone and prints the CPU seconds
of its second half; the first one has imports, first allocations and compilation in it.
alf_lite summarises nothing there. The two take turns as A B B A; a ratio is that of
neighbouring runs, in CPU time for as many environment steps. Every finished run is a
line of ``--results``: started again, the program goes on after the last one.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PPO = {"T": 128, "epochs": 4, "batch": 256, "net": [64, 64], "lr": 3e-4}
DQN = {"net": [120, 84], "lr": 2.5e-4, "every": 10, "batch": 128}
SAC = {"net": [256, 256], "lr": 3e-4, "every": 1, "batch": 256}
LONG = {**PPO, "epochs": 10, "batch": 64}
VARIANTS = {"norm": {"norm": True}, "elu": {"act": "ELU"}, "dict": {"dict": True}}
TASKS = {  # algorithm, environment, how many, environment steps, settings
    "ppo_cartpole": ("PPO", "CartPole-v1", 8, 61_440, PPO),
    **{f"ppo_{k}": ("PPO", "CartPole-v1", 8, 61_440, PPO | v) for k, v in VARIANTS.items()},
    "ppo_normalizers": ("PPO", "CartPole-v1", 8, 61_440, PPO | {"scale": True}),
    "ppo_acrobot": ("PPO", "Acrobot-v1", 8, 40_960, PPO),
    "ppo_half_cheetah": (
        "PPO", "HalfCheetah-v5", 1, 16_384, LONG | {"T": 2048, "scale": True}
    ),
    "ppo_16x128": ("PPO", "Acrobot-v1", 16, 32_768, PPO | {"net": [128, 128], "batch": 64}),
    "ppo_1": ("PPO", "CartPole-v1", 1, 10_240, PPO),
    "ppo_512": ("PPO", "CartPole-v1", 8, 16_384, PPO | {"net": [512, 512]}),
    "ppo_pendulum": ("PPO", "Pendulum-v1", 4, 32_768, LONG | {"T": 1024}),
    "a2c": ("A2C", "CartPole-v1", 8, 40_000, {"T": 10, "net": [64, 64], "lr": 7e-4}),
    "dqn": ("DQN", "CartPole-v1", 1, 24_000, DQN),
    **{f"dqn_{k}": ("DQN", "CartPole-v1", 1, 24_000, DQN | v) for k, v in VARIANTS.items()},
    "dqn_256": ("DQN", "CartPole-v1", 1, 12_000, DQN | {"net": [256, 256], "every": 4}),
    "dqn_10": ("DQN", "CartPole-v1", 10, 24_000, DQN | {"every": 1}),
    "dqn_batch_32": ("DQN", "CartPole-v1", 1, 24_000, DQN | {"batch": 32}),
    "dqn_batch_1024": ("DQN", "CartPole-v1", 1, 12_000, DQN | {"batch": 1024}),
    "sac_pendulum": ("SAC", "Pendulum-v1", 1, 3_000, SAC),
    "sac_hopper": ("SAC", "Hopper-v5", 1, 3_000, SAC | {"net": [128, 128, 128]}),
    "sac_512": (
        "SAC", "Pendulum-v1", 1, 1_200, SAC | {"net": [512, 512], "batch": 1024}
    ),
    "td3_pendulum": ("TD3", "Pendulum-v1", 1, 3_000, SAC),
}  # fmt: skip


class HalfClock:
    def __init__(self, num_steps):
        self.half, self.first, self.last = num_steps // 2, None, None

    def mark(self, num_steps):  # between two iterations
        self.last = num_steps, time.process_time()
        if self.first is None and num_steps >= self.half:
            self.first = self.last

    def rate(self):
        return (self.last[0] - self.first[0]) / (self.last[1] - self.first[1])


def split(env):  # has an observation be a Dict of two parts
    import gymnasium as gym

    low, high = env.observation_space.low, env.observation_space.high
    parts = {"a": slice(0, 2), "b": slice(2, None)}
    spaces = {k: gym.spaces.Box(low[x], high[x]) for k, x in parts.items()}
    observe = lambda seen: {k: seen[x] for k, x in parts.items()}  # noqa: E731
    return gym.wrappers.TransformObservation(env, observe, gym.spaces.Dict(spaces))


def train_alf_lite(clock, kind, name, num_envs, num_steps, s):
    import alf_lite
    from alf_lite import algorithms, data_transformers, networks
    from alf_lite.trainers.hooks import Hook

    env = alf_lite.create_environment(
        name, num_envs, 0, wrappers=[split] if s.get("dict") else []
    )
    config = {"num_env_steps": num_steps, "summary_interval": 10**9, "random_seed": 0}
    adam = {"lr": s["lr"]}
    bound = lambda network, **given: functools.partial(  # noqa: E731
        getattr(networks, network), **given
    )
    encoder = bound("EncodingNetwork", layer_norm=s.get("norm", False))
    layers = {"fc_layer_params": s["net"], "encoding_network_ctor": encoder}
    act = s.get("act", "Tanh" if "T" in s else "ReLU").lower()
    if "T" in s:
        config["unroll_length"], adam["gradient_clipping"] = s["T"], 0.5
        parts = {"actor": "ActorDistributionNetwork", "value": "ValueNetwork"}
        if kind == "PPO":
            config |= {"epochs": s["epochs"], "mini_batch_size": s["batch"]}
            config["mini_batch_length"] = 1
        if s.get("scale"):
            scalers = ("ObservationNormalizer", "RewardNormalizer")
            scalers = [getattr(data_transformers, x) for x in scalers]
            config["data_transformer_ctor"] = scalers
    else:
        config |= {"unroll_length": s["every"], "mini_batch_size": s["batch"]}
        config |= {"num_updates_per_train_iter": 1, "initial_collect_steps": 500}
        config["replay_buffer_length"] = 100_000
        actor = "SquashedActorNetwork" if kind == "SAC" else "ActorNetwork"
        parts = {"q": "QNetwork"} if kind == "DQN" else {"actor": actor}
    ctors = {
        f"{k}_network_ctor": bound(x, activation=act, **layers)
        for k, x in parts.items()
    }
    if kind in ("SAC", "TD3"):
        critic = bound("CriticNetwork", joint_fc_layer_params=s["net"])
        ctors["critic_network_ctor"] = critic
    ours = {"A2C": "ActorCritic", "DQN": "Dqn", "SAC": "Sac", "TD3": "Td3"}
    algorithm = getattr(algorithms, f"{ours.get(kind, kind)}Algorithm")(
        env=env, config=alf_lite.TrainerConfig(**config),
        optimizer=alf_lite.Adam(**adam), **ctors,
    )  # fmt: skip

    class Marks(Hook):
        def after_iter(self, training):
            clock.mark(training.algorithm.num_env_steps)

    with tempfile.TemporaryDirectory() as folder:
        alf_lite.Trainer(algorithm, root_dir=folder, hooks=[Marks()]).train()


def train_sb3(clock, kind, name, num_envs, num_steps, s):
    import stable_baselines3 as sb3
    from stable_baselines3.common import callbacks, env_util, torch_layers, vec_env
    from torch import nn

    class Normed(torch_layers.BaseFeaturesExtractor):  # has no option for them
        def __init__(self, space):
            super().__init__(space, s["net"][-1])
            sizes, act = [space.shape[0], *s["net"]], nn.Tanh if "T" in s else nn.ReLU
            self.layers = nn.Sequential()
            for pair in itertools.pairwise(sizes):
                self.layers.extend([nn.Linear(*pair), nn.LayerNorm(pair[1]), act()])

        def forward(self, observation):
            return self.layers(observation)

    wrapper = split if s.get("dict") else None
    env = env_util.make_vec_env(name, num_envs, seed=0, wrapper_class=wrapper)
    env = vec_env.VecNormalize(env) if s.get("scale") else env
    act = getattr(nn, s.get("act", "Tanh" if "T" in s else "ReLU"))
    net = [] if s.get("norm") else s["net"]
    policy = {
        "activation_fn": act,
        "net_arch": {"pi": net, "vf": net} if "T" in s else net,
    }
    if s.get("norm"):
        policy["features_extractor_class"] = Normed
        policy |= {"share_features_extractor": False} if "T" in s else {}
    settings = {"learning_rate": s["lr"], "device": "cpu", "policy_kwargs": policy}
    if "T" in s:
        settings["n_steps"] = s["T"]
        if kind == "PPO":
            settings |= {"batch_size": s["batch"], "n_epochs": s["epochs"]}
        else:
            settings["use_rms_prop"] = False
    else:
        settings |= {"batch_size": s["batch"], "train_freq": s["every"]}
        settings |= {
            "gradient_steps": 1,
            "learning_starts": 500,
            "buffer_size": 100_000,
        }

    class Marks(callbacks.BaseCallback):
        def _on_rollout_start(self):
            clock.mark(self.num_timesteps)

        def _on_step(self):
            return True

    inputs = "MultiInputPolicy" if s.get("dict") else "MlpPolicy"
    getattr(sb3, kind)(inputs, env, seed=0, **settings).learn(num_steps, Marks())


def run(python, library, name):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": root}
    command = [python, __file__, "--tasks", name, "--only", library]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{library}, {name}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(tasks, rounds, pythons, results):
    """Makes the runs that ``results`` does not have yet, round by round."""
    done = {(x["task"], x["turn"], x["library"]) for x in read(results)}
    for turn, name in itertools.product(range(2 * rounds), tasks):
        for library in sorted(pythons, reverse=turn % 2 == 1):
            if (name, turn, library) in done:
                continue
            load = os.getloadavg()[0]
            rate = run(pythons[library], library, name)
            line = {"task": name, "turn": turn, "library": library}
            with results.open("a") as file:
                print(json.dumps(line | {"rate": rate, "load": load}), file=file)


def read(results):
    """The finished runs; a last line that was broken off is none."""
    lines = results.read_text().splitlines(keepends=True) if results.exists() else []
    if lines and not lines[-1].endswith("\n"):
        results.write_text("".join(lines := lines[:-1]))
    return [json.loads(line) for line in lines]


def report(runs):
    """The table of turns that both have finished."""
    lines = [
        "| task | alf_lite, steps per CPU s | SB3 | times as fast, quartiles | turns |",
        "|---|---|---|---|---|",
    ]
    rates = {(x["task"], x["turn"], x["library"]): x["rate"] for x in runs}
    for name in dict.fromkeys(x["task"] for x in runs):
        pairs = [
            (rate, rates[name, turn, "sb3"])
            for (task, turn, library), rate in rates.items()
            if (task, library) == (name, "alf_lite") and (name, turn, "sb3") in rates
        ]
        if not pairs:
            continue
        ratios = [a / b for a, b in pairs]
        low = middle = high = ratios[0]
        if len(ratios) > 1:
            low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        speeds = " | ".join(
            f"{statistics.median(x):,.0f}" for x in zip(*pairs, strict=True)
        )
        spread = f"{middle:.2f} ({low:.2f} to {high:.2f})"
        lines.append(f"| {name} | {speeds} | {spread} | {len(ratios)} |")
    loads = [x["load"] for x in runs] or [0.0]
    middle, most = statistics.median(loads), max(loads)
    return "\n".join([*lines, "", f"Load: {middle:.1f}, at most {most:.1f}."])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["measure", "report"])
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=2, help="of A B B A")
    parser.add_argument("--peer_python", default=sys.executable)
    parser.add_argument("--results", type=pathlib.Path, default="outsider.jsonl")
    parser.add_argument("--only", choices=["alf_lite", "sb3"])
    args = parser.parse_args()
    if args.only:
        kind, name, num_envs, num_steps, settings = TASKS[args.tasks[0]]
        clock = HalfClock(num_steps)
        train = train_alf_lite if args.only == "alf_lite" else train_sb3
        train(clock, kind, name, num_envs, num_steps, settings)
        print("\n" + json.dumps(clock.rate()))
        return
    if args.what != "report":
        pythons = {"alf_lite": sys.executable, "sb3": args.peer_python}
        measure(args.tasks, args.rounds, pythons, args.results)
    print(report(read(args.results)))


if __name__ == "__main__":
    main()
