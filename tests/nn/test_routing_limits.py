"""Routing at its limits: zero and huge votes, half precision, gradients, and under torch's transforms."""

import pytest
import torch
from routing_cases import NAMES, grads_of, make_case

from purecaps.nn import routing

DTYPES = [torch.float32, torch.bfloat16]


def assert_finite(case):
    """Outputs and all gradients are finite, and outputs have the dtype of the votes."""
    leaves = case.leaves()
    routed = case.route(leaves)
    for what, tensor in (("poses", routed.poses), ("activations", routed.activations)):
        assert tensor.dtype == case.tensors["votes"].dtype
        assert torch.isfinite(tensor).all(), f"{what} of {case.name}: expected finite numbers, got {tensor}"
    for leaf, grad in grads_of(routed, leaves).items():
        assert torch.isfinite(grad).all(), f"gradient of {leaf} of {case.name}: expected finite numbers, got {grad}"


def huge(shape, kind):
    generator = torch.Generator().manual_seed(4)
    signs = torch.randn(shape, generator=generator, dtype=torch.float64).sign()
    if kind == "agreeing":
        return torch.full(shape, 1e4, dtype=torch.float64)
    if kind in ("one of many", "one against all"):
        votes = 0.1 * signs if kind == "one of many" else torch.full(shape, -1e4, dtype=torch.float64)
        votes[..., 0, :, :] = 1e4
        return votes
    return 1e4 * signs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_zero_votes_give_finite_capsules_and_gradients(name, dtype):
    case = make_case(name, votes=torch.zeros(2, 5, 3, 4, dtype=torch.float64)).to(dtype)
    case.tensors.pop("bias", None)  # it would move the sums away from zero
    assert_finite(case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", [0.0, 1.0, None])
@pytest.mark.parametrize("kind", ["agreeing", "scattered", "one of many", "one against all"])
@pytest.mark.parametrize("name", NAMES)
def test_huge_votes_and_activations_of_0_and_1_give_finite_capsules_and_gradients(name, kind, activation, dtype):
    activations = torch.tensor([0.0, 1, 1, 0, 1] if activation is None else [activation] * 5, dtype=torch.float64)
    votes = huge((2, 5, 3, 4), kind)
    assert_finite(make_case(name, votes=votes, activations=activations.expand(2, 5)).to(dtype))


@pytest.mark.parametrize("name", ["em", "variational", "frms", "frem"])
def test_zero_votes_and_zero_activations_give_finite_capsules_and_gradients(name):
    zeros = torch.zeros(2, 5, 3, 4, dtype=torch.float64)
    assert_finite(make_case(name, votes=zeros, activations=zeros[..., 0, 0]).to(torch.float32))


def test_parents_too_improbable_for_a_float_still_share_a_child():
    case = make_case("em", seed=3).to(torch.float32)
    case.tensors["beta_a"] = torch.tensor([-1e6, -1e6, -1.1e6])
    assert_finite(case)
    seen = []

    def spy(logits):
        seen.append(routing.over_parents(logits))
        return seen[-1]

    case.route(compete=spy)
    assert seen[-1].exp().sum(dim=-1).allclose(torch.ones(2, 5))
    assert (seen[-1][..., 2] < -50).all()


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name):
    case = make_case(name, leading=(), I=3, O=2, D=4, seed=1)
    options = {} if name in ("attention", "self_attention") else {"iterations": 2}
    leaves = case.leaves()

    def route(*values):
        return tuple(case.route(dict(zip(leaves, values, strict=True)), **options))

    assert torch.autograd.gradcheck(route, tuple(leaves.values()))


def test_gradients_at_a_zero_vote_are_those_of_finite_differences():
    votes = make_case("dynamic", leading=(), I=3, O=2, D=4).tensors["votes"]
    votes[1] = 0
    assert torch.autograd.gradcheck(lambda v: routing.dynamic(v).poses, votes.requires_grad_())


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_children_does_not_matter(name):
    case = make_case(name, leading=(2, 3), I=7)
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    moved = dict(case.tensors)
    moved["votes"] = moved["votes"][..., order, :, :]
    if "activations" in moved:
        moved["activations"] = moved["activations"][..., order]
    if "weight" in moved:
        moved["weight"] = moved["weight"][:, order][..., order]
    if "prior" in moved:
        moved["prior"] = moved["prior"][order]
    for was, now in zip(case.route(), case.route(moved), strict=True):
        torch.testing.assert_close(was, now)


@pytest.mark.parametrize("name", NAMES)
def test_leading_axes_are_images_by_themselves(name):
    case = make_case(name, leading=(2, 3))
    per_image = ("votes", "activations")
    whole = case.route()
    one = case.route({key: (t[1, 2] if key in per_image else t) for key, t in case.tensors.items()})
    torch.testing.assert_close(whole.poses[1, 2], one.poses)
    torch.testing.assert_close(whole.activations[1, 2], one.activations)


@pytest.mark.parametrize("name", NAMES)
def test_a_procedure_can_be_mapped_over_images(name):
    case = make_case(name, leading=(4,))
    axes = {key: 0 if key in ("votes", "activations") else None for key in case.tensors}
    mapped = torch.vmap(lambda tensors: tuple(case.route(tensors)), in_dims=(axes,))(case.tensors)
    for got, expected in zip(mapped, case.route(), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_a_procedure_can_be_traced_whole(name):
    case = make_case(name).to(torch.float32)
    torch.compiler.reset()
    traced = torch.compile(lambda tensors: tuple(case.route(tensors)), fullgraph=True, backend="aot_eager")
    for got, expected in zip(traced(case.tensors), case.route(), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_half_precision_votes_are_routed_in_float32(name):
    case = make_case(name, I=50, seed=8).to(torch.bfloat16)
    low, high = case.route(), case.to(torch.float32).route()
    for got, expected in zip(low, high, strict=True):
        torch.testing.assert_close(got, expected.bfloat16(), rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
def test_autocast_neither_lowers_the_precision_inside_nor_of_the_result(name):
    case = make_case(name, I=50, seed=8).to(torch.float32)
    low = {**case.tensors, "votes": case.tensors["votes"].bfloat16()}
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = case.route(low)
    expected = case.route({**low, "votes": low["votes"].float()})
    for mine, true in zip(got, expected, strict=True):
        assert mine.dtype == torch.float32
        torch.testing.assert_close(mine, true, rtol=0, atol=0)
