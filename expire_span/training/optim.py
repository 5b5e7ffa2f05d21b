"""Adam in groups: parameters that learn spans, matrices that Muon may update, all others.

Shapes: P parameters that have a gradient.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from expire_span.model.transformer import Transformer
from expire_span.training.experiment import OptimizerConfig
from expire_span.training.muon import ORTHOGONAL, Muon

SPANS = "spans"  # marks the group of parameters that learn spans


def build_optimizer(model: Transformer, config: OptimizerConfig) -> torch.optim.Adam:
    """Adam over all parameters; each group's `scale` multiplies the rate of the moment.

    The fused one can be told by the device itself to leave everything as it is.
    """
    betas = (config.beta1, config.beta2)
    if config.method == "adam":
        groups = parameter_groups(model, config.span_rate)
        return torch.optim.Adam(groups, lr=config.rate, betas=betas, fused=True)
    matrices = {p for layer in model.stack() for p in layer.parameters() if p.ndim == 2}
    groups = parameter_groups(model, config.span_rate, matrices)
    return Muon(groups, lr=config.rate, betas=betas, fused=True)


def parameter_groups(
    model: Transformer, span_rate: float, matrices: Collection[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Parameters that learn spans and those that Muon shall update, apart from all others."""
    spans = {p for layer in model.stack() for p in layer.keeper.parameters()}
    turned = set(matrices) - spans
    everything = list(model.parameters())
    groups: list[dict[str, Any]] = [
        {"params": [p for p in everything if p not in spans | turned], "scale": 1.0},
        {"params": [p for p in everything if p in spans], "scale": span_rate, SPANS: True},
        {"params": [p for p in everything if p in turned], "scale": 1.0, ORTHOGONAL: True},
    ]
    return [group for group in groups if group["params"]]


def gradient_norms(parameters: Iterable[nn.Parameter]) -> Tensor:
    """Norm of every gradient there is, [P]."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.stack(cast(list[Tensor], torch._foreach_norm(gradients)))


def apply_gradients(
    optimizer: torch.optim.Adam, clip: float | None, norm: Tensor, unsound: Tensor
) -> None:
    """Clip the gradients and update the weights, unless the device says that something is unsound.

    Args:
        optimizer: a fused one, with its rates set.
        clip: largest norm of all gradients together.
        norm: what that norm is, a scalar.
        unsound: 1.0 to change nothing at all, else 0.0.
    """
    if clip is not None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grads_with_norm_(parameters, clip, norm)
    # PyTorch's own way to skip an update without asking the host, made for mixed precision.
    optimizer.found_inf = unsound  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad()


class GradientSums:
    """Adds up the gradients of several parts of a block.

    They are taken away from the parameters after each part: a replayed one must find none, and
    writes its own where the part before it did.
    """

    def __init__(self, parameters: Sequence[nn.Parameter]):
        self._parameters = parameters
        self._sums: dict[nn.Parameter, Tensor] = {}

    def take(self) -> None:
        """Add what the parameters have, and leave them without."""
        found = {p: p.grad for p in self._parameters if p.grad is not None}
        known = [p for p in found if p in self._sums]
        if known:
            torch._foreach_add_([self._sums[p] for p in known], [found[p] for p in known])
        self._sums |= {p: gradient.clone() for p, gradient in found.items() if p not in self._sums}
        for parameter in found:
            parameter.grad = None

    def give(self) -> None:
        """Give the sums to the parameters, and begin anew."""
        for parameter, total in self._sums.items():
            parameter.grad = total
        self._sums = {}


def set_rates(optimizer: torch.optim.Optimizer, rate: float, spans_learn: bool = True) -> None:
    """Set the learning rate of the next update, in which spans may have to stay as they are."""
    for group in optimizer.param_groups:
        waits = group.get(SPANS, False) and not spans_learn
        group["lr"] = 0.0 if waits else rate * group["scale"]


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """The optimiser's state as `exp_avg.layers.0...`: what is kept, of which parameter."""
    names: dict[Tensor, str] = {p: name for name, p in model.named_parameters()}
    return {
        f"{key}.{names[parameter]}": tensor
        for parameter, state in optimizer.state.items()
        for key, tensor in state.items()
    }


def load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: dict[str, Tensor]
) -> None:
    """Bring back what `optimizer_tensors` gave."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    order = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state: dict[int, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, name = full_name.split(".", 1)
        state.setdefault(order.index(name), {})[key] = tensor
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
