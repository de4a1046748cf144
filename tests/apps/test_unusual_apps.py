"""Apps that send something else than a model's layers: each page says what is sent, and gives no false reason."""

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from sklearn.cluster import KMeans
from torch import nn

from fedattack.apps import answering, control
from fedattack.apps.app import App
from fedattack.apps.asking import Asker
from fedattack.apps.auditing import explaining, list_trusted
from fedattack.apps.order import Order
from fedattack.apps.questions import NOTHING_BESIDES
from fedattack.apps.witnessing import witnesses_of
from fedattack.attacks.knowledge import Sends
from fedattack.attacks.matching import as_models
from fedattack.audit.opened import open_records
from fedattack.base.errors import FedAttackError
from fedattack.record.folder import Part, RunFolder
from fedattack.report import read_run
from fedattack.runs.asked import known_to
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.projects import ASKED
from tests.apps.worlds import attack_all, pose_all, run_here

CLIENTS = 6


def unanswered(part: Part, client: ClientApp, main, app: App | None = None) -> tuple[dict, str]:
    """Run an app that no attack asks about; returns what its page holds, and why there is no answer."""
    server = ServerApp()
    server.main()(main)
    run_here(part, server, client, {}, CLIENTS)
    order = Order(part.folder, NOTHING_BESIDES, {}, lambda names: [])
    with pytest.raises(FedAttackError) as caught, explaining(order, Watch()):
        pose_all([part], app=app)
    return read_run(part.folder), str(caught.value)


def averaging(arrays: ArrayRecord):
    def main(grid, context):
        FedAvg(fraction_evaluate=0.0).start(grid=grid, initial_arrays=arrays, num_rounds=2)

    return main


def test_centres_with_the_sizes_of_their_clusters(tmp_path):
    client = ClientApp()

    @client.train()
    def train(message, context):
        x = np.random.default_rng(context.node_config["partition-id"]).normal(size=(12, 3))
        x[0] += 40
        fitted = KMeans(4, n_init=1, random_state=0).fit(x)
        arrays = {"middles": fitted.cluster_centers_, "sizes": np.bincount(fitted.labels_).astype(np.float64)}
        content = {
            "arrays": ArrayRecord({name: Array(value) for name, value in arrays.items()}),
            "metrics": MetricRecord({"num-examples": 12}),
        }
        return Message(RecordDict(content), reply_to=message)

    first = ArrayRecord({"middles": Array(np.zeros((4, 3))), "sizes": Array(np.zeros(4))})
    part, server = Part(tmp_path, ""), ServerApp()
    server.main()(averaging(first))
    run_here(part, server, client, {}, CLIENTS)
    posed = pose_all([part])
    why = posed[0].reasons["losses"].what
    # What needs no losses is asked: the rows that centres of one example are stand there.
    assert "plaintext" in attack_all([part], posed).scored
    judge_folder(part.folder, device="cpu", watch=Watch())
    run = read_run(part.folder)
    assert why.startswith(
        "KMeans, which has no weights that follow a loss, was fitted, and replies hold its cluster_cen"
    )
    assert "PyTorch" not in why
    holds = {row["name"]: row["holds"] for row in run["reached"]["rows"]}
    assert holds["sizes"].startswith("whole numbers that add up to the client's number of examples: group sizes; ")
    assert holds["middles"].startswith("a row for each group of sizes: if a group has a single example, a mean over ")
    assert any("its cluster_centers_ as middles" in note for note in run["notes"])


PUBLIC = torch.randn(20, 5, generator=torch.Generator().manual_seed(9))


def predicting(answer):
    """Clients that train on public examples, too, and reply what ``answer`` makes of their outputs for these."""
    client = ClientApp()

    @client.train()
    def train(message, context):
        site = context.node_config["partition-id"]
        torch.manual_seed(site)
        model, x, y = nn.Linear(5, 3), torch.randn(8, 5), torch.arange(8) % 3
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        labels = torch.cat([y, torch.arange(20) % 3])
        nn.functional.cross_entropy(model(torch.cat([x, PUBLIC])), labels).backward()
        optimizer.step()
        with torch.no_grad():
            content = {
                "arrays": ArrayRecord({"answers": Array(answer(model(PUBLIC)).numpy())}),
                "metrics": MetricRecord({"num-examples": 8}),
            }
        return Message(RecordDict(content), reply_to=message)

    return client


def test_predictions_on_public_examples_are_attacked_as_those_of_fedmd(tmp_path):
    part, server = Part(tmp_path, ""), ServerApp()
    server.main()(averaging(ArrayRecord({"answers": Array(np.zeros((20, 3)))})))
    run_here(part, server, predicting(lambda outputs: outputs.softmax(1)), {}, CLIENTS)
    (posed,) = pose_all([part])
    known = posed.knowledge
    np.testing.assert_array_equal(known.public, PUBLIC.numpy())
    assert known.sends == Sends(protocol="fedmd")
    assert any(note.startswith("clients send predictions and no weights, as in FedMD: answers") for note in posed.notes)
    attacked = attack_all([part], [posed])
    assert {"sia", "membership"} <= {*attacked.scored}
    # The public ones, which are of all, are asked about, too: here they have labels.
    assert len(known.targets) == 8 * CLIENTS + len(PUBLIC)
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch())
    run = read_run(part.folder)
    assert "sia.asr" in {finding.name for finding in findings}
    assert run["sent"]["arrays"][0] == {
        "array": "answers",
        "shape": [20, 3],
        "dtype": "float32",
        "kind": "outputs of the model",
        "clients": CLIENTS,
    }
    assert run["sent"]["unread"] == ""


def test_classes_of_public_examples_are_predictions_that_no_student_learns_from(tmp_path):
    client, first = predicting(lambda outputs: outputs.argmax(1)), ArrayRecord({"answers": Array(np.zeros(20))})
    run, why = unanswered(Part(tmp_path, ""), client, averaging(first))
    assert why.startswith("clients send predictions and no weights, as in FedMD: answers (20) are outputs of their mod")
    assert "all train on some examples that all have, as is usual for public ones" in why
    assert run["sent"]["arrays"][0]["kind"] == "outputs of the model"
    assert run["sent"]["unread"] == ""


def test_counts_by_day_where_nothing_is_trained(tmp_path):
    client = ClientApp()

    @client.query("events")
    def events(message, context):
        days = np.random.default_rng(context.node_config["partition-id"]).choice(30, size=7, replace=False)
        metrics = MetricRecord({"deaths": np.bincount(days, minlength=30).tolist()})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    def main(grid, context):
        messages = []
        for node in grid.get_node_ids():
            messages.append(Message(RecordDict({"config": ConfigRecord({"days": 30})}), node, "query.events"))
        grid.send_and_receive(messages)

    run, why = unanswered(Part(tmp_path, ""), client, main)
    assert why.startswith(
        "the run: nothing is trained, since the server sent no training message; the plaintext of query"
    )
    assert run["title"].startswith(f"What does the server learn? {CLIENTS} clients")
    assert run["audited"]["training"] == "none: the server sent no training message"
    (row,) = run["reached"]["rows"]
    assert (row["name"], row["kind"], row["shape"], row["clients"]) == ("deaths", "list", [30], CLIENTS)
    assert row["holds"].startswith(f"whole numbers; {7 * CLIENTS} of {7 * CLIENTS} that are not 0")


def send_vector(is_split: bool, is_difference: bool, is_flat: bool = True):
    """Clients that send a linear layer as one vector, and a server that sends it so, or array by array."""
    client = ClientApp()

    @client.train()
    def train(message, context):
        site = context.node_config["partition-id"]
        rng = torch.Generator().manual_seed(site)
        x, y = torch.randn(4, 6, generator=rng), torch.arange(4) % 3
        model, arrays = nn.Linear(6, 3), message.content["arrays"]
        before = torch.cat([torch.from_numpy(array.numpy()).float().flatten() for array in arrays.values()])
        nn.utils.vector_to_parameters(before.clone(), model.parameters())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        after = nn.utils.parameters_to_vector(model.parameters()).detach()
        sent = after - before if is_difference else after
        replied = {"flat": Array(sent.numpy())}
        if not is_flat:
            replied = {"weight": Array(sent[:18].reshape(3, 6).numpy()), "bias": Array(sent[18:].numpy())}
        content = {
            "arrays": ArrayRecord(replied),
            "metrics": MetricRecord({"num-examples": 4}),
        }
        return Message(RecordDict(content), reply_to=message)

    model = nn.Linear(6, 3)
    first = ArrayRecord(model.state_dict())
    if not is_split:
        first = ArrayRecord({"flat": Array(nn.utils.parameters_to_vector(model.parameters()).detach().numpy())})

    def main(grid, context):
        messages = [Message(RecordDict({"arrays": first}), node, "train") for node in grid.get_node_ids()]
        grid.send_and_receive(messages)

    return client, main


def audit_vector(folder, *how, **further):
    folder.mkdir()
    torch.manual_seed(2)
    client, main = send_vector(*how, **further)
    part, server = Part(folder, ""), ServerApp()
    server.main()(main)
    run_here(part, server, client, {}, CLIENTS)
    (posed,) = pose_all([part])
    attack_all([part], [posed])
    findings, _ = judge_folder(part.folder, device="cpu", watch=Watch(), trusted=list_trusted([posed]))
    return {finding.name: finding for finding in findings}, posed, read_run(folder)


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("is_difference", [False, True])
def test_a_vector_of_weights_is_attacked_as_the_model_that_it_is(is_split, is_difference, tmp_path):
    found, posed, run = audit_vector(tmp_path / "flat", is_split, is_difference)
    # What arrays are sent one by one gives the same findings.
    twins, _, _ = audit_vector(tmp_path / "twin", True, is_difference, is_flat=False)
    assert posed.knowledge.model is not None, posed.reasons
    flat = posed.knowledge.sends.flat
    assert (flat.vector, flat.names, flat.shapes) == ("flat", ("weight", "bias"), ((3, 6), (3,)))
    # Also what reads gradients of the layers, which no app gives.
    assert {"sia", "membership", "exact", "labels"} <= {finding.attack for finding in found.values()}
    assert found["sia.asr"].verdict == "leak"
    assert {*found} == {*twins}
    for name, finding in found.items():
        # Of plaintext the names of arrays are others.
        if finding.attack != "plaintext":
            assert (finding.value, finding.verdict) == (pytest.approx(twins[name].value), twins[name].verdict), name
    (row,) = run["sent"]["arrays"]
    kind = "difference" if is_difference else "weights"
    assert (row["array"], row["kind"]) == ("flat", f"{kind}, 2 arrays of the model in one vector")
    assert run["sent"]["unread"] == ""
    said = " ".join(run["notes"])
    assert "clients send their model as one vector, flat: the attacker takes it for the 2 arrays of the model" in said
    assert "is not what the client received or sent" not in said


def plant_in_vector(folder, monkeypatch, *how, **further):
    """Return what replies are after a step on a client's own target, and losses after some training on these."""
    folder.mkdir()
    torch.manual_seed(2)
    client, main = send_vector(*how, **further)
    part, server = Part(folder, ""), ServerApp()
    server.main()(main)
    run_here(part, server, client, {}, CLIENTS)
    (posed,) = pose_all([part])
    monkeypatch.setattr(answering, "load_app", lambda *words: client)
    trusted = list_trusted([posed])
    (run,) = open_records(RunFolder(folder), lambda part: known_to(part, trusted), truth=True)
    asker, witnesses = Asker(App(ASKED.where, {}, CLIENTS)), witnesses_of(part)
    stepped = None
    if not posed.knowledge.sends or not posed.knowledge.sends.factors:
        planted, share = control._step(folder / "steps", (1,), asker, run, witnesses, None)
        assert share == (CLIENTS, CLIENTS)
        rounds = as_models(planted[1].sent, posed.knowledge).rounds
        stepped = [dict(reply.arrays) for round_ in rounds for reply in round_.observations]
    planted, share = control._train_further(folder, (4,), False, asker, run, witnesses, None)
    assert share == (CLIENTS, CLIENTS)
    return stepped, planted[4].knowledge.answers


@pytest.mark.slow
@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("is_difference", [False, True])
def test_a_control_plants_in_a_vector_what_it_plants_in_the_arrays_that_stand_in_it(
    is_split, is_difference, tmp_path, monkeypatch, here
):
    stepped, answers = plant_in_vector(tmp_path / "flat", monkeypatch, is_split, is_difference)
    twins, others = plant_in_vector(tmp_path / "twin", monkeypatch, True, is_difference, is_flat=False)
    np.testing.assert_allclose(answers.losses, others.losses, rtol=1e-6)
    np.testing.assert_allclose(answers.products, others.products, rtol=1e-4, atol=1e-7)
    assert (stepped is None) == is_difference
    for mine, twin in zip(stepped or (), twins or (), strict=True):
        assert [*mine] == [*twin] == ["weight", "bias"]
        for name, array in mine.items():
            np.testing.assert_array_equal(array, twin[name])
