"""Models that the attacker trains itself: shadows of each round, on examples of its own."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import Knowledge, KnownDefence, ModelKnowledge, Targets
from fedattack.defences import SETTINGS
from fedattack.learning import LocalSGD, train_local
from fedattack.threats.membership.references import Shadows, Trainer

CPU = torch.device("cpu")
MODEL = ModelKnowledge(spec="mlp", input_shape=(6,), classes=3, hidden=5)
TRAINING = LocalSGD(epochs=2, batch_size=4, lr=0.1)


def known(count=21, **changes):
    draw = np.random.default_rng(0)
    examples = Targets(draw.normal(size=(count, 6)).astype(np.float32), draw.integers(3, size=count))
    return replace(Knowledge(model=MODEL, auxiliary=examples, training=TRAINING), **changes)


def start():
    return {name: value.numpy().copy() for name, value in MODEL.build().state_dict().items()}


def defence(strength):
    return KnownDefence("fedattack", {**SETTINGS, "defence": "dp-gaussian", "defence-strength": strength})


def test_the_trainer_trains_as_a_client_does():
    examples = known().auxiliary
    trained = Trainer(MODEL, TRAINING, CPU).train_reference(start(), examples, seed=3)
    own = MODEL.build()
    own.load_state_dict({name: torch.from_numpy(array) for name, array in start().items()})
    train_local(own, examples.x, examples.y, epochs=2, batch_size=4, lr=0.1, seed=3)
    for name, value in own.state_dict().items():
        np.testing.assert_array_equal(trained[name], value.numpy())
        assert (trained[name] != start()[name]).any()


def test_what_no_client_trains_stays_as_it_is():
    frozen = [*start()][:1]
    trained = Trainer(MODEL, TRAINING, CPU, frozen=frozen).train_reference(start(), known().auxiliary, seed=3)
    for name, value in start().items():
        assert (trained[name] == value).all() == (name in frozen)


@pytest.mark.parametrize(
    ("changes", "possible"),
    [({}, True), ({"training": None}, False), ({"auxiliary": None}, False), ({"auxiliary": known(1).auxiliary}, False)],
)
def test_shadows_need_examples_and_knowledge_of_the_training(changes, possible):
    assert Shadows.possible(known(**changes)) is possible


def test_shadows_train_on_one_half_of_the_examples_and_the_population_is_the_other(monkeypatch):
    seen = []
    train_reference = Trainer.train_reference

    def spied(self, received, examples, *, seed):
        seen.append(examples)
        return train_reference(self, received, examples, seed=seed)

    monkeypatch.setattr(Trainer, "train_reference", spied)
    knowledge = known()
    shadows = Shadows(knowledge, 5, seed=1, device=CPU)
    first = list(shadows.of_round(1, start(), 4))
    assert [len(examples) for examples in seen] == [4] * 5
    list(shadows.of_round(1, start(), 1000))
    assert [len(examples) for examples in seen[5:]] == [11] * 5
    assert all(defended is None for _, defended in first)
    whole = {row.tobytes() for row in knowledge.auxiliary.x}
    used = {row.tobytes() for examples in seen for row in examples.x}
    rest = {row.tobytes() for row in shadows.population.x}
    assert len(used) == 11
    assert not used & rest
    assert used | rest == whole
    labels = {x.tobytes(): y for x, y in zip(knowledge.auxiliary.x, knowledge.auxiliary.y, strict=True)}
    for examples in [*seen, shadows.population]:
        assert [labels[row.tobytes()] for row in examples.x] == examples.y.tolist()


def test_with_a_known_defence_each_shadow_is_also_seen_through_it():
    """One of hardly any strength changes nothing; noise is drawn anew for each."""
    for state, defended in Shadows(known(defence=defence(1e-9)), 2, seed=0, device=CPU).of_round(1, start(), 4):
        assert {*defended} == {*state}
        for name, array in state.items():
            np.testing.assert_allclose(defended[name], array, atol=1e-6)
            assert defended[name].dtype == array.dtype
    noise = []
    for state, defended in Shadows(known(defence=defence(0.5)), 2, seed=0, device=CPU).of_round(1, start(), 4):
        noise.append(defended["fc1.weight"] - state["fc1.weight"])
    assert np.std(noise) > 0.05
    assert (noise[0] != noise[1]).all()
