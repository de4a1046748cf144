"""An app under SecAgg+ is audited as it is: sums are recorded, and the attacks on sums are judged by witnesses."""

import json

import numpy as np
import pytest

from fedattack.apps.auditing import list_trusted
from fedattack.apps.outside import observe_command
from fedattack.apps.witnessing import witness_of
from fedattack.attacks import read_targets
from fedattack.audit.truth import read_truth
from fedattack.base.errors import ConfigError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part, write_study
from fedattack.runs.pipeline import judge_folder
from fedattack.runs.watch import Watch
from tests.apps.projects import CLIENTS, SECAGG, fedattack
from tests.apps.test_foreign import superlink  # noqa: F401 - a fixture
from tests.apps.test_holding import World
from tests.apps.worlds import FEATURES, attack_all, pose_all, run_here
from tests.witness.apps import load


def held_by(x) -> set[str]:
    """The clients that hold an example, by the project's own functions."""
    data = [load(SECAGG, "task").load_data(client)[0][0].numpy() for client in range(CLIENTS)]
    return {str(client) for client, own in enumerate(data) if any(np.array_equal(x, each) for each in own)}


def judged(part: Part, scored: set[str]) -> dict:
    """Go on as audit does; returns the findings of attacks, of which these have scores."""
    posed = pose_all([part])
    attacked = attack_all([part], posed)
    assert {*attacked.scored} == {"membership-aggregate", "plaintext"} | scored
    found, _ = judge_folder(part.folder, device="cpu", watch=Watch(), trusted=list_trusted(posed))
    return {f"{item.attack}.{item.metric}": item for item in found}


@pytest.mark.slow
def test_what_is_witnessed_under_secagg_judges_attacks_on_sums(tmp_path):
    part = Part(tmp_path, "")
    run_here(part, load(SECAGG, "server_app").app, load(SECAGG, "client_app").app, SECAGG.config, CLIENTS)
    record = Record(part.record)
    assert (record.view, len(record), record.status) == ("aggregate", 3, "complete")
    found = judged(part, {"exact", "labels"})
    truth, targets = read_truth(part.truth), read_targets(part.knowledge / "targets.npz")
    trained = {truth.nodes[node] for item in record for node in item.participants}
    for x, owner in zip(targets.x, truth.owners, strict=True):
        assert held_by(x) == {owner} <= trained
    # Nobody evaluates in this app, so that there is no example to compare with.
    members = [item for item in found.values() if item.attack == "membership-aggregate"]
    assert {item.verdict for item in members} == {"not applicable"}
    # Labels take no example to compare with: other clients' labels are the null.
    assert found["labels.right"].verdict != "not applicable"


def write_sums(part: Part, answer) -> None:
    """A record of sums of the three clients of a world; `answer` says in which round a node answers."""
    arrays = {"weight": np.zeros((4, FEATURES), np.float32), "bias": np.zeros(4, np.float32)}
    writer = RecordWriter(part.record, view="aggregate", aggregation={"kind": "mean", "by": "secagg+"})
    for number in range(1, 4):
        moved = {name: array + np.float32(number) for name, array in arrays.items()}
        replies = [Reply(node, "ok" if answer(node, number) else "missing", None, 10) for node in ("100", "101", "102")]
        writer.write(Exchange(number, moved, replies, aggregate=moved))
    writer.close(final=moved)


@pytest.mark.parametrize("away", [None, "102"])
@pytest.mark.slow
def test_membership_in_sums_is_judged_by_those_who_are_in_them(away, tmp_path):
    part = Part(tmp_path, "")
    write_sums(part, lambda node, number: node != away)
    write_study(tmp_path, {"commands": ["fedattack audit ."], "seeds": [0]})
    from fedattack.witness import write_witness

    for each in World.witnesses(10**6):
        write_witness(witness_of(part), each)
    # Each array moves by one number in all its entries: that is no layer which learned.
    found = judged(part, set())
    truth = read_truth(part.truth)
    assert found["membership-aggregate.tpr-at-1pct-fpr"].verdict != "not applicable"
    assert found["membership-aggregate.auc"].chance == 0.5
    assert truth.clients == ("0", "1", "2")
    assert ("2" in truth.owners) is (away is None)
    targets = read_targets(part.knowledge / "targets.npz")
    owners = [World.owners(x) for x in targets.x]
    assert all(names != ["2"] for names in owners) is (away is not None)
    notes = [note for note in truth.notes if "a sum may lack what the clients 2 trained" in note]
    assert len(notes) == (away is not None)


def test_single_replies_of_an_app_under_secagg_are_refused_before_it_runs(tmp_path):
    where = SECAGG.copy(tmp_path)
    command = ["flwr", "run", str(where), "--stream"]
    with pytest.raises(ConfigError, match=r"server_app.py makes a SecAggPlusWorkflow, .* leave out --view"):
        observe_command(command, tmp_path / "record", {"view": "individual"})
    assert not (tmp_path / "record").exists()


@pytest.mark.long
@pytest.mark.flower
def test_one_command_audits_an_app_under_secagg(tmp_path):
    """Its server evaluates on examples that nobody holds, so that membership in sums can be judged."""
    where, out = SECAGG.copy(tmp_path), tmp_path / "out"
    path = where / SECAGG.package / "server_app.py"
    evaluated = (
        "\n\ndef evaluate(server_round, parameters, config):\n"
        "    net = make_model()\n    put(net, parameters)\n    x, y = load_data(9)[0]\n"
        "    return float(nn.functional.cross_entropy(net(x), y)), {}\n"
    )
    text = path.read_text().replace(
        "import arrays_of, make_model\n",
        "import arrays_of, make_model, load_data, put\nfrom torch import nn\n" + evaluated,
    )
    path.write_text(text.replace("fraction_evaluate=0.0,", "fraction_evaluate=0.0, evaluate_fn=evaluate,"))
    done = fedattack("audit", str(where), "--out", str(out), "--supernodes", "4", "--json", cwd=tmp_path)
    record = Record(out / "record")
    assert record.view == "aggregate"
    assert [len(item.participants) for item in record] == [3, 3, 3]
    found = {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}
    assert {item["attack"] for item in found.values()} == {"membership-aggregate", "exact", "labels", "plaintext"}
    assert found["membership-aggregate.tpr-at-1pct-fpr"]["verdict"] != "not applicable"
    truth, targets = read_truth(out / "truth"), read_targets(out / "knowledge" / "targets.npz")
    assert {*truth.owners} == {"", *(truth.nodes[node] for node in record.nodes)}
    for x, owner in zip(targets.x, truth.owners, strict=True):
        assert held_by(x) == ({owner} - {""})
    assert "sums alone" in done.stderr


@pytest.mark.long
@pytest.mark.flower
def test_an_app_under_secagg_is_observed_from_outside(tmp_path, superlink):  # noqa: F811
    where = SECAGG.copy(tmp_path)
    done = fedattack(
        *("observe", "--out", str(tmp_path / "record"), "--json", "--", "flwr", "run", str(where), "--stream"),
        *("--federation-config", "num-supernodes=4 client-resources-num-cpus=1 init-args-num-cpus=1"),
        cwd=tmp_path,
    )
    assert json.loads(done.stdout.splitlines()[-1])["rounds"] == 3
    record = Record(tmp_path / "record")
    assert (record.view, record.manifest["aggregation"]["by"]) == ("aggregate", "secagg+")
