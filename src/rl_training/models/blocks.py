"""Building blocks that the models share: perceptrons, dueling streams and ensembles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    import numpy as np
    from typing_extensions import Unpack

    from rl_training.config.value_based import ActionLayerOptions

Activation = Literal["relu", "tanh"]


class Layers(nn.Module):
    """Weights and biases in order of depth, as one module.

    On a CPU a call from module to module takes as long as the arithmetic of a small layer.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: list[tuple[str, str]] = []
        self._norm_names: list[tuple[str, str]] = []

    @property
    def linears(self) -> list[tuple[Any, Any]]:
        """The weight and the bias of each layer, as they are registered now."""
        parameters = self._parameters
        return [(parameters[weight], parameters[bias]) for weight, bias in self._names]

    @property
    def norms(self) -> list[tuple[Any, Any]]:
        """The scale and the shift of each layer normalisation, in order of depth."""
        parameters = self._parameters
        return [(parameters[scale], parameters[shift]) for scale, shift in self._norm_names]

    def add_layer(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        """Append a layer."""
        self._add(self._names, weight=weight, bias=bias)

    def add_norm(self, size: int) -> None:
        """Append a layer normalisation, which at first only standardises."""
        scale, shift = nn.Parameter(torch.ones(size)), nn.Parameter(torch.zeros(size))
        self._add(self._norm_names, scale=scale, shift=shift)

    def _add(self, names: list[tuple[str, str]], **pair: nn.Parameter) -> None:
        depth = len(names)
        for name, parameter in pair.items():
            self.register_parameter(f"{name}{depth}", parameter)
        first, second = pair
        names.append((f"{first}{depth}", f"{second}{depth}"))

    @torch.no_grad()
    def init_orthogonal(self, *, last_gain: float, gain: float = math.sqrt(2)) -> None:
        """Orthogonal weights and zero biases; the last layer has a gain apart."""
        last = self.linears[-1][0]
        for weight, bias in self.linears:
            for matrix in weight.reshape(-1, *weight.shape[-2:]):
                nn.init.orthogonal_(matrix, last_gain if weight is last else gain)
            nn.init.zeros_(bias)


class MLP(Layers):
    """Linear layers of the given sizes with an activation between them.

    `activate_last` puts an activation after the last one too, and `layer_norm` a layer
    normalisation (Ba et al., 2016) before each activation. Initialised as PyTorch initialises
    linear layers, uniformly within 1/sqrt(fan_in).
    """

    def __init__(
        self,
        sizes: Sequence[int],
        *,
        activation: Activation = "relu",
        activate_last: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.activate_last = activate_last
        for fan_in, fan_out in pairwise(sizes):
            self.add_layer(*nn.Linear(fan_in, fan_out).parameters())
        activated = sizes[1:] if activate_last else sizes[1:-1]
        for size in activated if layer_norm else ():
            self.add_norm(size)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, last size)."""
        *hidden, last = self.linears
        norms = self.norms
        for depth, layer in enumerate(hidden):
            x = self._activate(normalized(F.linear(x, *layer), norms[depth : depth + 1]))
        x = F.linear(x, *last)
        return self._activate(normalized(x, norms[len(hidden) :])) if self.activate_last else x

    def _activate(self, x: Tensor) -> Tensor:
        return torch.relu_(x) if self.activation == "relu" else torch.tanh_(x)


def normalized(x: Tensor, norms: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Rows standardised, scaled and shifted by the first of `norms`; unchanged without one."""
    return F.layer_norm(x, x.shape[-1:], *norms[0]) if norms else x


class NoisyMLP(nn.Module):
    """A perceptron whose weights carry noise of learned size (Fortunato et al., 2018).

    In training mode each layer adds `sigma * noise` to its weights and biases, with factorised
    noise (Eqs. 10 and 11); otherwise the means act alone. The noise stays the same until
    `resample`. Means start within 1/sqrt(fan_in), every sigma at 0.5/sqrt(fan_in).
    """

    noise: Tensor

    def __init__(self, sizes: Sequence[int], *, layer_norm: bool = False) -> None:
        super().__init__()
        self.mean, self.sigma = MLP(sizes, layer_norm=layer_norm), MLP(sizes)
        self._sizes = list(sizes)
        for (weight, bias), fan_in in zip(self.sigma.linears, sizes, strict=False):
            nn.init.constant_(weight, 0.5 / math.sqrt(fan_in))
            nn.init.constant_(bias, 0.5 / math.sqrt(fan_in))
        # A factor for each input and each output of every layer.
        self.register_buffer("noise", torch.zeros(sum(sizes[:-1]) + sum(sizes[1:])))

    def resample(self, rng: np.random.Generator) -> None:
        """Draw other noise: each factor is sgn(x) sqrt(|x|) of a normal x."""
        x = torch.from_numpy(rng.standard_normal(len(self.noise), "float32"))
        self.noise.copy_(x.sign() * x.abs().sqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, last size)."""
        start, depth, norms = 0, len(self.mean.linears), self.mean.norms
        pairs = zip(self.mean.linears, self.sigma.linears, strict=True)
        for number, ((weight, bias), (weight_sigma, bias_sigma)) in enumerate(pairs, 1):
            if self.training:
                fan_out, fan_in = weight.shape
                of_input = self.noise[start : start + fan_in]
                of_output = self.noise[start + fan_in : start + fan_in + fan_out]
                start += fan_in + fan_out
                x = F.linear(
                    x,
                    weight + weight_sigma * torch.outer(of_output, of_input),
                    bias + bias_sigma * of_output,
                )
            else:
                x = F.linear(x, weight, bias)
            if number < depth:
                x = torch.relu(normalized(x, norms[number - 1 : number]))
        return x


class DuelingMLP(nn.Module):
    """`outputs_per_action` values per action: V + A - mean A (Wang et al., 2016, Eq. 9).

    All hidden layers but the last are shared; the streams, which may be noisy, have one each.
    Gives (batch, action_dim * outputs_per_action), as an `MLP` of that output size does.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int],
        outputs_per_action: int = 1,
        *,
        layer_norm: bool = False,
        stream: type[MLP | NoisyMLP] = MLP,
    ) -> None:
        super().__init__()
        *shared, last = (obs_dim, *hidden_sizes)
        self.trunk: MLP | None = None
        if len(shared) > 1:
            self.trunk = MLP(shared, activate_last=True, layer_norm=layer_norm)
        outputs = action_dim * outputs_per_action
        self.value = stream((shared[-1], last, outputs_per_action), layer_norm=layer_norm)
        self.advantage = stream((shared[-1], last, outputs), layer_norm=layer_norm)
        self.shape = (-1, action_dim, outputs_per_action)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (batch, action_dim * outputs_per_action)."""
        if self.trunk is not None:
            x = self.trunk(x)
        value, advantage = self.value(x), self.advantage(x).reshape(self.shape)
        centred = advantage - advantage.mean(1, keepdim=True)
        joined: Tensor = (value[:, None] + centred).flatten(1)
        return joined


def q_layers(
    obs_dim: int,
    action_dim: int,
    hidden_sizes: Sequence[int],
    outputs_per_action: int = 1,
    *,
    dueling: bool = False,
    noisy: bool = False,
    layer_norm: bool = False,
) -> nn.Module:
    """Layers that give `outputs_per_action` values per action, flat.

    Outputs are (batch, action_dim * outputs_per_action). Noise goes into the last two layers, or
    those of both streams, as in Rainbow; layer normalisation before every ReLU.
    """
    last_layers: type[MLP | NoisyMLP] = NoisyMLP if noisy else MLP
    if dueling:
        sizes = (obs_dim, action_dim, hidden_sizes, outputs_per_action)
        return DuelingMLP(*sizes, layer_norm=layer_norm, stream=last_layers)
    shared = (obs_dim, *hidden_sizes[:-1])
    head = (*hidden_sizes[-1:], action_dim * outputs_per_action)
    if not noisy or len(shared) == 1:
        return last_layers((*shared, *head), layer_norm=layer_norm)
    trunk = MLP(shared, activate_last=True, layer_norm=layer_norm)
    return nn.Sequential(trunk, last_layers((shared[-1], *head), layer_norm=layer_norm))


class ActionDistributions(nn.Module):
    """A return distribution for each action, as `outputs_per_action` quantiles or logits."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        outputs_per_action: int,
        hidden_sizes: Sequence[int],
        **options: Unpack[ActionLayerOptions],
    ) -> None:
        super().__init__()
        self.layers = q_layers(obs_dim, action_dim, hidden_sizes, outputs_per_action, **options)
        self.shape = (action_dim, outputs_per_action)

    def forward(self, obs: Tensor) -> Tensor:
        """Numbers (batch, action_dim, outputs_per_action) of observations (batch, obs_dim)."""
        numbers: Tensor = self.layers(obs).unflatten(1, self.shape)
        return numbers


class EnsembleMLP(Layers):
    """`members` perceptrons with ReLU layers side by side; their weights are (members, in, out).

    One product per layer serves all members. Each member is initialised by itself, as PyTorch
    initialises a linear layer. Inputs (batch, in) go to all members, inputs (members, batch, in)
    to one each; outputs are (members, batch, out).
    """

    def __init__(self, members: int, sizes: Sequence[int]) -> None:
        super().__init__()
        self.members = members
        for fan_in, fan_out in pairwise(sizes):
            linears = [nn.Linear(fan_in, fan_out) for _ in range(members)]
            weight = nn.Parameter(torch.stack([linear.weight.detach().T for linear in linears]))
            bias = nn.Parameter(torch.stack([linear.bias.detach()[None] for linear in linears]))
            self.add_layer(weight, bias)

    def forward(self, x: Tensor, members: Tensor | None = None) -> Tensor:
        """Outputs of all members, or of those with the given numbers."""
        *hidden, last = self.linears
        for weight, bias in hidden:
            x = torch.relu_(_linear(x, weight, bias, members))
        return _linear(x, *last, members)


def _linear(x: Tensor, weight: Tensor, bias: Tensor, members: Tensor | None) -> Tensor:
    if members is not None:
        weight, bias = weight[members], bias[members]
    return torch.baddbmm(bias, x.expand(len(weight), *x.shape[-2:]), weight)
