# Written by `python -m tests.stubs`.

from alf_lite.optimizers.gradient_average import GradientAverage as GradientAverage
from alf_lite.optimizers.optimizer import Optimizer as Optimizer
from alf_lite.optimizers.optimizers import (
    Adam as Adam,
    AdamW as AdamW,
    RMSprop as RMSprop,
    SGD as SGD,
)
from alf_lite.optimizers.parameter_options import (
    check_parameter_options as check_parameter_options,
    group_parameters as group_parameters,
)
from alf_lite.optimizers.parameter_ownership import (
    Claim as Claim,
    assign_parameters as assign_parameters,
    resolve_claims as resolve_claims,
    unclaimed as unclaimed,
)
from alf_lite.optimizers.without_compiler import (
    step_without_compiler as step_without_compiler,
    without_compiler as without_compiler,
)
