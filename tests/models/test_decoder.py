import pytest
import torch

from purecaps.errors import ConfigError
from purecaps.models.decoder import Decoder
from purecaps.models.guided import is_guided

CLASSES, SIZE, SHAPE = 5, 3, (1, 7, 9)


def make(**options):
    torch.manual_seed(0)
    return Decoder(CLASSES, SIZE, SHAPE, **{"widths": (11, 13), **options})


def count(decoder):
    return sum(parameter.numel() for parameter in decoder.parameters())


def capsules(batch=4):
    return torch.randn(batch, CLASSES, SIZE, generator=torch.Generator().manual_seed(1))


def test_the_default_is_sabours_decoder():
    # 160*512 + 512 + 512*1024 + 1024 + 1024*784 + 784
    assert count(Decoder(10, 16, (1, 28, 28))) == 1_411_344


def test_a_dense_decoder_hands_the_second_layers_input_on():
    dense = Decoder(10, 16, (1, 28, 28), widths=(512, 512, 1024), dense=True)
    assert [layer.in_features for layer in dense.layers] == [160, 512, 1024, 1024]
    small = make(dense=True)
    with torch.no_grad():
        small.layers[1].weight.zero_()
        small.layers[1].bias.zero_()
    one, other = (
        small(capsules(), torch.zeros(4, dtype=torch.int64)),
        small(capsules(), torch.ones(4, dtype=torch.int64)),
    )
    assert not torch.equal(one, other), "expected the first hidden layer to reach the pixels past the second"


def test_only_the_named_class_decides_the_reconstruction():
    decoder, poses, labels = make(), capsules(), torch.tensor([4, 0, 2, 1])
    before = decoder(poses, labels)
    assert before.shape == (4, *SHAPE)
    changed = poses.clone()
    changed[torch.arange(4), (labels + 1) % CLASSES] += 3
    torch.testing.assert_close(decoder(changed, labels), before, rtol=0, atol=0)
    changed[torch.arange(4), labels] += 3
    assert not torch.allclose(decoder(changed, labels), before)


def test_without_labels_the_longest_capsule_is_taken():
    decoder, poses = make(), capsules()
    longest = torch.tensor([3, 3, 0, 1])
    poses[torch.arange(4), longest] *= 100
    torch.testing.assert_close(decoder(poses), decoder(poses, longest), rtol=0, atol=0)


def test_the_penalty_is_the_mean_of_summed_squares_times_the_factor():
    decoder, poses, labels = make(factor=0.25), capsules(3), torch.tensor([1, 0, 4])
    images = torch.rand(3, *SHAPE)
    found, penalty = decoder.penalised(poses, labels, images)
    expected = 0.25 * sum(((found[each] - images[each]) ** 2).sum() for each in range(3)) / 3
    torch.testing.assert_close(penalty, expected)


def test_a_decoder_learns_to_paint_two_pictures():
    decoder, labels = make(factor=1.0), torch.tensor([0, 1])
    poses, images = torch.ones(2, CLASSES, SIZE), torch.rand(2, *SHAPE)
    optimiser = torch.optim.Adam(decoder.parameters(), lr=0.01)
    first = decoder.penalised(poses, labels, images).penalty.item()
    for _ in range(200):
        optimiser.zero_grad()
        decoder.penalised(poses, labels, images).penalty.backward()
        optimiser.step()
    assert decoder.penalised(poses, labels, images).penalty.item() < 0.05 * first


def test_gradients_are_finite_where_all_capsules_are_zero():
    poses = torch.zeros(2, CLASSES, SIZE, requires_grad=True)
    make().penalised(poses, None, torch.rand(2, *SHAPE)).penalty.backward()
    assert bool(poses.grad.isfinite().all())


def test_several_decoders_run_side_by_side_as_each_does_alone():
    decoders = [make() for _ in range(2)]
    with torch.no_grad():
        decoders[1].layers[0].weight.mul_(-1)
    poses, labels, images = torch.randn(2, 4, CLASSES, SIZE), torch.randint(CLASSES, (2, 4)), torch.rand(2, 4, *SHAPE)
    weights, _ = torch.func.stack_module_state(decoders)

    class Penalty(torch.nn.Module):
        def __init__(self, decoder):
            super().__init__()
            self.decoder = decoder

        def forward(self, *arguments):
            return self.decoder.penalised(*arguments).penalty

    def one(weights, *arguments):
        named = {f"decoder.{name}": tensor for name, tensor in weights.items()}
        return torch.func.functional_call(Penalty(decoders[0]), named, arguments)

    together = torch.func.vmap(one)(weights, poses, labels, images)
    alone = [decoders[each].penalised(poses[each], labels[each], images[each]).penalty for each in range(2)]
    torch.testing.assert_close(together, torch.stack(alone))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"widths": ()}, r"widths: expected one or more ints >= 1, got \[\]"),
        ({"widths": (4, 0)}, r"widths: .* got \[4, 0\]"),
        ({"widths": (4,), "dense": True}, r"widths: expected two or more .* got \[4\]"),
        ({"factor": -1.0}, r"factor: expected a number >= 0, got -1.0"),
    ],
)
def test_decoders_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        make(**options)


def test_capsules_and_images_of_another_shape_are_refused():
    with pytest.raises(ConfigError, match=r"capsules: expected \[B, 5, 3\], got \[4, 3, 5\]"):
        make()(capsules().transpose(1, 2))
    with pytest.raises(ConfigError, match=r"images: expected \[4, 1, 7, 9\], got \[4, 1, 9, 7\]"):
        make().penalised(capsules(), None, torch.rand(4, 1, 9, 7))


def test_a_network_is_guided_where_it_has_the_method():
    class WithHook(torch.nn.Module):
        def guided(self, images, labels):
            raise AssertionError

    assert is_guided(WithHook())
    assert not is_guided(torch.nn.Linear(1, 1))
