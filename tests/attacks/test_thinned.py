"""What attacks find in records that hold less than the server saw, and with weights that nobody trained."""

import os
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from fedattack.attacks import ATTACKS, read_knowledge, write_knowledge
from fedattack.attacks.frozen import initial_weights, read_frozen
from fedattack.audit.judging import judge_attacks
from fedattack.audit.opened import open_runs
from fedattack.base.errors import DataError, ModelError, NeedsError
from fedattack.learning import LocalSGD
from fedattack.record import Exchange, Keep, Record, RecordWriter, Reply, shrink_record
from fedattack.record.folder import RunFolder
from tests.worlds.federation import write_property_run, write_run, write_sums_run


def attacked(folder, record, name="sia", **options):
    known = read_knowledge(folder / "knowledge")
    return ATTACKS[name].with_options(options).run(record, known, device="cpu", seed=3)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), rounds=5, epochs=20)


def test_the_losses_are_those_of_the_rounds_that_are_kept(run, tmp_path):
    whole = attacked(run, Record(run / "record"))
    thin = attacked(run, shrink_record(Record(run / "record"), tmp_path / "r", Keep(every=2)))
    assert thin.facts["rounds"] == [1, 3, 5]
    np.testing.assert_array_equal(thin.arrays["losses"], whole.arrays["losses"][::2])


def test_a_client_that_is_not_kept_is_unknown_and_never_named(run, tmp_path):
    whole = attacked(run, Record(run / "record"))
    thin = attacked(run, shrink_record(Record(run / "record"), tmp_path / "r", Keep(clients=("node1", "node3"))))
    assert thin.facts["clients"] == whole.facts["clients"]
    np.testing.assert_array_equal(thin.arrays["losses"][:, :, [1, 3]], whole.arrays["losses"][:, :, [1, 3]])
    assert np.isnan(thin.arrays["losses"][:, :, [0, 2]]).all()
    assert set(thin.arrays["decisions"]) == {1, 3}


def test_reference_federations_are_compared_after_as_many_rounds(tmp_path):
    """The same draws give the same reference models, of which those of rounds 1, 3 and 5 are compared."""
    folder = write_sums_run(tmp_path, rounds=5, epochs=5, auxiliary=60)
    record = Record(folder / "record")
    whole = attacked(folder, record, "membership-aggregate", references="4")
    thin = shrink_record(record, tmp_path / "thin", Keep(every=2))
    found = attacked(folder, thin, "membership-aggregate", references="4")
    assert found.facts["rounds"] == [1, 3, 5]
    np.testing.assert_array_equal(found.arrays["per_round"], whole.arrays["per_round"][::2])


def test_rounds_that_are_too_far_apart_are_not_played(tmp_path):
    folder = write_sums_run(tmp_path, rounds=2, epochs=5, auxiliary=60)
    source = Record(folder / "record")
    writer = RecordWriter(
        tmp_path / "far", view="aggregate", aggregation=source.manifest["aggregation"], keep=Keep(every=10**12)
    )
    for number, item in zip((1, 10**12 + 1), source, strict=True):
        writer.write(Exchange(number, item.common, [Reply("n", "ok", None, 1)], aggregate=item.aggregate))
        writer.write(Exchange(number + 1, item.after, []))
    writer.close()
    scores = attacked(folder, Record(tmp_path / "far", thinned=True), "membership-aggregate")
    assert "the rounds of the record are too far apart" in " ".join(scores.notes)
    assert "score/loss-series" in scores.arrays


@pytest.mark.slow
def test_prolin_has_all_that_it_needs_in_a_thinned_record_of_sums(tmp_path):
    """It takes each round by itself."""
    folder = write_property_run(tmp_path / "run", rounds=24)
    thin = shrink_record(Record(folder / "record"), tmp_path / "thin", Keep(every=2))
    whole = attacked(folder, Record(folder / "record"), "prolin")
    found = attacked(folder, thin, "prolin")
    np.testing.assert_array_equal(found.arrays["participation"], whole.arrays["participation"][::2])
    scale = np.abs(whole.arrays["sums"]).max()
    np.testing.assert_allclose(found.arrays["sums"], whole.arrays["sums"][:, ::2], atol=0.05 * scale)


# A federation of a model whose first layer nobody trains, in the forms in which its record may come.
FROZEN = ("fc1.weight", "fc1.bias")


def rewritten(source, to, change):
    """Write a record again, with each of its models changed."""
    writer = RecordWriter(to, protocol=source.protocol, seed=source.seed, facts=source.facts)
    for item in source:
        replies = []
        for seen in item.observations:
            replies.append(Reply(seen.node, seen.status, change(seen.arrays, True), seen.num_examples, seen.metrics))
        writer.write(Exchange(item.number, change(item.common, False), replies, mean="message"))
    writer.close(final=change(source.final, False))
    return Record(to)


@pytest.fixture(scope="module", params=["fedavg", "fedsgd"])
def frozen(request, tmp_path_factory):
    """A run folder whose first layer is frozen, and the frozen weights."""
    source = write_run(tmp_path_factory.mktemp("source"), rounds=3, epochs=20, protocol=request.param)
    folder = tmp_path_factory.mktemp("frozen") / "run"
    shutil.copytree(source, folder, ignore=shutil.ignore_patterns("record"))
    record = Record(source / "record")
    start = record.rounds[0].common
    weights = {name: np.array(start[name]) for name in FROZEN}

    def freeze(arrays, reply):
        gradient = reply and request.param == "fedsgd"
        return {**arrays, **({name: np.zeros_like(weights[name]) for name in FROZEN} if gradient else weights)}

    rewritten(record, folder / "record", freeze)
    return folder, weights


def without(names):
    return lambda arrays, reply: {name: array for name, array in arrays.items() if name not in names}


def nameless(arrays, reply):
    kept = [array for name, array in arrays.items() if name not in FROZEN]
    return {str(index): array for index, array in enumerate(kept)}


FORMS = {
    "sent-alone": lambda record, to: rewritten(record, to, without(FROZEN)),
    "nameless": lambda record, to: rewritten(record, to, nameless),
}


def findings(folder, record_path, known):
    """Attack and judge a run folder with another record."""
    scores = ATTACKS["sia"].run(Record(record_path, thinned=True), known, device="cpu", seed=3)
    scores.save(folder / "scores" / "sia.npz")
    found = judge_attacks(open_runs(RunFolder(folder)), setting={}, provenance={})
    return scores, [finding.to_dict() for finding in found]


@pytest.mark.parametrize("form", FORMS)
def test_frozen_weights_that_are_put_back_give_the_findings_of_a_whole_record(frozen, form, tmp_path):
    folder, weights = frozen
    known = read_knowledge(folder / "knowledge")
    copies = {}
    for name in ("whole", form):
        copies[name] = tmp_path / name
        shutil.copytree(folder, copies[name], ignore=shutil.ignore_patterns("record"))
    shutil.copytree(folder / "record", copies["whole"] / "record")
    FORMS[form](Record(folder / "record"), copies[form] / "record")
    whole, expected = findings(copies["whole"], copies["whole"] / "record", known)
    knows = replace(known, frozen=weights)
    shutil.rmtree(copies[form] / "knowledge")
    write_knowledge(copies[form] / "knowledge", knows)
    read = read_knowledge(copies[form] / "knowledge").frozen
    assert {name: array.tobytes() for name, array in read.items()} == {n: a.tobytes() for n, a in weights.items()}
    scores, found = findings(copies[form], copies[form] / "record", knows)
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(scores.arrays[name], array)
    assert found == expected
    assert "2 arrays are not in the record; they are treated as frozen" in " ".join(scores.notes)


def test_what_is_lacking_is_named(frozen, tmp_path):
    folder, weights = frozen
    known = read_knowledge(folder / "knowledge")
    alone = FORMS["sent-alone"](Record(folder / "record"), tmp_path / "alone")
    with pytest.raises(ModelError, match=r"missing: fc1.weight .*, by --frozen FILE"):
        ATTACKS["sia"].run(alone, known, device="cpu")
    knows = replace(known, frozen=weights, training=LocalSGD(epochs=1, batch_size=10, lr=0.1))
    with pytest.raises(
        NeedsError,
        match=r"attack inversion cannot be made of .*: fc1.weight is frozen, so that nobody sent its gradient",
    ):
        ATTACKS["inversion"].run(alone, knows, device="cpu")


def test_a_record_of_frozen_weights_is_projected_and_its_means_are_found(frozen, tmp_path):
    """The common models that are means are computed from what is stored, in its order."""
    folder, weights = frozen
    alone = FORMS["sent-alone"](Record(folder / "record"), tmp_path / "alone")
    whole = Record(folder / "record")
    view = alone.complete(weights, [parameter.name for parameter in whole.parameters])
    assert [parameter.name for parameter in view.parameters] == [parameter.name for parameter in whole.parameters]
    for left, right in zip(view, whole, strict=True):
        for name, array in right.common.items():
            np.testing.assert_array_equal(left.common[name], array)
        for seen, other in zip(left.observations, right.observations, strict=True):
            assert list(seen.arrays) == list(other.arrays)
            for name, array in other.arrays.items():
                np.testing.assert_array_equal(seen.arrays[name], array)


def test_frozen_weights_come_from_a_file_or_from_how_the_model_is_made(tmp_path):
    arrays = {"a": np.ones(3, dtype=np.float32)}
    save_file(arrays, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", **arrays)
    for name in ("w.safetensors", "w.npz"):
        np.testing.assert_array_equal(read_frozen(tmp_path / name)["a"], arrays["a"])
    np.savez(tmp_path / "nan.npz", a=np.full(3, np.nan))
    with pytest.raises(DataError, match="other than finite numbers"):
        read_frozen(tmp_path / "nan.npz")
    (tmp_path / "odd.safetensors").write_bytes(b"odd")
    with pytest.raises(DataError, match=r"cannot be read as \.safetensors"):
        read_frozen(tmp_path / "odd.safetensors")

    def build():
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
        with torch.no_grad():
            model[0].weight.fill_(0.5)
        return model

    assert initial_weights(build).keys() == {"0.weight"}


def test_frozen_weights_that_are_a_pipe_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "frozen.safetensors")
    with pytest.raises(DataError, match=r"frozen.safetensors cannot be read as .safetensors \(.*it is a pipe"):
        read_frozen(tmp_path / "frozen.safetensors")
