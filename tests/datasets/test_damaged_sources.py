"""Sources that are damaged, hostile or replaced meanwhile: refused, with their name."""

from __future__ import annotations

import io
import itertools
import logging
import os
import shutil
import signal
import struct
import sys
import threading
import zipfile
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.bin import inspect_buffer
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.checkpoints.files import new_output
from alf_lite.datasets import replay_sources, source
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.errors import DataError
from alf_lite.replay_buffers import allocation
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME, ReplayFile
from alf_lite.tools.step_statistics import summarize
from tests.datasets.alf_files import alf_ring
from tests.datasets.recorded_episodes import flat_episode, make_env, rows
from tests.other_process import light_context

F, M, L = 0, 1, 2


def own_buffer(step_type=(F, M, M, L, F, M, M, L), reward=None):
    spec = experience_spec(make_env())
    buffer = ReplayBuffer(spec, 2, len(step_type))
    for t, kind in enumerate(step_type):
        step = nest.zeros(spec, (2,))
        time_step = step.time_step._replace(
            step_type=torch.full((2,), kind).int(),
            reward=torch.full((2,), float(kind > 0 if reward is None else reward[t])),
            observation=torch.full((2, 1), t + 1.0),
        )
        buffer.add_batch(step._replace(time_step=time_step))
    return buffer


def refused(path, *texts: str, env=None) -> None:
    """Neither loads it, nor ends with anything but a DataError that names it."""
    for read in (
        lambda: load_replay_buffer(str(path), env or make_env()),
        lambda: summarize(open_source(path)),
    ):
        with pytest.raises(DataError) as error:
            read()
        for text in (str(path), *texts):
            assert text in str(error.value)


# Own files


def change(path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        file.write(data)


@pytest.mark.parametrize("place", [4096 + 40, 4096 + 3, -20])
def test_a_changed_byte_of_an_own_file_is_found(tmp_path, place):
    path = tmp_path / "some.replay"
    own_buffer().save().write_to(path)
    assert load_replay_buffer(str(path), make_env()).total_size == 16
    change(path, place, b"\x7f")
    refused(path, "does not match its sha256")
    with pytest.raises(DataError, match="sha256"):
        load_replay_buffer(str(path), make_env(), memory_map=True)


def test_zeroed_rows_of_a_checkpoint_are_found(tmp_path):
    checkpointer = Checkpointer(tmp_path / "run/checkpoints")
    files = {FILE_NAME: own_buffer().save()}
    checkpoint = checkpointer.save(1, {"algorithm": {}}, mapped_files=files)
    assert load_replay_buffer(str(tmp_path / "run"), make_env()).total_size == 16
    change(checkpoint / FILE_NAME, 4096, bytes(36))
    for path in (tmp_path / "run", checkpoint, checkpoint / FILE_NAME):
        with pytest.raises(DataError, match="not match its sha256"):
            load_replay_buffer(str(path), make_env())


def test_whoever_wants_no_verification_can_have_it(tmp_path):
    path = tmp_path / "some.replay"
    own_buffer().save().write_to(path)
    leaf = ReplayFile(path).stored.leaves["time_step.reward"]
    change(path, 4096 + leaf.offset, struct.pack("<f", 77.0))
    for memory_map in (False, True):
        buffer = load_replay_buffer(
            str(path), make_env(), verify=False, memory_map=memory_map
        )
        assert rows(buffer).time_step.reward[0] == 77


def test_a_source_that_its_run_deletes_is_looked_up_again(tmp_path, monkeypatch):
    checkpointer = Checkpointer(tmp_path / "checkpoints", keep_latest=1)

    def save(step):
        files = {FILE_NAME: own_buffer((F, *[M] * step)).save()}
        checkpointer.save(step, {"algorithm": {}}, mapped_files=files)

    save(1)
    read_info, steps = replay_sources.read_info, iter(range(2, 5))

    def read_slowly(path):
        info = read_info(path)
        save(next(steps, 4))  # and what was to be read is deleted
        return info

    monkeypatch.setattr(replay_sources, "read_info", read_slowly)
    assert load_replay_buffer(str(tmp_path), make_env()).total_size == 2 * 5


def keep_replacing(directory, stop):
    """As a run does, and as fast as it can."""
    checkpointer = Checkpointer(directory / "checkpoints", keep_latest=1)
    begin = max([1, *(int(p.name[5:]) for p in directory.glob("checkpoints/ckpt-*"))])
    for step in itertools.count(begin + 1):
        files = {FILE_NAME: own_buffer().save()}
        checkpointer.save(step, {"algorithm": {}}, mapped_files=files)
        with new_output(directory / f"replay/replay-{step}") as temporary:
            own_buffer().save().write_to(temporary)
        (directory / f"replay/replay-{step - 1}").unlink(missing_ok=True)
        if stop.is_set():
            return


@pytest.mark.ci
def test_a_living_run_is_a_source_at_any_time(tmp_path):
    stop = threading.Event()
    keep_replacing(tmp_path, SimpleNamespace(is_set=lambda: True))
    run = threading.Thread(target=keep_replacing, args=(tmp_path, stop))
    run.start()
    try:
        for path in (tmp_path, tmp_path / "checkpoints", tmp_path / "replay") * 20:
            assert load_replay_buffer(str(path), make_env()).total_size == 16
    finally:
        stop.set()
        run.join()


def cut_while_mapped(path, output):
    os.dup2(os.open(output, os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
    logging.basicConfig(level=logging.INFO)
    buffer = load_replay_buffer(str(path), make_env(), memory_map=True)
    os.truncate(path, 4096)
    buffer.get_batch(8, 1)


def test_a_mapped_file_that_is_cut_does_not_end_the_process_without_a_word(tmp_path):
    path = tmp_path / "some.replay"
    own_buffer((F, *[M] * 2000)).save().write_to(path)
    output = tmp_path / "stderr"
    process = light_context().Process(target=cut_while_mapped, args=(path, output))
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGBUS
    text = output.read_text()
    assert f"stay in {path}: it must not be changed in place" in text
    assert "Bus error" in text
    assert "get_batch" in text


# Types of steps that cannot be


@pytest.mark.parametrize(
    ("step_type", "reward", "message"),
    [
        ((F, M, 7, L), None, "step_type is 7 at step 2 of environment 0"),
        ((F, M, -1, L), None, "step_type is -1 at step 2 of environment 0"),
        ((F, L, M, L), None, "step_type is 1 at step 2 of environment 0, expected 0"),
        ((F, M, L, L), None, "step_type is 2 at step 3 of environment 0, expected 0"),
        ((F, M, F, M), [0, 1, 1, 1], "step_type is 0 at step 2 of environment 0, but"),
    ],
)
def test_types_that_contradict_each_other_are_named(
    tmp_path, step_type, reward, message
):
    path = tmp_path / "some.replay"
    own_buffer(step_type, reward).save().write_to(path)
    with pytest.raises(DataError, match=message):
        load_replay_buffer(str(path), make_env())
    if reward is None:
        with pytest.raises(DataError, match=message):
            load_replay_buffer(str(path), make_env(), memory_map=True)


def test_a_discount_is_between_0_and_1(tmp_path):
    path = tmp_path / "some.replay"
    buffer = own_buffer()
    time_step = nest.zeros(buffer.data_spec, (2,)).time_step
    time_step = time_step._replace(discount=torch.tensor([0.5, 1.5]))
    buffer.add_batch(nest.zeros(buffer.data_spec, (2,))._replace(time_step=time_step))
    buffer.save().write_to(path)
    message = "discount is 1.5 at step 7 of environment 1, expected between 0 and 1"
    with pytest.raises(DataError, match=message):
        load_replay_buffer(str(path), make_env())


def test_steps_that_need_more_memory_than_is_free_are_refused(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **flat_episode(3))
    own_buffer().save().write_to(tmp_path / "some.replay")
    monkeypatch.setattr(allocation, "free_ram", lambda: 100)
    for name in ("a.npz", "some.replay"):
        with pytest.raises(DataError, match=rf"{name}: .*but only 0.00 GB are free"):
            load_replay_buffer(str(tmp_path / name), make_env())
    monkeypatch.setattr(source, "free_ram", lambda: 100)
    monkeypatch.setattr(source, "_SMALL_BYTES", 0)
    with pytest.raises(DataError, match=r"a.npz: it needs 0.0 GB of memory"):
        list(open_source(tmp_path / "a.npz").sequences())


@pytest.mark.parametrize("memory_map", [False, True])
def test_an_interrupted_episode_ends_in_a_mapped_file_too(tmp_path, memory_map):
    path = tmp_path / "some.replay"
    own_buffer((F, M, F, M, L), reward=[0, 1, 0, 1, 1]).save().write_to(path)
    before = path.read_bytes()
    buffer = load_replay_buffer(str(path), make_env(), memory_map=memory_map)
    assert rows(buffer, 1).time_step.step_type.tolist() == [F, L, F, M, L]
    assert path.read_bytes() == before


# What is no regular file


def test_what_would_be_waited_for_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros.npz").symlink_to("/dev/zero")
    (tmp_path / "directory").mkdir()
    (tmp_path / "directory/a.npz").symlink_to("/dev/zero")
    (tmp_path / "alf").mkdir()
    os.mkfifo(tmp_path / "alf/ckpt-1-replay_buffer")
    for name, kind in (
        ("pipe", "a pipe"),
        ("zeros.npz", "a device"),
        ("directory", "a device"),
        ("alf", "a pipe"),
    ):
        refused(tmp_path / name, f"expected a regular file, found {kind}")
    (tmp_path / "data").mkdir()
    os.mkfifo(tmp_path / "data/metadata.json")
    refused(tmp_path / "data", "no known data")


def test_rights_are_no_damage(tmp_path, monkeypatch):
    np.savez(tmp_path / "a.npz", **flat_episode(3))

    def refuse(*arguments):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("os.open", refuse)
    refused(tmp_path / "a.npz", "cannot be read (Permission denied)")


# Archives of numpy and torch


def archive(path, members: dict[str, bytes], **options) -> None:
    with zipfile.ZipFile(path, "w", **options) as file:
        for name, content in members.items():
            file.writestr(name, content)


def npy(array: np.ndarray, shape=None) -> bytes:
    """The file of an array, which may claim another shape."""
    file = io.BytesIO()
    header = np.lib.format.header_data_from_array_1_0(array)
    header["shape"] = shape or array.shape
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue() + array.tobytes()


def members(**changes: bytes) -> dict[str, bytes]:
    return {f"{name}.npy": npy(a) for name, a in flat_episode(3).items()} | {
        f"{name}.npy": content for name, content in changes.items()
    }


def test_an_array_that_claims_more_than_the_file_has(tmp_path):
    path = tmp_path / "a.npz"
    huge = npy(flat_episode(3)["observation"], (4, 10**10))
    archive(path, members(observation=huge))
    refused(path, "observation claims to be (4, 10000000000) float32, but has 16 bytes")
    data = bytearray(path.read_bytes())
    # What the directory of the archive says about the size of the first member.
    entry = data.index(b"PK\x01\x02")
    data[entry + 24 : entry + 28] = struct.pack("<I", 4_000_000_000)
    path.write_bytes(data)
    refused(path, "claims 4000000000 bytes")


def test_an_encrypted_archive_says_so(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, members())
    data = bytearray(path.read_bytes())
    for signature, offset in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = data.index(signature)
        data[place + offset] |= 1
    path.write_bytes(data)
    refused(path, "is encrypted")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_archives_that_are_odd_in_other_ways(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, members(), compression=zipfile.ZIP_BZIP2)
    refused(path, "compressed in an unknown way")
    archive(path, members())
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("reward.npy", npy(np.zeros(3)))
    refused(path, "twice")
    archive(path, members() | {"reward": npy(np.zeros(3))})
    refused(path, "reward is in it twice")
    archive(path, members(terminated=npy(np.array([0, 3, 1]))))
    refused(path, "other values than true and false")
    archive(path, members(reward=npy(np.array(["a", "b", "c"]))))
    refused(path, "reward is <U1, no numbers")


def test_a_changed_bit_of_an_alf_checkpoint_is_found(tmp_path):
    path = tmp_path / "ckpt-1-replay_buffer"
    alf_ring([20], 20).save(path)
    data = bytearray(path.read_bytes())
    place = data.index(np.arange(5, 9, dtype=np.float32).tobytes())  # of observations
    data[place + 2] ^= 1
    path.write_bytes(data)
    refused(path, "Bad CRC-32")
    assert load_replay_buffer(str(path), make_env(), verify=False).total_size == 20


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("reward", torch.zeros(1).expand(1, 20 * 10**8), "claims 8000000000 bytes"),
        ("reward", torch.zeros(1, 20).to_sparse(), "no plain"),
        ("reward", torch.zeros(1, 20, dtype=torch.bfloat16), "BFloat16"),
        ("reward", None, "reward missing"),
        ("step_type", torch.zeros(20, dtype=torch.int32), "has the shape (20,)"),
    ],
)
def test_tensors_of_alf_that_are_no_steps(tmp_path, name, value, message):
    ring = alf_ring([20], 20)
    path = tmp_path / "ckpt-1-replay_buffer"
    if value is None:
        del ring.rings["time_step", name]
    else:
        ring.rings["time_step", name] = value
    ring.save(path)
    refused(path, message)


# HDF5


@pytest.fixture
def hdf5(tmp_path):
    """The file of a Minari data set, to be opened for changes."""
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("minari")
    from alf_lite.datasets.writing import write_source

    np.savez(tmp_path / "source.npz", **flat_episode(4))
    buffer = load_replay_buffer(str(tmp_path / "source.npz"), make_env())
    write_source(buffer, make_env(), tmp_path / "data-v0", "minari")
    file = tmp_path / "data-v0/data/main_data.hdf5"
    with h5py.File(file, "r+") as content:
        yield content, tmp_path / "data-v0"


def close_and_refuse(hdf5, *texts: str) -> None:
    content, path = hdf5
    content.close()
    refused(path, *texts)


def test_numbers_of_other_files_are_refused(hdf5, tmp_path):
    import h5py

    episode = hdf5[0]["episode_0"]
    secret = tmp_path / "secret"
    secret.write_bytes(b"other people's passwords")
    del episode["rewards"]
    external = [(str(secret), 0, 16)]
    episode.create_dataset("rewards", (4,), np.float32, external=external)
    hdf5[0].flush()
    shutil.copytree(hdf5[1], tmp_path / "external-v0")
    refused(tmp_path / "external-v0", "/episode_0/rewards takes its numbers from other")
    del episode["rewards"]
    episode["rewards"] = h5py.ExternalLink("source.npz", "/rewards")
    close_and_refuse(hdf5, "/episode_0/rewards is a link: refused")


def test_soft_links_and_groups_in_place_of_numbers_are_refused(hdf5, tmp_path):
    import h5py

    episode = hdf5[0]["episode_0"]
    episode["rewards_"] = h5py.SoftLink("/episode_0/rewards")
    hdf5[0].flush()
    shutil.copytree(hdf5[1], tmp_path / "link-v0")
    refused(tmp_path / "link-v0", "/episode_0/rewards_ is a link")
    del episode["rewards_"], episode["rewards"]
    episode.create_group("rewards")
    close_and_refuse(hdf5, "/episode_0/rewards is missing, or no array")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": (11 * 10**9,)}, "claims 44000000000 bytes, of which 0 were written"),
        ({"shape": (11 * 10**9,), "chunks": (1000,)}, "0 were written"),
        ({"shape": (4,), "chunks": (1,), "compression": "gzip"}, "0 were written"),
    ],
)
def test_numbers_that_were_never_written_are_refused(hdf5, options, message):
    del hdf5[0]["episode_0/rewards"]
    hdf5[0].create_dataset("episode_0/rewards", dtype=np.float32, **options)
    close_and_refuse(hdf5, "/episode_0/rewards", message)


def test_a_part_that_was_never_written_is_refused(hdf5):
    del hdf5[0]["episode_0/rewards"]
    options = {"chunks": (1,), "compression": "gzip"}
    rewards = hdf5[0].create_dataset("episode_0/rewards", (4,), np.float32, **options)
    rewards[1:] = 1
    close_and_refuse(hdf5, "3 of its 4 parts were written")


def test_the_programs_tell_it_in_a_line(tmp_path, capsys):
    path = tmp_path / "some.replay"
    own_buffer().save().write_to(path)
    change(path, 4100, b"\x7f")
    assert inspect_buffer.main([str(path)]) == 3
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert str(path) in message
    assert "Traceback" not in message


def test_an_episode_that_was_cut_off_at_its_first_step_is_no_damage(tmp_path):
    path = tmp_path / "some.replay"
    buffer = own_buffer((F, M, L, F), reward=[0, 1, 1, 0])
    buffer.mark_truncated_end()
    buffer.save().write_to(path)
    loaded = rows(load_replay_buffer(str(path), make_env())).time_step
    assert loaded.step_type.tolist() == [F, M, L, L]
    assert loaded.observation.flatten().tolist() == [1, 2, 3, 4]
