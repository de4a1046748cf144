"""Membership inference behind secure aggregation, on federations whose clients memorise random labels."""

from dataclasses import replace

import numpy as np
import pytest

from fedattack.attacks import ATTACKS, read_knowledge
from fedattack.audit.roc import area
from fedattack.audit.truth import NOBODY, read_truth
from fedattack.base.errors import NeedsError
from fedattack.learning import losses_of_models, per_record_loss
from fedattack.record import Exchange, Record, RecordWriter
from fedattack.threats.membership.fedmia import below_others, logits_of
from fedattack.threats.membership.references import Trainer
from tests.worlds.federation import CLIENTS, MODEL, write_sums_run

QUICK = ATTACKS["membership-aggregate"].with_options({"references": "3"})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_sums_run(tmp_path_factory.mktemp("run"), epochs=15, auxiliary=120)


def attack(folder, *, how=QUICK, seed=0, **changes):
    known = replace(read_knowledge(folder / "knowledge"), **changes)
    return how.run(Record(folder / "record"), known, seed=seed, device="cpu")


def told_apart(folder, scores, method="fedmia"):
    owners = read_truth(folder / "truth").owners
    values = scores.arrays[f"score/{method}"][:, 0]
    return values[owners != NOBODY], values[owners == NOBODY]


def test_the_common_models_know_what_some_client_holds(run):
    scores = attack(run)
    assert scores.facts["clients"] == ["all"]
    assert scores.facts["rounds"] == [1, 2]
    assert scores.facts["methods"] == ["fedmia", "loss-series", "loss-threshold"]
    assert scores.facts["trained"] == 3 * 2 * CLIENTS
    assert scores.notes == ()
    for method in scores.facts["methods"]:
        assert area(*told_apart(run, scores, method)).low > 0.6, method
    np.testing.assert_allclose(scores.arrays["per_round"].mean(axis=0), scores.arrays["score/fedmia"], atol=1e-6)


def test_clients_that_learn_nothing_tell_nothing(tmp_path):
    folder = write_sums_run(tmp_path, epochs=0, auxiliary=60)
    scores = attack(folder)
    for method in scores.facts["methods"]:
        found = area(*told_apart(folder, scores, method))
        assert found.low <= 0.5 <= found.high, method


def test_scores_are_of_the_models_after_each_round_against_those_of_the_references(run, monkeypatch):
    seen = []
    train_reference = Trainer.train_reference

    def spied(self, received, examples, *, seed):
        state = train_reference(self, received, examples, seed=seed)
        seen.append((received, examples, state))
        return state

    monkeypatch.setattr(Trainer, "train_reference", spied)
    scores = attack(run)
    known, record = read_knowledge(run / "knowledge"), Record(run / "record")
    rounds = list(record)

    def losses(state):
        function = per_record_loss("cross-entropy")
        model = MODEL.build()
        return losses_of_models(model, [state], known.targets.x, known.targets.y, function, device="cpu")[0].numpy()

    own = [losses(dict(rounds[1].common)), losses(dict(record.final))]
    np.testing.assert_allclose(scores.arrays["score/loss-threshold"][:, 0], -own[1], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scores.arrays["score/loss-series"][:, 0], -np.mean(own, axis=0), rtol=1e-4, atol=1e-5)
    # Each reference has as many clients as the federation, starts where it did, and is a mean of what they send.
    assert len(seen) == 3 * 2 * CLIENTS
    of_references = [[], []]
    for number in range(3):
        for position in range(2):
            start = (2 * number + position) * CLIENTS
            part = seen[start : start + CLIENTS]
            mean = {name: np.mean([state[name] for _, _, state in part], axis=0) for name in rounds[0].common}
            of_references[position].append(losses({name: value.astype(np.float32) for name, value in mean.items()}))
            if position == 0:
                for received, _, _ in part:
                    np.testing.assert_array_equal(received["fc1.weight"], rounds[0].common["fc1.weight"])
    auxiliary = {row.tobytes() for row in known.auxiliary.x}
    assert {row.tobytes() for _, examples, _ in seen for row in examples.x} <= auxiliary
    for position in range(2):
        others = logits_of(np.stack(of_references[position], axis=-1))
        expected = below_others(logits_of(own[position])[:, None], others)
        np.testing.assert_allclose(scores.arrays["per_round"][position], expected, atol=1e-3)


@pytest.mark.parametrize("lacking", ["auxiliary", "training"])
def test_without_examples_or_knowledge_of_the_training_losses_are_left(run, lacking):
    scores = attack(run, **{lacking: None})
    assert scores.facts["methods"] == ["loss-series", "loss-threshold"]
    assert any("no reference federations: the attacker has no auxiliary examples" in note for note in scores.notes)
    assert scores.facts["trained"] == 0
    assert np.isnan(scores.arrays["per_round"]).all()


@pytest.mark.parametrize("count", ["0", "1"])
def test_references_can_be_left_out_and_one_is_none(run, count):
    scores = attack(run, how=QUICK.with_options({"references": count}))
    assert scores.facts["methods"] == ["loss-series", "loss-threshold"]
    assert scores.facts["trained"] == 0


def test_references_come_from_the_seed(run):
    first, again, other = (attack(run, seed=seed).arrays["score/fedmia"] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_record_without_a_common_model_after_a_round_is_refused(run, tmp_path):
    record = Record(run / "record")
    common = next(iter(record)).common
    writer = RecordWriter(tmp_path / "record", view="aggregate", aggregation=record.manifest["aggregation"])
    writer.write(Exchange(1, common, []))
    writer.close()
    with pytest.raises(NeedsError, match="needs the common model after a round"):
        QUICK.run(Record(tmp_path / "record"), read_knowledge(run / "knowledge"), device="cpu")


def test_a_common_model_that_diverged_says_nothing_and_stops_nothing(run, tmp_path):
    record = Record(run / "record")
    rounds = list(record)
    broken = {name: np.full_like(array, np.nan) for name, array in rounds[0].common.items()}
    writer = RecordWriter(tmp_path / "record", view="aggregate", aggregation=record.manifest["aggregation"])
    writer.write(Exchange(1, rounds[0].common, [], aggregate=rounds[0].aggregate))
    writer.write(Exchange(2, rounds[1].common, [], aggregate=broken))
    writer.close(final=broken)
    scores = QUICK.run(Record(tmp_path / "record"), read_knowledge(run / "knowledge"), device="cpu")
    assert np.isnan(scores.arrays["per_round"][1]).all()
    np.testing.assert_allclose(scores.arrays["score/fedmia"], scores.arrays["per_round"][0], atol=1e-6)
    scores.save(tmp_path / "scores.npz")
    QUICK.load_scores(tmp_path / "scores.npz")
