"""What witnesses saw of private training becomes a claim, as soon as somebody claims an ε."""

from dataclasses import replace

import numpy as np

from fedattack.apps import running
from fedattack.apps.private import count_rounds, write_claim
from fedattack.apps.witnessing import witness_of
from fedattack.claims.check import check_claim
from fedattack.claims.claim import read_claim
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.record.folder import Part
from fedattack.witness import write_witness
from tests.apps.projects import OPACUS
from tests.apps.test_holding import rows
from tests.apps.worlds import MODEL, witness, write_record

PRIVATE = {
    "mechanism": "dp-sgd",
    "unit": "example",
    "clip": 1.0,
    "noise_multiplier": 1.1,
    "sampling": 0.2,
    "sampling_method": "poisson",
    "steps": 15,
    "learning_rate": 0.5,
    "batch_size": 8,
}


def test_the_claim_is_of_the_client_that_spends_most(tmp_path):
    witnesses = [
        witness("0", rows((0, 40)), private=PRIVATE),
        witness("1", rows((40, 60)), private=PRIVATE | {"sampling": 0.4, "steps": 9}),
        # It draws its examples more often, and hides them behind far more noise.
        witness("3", rows((40, 60)), private=PRIVATE | {"sampling": 0.5, "steps": 9, "noise_multiplier": 9.0}),
        witness("2", rows((60, 90))),
    ]
    path = write_claim(tmp_path, witnesses, rounds=3)
    text = path.read_text()
    assert "this is the client that spends most" in text
    path.write_text(text.replace("# epsilon =", "epsilon = 8").replace("# delta =", "delta = 1e-3"))
    claim = read_claim(path)
    assert (claim.sampling, claim.steps, claim.rounds, claim.noise_multiplier) == (0.4, 9, 3, 1.1)
    assert (claim.epsilon, claim.batch_size) == (8.0, 8.0)


def test_what_cannot_be_checked_comes_first_and_is_said(tmp_path):
    unknown = PRIVATE | {
        "sampling_method": "unknown",
        "remarks": "how examples are drawn is not known | a second thing",
    }
    witnesses = [witness("0", rows((0, 40)), private=PRIVATE), witness("1", rows((40, 60)), private=unknown)]
    text = write_claim(tmp_path, witnesses, rounds=3).read_text()
    assert "# Note: how examples are drawn is not known.\n# Note: a second thing.\n" in text
    assert "remarks" not in text
    path = tmp_path / "claim.toml"
    path.write_text(text.replace("# epsilon =", "epsilon = 8").replace("# delta =", "delta = 1e-3"))
    answer = check_claim(read_claim(path))
    assert answer.verdict == "cannot be checked"
    assert "it is not known how units are sampled" in answer.findings[0].reason


def test_there_is_none_where_nobody_trains_privately(tmp_path):
    assert write_claim(tmp_path, [witness("0", rows((0, 40)))], rounds=3) is None
    assert not [*tmp_path.iterdir()]


def test_a_claim_needs_no_model_and_is_there_where_no_attack_is_made(call, tmp_path, monkeypatch):
    out = tmp_path / "out"
    unknown = replace(MODEL, spec=None, input_shape=(2, 3), why="no import path is known")
    x, y = rows((0, 40))

    def run_app(*_, **__):
        part = Part(out, "")
        write_record(part.record, ["100"])
        seen = witness("0", (x.reshape(-1, 2, 3), y), (x[:0].reshape(-1, 2, 3), y[:0]), model=unknown, private=PRIVATE)
        write_witness(witness_of(part), seen)
        return [part]

    monkeypatch.setattr(running, "run_app", run_app)
    code, _, err = call("audit", OPACUS.copy(tmp_path), "--out", out)
    assert code == 0, err
    # What needs no model is asked; the page says why the rest is not.
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "app itself gives no losses: " in page
    assert f"call `fedattack claim {out} --claim {out / 'claim.toml'}`" in err
    claim = out / "claim.toml"
    claim.write_text(claim.read_text().replace("# epsilon =", "epsilon = 8").replace("# delta =", "delta = 1e-3"))
    assert read_claim(claim).steps == 15
    write_claim(out, [witness("0", (x, y), private=PRIVATE)], rounds=1)
    assert read_claim(claim).epsilon == 8
    code, _, err = call("claim", out, "--claim", claim)
    assert code in (0, 3), err


def test_rounds_are_those_in_which_a_client_took_part(tmp_path):
    writer = RecordWriter(tmp_path / "record")
    for number, nodes in enumerate((["1", "2"], ["2", "3"], ["4"], ["1", "2"]), start=1):
        replies = [Reply(node, "ok", {"w": np.ones(3, np.float32)}, 10) for node in nodes]
        writer.write(Exchange(number, {"w": np.zeros(3, np.float32)}, replies))
    writer.close()
    assert count_rounds(Record(tmp_path / "record")) == 3
