"""Routing a batch in parts that are computed again in the backward pass: the same numbers, in less memory."""

import operator

import pytest
import torch
from live_memory import PeakMemory, saved_bytes
from routing_cases import NAMES

from purecaps.errors import ConfigError
from purecaps.nn import ConvCapsules, FullyConnectedCapsules
from purecaps.nn.recompute import route_in_parts
from purecaps.nn.routing import Capsules


def conv_layer(routing, **options):
    torch.manual_seed(3)
    competition = "window" if routing == "attention" else "map"
    return ConvCapsules(
        2, 3, 4, 4, 3, routing=routing, stride=2, padding=1, matrix=True, competition=competition, std=0.5, **options
    )


def children(batch, *, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    poses = torch.randn(batch, 6, 7, 2, 4, generator=generator, dtype=dtype)
    activations = torch.rand(batch, 6, 7, 2, generator=generator, dtype=dtype)
    return poses.requires_grad_(), activations.requires_grad_()


def results(layer, poses, activations):
    routed = layer(poses, activations)
    generator = torch.Generator().manual_seed(9)
    total = sum((out * torch.randn(out.shape, generator=generator).to(out)).sum() for out in routed)
    learned = {name: parameter for name, parameter in layer.named_parameters() if parameter.requires_grad}
    wanted = {"poses": poses, "activations": activations, **learned}
    grads = torch.autograd.grad(total, list(wanted.values()), allow_unused=True)
    return {"poses out": routed.poses, "activations out": routed.activations, **dict(zip(wanted, grads, strict=True))}


# 3 x 4 positions of 18 children, 3 parents, 4 numbers: 2592 an image. So parts of 5 images are 5, of 2, 2 and 1, and 1.
@pytest.mark.parametrize("votes_at_once", [2**26, 2 * 2592, 1])
@pytest.mark.parametrize("name", NAMES)
def test_parts_that_are_recomputed_give_the_same_capsules_and_gradients(name, votes_at_once):
    kept = results(conv_layer(name, recompute=False).double(), *children(5))
    again = results(conv_layer(name, recompute=True, votes_at_once=votes_at_once).double(), *children(5))
    for what, expected in kept.items():
        if expected is None:
            assert again[what] is None, what
            continue
        torch.testing.assert_close(again[what], expected, rtol=1e-10, atol=1e-12, msg=lambda m, w=what: f"{w}: {m}")


def test_batch_statistics_are_those_of_the_whole_batch_and_are_counted_once():
    layers = [conv_layer("variational", recompute=flag, votes_at_once=1).double() for flag in (False, True)]
    for layer in layers:
        results(layer, *children(5))
    kept, again = (layer.routing.pose_norm for layer in layers)
    torch.testing.assert_close(kept.running_mean, again.running_mean)
    torch.testing.assert_close(kept.running_var, again.running_var)
    assert again.num_batches_tracked == 1


def test_automatic_recomputation_starts_where_votes_exceed_the_limit():
    poses, activations = children(5)
    for limit, expected in ((5 * 2592, 5), (5 * 2592 - 1, 3)):
        layer = conv_layer("em", votes_at_once=limit).double()
        sizes = []
        layer.transform.register_forward_hook(lambda module, args, out, sizes=sizes: sizes.append(len(out)))
        layer(poses, activations)
        assert sizes[0] == expected


def test_a_compiler_is_given_fewer_and_larger_parts_unless_told_otherwise():
    poses = torch.zeros(8, 2)

    def operations(votes_at_once):
        """How many products the traced function has, one for each part."""
        counted = []

        def count(graph, inputs):
            counted.append(sum(node.target is operator.mul for node in graph.graph.nodes))
            return graph.forward

        def run(poses):
            return route_in_parts(
                lambda part, activations, parents: Capsules(part * 2, part),
                poses,
                None,
                None,
                votes_per_image=2**26,
                recompute="auto",
                votes_at_once=votes_at_once,
            )

        torch.compiler.reset()
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(run, fullgraph=True, backend=count)(poses), run(poses))
        return counted

    assert operations(None) == [2], "expected parts of 2^28 numbers"
    assert operations(2**26) == [8], "expected the parts that were asked for"


def test_parts_are_of_nearly_equal_size():
    sizes = []

    def route(poses, activations, parents):
        sizes.append(len(poses))
        return poses, poses

    route_in_parts(route, torch.zeros(128, 2), None, None, votes_per_image=10, recompute=True, votes_at_once=300)
    assert sizes == [26, 26, 26, 26, 24]


def test_without_gradients_nothing_is_recomputed_and_parts_still_bound_memory():
    layer = conv_layer("em", recompute=True, votes_at_once=2592)
    runs = []
    layer.transform.register_forward_hook(lambda module, args, out: runs.append(len(out)))
    with torch.no_grad():
        layer(*children(4, dtype=torch.float32))
    assert runs == [1, 1, 1, 1]


def test_an_empty_batch_gives_empty_capsules():
    poses, activations = children(0, dtype=torch.float32)
    routed = conv_layer("em", recompute=True)(poses, activations)
    assert routed.poses.shape == (0, 3, 4, 3, 4)
    assert routed.activations.shape == (0, 3, 4, 3)


def measured(make, poses, activations):
    """Bytes saved and peak bytes, with everything kept and with parts recomputed."""
    found = []
    for recompute in (False, True):
        layer = make(recompute)
        saved, _ = saved_bytes(lambda layer=layer: layer(poses, activations))
        with PeakMemory() as memory:
            routed = layer(poses, activations)
            (routed.poses.square().sum() + routed.activations.sum()).backward()
        found.append((saved, memory.peak))
    return found


def test_em_keeps_no_votes_and_its_peak_is_that_of_one_part():
    """The middle layer of the EM network in miniature; docs/zoo.md extrapolates from the same ratios."""
    batch, image = 8, 9 * 72 * 8 * 16
    poses = torch.randn(batch, 7, 7, 8, 16, requires_grad=True)
    activations = torch.rand(batch, 7, 7, 8)
    (kept, peak), (kept_again, peak_again) = measured(
        lambda recompute: ConvCapsules(
            8,
            8,
            16,
            16,
            3,
            stride=2,
            routing="em",
            matrix=True,
            competition="map",
            recompute=recompute,
            votes_at_once=image,
        ),
        poses,
        activations,
    )
    votes = 4 * batch * image
    assert 7 < kept / votes < 8.5, f"expected the bytes of 7 to 8.5 votes, got {kept / votes:.2f}"
    assert kept_again == 4 * (poses.numel() + activations.numel()), "expected the layer's input and nothing else"
    assert kept > 30 * kept_again
    assert peak_again < peak / 4, f"expected less than a quarter of {peak} bytes, got {peak_again}"


def test_dynamic_routing_keeps_its_votes_once_and_none_when_recomputed():
    batch, image = 64, 96 * 10 * 16
    poses = torch.randn(batch, 96, 8, requires_grad=True)
    (kept, peak), (kept_again, peak_again) = measured(
        lambda recompute: FullyConnectedCapsules(96, 10, 8, 16, recompute=recompute, votes_at_once=image), poses, None
    )
    votes = 4 * batch * image
    weight = 4 * 96 * 10 * 8 * 16
    assert kept < 2.5 * votes + weight, f"expected the bytes of fewer than 2.5 votes, got {(kept - weight) / votes:.2f}"
    assert kept_again == 4 * poses.numel(), "expected the layer's input and nothing else"
    assert peak_again < peak / 2, f"expected less than half of {peak} bytes, got {peak_again}"


def test_a_recomputed_layer_can_be_traced_whole():
    poses = children(2, dtype=torch.float32)[0]
    torch.manual_seed(3)
    layer = FullyConnectedCapsules(84, 3, 4, 5, iterations=2, recompute=True, votes_at_once=84 * 15)

    def grads(run):
        return torch.autograd.grad(run(poses).poses.square().sum(), [poses, layer.transform.weight])

    torch.compiler.reset()
    traced = grads(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    for got, expected in zip(traced, grads(layer), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_a_recomputed_training_step_can_be_captured_in_a_cuda_graph(name):
    layer = conv_layer(name, recompute=True, votes_at_once=2592).cuda()
    poses, activations = (t.detach().cuda().requires_grad_() for t in children(4, dtype=torch.float32))

    def step():
        poses.grad = None
        routed = layer(poses, activations)
        (routed.poses.square().sum() + routed.activations.sum()).backward()

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    expected = poses.grad.clone()
    poses.grad = None
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    poses.grad.zero_()
    graph.replay()
    torch.testing.assert_close(poses.grad, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recompute": "always"}, r'recompute: expected "auto", True or False, got \'always\''),
        ({"recompute": 0}, r'recompute: expected "auto", True or False, got 0'),
        ({"recompute": 1}, r'recompute: expected "auto", True or False, got 1'),
        ({"votes_at_once": 0}, r"votes_at_once: expected an int >= 1, or None, got 0"),
    ],
)
def test_wrong_options_are_refused_by_name(options, message):
    with pytest.raises(ConfigError, match=message):
        conv_layer("em", **options)
