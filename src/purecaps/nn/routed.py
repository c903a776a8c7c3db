"""Capsule layers that route: fully connected and convolutional, each with a procedure by name.

Capsules lie as poses [B, H, W, C, D] and activations [B, H, W, C]: a window's children are adjacent and a transform
works on the last axes, so that no layer has to move the pose numbers behind the positions and back.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from purecaps.errors import ConfigError, unknown_name
from purecaps.nn.coordinates import add_coordinates
from purecaps.nn.recompute import check_recompute, route_in_parts
from purecaps.nn.routing.capsules import Capsules, Compete, over_parents
from purecaps.nn.routing.procedure import Routing
from purecaps.nn.routing.table import create_routing
from purecaps.nn.transform import SummedTransform, Transform, check_sizes
from purecaps.nn.windows import MapCompetition, check_map, windows
from purecaps.ops.geometry import IntOrPair
from purecaps.ops.validation import as_geometry, as_pair, shape_text

COMPETITIONS = ("window", "map", "positions")
WINDOWS = ("capsules", "channels")


class FullyConnectedCapsules(nn.Module):
    """Every child votes for every parent.

    Args:
        in_caps: with `shared`, the capsule types C at a position; else all children I, which is H*W*C for a map.
        out_caps: parents, O.
        in_pose: numbers of a child's pose.
        out_pose: numbers of a parent's pose.
        routing: a name of `purecaps.nn.routing.ROUTINGS`, or a subclass of `purecaps.nn.routing.Routing`.
        matrix: poses are square matrices, multiplied as such.
        shared: all positions share the transforms of a capsule type; maps of any size are taken.
        coordinates: adds each child's place to its votes; for `shared` transforms, which forget it.
        std: standard deviation of the initial transforms.
        recompute: see `purecaps.nn.recompute.route_in_parts`, and so is `votes_at_once`.
        votes_at_once: how many numbers of votes exist at a time; None leaves it to the library.
        options: the procedure's own, such as `iterations`; see `purecaps.nn.routing.create_routing`.

    Shape:
        poses [B, ..., in_pose], with I children in the middle axes, or [B, H, W, C, in_pose] with `shared`;
        activations likewise without the last axis; -> poses [B, O, out_pose], activations [B, O].
    """

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        in_pose: int,
        out_pose: int,
        *,
        routing: str | type[Routing] = "dynamic",
        matrix: bool = False,
        shared: bool = False,
        coordinates: bool = False,
        std: float = 0.1,
        recompute: bool | str = "auto",
        votes_at_once: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        if coordinates and not shared:
            raise ConfigError(
                "coordinates: expected shared=True with it, as other transforms know their place, got False"
            )
        check_recompute(recompute, votes_at_once)
        self.transform = Transform(in_caps, out_caps, in_pose, out_pose, matrix=matrix, std=std)
        self.routing = create_routing(
            routing, children=None if shared else in_caps, parents=out_caps, pose_size=out_pose, **options
        )
        self.in_caps, self.in_pose, self.out_caps, self.out_pose = in_caps, in_pose, out_caps, out_pose
        self.shared, self.coordinates = shared, coordinates
        self.recompute, self.votes_at_once = recompute, votes_at_once

    def forward(self, poses: Tensor, activations: Tensor | None = None, *, parents: Tensor | None = None) -> Capsules:
        if self.shared:
            check_capsules(poses, activations, ("B", "H", "W"), self.in_caps, self.in_pose)
        else:
            if poses.dim() < 3:
                raise ConfigError(f"poses: expected [B, ..., {self.in_pose}], got {shape_text(poses.shape)}")
            poses = poses.flatten(1, -2)
            activations = None if activations is None else activations.flatten(1)
            check_capsules(poses, activations, ("B",), self.in_caps, self.in_pose)
        count = poses.shape[1:-1].numel()
        routed = route_in_parts(
            self._route,
            poses,
            activations,
            parents,
            votes_per_image=count * self.out_caps * self.out_pose,
            recompute=self.recompute,
            votes_at_once=self.votes_at_once,
        )
        return self.routing.finish(routed)

    def _route(self, poses: Tensor, activations: Tensor | None, parents: Tensor | None) -> Capsules:
        votes = self.transform(poses)
        if self.shared:
            votes = add_coordinates(votes, matrix=self.transform.matrix) if self.coordinates else votes
            votes = votes.flatten(1, 3)
            activations = None if activations is None else activations.flatten(1)
        return self.routing(votes, activations, parents=parents)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        shared = ", shared over positions" if self.shared else ""
        return f"{self.in_caps} -> {self.out_caps}{shared}" + (", coordinates" if self.coordinates else "")


class ConvCapsules(nn.Module):
    """Each position of the output map has parents that the children of its window vote for.

    Args:
        in_caps: capsule types at an input position, C.
        out_caps: capsule types at an output position, O.
        in_pose: numbers of a child's pose.
        out_pose: numbers of a parent's pose.
        kernel_size: of the window, an int or a (height, width) pair.
        routing: a name of `purecaps.nn.routing.ROUTINGS`, or a subclass of `purecaps.nn.routing.Routing`.
        stride: step between windows.
        padding: zero capsules, of activation 0, added on each side.
        matrix: poses are square matrices, multiplied as such.
        competition: "window": the parents of one window share its children, each window for itself. "map": the
            parents of all windows that see a child share it, as EM and variational routing have it. "positions": of
            these, the parents of one type share it, each type for itself, as the code of EM routing's authors has it.
        window: "capsules": the kh*kw*C capsules of a window are the children. "channels": the C channels are, each
            convolved by itself first, with a bias (attention routing).
        std: standard deviation of the initial transforms.
        recompute: see `purecaps.nn.recompute.route_in_parts`, and so is `votes_at_once`.
        votes_at_once: how many numbers of votes exist at a time; None leaves it to the library.
        options: the procedure's own, such as `iterations`; see `purecaps.nn.routing.create_routing`.

    Shape:
        poses [B, H, W, C, in_pose], activations [B, H, W, C] -> poses [B, H', W', O, out_pose], activations
        [B, H', W', O]. Transforms are shared over positions.
    """

    def __init__(
        self,
        in_caps: int,
        out_caps: int,
        in_pose: int,
        out_pose: int,
        kernel_size: IntOrPair = 3,
        *,
        routing: str | type[Routing] = "dynamic",
        stride: IntOrPair = 1,
        padding: IntOrPair = 0,
        matrix: bool = False,
        competition: str = "window",
        window: str = "capsules",
        std: float = 0.1,
        recompute: bool | str = "auto",
        votes_at_once: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        check_sizes(in_caps=in_caps)
        for name, value, known in (("competition", competition, COMPETITIONS), ("window", window, WINDOWS)):
            if value not in known:
                raise unknown_name(name, value, known)
        if window == "channels" and (matrix or competition != "window"):
            raise ConfigError(
                'window: expected "capsules" with matrix=True or a competition other than "window", got "channels"'
            )
        check_recompute(recompute, votes_at_once)
        self.kernel_size = kernel = as_pair(kernel_size, "kernel_size", least=1)
        self.geometry = as_geometry(stride, padding, 1)
        children = in_caps * (kernel[0] * kernel[1] if window == "capsules" else 1)
        self.transform: Transform | SummedTransform
        if window == "capsules":
            self.transform = Transform(children, out_caps, in_pose, out_pose, matrix=matrix, std=std)
        else:
            self.transform = SummedTransform(in_caps, out_caps, in_pose, out_pose, kernel, std=std)
        self.routing = create_routing(routing, children=children, parents=out_caps, pose_size=out_pose, **options)
        if self.routing.name == "attention" and competition != "window":
            raise ConfigError(
                f'competition: expected "window" with attention routing, where no parents compete, got "{competition}"'
            )
        if window == "channels" and self.routing.reads_activations:
            raise ConfigError(
                f'window: expected "capsules" with {self.routing.name} routing, which weighs children by their '
                'activations, got "channels", which have none'
            )
        if competition == "positions" and options.get("leaky"):
            raise ConfigError(
                'leaky: expected False with competition="positions", where "none of the parents" would be a type by '
                "itself and take nothing from the others, got True"
            )
        self.compete: Compete = over_parents
        if competition != "window":
            self.compete = MapCompetition(kernel, self.geometry.stride, types_compete=competition == "map")
        self.in_caps, self.in_pose, self.out_caps, self.out_pose = in_caps, in_pose, out_caps, out_pose
        self.seen_caps = children
        self.recompute, self.votes_at_once = recompute, votes_at_once

    def forward(self, poses: Tensor, activations: Tensor | None = None, *, parents: Tensor | None = None) -> Capsules:
        check_capsules(poses, activations, ("B", "H", "W"), self.in_caps, self.in_pose)
        size = (poses.shape[1], poses.shape[2])
        check_map(size, self.geometry, self.kernel_size)
        rows, columns = self.geometry.out_size(size, self.kernel_size)
        routed = route_in_parts(
            self._route,
            poses,
            activations,
            parents,
            votes_per_image=rows * columns * self.seen_caps * self.out_caps * self.out_pose,
            recompute=self.recompute,
            votes_at_once=self.votes_at_once,
        )
        return self.routing.finish(routed)

    def _route(self, poses: Tensor, activations: Tensor | None, parents: Tensor | None) -> Capsules:
        seen = None
        if isinstance(self.transform, SummedTransform):
            votes = self.transform(poses, self.geometry)
        else:
            votes = self.transform(windows(poses, self.geometry, self.kernel_size))
            if activations is not None:
                seen = windows(activations[..., None], self.geometry, self.kernel_size).squeeze(-1)
        return self.routing(votes, seen, parents=parents, compete=self.compete)  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        kernel, stride = "x".join(map(str, self.kernel_size)), self.geometry.stride
        return f"{self.in_caps} -> {self.out_caps}, {kernel} windows, stride {stride[0]}x{stride[1]}"


def check_capsules(
    poses: Tensor, activations: Tensor | None, leading: tuple[str, ...], count: int, pose_size: int
) -> None:
    """Refuses poses that are not [*leading, count, pose_size] and activations that do not fit them."""
    if poses.dim() != len(leading) + 2 or tuple(poses.shape[-2:]) != (count, pose_size):
        expected = ", ".join((*leading, str(count), str(pose_size)))
        raise ConfigError(f"poses: expected [{expected}], got {shape_text(poses.shape)}")
    if activations is not None and activations.shape != poses.shape[:-1]:
        raise ConfigError(
            f"activations: expected {shape_text(poses.shape[:-1])}, one for each pose, "
            f"got {shape_text(activations.shape)}"
        )
