"""Random damages of data files: the right steps are loaded, or one error names it.

A process of its own tries them all, with a limit to its time, and measures its memory:
what is damaged must neither hang, nor end the process, nor make it allocate what a file
claims to hold.
"""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from alf_lite import nest
from alf_lite.checkpoints.checkpointer import Checkpointer
from alf_lite.data_structures import Experience
from alf_lite.datasets.formats import open_source
from alf_lite.datasets.loading import load_replay_buffer
from alf_lite.datasets.step_assembly import experience_spec
from alf_lite.errors import ConfigError, DataError
from alf_lite.replay_buffers.replay_buffer import ReplayBuffer
from alf_lite.replay_buffers.replay_file import FILE_NAME
from alf_lite.tools.step_statistics import summarize
from tests.datasets.alf_files import alf_ring
from tests.datasets.recorded_episodes import flat_episode, make_env, rows
from tests.source_code import ROOT

Damage = Callable[[np.random.Generator, Path], str]

NUM_DAMAGES = 56  # of each format, some of them in its own terms
LIMIT_SECONDS = 300.0
LIMIT_MB = 150


# The sources, each a directory


def write_npz(directory: Path) -> None:
    for number in range(3):
        episode = flat_episode(20, begin=100 * number)
        write = np.savez_compressed if number == 2 else np.savez
        write(directory / f"episode_{number}.npz", **episode)


def write_own(directory: Path) -> None:
    spec = experience_spec(make_env())
    buffer = ReplayBuffer(spec, 2, 50)
    for t in range(60):
        in_episode = t % 10
        step = nest.zeros(spec, (2,))
        time_step = step.time_step._replace(
            step_type=torch.full((2,), min(in_episode, 1) + (in_episode == 9)).int(),
            reward=torch.full((2,), float(in_episode > 0)),
            observation=torch.full((2, 1), t + 1.0),
        )
        buffer.add_batch(Experience(time_step, torch.full((2, 1), 0.5)))
    checkpointer = Checkpointer(directory / "checkpoints")
    files = {FILE_NAME: buffer.save()}
    checkpointer.save(60, {"algorithm": {}}, mapped_files=files)


def write_own_file(directory: Path) -> None:
    write_own(directory)
    path = directory / "checkpoints/ckpt-60" / FILE_NAME
    buffer = load_replay_buffer(str(path), make_env())
    shutil.rmtree(directory / "checkpoints")
    buffer.save().write_to(directory / "data.replay")


def write_alf(directory: Path) -> None:
    alf_ring([30, 25], 30).save(directory / "ckpt-1-replay_buffer")


def write_minari(directory: Path) -> None:
    from alf_lite.datasets.writing import write_source

    np.savez(directory / "source.npz", **flat_episode(20))
    buffer = load_replay_buffer(str(directory / "source.npz"), make_env())
    (directory / "source.npz").unlink()
    write_source(buffer, make_env(), directory / "flat-v0", "minari")
    for file in (directory / "flat-v0/data").iterdir():
        file.rename(directory / file.name)
    shutil.rmtree(directory / "flat-v0")


# Damages of any file; each says what it has done


def any_file(rng: np.random.Generator, directory: Path) -> Path:
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    return files[rng.integers(len(files))]


def change_bytes(
    change: Callable[[np.random.Generator, bytearray], str],
) -> Damage:
    def damage(rng: np.random.Generator, directory: Path) -> str:
        path = any_file(rng, directory)
        data = bytearray(path.read_bytes())
        text = change(rng, data)
        path.write_bytes(data)
        return f"{path.name}: {text}"

    return damage


def cut(rng: np.random.Generator, data: bytearray) -> str:
    size = int(rng.integers(len(data)))
    del data[size:]
    return f"cut at {size}"


def flip(rng: np.random.Generator, data: bytearray) -> str:
    place, bit = int(rng.integers(len(data))), int(rng.integers(8))
    data[place] ^= 1 << bit
    return f"bit {bit} of {place} flipped"


def zero(rng: np.random.Generator, data: bytearray) -> str:
    begin, length = int(rng.integers(len(data))), int(rng.integers(1, 600))
    end = min(begin + length, len(data))
    data[begin:end] = bytes(end - begin)
    return f"zeros from {begin} to {end}"


def overwrite(rng: np.random.Generator, data: bytearray) -> str:
    begin, length = int(rng.integers(len(data))), int(rng.integers(1, 9))
    data[begin : begin + length] = b"\xff" * length
    return f"{length} times 255 at {begin}"


def insert(rng: np.random.Generator, data: bytearray) -> str:
    place = int(rng.integers(len(data)))
    data[place:place] = rng.bytes(int(rng.integers(1, 100)))
    return f"inserted at {place}"


def replace_file(
    name: str, replace: Callable[[Path], Any]
) -> Callable[[np.random.Generator, Path], str]:
    def damage(rng: np.random.Generator, directory: Path) -> str:
        path = any_file(rng, directory)
        path.unlink()
        replace(path)
        return f"{path.name}: {name}"

    return damage


ANY_FORMAT: list[Damage] = [
    *(change_bytes(change) for change in (cut, flip, flip, zero, overwrite, insert)),
    replace_file("deleted", lambda path: None),
    replace_file("empty", lambda path: path.touch()),
    replace_file("a pipe", os.mkfifo),
    replace_file("a device", lambda path: path.symlink_to("/dev/zero")),
    replace_file("a link to itself", lambda path: path.symlink_to(path.name)),
    replace_file("a dead link", lambda path: path.symlink_to("nowhere")),
    replace_file("a directory", Path.mkdir),
    replace_file("noise", lambda path: path.write_bytes(bytes(range(256)) * 8)),
]


# Damages in the terms of a format: what is well-formed, and wrong


def damage_arrays(rng: np.random.Generator, arrays: dict[str, np.ndarray]) -> str:
    """Changes one of the arrays; half of the changes leave the numbers as they are."""
    name = sorted(arrays)[rng.integers(len(arrays))]
    array = arrays[name]
    kind = int(rng.integers(9))
    if kind == 0:
        del arrays[name]
    elif kind == 1:
        arrays[f"{name}_"] = arrays.pop(name)
    elif kind == 2:
        arrays[name] = array[:-1]
    elif kind == 3:
        arrays[name] = array[..., None]
    elif kind == 4:
        arrays[name] = array.astype([np.float64, np.complex64, "S3"][rng.integers(3)])
    elif kind == 5:
        arrays[name] = array.astype(array.dtype.newbyteorder())
    elif kind == 6:
        arrays[name] = array[0]
    elif kind == 7:
        arrays[name] = np.zeros((len(array), 0), array.dtype)
    else:
        arrays[name] = np.full_like(array, 7)  # other steps, unless it is a flag
    return f"{name}: {kind}"


def damage_npz(rng: np.random.Generator, directory: Path) -> str:
    path = any_file(rng, directory)
    with np.load(path) as file:
        arrays = dict(file)
    text = damage_arrays(rng, arrays)
    np.savez(path, **arrays)
    return f"{path.name}: {text}"


def damage_npz_header(rng: np.random.Generator, directory: Path) -> str:
    """Makes an array claim another shape; its checksum is right."""
    path = any_file(rng, directory)
    with np.load(path) as file:
        arrays = dict(file)
    chosen = sorted(arrays)[rng.integers(len(arrays))]
    shape = [(-1,), (10**12,), (2**40, 2**40), (0,), (), (3.5,)][rng.integers(6)]
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            file = io.BytesIO()
            np.save(file, array)
            data = file.getvalue()
            if name == chosen:
                text = str({"descr": "<f4", "fortran_order": False, "shape": shape})
                header = text.ljust(117).encode() + b"\n"
                data = b"\x93NUMPY\x01\x00\x76\x00" + header + array.tobytes()
            archive.writestr(f"{name}.npy", data)
    return f"{path.name}: {chosen} claims {shape}"


def damage_alf(rng: np.random.Generator, directory: Path) -> str:
    path = directory / "ckpt-1-replay_buffer"
    content = torch.load(path, weights_only=True)
    state = content["algorithm"]
    name = sorted(state)[rng.integers(len(state))]
    kind = int(rng.integers(8))
    if kind == 0:
        del state[name]
    elif kind == 1:
        state[f"{name}|more"] = state.pop(name)
    elif kind == 2:
        state[name] = state[name][:1]
    elif kind == 3:
        state[name] = state[name].to(
            [torch.bfloat16, torch.complex64, torch.float64][rng.integers(3)]
        )
    elif kind == 4:
        state[name] = torch.zeros(1).expand(2, 10**9)
    elif kind == 5:
        state[name] = state[name].to_sparse()
    elif kind == 6:
        state[name] = state[name] + 10**6
    else:
        state[name] = {"deeper": [name, {}]}
    torch.save(content, path)
    return f"{name}: {kind}"


def damage_own(rng: np.random.Generator, directory: Path) -> str:
    """Changes the header of a file that is not in a checkpoint, unless it is sealed."""
    [path] = [p for p in directory.rglob("*") if p.is_file()]
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header["__metadata__"]["sha256"] = "0" * 64  # as if there was none
    name = ["rows", "begin", "end"][rng.integers(3)]
    kind = int(rng.integers(5))
    if kind == 0:
        header[name]["shape"] = [10**15, *header[name]["shape"][1:]]
    elif kind == 1:
        header[name]["dtype"] = "F64"
    elif kind == 2:
        header[name]["data_offsets"] = [0, 10**15]
    elif kind == 3:
        del header[name]
    else:
        leaves = json.loads(header["__metadata__"]["leaves"])
        leaves[rng.integers(len(leaves))][1:] = [[10**9], "float32", 0]
        header["__metadata__"]["leaves"] = json.dumps(leaves)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % 4096)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + size :])
    return f"{name}: {kind}"


def damage_manifest(rng: np.random.Generator, directory: Path) -> str:
    [path] = directory.rglob("manifest.json")
    manifest = json.loads(path.read_text())
    kind = int(rng.integers(5))
    entry = manifest["files"][FILE_NAME]
    if kind == 0:
        del manifest["files"][FILE_NAME]
    elif kind == 1:
        entry["sha256"] = "0" * 64
    elif kind == 2:
        entry["bytes"] += 1
    elif kind == 3:
        manifest["step"] = 61
    else:
        manifest = [manifest]
    path.write_text(json.dumps(manifest))
    return f"manifest: {kind}"


def damage_hdf5(rng: np.random.Generator, directory: Path) -> str:
    import h5py

    name = ["observations", "actions", "rewards", "terminations"][rng.integers(4)]
    kind = int(rng.integers(9))
    with h5py.File(directory / "main_data.hdf5", "r+") as file:
        episode = file["episode_0"]
        array = episode[name][()]
        if kind < 7:
            del episode[name]
        if kind == 1:
            episode[name] = h5py.SoftLink("/episode_0/truncations")
        elif kind == 2:
            episode[name] = h5py.ExternalLink("/etc/hostname", "/")
        elif kind == 3:
            episode.create_group(name)
        elif kind == 4:
            episode.create_dataset(name, (10**11,), np.float32, chunks=(4096,))
        elif kind == 5:
            external = [("/proc/self/mem", 0, array.nbytes)]
            episode.create_dataset(name, array.shape, array.dtype, external=external)
        elif kind == 6:
            arrays = {name: array}
            damage_arrays(rng, arrays)
            for key, value in arrays.items():
                episode[key] = value.astype(value.dtype.newbyteorder("="))
        elif kind == 7:
            file["episode_1"] = episode
        elif kind == 8:
            episode["infos/again"] = file
    return f"{name}: {kind}"


def damage_metadata(rng: np.random.Generator, directory: Path) -> str:
    path = directory / "metadata.json"
    metadata = json.loads(path.read_text())
    name = sorted(metadata)[rng.integers(len(metadata))]
    values = [10**12, -1, "x", None, [], {"a": 1}, "[" * 10**5]
    metadata[name] = values[rng.integers(len(values))]
    path.write_text(json.dumps(metadata))
    return f"{name}: {metadata[name]!r:.20}"


class Format:
    """How a source is written, what is done to it, and what can be found in it.

    Args:
        write: the source into a directory.
        own_damages: in its own terms.
        is_sealed: whether each changed number is found. Without checksums, as in HDF5,
            it is one that could have been recorded.
    """

    def __init__(
        self,
        write: Callable[[Path], None],
        own_damages: list[Damage],
        is_sealed: bool = True,
    ) -> None:
        self.write = write
        self.own_damages = own_damages
        self.is_sealed = is_sealed


FORMATS = {
    "npz": Format(write_npz, [damage_npz, damage_npz_header]),
    "own_checkpoint": Format(write_own, [damage_manifest]),
    "own_file": Format(write_own_file, [damage_own]),
    "alf": Format(write_alf, [damage_alf]),
    "minari": Format(write_minari, [damage_hdf5, damage_metadata], is_sealed=False),
}


# The process that tries them


def loaded(directory: Path) -> Any:
    buffer = load_replay_buffer(str(directory), make_env())
    return [rows(buffer, env_id) for env_id in range(buffer.num_environments)]


def source_in(directory: Path) -> Path:
    """The directory, or the file in it where a directory is no source."""
    file = directory / "data.replay"
    return file if os.path.lexists(file) else directory


def try_damage(
    name: str, pristine: Path, right: Any, place: Path, seed: int
) -> dict[str, Any]:
    """Damages a copy and reads it; what came of it."""
    known = FORMATS[name]
    rng = np.random.default_rng([seed, *name.encode()])
    shutil.copytree(pristine, place)
    damages = known.own_damages if seed % 4 == 0 else ANY_FORMAT
    damage = damages[seed // 4 % len(damages) if seed % 4 == 0 else seed % 14]
    text = damage(rng, place)
    source = source_in(place)
    # A number that was replaced in its own terms is one that was recorded, and nobody
    # knows how many files a directory should have.
    is_sealed = known.is_sealed and damage not in known.own_damages
    is_sealed &= not (name == "npz" and text.endswith("deleted"))
    problem, outcomes = "", []
    for read in (loaded, lambda path: summarize(open_source(path))):
        try:
            result = read(source)
            outcomes.append("read")
            if read is loaded and is_sealed and not equal(result, right):
                problem = "other steps than were written"
        except (DataError, ConfigError) as error:
            outcomes.append("refused")
            if str(place) not in str(error) or "Traceback" in str(error):
                problem = f"an error that does not name it: {error}"
        except BaseException as error:  # whatever else there is, is what is looked for
            problem = f"{type(error).__name__}: {error}"
    shutil.rmtree(place)
    return {
        "case": f"{name} {seed} ({text})",
        "outcomes": outcomes,
        "problem": problem,
    }


def equal(first: Any, second: Any) -> bool:
    pairs = zip(nest.flatten(first), nest.flatten(second), strict=True)
    return all(np.array_equal(a, b) for a, b in pairs)


def tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def main(name: str, directory: Path, num_damages: int) -> None:
    warnings.simplefilter("ignore")
    pristine = directory / "pristine"
    pristine.mkdir()
    FORMATS[name].write(pristine)
    right = loaded(source_in(pristine))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for seed in range(num_damages):
        tell({"begins": seed})
        place = directory / f"case_{seed}"
        result = try_damage(name, pristine, right, place, seed)
        tell(result)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tell({"megabytes": (after - before) / 1e3})


def run(name: str, directory: Path) -> subprocess.CompletedProcess[str]:
    arguments = [name, str(directory), str(NUM_DAMAGES)]
    return subprocess.run(
        [sys.executable, "-m", "tests.reliability.test_damaged_data", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files_are_read_right_or_refused(name, tmp_path):
    if name == "minari":
        pytest.importorskip("minari")
        pytest.importorskip("h5py")
    done = run(name, tmp_path)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    last = lines[-1] if lines else "nothing"
    assert done.returncode == 0, (last, done.stderr[-2000:])
    results = [line for line in lines if "case" in line]
    assert len(results) == NUM_DAMAGES
    problems = [f"{r['case']}: {r['problem']}" for r in results if r["problem"]]
    assert not problems, "\n".join(problems)
    assert lines[-1]["megabytes"] < LIMIT_MB
    refused = sum("refused" in result["outcomes"] for result in results)
    assert refused > NUM_DAMAGES // 2


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
