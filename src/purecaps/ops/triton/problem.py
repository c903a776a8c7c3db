"""The sizes of one capsule convolution as the kernels see it, and the memory layout of what they write.

Capsules have no g here (it is 1) but an axis Z in front: that many independent convolutions, each with a kernel of
its own, run in one launch. It is what `torch.func.vmap` over networks becomes.

    u [Z, B, C, H, W, m, n]      w [Z, kh, kw, C, O, n, p]      y [Z, B, O, H', W', m, p]

Outputs are rows (z, b, y, x, m) of contiguous (O, p): the row-major refold into the next layer's capsules is then a
view where one capsule sits at each position, and its loads are as wide as (C, n) is long.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from purecaps.errors import ConfigError
from purecaps.ops.geometry import Geometry, Pair

MOST_ROWS = 2**31


@dataclass(frozen=True)
class Problem:
    """Sizes in the shape alphabet of ops/README.md; `norm` is how many rows and columns one squash spans.

    Args:
        norm: (m, p) squashes whole capsules; a divisor of each squashes chunks.
        itemsize: bytes of one number of u and w.
    """

    Z: int
    B: int
    C: int
    H: int
    W: int
    m: int
    n: int
    kh: int
    kw: int
    O: int
    p: int
    geometry: Geometry
    norm: Pair
    itemsize: int

    @property
    def out(self) -> Pair:
        """The output map (H', W')."""
        return self.geometry.out_size((self.H, self.W), (self.kh, self.kw))

    @property
    def m_pad(self) -> int:
        return power_of_two(self.m)

    @property
    def p_pad(self) -> int:
        return power_of_two(self.p)

    @property
    def norm_pad(self) -> Pair:
        """Rows and columns of one squash in a padded tile; a chunk is a power of two already."""
        rows = self.m_pad if self.norm[0] == self.m else self.norm[0]
        columns = self.p_pad if self.norm[1] == self.p else self.norm[1]
        return (rows, columns)

    @property
    def inner(self) -> int:
        """How many products are summed into one number of the output."""
        return self.kh * self.kw * self.C * self.n

    @property
    def pixels(self) -> int:
        return self.B * self.out[0] * self.out[1]

    @property
    def rows(self) -> int:
        """Rows of capsules on the larger of the two maps, m padded: what row numbers count up to."""
        return self.B * max(self.H * self.W, self.out[0] * self.out[1]) * self.m_pad

    @property
    def r_shape(self) -> tuple[int, ...]:
        """Lengths before squashing, in memory order [Z, B, H', W', m / rows, O, p / columns]."""
        return (self.Z, self.B, *self.out, self.m // self.norm[0], self.O, self.p // self.norm[1])


def power_of_two(size: int) -> int:
    """The smallest power of two that is at least `size`."""
    return 1 << max(0, size - 1).bit_length()


def problem_of(u: Tensor, w: Tensor, geometry: Geometry, norm: Pair | None = None) -> Problem:
    """The sizes of u [Z, B, C, H, W, m, n] and w [Z, kh, kw, C, O, n, p]."""
    Z, B, C, H, W, m, n = u.shape
    _, kh, kw, _, O, _, p = w.shape
    return Problem(Z, B, C, H, W, m, n, kh, kw, O, p, geometry, norm or (m, p), u.element_size())


def checked(problem: Problem) -> Problem:
    """Refuses more rows than 32-bit row numbers can count; a traced program meets this only when it runs."""
    if problem.rows >= MOST_ROWS:
        raise ConfigError(f"u: expected fewer than 2^31 rows of capsules (b, h, w, m), got {problem.rows}")
    return problem


def as_logical(rows: Tensor) -> Tensor:
    """Memory order [Z, B, H, W, m, C, n] as a view in the logical order [Z, B, C, H, W, m, n]."""
    return rows.permute(0, 1, 5, 2, 3, 4, 6)


def as_rows(capsules: Tensor) -> Tensor:
    """The inverse of `as_logical`."""
    return capsules.permute(0, 1, 3, 4, 5, 2, 6)


def memory_order(w: Tensor) -> tuple[int, ...]:
    """w's axes from the slowest in memory to the fastest; as they are where w is not laid out densely."""
    strides = w.stride()
    order = sorted(range(w.dim()), key=lambda axis: (-strides[axis], axis))
    return tuple(order) if w.permute(*order).is_contiguous() else tuple(range(w.dim()))


def stride_z(tensor: Tensor) -> int:
    """The stride of Z; 0 where Z is 1, whose stride means nothing but would hide that rows are aligned."""
    return tensor.stride(0) if tensor.shape[0] > 1 else 0


@dataclass(frozen=True)
class Columns:
    """A pair of axes, such as (C, n), as the kernels walk it: merged into one wherever the strides allow.

    Args:
        outer: size of the first axis, 1 where the two are merged.
        inner: size of the second axis.
        strides: for each tensor that has the two axes, its (outer, inner) strides.
    """

    outer: int
    inner: int
    strides: tuple[Pair, ...]


def columns(outer: int, inner: int, *strides: Pair) -> Columns:
    """The axes (outer, inner) of several tensors; one axis where each tensor lays them out as one."""
    if inner == 1:
        return Columns(1, outer, tuple((0, first) for first, _ in strides))
    if outer == 1 or all(first == inner * second for first, second in strides):
        return Columns(1, outer * inner, tuple((0, second) for _, second in strides))
    return Columns(outer, inner, strides)


def constants(u: Tensor, w: Tensor, problem: Problem) -> dict[str, int]:
    """The compile-time arguments that the kernels over (pixel, m), (o, p) and (i, j, c, n) share."""
    across = columns(problem.C, problem.n, (u.stride(2), u.stride(6)), (w.stride(3), w.stride(5)))
    (u_c, u_n), (w_c, w_n) = across.strides
    return {
        "C": across.outer,
        "N": across.inner,
        "U_B": u.stride(1),
        "U_C": u_c,
        "U_H": u.stride(3),
        "U_W": u.stride(4),
        "U_M": u.stride(5),
        "U_N": u_n,
        "W_I": w.stride(1),
        "W_J": w.stride(2),
        "W_C": w_c,
        "W_O": w.stride(4),
        "W_N": w_n,
        "W_P": w.stride(6),
        **map_constants(problem),
        **capsule_constants(problem),
    }


def map_constants(problem: Problem) -> dict[str, int]:
    geometry = problem.geometry
    return {
        "H": problem.H,
        "W": problem.W,
        "OUT_H": problem.out[0],
        "OUT_W": problem.out[1],
        "KH": problem.kh,
        "KW": problem.kw,
        "STRIDE_H": geometry.stride[0],
        "STRIDE_W": geometry.stride[1],
        "PAD_H": geometry.padding[0],
        "PAD_W": geometry.padding[1],
        "DILATION_H": geometry.dilation[0],
        "DILATION_W": geometry.dilation[1],
    }


def capsule_constants(problem: Problem) -> dict[str, int]:
    return {
        "O": problem.O,
        "P": problem.p,
        "M": problem.m,
        "M_PAD": problem.m_pad,
        "P_PAD": problem.p_pad,
        "NORM_ROWS": problem.norm_pad[0],
        "NORM_COLUMNS": problem.norm_pad[1],
        "LENGTH_ROWS": problem.m // problem.norm[0],
        "LENGTH_COLUMNS": problem.p // problem.norm[1],
    }
