"""The adapter: TimeSteps, checks at the border, all kinds of vector environments."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv

from alf_lite import nest
from alf_lite.environments.gymnasium_environment import GymnasiumEnvironment
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.testing.environment_contract import EnvironmentContract
from alf_lite.testing.fault_environment import FaultEnv
from alf_lite.testing.structured_environments import (
    CountingEnv,
    ImageEnv,
    NestedEnv,
    VectorRewardEnv,
)


def serial(factory, num_environments=2, **kwargs):
    vector_env = SerialVectorEnv([factory] * num_environments)
    return GymnasiumEnvironment(vector_env, **kwargs)


def noop(num_environments=2):
    return torch.zeros(num_environments, dtype=torch.int64)


# The contract


class TestCartPole(EnvironmentContract):
    def make(self, num_environments, seed):
        fn = functools.partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)
        return serial(fn, num_environments, seed=seed)


class TestNested(EnvironmentContract):
    num_steps = 10

    def make(self, num_environments, seed):
        return serial(NestedEnv, num_environments, seed=seed)


class TestImages(EnvironmentContract):
    num_steps = 10

    def make(self, num_environments, seed):
        return serial(ImageEnv, num_environments, seed=seed)


class TestVectorRewards(EnvironmentContract):
    num_steps = 10
    is_random = False

    def make(self, num_environments, seed):
        return serial(VectorRewardEnv, num_environments, seed=seed)


class TestGymnasiumsOwnSyncVectorEnv(EnvironmentContract):
    num_steps = 30

    def make(self, num_environments, seed):
        vector_env = gymnasium.make_vec(
            "MountainCarContinuous-v0",
            num_envs=num_environments,
            vectorization_mode="sync",
            max_episode_steps=20,
        )
        return GymnasiumEnvironment(vector_env, seed=seed)


class TestNativeVectorEnv(EnvironmentContract):
    def make(self, num_environments, seed):
        vector_env = gymnasium.make_vec(
            "CartPole-v1",
            num_envs=num_environments,
            vectorization_mode="vector_entry_point",
        )
        return GymnasiumEnvironment(vector_env, seed=seed)


class ReusingVectorEnv(VectorEnv):
    """Writes into the same arrays at every step, and batches no space, as some do."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs=2):
        self.num_envs = num_envs
        self.single_observation_space = spaces.Box(0, 1, (2,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.observation_space = self.single_observation_space
        self.action_space = self.single_action_space
        self.observation = np.zeros((num_envs, 2), np.float32)
        self.reward = np.zeros(num_envs)
        self.ended = np.zeros(num_envs, bool)
        self.no = np.zeros(num_envs, bool)
        self.infos = {"count": np.zeros(num_envs, np.int32)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.ended[:] = False
        self.infos["count"][:] = 0
        self.observation[:] = self.np_random.random(self.observation.shape)
        return self.observation, self.infos

    def step(self, actions):
        self.observation[:] = self.np_random.random(self.observation.shape)
        self.infos["count"] += 1
        self.reward[:] = np.where(self.ended, 0, self.observation[:, 0])
        self.ended[:] = ~self.ended & (self.observation[:, 1] > 0.8)
        return self.observation, self.reward, self.ended, self.no, self.infos


class TestVectorEnvThatReusesItsMemory(EnvironmentContract):
    def make(self, num_environments, seed):
        return GymnasiumEnvironment(
            ReusingVectorEnv(num_environments), seed=seed, env_info_keys=["count"]
        )


# Time convention


@pytest.mark.parametrize("vector_env_class", [SerialVectorEnv, ProcessVectorEnv])
def test_transitions_never_cross_episodes(vector_env_class):
    lengths = (1, 3, 2)
    vector_env = vector_env_class([functools.partial(CountingEnv, lengths)] * 2)
    env = GymnasiumEnvironment(vector_env)
    time_steps = [env.reset()]
    time_steps += [env.step(noop()) for _ in range(18)]
    env.close()
    observations = torch.stack([t.observation[:, 0] for t in time_steps])
    step_types = torch.stack([t.step_type for t in time_steps])
    valid = step_types[:-1] != 2
    same_episode = observations[1:] // 100 == observations[:-1] // 100
    assert torch.equal(valid, same_episode)
    assert (observations[1:] - observations[:-1])[valid].unique().tolist() == [1]
    # 18 steps hold 3 whole rounds of (1 + 3 + 2) steps less the resets between.
    env_steps = int((step_types[1:, 0] != 0).sum())
    num_ends = int((step_types[:, 0] == 2).sum())
    assert env_steps == 18 - (num_ends - int(step_types[-1, 0] == 2))


def test_ends_of_every_length_are_first_and_last_steps():
    env = serial(functools.partial(CountingEnv, (1, 2)), 1)
    steps = [env.reset(), *[env.step(noop(1)) for _ in range(6)]]
    assert [int(s.step_type) for s in steps] == [0, 2, 0, 1, 2, 0, 2]
    assert [float(s.reward) for s in steps] == [0, 1, 0, 1, 1, 0, 1]
    assert [float(s.discount) for s in steps] == [1, 0, 1, 1, 0, 1, 0]


def test_a_time_limit_keeps_discount_one():
    env = serial(functools.partial(CountingEnv, (2,), truncates=True), 1)
    env.reset()
    steps = [env.step(noop(1)) for _ in range(2)]
    assert [int(s.step_type) for s in steps] == [1, 2]
    assert [float(s.discount) for s in steps] == [1, 1]


def test_terminated_and_truncated_together_is_terminal():
    env = serial(functools.partial(FaultEnv, "both_ends", 1), 1)
    env.reset()
    env.step(noop(1))
    last = env.step(noop(1))
    assert last.is_last().all()
    assert last.discount.tolist() == [0]
    assert env.step(noop(1)).is_first().all()


def test_a_reset_in_the_middle_starts_new_episodes():
    env = serial(functools.partial(CountingEnv, (3,)), 1)
    env.reset()
    env.step(noop(1))
    env.step(noop(1))
    env.step(noop(1))  # LAST
    assert env.reset().is_first().all()
    assert env.step(noop(1)).step_type.tolist() == [1]


def test_only_the_first_reset_uses_the_seed_of_the_constructor():
    env = serial(NestedEnv, seed=3)
    first, second = env.reset(), env.reset()
    assert not torch.equal(first.observation["target"], second.observation["target"])
    again = env.reset(3)
    assert torch.equal(first.observation["target"], again.observation["target"])


# Data


def test_fortran_order_negative_strides_and_read_only_arrays_are_accepted():
    base = np.arange(12, dtype=np.float32).reshape(2, 3, 2) / 12
    for array in (base.transpose(0, 2, 1), base[:, ::-1, ::-1].transpose(0, 2, 1)):
        array.flags.writeable = False
        vector_env = Constant(spaces.Box(0, 1, (2, 3), np.float32), array)
        time_step = GymnasiumEnvironment(vector_env).reset()
        assert torch.equal(time_step.observation, torch.tensor(array.copy()))


class Constant(VectorEnv):
    """A vector environment of two that returns the same at every step."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, space, observation, reward=None, ended=None, infos=None):
        self.num_envs = 2
        self.single_observation_space = space
        self.single_action_space = spaces.Discrete(2)
        self.observation = observation
        self.reward = np.ones(2) if reward is None else reward
        self.ended = np.zeros(2, bool) if ended is None else ended
        self.infos = infos or {}

    def reset(self, *, seed=None, options=None):
        return self.observation, self.infos

    def step(self, actions):
        no = np.zeros(2, bool)
        return self.observation, self.reward, self.ended, no, self.infos


def test_env_info_holds_the_declared_keys_and_zeros_where_they_are_missing():
    vector_env = SerialVectorEnv([CountingEnv])
    env = GymnasiumEnvironment(vector_env, env_info_keys={"step": (), "never": (2,)})
    assert env.env_info_spec == {"step": TensorSpec(()), "never": TensorSpec((2,))}
    env.reset()
    # The vector environment was not told to report any key.
    assert env.step(noop(1)).env_info["step"].tolist() == [0]
    env = GymnasiumEnvironment(
        gymnasium.vector.SyncVectorEnv([CountingEnv] * 2),
        env_info_keys=["step", "episode"],
    )
    infos = [env.reset().env_info, *[env.step(noop()).env_info for _ in range(4)]]
    assert [i["step"].tolist()[0] for i in infos] == [0, 1, 2, 3, 0]
    assert [i["episode"].tolist()[0] for i in infos] == [0, 0, 0, 0, 1]


def test_without_declared_keys_env_info_is_absent():
    env = serial(CountingEnv)
    assert env.env_info_spec == ()
    assert env.reset().env_info == ()


# Checks at the border


def faulty(mode, at_step=3):
    fns = [FaultEnv, functools.partial(FaultEnv, mode, at_step)]
    return GymnasiumEnvironment(SerialVectorEnv(fns), name="Faulty")


def run(env, num_steps=6):
    env.reset()
    for _ in range(num_steps):
        env.step(noop())


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        ("nan_observation", r"environment 1 returned observation\[3\] = nan"),
        ("inf_observation", r"environment 1 returned observation\[3\] = inf"),
        ("nan_reward", "environment 1 returned reward = nan"),
        ("inf_reward", "environment 1 returned reward = -inf"),
        ("huge_reward", r"environment 1 returned reward = inf"),
    ],
)
def test_what_is_not_finite_names_environment_path_element_and_step(mode, message):
    with pytest.raises(EnvError, match=rf"Faulty, step\(\) at step 4: {message}"):
        run(faulty(mode))


def test_values_that_do_not_fit_into_float32_are_not_finite():
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    env = GymnasiumEnvironment(Constant(space, np.array([[1e200], [0.0]])))
    with pytest.raises(
        EnvError, match=r"environment 0 returned observation\[0\] = inf"
    ):
        env.reset()


def test_leaving_a_box_is_one_warning_per_environment():
    fns = [functools.partial(FaultEnv, "out_of_bounds", t) for t in (1, 2)]
    env = GymnasiumEnvironment(SerialVectorEnv(fns))
    env.reset()
    env.step(noop())
    for row in range(2):
        with pytest.warns(UserWarning, match=rf"environment {row} returned") as warned:
            time_step = env.step(noop())
        assert len(warned) == 1
        assert "observation[2] = 2000000.0, outside of" in str(warned[0].message)
        assert time_step.observation[row, 2] == 2e6
    env.step(noop())  # no further warning, which would be an error here


def test_what_left_its_box_must_still_be_finite():
    fns = [functools.partial(FaultEnv, "out_of_bounds", 0, 1)]
    env = GymnasiumEnvironment(SerialVectorEnv(fns))
    env.reset()
    with pytest.warns(UserWarning, match="outside"):
        env.step(noop(1))
    env.vector_env._steps = [lambda action: (np.full(4, np.nan), 0.0, False, False, {})]
    with pytest.raises(EnvError, match="nan"):
        env.step(noop(1))


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (
            spaces.Discrete(3),
            np.array([0, 3]),
            "environment 1 returned observation = 3",
        ),
        (spaces.Discrete(3, start=2), np.array([1, 2]), "environment 0 .* = 1, which"),
        (
            spaces.MultiDiscrete([2, 2]),
            np.array([[0, 1], [1, -1]]),
            r"environment 1 returned observation\[1\] = -1",
        ),
        (
            spaces.Box(-3, 3, (2,), np.int64),
            np.array([[3, -3], [0, 4]]),
            r"environment 1 returned observation\[1\] = 4, which is not in Box\(-3",
        ),
        (
            spaces.MultiBinary(2),
            np.array([[0, 1], [2, 1]], np.int8),
            r"environment 1 returned observation\[0\] = 2",
        ),
    ],
)
def test_integers_out_of_range_are_errors(space, observation, message):
    with pytest.raises(EnvError, match=message):
        GymnasiumEnvironment(Constant(space, observation)).reset()


BOX = spaces.Box(-1, 1, (3,), np.float32)
GOOD = np.zeros((2, 3), np.float32)


@pytest.mark.parametrize(
    "observation",
    [
        np.zeros((2, 1), np.float32),
        np.zeros((2, 4), np.float32),
        np.zeros((3, 3), np.float32),
        np.zeros(3, np.float32),
        np.zeros((2, 3), object),
        np.zeros((2, 3), complex),
        None,
    ],
)
def test_batches_of_wrong_shape_or_dtype_name_expected_and_got(observation):
    for call in ("reset", "step"):
        env = Constant(BOX, GOOD)
        adapter = GymnasiumEnvironment(env, name="Wrong")
        if call == "step":
            adapter.reset()
        env.observation = observation
        with pytest.raises(EnvError, match=r"observation: expected float32 of shape"):
            adapter.reset() if call == "reset" else adapter.step(noop())


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"reward": np.ones(1)}, r"reward: expected float64 of shape \(2,\)"),
        ({"reward": np.ones((2, 1))}, "reward: expected"),
        ({"ended": np.zeros(1, bool)}, "terminated: expected bool"),
        ({"ended": np.array([0.0, 0.5])}, "terminated: expected bool"),
    ],
)
def test_rewards_and_ends_of_a_wrong_shape_are_named(kwargs, message):
    env = GymnasiumEnvironment(Constant(BOX, GOOD, **kwargs))
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(noop())


@pytest.mark.parametrize(
    "kwargs",
    [
        {"ended": np.array([False, True])},  # ends again at the reset
        {"reward": np.array([1.0, 2.0])},
    ],
)
def test_an_environment_that_only_claims_next_step_mode_is_found_out(kwargs):
    vector_env = Constant(BOX, GOOD, ended=np.array([False, True]))
    env = GymnasiumEnvironment(vector_env)
    env.reset()
    env.step(noop())
    vector_env.ended = kwargs.get("ended", np.zeros(2, bool))
    vector_env.reward = kwargs.get("reward", np.zeros(2))
    with pytest.raises(EnvError, match=r"environment 1 .*AutoresetMode.NEXT_STEP"):
        env.step(noop())


def test_missing_and_additional_keys_are_named():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Discrete(2)})
    good = {"a": np.zeros(2, np.int64), "b": np.zeros(2, np.int64)}
    env = Constant(space, good)
    adapter = GymnasiumEnvironment(env)
    adapter.reset()
    env.observation = {"a": good["a"]}
    with pytest.raises(EnvError, match=r"missing \['b'\]"):
        adapter.step(noop())
    env.observation = {**good, "c": good["a"]}
    with pytest.raises(EnvError, match=r"unexpected \['c'\]"):
        adapter.reset()


def test_whatever_a_foreign_environment_raises_says_where():
    class Raising(Constant):
        def step(self, actions):
            raise KeyError("lost")

    env = GymnasiumEnvironment(Raising(BOX, GOOD), name="Mine")
    env.reset()
    with pytest.raises(EnvError, match=r"Mine, step\(\) at step 1 raised KeyError"):
        env.step(noop())


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_autoreset_modes_are_refused_with_the_remedy(mode):
    vector_env = gymnasium.vector.SyncVectorEnv([CountingEnv], autoreset_mode=mode)
    with pytest.raises(ConfigError, match=r"autoreset_mode=AutoresetMode.NEXT_STEP"):
        GymnasiumEnvironment(vector_env)


def test_a_mode_that_is_not_declared_is_refused_and_its_text_is_accepted():
    vector_env = Constant(BOX, GOOD)
    vector_env.metadata = {}
    with pytest.raises(ConfigError, match="is None"):
        GymnasiumEnvironment(vector_env)
    vector_env.metadata = {"autoreset_mode": "NextStep"}
    GymnasiumEnvironment(vector_env).reset()


def test_single_environments_are_refused():
    with pytest.raises(ConfigError, match="create_environment"):
        GymnasiumEnvironment(CountingEnv())


def test_an_action_of_another_structure_is_an_error():
    env = serial(CountingEnv)
    env.reset()
    with pytest.raises(ValueError, match="structures differ"):
        env.step({"a": noop()})


# The rest of the interface


def test_specs_name_and_metadata_come_from_the_environment():
    fn = functools.partial(gymnasium.make, "Pendulum-v1", disable_env_checker=True)
    env = serial(fn, 3)
    assert env.name == "Pendulum-v1"
    assert env.batch_size == 3
    assert env.metadata["render_fps"] == 30
    assert env.reward_spec == TensorSpec(())
    assert env.action_spec == BoundedTensorSpec((1,), torch.float32, -1, 1)
    assert serial(VectorRewardEnv).reward_spec == TensorSpec((2,))


@pytest.mark.parametrize("vector_env_class", [SerialVectorEnv, ProcessVectorEnv])
def test_render_gives_a_frame_of_the_first_environment(vector_env_class):
    fn = functools.partial(ImageEnv, render_mode="rgb_array")
    env = GymnasiumEnvironment(vector_env_class([fn] * 2))
    observation = env.reset(0).observation
    frame = env.render()
    env.close()
    assert frame.dtype == np.uint8
    assert np.array_equal(frame, observation[0].expand(-1, -1, 3).numpy())


def test_an_environment_without_frames_renders_none():
    env = serial(functools.partial(gymnasium.make, "CartPole-v1"))
    env.reset()
    with pytest.warns(UserWarning, match="render"):
        assert env.render() is None


def test_arrays_that_the_environment_may_write_again_are_copied():
    observation = GymnasiumEnvironment(Constant(BOX, GOOD)).reset().observation
    assert observation.data_ptr() != GOOD.ctypes.data
    assert torch.equal(observation, torch.from_numpy(GOOD))


def test_rows_of_another_shape_or_structure_are_refused():
    env = serial(functools.partial(gymnasium.make, "CartPole-v1"), 2)
    step = env.reset()
    memory = nest.map_structure(lambda t: t.unsqueeze(0).clone(), step)
    wrong = memory._replace(reward=memory.reward[:, :1])
    with pytest.raises(ValueError, match=r"reward: expected rows of shape \(2,\)"):
        env.rows_of(wrong)
    with pytest.raises(ValueError, match="observation"):
        env.rows_of(memory._replace(observation=()))
