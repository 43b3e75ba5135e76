"""Environments in processes: the same numbers, and every failure is a prompt error."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import textwrap
import time

import gymnasium
import numpy as np
import pytest

from alf_lite.environments.env_factory import EnvFactory
from alf_lite.environments.info_keys import InfoKeys
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.environments.serial_vector_env import SerialVectorEnv
from alf_lite.errors import ConfigError, EnvError
from alf_lite.processes import child_process
from alf_lite.testing.fault_environment import HARD_MESSAGE, FaultEnv
from alf_lite.testing.structured_environments import (
    CountingEnv,
    NestedEnv,
    VectorRewardEnv,
)
from tests.other_process import is_alive
from tests.source_code import ROOT


def wait_until_gone(pids, seconds=60.0):
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline, f"still alive: {pids}"
        time.sleep(0.02)


# The same as in one process


@pytest.mark.ci
@pytest.mark.parametrize(
    ("factory", "keys"),
    [
        (EnvFactory(gymnasium.spec("CartPole-v1"), max_episode_steps=20), ()),
        pytest.param(NestedEnv, (), marks=pytest.mark.slow),
        pytest.param(functools.partial(VectorRewardEnv, 3), (), marks=pytest.mark.slow),
        (functools.partial(CountingEnv, (1, 3)), ("step", "episode")),
    ],
    ids=["cart_pole", "nested", "vector_reward", "infos"],
)
def test_it_gives_bit_for_bit_what_the_serial_one_gives(factory, keys):
    serial = SerialVectorEnv([factory] * 2, InfoKeys(keys))
    processes = ProcessVectorEnv([factory] * 2, InfoKeys(keys))
    try:
        pairs = [(serial.reset(seed=5), processes.reset(seed=5))]
        serial.action_space.seed(0)
        for _ in range(60):
            action = serial.action_space.sample()
            pairs.append((serial.step(action), processes.step(action)))
        for one, two in pairs:
            assert_same(one, two)
    finally:
        processes.close()


def assert_same(one, two):
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        one, two = list(one.values()), [two[key] for key in one]
    if isinstance(one, tuple | list):
        assert len(one) == len(two)
        for part, other in zip(one, two, strict=True):
            assert_same(part, other)
        return
    assert one.dtype == two.dtype
    assert np.array_equal(one, two)


@pytest.mark.ci
def test_what_it_returns_is_never_written_again():
    env = ProcessVectorEnv([CountingEnv] * 2)
    try:
        results = [env.reset()[0]]
        results += [env.step(np.zeros(2, int))[0] for _ in range(4)]
    finally:
        env.close()
    assert [float(o[1, 0]) for o in results] == [0, 1, 2, 3, 100]


@pytest.mark.ci
def test_global_generators_differ_between_environments_but_not_between_resets():
    env = ProcessVectorEnv([functools.partial(FaultEnv, "global_random")] * 2)

    def run(seed):
        rows = [env.reset(seed=seed)[0]]
        rows += [env.step(np.zeros(2, int))[0] for _ in range(5)]
        return np.stack(rows)

    try:
        first, again = run(0), run(0)
    finally:
        env.close()
    assert np.array_equal(first, again)
    assert not np.array_equal(first[:, 0], first[:, 1])


# Failures


def failing(mode, at_step=2, **kwargs):
    fault = functools.partial(FaultEnv, mode, at_step, **kwargs)
    return ProcessVectorEnv([FaultEnv, fault])


def fails(env, num_steps=5):
    """The message of the error, after which every process must be gone."""
    pids = env._processes.pids
    started = time.monotonic()
    with pytest.raises(EnvError) as error:
        env.reset(seed=0)
        for _ in range(num_steps):
            env.step(np.zeros(2, int))
    assert time.monotonic() - started < 60
    wait_until_gone(pids)
    with pytest.raises(EnvError, match="closed"):
        env.step(np.zeros(2, int))
    started = time.monotonic()
    env.close()
    env.close()
    assert time.monotonic() - started < 30
    assert str(pids[1]) in str(error.value)
    assert "environment 1, process" in str(error.value)
    return str(error.value)


@pytest.mark.ci
@pytest.mark.parametrize(
    "mode", ["raise", pytest.param("raise_unpicklable", marks=pytest.mark.slow)]
)
def test_an_exception_arrives_with_its_text_and_traceback(mode):
    message = fails(failing(mode))
    assert "step() at step 3 raised" in message
    assert f"Error: {HARD_MESSAGE}" in message
    assert "Traceback (most recent call last)" in message
    assert "fault_environment.py" in message


@pytest.mark.slow
def test_exceptions_that_cannot_be_printed_or_are_huge_arrive():
    assert "UnprintableError (its message cannot be shown)" in fails(
        failing("raise_unprintable")
    )
    assert "x" * 1_000_000 in fails(failing("raise_long"))


@pytest.mark.ci
def test_an_environment_that_ends_its_program_is_an_error():
    assert "SystemExit: 0" in fails(failing("system_exit"))
    assert "exited with code 0 in the middle of a call" in fails(failing("exit"))


@pytest.mark.ci
def test_a_killed_process_is_named_with_its_signal():
    assert "was killed by SIGKILL" in fails(failing("kill"))


@pytest.mark.ci
def test_a_crash_shows_the_python_stack():
    message = fails(failing("segmentation_fault"))
    assert "was killed by SIGSEGV" in message
    assert "Its Python stack:" in message
    assert "fault_environment.py" in message


def impatient(env):
    """Only after the start, which may take long on a busy machine."""
    env._timeout_seconds = 1.0
    return env


@pytest.mark.ci
def test_an_environment_that_hangs_is_killed_and_shows_where():
    message = fails(impatient(failing("spin")))
    assert "no answer for 1 s" in message
    assert "env_timeout_seconds" in message
    assert "in _spin" in message


@pytest.mark.slow
def test_a_stopped_process_is_killed():
    assert "no answer for 1 s" in fails(impatient(failing("stop")))


@pytest.mark.ci
def test_a_process_killed_from_outside_is_noticed_at_the_next_step():
    env = failing("", 0)
    env.reset()
    os.kill(env._processes.pids[1], signal.SIGKILL)
    assert "SIGKILL" in fails(env)


@pytest.mark.ci
def test_contradictions_to_the_space_need_no_traceback():
    message = fails(failing("short_observation"))
    assert "observation: expected float32 of shape (4,)" in message
    assert "got float32 of shape (1,)" in message
    assert "Traceback" not in message


@pytest.mark.ci
def test_a_reset_that_fails_says_reset():
    assert "reset() at step 0 raised RuntimeError" in fails(
        failing("raise", 0, where="reset")
    )


@pytest.mark.ci
@pytest.mark.parametrize(
    ("mode", "others", "timeout", "message"),
    [
        ("raise", [FaultEnv], 60.0, "the constructor raised RuntimeError"),
        ("hang", [], 0.2, "no answer for 0.2 s"),
    ],
)
def test_a_constructor_that_fails_is_one_prompt_error(mode, others, timeout, message):
    fault = functools.partial(FaultEnv, mode, where="constructor")
    started = time.monotonic()
    where = f"environment {len(others)}, process"
    with pytest.raises(EnvError, match=f"{where}.*{message}"):
        ProcessVectorEnv([*others, fault], timeout_seconds=timeout)
    assert time.monotonic() - started < 60


@pytest.mark.ci
def test_environments_that_disagree_are_named():
    with pytest.raises(EnvError, match="environment 1 has Box"):
        ProcessVectorEnv([FaultEnv, CountingEnv])


def test_things_that_cannot_be_sent_are_refused_before_any_process_starts():
    with pytest.raises(ConfigError, match="cannot be sent to the processes"):
        ProcessVectorEnv([lambda: FaultEnv()])


@pytest.mark.ci
@pytest.mark.parametrize(
    "mode", ["close_hangs", pytest.param("close_raises", marks=pytest.mark.slow)]
)
def test_close_ends_in_time_whatever_the_environment_does(mode, capfd, monkeypatch):
    if mode == "close_hangs":
        monkeypatch.setattr(child_process, "CLOSE_SECONDS", 0.2)
    env = failing(mode)
    pids = env._processes.pids
    env.reset()
    started = time.monotonic()
    env.close()
    assert time.monotonic() - started < 60
    wait_until_gone(pids)
    if mode == "close_raises":
        assert "RuntimeError: close() fails" in capfd.readouterr().err


def test_a_forgotten_environment_leaves_no_process():
    env = ProcessVectorEnv([FaultEnv])
    pids = env._processes.pids
    del env
    wait_until_gone(pids)


# The end of the parent


PROGRAM = """
import os, signal, sys, time
import numpy as np
from alf_lite.environments.process_vector_env import ProcessVectorEnv
from alf_lite.testing.fault_environment import FaultEnv

# No "if __name__": the processes must not run this again.
signal.signal(signal.SIGINT, signal.default_int_handler)
env = ProcessVectorEnv([FaultEnv] * 2)
env.reset()
print(*env._processes.pids, flush=True)
{end}
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        pytest.param("os._exit(3)", 3, marks=pytest.mark.slow),
        pytest.param("sys.exit(4)", 4, marks=pytest.mark.slow),
        pytest.param("raise RuntimeError('x')", 1, marks=pytest.mark.slow),
        ("env.step(np.zeros(2, int))", 0),
    ],
)
def test_no_process_survives_the_program(end, code):
    program = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(end=end)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert program.returncode == code, program.stderr
    pids = list(map(int, program.stdout.split()))
    assert len(pids) == 2
    wait_until_gone(pids)


@pytest.mark.ci
def test_ctrl_c_is_one_traceback_of_the_parent_only():
    end = """
    try:
        while True:
            env.step(np.zeros(2, int))
            print("stepped", flush=True)
            time.sleep(0.01)
    except KeyboardInterrupt:
        observation = env.step(np.zeros(2, int))[0] if not env.closed else None
        print("interrupted", flush=True)
        env.close()
    """
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(end=textwrap.dedent(end))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    pids = list(map(int, program.stdout.readline().split()))
    assert program.stdout.readline() == "stepped\n"
    os.killpg(program.pid, signal.SIGINT)  # as a terminal does, to all of them
    output, errors = program.communicate(timeout=120)
    assert set(output.split()) <= {"stepped", "interrupted"}
    assert output.endswith("interrupted\n")
    assert "Traceback" not in errors
    assert program.returncode == 0
    wait_until_gone(pids)


def test_the_processes_need_no_torch_and_see_no_gpu():
    env = ProcessVectorEnv([ReportingEnv])
    try:
        env.reset()
        facts = env.step(np.zeros(1, int))[0]
    finally:
        env.close()
    has_torch, sees_gpu, num_threads = facts[0, :3]
    assert has_torch == 0
    assert sees_gpu == 0
    assert num_threads == 1


class ReportingEnv(FaultEnv):
    """Observes facts about its process."""

    def step(self, action):
        facts = [
            "torch" in sys.modules,
            os.environ["CUDA_VISIBLE_DEVICES"] != "",
            int(os.environ["OMP_NUM_THREADS"]),
            0,
        ]
        return np.array(facts, np.float32), 0.0, False, False, {}


@pytest.mark.ci
@pytest.mark.parametrize(
    "start",
    [
        "environments.process_vector_env.ProcessVectorEnv([make])",
        pytest.param(
            "create_environment(env_ctor=make, vectorization_mode='async')",
            marks=pytest.mark.slow,  # imports torch, twice
        ),
    ],
)
def test_a_program_that_starts_itself_again_is_told_what_it_lacks(tmp_path, start):
    program = tmp_path / "program.py"
    program.write_text(
        "import alf_lite, alf_lite.environments.process_vector_env, gymnasium\n"
        "def make(): return gymnasium.make('CartPole-v1')\n"
        f"alf_lite.{start}\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    last = done.stderr.rstrip().splitlines()[-1]
    assert 'put what the program starts below `if __name__ == "__main__":`' in last
    # What gin would say of the call has no place in it.
    assert "In call to configurable" not in done.stderr
