"""The optimisers a recipe can name: a step of each by hand, and going on exactly."""

import pytest
import torch
from tiny import assert_same_state

from purecaps import create_model
from purecaps.models.stack import ModelStack
from purecaps.train import Recipe, RunConfig, train
from purecaps.train.muon import orthogonal, orthogonal_step
from purecaps.train.optimiser import make_optimiser
from purecaps.train.recipe import OPTIMISERS

SHORT = Recipe(
    steps=12,
    batch_size=16,
    lr=0.01,
    schedule="exponential",
    step_every=5,
    min_lr=0.004,
    loss="spread",
    weight_decay=0.01,
    augment=("shift:2", "brightness:0.1", "contrast:0.5"),
    log_every=2,
    checkpoint_every=4,
)


def stepped(gradients, **options):
    """What a few steps with these gradients make of [1.0, -2.0]."""
    model = torch.nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[1.0, -2.0]]))
    optimiser = make_optimiser(model, Recipe(lr=0.1, **options))
    for gradient in gradients:
        model.weight.grad = torch.tensor([gradient])
        optimiser.step()
    return model.weight.detach().flatten().tolist()


def test_adam_adds_weight_decay_to_the_gradient_and_adamw_does_not():
    # Adam's first step is the sign of its gradient; the decay of 0.5 * -2 turns the second one's sign.
    first, second = stepped([[0.3, 0.4]], optimiser="adam", weight_decay=0.5, adam_eps=1e-12)
    assert (first, second) == pytest.approx((1 - 0.1, -2 + 0.1))
    first, second = stepped([[0.3, 0.4]], optimiser="adamw", weight_decay=0.5, adam_eps=1e-12)
    assert (first, second) == pytest.approx((1 * 0.95 - 0.1, -2 * 0.95 - 0.1))


def test_rmsprop_divides_by_the_root_of_the_averaged_square():
    value, square = 1.0, 0.0
    for gradient in (0.3, -0.2):
        decayed = gradient + 0.5 * value
        square = 0.9 * square + 0.1 * decayed**2
        value -= 0.1 * decayed / (square**0.5 + 0.01)
    options = {"optimiser": "rmsprop", "beta2": 0.9, "adam_eps": 0.01, "weight_decay": 0.5}
    assert stepped([[0.3, 0.0], [-0.2, 0.0]], **options)[0] == pytest.approx(value)


def test_sgd_gathers_momentum_without_nesterov():
    value, momentum = 1.0, 0.0
    for gradient in (0.3, -0.2):
        momentum = 0.8 * momentum + gradient + 0.5 * value
        value -= 0.1 * momentum
    options = {"optimiser": "sgd", "beta1": 0.8, "weight_decay": 0.5}
    assert stepped([[0.3, 0.0], [-0.2, 0.0]], **options)[0] == pytest.approx(value)


def test_muon_steps_alike_in_every_direction_of_a_matrix():
    gradient = torch.randn(6, 40, generator=torch.Generator().manual_seed(0))
    left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
    uneven = left @ torch.diag(sizes * torch.logspace(0, -2, 6)) @ right  # one direction a hundred times another
    step = orthogonal_step(uneven)
    lengths = torch.linalg.svdvals(step) / (0.2 * 40**0.5)
    assert ((lengths > 0.65) & (lengths < 1.25)).all(), lengths
    # The same directions: nothing is turned.
    torch.testing.assert_close(left.T @ step @ right.T / (0.2 * 40**0.5), torch.diag(lengths_of(left, step, right)))


def lengths_of(left, step, right):
    return torch.diagonal(left.T @ step @ right.T) / (0.2 * 40**0.5)


def test_muon_takes_a_capsule_kernel_as_one_matrix_for_each_g():
    kernel = torch.randn(3, 3, 2, 5, 2, 4, 3, generator=torch.Generator().manual_seed(0))  # kh, kw, C, O, g, n, p
    step = orthogonal_step(kernel)
    assert step.shape == kernel.shape
    for g in range(2):
        matrix = kernel[:, :, :, :, g].permute(3, 5, 0, 1, 2, 4).reshape(15, 72)
        torch.testing.assert_close(step[:, :, :, :, g].permute(3, 5, 0, 1, 2, 4).reshape(15, 72), orthogonal(matrix))


def test_muon_decays_weights_beside_its_step_and_gathers_momentum():
    # A matrix of one row steps by its direction alone, of a root mean square of 0.2.
    gradients = [torch.tensor([3.0, 4.0]), torch.tensor([0.0, -2.0])]
    value, average = torch.tensor([1.0, -2.0]), torch.zeros(2)
    for gradient in gradients:
        average = 0.8 * average + 0.2 * gradient
        ahead = 0.2 * gradient + 0.8 * average
        value = value * (1 - 0.1 * 0.5) - 0.1 * orthogonal(ahead[None])[0]
        assert orthogonal(ahead[None]).square().mean().sqrt() == pytest.approx(0.2, rel=0.35)
    options = {"optimiser": "muon", "beta1": 0.8, "weight_decay": 0.5}
    assert stepped([each.tolist() for each in gradients], **options) == pytest.approx(value.tolist(), rel=1e-5)


@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_going_on_is_exact_with_every_optimiser(digits, tmp_path, optimiser):
    config = RunConfig("pcapsnet1", "digits", "x", SHORT.replace(optimiser=optimiser), seed=3)
    whole = train(config, digits, tmp_path / "run")
    (tmp_path / "run" / "checkpoints" / "step-00000012.safetensors").unlink()
    resumed = train(config, digits, tmp_path / "run")
    assert resumed.history[:4] == whole.history[:4], "going on begins after step 8"
    assert_same_state(resumed.model, whole.model)
    assert [row["loss"] for row in resumed.history] == [row["loss"] for row in whole.history]


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize(
    "network", [lambda: torch.nn.Linear(5, 3), lambda: create_model("pcapsnet1")], ids=["linear", "pcapsnet1"]
)
def test_every_optimiser_steps_each_network_of_a_stack_as_alone(optimiser, network):
    recipe = Recipe(optimiser=optimiser, lr=0.01, weight_decay=0.1)
    networks = [network() for _ in range(2)]
    stack = ModelStack(networks)
    gradients = {name: torch.randn(2, *p.shape) for name, p in networks[0].named_parameters()}
    for name, gradient in gradients.items():
        stack.weights[name.replace(".", "/")].grad = gradient.clone()
    make_optimiser(stack, recipe).step()
    for each, (alone, got) in enumerate(zip(networks, stack.unstack(), strict=True)):
        for name, parameter in alone.named_parameters():
            parameter.grad = gradients[name][each]
        make_optimiser(alone, recipe).step()
        torch.testing.assert_close(list(got.parameters()), list(alone.parameters()))


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_graph_takes_the_steps_of_eager_execution_with_every_optimiser(digits, tmp_path, optimiser):
    lr = 0.001 if optimiser == "rmsprop" else 0.01
    recipe = SHORT.replace(optimiser=optimiser, steps=30, log_every=5, lr=lr, min_lr=lr / 3)
    config = RunConfig("cnn_small", "digits", "x", recipe.replace(init=None, preprocess="standardise"))
    losses = {
        graph: [row["loss"] for row in train(config, digits, tmp_path / str(graph), device="cuda", graph=graph).history]
        for graph in (False, True)
    }
    assert losses[True] == pytest.approx(losses[False], rel=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("optimiser", OPTIMISERS)
def test_a_graph_goes_on_from_a_checkpoint_with_every_optimiser(digits, tmp_path, optimiser):
    recipe = SHORT.replace(optimiser=optimiser, lr=0.001, min_lr=0.0004, init=None)
    config = RunConfig("cnn_small", "digits", "x", recipe)
    whole = train(config, digits, tmp_path / "run", device="cuda", graph=True)
    (tmp_path / "run" / "checkpoints" / "step-00000012.safetensors").unlink()
    again = train(config, digits, tmp_path / "run", device="cuda", graph=True)
    assert [row["loss"] for row in again.history] == pytest.approx([row["loss"] for row in whole.history], rel=1e-3)
