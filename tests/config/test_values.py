"""Values against annotations and ranges."""

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Optional, Protocol, TypeVar, Union

import numpy as np
import pytest

from alf_lite.config.values import (
    UNKNOWN,
    InstanceOf,
    Range,
    describe,
    field_problems,
    fits,
    ranged,
    shorten,
)


class Colour(enum.Enum):
    RED = 1


class Tone:
    def __call__(self): ...


class Speaker(Protocol):
    def speak(self) -> None: ...


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (3, int),
        (np.int64(3), int),
        (3, float),
        (np.float32(0.5), float),
        (True, bool),
        ("a", str),
        (None, None),
        (None, int | None),
        (None, Optional[int]),  # noqa: UP045
        (2, Union[str, int]),  # noqa: UP007
        ("mean", Literal["mean", "sum"]),
        ([1, 2], tuple[int, ...]),
        ((1, "a"), tuple[int, str]),
        ((), Sequence[int]),
        ([1, "a"], list),
        ({"a": 1}, dict[str, int]),
        ({"a": 1}, Mapping[str, int]),
        (len, Callable[..., Any]),
        (int, Callable),
        (int, type[int]),
        (Colour.RED, Colour),
        ("anything", Any),
        ("anything", object),
        ("anything", TypeVar("T")),
        ("anything", Speaker),
        ("anything", "a string"),
        (UNKNOWN, int),
        ({"a": [1]}, Mapping[str, Sequence[int]]),
        (InstanceOf(Tone, "@Tone()"), Tone),
        (InstanceOf(Tone, "@Tone()"), Any),
        (InstanceOf(Tone, "@Tone()"), Speaker),
        (InstanceOf(Tone, "@Tone()"), float | Callable[[], float]),
        (InstanceOf(Tone, "@Tone()"), Callable[..., Any]),
        (InstanceOf(Tone, "@Tone()"), Callable[..., Tone] | Tone),
        (InstanceOf(np.float32, "@numpy.float32()"), float),
    ],
)
def test_a_value_that_fits(value, annotation):
    assert fits(value, annotation)


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        ("3", int),
        (3.0, int),
        (True, int),
        (False, float),
        ("0.5", float),
        (1, bool),
        (1, str),
        (None, int),
        ("a", int | None),
        ("max", Literal["mean", "sum"]),
        (True, Literal[1]),
        (3, tuple[int, ...]),
        ([1, "a"], tuple[int, ...]),
        ([1], tuple[int, str]),
        ("ab", Sequence[str]),
        ([1], dict[str, int]),
        ("relu", Callable[..., Any]),
        (3, type[int]),
        ("RED", Colour),
        ("x", Path),
        ("0.1", float | Path),
        ({"a": "1"}, dict[str, int]),
        ({1: 1}, dict[str, int]),
        (InstanceOf(Tone, "@Tone()"), float | None),
        (InstanceOf(Tone, "@Tone()"), Sequence[float] | Callable[..., Tone]),
        ([InstanceOf(Tone, "@Tone()")], Sequence[Callable[..., Tone]]),
        (InstanceOf(Colour, "@Colour()"), Callable[..., Any]),
    ],
)
def test_a_value_that_does_not_fit(value, annotation):
    assert not fits(value, annotation)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int | None, "an int or None"),
        (tuple[int, ...], "a list, each item an int"),
        (Callable[..., Any] | float, "a callable or a number"),
        (Callable[..., Path] | None, "a constructor of Path or None"),
        (
            list[int] | str | None,
            "a list, each item an int, or a string in quotes or None",
        ),
        (Literal["a", "b"], "'a' or 'b'"),
        (Path, "Path"),
        (dict[str, int], "dict"),
    ],
)
def test_an_annotation_in_words(annotation, words):
    assert describe(annotation) == words


def test_the_bounds_of_a_range():
    assert 0 in Range(at_least=0)
    assert -1 not in Range(at_least=0)
    assert 0 not in Range(above=0)
    assert 1 in Range(at_most=1)
    assert 1.1 not in Range(at_most=1)
    assert float("nan") not in Range()
    assert float("inf") not in Range()
    assert 10**400 in Range(at_least=0)
    assert str(Range(at_least=0, at_most=1)) == ">= 0 and <= 1"


def test_all_fields_are_judged():
    @dataclasses.dataclass
    class Settings:
        rate: float = ranged(0.1, above=0)
        count: int | None = ranged(None, at_least=1)
        free: float = 1.0
        label: str = ""

    assert field_problems(Settings()) == {}
    assert field_problems(Settings(rate=-1, count="2", free=float("inf"), label=3)) == {
        "rate": "got -1, expected a value > 0",
        "count": "got '2', expected an int or None, >= 1",
        "free": "got inf, expected a value finite",
        "label": "got 3, expected a string in quotes",
    }


def test_a_long_value_is_cut():
    assert shorten("x" * 100, length=10) == "'xxxxxx..."
    assert shorten([1], length=10) == "[1]"
