from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alf_lite.unrollers.rate_limiter import RateLimiter


def limiter(inserted: int = 0, sampled: int = 0, **kwargs) -> RateLimiter:
    """s = 4, t = 8, m = 10."""
    result = RateLimiter(4, tolerance=8, min_size=10, **kwargs)
    result.insert(inserted)
    result.sample(sampled)
    return result


def test_before_the_least_size_is_reached_all_may_insert_and_none_may_sample():
    at_start = limiter()
    assert at_start.num_insertable >= 1
    assert at_start.num_insertable >= 10
    assert not at_start.can_sample(1)
    assert not limiter(inserted=9).can_sample(1)
    assert limiter(inserted=9).num_missing(1) == 1


def test_the_limits_at_the_least_size():
    # Samples: 10·4 − 0 − n ≥ 40 − 8. Inserts: (10 + n)·4 − 0 ≤ 40 + 8.
    at_least_size = limiter(inserted=10)
    assert at_least_size.can_sample(8)
    assert not at_least_size.can_sample(9)
    assert at_least_size.num_insertable >= 2
    assert at_least_size.num_insertable < 3
    assert at_least_size.num_insertable == 2
    assert at_least_size.num_missing(9) == 1
    assert at_least_size.num_missing(12) == 1
    assert at_least_size.num_missing(13) == 2


def test_sampling_makes_room_for_inserts_and_inserting_for_samples():
    assert limiter(inserted=10, sampled=8).num_insertable == 4
    assert not limiter(inserted=10, sampled=8).can_sample(1)
    assert limiter(inserted=11, sampled=8).can_sample(4)
    assert not limiter(inserted=11, sampled=8).can_sample(5)


def test_more_inserted_than_allowed_leaves_no_room_and_no_debt():
    crowded = limiter(inserted=100)
    assert crowded.num_insertable == 0
    assert crowded.num_insertable < 1
    assert crowded.num_insertable >= 0
    assert crowded.num_missing(1) == 0


@pytest.mark.parametrize(
    ("kwargs", "least"),
    [
        ({"samples_at_once": 9}, "9"),
        ({"inserts_at_once": 3}, "12"),
        ({"samples_at_once": 32, "inserts_at_once": 3}, "32"),
    ],
)
def test_a_tolerance_that_could_make_both_wait_for_ever_is_refused(kwargs, least):
    with pytest.raises(
        ValueError, match=rf"at least {least}, .*got 8: .*wait for each other for ever"
    ):
        limiter(**kwargs)


def test_the_least_tolerance_is_accepted():
    accepted = limiter(samples_at_once=8, inserts_at_once=2)
    assert accepted.num_insertable >= 2


def test_what_was_counted_is_restored():
    saved = limiter(inserted=12, sampled=8)
    restored = limiter()
    restored.load_state_dict(saved.state_dict())
    assert saved.state_dict() == {"inserted": 12, "sampled": 8}
    assert restored.state_dict() == saved.state_dict()
    assert restored.num_insertable == saved.num_insertable


@given(
    ratio=st.one_of(
        st.sampled_from([0.1, 0.3, 1 / 3, 0.7, 1.1]), st.floats(0.01, 300.0)
    ),
    min_size=st.integers(0, 50),
    samples_at_once=st.integers(1, 64),
    inserts_at_once=st.integers(1, 16),
    slack=st.sampled_from([1.0, 1.0, 1.5, 10.0]),
    wishes=st.lists(st.booleans(), max_size=100),
    data=st.data(),
)
def test_who_obeys_never_waits_for_ever_and_keeps_the_ratio(
    ratio, min_size, samples_at_once, inserts_at_once, slack, wishes, data
):
    tolerance = slack * max(samples_at_once, inserts_at_once * ratio)
    limits = RateLimiter(
        ratio,
        tolerance,
        min_size,
        samples_at_once=samples_at_once,
        inserts_at_once=inserts_at_once,
    )
    rounding = 1e-6
    for wants_to_sample in wishes:
        samples = data.draw(st.integers(1, samples_at_once))
        inserts = data.draw(st.integers(1, inserts_at_once))
        may_sample, may_insert = (
            limits.can_sample(samples),
            limits.num_insertable >= inserts,
        )
        # At least one of them goes on, as large as its wish may be.
        assert (
            limits.can_sample(samples_at_once)
            or limits.num_insertable >= inserts_at_once
        )
        assert may_sample or may_insert
        if may_sample and (wants_to_sample or not may_insert):
            limits.sample(samples)
        else:
            limits.insert(inserts)
        if limits.sampled:
            assert limits.inserted >= min_size
        if limits.inserted >= min_size:
            due = ratio * (limits.inserted - min_size)
            assert abs(due - limits.sampled) <= tolerance + rounding


def test_what_is_missing_is_just_enough():
    for sampled in range(40):
        limits = limiter(sampled=sampled)
        missing = limits.num_missing(5)
        limits.insert(missing - 1)
        assert not limits.can_sample(5)
        limits.insert(1)
        assert limits.can_sample(5)
