"""Layers that route: votes, windows, competition over the map, coordinates, and the first capsules."""

import itertools

import pytest
import torch
from routing_cases import NAMES

from purecaps.errors import ConfigError, UnknownNameError
from purecaps.nn import ConvCapsules, FullyConnectedCapsules, PrimaryCapsules, to_capsules
from purecaps.nn.coordinates import add_coordinates
from purecaps.nn.routing import Capsules, Routing, capsule_length, over_parents
from purecaps.nn.routing.attention import AttentionRouting
from purecaps.nn.routing.dynamic import DynamicRouting
from purecaps.nn.transform import SummedTransform, Transform
from purecaps.nn.windows import MapCompetition, windows
from purecaps.ops.geometry import Geometry

PER_CHILD = ("attention", "self_attention")


def draw(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def children(*shape, seed=0):
    """Poses [*shape] and activations [*shape[:-1]]."""
    return draw(*shape, seed=seed), draw(*shape[:-1], seed=seed + 1).sigmoid()


def conv_capsules(name, *args, **options):
    torch.manual_seed(2)
    return ConvCapsules(*args, routing=name, std=0.5, **options).double().eval()


def test_vector_votes_are_rows_times_the_pairs_transform():
    layer, poses = Transform(3, 2, 4, 5).double(), draw(2, 3, 4)
    votes = layer(poses)
    for b, i, o in itertools.product(range(2), range(3), range(2)):
        torch.testing.assert_close(votes[b, i, o], poses[b, i] @ layer.weight[i, o])


def test_matrix_votes_are_matrix_products_row_major():
    layer, poses = Transform(3, 2, 9, 9, matrix=True).double(), draw(2, 3, 9)
    assert layer.weight.shape == (3, 2, 3, 3)
    votes = layer(poses)
    for b, i, o in itertools.product(range(2), range(3), range(2)):
        torch.testing.assert_close(votes[b, i, o].view(3, 3), poses[b, i].view(3, 3) @ layer.weight[i, o])


def test_summed_votes_are_a_channels_convolution_with_a_bias():
    layer = SummedTransform(2, 3, 4, 5, (2, 3)).double()
    layer.bias.data.copy_(draw(2, 3, 5))
    poses = draw(2, 5, 6, 2, 4)
    votes = layer(poses, Geometry(stride=(2, 1)))
    assert votes.shape == (2, 2, 4, 2, 3, 5)
    expected = layer.bias[1, 2].clone()
    for i, j in itertools.product(range(2), range(3)):
        expected = expected + layer.weight[1, 2, :, :, i, j] @ poses[0, 2 * 1 + i, 3 + j, 1]
    torch.testing.assert_close(votes[0, 1, 3, 1, 2], expected)


def test_a_window_lists_its_children_by_row_column_and_channel():
    capsules = torch.arange(5 * 4 * 2.0).view(1, 5, 4, 2, 1)
    seen = windows(capsules, Geometry(stride=(2, 1)), (3, 2))
    assert seen.shape == (1, 2, 3, 12, 1)
    assert torch.equal(seen[0, 1, 2, :, 0], capsules[0, 2:5, 2:4].flatten())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("matrix", [True, False])
def test_a_convolution_of_one_window_is_a_fully_connected_layer(name, matrix):
    poses, activations = children(3, 3, 2, 5, 4)
    conv = conv_capsules(name, 5, 2, 4, 4, (3, 2), matrix=matrix)
    full = FullyConnectedCapsules(30, 2, 4, 4, routing=name, matrix=matrix).double().eval()
    full.load_state_dict(conv.state_dict())
    for got, expected in zip(conv(poses, activations), full(poses, activations), strict=True):
        torch.testing.assert_close(got.flatten(0, 2), expected)


@pytest.mark.parametrize("name", NAMES)
def test_each_position_routes_its_own_window(name):
    poses, activations = children(2, 7, 5, 3, 4)
    layer = conv_capsules(name, 3, 2, 4, 4, 3, stride=2, matrix=True)
    whole = layer(poses, activations)
    assert whole.poses.shape == (2, 3, 2, 2, 4)
    one = layer(poses[:, 4:7, 2:5], activations[:, 4:7, 2:5])
    torch.testing.assert_close(whole.poses[:, 2, 1], one.poses[:, 0, 0])
    torch.testing.assert_close(whole.activations[:, 2, 1], one.activations[:, 0, 0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("batch", "height", "width"), [(1, 3, 3), (1, 4, 9), (5, 7, 3)])
def test_one_layer_takes_every_batch_and_map_size(name, batch, height, width):
    competition = "window" if name == "attention" else "map"
    layer = conv_capsules(name, 3, 2, 4, 4, 3, competition=competition)
    routed = layer(*children(batch, height, width, 3, 4))
    assert routed.poses.shape == (batch, height - 2, width - 2, 2, 4)
    assert routed.activations.shape == (batch, height - 2, width - 2, 2)
    if name not in PER_CHILD:
        full = FullyConnectedCapsules(2, 5, 4, 6, routing=name, shared=True, coordinates=True).double().eval()
        last = full(*routed)
        assert (last.poses.shape, last.activations.shape) == ((batch, 5, 6), (batch, 5))


@pytest.mark.parametrize("name", NAMES)
def test_images_of_a_batch_do_not_meet(name):
    poses, activations = children(3, 4, 4, 2, 4)
    competition = "window" if name == "attention" else "map"
    layer = conv_capsules(name, 2, 2, 4, 4, 3, competition=competition)
    for got, expected in zip(layer(poses[1:2], activations[1:2]), layer(poses, activations), strict=True):
        torch.testing.assert_close(got, expected[1:2])


@pytest.mark.parametrize(("kernel", "stride"), [((3, 3), (1, 1)), ((3, 2), (2, 1)), ((2, 3), (2, 4))])
def test_a_child_is_shared_among_the_parents_of_all_windows_that_see_it(kernel, stride):
    rows, columns, C, O = 3, 4, 2, 3
    logits = 3 * draw(2, rows, columns, kernel[0] * kernel[1] * C, O)
    found = MapCompetition(kernel, stride)(logits).exp()
    by_child = {}
    for y, x, i, j, c in itertools.product(range(rows), range(columns), range(kernel[0]), range(kernel[1]), range(C)):
        place = (y * stride[0] + i, x * stride[1] + j, c)
        by_child.setdefault(place, []).append((y, x, (i * kernel[1] + j) * C + c))
    assert max(map(len, by_child.values())) > 1 or stride == (2, 4)
    for seen in by_child.values():
        mine = torch.cat([logits[:, y, x, n] for y, x, n in seen], dim=-1)
        got = torch.cat([found[:, y, x, n] for y, x, n in seen], dim=-1)
        torch.testing.assert_close(got, mine.softmax(dim=-1))


def test_types_that_do_not_compete_share_a_child_each_for_itself():
    logits = 3 * draw(2, 3, 4, 9 * 2, 3)
    found = MapCompetition((3, 3), (2, 1), types_compete=False)(logits)
    for parent in range(3):
        alone = logits[..., parent : parent + 1]
        torch.testing.assert_close(found[..., parent : parent + 1], MapCompetition((3, 3), (2, 1))(alone))


def test_competition_over_the_map_of_one_window_is_that_of_the_window():
    logits = draw(2, 1, 1, 12, 3)
    torch.testing.assert_close(MapCompetition((3, 2), (1, 1))(logits), over_parents(logits))


def test_competition_over_the_map_is_exact_for_huge_logits_and_has_gradients():
    compete = MapCompetition((3, 3), (2, 2))
    logits = (1e5 * draw(1, 2, 2, 9, 2)).requires_grad_()
    total = compete(logits)
    total.exp().square().sum().backward()
    assert torch.isfinite(total).all()
    assert torch.isfinite(logits.grad).all()
    small = draw(1, 2, 2, 9, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: compete(x).exp(), small)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "attention"])
def test_a_layer_competes_as_it_is_told(name):
    poses, activations = children(2, 5, 5, 2, 4)
    kernel, geometry = (3, 3), Geometry(stride=(2, 2))
    by_type = MapCompetition(kernel, geometry.stride, types_compete=False)
    of_map = MapCompetition(kernel, geometry.stride)
    for competition, compete in (("window", over_parents), ("positions", by_type), ("map", of_map)):
        layer = conv_capsules(name, 2, 3, 4, 4, kernel, stride=2, competition=competition)
        votes = layer.transform(windows(poses, geometry, kernel))
        seen = windows(activations[..., None], geometry, kernel)[..., 0]
        expected = layer.routing.finish(layer.routing(votes, seen, compete=compete))
        torch.testing.assert_close(layer(poses, activations).poses, expected.poses)
    other = conv_capsules(name, 2, 3, 4, 4, kernel, stride=2)(poses, activations)
    assert not torch.allclose(other.poses, expected.poses)


def test_padding_adds_children_that_are_not_there():
    poses, activations = children(2, 3, 4, 2, 4)
    layer = conv_capsules("em", 2, 3, 4, 4, 3, padding=(1, 0), matrix=True, competition="map")
    padded = torch.zeros(2, 5, 4, 2, 4).double(), torch.zeros(2, 5, 4, 2).double()
    padded[0][:, 1:4], padded[1][:, 1:4] = poses, activations
    bare = conv_capsules("em", 2, 3, 4, 4, 3, matrix=True, competition="map")
    for got, expected in zip(layer(poses, activations), bare(*padded), strict=True):
        torch.testing.assert_close(got, expected)


def test_coordinates_are_the_childs_place_as_a_fraction():
    votes = torch.zeros(1, 4, 5, 2, 3, 16)
    placed = add_coordinates(votes, matrix=True)
    row, column = (1 + 0.5) / 4, (3 + 0.5) / 5
    expected = torch.zeros(4, 4)
    expected[0, 3], expected[1, 3] = row, column
    assert torch.equal(placed[0, 1, 3, 1, 2].view(4, 4), expected)
    vector = add_coordinates(torch.zeros(1, 4, 5, 2, 3, 6), matrix=False)[0, 1, 3, 0, 0]
    assert torch.equal(vector, torch.tensor([row, column, 0, 0, 0, 0]))


@pytest.mark.parametrize("coordinates", [True, False])
def test_shared_transforms_know_a_childs_place_by_its_coordinates_alone(coordinates):
    torch.manual_seed(4)
    layer = FullyConnectedCapsules(
        2, 3, 4, 4, routing="em", shared=True, matrix=True, coordinates=coordinates
    ).double()  # fmt: skip
    pose, activation = children(1, 2, 4)

    def alone_at(row, column):
        poses, activations = torch.zeros(1, 4, 6, 2, 4).double(), torch.zeros(1, 4, 6, 2).double()
        poses[:, row, column], activations[:, row, column] = pose, activation
        return layer(poses, activations).poses[0]

    moved = alone_at(2, 5) - alone_at(1, 2)
    expected = torch.zeros_like(moved)
    if coordinates:
        expected[:, 1], expected[:, 3] = 1 / 4, 3 / 6
    torch.testing.assert_close(moved, expected)


def test_adjacent_channels_are_a_capsules_numbers():
    maps = torch.arange(12.0)[None, :, None, None].expand(2, 12, 3, 5)
    poses = to_capsules(maps, 4)
    assert poses.shape == (2, 3, 5, 3, 4)
    assert poses[1, 2, 4].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]


def test_primary_vectors_are_squashed_and_their_length_is_the_activation():
    layer = PrimaryCapsules(3, 4, 8, 3, stride=2, padding=1)
    capsules = layer(torch.randn(2, 3, 9, 7))
    assert capsules.poses.shape == (2, 5, 4, 4, 8)
    raw = to_capsules(layer.conv(torch.zeros(1, 3, 1, 1)), 8)
    r = raw.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(layer(torch.zeros(1, 3, 1, 1)).poses, raw * r / (1 + r * r))
    torch.testing.assert_close(capsules.activations, capsules.poses.norm(dim=-1))
    assert capsules.activations.max() < 1


def test_primary_matrices_have_activations_of_their_own():
    layer = PrimaryCapsules(3, 4, 16, activation="logistic")
    maps = torch.randn(2, 3, 5, 7)
    capsules = layer(maps)
    convolved = layer.conv(maps)
    assert convolved.shape[1] == 4 * 17
    torch.testing.assert_close(capsules.poses, to_capsules(convolved[:, :64], 16))
    torch.testing.assert_close(capsules.activations, convolved[:, 64:].sigmoid().permute(0, 2, 3, 1))


def test_primary_capsules_normalise_each_type_over_the_batch():
    layer = PrimaryCapsules(3, 4, 9, activation="logistic", batch_norm=True)
    capsules = layer(5 + 3 * torch.randn(6, 3, 5, 7))
    torch.testing.assert_close(capsules.poses.mean(dim=(0, 1, 2, 4)), torch.zeros(4), atol=1e-5, rtol=0)
    logits = capsules.activations.logit()
    torch.testing.assert_close(logits.std(dim=(0, 1, 2), correction=0), torch.ones(4), atol=1e-2, rtol=0)


def test_variational_capsules_are_normalised_by_parent_type():
    layer = ConvCapsules(2, 3, 4, 4, 3, routing="variational", matrix=True)
    routed = layer(*(t.float() for t in children(6, 5, 5, 2, 4)))
    torch.testing.assert_close(routed.poses.mean(dim=(0, 1, 2, 4)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(routed.activations.logit().mean(dim=(0, 1, 2)), torch.zeros(3), atol=1e-4, rtol=0)


def test_concurrent_iterations_of_one_layer_equal_sequential_ones():
    poses, _ = children(2, 4, 4, 2, 4)
    many = conv_capsules("inverted_dot_product", 2, 3, 4, 4, 3, iterations=3)
    once = conv_capsules("inverted_dot_product", 2, 3, 4, 4, 3, iterations=1)
    parents = None
    for _ in range(3):
        parents = once(poses, parents=parents).poses
    torch.testing.assert_close(parents, many(poses).poses)


@pytest.mark.parametrize("name", NAMES)
def test_layers_run_under_autocast_with_capsules_in_float32(name):
    poses, activations = (t.float() for t in children(2, 5, 5, 2, 4))
    layer = conv_capsules(name, 2, 3, 4, 4, 3, matrix=True).float()
    votes = []
    layer.transform.register_forward_hook(lambda module, args, out: votes.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routed = layer(poses, activations)
        (routed.poses.square().sum() + routed.activations.sum()).backward()
    assert votes == [torch.bfloat16]
    assert routed.poses.dtype == routed.activations.dtype == torch.float32
    assert torch.isfinite(layer.transform.weight.grad).all()
    torch.testing.assert_close(routed.poses, layer(poses, activations).poses, rtol=0.1, atol=0.1)


def test_one_seed_gives_one_transform():
    drawn = []
    for _ in range(2):
        layer = Transform(5, 4, 3, 2)
        layer.reset_parameters(0.1, torch.Generator().manual_seed(7))
        drawn.append(layer.weight.clone())
    assert torch.equal(*drawn)
    assert drawn[0].std().item() == pytest.approx(0.1, rel=0.2)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ConvCapsules(2, 3, 4, 4, routing="en"), UnknownNameError, r"unknown routing 'en': did you mean em"),
        (lambda: ConvCapsules(2, 3, 4, 4, iterations=0), ConfigError, r"iterations: expected an int >= 1, got 0"),
        (lambda: ConvCapsules(0, 3, 4, 4), ConfigError, r"in_caps: expected an int >= 1, got 0"),
        (lambda: ConvCapsules(2, 3, 5, 5, matrix=True), ConfigError, r"in_pose: expected a square number.*got in_pose = 5, out_pose = 5"),
        (lambda: ConvCapsules(2, 3, 4, 9, matrix=True), ConfigError, r"in_pose: .* the same as out_pose.*got in_pose = 4, out_pose = 9"),
        (lambda: ConvCapsules(2, 3, 4, 4, competition="maps"), UnknownNameError, r"unknown competition 'maps': did you mean map"),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channel"), UnknownNameError, r"unknown window 'channel': did you mean channels"),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channels", routing="em"), ConfigError, r'window: expected "capsules" with em routing.* got "channels"'),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channels", routing="variational"), ConfigError, r'window: expected "capsules" with variational routing.* got "channels"'),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channels", routing="frms"), ConfigError, r'window: expected "capsules" with frms routing.* got "channels"'),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channels", routing="frem"), ConfigError, r'window: expected "capsules" with frem routing.* got "channels"'),
        (lambda: ConvCapsules(2, 3, 4, 4, competition="positions", leaky=True), ConfigError, r'leaky: expected False with competition="positions".* got True'),
        (lambda: ConvCapsules(2, 3, 4, 4, window="channels", competition="map"), ConfigError, r'window: expected "capsules" with .* got "channels"'),
        (lambda: ConvCapsules(2, 3, 4, 4, routing="attention", competition="map"), ConfigError, r'competition: expected "window".* got "map"'),
        (lambda: FullyConnectedCapsules(2, 3, 4, 4, coordinates=True), ConfigError, r"coordinates: expected shared=True with it.* got False"),
        (lambda: FullyConnectedCapsules(2, 3, 4, 4, routing="attention", shared=True), ConfigError, r"children: expected a fixed number, as attention"),
        (lambda: FullyConnectedCapsules(6, 3, 4, 4)(torch.zeros(2, 5, 4)), ConfigError, r"poses: expected \[B, 6, 4\], got \[2, 5, 4\]"),
        (lambda: FullyConnectedCapsules(6, 3, 4, 4)(torch.zeros(2, 4)), ConfigError, r"poses: expected \[B, ..., 4\], got \[2, 4\]"),
        (lambda: FullyConnectedCapsules(6, 3, 4, 4, shared=True)(torch.zeros(2, 6, 4)), ConfigError, r"poses: expected \[B, H, W, 6, 4\], got \[2, 6, 4\]"),
        (lambda: ConvCapsules(2, 3, 4, 4)(torch.zeros(1, 5, 5, 2, 3)), ConfigError, r"poses: expected \[B, H, W, 2, 4\], got \[1, 5, 5, 2, 3\]"),
        (lambda: ConvCapsules(2, 3, 4, 4)(torch.zeros(1, 2, 5, 2, 4)), ConfigError, r"poses: expected a map of at least 3x3 .* got 2x5"),
        (lambda: ConvCapsules(2, 3, 4, 4)(torch.zeros(1, 5, 5, 2, 4), torch.zeros(1, 5, 5)), ConfigError, r"activations: expected \[1, 5, 5, 2\], .* got \[1, 5, 5\]"),
        (lambda: PrimaryCapsules(3, 4, 8, activation="sigmoid"), UnknownNameError, r"unknown activation 'sigmoid': .*length, logistic, none"),
        (lambda: PrimaryCapsules(3, 4, 0), ConfigError, r"pose_size: expected an int >= 1, got 0"),
        (lambda: to_capsules(torch.zeros(1, 10, 2, 2), 4), ConfigError, r"maps: expected \[B, C\*D, H, W\] with D = 4, got \[1, 10, 2, 2\]"),
        (lambda: add_coordinates(torch.zeros(2, 2, 1, 1, 1), matrix=False), ConfigError, r"votes: expected poses of at least 2 numbers .* got 1"),
        (lambda: add_coordinates(torch.zeros(3, 4), matrix=True), ConfigError, r"votes: expected \[..., H, W, C, O, D\], got \[3, 4\]"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()


class Sum(Routing):
    """A procedure of one's own that learns nothing."""

    def route(self, votes, activations, parents, compete):
        poses = votes.sum(dim=-3)
        return Capsules(poses, capsule_length(poses))


class Warm(DynamicRouting):
    """A procedure of one's own with another's options."""

    def __init__(self, children, parents, pose_size, **options):
        super().__init__(children, parents, pose_size, **options)


def test_a_layer_takes_a_procedure_of_ones_own():
    poses, _ = children(2, 8, 4)
    layer = FullyConnectedCapsules(8, 3, 4, 5, routing=Sum).double()
    torch.testing.assert_close(layer(poses).poses, layer.transform(poses).sum(dim=1))
    maps, _ = children(2, 5, 6, 3, 4)
    layer = ConvCapsules(3, 2, 4, 5, 3, routing=Sum).double()
    torch.testing.assert_close(layer(maps).poses, layer.transform(windows(maps, layer.geometry, (3, 3))).sum(dim=3))


@pytest.mark.parametrize("routing", [DynamicRouting, Warm])
def test_a_procedure_given_as_a_class_takes_its_options(routing):
    poses, _ = children(2, 8, 4)
    layers = [FullyConnectedCapsules(8, 3, 4, 5, routing=each, iterations=2).double() for each in (routing, "dynamic")]
    layers[1].load_state_dict(layers[0].state_dict())
    assert torch.equal(layers[0](poses).poses, layers[1](poses).poses)


def test_a_class_is_refused_where_its_name_is():
    with pytest.raises(ConfigError, match=r'competition: expected "window" with attention routing'):
        ConvCapsules(3, 2, 4, 5, 3, routing=AttentionRouting, competition="map")
