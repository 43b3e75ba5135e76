"""What a conf binds in the scope ``evaluation`` holds for evaluations alone."""

from __future__ import annotations

import pytest

from alf_lite.bin import train
from alf_lite.config import TrainerConfig
from alf_lite.config import files as config_files
from alf_lite.tools.player import play
from alf_lite.trainers.trainer import Trainer

TRAINING = "create_environment.max_episode_steps = 9"
EVALUATION = "evaluation/create_environment.max_episode_steps = 5"


def test_evaluations_and_play_have_environments_of_their_own(tmp_path, conf, capfd):
    params = [TRAINING, EVALUATION, "evaluation/create_environment.wrappers = []"]
    params += ["TrainerConfig.num_iterations = 2"]
    config_files.parse_config(str(conf), params, strict=True)
    trainer = Trainer(TrainerConfig(), tmp_path)
    result = trainer.train()
    assert result.evaluation.lengths == [5, 5, 5]
    lengths = {m.name: m.result() for m in trainer.algorithm.get_metrics()}
    assert lengths["AverageEpisodeLength"] > 5
    assert EVALUATION in (tmp_path / "operative.gin").read_text()
    config_files.reset()
    assert play(tmp_path, 2).evaluation.lengths == [5, 5]
    config_files.reset()
    # A macro of that name is none.
    arguments = [f"--conf={conf}", f"--root_dir={tmp_path / 'macro'}"]
    arguments += [
        "--gin_param=evaluation = 3",
        "--gin_param=TrainerConfig.num_iterations = %evaluation",
    ]
    assert train.main(arguments) == 0
    assert "evaluation/" not in (tmp_path / "macro" / "operative.gin").read_text()
    assert "3 iterations" in capfd.readouterr().out


@pytest.mark.ci
def test_another_process_uses_them_too(tmp_path, conf, capfd):
    arguments = [f"--conf={conf}", f"--root_dir={tmp_path}", "--strict_config"]
    params = [EVALUATION, "TrainerConfig.num_iterations = 2"]
    params += ["TrainerConfig.async_eval = True"]
    assert train.main([*arguments, *(f"--gin_param={one}" for one in params)]) == 0
    assert "mean length 5.0" in capfd.readouterr().out
    assert EVALUATION not in (tmp_path / "inoperative.gin").read_text()
