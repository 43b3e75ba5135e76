"""Bytes become numbers in the given range, exactly at its ends."""

from __future__ import annotations

import pytest
import torch

from alf_lite.data_structures import TimeStep
from alf_lite.data_transformers.image_scale_transformer import ImageScaleTransformer
from alf_lite.errors import ConfigError
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec

IMAGE_SPEC = BoundedTensorSpec((3, 2, 2), torch.uint8, 0, 255)
SPEC = {"camera": IMAGE_SPEC, "map": IMAGE_SPEC, "speed": TensorSpec((2,))}


@pytest.mark.parametrize(
    ("minimum", "maximum"), [(-1.0, 1.0), (0.0, 1.0), (-0.5, 0.5), (0.0, 255.0)]
)
def test_all_bytes_are_mapped_linearly(minimum, maximum):
    transformer = ImageScaleTransformer(
        BoundedTensorSpec((256,), torch.uint8, 0, 255), minimum=minimum, maximum=maximum
    )
    image = torch.arange(256, dtype=torch.uint8)
    output = transformer.transform(TimeStep(observation=image)).observation
    assert output.dtype == torch.float32
    assert (output[0], output[-1]) == (minimum, maximum)
    expected = torch.linspace(minimum, maximum, 256, dtype=torch.float64)
    torch.testing.assert_close(output.double(), expected, rtol=0, atol=1e-4)
    assert transformer.transformed_observation_spec == BoundedTensorSpec(
        (256,), torch.float32, minimum, maximum
    )


def test_only_images_are_scaled():
    transformer = ImageScaleTransformer(SPEC)
    observation = {name: spec.sample((5,)) for name, spec in SPEC.items()}
    outputs = transformer.transform(TimeStep(observation=observation)).observation
    assert outputs["speed"] is observation["speed"]
    expected = (observation["map"].float() / 127.5) - 1
    torch.testing.assert_close(outputs["map"], expected)
    assert observation["map"].dtype == torch.uint8


def test_only_the_named_images_are_scaled():
    transformer = ImageScaleTransformer(SPEC, fields=["camera"])
    observation = {name: spec.sample((5,)) for name, spec in SPEC.items()}
    outputs = transformer.transform(TimeStep(observation=observation)).observation
    assert outputs["map"] is observation["map"]
    assert outputs["camera"].dtype == torch.float32
    assert transformer.transformed_observation_spec["map"] == IMAGE_SPEC


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (SPEC, {"fields": ["speed"]}, "'speed' must be uint8"),
        (TensorSpec((2,)), {}, "no part of the observation is uint8"),
        (SPEC, {"minimum": 1.0, "maximum": 1.0}, "minimum must be less than maximum"),
    ],
)
def test_bad_arguments_are_refused(spec, arguments, message):
    with pytest.raises(ConfigError, match=message):
        ImageScaleTransformer(spec, **arguments)
