"""A shortcut holds for what it was written for, not for what came since."""

from __future__ import annotations

from alf_lite.utils.shortcuts import is_outdated


class Base:
    is_quick = False

    def compute(self):
        return 1

    def other(self):
        return 2


class Quick(Base):
    is_quick = True

    def compute(self):
        return 1


class Rewrites(Quick):
    def compute(self):
        return 3


class Mixin:
    def compute(self):
        return 4


class Mixed(Mixin, Quick):
    pass


class SaysItAnew(Rewrites):
    is_quick = True


class Unrelated(Quick):
    def other(self):
        return 5


def test_methods_that_were_rewritten_since():
    outdated = {
        cls.__name__: is_outdated(cls, "is_quick", "compute", "not there")
        for cls in (Base, Quick, Rewrites, Mixed, SaysItAnew, Unrelated)
    }
    assert outdated == {
        "Base": False,
        "Quick": False,
        "Rewrites": True,
        "Mixed": True,
        "SaysItAnew": False,
        "Unrelated": False,
    }
    assert is_outdated(Unrelated, "is_quick", "compute", "other")
