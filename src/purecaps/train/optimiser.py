"""The optimisers that a recipe can name: PyTorch's own and Muon, ready to be part of a CUDA graph."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from purecaps.models.stack import ModelStack
from purecaps.train.adam import AdamW
from purecaps.train.muon import Muon
from purecaps.train.recipe import Recipe


def make_optimiser(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over a network's parameters, in one kernel where the device has one.

    "adamw" and "muon" decouple weight decay from the gradient; the others add it to the gradient, as their authors did.
    """
    parameters, lr, decay = list(model.parameters()), recipe.lr, recipe.weight_decay
    betas, eps = (recipe.beta1, recipe.beta2), recipe.adam_eps
    device = parameters[0].device.type
    fused = device in ("cpu", "cuda")
    if recipe.optimiser == "adam":
        return torch.optim.Adam(parameters, lr, betas, eps, weight_decay=decay, fused=fused)
    if recipe.optimiser == "rmsprop":
        # It has no fused form; of the others only the one over all parameters together takes a rate on the device.
        return torch.optim.RMSprop(
            parameters, lr, alpha=recipe.beta2, eps=eps, weight_decay=decay, foreach=device == "cuda"
        )
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(parameters, lr, momentum=recipe.beta1, weight_decay=decay, fused=fused)
    if recipe.optimiser == "muon":
        return Muon(parameters, lr, recipe.beta1, decay, stacked=isinstance(model, ModelStack))
    return AdamW(parameters, lr=lr, betas=betas, eps=eps, weight_decay=decay, fused=fused)


def put_rate_on_device(optimiser: torch.optim.Optimizer, rate: Tensor) -> None:
    """Makes steps take their rate from a tensor, so that they can be captured in a CUDA graph."""
    for group in optimiser.param_groups:
        group["lr"] = rate
        if "capturable" in group:  # SGD counts no steps and has no such switch
            group["capturable"] = True
    for slots in optimiser.state.values():
        if "step" in slots:  # read from a checkpoint, it may still lie on the host
            slots["step"] = slots["step"].to(rate.device)


@torch.no_grad()
def clip_gradients(model: nn.Module, limit: float, *, stacked: bool) -> None:
    """Scales the whole gradient of a network down to a norm of `limit`; in a stack, of each network by itself."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    axes = [tuple(range(1 if stacked else 0, gradient.dim())) for gradient in gradients]
    squares = [gradient.square().sum(dim=dims) for gradient, dims in zip(gradients, axes, strict=True)]
    norm = torch.stack(squares).sum(dim=0).sqrt()  # [] or [S]
    factor = (limit / (norm + 1e-6)).clamp(max=1.0)
    for gradient, dims in zip(gradients, axes, strict=True):
        gradient.mul_(factor.view(*factor.shape, *(1 for _ in dims)))
