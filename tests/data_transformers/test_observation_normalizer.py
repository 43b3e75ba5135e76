"""Observations are scaled by the statistics of the unrolls before, and only by them."""

from __future__ import annotations

import copy

import pytest
import torch

from alf_lite.data_structures import Experience, TimeStep
from alf_lite.data_transformers.observation_normalizer import ObservationNormalizer
from alf_lite.errors import ConfigError, EnvError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

SPEC = {
    "camera": BoundedTensorSpec((2, 2), torch.uint8, 0, 255),
    "position": TensorSpec((3,)),
    "speed": TensorSpec(()),
}


def observations(*outer_dims, seed=0):
    generator = torch.Generator().manual_seed(seed)
    sample = {k: s.sample(outer_dims, generator) for k, s in SPEC.items()}
    return sample | {"speed": sample["speed"] * 5 + 2}


def unroll(observation):
    return TimeStep(observation=observation)


def normalized(data, x):
    """By the statistics of ``data`` [T, B, ...]."""
    rows = data.flatten(0, 1).double()
    return ((x - rows.mean(0)) / rows.std(0, correction=0)).float()


def test_floating_parts_are_normalized_and_others_passed_on():
    normalizer = ObservationNormalizer(SPEC)
    data = observations(20, 4)
    normalizer.observe(unroll(data))
    x = observations(4, seed=1)
    time_step, state = normalizer.transform_timestep(unroll(x), ())
    assert state == ()
    assert time_step.observation["camera"] is x["camera"]
    for name in ("position", "speed"):
        torch.testing.assert_close(
            time_step.observation[name], normalized(data[name], x[name])
        )


def test_only_the_named_fields_are_normalized():
    normalizer = ObservationNormalizer(SPEC, fields=["speed"])
    normalizer.observe(unroll(observations(20, 4)))
    x = observations(4, seed=1)
    outputs = normalizer.transform(unroll(x)).observation
    assert outputs["position"] is x["position"]
    assert not torch.equal(outputs["speed"], x["speed"])
    assert normalizer.transformed_observation_spec["position"] == SPEC["position"]


def test_an_observation_that_is_one_tensor():
    normalizer = ObservationNormalizer(TensorSpec((2,)))
    data = torch.randn(10, 3, 2) * 4 + 1
    normalizer.observe(unroll(data))
    torch.testing.assert_close(
        normalizer.transform(unroll(data[0])).observation, normalized(data, data[0])
    )


def test_all_other_fields_of_the_time_step_are_kept():
    time_step = TimeStep(
        step_type=torch.zeros(4),
        reward=torch.ones(4),
        discount=torch.ones(4),
        observation=observations(4),
        prev_action=torch.ones(4),
        env_id=torch.arange(4),
        env_info={"x": torch.ones(4)},
    )
    outputs = ObservationNormalizer(SPEC).transform(time_step)
    for name in TimeStep._fields:
        if name != "observation":
            assert getattr(outputs, name) is getattr(time_step, name)


def test_stored_experience_is_transformed_like_single_steps():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    stored = observations(5, 6)
    experience = normalizer.transform_experience(
        Experience(time_step=unroll(stored), action=torch.zeros(5, 6))
    )
    for t in range(6):
        step = unroll({k: v[:, t] for k, v in stored.items()})
        for name, value in normalizer.transform(step).observation.items():
            outputs = experience.time_step.observation[name]
            assert torch.equal(outputs[:, t], value)


def test_outputs_obey_their_spec():
    normalizer = ObservationNormalizer(SPEC, clipping=0.5)
    spec = normalizer.transformed_observation_spec["position"]
    assert spec == BoundedTensorSpec((3,), torch.float32, -0.5, 0.5)
    for _ in range(2):  # before and after the first update
        outputs = normalizer.transform(unroll(observations(50))).observation
        assert outputs["position"].abs().max() == 0.5
        normalizer.observe(unroll(observations(20, 4)))


def test_before_the_first_unroll_nothing_is_scaled():
    normalizer = ObservationNormalizer(SPEC, clipping=None)
    x = observations(4)
    outputs = normalizer.transform(unroll(x)).observation
    assert torch.equal(outputs["position"], x["position"])
    assert normalizer.transformed_observation_spec["position"] == SPEC["position"]


def test_transforming_never_changes_the_statistics():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    before = copy.deepcopy(normalizer.state_dict())
    for seed in range(20):
        normalizer.transform_timestep(unroll(observations(4, seed=seed)), ())
        stored = Experience(time_step=unroll(observations(5, 6, seed=seed)))
        normalizer.transform_experience(stored)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_one_unroll_is_counted_once():
    normalizer = ObservationNormalizer(SPEC)
    normalizer.observe(unroll(observations(20, 4)))
    assert normalizer.normalizer.count == 80


def test_statistics_are_in_the_state_of_the_module():
    trained = ObservationNormalizer(SPEC)
    trained.observe(unroll(observations(20, 4)))
    loaded = ObservationNormalizer(SPEC)
    loaded.load_state_dict(trained.state_dict())
    x = unroll(observations(4, seed=3))
    assert torch.equal(
        loaded.transform(x).observation["position"],
        trained.transform(x).observation["position"],
    )


def test_update_mode_never_keeps_the_statistics():
    normalizer = ObservationNormalizer(SPEC, update_mode="never")
    assert not normalizer.has_statistics
    normalizer.observe(unroll(observations(20, 4)))
    assert normalizer.normalizer.count == 0


def test_a_nan_is_refused_with_its_step_and_environment():
    normalizer = ObservationNormalizer(SPEC)
    data = observations(20, 4)
    data["position"][7, 2, 1] = float("nan")
    with pytest.raises(EnvError, match=r"position: nan at index \(7, 2, 1\)"):
        normalizer.observe(unroll(data))
    assert normalizer.normalizer.count == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"fields": ["camera"]}, "'camera' must be floating point"),
        ({"clipping": 0.0}, "clipping must be above 0 or None, got 0.0"),
        ({"update_mode": "replay"}, r"update_mode must be one of.*got 'replay'"),
        ({"mode": "em"}, "mode must be one of"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        ObservationNormalizer(SPEC, **arguments)
