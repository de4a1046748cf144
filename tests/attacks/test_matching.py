"""Nameless arrays are those of the model, place by place; what does not match shows both sides."""

import numpy as np
import pytest
from torch import nn

from fedattack.attacks import ATTACKS, ModelKnowledge, read_knowledge
from fedattack.attacks.matching import NAMELESS, check_model, named_for
from fedattack.audit.quality import measure_quality
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ModelError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from tests.worlds.federation import MODEL, write_run


def without_names(source: Record, folder) -> Record:
    """Write the record again as a server sees it whose clients send lists."""

    def listed(arrays):
        return {str(place): array for place, array in enumerate(dict(arrays).values())}

    writer = RecordWriter(folder, seed=source.seed, facts=source.facts)
    for item in source:
        replies = [Reply(seen.node, "ok", listed(seen.arrays), seen.num_examples) for seen in item.observations]
        writer.write(Exchange(item.number, listed(item.common), replies, mean="message"))
    writer.close(final=listed(source.final))
    return Record(folder)


@pytest.fixture(scope="module")
def named(tmp_path_factory) -> Record:
    return Record(write_run(tmp_path_factory.mktemp("named")) / "record")


@pytest.fixture
def nameless(named, tmp_path) -> Record:
    return without_names(named, tmp_path / "nameless")


def test_an_attack_on_nameless_arrays_scores_as_on_named_ones(named, nameless):
    known = read_knowledge(named.path.parent / "knowledge")
    expected = ATTACKS["sia"].run(named, known, seed=1, device="cpu")
    got = ATTACKS["sia"].run(nameless, known, seed=1, device="cpu")
    assert got.notes == (NAMELESS, *expected.notes)
    for name, array in expected.arrays.items():
        assert np.array_equal(got.arrays[name], array, equal_nan=True), name


def test_the_judge_evaluates_nameless_models(named, nameless):
    known, truth = read_knowledge(named.path.parent / "knowledge"), read_truth(named.path.parent / "truth")
    expected = measure_quality(named, known, truth, device="cpu")
    assert None not in expected.accuracy
    assert measure_quality(named_for(nameless, known.model), known, truth, device="cpu") == expected


def test_the_view_has_the_models_names_everywhere_and_the_record_keeps_its_own(named, nameless):
    view = named_for(nameless, MODEL)
    assert [parameter.name for parameter in view.parameters] == [*MODEL.build().state_dict()]
    for ours, theirs in zip(view, named, strict=True):
        for left, right in ((ours.common, theirs.common), (ours.after, theirs.after)):
            assert {name: array.tobytes() for name, array in left.items()} == {
                name: array.tobytes() for name, array in right.items()
            }
        for left, right in zip(ours.observations, theirs.observations, strict=True):
            assert {name: delta.tobytes() for name, delta in left.update().items()} == {
                name: delta.tobytes() for name, delta in right.update().items()
            }
    assert [*nameless.final] == [parameter.name for parameter in nameless.parameters] == ["0", "1", "2", "3"]
    assert named_for(named, MODEL) is named


def norm_net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), *[nn.Linear(2, 2) for _ in range(4)])


def test_buffers_are_told_by_the_models_names_and_ten_comes_after_nine(tmp_path):
    state = {name: value.numpy() for name, value in norm_net().state_dict().items()}
    listed = {str(place): array for place, array in enumerate(state.values())}
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, listed, [Reply("a", "ok", {key: array + 1 for key, array in listed.items()}, 1)]))
    writer.close()
    known = ModelKnowledge(f"{__name__}:norm_net", (3,), 2)
    record = Record(tmp_path / "record")
    assert {parameter.role for parameter in record.parameters} == {"parameter"}
    view = named_for(record, known)
    assert [parameter.name for parameter in view.parameters if parameter.role == "buffer"] == [
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]
    assert [*view.rounds[0].observations[0].update()] == [name for name, _ in norm_net().named_parameters()]


def test_a_model_that_does_not_match_is_refused_with_both_sets_of_names_and_shapes(nameless):
    narrow = ModelKnowledge(spec="mlp", input_shape=MODEL.input_shape, classes=10, hidden=8)
    assert named_for(nameless, narrow) is nameless
    with pytest.raises(ModelError) as caught:
        check_model(narrow.build(), nameless)
    text = str(caught.value)
    assert "missing: fc1.weight (8, 30), fc1.bias (8,) and 2 more" in text
    assert "unexpected: 0 (64, 30), 1 (64,) and 2 more" in text
    assert str(nameless.path) in text
    assert "\n" not in text
