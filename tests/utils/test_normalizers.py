"""Running statistics equal those of all data at once, and cannot be spoilt."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec
from alf_lite.utils.normalizers import Normalizer


def random_batches(seed, num_features=3):
    """Batches of random sizes [n, num_features], and all of them together."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 20, size=12)
    scale, offset = rng.uniform(0.1, 50, num_features), rng.normal(size=num_features)
    batches = [rng.normal(size=(n, num_features)) * scale + offset for n in sizes]
    return [torch.tensor(b) for b in batches], torch.tensor(np.concatenate(batches))


def updated(batches, spec=TensorSpec((3,)), **arguments):
    normalizer = Normalizer(spec, **arguments)
    for batch in batches:
        normalizer.update(batch)
    return normalizer


def naive_weighted_statistics(batches, old_data_factor):
    """Every row with its weight after all later batches have scaled it down."""
    rows, weights, num_seen = [], [], 0
    for batch in batches:
        factor = old_data_factor(num_seen, len(batch)) if num_seen else 0.0
        weights = [w * factor for w in weights] + [(1 - factor) / len(batch)] * len(
            batch
        )
        rows += list(batch.numpy())
        num_seen += len(batch)
    rows, weights = np.stack(rows), np.array(weights)[:, None]
    assert weights.sum() == pytest.approx(1.0)
    mean = (weights * rows).sum(0)
    return torch.tensor(mean), torch.tensor((weights * (rows - mean) ** 2).sum(0))


@pytest.mark.parametrize(
    ("arguments", "old_data_factor"),
    [
        ({"mode": "running"}, lambda seen, new: seen / (seen + new)),
        ({"mode": "adaptive", "speed": 1.0}, lambda seen, new: seen / (seen + new)),
        (
            {"mode": "adaptive", "speed": 8.0},
            lambda seen, new: (seen / (seen + new)) ** 8,
        ),
        ({"mode": "moving", "update_rate": 0.05}, lambda seen, new: 0.95**new),
    ],
)
def test_every_mode_is_a_weighted_mean_and_variance(arguments, old_data_factor):
    batches, together = random_batches(1)
    normalizer = updated(batches, **arguments)
    assert normalizer.count == len(together)
    mean, variance = naive_weighted_statistics(batches, old_data_factor)
    torch.testing.assert_close(normalizer.mean, mean, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(normalizer.variance, variance, rtol=1e-11, atol=1e-12)


def test_before_the_first_update_nothing_changes():
    x = torch.randn(4, 3) * 100
    assert torch.equal(Normalizer(TensorSpec((3,))).normalize(x), x)


def test_a_small_spread_around_a_large_mean_is_resolved():
    rng = np.random.default_rng(0)
    data = torch.tensor(1e6 + rng.choice([-1.0, 1.0], 100_000), dtype=torch.float32)
    cuts = np.sort(rng.integers(0, len(data), 200)).tolist()
    normalizer = updated(torch.tensor_split(data, cuts), spec=TensorSpec(()))
    assert abs(normalizer.variance.item() - 1) < 1e-2
    output = normalizer.normalize(torch.tensor([1e6 - 1, 1e6 + 1]))
    torch.testing.assert_close(output, torch.tensor([-1.0, 1.0]), atol=0.1, rtol=0)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e7])
def test_a_constant_feature_becomes_zero(value):
    data = torch.full((1000, 1), value)
    normalizer = updated(torch.split(data, 7), spec=TensorSpec((1,)))
    assert torch.equal(normalizer.normalize(data), torch.zeros(1000, 1))


def test_a_change_of_a_feature_that_was_constant_stays_moderate():
    normalizer = updated([torch.full((10, 1), 5.0)], spec=TensorSpec((1,)))
    assert normalizer.normalize(torch.tensor([[5.5]])) == 0.5


def test_without_zero_mean_only_the_scale_changes():
    data = torch.tensor([[1.0], [3.0]])
    normalizer = updated([data], spec=TensorSpec((1,)), zero_mean=False)
    assert torch.equal(normalizer.normalize(data), data)
    normalizer.update(data * 3)
    std = torch.tensor([1.0, 3.0, 3.0, 9.0]).std(correction=0)
    torch.testing.assert_close(normalizer.normalize(data), data / std)


def test_results_are_clipped():
    normalizer = updated([torch.tensor([[-1.0], [1.0]])], spec=TensorSpec((1,)))
    outputs = normalizer.normalize(torch.tensor([[-9.0], [0.5], [7.0]]), clip=2.0)
    assert outputs.flatten().tolist() == [-2.0, 0.5, 2.0]


@pytest.mark.parametrize("outer_dims", [(), (5,), (4, 3)])
def test_nests_keep_their_structure_and_leading_dimensions(outer_dims):
    spec = {"pixels": TensorSpec((2, 2)), "speed": (TensorSpec(()),)}
    batch = {"pixels": torch.randn(6, 2, 2), "speed": (torch.randn(6),)}
    normalizer = updated([batch], spec=spec)
    inputs = {
        "pixels": torch.randn(*outer_dims, 2, 2),
        "speed": (torch.randn(outer_dims),),
    }
    outputs = normalizer.normalize(inputs)
    for data, x, y in [
        (batch["pixels"], inputs["pixels"], outputs["pixels"]),
        (batch["speed"][0], inputs["speed"][0], outputs["speed"][0]),
    ]:
        expected = (x - data.mean(0)) / data.std(0, correction=0)
        torch.testing.assert_close(y, expected)
        assert y.shape == x.shape


def test_leading_dimensions_of_a_batch_are_one_set_of_vectors():
    data = torch.randn(4, 5, 3)
    by_step, flat = updated([data]), updated([data.reshape(20, 3)])
    assert torch.equal(by_step.mean, flat.mean)
    assert by_step.count == 20


def test_dtypes_of_outputs():
    spec = (TensorSpec((), torch.float64), BoundedTensorSpec((), torch.uint8, 0, 255))
    data = (
        torch.tensor([1.0, 3.0]).double(),
        torch.tensor([0, 100], dtype=torch.uint8),
    )
    wide, narrow = updated([data], spec=spec).normalize(data)
    assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
    assert narrow.tolist() == wide.tolist() == [-1.0, 1.0]


def test_inputs_are_left_as_they_were():
    batches, _ = random_batches(0)
    x, before = batches[0].float(), batches[0].float()
    normalizer = updated(batches)
    normalizer.update(x)
    normalizer.normalize(x, clip=0.1)
    assert torch.equal(x, before)


def test_an_empty_batch_changes_nothing():
    normalizer = updated([torch.zeros(0, 3)])
    assert normalizer.count == 0
    assert torch.equal(normalizer.normalize(torch.ones(3)), torch.ones(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_numbers_that_are_not_finite_are_refused_with_their_place(bad):
    spec = {"a": TensorSpec(()), "b": TensorSpec((3,))}
    good = {"a": torch.randn(4, 2), "b": torch.randn(4, 2, 3)}
    normalizer = updated([good], spec=spec)
    before = copy.deepcopy(normalizer.state_dict())
    spoilt = {"a": good["a"], "b": good["b"].clone()}
    spoilt["b"][3, 1, 2] = bad
    with pytest.raises(ValueError, match=r"b: -?(nan|inf) at index \(3, 1, 2\)"):
        normalizer.update(spoilt)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (torch.zeros(5, 2), r"inputs: expected the shape \[..., 3\], got \(5, 2\)"),
        (torch.zeros(()), r"inputs: expected the shape \[..., 3\], got \(\)"),
        ({"a": torch.zeros(5, 3)}, "structures differ"),
    ],
)
def test_other_shapes_are_refused(batch, message):
    with pytest.raises(ValueError, match=message):
        updated([batch])


def change_by_loading(normalizer, other):
    normalizer.load_state_dict(other.state_dict())


def change_by_assigning(normalizer, other):
    normalizer.load_state_dict(copy.deepcopy(other.state_dict()), assign=True)


@torch.inference_mode()
def change_by_copying(normalizer, other):
    for mine, its in zip(normalizer.buffers(), other.buffers(), strict=True):
        mine.copy_(its)


@pytest.mark.parametrize(
    "change", [change_by_loading, change_by_assigning, change_by_copying]
)
def test_new_statistics_are_used_at_once_however_they_come(change):
    batches, together = random_batches(2)
    source, normalizer = updated(batches), updated(batches[:1])
    x = together[:5].float()
    normalizer.normalize(x)
    change(normalizer, source)
    assert torch.equal(normalizer.normalize(x), source.normalize(x))


def test_compiled_code_uses_the_new_statistics():
    batches, together = random_batches(2)
    normalizer = Normalizer(TensorSpec((3,)))
    compiled = torch.compile(normalizer.normalize, backend="eager", fullgraph=True)
    x = together[:5].float()
    for batch in batches[:3]:
        assert torch.equal(compiled(x), normalizer.normalize(x))
        normalizer.update(batch)


def test_normalizing_never_changes_the_statistics():
    batches, together = random_batches(0)
    normalizer = updated(batches)
    before = copy.deepcopy(normalizer.state_dict())
    for _ in range(3):
        normalizer.normalize(together)
    for name, value in normalizer.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_count_does_not_lose_precision():
    normalizer = updated(random_batches(0)[0])
    normalizer.load_state_dict(
        normalizer.state_dict() | {"count": torch.tensor(2**53 + 1)}
    )
    normalizer.update(torch.zeros(1, 3))
    assert normalizer.count == 2**53 + 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mode": "window"}, "mode must be one of .*'running'.*got 'window'"),
        ({"speed": 0.5}, "speed must be at least 1, got 0.5"),
        ({"speed": 2.0}, "speed has no effect: mode is 'running'"),
        ({"mode": "moving", "speed": 2.0}, "speed has no effect: mode is 'moving'"),
        ({"update_rate": 0.1}, "update_rate has no effect: mode is 'running'"),
        ({"update_rate": 1.0}, r"update_rate must be in \(0, 1\), got 1.0"),
        ({"spec": ()}, "there is nothing to normalize"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Normalizer(**({"spec": TensorSpec(())} | arguments))
