"""Every shipped conf trains on a GPU, as it is and by graphs."""

from __future__ import annotations

import pytest
import torch

from alf_lite.errors import ConfigError
from tests.short_confs import CONFS, full_text, missing_extras, shortened, trained
from tests.source_code import ROOT

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("ignore:.* outside of its bounds"),
]


@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
@pytest.mark.parametrize("conf", CONFS, ids=lambda conf: conf.stem)
def test_a_conf_trains(conf, graphs, tmp_path):
    if missing := missing_extras(full_text(ROOT / conf)):
        pytest.skip(f"needs the extra {missing[0]}")
    bindings = [
        *shortened(conf, tmp_path, 20),
        "TrainerConfig.device = 'cuda'",
        f"TrainerConfig.cuda_graphs = {graphs}",
        "TrainerConfig.summarize_first_interval = False",  # without graphs
    ]
    try:
        algorithm = trained(conf, bindings, tmp_path / "run")
    except ConfigError as error:
        # Before anything was captured
        if not graphs or "TrainerConfig.cuda_graphs: updates of" not in str(error):
            raise
        return
    for parameter in algorithm.parameters():
        assert parameter.device.type == "cuda"
        assert parameter.isfinite().all()
    if algorithm.num_updates >= 5:
        assert bool(algorithm.training_run.updates.num_graphs) == graphs
