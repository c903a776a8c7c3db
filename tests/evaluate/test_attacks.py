"""Attacks from first principles: where the answer is known, where the box ends, and what is refused."""

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from purecaps import create_model
from purecaps.errors import ConfigError, PurecapsError
from purecaps.evaluate import attacks
from purecaps.evaluate.attacks import (
    AttackLoss,
    by_fgsm,
    by_noise,
    by_pgd,
    by_universal,
    fgsm,
    measure,
    pgd,
    train_universal,
)
from purecaps.evaluate.attacks.gradient import input_gradient, perturb_for_training
from purecaps.evaluate.trained import TrainedModel

SIZES = [0.03, 0.1, 0.3]


class Linear(nn.Module):
    """Two classes told apart by a plane; w is the difference of their weights."""

    def __init__(self, w: torch.Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(w)

    def forward(self, images):
        score = (images * self.w).flatten(1).sum(dim=1)
        return torch.stack([score, -score], dim=1)


@pytest.fixture(scope="module")
def capsules():
    return create_model("pcapsnet2", pretrained=True)


@pytest.fixture(scope="module")
def some(digits):
    return digits.test.images.float() / 255, digits.test.labels


@pytest.fixture
def linear():
    return Linear(torch.randn(1, 5, 7, generator=torch.Generator().manual_seed(1)))


@pytest.fixture
def grey():
    images = 0.3 + 0.4 * torch.rand(9, 1, 5, 7, generator=torch.Generator().manual_seed(2))
    return images, torch.arange(9) % 2


@pytest.mark.parametrize("loss", [AttackLoss(), AttackLoss("difference"), AttackLoss("cross_entropy", 3.0)], ids=str)
def test_fgsm_moves_a_linear_models_images_straight_across_its_plane(linear, grey, loss):
    images, labels = grey
    away = torch.where(labels == 0, -1.0, 1.0).view(-1, 1, 1, 1) * linear.w.sign()
    torch.testing.assert_close(fgsm(linear, images, labels, 0.25, loss=loss), images + 0.25 * away)


def test_pgd_ends_in_the_same_corner_for_a_linear_model_wherever_it_starts(linear, grey):
    images, labels = grey
    corner = fgsm(linear, images, labels, 0.25)
    for seed in range(3):
        torch.testing.assert_close(pgd(linear, images, labels, 0.25, steps=10, seed=seed), corner)


def test_the_margin_loss_leaves_an_image_alone_that_satisfies_both_margins():
    class Lengths(nn.Module):
        def forward(self, images):
            true = images.mean(dim=(1, 2, 3))  # 0.9 and 0.2 for the images below
            return torch.stack([true, 0.05 * true], dim=1)

    images = torch.stack([torch.full((1, 3, 3), 0.9), torch.full((1, 3, 3), 0.2)])
    moved = fgsm(Lengths(), images, torch.zeros(2, dtype=torch.int64), 0.1, loss=AttackLoss("margin"))
    assert torch.equal(moved[0], images[0])
    torch.testing.assert_close(moved[1], images[1] - 0.1)
    result = measure(
        Lengths(), images, torch.zeros(2, dtype=torch.int64), by_fgsm(Lengths(), [0.1], loss=AttackLoss("margin"))
    )
    assert (result.clean.unmoved, result.points[0].unmoved) == (2, 1)


@pytest.mark.parametrize("loss", [AttackLoss(), AttackLoss("difference"), AttackLoss("margin")], ids=str)
def test_an_images_gradient_does_not_depend_on_its_batch(capsules, some, loss):
    images, labels = some
    together = input_gradient(capsules, images[:9], labels[:9], loss)
    alone = input_gradient(capsules, images[4:5], labels[4:5], loss)
    torch.testing.assert_close(together[4:5], alone, rtol=1e-3, atol=1e-4 * float(alone.abs().max()))


@pytest.mark.parametrize("eps", [*SIZES, 1.0])
@pytest.mark.parametrize("method", [fgsm, lambda *args: pgd(*args, steps=3, step_size=0.4)], ids=["fgsm", "pgd"])
def test_no_pixel_leaves_the_ball_or_the_box(capsules, some, method, eps):
    images, labels = some
    moved = method(capsules, images, labels, eps)
    assert ((moved - images).abs() <= eps + 1e-6).all()
    assert ((moved >= 0) & (moved <= 1)).all()
    assert (moved - images).abs().max() > 0.9 * eps, "it goes as far as it may somewhere"


@pytest.mark.parametrize("make", [by_fgsm, by_pgd])
def test_nothing_is_lost_at_eps_0(capsules, some, make):
    options = {"steps": 2} if make is by_pgd else {}
    result = measure(capsules, *some, make(capsules, [0.0], **options))
    assert result.points[0].correct == result.clean.correct
    assert result.points[0].unmoved == len(result) == 40


def test_accuracy_falls_with_eps_and_pgd_is_at_least_as_strong_as_fgsm(capsules, some):
    once = measure(capsules, *some, by_fgsm(capsules, SIZES))
    often = measure(capsules, *some, by_pgd(capsules, SIZES, steps=10))
    for result in (once, often):
        correct = [point.correct for point in (result.clean, *result.points)]
        assert correct == sorted(correct, reverse=True)
        assert correct[-1] < correct[0]
    assert all(strong.correct <= weak.correct for strong, weak in zip(often.points, once.points, strict=True))
    assert often.points[1].correct < once.points[1].correct


def test_pgds_start_depends_on_the_seed_and_the_image_but_not_on_the_batch(linear, grey):
    images, labels = grey

    def run(at=slice(None), **options):
        return pgd(linear, images[at], labels[at], 0.2, steps=1, step_size=0.01, **options)

    whole = run(seed=5)
    assert torch.equal(whole, run(seed=5))
    assert torch.equal(torch.cat([run(slice(0, 4), seed=5), run(slice(4, 9), seed=5, first=4)]), whole)
    assert not torch.equal(whole, run(seed=6))
    changes = whole - images
    assert (changes[2] - changes[0]).abs().max() > 0.1, "two images of one class, so only their starts differ"


def test_a_substitutes_gradient_hurts_the_target_less_than_its_own(capsules, some):
    substitute = create_model("pcapsnet3", pretrained=True)
    own = measure(capsules, *some, by_fgsm(capsules, SIZES))
    foreign = measure(capsules, *some, by_fgsm(substitute, SIZES))
    assert foreign.clean.correct == own.clean.correct
    assert foreign.points[-1].correct < foreign.clean.correct
    assert sum(point.correct for point in foreign.points) > sum(point.correct for point in own.points)


def test_numbers_do_not_depend_on_the_batch_size(capsules, some):
    results = [measure(capsules, *some, by_pgd(capsules, SIZES, steps=2), batch_size=size) for size in (7, 40)]
    assert results[0].as_dict() == results[1].as_dict()
    assert torch.equal(results[0].predictions, results[1].predictions)


def test_the_examples_are_what_the_network_was_shown(capsules, some):
    labels = some[1]
    result = measure(capsules, *some, by_fgsm(capsules, SIZES), batch_size=13)
    k = len(labels.unique())
    assert result.examples.shape == (4, k, 1, 28, 28)
    assert sorted(result.labels.tolist()) == labels.unique().tolist()
    assert torch.equal(capsules(result.examples.flatten(0, 1)).argmax(dim=1).view(4, k), result.predictions)
    assert (result.examples[1:] - result.examples[:1]).abs().amax(dim=(1, 2, 3, 4)).tolist() == pytest.approx(SIZES)


def test_a_point_knows_its_interval():
    point = attacks.Point(0.1, n=1000, correct=251, unmoved=0)
    assert point.accuracy == pytest.approx(25.1)
    # Wilson (1927) by hand: (p + z^2/2n +- z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n), p = 0.251, z = 1.96
    assert point.interval() == pytest.approx((22.51, 27.88), abs=0.01)


def test_the_models_mode_weights_and_gradients_are_left_alone(some):
    model = nn.Sequential(nn.Dropout(0.5), create_model("cnn_small")).train()
    model[1].eval()
    before = [parameter.clone() for parameter in model.parameters()]
    images, labels = some
    first, second = (fgsm(model, images, labels, 0.1) for _ in range(2))
    train_universal(model, images, labels, 0.1, steps=2, batch_size=5)
    assert torch.equal(first, second), "dropout was on"
    assert (model[0].training, model[1].training) == (True, False)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_it_works_under_a_callers_inference_mode(linear, grey):
    images, labels = grey
    expected = fgsm(linear, images, labels, 0.1)
    with torch.inference_mode():
        assert torch.equal(fgsm(linear, images * 1, labels * 1, 0.1), expected)
    with torch.no_grad():
        assert train_universal(linear, images, labels, 0.1, steps=2).shape == (1, 5, 7)


@pytest.mark.parametrize(
    ("in_shape", "base"), [((1, 28, 28), (3, 3)), ((3, 32, 32), (4, 4)), ((3, 24, 41), (2, 7)), ((2, 5, 9), (1, 1))]
)
def test_the_generator_makes_perturbations_of_the_images_shape(in_shape, base):
    generator = attacks.Generator(in_shape)
    made = generator(torch.rand(2, 100) * 2 - 1)
    assert made.shape == (2, *in_shape)
    assert (made.abs() <= 1).all()
    assert generator.start.out_features == 384 * base[0] * base[1]


def test_the_generators_maps_are_the_appendixs():
    x, sizes = torch.rand(1, 384, 3, 3), []
    for layer in attacks.Generator((1, 28, 28)).maps:
        x = layer(x)
        if isinstance(layer, nn.ConvTranspose2d):
            sizes.append(tuple(x.shape[1:]))
    assert sizes == [(192, 7, 7), (96, 14, 14), (1, 28, 28)]
    assert attacks.Generator((1, 28, 28)).start.out_features == 3456


def test_a_universal_perturbation_is_one_for_all_images_and_hurts_more_than_noise_of_its_size(capsules, digits, some):
    train = digits.train
    made = train_universal(capsules, train.images, train.labels, 0.15, steps=40, batch_size=64)
    assert made.shape == (1, 28, 28)
    assert 0.1 < made.abs().max() <= 0.15 + 1e-6
    noise = 0.15 * torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(0)).sign()
    trained, aimless = (
        measure(capsules, *some, by_universal(capsules, {0.15: change})).points[0] for change in (made, noise)
    )
    assert trained.correct < aimless.correct - 5, f"expected fewer than by noise, {aimless}, got {trained}"


def test_a_universal_perturbation_that_may_aim_at_any_class_leaves_less(capsules, digits, some):
    train, left = digits.train, {"next": 0, "any": 0}
    for aim, eps in itertools.product(left, (0.15, 0.2)):
        made = train_universal(capsules, train.images, train.labels, eps, steps=100, batch_size=64, aim=aim)
        left[aim] += measure(capsules, *some, by_universal(capsules, {eps: made})).points[0].correct
    assert left["any"] < left["next"] - 2, left


def test_the_loss_of_all_other_classes_stops_where_an_image_is_wrong_already():
    scores = torch.tensor([[4.0, 0.0, 1.0], [0.0, 30.0, 0.0]], requires_grad=True)  # right, and wrong by far
    truth = torch.tensor([0, 0])
    loss = AttackLoss(scale=2.0)
    others = 1 - torch.softmax(2 * scores, dim=1)[:, 0]
    torch.testing.assert_close(loss.of_any_other(scores, truth), -others.log().sum())
    (gradient,) = torch.autograd.grad(loss.of_any_other(scores, truth), scores)
    assert gradient[0, 0] > 1.9
    assert gradient[1].abs().max() < 1e-6
    torch.testing.assert_close(
        AttackLoss("difference").of_any_other(scores, truth), -AttackLoss("difference")(scores, truth)
    )


def test_black_pixels_that_a_perturbation_darkens_can_still_learn_to_be_lightened():
    # The clamp's own gradient is zero there, and the perturbation would stay as it began.
    change = torch.full((1, 2, 2), -0.1, requires_grad=True)
    black = torch.zeros(3, 1, 2, 2)
    moved = perturb_for_training(black, change)
    assert torch.equal(moved, black)
    (gradient,) = torch.autograd.grad(moved.sum(), change)
    assert torch.equal(gradient, torch.full((1, 2, 2), 3.0))


def test_random_signs_depend_on_the_image_and_the_seed_but_not_on_the_batch(linear, grey):
    images, labels = grey
    (whole,) = by_noise(linear, [0.1], seed=3).apply(images, labels, 0)
    (later,) = by_noise(linear, [0.1], seed=3).apply(images[2:], labels[2:], 2)
    (other,) = by_noise(linear, [0.1], seed=4).apply(images, labels, 0)
    torch.testing.assert_close((whole - images).abs(), torch.full_like(images, 0.1))
    assert torch.equal(whole[2:], later)
    assert not torch.equal(whole, other)


def test_more_starts_leave_no_more_and_the_first_is_that_of_a_single_one(capsules, some):
    images, labels = some
    options = {"steps": 2, "seed": 5, "loss": AttackLoss("difference")}
    left, found = [], []
    for restarts in (1, 4):
        moved = pgd(capsules, images, labels, 0.08, restarts=restarts, **options)
        assert ((moved - images).abs() <= 0.08 + 1e-6).all()
        found.append(moved)
        left.append(int((capsules(moved).argmax(dim=1) == labels).sum()))
    assert left[1] <= left[0]
    kept = (found[0] == found[1]).flatten(1).all(dim=1)
    assert 0 < kept.sum() < len(images), "expected some images to keep their first start and some not to"


def test_a_universal_perturbation_is_a_function_of_the_seed(linear, grey):
    torch.manual_seed(4)
    state = torch.get_rng_state()
    made = [train_universal(linear, *grey, 0.1, steps=3, seed=seed) for seed in (7, 7, 8)]
    assert torch.equal(made[0], made[1])
    assert not torch.equal(made[0], made[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_a_trained_network_is_attacked_through_all_that_comes_before_it(digits):
    packaged = TrainedModel.from_package("pcapsnet2")
    model, trained = packaged.model, TrainedModel(packaged.model, replace(packaged.info, pixel_scale=1 / 256))
    images = digits.test.images[:6]
    torch.testing.assert_close(trained.on_unit_pixels()(images.float() / 255), trained.scores(images))
    moved = fgsm(trained.on_unit_pixels(), images.float() / 255, digits.test.labels[:6], 0.1)
    expected = fgsm(model, images.float() / 256, digits.test.labels[:6], 0.1)
    assert ((moved - images / 255).sign() == (expected - images / 256).sign()).float().mean() > 0.99
    assert attacks.default_loss(trained.on_unit_pixels()) == attacks.default_loss(model) == AttackLoss(scale=20.0)
    assert attacks.default_loss(create_model("lenet")) == AttackLoss(scale=1.0)


class Rounding(nn.Module):
    def forward(self, images):
        return (images.flatten(1)[:, :3] * 10).round().long()


class Frozen(nn.Module):
    @torch.no_grad()
    def forward(self, images):
        return 2 * images.flatten(1)[:, :3]


class Blind(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.rand(3))

    def forward(self, images):
        return self.scores.expand(len(images), 3)


class Steep(nn.Module):
    def forward(self, images):
        return images.flatten(1)[:, :3].sqrt()


IMAGES, LABELS = torch.full((4, 1, 3, 3), 0.5), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Rounding(), r"model: expected scores with a gradient .* got torch.int64 scores"),
        (Frozen(), r"model: expected scores with a gradient .* got torch.float32 scores"),
        (nn.Flatten(0), r"model: expected scores \[4, K\], got \[36\]"),
    ],
    ids=["rounding", "no_grad", "flat"],
)
def test_a_model_without_gradients_is_refused(model, message):
    for attack in (fgsm, pgd, train_universal):
        with pytest.raises(ConfigError, match=message):
            attack(model, IMAGES, LABELS, 0.1, **({"batch_size": 4} if attack is train_universal else {}))


def test_scores_that_do_not_depend_on_the_images_are_refused():
    with pytest.raises(ConfigError, match="model: expected scores that depend on the images"):
        fgsm(Blind(), IMAGES, LABELS, 0.1)


def test_a_gradient_that_is_not_a_number_is_refused():
    images = IMAGES.clone()
    images[2] = 0
    with pytest.raises(PurecapsError, match="non-finite one for 1 of 4 images, the first at index 2"):
        fgsm(Steep(), images, LABELS, 0.1)


@pytest.mark.parametrize("eps", [-0.1, 1.5, float("nan"), float("inf")])
@pytest.mark.parametrize("attack", [fgsm, pgd, train_universal])
def test_an_eps_that_is_no_change_of_a_pixel_is_refused(linear, attack, eps):
    with pytest.raises(ConfigError, match=rf"eps: expected a number in \[0, 1\].*got {eps}"):
        attack(linear, IMAGES, LABELS, eps)


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES * 3, LABELS, r"images: expected pixels in \[0, 1\], got 1.5 to 1.5"),
        (IMAGES - 1, LABELS, r"images: expected pixels in \[0, 1\], got -0.5 to -0.5"),
        (IMAGES * torch.nan, LABELS, r"images: expected pixels in \[0, 1\], got nan"),
        (IMAGES[0], LABELS, r"images: .*\[B, C, H, W\].* got torch.float32 \[1, 3, 3\]"),
        (IMAGES[:0], LABELS[:0], r"images: .*at least one image, got torch.float32 \[0, 1, 3, 3\]"),
        (IMAGES.long(), LABELS, r"images: expected floating point .* got torch.int64 \[4, 1, 3, 3\]"),
        (IMAGES, LABELS[:3], r"labels: expected int64 \[4\], one for each image, got torch.int64 \[3\]"),
        (IMAGES, LABELS.float(), r"labels: expected int64 \[4\], .* got torch.float32 \[4\]"),
        (IMAGES, LABELS + 1, r"labels: expected 0 to 2 for 3 scores an image, got 1 to 3"),
        (IMAGES, LABELS - 1, r"labels: expected 0 to 2 for 3 scores an image, got -1 to 1"),
    ],
)
@pytest.mark.parametrize("attack", [fgsm, pgd])
def test_images_and_labels_that_do_not_fit_are_refused(attack, images, labels, message):
    with pytest.raises(PurecapsError, match=message):
        attack(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), images, labels, 0.1)


def test_a_substitute_of_other_classes_is_refused():
    target, source = (nn.Sequential(nn.Flatten(), nn.Linear(9, k)) for k in (3, 5))
    with pytest.raises(ConfigError, match="source: expected 3 classes, as the target has, got 5"):
        measure(target, IMAGES, LABELS, by_fgsm(source, [0.1]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: by_fgsm(model, []), "eps: expected at least one size, got none"),
        (lambda model: by_pgd(model, [0.1, 2.0]), r"eps: expected a number in \[0, 1\].*got 2.0"),
        (lambda model: pgd(model, IMAGES, LABELS, 0.1, steps=0), "steps: expected an int >= 1, got 0"),
        (lambda model: pgd(model, IMAGES, LABELS, 0.1, step_size=-1.0), "step_size: expected a finite number >= 0, got -1.0"),
        (lambda model: measure(model, IMAGES, LABELS[:2], by_fgsm(model, [0.1])), "labels: expected one for each of 4 images, got 2"),
        (lambda model: measure(model, IMAGES[:0], LABELS[:0], by_fgsm(model, [0.1])), "images: expected at least one, got none"),
        (lambda model: measure(model, IMAGES, LABELS, by_fgsm(model, [0.1]), batch_size=0), "batch_size: expected an int >= 1, got 0"),
        (lambda model: train_universal(model, IMAGES, LABELS, 0.1, steps=0), "steps, batch_size: expected ints >= 1, got 0 and 128"),
        (lambda model: train_universal(model, IMAGES, LABELS, 0.1, aim="all"), "unknown aim 'all'.*known: any, next"),
        (lambda model: pgd(model, IMAGES, LABELS, 0.1, restarts=0), "restarts: expected an int >= 1, got 0"),
        (lambda model: pgd(model, IMAGES, LABELS, 0.1, restarts=2, random_start=False), "restarts: expected 1 where random_start is False"),
        (lambda model: AttackLoss("hinge"), "unknown loss 'hinge'.*known: cross_entropy, difference, margin"),
        (lambda model: AttackLoss(scale=0.0), "scale: expected a finite number above 0, got 0.0"),
    ],
)  # fmt: skip
def test_senseless_options_are_refused(make, message):
    with pytest.raises(PurecapsError, match=message):
        make(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)))
