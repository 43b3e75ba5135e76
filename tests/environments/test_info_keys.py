"""Declared info keys become arrays; what is missing is zero."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.vector import VectorEnv

from alf_lite.environments.info_keys import InfoKeys, info_names, still_unseen
from alf_lite.errors import ConfigError, EnvError


def written(keys, infos):
    keys = InfoKeys(keys)
    batch = keys.allocate(len(infos))
    for row, info in enumerate(infos):
        keys.write(batch, row, info)
    return batch


def gymnasium_infos(infos):
    """As gymnasium's own vector environments batch them."""
    vector_env = VectorEnv()
    vector_env.num_envs = len(infos)
    batch = {}
    for row, info in enumerate(infos):
        batch = vector_env._add_info(batch, info, row)
    return batch


def test_missing_values_are_zero_and_masked():
    batch = written(["a"], [{"a": 2}, {}, {"a": None}, {"a": True, "b": 5}])
    assert batch["a"].tolist() == [2, 0, 0, 1]
    assert batch["a"].dtype == np.float32
    assert batch["_a"].tolist() == [True, False, False, True]
    assert set(batch) == {"a", "_a"}


def test_arrays_and_entries_of_dicts_can_be_declared():
    keys = {"x": (2,), "episode/r": ()}
    batch = written(keys, [{"x": [1, 2]}, {"episode": {"r": np.float64(0.5)}}])
    assert batch["x"].tolist() == [[1, 2], [0, 0]]
    assert batch["episode/r"].tolist() == [0, 0.5]


@pytest.mark.parametrize("value", ["high", [1.0], object(), {"b": 1}])
def test_values_that_are_no_numbers_of_the_declared_shape_name_the_key(value):
    with pytest.raises(EnvError, match=r"env_info\['a'\]: expected float32") as error:
        written(["a"], [{}, {"a": value}])
    assert error.value.row == 1


def read_into_memory(keys, infos, num_environments: int) -> dict[str, np.ndarray]:
    keys = InfoKeys(keys)
    batch = {
        name: np.full((num_environments, *shape), 7, np.float32)
        for name, shape in keys.shapes.items()
    }
    keys.read(infos, batch)
    return batch


def test_the_infos_of_gymnasium_are_read_through_their_masks():
    infos = [{"a": 1.5, "x": np.array([1, 2])}, {"episode": {"r": 3.0}}, {"a": 2.5}]
    keys = {"a": (), "x": (2,), "episode/r": (), "never": ()}
    read = read_into_memory(keys, gymnasium_infos(infos), 3)
    assert read["a"].tolist() == [1.5, 0, 2.5]
    assert read["x"].tolist() == [[1, 2], [0, 0], [0, 0]]
    assert read["episode/r"].tolist() == [0, 3, 0]
    assert read["never"].tolist() == [0, 0, 0]


def test_what_a_mask_leaves_out_is_not_looked_at():
    infos = {"a": np.array([1.0, np.nan]), "_a": np.array([True, False])}
    assert read_into_memory(["a"], infos, 2)["a"].tolist() == [1, 0]
    objects = {"a": np.array([None, 2], object), "_a": np.array([False, True])}
    assert read_into_memory(["a"], objects, 2)["a"].tolist() == [0, 2]


def test_plain_arrays_without_a_mask_count_for_all_rows():
    values = np.array([1, 2], np.int32)
    read = read_into_memory(["a"], {"a": values}, 2)["a"]
    assert read.tolist() == [1, 2]
    floats = np.array([1, 2], np.float32)
    read = read_into_memory(["a"], {"a": floats}, 2)["a"]
    floats[0] = 9
    assert read.tolist() == [1, 2]


def test_arrays_of_a_wrong_size_name_the_key():
    with pytest.raises(EnvError, match=r"env_info\['a'\].*2 environments"):
        read_into_memory(["a"], {"a": np.zeros(3)}, 2)
    with pytest.raises(EnvError, match=r"env_info\['a'\]"):
        read_into_memory(["a"], {"a": np.zeros((2, 4))}, 2)


def test_one_name_instead_of_a_list_is_refused():
    with pytest.raises(ConfigError, match=r"Did you mean \['success'\]"):
        InfoKeys("success")
    with pytest.raises(ConfigError, match="not the name of a key"):
        InfoKeys([3])


def test_a_question_mark_makes_a_key_optional():
    keys = InfoKeys({"a?": (2,), "b": ()})
    assert keys.shapes == {"a": (2,), "b": ()}
    assert keys.required == {"b"}
    assert InfoKeys(keys.declared).required == {"b"}
    with pytest.raises(ConfigError, match="not the name of a key"):
        InfoKeys(["?"])


def test_keys_are_unseen_until_an_environment_has_them():
    infos = gymnasium_infos([{"a": 1}, {"episode": {"r": 2.0}}])
    names = ["a", "episode/r", "episode/l", "b"]
    assert still_unseen(names, infos) == {"episode/l", "b"}
    own = {"a": np.zeros(2), "_a": np.zeros(2, bool)}
    assert still_unseen(["a"], own) == {"a"}
    assert still_unseen(["a"], {"a": np.zeros(2)}) == set()


def test_names_are_as_they_are_declared():
    info = {"a": 1, "_a": True, "episode": {"r": 1, "_r": True}, 3: 4}
    assert info_names(info) == ["a", "episode/r"]
    assert info_names(None) == []
