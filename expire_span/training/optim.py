"""Adam with two groups: parameters that learn spans, and all others."""

import torch
from torch import Tensor, nn

from expire_span.model.transformer import Transformer
from expire_span.training.experiment import OptimizerConfig


def build_optimizer(model: Transformer, config: OptimizerConfig) -> torch.optim.Adam:
    """Adam over all parameters; each group's `scale` multiplies the rate of the moment."""
    keepers = {p for layer in model.stack() for p in layer.keeper.parameters()}
    others = [p for p in model.parameters() if p not in keepers]
    groups = [{"params": others, "scale": 1.0}]
    if keepers:
        spans = [p for p in model.parameters() if p in keepers]
        groups.append({"params": spans, "scale": config.span_rate})
    return torch.optim.Adam(
        groups,
        lr=config.rate,
        betas=(config.beta1, config.beta2),
        fused=model.positions.device.type == "cuda",
    )


def set_rates(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate of the next update."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["scale"]


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
