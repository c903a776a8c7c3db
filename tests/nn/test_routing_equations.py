"""Routing procedures against loops written from their equations, and the properties that the equations have."""

import math

import pytest
import routing_loops
import torch
from routing_cases import NAMES, make_case

from purecaps.nn import routing
from purecaps.nn.routing.em import inverse_temperature_at

LOOP_ORDER = {
    "dynamic": ("votes",),
    "em": ("votes", "activations", "beta_a", "beta_u"),
    "attention": ("votes", "weight"),
    "frms": ("votes", "activations"),
    "frem": ("votes", "activations"),
    "variational": ("votes", "activations", "beta_a", "beta_u"),
    "inverted_dot_product": ("votes", "scale", "shift"),
    "self_attention": ("votes", "prior"),
}


def assert_matches_loop(case, **options):
    """Every image of the batch equals the loop's result, in float64."""
    routed = case.route(**options)
    per_image = {"votes", "activations", "parents"}
    loop_options = {**case.options, **options}
    if "bias" in case.tensors:
        loop_options["bias"] = case.tensors["bias"].tolist()
    for n in range(case.tensors["votes"].shape[0]):
        given = [
            (case.tensors[key][n] if key in per_image else case.tensors[key]).tolist() for key in LOOP_ORDER[case.name]
        ]
        image_options = {k: (v[n].tolist() if k in per_image else v) for k, v in loop_options.items()}
        poses, activations = getattr(routing_loops, case.name)(*given, **image_options)
        torch.testing.assert_close(routed.poses[n], torch.tensor(poses, dtype=torch.float64), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(
            routed.activations[n], torch.tensor(activations, dtype=torch.float64), rtol=1e-9, atol=1e-11
        )


@pytest.mark.parametrize("name", NAMES)
def test_procedures_equal_a_loop_over_their_equations(name):
    assert_matches_loop(make_case(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("attention", "self_attention")])
@pytest.mark.parametrize("iterations", [1, 2, 4])
def test_every_number_of_iterations_equals_the_loop(name, iterations):
    assert_matches_loop(make_case(name, seed=iterations, I=4, O=5, D=3), iterations=iterations)


def test_leaky_dynamic_routing_equals_the_loop():
    assert_matches_loop(make_case("dynamic", seed=3), leaky=True)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("em", {"inverse_temperature": 0.7, "variance_floor": 0.03}),
        ("frms", {"step": 2.5}),
        ("frem", {"bandwidth": 3.0}),
        ("variational", {"alpha0": 0.4, "kappa0": 2.5, "psi0": 0.6, "nu0": 9.0}),
    ],
)
def test_options_equal_the_loop_too(name, options):
    assert_matches_loop(make_case(name, seed=5), **options)


def test_inverted_routing_continues_from_the_parents_given():
    case = make_case("inverted_dot_product", seed=6)
    first = case.route(iterations=1)
    case_from = make_case("inverted_dot_product", seed=6)
    assert_matches_loop(case_from, iterations=2, parents=first.poses)
    torch.testing.assert_close(case.route(iterations=3).poses, case.route(iterations=2, parents=first.poses).poses)


def test_without_activations_all_children_weigh_the_same():
    for name in ("frms", "frem"):
        case = make_case(name)
        ones = {**case.tensors, "activations": torch.ones_like(case.tensors["activations"])}
        torch.testing.assert_close(case.route({"votes": case.tensors["votes"]}).poses, case.route(ones).poses)


def test_variational_logits_are_the_activations_before_the_logistic_function():
    case = make_case("variational")
    torch.testing.assert_close(case.route(logits=True).activations.sigmoid(), case.route().activations)


# With one child, and the same vote for each of 4 parents, a softmax over parents gives each a quarter. Over children it
# would give each the whole child.


def test_dynamic_routing_shares_a_child_among_parents():
    vote = torch.tensor([0.6, -1.2, 0.4], dtype=torch.float64)
    routed = routing.dynamic(vote.expand(1, 4, 3))
    assert_all_equal_to(routed.poses, routing.squash(vote / 4))


def test_leaky_dynamic_routing_leaves_a_share_to_no_parent():
    vote = torch.tensor([0.6, -1.2, 0.4], dtype=torch.float64)
    routed = routing.dynamic(vote.expand(1, 4, 3), iterations=1, leaky=True)
    assert_all_equal_to(routed.poses, routing.squash(vote / 5))


def test_em_shares_a_child_among_parents():
    vote, activation = torch.tensor([0.6, -1.2, 0.4]).double(), 0.8
    routed = routing.em(
        vote.expand(1, 4, 3), torch.tensor([activation]).double(), torch.zeros(4).double(), torch.ones(4).double()
    )
    cost = 3 * (1 + 0.5 * math.log(5e-4)) * activation / 4
    assert_all_equal_to(routed.activations, 1 / (1 + math.exp(0.01 * (1 - 0.95**3) * cost)))


def test_variational_routing_shares_a_child_among_parents():
    vote = torch.tensor([0.6, -1.2, 0.4]).double()
    zeros = torch.zeros(4).double()
    routed = routing.variational(vote.expand(1, 4, 3), torch.tensor([0.8]).double(), zeros, zeros)
    assert_all_equal_to(routed.poses, 0.2 * vote / (1 + 0.2))


def test_self_attention_shares_a_child_among_parents():
    vote = torch.tensor([0.6, -1.2, 0.4]).double()
    routed = routing.self_attention(vote.expand(1, 4, 3))
    r = vote.norm() / 4
    assert_all_equal_to(routed.poses, (1 - torch.exp(-r)) * vote / vote.norm())


@pytest.mark.parametrize("name", ["frms", "frem", "inverted_dot_product"])
def test_a_parent_that_wins_a_child_takes_it_from_the_others(name):
    votes = make_case(name, leading=(), I=6, O=2, D=3, seed=2).tensors["votes"]
    # The first parent's votes agree on all children but the last; the second parent's agree with the last child only.
    votes[:, 0], votes[:, 1] = torch.tensor([3.0, 0, 0]), torch.tensor([0, 3.0, 0])
    votes[5, 0] = torch.tensor([0, -3.0, 0])
    seen = []

    def spy(logits):
        log_coefficients = routing.over_parents(logits)
        seen.append(log_coefficients.exp())
        return log_coefficients

    getattr(routing, name)(votes, iterations=3, compete=spy)
    assert_all_equal_to(seen[-1].sum(dim=-1), 1.0)
    assert (seen[-1][:5, 0] > seen[-1][5, 0]).all()
    assert seen[-1][5, 1] > 0.5


def test_attention_is_shared_out_over_children():
    case = make_case("attention", leading=(), I=4)
    same = case.tensors["votes"][:1].expand(4, -1, -1)
    # Whatever the coefficients, they sum to 1 over the children: children that agree give their common vote.
    torch.testing.assert_close(case.route({**case.tensors, "votes": same}).poses, same[0])


def test_inverse_temperature_follows_the_authors_schedule():
    found = [inverse_temperature_at(i, 0.01) for i in range(3)]
    assert found == pytest.approx([0.0005, 0.000975, 0.00142625])


def test_squash_has_the_length_of_the_paper():
    s = torch.randn(7, 5, dtype=torch.float64)
    r = s.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(routing.squash(s), r**2 / (1 + r**2) * s / r)


def assert_all_equal_to(found, expected):
    expected = torch.as_tensor(expected, dtype=found.dtype)
    torch.testing.assert_close(found, expected.expand(found.shape), rtol=1e-6, atol=1e-9)
