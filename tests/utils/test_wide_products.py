"""When torch multiplies by oneDNN, and that the products stay exact."""

from __future__ import annotations

import functools

import pytest
import torch

import alf_lite
from alf_lite.networks.value_networks import QNetwork
from alf_lite.utils import wide_products as module
from alf_lite.utils.wide_products import is_since_zen_5, largest_matrix, wide_products

TURIN = """\
processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
flags\t\t: fpu avx2 avx512f avx512dq avx512cd avx512bw avx512vl avx512_bf16
"""
LARGE = 2**11

has_switch = pytest.mark.skipif(
    module._matmul() is None, reason="torch before 2.9 has no switch"
)


@pytest.fixture
def faster(monkeypatch):
    monkeypatch.setattr(module, "_is_faster", lambda: True)
    yield
    assert precision() == "none"


def precision() -> str:
    return torch.backends.mkldnn.matmul.fp32_precision


@pytest.mark.parametrize(
    ("cpu_info", "expected"),
    [
        (TURIN, True),
        (TURIN + "\n" + TURIN.replace("26", "25"), True),
        (TURIN.replace("26", "25"), False),
        (TURIN.replace("AuthenticAMD", "GenuineIntel"), False),
        (TURIN.replace("avx512vl ", ""), False),
        ("processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd\n", False),
        ("", False),
    ],
    ids=["Zen 5", "first of two", "Zen 4", "Intel", "without AVX-512", "Arm", "empty"],
)
def test_processors_whose_width_is_not_used(cpu_info, expected):
    assert is_since_zen_5(cpu_info) is expected


def test_the_largest_layer():
    shapes = [(300,), (8, 6), (10, 5, 20), (64, 32, 8, 8), ()]
    assert largest_matrix(torch.zeros(shape) for shape in shapes) == 100
    assert largest_matrix([]) == 0
    assert largest_matrix([torch.zeros(8, 6, device="meta")]) == 0


@has_switch
def test_large_products_are_made_by_onednn(faster):
    with wide_products(LARGE, LARGE):
        assert precision() == "bf16"
    assert precision() == "none"
    with wide_products(LARGE, LARGE - 1):
        assert precision() == "none"
    with pytest.raises(ZeroDivisionError), wide_products(LARGE, LARGE):
        raise ZeroDivisionError


@has_switch
@pytest.mark.parametrize("chosen", ["ieee", "bf16"])
def test_what_somebody_has_set_is_left(faster, chosen):
    matmul = torch.backends.mkldnn.matmul
    matmul.fp32_precision = chosen
    try:
        with wide_products(LARGE, LARGE):
            assert precision() == chosen
        assert precision() == chosen
    finally:
        matmul.fp32_precision = "none"


@has_switch
def test_rounded_products_are_noticed():
    # This machine may have no processor that rounds: torch is told to.
    with torch.autocast("cpu", torch.bfloat16):
        assert not module._is_exact()
    assert precision() == "none"


@has_switch
@pytest.mark.skipif(not module._is_faster(), reason="not faster on this processor")
@pytest.mark.parametrize("shape", [(256, 23, 256), (300, 256, 1), (2048, 64, 64)])
def test_products_are_exact_where_they_are_wide(shape):
    num_rows, num_inner, num_columns = shape
    for first, second in (
        (torch.randn(num_rows, num_inner), torch.randn(num_inner, num_columns)),
        (torch.randn(num_inner, num_rows).T, torch.randn(num_columns, num_inner).T),
        (torch.randn(2, num_rows, num_inner), torch.randn(2, num_inner, num_columns)),
    ):
        with wide_products(LARGE, LARGE):
            product = first @ second
        torch.testing.assert_close(
            product.double(), first.double() @ second.double(), rtol=1e-5, atol=1e-4
        )


class Watched:
    """What updates are computed with, in the order of ``seen``."""

    def calc_loss(self, info):
        loss = super().calc_loss(info)
        loss.loss.register_hook(lambda _: self.seen.append(precision()))
        self.seen.append(precision())
        return loss


class WatchedDqn(Watched, alf_lite.DqnAlgorithm):
    pass


class WatchedPpo(Watched, alf_lite.PPOAlgorithm):
    pass


def trained_with(algorithm_class, network, **settings):
    """All that was seen until the first update was made."""
    algorithm = algorithm_class(
        env=alf_lite.create_environment("CartPole-v1", num_parallel_environments=2),
        config=alf_lite.TrainerConfig(num_iterations=100, random_seed=0, **settings),
        **network,
    )
    algorithm.seen = []
    while not algorithm.seen:
        algorithm.train_iter()
    assert len(algorithm.seen) > 1
    return set(algorithm.seen)


@has_switch
@pytest.mark.parametrize(("num_units", "expected"), [(256, "bf16"), (32, "none")])
def test_updates_of_large_networks_are_wide(faster, num_units, expected):
    sizes = (num_units, num_units)
    network = {"q_network_ctor": functools.partial(QNetwork, fc_layer_params=sizes)}
    assert {expected} == trained_with(
        WatchedDqn,
        network,
        mini_batch_size=64,
        unroll_length=4,
        initial_collect_steps=8,
    )


@has_switch
@pytest.mark.parametrize(
    ("settings", "expected"),
    [({"unroll_length": 64}, "bf16"), ({"unroll_episodes": 2}, "none")],
    ids=["unrolls", "episodes"],
)
def test_batches_of_ever_new_sizes_are_not(faster, monkeypatch, settings, expected):
    # oneDNN keeps code for each of them.
    monkeypatch.setattr(module, "_LARGE", 1)
    assert {expected} == trained_with(WatchedPpo, {}, **settings)
