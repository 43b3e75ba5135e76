# Written by `python -m tests.stubs`.

from alf_lite.networks.actor_networks import (
    ContinuousProjection,
    ActorDistributionNetwork as _ActorDistributionNetwork,
    ActorNetwork as _ActorNetwork,
    NormalActorNetwork as _NormalActorNetwork,
    SquashedActorNetwork as _SquashedActorNetwork,
    make_projection as make_projection,
)
from alf_lite.networks.batch_norm import (
    BatchNorm as BatchNorm,
    make_batch_norm as make_batch_norm,
    normalizes_by_batch as normalizes_by_batch,
    statistics_of_batch as statistics_of_batch,
    trained_rows as trained_rows,
)
from alf_lite.networks.bodies import (
    Body,
    MatrixProduct as MatrixProduct,
    RmsNorm as RmsNorm,
    flash_sac as flash_sac,
    make_body as make_body,
    simba as simba,
    simba_v2 as simba_v2,
    xqc as xqc,
)
from alf_lite.networks.containers import (
    NetworkContainer as NetworkContainer,
    Part,
    Branch as _Branch,
    Parallel as _Parallel,
    Residual as _Residual,
    Sequential as _Sequential,
)
from alf_lite.networks.continuous_projections import (
    BetaProjection as BetaProjection,
    CauchyProjection as CauchyProjection,
    MixtureProjection as MixtureProjection,
    NormalProjection as NormalProjection,
    TruncatedNormalProjection as TruncatedNormalProjection,
)
from alf_lite.networks.critic_networks import (
    ParallelMLP as ParallelMLP,
    CriticNetwork as _CriticNetwork,
)
from alf_lite.networks.encoding_networks import (
    EncodedNetwork as EncodedNetwork,
    EncoderNetwork as EncoderNetwork,
    EncodingNetwork as EncodingNetwork,
)
from alf_lite.networks.impala_networks import (
    ImpalaEncodingNetwork as ImpalaEncodingNetwork,
)
from alf_lite.networks.initializers import (
    Initializer,
    Orthogonal as Orthogonal,
    VarianceScaling as VarianceScaling,
    check_parameters as check_parameters,
    fill_bias as fill_bias,
    initialize_members as initialize_members,
    initialized as initialized,
    make_initializer as make_initializer,
)
from alf_lite.networks.input_encoders import (
    CategoryEncoder as CategoryEncoder,
    ConvLayerParams,
    ImageEncoder as ImageEncoder,
    ImageInput as ImageInput,
    InputEncoder as InputEncoder,
    NumberEncoder as NumberEncoder,
    WordEncoder as WordEncoder,
    convolution as convolution,
    image_layout as image_layout,
    is_image as is_image,
    make_encoder as make_encoder,
)
from alf_lite.networks.input_preprocessors import (
    Combiner,
    SelectedElements as SelectedElements,
    concat as concat,
    make_combiner as make_combiner,
    output_spec_of as output_spec_of,
    preprocessors_of as preprocessors_of,
)
from alf_lite.networks.layers import (
    Activation,
    check_body_alone as check_body_alone,
    check_sizes as check_sizes,
    linear as linear,
    make_activation as make_activation,
    make_dropout as make_dropout,
    mlp as mlp,
)
from alf_lite.networks.lean_layers import (
    BuiltLayers as BuiltLayers,
    HiddenSequential as HiddenSequential,
    LeanSequential as LeanSequential,
    LinearMap as LinearMap,
    apply_hidden as apply_hidden,
    apply_linear as apply_linear,
    has_hooks as has_hooks,
    hidden_layers_in as hidden_layers_in,
)
from alf_lite.networks.network import (
    Network as Network,
    Pieces as Pieces,
    Sequences as Sequences,
    as_critic_network as as_critic_network,
    as_network as as_network,
    current_sequences as current_sequences,
    require_module as require_module,
    says_that_it_takes_them as says_that_it_takes_them,
    takes_whole_sequences as takes_whole_sequences,
    whole_sequences as whole_sequences,
)
from alf_lite.networks.noisy_layers import (
    NoisyLinear as NoisyLinear,
    exploring_by_noise as exploring_by_noise,
)
from alf_lite.networks.parallel_layers import (
    FirstMember as FirstMember,
    ParallelLayerNorm as ParallelLayerNorm,
    ParallelLinear as ParallelLinear,
)
from alf_lite.networks.projections import (
    BernoulliProjection as BernoulliProjection,
    CategoricalProjection as CategoricalProjection,
    MultiCategoricalProjection as MultiCategoricalProjection,
    NestOfHeads as NestOfHeads,
    OneHotProjection as OneHotProjection,
    Projection as Projection,
)
from alf_lite.networks.recurrent_networks import (
    GRUEncodingNetwork as GRUEncodingNetwork,
    LSTMEncodingNetwork as LSTMEncodingNetwork,
    RecurrentEncodingNetwork as RecurrentEncodingNetwork,
)
from alf_lite.networks.transformer_networks import (
    GTrXLEncodingNetwork as GTrXLEncodingNetwork,
    TransformerState as TransformerState,
)
from alf_lite.networks.value_networks import (
    QNetwork as _QNetwork,
    ValueNetwork as _ValueNetwork,
)
from alf_lite.tensor_specs import NestedTensorSpec, TensorSpec
from collections.abc import Callable, Mapping, Sequence
from torch import nn

class ActorDistributionNetwork(_ActorDistributionNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        continuous_projection: ContinuousProjection = 'normal',
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        num_mixture_components: int | None = None,
        one_hot: bool = False,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class ActorNetwork(_ActorNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        *,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = ...,
        activation: Activation | None = 'relu',
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class CriticNetwork(_CriticNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_size: int,
        num_critics: int = 1,
        output_shape: Sequence[int] = ...,
        *,
        joint_fc_layer_params: Sequence[int] = ...,
        activation: Activation = 'relu',
        layer_norm: bool = False,
        batch_norm: bool | Callable[..., nn.Module] = False,
        dropout: float = 0.0,
        initializer: Initializer | None = None,
        last_initializer: Initializer | None = None,
        body: str | Body | None = None,
        encoder_fc_layer_params: Sequence[int] | None = ...,
        encoder_activation: Activation | None = None,
        fc_layer_params: Sequence[int] | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class ValueNetwork(_ValueNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        reward_spec: TensorSpec = ...,
        *,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class QNetwork(_QNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        num_values: Sequence[int],
        num_outputs: int = 1,
        *,
        activation: Activation | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
        dueling: bool = False,
        head_fc_layer_params: Sequence[int] = ...,
        head_activation: Activation = 'relu',
        noise_std: float = 0.0,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = None,
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None: ...

class SquashedActorNetwork(_SquashedActorNetwork, ActorDistributionNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        continuous_projection: ContinuousProjection = 'tanh_normal',
        state_dependent_std: bool = True,
        initial_log_std: float = 0.0,
        num_mixture_components: int | None = None,
        one_hot: bool = False,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = ...,
        activation: Activation | None = 'relu',
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class NormalActorNetwork(_NormalActorNetwork, ActorDistributionNetwork):
    def __init__(
        self,
        observation_spec: NestedTensorSpec,
        action_spec: NestedTensorSpec,
        *,
        continuous_projection: ContinuousProjection = 'normal',
        state_dependent_std: bool = False,
        initial_log_std: float = 0.0,
        num_mixture_components: int | None = None,
        one_hot: bool = False,
        last_initializer: Initializer | None = None,
        fc_layer_params: Sequence[int] | None = ...,
        activation: Activation | None = 'relu',
        body: str | Body | None = None,
        conv_layer_params: ConvLayerParams | None = None,
        encoding_network_ctor: Callable[..., EncoderNetwork] = ...,
    ) -> None: ...

class Sequential(_Sequential):
    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part],
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None: ...

class Residual(_Residual):
    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part],
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None: ...

class Branch(_Branch):
    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part] | Mapping[str, Part],
        combiner: Combiner | None = 'concat',
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None: ...

class Parallel(_Parallel):
    def __init__(
        self,
        input_spec: NestedTensorSpec,
        parts: Sequence[Part] | Mapping[str, Part],
        combiner: Combiner | None = 'concat',
        *,
        fc_layer_params: Sequence[int] | None = None,
        activation: Activation | None = None,
        conv_layer_params: ConvLayerParams | None = None,
    ) -> None: ...
