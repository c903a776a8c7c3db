"""What routing refuses, and that it says what is allowed."""

import pytest
import torch

from purecaps.errors import ConfigError, UnknownNameError
from purecaps.nn import routing
from purecaps.nn.routing import create_routing

VOTES = torch.zeros(2, 5, 3, 4)
ACTIVE = torch.ones(2, 5)
BETA = torch.zeros(3)
ITERATED = [name for name in routing.ROUTINGS if name not in ("attention", "self_attention")]


class Mean(routing.Routing):
    """No routing at all."""

    def __init__(self, children, parents, pose_size, *, factor=1.0):
        super().__init__()
        self.factor = factor

    def route(self, votes, activations, parents, compete):
        poses = self.factor * votes.mean(dim=-3)
        return routing.Capsules(poses, routing.capsule_length(poses))


class Sizeless(Mean):
    def __init__(self):
        super().__init__(5, 3, 4)


def call(name, votes=VOTES, activations=ACTIVE, **options):
    given = {
        "em": (votes, activations, BETA, BETA),
        "variational": (votes, activations, BETA, BETA),
        "frms": (votes, activations),
        "frem": (votes, activations),
        "attention": (votes, torch.zeros(3, 5, 4, 5)),
    }.get(name, (votes,))
    return getattr(routing, name)(*given, **options)


@pytest.mark.parametrize("name", ITERATED)
@pytest.mark.parametrize("iterations", [0, -2, 1.5, True])
def test_a_number_of_iterations_that_makes_no_sense_is_refused(name, iterations):
    message = rf"iterations: expected an int >= 1, got {iterations}"
    with pytest.raises(ConfigError, match=message):
        call(name, iterations=iterations)
    with pytest.raises(ConfigError, match=message):
        create_routing(name, children=5, parents=3, pose_size=4, iterations=iterations)


@pytest.mark.parametrize("name", routing.ROUTINGS)
def test_votes_of_a_wrong_rank_are_refused(name):
    with pytest.raises(ConfigError, match=r"votes: expected at least the 3 dimensions I, O, D .* got 2: \[5, 4\]"):
        call(name, votes=torch.zeros(5, 4))


@pytest.mark.parametrize("name", routing.ROUTINGS)
def test_votes_of_whole_numbers_or_of_nothing_are_refused(name):
    with pytest.raises(ConfigError, match=r"votes: expected a floating-point tensor, got torch.int64"):
        call(name, votes=VOTES.long())
    with pytest.raises(ConfigError, match=r"votes: expected I, O and D of at least 1 .* got \[2, 0, 3, 4\]"):
        call(name, votes=VOTES[:, :0])


@pytest.mark.parametrize("name", ["em", "variational", "frms", "frem"])
def test_activations_that_do_not_fit_the_votes_are_refused(name):
    with pytest.raises(ConfigError, match=r"activations: expected \[2, 5\], .* votes \[2, 5, 3, 4\], got \[2, 3\]"):
        call(name, activations=torch.ones(2, 3))


@pytest.mark.parametrize("name", ["em", "variational"])
def test_missing_activations_are_refused(name):
    procedure = create_routing(name, children=5, parents=3, pose_size=4)
    with pytest.raises(ConfigError, match=rf"activations: expected a tensor .* {name} routing .* got None"):
        procedure(VOTES)


@pytest.mark.parametrize("name", ["attention", "self_attention"])
def test_a_procedure_with_weights_a_child_needs_their_number(name):
    with pytest.raises(ConfigError, match=rf"children: expected a fixed number, as {name} routing .* got None"):
        create_routing(name, children=None, parents=3, pose_size=4)


@pytest.mark.parametrize("name", [name for name in routing.ROUTINGS if name != "inverted_dot_product"])
def test_parents_are_refused_where_they_would_be_ignored(name):
    procedure = create_routing(name, children=5, parents=3, pose_size=4)
    with pytest.raises(ConfigError, match=rf"parents: expected None, as {name} routing"):
        procedure(VOTES, ACTIVE, parents=torch.zeros(2, 3, 4))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: create_routing("dinamic", children=5, parents=3, pose_size=4), UnknownNameError, r"unknown routing 'dinamic': did you mean dynamic.*known: attention, dynamic, em"),
        (lambda: create_routing("em", children=5, parents=3, pose_size=4, leaky=True), ConfigError, r"leaky: not an option of em routing; it has iterations, inverse_temperature, variance_floor"),
        (lambda: create_routing("attention", children=5, parents=3, pose_size=4, iterations=3), ConfigError, r"iterations: not an option of attention routing; it has none"),
        (lambda: create_routing(Mean, children=5, parents=3, pose_size=4, leaky=True), ConfigError, r"leaky: not an option of Mean routing; it has factor"),
        (lambda: create_routing(routing.dynamic, children=5, parents=3, pose_size=4), ConfigError, r"routing: expected a name \(attention, .*\) or a subclass of purecaps.nn.routing.Routing, got <function dynamic"),
        (lambda: create_routing(routing.Routing, children=5, parents=3, pose_size=4), ConfigError, r"routing: expected a name .* got <class '.*Routing'>"),
        (lambda: create_routing(torch.nn.Linear, children=5, parents=3, pose_size=4), ConfigError, r"routing: expected a name .* got <class '.*Linear'>"),
        (lambda: create_routing(Sizeless, children=5, parents=3, pose_size=4), ConfigError, r"routing: expected a class that is made with \(children, parents, pose_size\), got Sizeless\(\)"),
        (lambda: Mean(5, 3, 4)(VOTES, parents=torch.zeros(2, 3, 4)), ConfigError, r"parents: expected None, as Mean routing"),
        (lambda: routing.dynamic([1, 2]), ConfigError, r"votes: expected a tensor \[..., I, O, D\], got list"),
        (lambda: routing.dynamic(), ConfigError, r"votes: expected a tensor \[..., I, O, D\], got NoneType"),
        (lambda: routing.dynamic(VOTES, bias=torch.zeros(4, 3)), ConfigError, r"bias: expected \[O, D\] = \[3, 4\], got \[4, 3\]"),
        (lambda: routing.em(VOTES, ACTIVE, torch.zeros(2), BETA), ConfigError, r"beta_a: expected \[O\] = \[3\], got \[2\]"),
        (lambda: routing.variational(VOTES, ACTIVE, BETA, torch.zeros(2)), ConfigError, r"beta_u: expected \[O\] = \[3\], got \[2\]"),
        (lambda: routing.variational(VOTES, ACTIVE, BETA, BETA, nu0=3.0), ConfigError, r"nu0: expected a number above D - 1 = 3, got 3.0"),
        (lambda: routing.variational(VOTES, ACTIVE, BETA, BETA, kappa0=0.0), ConfigError, r"kappa0: expected a number above 0, got 0.0"),
        (lambda: routing.attention(VOTES, torch.zeros(3, 4, 5, 5)), ConfigError, r"weight: expected \[O, I, D, I\] = \[3, 5, 4, 5\], got \[3, 4, 5, 5\]"),
        (lambda: routing.self_attention(VOTES, prior=torch.zeros(3, 5)), ConfigError, r"prior: expected \[I, O\] = \[5, 3\], got \[3, 5\]"),
        (lambda: routing.inverted_dot_product(VOTES, parents=torch.zeros(3, 4)), ConfigError, r"parents: expected \[..., O, D\] = \[2, 3, 4\], got \[3, 4\]"),
        (lambda: routing.inverted_dot_product(VOTES, scale=torch.zeros(3)), ConfigError, r"scale: expected \[D\] = \[4\], got \[3\]"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_by_name(make, error, message):
    with pytest.raises(error, match=message):
        make()
