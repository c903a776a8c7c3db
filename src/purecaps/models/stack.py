"""Several networks of one architecture as one module: the same layers over one more axis of weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor, nn

from purecaps.errors import ConfigError
from purecaps.ops.validation import shape_text


class ModelStack(nn.Module):
    """Independent networks that are trained side by side; each sees a batch of its own.

    The axis of networks becomes one more group axis of every capsule convolution, so that S networks cost far less than
    S runs where a single one leaves the device idle.

    Args:
        models: networks of one architecture; their weights are copied.

    Shape:
        images [S, B, C, H, W] -> scores [S, B, num_classes]
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        super().__init__()
        if not models:
            raise ConfigError("models: expected at least one network, got none")
        self.size = len(models)
        # In a list, so that its own weights are not registered as this module's.
        self._template = [copy.deepcopy(models[0])]
        self._names = {name.replace(".", "/"): name for name, _ in models[0].named_parameters()}
        parameters, _ = torch.func.stack_module_state(list(models))
        self.weights = nn.ParameterDict(
            {flat: parameters[name].detach().requires_grad_() for flat, name in self._names.items()}
        )

    def forward(self, images: Tensor) -> Tensor:
        if images.dim() != 5 or images.shape[0] != self.size:
            raise ConfigError(f"images: expected [{self.size}, B, C, H, W], got {shape_text(images.shape)}")
        template = self._template[0]
        weights = {name: self.weights[flat] for flat, name in self._names.items()}

        def one(weights: dict[str, Tensor], images: Tensor) -> Tensor:
            scores: Tensor = torch.func.functional_call(template, weights, (images,))
            return scores

        scores: Tensor = torch.func.vmap(one)(weights, images)
        return scores

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # The template's buffers (input standardisation) must be where the weights are.
        self._template[0]._apply(fn)
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]

    def train(self, mode: bool = True) -> Self:
        self._template[0].train(mode)
        return super().train(mode)

    def unstack(self) -> list[nn.Module]:
        """The networks, each with a copy of its weights."""
        networks = []
        for index in range(self.size):
            network = copy.deepcopy(self._template[0])
            with torch.no_grad():
                for flat, name in self._names.items():
                    network.get_parameter(name).copy_(self.weights[flat][index])
            networks.append(network)
        return networks
