"""How capsules lie in memory as rows of channels, which is how oneDNN likes to convolve images.

A convolution of capsules does the same to each of the m rows of a capsule. They can be images of their own, folded into
the batch: the least arithmetic, but where C*n or O*p is small, channels do not fill a vector register and a library's
convolution takes many times as long as its arithmetic. Or they can be channels, of a convolution whose kernel is zero
between different rows: m times the arithmetic, in whole vectors, on m times fewer images. There a capsule's numbers are
neighbours, so that refolding is a view and a squash sums what lies together.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

KernelShape = tuple[int, int, int, int, int, int, int]

# Numbers of an input position times those of an output position up to which rows are channels. Measured on Zen 5, batch
# 128, layers forward and backward: 256 to 512 are 1.1 to 3 times faster so, 1,024 up to 1.2 times slower.
MOST_PRODUCTS = 512


@dataclass(frozen=True)
class Fold:
    """How capsules [B, C, H, W, g, m, n] become images [N, H, W, K], and images capsules [B, O, H', W', g, m, p].

    Args:
        m: rows of a capsule.
        kernel: the kernel's shape [kh, kw, C, O, g, n, p].
        rows_are_channels: whether rows are channels, in the order (C, m, n), which is for g = 1 alone; else they are
            in the batch, and channels are (g, C, n).
    """

    m: int
    kernel: KernelShape
    rows_are_channels: bool

    @property
    def groups(self) -> int:
        return self.kernel[4]

    def images(self, u: Tensor) -> Tensor:
        """Capsules [B, C, H, W, g, m, n] as images [N, H, W, K]; a view where they lie so already, else one copy."""
        B, C, H, W, g, m, n = u.shape
        if self.rows_are_channels:
            return u.permute(0, 2, 3, 4, 1, 5, 6).reshape(B, H, W, C * m * n).contiguous()
        return u.permute(0, 5, 2, 3, 4, 1, 6).reshape(B * m, H, W, g * C * n).contiguous()

    def capsules(self, images: Tensor, caps: int) -> Tensor:
        """Undoes `images`, as a view; `caps` at each position."""
        N, H, W, K = images.shape
        m, g = self.m, self.groups
        if self.rows_are_channels:
            return images.view(N, H, W, 1, caps, m, K // (caps * m)).permute(0, 4, 1, 2, 3, 5, 6)
        return images.view(N // m, m, H, W, g, caps, K // (g * caps)).permute(0, 5, 2, 3, 4, 1, 6)

    def weights(self, w: Tensor) -> Tensor:
        """The kernel of the plain convolution [K, kh, kw, I]."""
        kh, kw, C, O, g, n, p = self.kernel
        if not self.rows_are_channels:
            return w.permute(4, 3, 6, 0, 1, 2, 5).reshape(g * O * p, kh, kw, C * n)
        m = self.m
        spread = w.new_zeros(O, m, p, kh, kw, C, m, n)
        spread.diagonal(dim1=1, dim2=6).copy_(w.permute(3, 6, 0, 1, 2, 5, 4))  # the same for all m, as g is 1
        return spread.view(O * m * p, kh, kw, C * m * n)

    def weight_gradient(self, grad: Tensor) -> Tensor:
        """The gradient in the capsule kernel that one in the plain convolution's kernel amounts to."""
        kh, kw, C, O, g, n, p = self.kernel
        if not self.rows_are_channels:
            return grad.reshape(g, O, p, kh, kw, C, n).permute(3, 4, 5, 1, 0, 6, 2)
        of_rows = grad.reshape(O, self.m, p, kh, kw, C, self.m, n).diagonal(dim1=1, dim2=6)
        return of_rows.sum(-1, keepdim=True).permute(2, 3, 4, 0, 6, 5, 1)

    def squashed_together(self, images: Tensor, chunk: int | None) -> Tensor:
        """Output images as a view [L, M, R, G, O, Q] in which a squash runs over M, G and Q.

        Args:
            images: [N, H', W', K].
            chunk: how many numbers of a capsule are squashed together, as `covers_chunk` allows; None for all of them.
        """
        _, _, _, O, g, _, p = self.kernel
        N, H, W, _ = images.shape
        if self.rows_are_channels:
            together = chunk or self.m * p
            return images.view(N, 1, H * W, 1, O * self.m * p // together, together)
        if chunk is None:
            return images.view(N // self.m, self.m, H * W, g, O, p)
        if p % chunk == 0:
            return images.view(N, 1, H * W, 1, g * O * p // chunk, chunk)
        return images.view(N * p // chunk, chunk // p, H * W, 1, g * O, p)


def covers_chunk(chunk: int | None, m: int, p: int) -> bool:
    """Whether a squash over runs of `chunk` numbers of m x p runs over whole rows, or over parts of one."""
    return chunk is None or p % chunk == 0 or (chunk % p == 0 and m % (chunk // p) == 0)


def make_fold(m: int, kernel: KernelShape, *, one_position: bool) -> Fold:
    """The way that is faster for these sizes.

    Args:
        m: rows of a capsule.
        kernel: the kernel's shape.
        one_position: whether the output is a single position, so that the convolution is a matrix product.
    """
    _, _, C, O, g, n, p = kernel
    small = m * C * n * m * O * p <= MOST_PRODUCTS
    return Fold(m, kernel, small and m > 1 and g == 1 and not one_position)
