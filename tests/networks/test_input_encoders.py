import numpy as np
import pytest
import torch

from alf_lite.networks.input_encoders import (
    NATURE_CNN,
    CategoryEncoder,
    ImageEncoder,
    ImageInput,
    NumberEncoder,
    WordEncoder,
    image_layout,
    make_encoder,
)
from alf_lite.tensor_specs import BoundedTensorSpec, TensorSpec


def bounded(shape, dtype, minimum, maximum):
    return BoundedTensorSpec(shape, dtype, minimum, maximum)


def encode(spec, values, **options):
    encoder = make_encoder("x", spec, **options)
    features = encoder(values)
    assert features.shape[-1] == encoder.output_size
    assert features.dtype == torch.float32
    return features


# Numbers


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("outer", [(4,), (5, 4)])
def test_floats_are_flattened_over_any_batch_dimensions(shape, outer):
    x = torch.randn(*outer, *shape)
    features = encode(TensorSpec(shape), x)
    assert torch.equal(features, x.reshape(*outer, -1))


def test_float64_becomes_float32():
    x = torch.randn(4, 3, dtype=torch.float64)
    features = encode(TensorSpec((3,), torch.float64), x)
    assert torch.equal(features, x.float())


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((3,), torch.bool),
        bounded((3,), torch.bool, False, True),
        bounded((3,), torch.int8, 0, 1),
        bounded((3,), torch.uint8, 0, 1),
        bounded((3,), torch.int64, 0, 1),
    ],
)
def test_binary_vectors_become_zeros_and_ones(spec):
    x = torch.tensor([[0, 1, 1], [1, 0, 0]]).to(spec.dtype)
    features = encode(spec, x)
    assert features.tolist() == [[0.0, 1.0, 1.0], [1.0, 0.0, 0.0]]


@pytest.mark.parametrize(
    "spec", [TensorSpec((3,), torch.uint8), bounded((3,), torch.uint8, 0, 255)]
)
def test_byte_vectors_are_divided_by_255(spec):
    features = encode(spec, torch.tensor([[0, 51, 255]], dtype=torch.uint8))
    torch.testing.assert_close(features, torch.tensor([[0.0, 0.2, 1.0]]))


# Categories


def test_scalar_category_becomes_one_hot_from_its_minimum():
    spec = bounded((), torch.int64, -1, 1)
    features = encode(spec, torch.tensor([-1, 0, 1, 0]))
    assert torch.equal(features, torch.eye(3)[[0, 1, 2, 1]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.uint8])
def test_category_vectors_become_one_hot_per_element(dtype):
    spec = bounded((2,), dtype, [0, 2], [2, 5])
    x = torch.tensor([[[0, 2], [2, 5]], [[1, 3], [0, 4]]]).to(dtype)  # [T, B, 2]
    features = encode(spec, x)
    expected = torch.cat(
        [torch.eye(3)[x[..., 0].long()], torch.eye(4)[x[..., 1].long() - 2]], -1
    )
    assert torch.equal(features, expected)


def test_embeddings_look_up_one_row_per_element():
    spec = bounded((2,), torch.int64, [0, 2], [2, 5])
    encoder = make_encoder("x", spec, embedding_size=5)
    assert encoder.output_size == 10
    table = encoder._embedding.weight
    assert table.shape == (7, 5)
    features = encoder(torch.tensor([[1, 4]]))
    torch.testing.assert_close(features, torch.cat([table[1], table[3 + 2]])[None])


def test_many_categories_become_an_embedding():
    few = make_encoder("x", bounded((), torch.int64, 0, 255))
    many = make_encoder("x", bounded((), torch.int64, 0, 256))
    assert isinstance(few, CategoryEncoder)
    assert few.output_size == 256
    assert not list(few.parameters())
    assert many.output_size == 64
    assert [p.shape for p in many.parameters()] == [(257, 64)]


def test_category_encoder_adds_nothing_to_checkpoints_without_parameters():
    assert not make_encoder("x", bounded((), torch.int64, 0, 3)).state_dict()


# Images


@pytest.mark.parametrize(
    ("shape", "is_last", "layout"),
    [
        ((84, 84, 3), True, (3, 84, 84)),
        ((84, 96, 1), True, (1, 84, 96)),
        ((84, 84, 12), True, (12, 84, 84)),
        ((4, 84, 84), False, (4, 84, 84)),
        ((1, 84, 96), False, (1, 84, 96)),
        ((10, 10, 10), True, (10, 10, 10)),
        ((40, 50), False, (1, 40, 50)),
    ],
)
def test_layout_of_an_image_is_read_from_its_shape(shape, is_last, layout):
    assert image_layout(TensorSpec(shape, torch.uint8)) == (is_last, layout)


def test_layouts_give_the_same_features():
    torch.manual_seed(0)
    last = make_encoder("x", bounded((40, 50, 3), torch.uint8, 0, 255))
    first = make_encoder("x", bounded((3, 40, 50), torch.uint8, 0, 255))
    first.load_state_dict(last.state_dict())
    x = torch.randint(0, 256, (2, 40, 50, 3), dtype=torch.uint8)
    torch.testing.assert_close(first(x.movedim(-1, -3)), last(x))


def first_convolution_input(encoder, x):
    seen = []
    convolutions = encoder._convolutions
    hook = convolutions.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    encoder(x)
    hook.remove()
    return seen[0]


@pytest.mark.parametrize(
    ("shape", "rows", "with_gradient", "is_last"),
    [
        ((4, 50, 60), 3, True, True),
        ((4, 50, 60), 3, False, False),  # faster as they are
        ((4, 50, 60), 128, False, True),
        ((4, 10, 10), 3, True, False),
        ((50, 60, 3), 3, False, True),  # as they come
    ],
)
def test_convolutions_get_images_as_they_are_fast(shape, rows, with_gradient, is_last):
    images = torch.randint(0, 256, (rows, *shape), dtype=torch.uint8)
    before = images.clone()
    image_input = ImageInput(TensorSpec(shape, torch.uint8))
    with torch.set_grad_enabled(with_gradient):
        found, _ = image_input(images)
    assert found.is_contiguous(memory_format=torch.channels_last) == is_last
    assert torch.equal(images, before)
    as_expected = images.movedim(-1, -3) if shape[-1] == 3 else images
    assert torch.equal(found, as_expected.float() * (1 / 255))


def test_how_images_lie_in_memory_changes_features_and_gradients_by_rounding_only():
    torch.manual_seed(0)
    encoder = make_encoder("o", TensorSpec((4, 84, 84), torch.uint8))
    images = torch.randint(0, 256, (32, 4, 84, 84), dtype=torch.uint8)
    results = []
    for min_rows in (1, None):
        encoder._images._min_rows = min_rows
        encoder.zero_grad()
        features = encoder(images)
        features.square().mean().backward()
        results.append([features, *(p.grad for p in encoder.parameters())])
    for last, first in zip(*results, strict=True):
        torch.testing.assert_close(last, first, rtol=1e-4, atol=1e-5)


def test_bytes_of_an_image_are_divided_by_255_exactly_once():
    encoder = make_encoder("x", bounded((40, 40, 3), torch.uint8, 0, 255))
    x = torch.full((2, 40, 40, 3), 255, dtype=torch.uint8)
    seen = first_convolution_input(encoder, x)
    assert seen.shape == (2, 3, 40, 40)
    torch.testing.assert_close(seen, torch.ones(2, 3, 40, 40))


@pytest.mark.parametrize(
    "spec",
    [
        bounded((40, 40, 3), torch.float32, 0, 255),
        TensorSpec((40, 40, 3), torch.bool),
        bounded((40, 40, 3), torch.uint8, 0, 1),
    ],
)
def test_images_that_are_no_bytes_are_not_scaled(spec):
    encoder = make_encoder("x", spec)
    assert isinstance(encoder, ImageEncoder)
    seen = first_convolution_input(encoder, torch.ones(1, 40, 40, 3).to(spec.dtype))
    assert (seen == 1).all()


def test_image_size_chooses_the_convolutions():
    atari = make_encoder("x", bounded((4, 84, 84), torch.uint8, 0, 255))
    assert atari.output_size == 64 * 7 * 7
    grid = make_encoder("x", TensorSpec((10, 10, 4), torch.bool))
    assert grid.output_size == 32 * 6 * 6
    smallest = make_encoder("x", bounded((36, 36, 3), torch.uint8, 0, 255))
    assert smallest.output_size == 64
    tiny = make_encoder("x", TensorSpec((4, 4, 3)))
    assert isinstance(tiny, NumberEncoder)
    assert tiny.output_size == 48


@pytest.mark.parametrize(
    ("params", "size"),
    [
        ([(8, 4, 2), (6, 3, 1)], 6 * 7 * 9),
        ([(8, 4, 2, 1), (6, 3, 1, 1)], 6 * 10 * 12),
        ([(8, 21, 2, 3), (6, 3, 1)], 6 * 1 * 3),
    ],
)
def test_convolutions_can_be_given_and_take_any_batch_dimensions(params, size):
    spec = bounded((20, 24, 3), torch.uint8, 0, 255)
    encoder = make_encoder("x", spec, conv_layer_params=params, conv_activation="tanh")
    assert encoder.output_size == size
    x = torch.randint(0, 256, (3, 2, 20, 24, 3), dtype=torch.uint8)
    features = encoder(x)
    assert features.shape == (3, 2, size)
    torch.testing.assert_close(features[1], encoder(x[1]))
    assert (features < 0).any()


def test_convolutions_start_orthogonal():
    encoder = make_encoder("x", bounded((40, 40, 3), torch.uint8, 0, 255))
    rows = encoder._convolutions[0].weight.flatten(1)
    assert rows.shape == (NATURE_CNN[0][0], 3 * 64)
    torch.testing.assert_close(rows @ rows.T, 2 * torch.eye(32), atol=1e-5, rtol=0)


# Bad input


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (TensorSpec((), torch.int64), r"camera: expected bounds.*float dtype"),
        (bounded((), torch.int64, 0, 2**40), r"camera: expected at most 1000000"),
        (bounded((3,), torch.int32, -(2**31), 2**31 - 1), r"camera: expected at most"),
        (TensorSpec((0,)), r"camera: expected at least one element"),
        (TensorSpec((2, 8, 8, 3), torch.uint8), r"camera: expected at most 3 dim"),
    ],
)
def test_unsupported_specs_are_refused_by_name(spec, message):
    with pytest.raises(ValueError, match=message):
        make_encoder("camera", spec)


def test_convolutions_that_do_not_fit_are_refused():
    spec = bounded((20, 24, 3), torch.uint8, 0, 255)
    with pytest.raises(ValueError, match=r"camera: .* at least 36 x 36, got 20 x 24"):
        make_encoder("camera", spec, conv_layer_params=NATURE_CNN)
    with pytest.raises(ValueError, match=r"\(filters, kernel size, stride\)"):
        make_encoder("camera", spec, conv_layer_params=[(8, 4)])
    with pytest.raises(ValueError, match=r"\(filters, kernel size, stride\)"):
        make_encoder("camera", spec, conv_layer_params=[(8, 4, 0)])
    with pytest.raises(ValueError, match=r"stride, padding\)"):
        make_encoder("camera", spec, conv_layer_params=[(8, 4, 1, -1)])


# Words


def test_words_mean_the_same_in_every_place_and_zero_means_nothing():
    spec = bounded((4,), torch.int64, 0, 9)
    encoder = WordEncoder(spec, output_size=6)
    words = torch.tensor([[3, 5, 0, 0], [5, 3, 0, 0], [0, 5, 0, 3], [3, 3, 0, 0]])
    features = encoder(words.expand(7, 4, 4))
    assert features.shape == (7, 4, 6)
    first, *others, doubled = features[0]
    for other in others:
        torch.testing.assert_close(other, first)
    three = encoder(torch.tensor([[3, 0, 0, 0]]))[0]
    torch.testing.assert_close(doubled, 2 * three)
    assert not encoder(torch.zeros(1, 4, dtype=torch.int64)).any()


@pytest.mark.parametrize(
    "spec",
    [
        TensorSpec((4,)),
        bounded((2, 2), torch.int64, 0, 9),
        bounded((4,), torch.int64, 1, 9),
    ],
)
def test_what_is_no_text_is_refused(spec):
    with pytest.raises(ValueError, match="expected numbers of words"):
        WordEncoder(spec)


def test_leaf_that_is_no_spec_is_refused():
    with pytest.raises(TypeError, match=r"camera: expected a TensorSpec, got ndarray"):
        make_encoder("camera", np.zeros(3))
