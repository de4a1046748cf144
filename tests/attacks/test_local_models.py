"""What a server can rebuild of its clients' models, protocol by protocol."""

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, read_knowledge
from fedattack.attacks.knowledge import ModelKnowledge, Sends
from fedattack.attacks.local_models import REBUILD, local_models
from fedattack.attacks.matching import as_models, named_for
from fedattack.base.errors import ModelError, NeedsError
from fedattack.learning import full_gradient, train_local
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.format import PROTOCOLS
from tests.worlds.federation import EACH, LR, MODEL, write_run

SIA = ATTACKS["sia"]
CPU = torch.device("cpu")
STATE = {name: value.numpy() for name, value in MODEL.build().state_dict().items()}
GRADIENT = {name: np.full_like(array, 0.5) for name, array in STATE.items()}


def rebuilt(record: Record, knowledge: Knowledge, notes=None):
    models_of = local_models(record, knowledge, seed=0, device=CPU, notes=[] if notes is None else notes)
    return [{seen.node: dict(state) for seen, state in models_of(item)} for item in record]


def write_fedsgd(path, replies, *, common=STATE, facts=None) -> Record:
    writer = RecordWriter(path, protocol="fedsgd", facts={"lr": LR} if facts is None else facts)
    writer.write(Exchange(1, common, replies))
    writer.close()
    return Record(path)


def test_source_inference_takes_every_protocol_that_there_is_a_rule_for():
    assert set(SIA.needs.protocols) == set(REBUILD) <= set(PROTOCOLS)


def test_fedavg_s_local_model_is_what_was_sent(tmp_path):
    folder = write_run(tmp_path)
    record = Record(folder / "record")
    for item, models in zip(record, rebuilt(record, read_knowledge(folder / "knowledge")), strict=True):
        assert list(models) == [seen.node for seen in item.observations]
        for seen in item.observations:
            for name, array in seen.arrays.items():
                np.testing.assert_array_equal(models[seen.node][name], array)


def test_fedsgd_s_local_model_is_the_received_one_a_step_along_the_client_s_own_gradient(tmp_path):
    folder = write_run(tmp_path, protocol="fedsgd")
    record = Record(folder / "record")
    for item, models in zip(record, rebuilt(record, read_knowledge(folder / "knowledge")), strict=True):
        for seen in item.observations:
            for name, before in item.common.items():
                exact = before.astype(np.float64) - LR * seen.arrays[name].astype(np.float64)
                np.testing.assert_array_equal(models[seen.node][name], exact.astype(np.float32))


def test_a_gradient_and_the_model_that_fedavg_sends_after_one_step_tell_the_same(tmp_path):
    """One step over all records: FedSGD's rebuilt model is FedAvg's sent one, and so are the attack's scores."""
    draw = np.random.default_rng(0)
    folder = write_run(tmp_path / "targets")
    known = read_knowledge(folder / "knowledge")
    sent, gradients = [], []
    for client in range(3):
        x = draw.normal(size=(EACH, *MODEL.input_shape)).astype(np.float32)
        y = draw.integers(MODEL.classes, size=EACH)
        model = MODEL.build()
        model.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in STATE.items()})
        gradients.append(Reply(f"node{client}", "ok", full_gradient(model, x, y, seed=1).arrays, EACH))
        train_local(model, x, y, epochs=1, batch_size=0, lr=LR, momentum=0.0, seed=1)
        sent.append(Reply(f"node{client}", "ok", {n: v.numpy().copy() for n, v in model.state_dict().items()}, EACH))
    writer = RecordWriter(tmp_path / "fedavg")
    writer.write(Exchange(1, STATE, sent))
    writer.close()
    fedavg, fedsgd = Record(tmp_path / "fedavg"), write_fedsgd(tmp_path / "fedsgd", gradients)
    for left, right in zip(rebuilt(fedavg, known)[0].values(), rebuilt(fedsgd, known)[0].values(), strict=True):
        for name, array in left.items():
            np.testing.assert_allclose(right[name], array, rtol=1e-6, atol=1e-7)
            assert np.abs(array - STATE[name]).max() > 1e-3
    left, right = (SIA.run(record, known, device="cpu") for record in (fedavg, fedsgd))
    np.testing.assert_allclose(left.arrays["losses"], right.arrays["losses"], rtol=1e-5)
    margin = np.sort(left.arrays["combined"], axis=1)
    clear = margin[:, -1] - margin[:, -2] > 1e-5
    assert clear.mean() > 0.9
    np.testing.assert_array_equal(left.arrays["decisions"][clear], right.arrays["decisions"][clear])


def test_a_client_that_was_sent_another_model_steps_from_that(tmp_path):
    own = {name: array + 1 for name, array in STATE.items()}
    record = write_fedsgd(tmp_path / "r", [Reply("a", "ok", GRADIENT), Reply("b", "ok", GRADIENT, received=own)])
    (models,) = rebuilt(record, Knowledge(model=MODEL))
    for name, array in STATE.items():
        np.testing.assert_allclose(models["a"][name], array - 0.5 * LR, atol=1e-6)
        np.testing.assert_allclose(models["b"][name], array + 1 - 0.5 * LR, atol=1e-6)


@pytest.mark.parametrize("facts", [{}, {"lr": float("nan")}, {"lr": 0.0}, {"lr": "0.1"}, {"lr": True}])
def test_without_a_learning_rate_a_gradient_makes_no_model(facts, tmp_path):
    record = write_fedsgd(tmp_path / "r", [Reply("a", "ok", GRADIENT)], facts=facts)
    found = f"it is {facts['lr']!r}" if facts else "there is none"
    with pytest.raises(NeedsError, match=f"the positive number 'lr' among the record's facts, and {found}") as caught:
        SIA.run(record, read_knowledge(write_run(tmp_path / "run") / "knowledge"), device="cpu")
    assert "\n" not in str(caught.value)


def test_replies_that_cannot_be_used_are_named_and_cannot_win(tmp_path):
    broken = {name: np.full_like(array, np.inf) for name, array in GRADIENT.items()}
    odd = {**GRADIENT, "fc2.bias": np.zeros(7, dtype=np.float32)}
    replies = [Reply("good", "ok", GRADIENT, 5), Reply("inf", "ok", broken, 5), Reply("odd", "ok", odd, 5)]
    replies += [Reply("gone", "failed", reason="the client raised"), Reply("late", "late", GRADIENT, of_round=0)]
    record = write_fedsgd(tmp_path / "r", replies)
    scores = SIA.run(record, read_knowledge(write_run(tmp_path / "run") / "knowledge"), device="cpu")
    assert set(scores.arrays["decisions"]) == {scores.facts["clients"].index("good")}
    notes = " ".join(scores.notes)
    assert "client inf: its model gives losses that are not finite" in notes
    assert "client odd left out" in notes
    assert "fc2.bias" in notes
    assert "gone" not in notes


def test_a_gradient_without_the_model_that_it_is_of_is_left_out(tmp_path):
    record = write_fedsgd(tmp_path / "r", [Reply("a", "ok", GRADIENT)], common=None)
    notes: list[str] = []
    assert rebuilt(record, Knowledge(model=MODEL), notes) == [{}]
    assert notes == ["round 1, client a left out: the record does not hold the model that it was sent"]


def test_a_gradient_of_a_model_of_other_shapes_is_left_out(tmp_path):
    writer = RecordWriter(tmp_path / "r", protocol="fedsgd", facts={"lr": LR})
    writer.write(Exchange(1, STATE, [Reply("a", "ok", GRADIENT)]))
    writer.write(Exchange(2, {**STATE, "fc1.weight": STATE["fc1.weight"].ravel()}, [Reply("a", "ok", GRADIENT)]))
    writer.close()
    notes: list[str] = []
    assert [len(models) for models in rebuilt(Record(tmp_path / "r"), Knowledge(model=MODEL), notes)] == [1, 0]
    assert "round 2, client a left out: what it was sent: the parameters are not those of this model" in notes[0]


def test_a_gradient_whose_model_lies_in_a_damaged_file_is_left_out(tmp_path):
    writer = RecordWriter(tmp_path / "r", protocol="fedsgd", facts={"lr": LR})
    writer.write(Exchange(1, STATE, [Reply("a", "failed")]))
    writer.write(Exchange(2, STATE, [Reply("a", "ok", GRADIENT)]))
    writer.close()
    file = tmp_path / "r" / "rounds" / "000000.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    notes: list[str] = []
    assert rebuilt(Record(tmp_path / "r", skip_damaged=True), Knowledge(model=MODEL), notes) == [{}]
    assert "round 2, client a left out: the record does not hold the model that it was sent" in notes[0]


@pytest.mark.parametrize("protocol", sorted({*REBUILD} - {"fedmd"}))
def test_models_that_do_not_go_with_the_record_are_refused(protocol, tmp_path):
    record = Record(write_run(tmp_path, protocol=protocol) / "record")
    wide = ModelKnowledge(**{**vars(MODEL), "hidden": 65})
    with pytest.raises(ModelError, match="fc1"):
        rebuilt(record, Knowledge(model=wide))
    with pytest.raises(NeedsError, match="names no model"):
        rebuilt(record, Knowledge())


def test_a_protocol_without_a_rule_and_a_model_that_fedsgd_cannot_step_are_refused(tmp_path):
    normed = ModelKnowledge(spec="tests.clients.test_clients:normed", input_shape=(64,), classes=10)
    state = {name: value.numpy() for name, value in normed.build().state_dict().items()}
    record = write_fedsgd(tmp_path / "normed", [Reply("a", "ok", state)], common=state)
    with pytest.raises(ModelError, match="normalises by the batch"):
        rebuilt(record, Knowledge(model=normed))
    for protocol in set(PROTOCOLS) - set(REBUILD):
        RecordWriter(tmp_path / protocol, protocol=protocol).close()
        with pytest.raises(NeedsError, match=f"of the protocol {protocol}, from which no local model is rebuilt"):
            rebuilt(Record(tmp_path / protocol), Knowledge(model=MODEL))


@pytest.mark.parametrize("factor", [1.0, -1.0, -5.0])
def test_a_reply_of_differences_is_read_as_the_received_model_moved_by_them(tmp_path, factor):
    draw = np.random.default_rng(1)
    models = {
        node: {name: array + draw.normal(size=array.shape).astype(np.float32) for name, array in STATE.items()}
        for node in ("0", "1")
    }

    def write(path, arrays_of):
        writer = RecordWriter(path)
        writer.write(Exchange(1, STATE, [Reply(node, "ok", arrays=arrays_of(node), num_examples=3) for node in models]))
        writer.close()
        return Record(path)

    plain = write(tmp_path / "models", models.__getitem__)
    differences = write(
        tmp_path / "differences",
        lambda node: {name: np.float32(factor) * (models[node][name] - STATE[name]) for name in STATE},
    )
    known = Knowledge(model=MODEL, sends=Sends((), {"0": factor}))
    view = as_models(differences, known)
    (item,), (whole,) = rebuilt(view, known), rebuilt(plain, Knowledge(model=MODEL))
    # Of the other node no factor is known.
    assert [*item] == ["0"]
    for name, array in item["0"].items():
        np.testing.assert_allclose(array, whole["0"][name], atol=1e-5)
    moved = next(iter(view)).observations[0].update()
    for name, array in moved.items():
        np.testing.assert_allclose(array, models["0"][name] - STATE[name], atol=1e-5)


def test_of_a_doubled_list_the_model_s_arrays_are_taken(tmp_path):
    names = [*map(str, range(2 * len(STATE)))]
    doubled = dict(zip(names, [*STATE.values(), *GRADIENT.values()], strict=True))
    writer = RecordWriter(tmp_path / "record")
    writer.write(Exchange(1, doubled, [Reply("0", "ok", arrays=doubled, num_examples=3)]))
    writer.close()
    known = Knowledge(model=MODEL, sends=Sends(tuple(names[: len(STATE)])))
    view = named_for(as_models(Record(tmp_path / "record"), known), MODEL)
    (models,) = rebuilt(view, known)
    assert [*models["0"]] == [*STATE]
    for name, array in models["0"].items():
        np.testing.assert_array_equal(array, STATE[name])
    assert [*next(iter(view)).common] == [*STATE]
