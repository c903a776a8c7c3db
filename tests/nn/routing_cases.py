"""Each routing procedure as a function of named tensors, for tests that run over all of them."""

from dataclasses import dataclass, field

import torch

from purecaps.nn import routing

NAMES = tuple(routing.ROUTINGS)


@dataclass
class Case:
    """A procedure and what it takes: `tensors` in order, the votes first, and `options`."""

    name: str
    tensors: dict[str, torch.Tensor]
    options: dict[str, object] = field(default_factory=dict)

    def route(self, tensors=None, **options):
        given = self.tensors if tensors is None else tensors
        return getattr(routing, self.name)(**given, **{**self.options, **options})

    def to(self, dtype):
        return Case(self.name, {name: t.to(dtype) for name, t in self.tensors.items()}, self.options)

    def leaves(self):
        return {name: t.detach().clone().requires_grad_() for name, t in self.tensors.items()}


def make_case(name, *, leading=(2,), I=5, O=3, D=4, seed=0, votes=None, activations=None):
    """A case in float64; `votes` [..., I, O, D] and `activations` [..., I] replace the random ones."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    votes = draw(*leading, I, O, D) if votes is None else votes
    leading, (I, O, D) = votes.shape[:-3], votes.shape[-3:]
    activations = draw(*leading, I).sigmoid() if activations is None else activations
    learned = {
        "dynamic": {"bias": 0.3 * draw(O, D)},
        "em": {"activations": activations, "beta_a": draw(O), "beta_u": draw(O)},
        "attention": {"weight": draw(O, I, D, I)},
        "frms": {"activations": activations},
        "frem": {"activations": activations},
        "variational": {"activations": activations, "beta_a": draw(O), "beta_u": draw(O)},
        "inverted_dot_product": {"scale": 1 + 0.2 * draw(D), "shift": 0.1 * draw(D)},
        "self_attention": {"prior": 0.2 * draw(I, O)},
    }[name]
    iterated = {} if name in ("attention", "self_attention") else {"iterations": 3}
    return Case(name, {"votes": votes, **learned}, iterated)


def grads_of(capsules, leaves):
    """Gradients of a random weighing of all outputs by each leaf."""
    generator = torch.Generator().manual_seed(9)
    total = sum((out * torch.randn(out.shape, generator=generator).to(out)).sum() for out in capsules)
    return dict(zip(leaves, torch.autograd.grad(total, list(leaves.values())), strict=True))
