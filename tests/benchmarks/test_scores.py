"""The benchmark of scores: its queue, its evaluator, its statistics and its page."""

from __future__ import annotations

import importlib
import itertools
import json
import math
import os
import platform
import signal
import subprocess
import sys
import textwrap
import time

import gymnasium as gym
import numpy as np
import pytest

from alf_lite.tools import comparison
from tests.source_code import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def modules():
    """The programs, as they import each other."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")  # ``measuring`` sets them; this puts them back
        patch.setenv("XLA_FLAGS", "")
        patch.syspath_prepend(str(BENCHMARKS))
        names = (
            "measuring",
            "score_environments",
            "score_tasks",
            "score_run",
            "scores",
            "score_report",
        )
        yield {name: importlib.import_module(name) for name in names}


@pytest.fixture
def scores(modules):
    return modules["scores"]


@pytest.fixture
def report(modules):
    return modules["score_report"]


def line_of(modules, job, seed, score=1.0):
    """A line as ``score_run`` prints it."""
    version = modules["scores"].VERSIONS[job.library][-1]
    steps = [job.num_steps * i // 10 for i in range(1, 11)]
    return {
        **{"format": 1, "suite": job.suite, "task": job.task, "method": job.method},
        **{"seed": seed, "env_id": job.env_id, "num_steps": job.num_steps},
        **{"settings": modules["scores"].hash_of(job), "steps": steps},
        **{"cpu": [float(i) for i in range(1, 11)], "scores": [score] * 10},
        **{"cpu_seconds": 10.0, "wall_seconds": 11.0, "load": [1.0, 2.0]},
        **{
            "versions": {job.library: version},
            "commit": "abc",
            "date": "2026-01-01 00:00",
        },
    }


# The evaluator


def test_every_episode_is_that_of_its_seed_whoever_ends_first(modules):
    def act(observation):
        return int(observation[2] > 0)  # the side to which the pole leans

    def alone(seed):
        env, total, is_over = gym.make("CartPole-v1"), 0.0, False
        observation, _ = env.reset(seed=seed)
        while not is_over:
            observation, reward, terminated, truncated, _ = env.step(act(observation))
            total, is_over = total + reward, terminated or truncated
        return total

    firsts = []

    def policy(observations, is_first):
        firsts.append(is_first.copy())
        return [act(row) for row in observations]

    found = modules["score_environments"].evaluate(policy, "CartPole-v1", 5, seed=7)
    assert found == [alone(7 + i) for i in range(5)]
    assert len(set(found)) > 1
    assert firsts[0].all()
    assert not np.any(firsts[1:])


def test_without_velocities_there_are_two_positions(modules):
    environments = modules["score_environments"]
    env = environments.make(environments.NO_VELOCITY)
    plain = gym.make("CartPole-v1")
    observation, _ = env.reset(seed=3)
    assert env.observation_space.contains(observation)
    np.testing.assert_array_equal(observation, plain.reset(seed=3)[0][[0, 2]])


def test_a_door_key_is_seen_in_zeros_and_ones(modules):
    pytest.importorskip("minigrid", reason="the minigrid extra")
    environments = modules["score_environments"]
    env = environments.make(environments.DOOR_KEY)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation.sum() == 7 * 7 * 3 + 1  # three ones in each cell, a direction


@pytest.mark.ci
def test_breakout_has_its_channels_first_and_an_end(modules):
    pytest.importorskip("minatar")
    environments = modules["score_environments"]
    env = environments.make(environments.BREAKOUT)
    observation, _ = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    assert observation.shape == (4, 10, 10)
    assert observation[0].sum() == 1  # the paddle


def test_a_curve_has_ten_evaluations_whose_time_does_not_count(modules, monkeypatch):
    score_run, tasks = modules["score_run"], modules["score_tasks"]
    job = tasks.find("core", "dqn_cart_pole", "alf_lite")._replace(num_steps=100)
    clock = itertools.count()  # a second for each look

    def now():
        return [float(next(clock))] * 2

    monkeypatch.setattr(score_run.Curve, "_now", staticmethod(now))
    seen = []

    def evaluate(policy, env_id):
        seen.append(env_id)
        for _ in range(50):
            next(clock)
        return [1.0, 3.0]

    monkeypatch.setattr(score_run.environments, "evaluate", evaluate)
    curve = score_run.Curve(job)
    for steps in range(0, 108, 3):
        curve.at(steps, None)
    assert [point[0] for point in curve.points] == [
        12,
        21,
        30,
        42,
        51,
        60,
        72,
        81,
        90,
        102,
    ]
    assert {point[2] for point in curve.points} == {2.0}
    assert len(seen) == 10
    assert curve.seconds == [10.0, 10.0]  # one look from each evaluation to the next


# What is run


@pytest.mark.ci
def test_every_conf_of_the_suites_is_there_and_has_settings_of_its_own(modules, scores):
    expected = {"XQC", "SimBa"}  # as soon as they are written
    tasks = modules["score_tasks"]
    for jobs in tasks.SUITES.values():
        hashes = [scores.hash_of(job) for job in jobs]
        missing = {job.method for job, x in zip(jobs, hashes, strict=True) if not x}
        assert missing <= expected
        found = [x for x in hashes if x]
        assert len(set(found)) == len(found)
    core = {(job.task, job.method) for job in tasks.SUITES["core"]}
    assert len(core) == 36  # 12 tasks, three methods


def test_other_settings_have_another_hash(modules):
    tasks = modules["score_tasks"]
    job = tasks.find("core", "dqn_cart_pole", "alf_lite")
    other = job._replace(bindings=("Adam.lr = 0.5",))
    assert tasks.settings_hash(other) != tasks.settings_hash(job)
    peer = tasks.find("core", "dqn_cart_pole", "sb3")
    changed = peer.sb3._replace(settings={**peer.sb3.settings, "gamma": 0.5})
    assert tasks.settings_hash(peer._replace(sb3=changed)) != tasks.settings_hash(peer)


@pytest.mark.ci
def test_a_run_trains_and_prints_its_line(modules, tmp_path):
    command = [sys.executable, BENCHMARKS / "score_run.py", "core", "dqn_cart_pole"]
    done = subprocess.run(
        [*command, "alf_lite", "--seed=3", "--num_steps=1300"],
        env=dict(os.environ, PYTHONPATH=str(ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads(done.stdout.splitlines()[-1])
    assert line["steps"][-1] >= 1300
    assert len(line["scores"]) == len(line["cpu"]) >= 4
    assert len(line["returns"]) == 20
    assert line["scores"][-1] == pytest.approx(np.mean(line["returns"]), abs=0.01)
    assert 0 < line["cpu_seconds"] < 60
    assert line["seed"] == 3
    assert line["versions"]["alf_lite"]


# Stored lines


def test_lines_that_do_not_count_are_skipped_with_a_sentence(modules, scores, tmp_path):
    job = modules["score_tasks"].find("core", "dqn_cart_pole", "alf_lite")
    good = line_of(modules, job, 100)
    bad = [
        good | {"format": 0},
        good | {"seed": 7},
        good | {"task": "dqn_chess"},
        good | {"versions": {"alf_lite": "9.9"}},
        good | {"settings": "000000000000"},
        good | {"scores": [], "steps": []},
        good | {"scores": [1.0], "steps": [5000]},
        good | {"scores": [math.nan] * 10},
        {"format": 0, "suite": "core"},
        good,
    ]
    for line in [good, *bad]:
        scores.append(tmp_path, line)
    other = tmp_path / "offline.jsonl"
    other.write_text('{"format": 0}\n')  # looked through for equal settings, too
    with (tmp_path / "core.jsonl").open("a") as file:
        file.write('\n{"format": 1, "su\n')  # an empty and a torn one
        file.write('{"format": 1, "su')  # broken off
    bad.append({})
    lines, notes = scores.counted(tmp_path, "core")
    assert lines == [good]
    assert len(notes) == len(bad)
    for note, part in zip(
        notes,
        [
            *("format 0", "does not have it", "does not have it", "9.9", "settings 0"),
            *("last evaluation", "last evaluation", "no number", "format 0"),
            *("earlier line", "no line of JSON"),
        ],
        strict=True,
    ):
        assert part in note
        assert "\n" not in note
    scores.append(tmp_path, line_of(modules, job, 101))  # after what was broken off
    assert len(scores.counted(tmp_path, "core")[0]) == 2


def test_a_run_of_another_suite_with_the_same_settings_counts(
    modules, scores, tmp_path
):
    job = modules["score_tasks"].find("core", "sac_hopper", "alf_lite")
    scores.append(tmp_path, line_of(modules, job, 100))
    scores.append(tmp_path, line_of(modules, job, 104))  # recipes have three seeds
    lines, notes = scores.counted(tmp_path, "recipes")
    assert [(x["task"], x["method"], x["seed"]) for x in lines] == [
        ("hopper", "SAC", 100)
    ]
    assert not notes
    assert not scores.counted(tmp_path, "offline")[0]


def test_what_is_not_installed_is_skipped_with_a_sentence(
    scores, tmp_path, monkeypatch
):
    absent = ["mujoco", "minigrid", "minatar", "Box2D", "shimmy", "dm_control"]
    found = {"alf_lite": ("0.1.0", absent)}
    monkeypatch.setattr(scores, "_found_here", lambda *_: found)
    notes = []
    runs = scores.missing("core", tmp_path, None, notes)
    assert {run.job.task for run in runs} == {
        "dqn_cart_pole",
        "ppo_recurrent_cart_pole",
    }
    assert len(runs) == 10
    assert "skipped: sac_ant alf_lite: mujoco not installed" in notes
    assert "skipped: dqn_cart_pole sb3: no --peer_python" in notes
    found["alf_lite"] = ("9.9", [])
    notes.clear()
    assert scores.missing("recipes", tmp_path, None, notes) == []
    assert "skipped: hopper SAC: alf_lite 9.9, not 0.1.0 or 0.2.0" in notes
    assert any("skipped: hopper XQC: " in note for note in notes)
    assert len(notes) == 19


def test_what_is_installed_is_looked_up(modules, scores):
    job = modules["score_tasks"].find("core", "dqn_cart_pole", "alf_lite")
    job = job._replace(needs=("json", "no_such_module"))
    found = scores._found_here([job], sys.executable)
    assert found["alf_lite"][0] in scores.VERSIONS["alf_lite"]
    assert "no_such_module" in found["alf_lite"][1]
    assert "json" not in found["alf_lite"][1]
    assert set(found) == {"alf_lite", "stable_baselines3"}


# The queue: the run is a program of a few lines

PROGRAM = """
    import json, os, sys, time
    suite, task, method, seed, core, *rest = sys.argv[1:]
    seed = int(seed.split("=")[1])
    open(os.environ["TRACE"], "a").write(f"{task} {method} {seed} {core}\\n")
    if seed == 101:
        sys.exit("no memory left")
    if seed == 102 and "SLEEPS" in os.environ:
        time.sleep(60)
    line = json.load(open(os.environ["LINE"]))
    print("noise")
    if seed != 103:
        print(json.dumps(line | {"method": method, "seed": seed}))
    print("a warning at the end")
"""


@pytest.fixture
def program(modules, tmp_path, monkeypatch):
    """Stands for the runs; returns what it was called for."""
    script, trace = tmp_path / "program.py", tmp_path / "trace"
    script.write_text(textwrap.dedent(PROGRAM))
    job = modules["score_tasks"].find("core", "dqn_cart_pole", "alf_lite")
    (tmp_path / "line").write_text(json.dumps(line_of(modules, job, 0)))
    monkeypatch.setattr(modules["score_run"], "__file__", str(script))
    monkeypatch.setenv("TRACE", str(trace))
    monkeypatch.setenv("LINE", str(tmp_path / "line"))
    trace.touch()
    return lambda: trace.read_text().splitlines()


def queue(scores, store, seconds=60.0, cores=(0,)):
    return scores.Queue(store, cores, (sys.executable, sys.executable), seconds)


def cart_poles(modules, scores, seeds):
    job = modules["score_tasks"].find("core", "dqn_cart_pole", "alf_lite")
    return [scores.Run(job, seed) for seed in seeds]


def test_a_failed_run_leaves_nothing_and_the_others_go_on(
    modules, scores, program, tmp_path, capsys
):
    store = tmp_path / "store"
    code = queue(scores, store, cores=(0, 1)).work(
        cart_poles(modules, scores, [100, 101, 102, 103])
    )
    assert code == 1
    assert {line["seed"] for line in scores.read(store, "core")} == {100, 102}
    assert (
        "failed: dqn_cart_pole alf_lite 101: no memory left" in capsys.readouterr().out
    )
    assert {text.split()[-1] for text in program()} == {"--core=0", "--core=1"}
    left = scores.missing("core", store, None, [])
    assert [r.seed for r in left if r.job.task == "dqn_cart_pole"] == [101, 103, 104]


@pytest.mark.parametrize("end", ["interrupt", "time"])
def test_what_is_broken_off_leaves_nothing(
    modules, scores, program, tmp_path, monkeypatch, request, end
):
    monkeypatch.setenv("SLEEPS", "1")
    store = tmp_path / "store"
    waiting = cart_poles(modules, scores, [100, 102])
    waiting = [run._replace(job=run.job._replace(seconds=0)) for run in waiting]
    begin = time.monotonic()
    if end == "interrupt":
        # Who is started in the background of a shell may have it ignored
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
        work = queue(scores, store)
        collect = work._collect

        def interrupted():
            collect()
            if len(program()) == 2:
                signal.raise_signal(signal.SIGINT)

        monkeypatch.setattr(work, "_collect", interrupted)
        assert work.work(waiting) == 130
    else:
        assert queue(scores, store, seconds=1.5).work(waiting) == 0
    assert time.monotonic() - begin < 20
    assert [line["seed"] for line in scores.read(store, "core")] == [100]


@pytest.mark.ci
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_queue_in_the_background_of_a_shell_ends_with_its_runs(tmp_path, number):
    program = [sys.executable, str(BENCHMARKS / "scores.py"), "run"]
    choice = ["--tasks", "dqn_cart_pole", "--seeds", "100", f"--store={tmp_path}"]
    ignoring = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"]
    with subprocess.Popen(
        [*ignoring, *program, *choice], stdout=subprocess.PIPE, text=True
    ) as queue:
        assert queue.stdout is not None
        begun = next(text for text in queue.stdout if "begins:" in text)
        queue.send_signal(number)
        rest = queue.stdout.read()  # until nobody has it open
        assert queue.wait(30) == 130
    assert "dqn_cart_pole alf_lite 100" in begun
    assert "broken off: dqn_cart_pole alf_lite 100" in rest
    assert not list(tmp_path.glob("*.jsonl"))


def test_a_run_that_would_not_end_in_time_does_not_begin(
    modules, scores, program, tmp_path
):
    runs = cart_poles(modules, scores, [100, 102])
    long = runs[0]._replace(job=runs[0].job._replace(seconds=1000))
    assert queue(scores, tmp_path / "store", seconds=200.0).work([long, runs[1]]) == 0
    assert [text.split()[2] for text in program()] == ["102"]


def test_the_longest_tasks_come_first_and_methods_take_turns(modules, scores):
    tasks = modules["score_tasks"]
    names = [("dqn_cart_pole", "alf_lite"), ("dqn_cart_pole", "sb3")]
    names += [("sac_ant", "alf_lite"), ("sac_ant", "sb3")]
    jobs = [tasks.find("core", *name) for name in names]
    runs = [scores.Run(job, seed) for job in jobs for seed in (100, 101)]
    ordered = [run.key for run in scores.in_order(runs)]
    assert [key[0] for key in ordered] == ["sac_ant"] * 4 + ["dqn_cart_pole"] * 4
    assert [key[1:] for key in ordered[:4]] == [
        *(("alf_lite", 100), ("sb3", 100), ("alf_lite", 101), ("sb3", 101))
    ]
    assert scores.in_order(runs, shortest_first=True)[0].job.task == "dqn_cart_pole"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (["--tasks", "dqn_cartpole"], "--tasks dqn_cartpole: core has dqn_cart_pole"),
        (["--seeds", "0"], "--seeds 0: core has 100, 101"),
        (["--peer_python=/nowhere/python"], "--peer_python=/nowhere/python: "),
        (["--cores=777"], "777: this machine has "),
    ],
)
def test_a_wrong_argument_is_told_before_anything_runs(
    scores, tmp_path, monkeypatch, capsys, argument, message
):
    monkeypatch.setattr(scores.Queue, "work", lambda *_: pytest.fail("ran"))
    monkeypatch.setattr(
        sys, "argv", ["scores.py", "run", f"--store={tmp_path}", *argument]
    )
    with pytest.raises(SystemExit) as error:
        scores.main()
    assert message in f"{error.value} {capsys.readouterr().err}"


def test_two_queues_do_not_write_to_one_store(scores, tmp_path):
    with scores.alone(tmp_path), pytest.raises(SystemExit, match="another queue"):
        scores.alone(tmp_path).__enter__()
    with scores.alone(tmp_path):
        pass


# The report


def test_the_exact_test_agrees_with_counting(report):
    five = np.arange(5.0)
    assert report.exact_p(five + 10, five) == pytest.approx(2 / 252)
    assert report.exact_p(five, five) == 1.0
    assert report.exact_p(np.arange(3.0), np.arange(3.0) + 5) == pytest.approx(0.1)
    # U = 23 of 25 is the least that is significant: 2 * (1 + 1 + 2) of 252
    assert report.exact_p(np.array([5, 6, 7, 8, 9.0]), np.array([0, 1, 2, 3, 6.5])) == (
        pytest.approx(8 / 252)
    )


def test_optimality_gap_does_not_count_what_is_above_one():
    values = np.array([[0.25, 3.0, 1.0, -0.5], [1.0, 2.0, 3.0, 4.0]])
    naive = [sum(1 - min(x, 1.0) for x in row) / 4 for row in values.tolist()]
    assert comparison.optimality_gap(values).tolist() == pytest.approx(naive)
    assert naive == [0.5625, 0.0]


@pytest.fixture
def table(modules):
    """Two tasks of three methods with three seeds; ours is better and faster."""
    tasks = modules["score_tasks"]
    found = {}
    for task, factor in (("dqn_cart_pole", 1.0), ("ppo_recurrent_cart_pole", 0.5)):
        for method, score in (("alf_lite", 400.0), ("sb3", 200.0), ("sb3_zoo", 100.0)):
            job = tasks.find("core", task, method)
            runs = [
                line_of(modules, job, seed, factor * score) for seed in job.seeds[:3]
            ]
            for line in runs:
                line["scores"] = np.linspace(0.1, 1.0, 10) * factor * score
                if method == "sb3":
                    line["cpu"] = [2 * x for x in line["cpu"]]
                    line["cpu_seconds"] *= 2
            found.setdefault(task, {})[method] = runs
    return found


def test_scores_are_put_on_the_shipped_scale(report, scores, table):
    scale = json.loads((scores.STORE / "scale.json").read_text())["CartPole-v1"]
    found = report._scaled(table, lambda _, runs: report._ends(runs))
    ours = next(s for s in found if s.label == "alf_lite")
    expected = (400 - scale["random"]) / (scale["reference"] - scale["random"])
    np.testing.assert_allclose(ours.scaled["dqn_cart_pole"], expected)
    text = "\n".join(report._aggregate("core", table))
    row = next(row for row in text.splitlines() if row.startswith("| alf_lite"))
    second = (200 - scale["random"]) / (scale["reference"] - scale["random"])
    gap = 1 - (expected + second) / 2
    assert f"| {gap:.2f} [" in row


def test_at_equal_cpu_a_slow_method_is_seen_at_half_of_its_run(report, table):
    values = report._at_equal_cpu(table)
    cart_pole = table["dqn_cart_pole"]
    np.testing.assert_allclose(values("dqn_cart_pole", cart_pole["alf_lite"]), 400.0)
    np.testing.assert_allclose(values("dqn_cart_pole", cart_pole["sb3"]), 100.0)


def test_a_task_without_seeds_enough_is_in_no_sum(report, scores, table):
    third = {name: list(runs) for name, runs in table["dqn_cart_pole"].items()}
    table["ppo_door_key"] = third
    third["sb3"].pop()
    assert list(report._common(table, "core")) == [
        *("dqn_cart_pole", "ppo_recurrent_cart_pole")
    ]
    for task in ("ppo_recurrent_cart_pole", "ppo_door_key"):
        table[task]["sb3_zoo"].pop()  # it has one task left, and is left out
    assert [list(found) for found in report._common(table, "core").values()] == [
        ["alf_lite", "sb3"]
    ] * 2
    text = "\n".join(report._aggregate("core", table))
    assert "Over `dqn_cart_pole`, `ppo_recurrent_cart_pole`, `ppo_door_key`" not in text
    del table["ppo_recurrent_cart_pole"]["sb3"]  # one is left, of five values
    assert report._common(table, "core") == {}
    assert "nothing is said" in report._aggregate("core", table)[0]


def test_methods_that_have_all_tasks_are_compared_over_all_of_them(report, table):
    first, second = table.values()
    table["ppo_door_key"] = {name: first[name] for name in ("alf_lite", "sb3")}
    table["ppo_hopper"] = {name: second[name] for name in ("alf_lite", "sb3")}
    assert "of which not all" in "\n".join(report._aggregate("core", table))
    del table["ppo_hopper"]["sb3"]
    assert "of which not all" not in "\n".join(report._aggregate("core", table))


def test_single_tasks_have_all_seeds_and_a_test(report, table):
    table["dqn_cart_pole"]["sb3"][2]["scores"] = [123.0] * 10
    rows = report._rows(table, "alf_lite")
    row = next(r for r in rows if "dqn_cart_pole" in r and "our settings" in r)
    assert "| 174.3 ± 44.5 | 200.0 · 200.0 · 123.0 | 20 | 1.00, 0.100 |" in row


def test_significant_differences_are_named_on_both_sides(report, table):
    runs = table["dqn_cart_pole"]
    for method, score in (("alf_lite", 300.0), ("sb3", 200.0), ("sb3_zoo", 400.0)):
        runs[method] = [runs[method][0] | {"scores": [score + i]} for i in range(5)]
    assert report._significant(table, "alf_lite") == (
        "alf_lite is significantly (p < 0.05) above: `dqn_cart_pole` SB3, our "
        "settings; below: `dqn_cart_pole` SB3, the zoo's settings. With Holm's "
        "correction for the 4 rows: `dqn_cart_pole` SB3, our settings, `dqn_cart_pole` "
        "SB3, the zoo's settings.\n"
    )  # three seeds, as those of the other task, are too few


def test_holm_stops_at_the_first_that_is_not_small_enough(report):
    # 0.05 / 4 = 0.0125, / 3 = 0.0167, / 2 = 0.025
    p = {"a": 0.012, "b": 0.06, "c": 0.016, "d": 0.024}
    assert report.holm(p) == {"a", "c", "d"}
    assert report.holm(p | {"c": 0.017}) == {"a"}
    assert report.holm({}) == set()


def test_tasks_with_longer_runs_in_the_zoo_are_told_apart(report, table):
    table["ppo_hopper"] = {
        name: [line | {"num_steps": 300_000} for line in runs]
        for name, runs in table["dqn_cart_pole"].items()
    }
    table["ppo_hopper"]["sb3_zoo"] = [
        line | {"scores": [-1.0]} for line in table["ppo_hopper"]["sb3_zoo"]
    ]
    [text] = report._beside_the_zoo(table)
    assert "longer runs 1.00 (`ppo_hopper`); of the others" in text
    assert text.endswith("(`dqn_cart_pole`, `ppo_recurrent_cart_pole`).\n")


def test_what_one_task_makes_of_the_lead_is_told(report):
    def of(label, first, second):
        found = {"a": np.full(3, first), "b": np.full(3, second)}
        return comparison.Scores(label, found, found)

    text = report._without_one([of("ours", 0.9, 0.5), of("theirs", 0.4, 0.6)])
    assert text == (
        "If a task is left out, the IQM of ours is -0.10 (without `a`) to 0.50 "
        "(without `b`) above theirs."
    )


def test_the_page_names_the_processors(modules, report):
    job = modules["score_tasks"].SUITES["core"][0]
    lines = [line_of(modules, job, seed) for seed in (100, 101, 102)]
    lines[1]["processor"] = lines[2]["processor"] = "AMD EPYC (family 26)"
    told = report._machine(lines)
    assert "by processor: AMD EPYC (family 26): 2, not recorded: 1)" in told


def test_a_processor_has_its_generation(modules):
    text = "cpu family\t: 26\nmodel name\t: AMD EPYC\n"
    processor = modules["measuring"].processor
    assert processor(text + text.replace("26", "25")) == "AMD EPYC (family 26)"
    assert processor("model name\t: Neoverse-V2\n") == "Neoverse-V2"
    assert processor("") == (platform.processor() or platform.machine())
    assert processor()


def test_every_environment_has_a_scale(modules, scores):
    told = json.loads((scores.STORE / "scale.json").read_text())
    for job in itertools.chain(*modules["score_tasks"].SUITES.values()):
        scale = told[job.env_id]
        assert scale["random"] < scale["reference"], job.env_id
        assert scale["source"]


@pytest.mark.ci
def test_the_page_is_what_the_stored_lines_say(report):
    # In a process of its own: the hash of a conf writes names as long as they need to
    # be, which depends on what other tests have registered.
    code = "import score_report, scores; print(score_report.page(scores.STORE), end='')"
    page = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "benchmarks",
        check=True,
        capture_output=True,
        text=True,
        encoding="utf-8",
    ).stdout
    assert report.PAGE.read_text(encoding="utf-8") == page, (
        "python benchmarks/scores.py report"
    )
    text = report.PAGE.read_text(encoding="utf-8")
    for picture in report.DOCS.glob("score_benchmark*.png"):
        assert picture.name in text
        assert picture.stat().st_size < 100_000


@pytest.mark.ci
def test_pictures_are_drawn(report, scores, table, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib", reason="the plot extra")
    monkeypatch.setattr(report, "DOCS", tmp_path)
    report._draw_curves("core", table)
    report._draw_aggregate("core", table)
    names = ["score_benchmark_core.png", "score_benchmark_core_all.png"]
    assert sorted(file.name for file in tmp_path.iterdir()) == names
