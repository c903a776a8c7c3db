"""Problems for the fused kernels, shared by the interpreter's tests and the GPU's."""

import torch

# Shapes of u and w, then stride, padding and dilation.
CASES = [
    ((2, 3, 5, 4, 1, 3, 5), (3, 2, 3, 4, 1, 5, 1), (1, 1), (0, 0), (1, 1)),
    ((1, 1, 7, 6, 1, 4, 8), (3, 3, 1, 3, 1, 8, 5), (2, 2), (0, 0), (1, 1)),
    ((2, 1, 5, 5, 1, 1, 1), (3, 3, 1, 1, 1, 1, 8), (2, 1), (1, 0), (1, 1)),
    ((1, 5, 4, 5, 1, 5, 4), (1, 3, 5, 3, 1, 4, 3), (1, 2), (0, 2), (1, 2)),
    ((3, 4, 4, 3, 1, 8, 1), (2, 1, 4, 5, 1, 1, 4), (3, 2), (1, 1), (2, 1)),
    ((1, 8, 6, 6, 1, 4, 8), (2, 2, 8, 8, 1, 8, 8), (2, 2), (1, 1), (2, 2)),
    ((1, 3, 7, 7, 1, 3, 4), (3, 3, 3, 1, 1, 4, 4), (2, 3), (2, 1), (2, 3)),
    ((2, 2, 4, 4, 1, 1, 3), (1, 1, 2, 3, 1, 3, 3), (3, 3), (0, 0), (1, 1)),
    ((1, 4, 3, 3, 1, 4, 16), (3, 3, 4, 3, 1, 16, 16), (1, 1), (0, 0), (1, 1)),
]


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def gradients(function, u, w, upstream):
    """Output and gradients of u and w, for a given gradient of the output."""
    u, w = u.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(u, w)
    return y.detach(), *torch.autograd.grad(y, (u, w), upstream.to(y.dtype))
