"""Distillation: what a teacher's opinion is, which teachers are refused, and runs with one."""

import copy

import pytest
import torch
import torch.nn.functional as F
from tiny import assert_same_state

from purecaps.errors import ConfigError
from purecaps.models import ModelInfo, create_model, save_model
from purecaps.tensorfile import read_tensors
from purecaps.train import Recipe, RunConfig, Trainer, make_trainer, train
from purecaps.train.teacher import Teacher, load_teacher

RECIPE = Recipe(
    steps=8,
    batch_size=16,
    lr=0.01,
    loss="cross_entropy",
    scale=20.0,
    augment=("shift:2",),
    teacher_share=0.9,
    teacher_temperature=0.1,  # so that even a network that was never trained is sure of something
    log_every=1,
    checkpoint_every=4,
)
IMAGES = torch.rand(2, 5, 1, 28, 28, generator=torch.Generator().manual_seed(0))
CPU = torch.device("cpu")


def lenet(seed=0, **options):
    torch.manual_seed(seed)
    return create_model("lenet", **options)


def config(seed=0, seeds=1, model="pcapsnet1", **changes):
    return RunConfig(model, "digits", "x", RECIPE.replace(**changes), seed, seeds)


@pytest.mark.parametrize(("name", "scale"), [("lenet", 1.0), ("pcapsnet2", 20.0)])
def test_an_opinion_is_the_softmax_of_logits_or_scaled_lengths(name, scale):
    network = create_model(name)
    opinion = Teacher(network, CPU).opinion(IMAGES[0], 2.0)
    torch.testing.assert_close(opinion, F.softmax(network(IMAGES[0]) * scale / 2, dim=1))
    assert not opinion.requires_grad


def test_a_stacks_images_are_asked_about_together():
    teacher = Teacher(lenet(), CPU)
    expected = torch.stack([teacher.opinion(each, 1.0) for each in IMAGES])
    torch.testing.assert_close(teacher.opinion(IMAGES, 1.0), expected)


@pytest.mark.usefixtures("tiny_networks")
def test_the_teacher_never_changes_and_is_not_saved(digits, tmp_path):
    teacher = create_model("normalised")  # batch norm notes what it sees, in training mode
    before = copy.deepcopy(teacher)
    trainer = Trainer(config(ema=0.9, weight_decay=0.1), digits, tmp_path, teacher=teacher)
    trainer.run()
    assert_same_state(teacher, before)
    assert_same_state(trainer.teacher.network, before)
    assert teacher.training
    assert all(parameter.requires_grad for parameter in teacher.parameters())
    tensors, _ = read_tensors(tmp_path / "checkpoints" / "step-00000008.safetensors", "checkpoint")
    own = {name.split(".", 1)[1] for name in tensors if name.startswith("model.")}
    assert own == create_model("pcapsnet1").state_dict().keys()


def test_each_seed_takes_the_steps_it_takes_alone(digits, tmp_path):
    teacher = lenet()
    together = Trainer(config(5, 2, mixup=0.5), digits, tmp_path / "all", teacher=teacher).run()
    alone = train(config(6, mixup=0.5), digits, tmp_path / "one", teacher=teacher)
    other = train(config(6, mixup=0.5), digits, tmp_path / "other", teacher=lenet(1))
    mine, expected, others = (
        [row[name] for row in run.history] for run, name in ((together, "loss/6"), (alone, "loss"), (other, "loss"))
    )
    assert mine == pytest.approx(expected, rel=1e-3)
    assert expected != pytest.approx(others, rel=1e-2)


@pytest.mark.usefixtures("tiny_networks")
def test_seeds_in_turn_learn_from_it_too(digits, tmp_path):
    trainer = make_trainer(config(seeds=2, model="normalised", init=None), digits, tmp_path, teacher=lenet())
    assert len(trainer.run().models) == 2


def test_a_network_learns_what_the_teacher_says_whatever_the_labels(digits, tmp_path):
    """With a share of 1 the labels play no part: a teacher that calls everything a 7 makes a pupil that does."""
    teacher = lenet()
    with torch.no_grad():
        teacher.layers[-1].weight.zero_()
        teacher.layers[-1].bias.copy_(10.0 * F.one_hot(torch.tensor(7), 10))
    run = train(config(steps=60, teacher_share=1.0, teacher_temperature=1.0), digits, tmp_path, teacher=teacher)
    assert (run.model(digits.test.images / 255).argmax(dim=1) == 7).all()


def test_going_on_is_exact_with_the_same_teacher_and_refused_with_another(digits, tmp_path):
    whole = train(config(mixup=0.5), digits, tmp_path, teacher=lenet())
    (tmp_path / "checkpoints" / "step-00000008.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"teacher: expected the network that the run in .* learned from, got"):
        train(config(mixup=0.5), digits, tmp_path, teacher=lenet(1))
    again = train(config(mixup=0.5), digits, tmp_path, teacher=lenet())
    assert_same_state(again.model, whole.model)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"teacher_share": 1.1}, r"teacher_share: expected a number in \[0, 1\], got 1.1"),
        ({"teacher_temperature": 0.0}, "teacher_temperature: expected a finite number above 0, got 0.0"),
        ({"loss": "margin"}, "teacher_share: expected 0 with loss margin, whose targets are single classes, got 0.9"),
        ({"adversary_eps": 0.1}, "adversary_eps: expected 0 with teacher_share 0.9, got 0.1"),
    ],
)
def test_a_senseless_recipe_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        RECIPE.replace(**change)


@pytest.mark.parametrize(
    ("teacher", "change", "message"),
    [
        (lambda: None, {}, "teacher: expected a network with teacher_share 0.9, got none"),
        (lenet, {"teacher_share": 0.0}, "teacher_share: expected a number above 0 with a teacher, got 0.0"),
        (
            lambda: lenet(in_shape=(1, 24, 28)),
            {},
            r"teacher: expected a network of in_shape \(1, 28, 28\), as the run has, got one of \(1, 24, 28\)",
        ),
        (
            lenet,
            {"augment": ("crop:24",)},
            r"teacher: expected a network of in_shape \(1, 24, 24\), as the run has, got one of \(1, 28, 28\)",
        ),
        (
            lambda: lenet(num_classes=7),
            {},
            "teacher: expected a network of num_classes 10, as the run has, got one of 7",
        ),
        (lambda: torch.nn.Flatten(), {}, r"teacher: expected a network of in_shape \(1, 28, 28\).* got one of None"),
        (
            lenet,
            {"model": "reconstructing", "init": None},
            "teacher_share: expected 0 for Reconstructing, which is shown the labels in training, got 0.9",
        ),
    ],
)
@pytest.mark.usefixtures("tiny_networks")
def test_a_teacher_that_does_not_fit_is_refused_before_the_run(digits, tmp_path, teacher, change, message):
    with pytest.raises(ConfigError, match=message):
        train(config(**change), digits, tmp_path, teacher=teacher())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("about", "message"),
    [
        (
            {"preprocess": "gcn_zca"},
            "teacher: expected .* preprocess gcn_zca off, as the recipe has, got .*file with on",
        ),
        (
            {"augment": ("shift:2", "standardise")},
            "teacher: expected .* augment standardise off, as the recipe has, got .*file with on",
        ),
        ({"pixel_scale": 1 / 256}, "teacher: expected .* pixel_scale 0.00392157, .* got .*file with 0.00390625"),
    ],
)
def test_a_file_whose_network_takes_other_images_is_refused(tmp_path, about, message):
    shape = (1, 28, 28)
    save_model(lenet(), tmp_path / "file", ModelInfo("lenet", shape, shape, 10, **about))
    with pytest.raises(ConfigError, match=message):
        load_teacher(tmp_path / "file", RECIPE)


def save_holding_out(path, **record):
    save_model(lenet(), path, ModelInfo("lenet", (1, 28, 28), (1, 28, 28), 10, record=record))


def test_a_teacher_that_was_trained_on_the_images_held_out_is_refused(tmp_path):
    save_holding_out(tmp_path / "file", val_size=0)
    with pytest.raises(ConfigError, match=r"teacher: expected .* val_size 20, as the recipe has, .* got .*file with 0"):
        load_teacher(tmp_path / "file", RECIPE.replace(val_size=20))


def test_a_teacher_that_held_out_as_many_is_taken_without_a_word(tmp_path, caplog):
    save_holding_out(tmp_path / "file", val_size=20)
    load_teacher(tmp_path / "file", RECIPE.replace(val_size=20))
    assert not caplog.records


def test_a_teacher_that_does_not_say_what_it_held_out_is_taken_with_a_warning(tmp_path, caplog):
    save_holding_out(tmp_path / "file")
    load_teacher(tmp_path / "file", RECIPE)
    assert not caplog.records  # nothing is held out here
    load_teacher(tmp_path / "file", RECIPE.replace(val_size=20))
    assert "file does not say how many images it held out" in caplog.text


def test_a_packaged_network_teaches_by_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    network, info = load_teacher("pcapsnet2", RECIPE)
    assert_same_state(network, create_model("pcapsnet2", pretrained=True))
    assert info.name == "pcapsnet2"
    with pytest.raises(ConfigError, match="no packaged weights for 'lenet'"):
        load_teacher("lenet", RECIPE)


def test_a_run_tells_its_pupils_what_it_held_out(digits, tmp_path):
    run = train(config(teacher_share=0.0, val_size=20), digits, tmp_path)
    run.save(tmp_path / "m.safetensors")
    with pytest.raises(ConfigError, match=r"val_size 10, as the recipe has, .* with 20"):
        load_teacher(tmp_path / "m.safetensors", RECIPE.replace(val_size=10))


def test_a_file_is_read_whether_or_not_its_network_standardises(tmp_path):
    info = ModelInfo("lenet", (1, 28, 28), (1, 28, 28), 10, preprocess="standardise")
    save_model(lenet(), tmp_path / "file", info)
    network, found = load_teacher(tmp_path / "file", RECIPE)
    assert_same_state(network, lenet())
    assert found == info


@pytest.mark.slow
def test_compiled_steps_are_those_of_the_eager_run(digits, tmp_path):
    losses = [
        [
            row["loss"]
            for row in train(
                config(model="cnn_small", init=None, mixup=0.5),
                digits,
                tmp_path / str(how),
                teacher=lenet(),
                compile=how,
            ).history
        ]
        for how in (False, True)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["lenet", "pcapsnet2", "resnet"])
@pytest.mark.parametrize("seeds", [1, 2])
def test_a_graph_takes_the_same_steps_as_eager_execution(digits, tmp_path, name, seeds):
    torch.manual_seed(0)
    teacher = create_model(name, in_shape=(1, 28, 28))
    run = config(seeds=seeds, mixup=0.5, steps=50, log_every=5, checkpoint_every=5)
    eager, graph = (
        [
            row["loss"]
            for row in train(run, digits, tmp_path / str(how), device="cuda", graph=how, teacher=teacher).history
        ]
        for how in (False, True)
    )
    assert graph == pytest.approx(eager, rel=1e-2)
    assert eager[-1] < 0.9 * eager[0]
