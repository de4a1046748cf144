"""What witnesses saw of private training becomes a claim, as soon as somebody claims an ε."""

from fedattack.claims.claim import read_claim
from fedattack.foreign.private import write_claim
from tests.foreign.test_holding import rows
from tests.foreign.worlds import witness

PRIVATE = {
    "mechanism": "dp-sgd",
    "unit": "example",
    "clip": 1.0,
    "noise_multiplier": 1.1,
    "sampling": 0.2,
    "steps": 15,
    "learning_rate": 0.5,
    "batch_size": 8,
}


def test_the_claim_is_of_the_client_that_draws_most_often(tmp_path):
    witnesses = [
        witness("0", rows((0, 40)), private=PRIVATE),
        witness("1", rows((40, 60)), private=PRIVATE | {"sampling": 0.4, "steps": 9}),
        witness("2", rows((60, 90))),
    ]
    path = write_claim(tmp_path, witnesses, rounds=3)
    text = path.read_text()
    assert "the client that draws each example most often" in text
    path.write_text(text.replace("# epsilon =", "epsilon = 8").replace("# delta =", "delta = 1e-3"))
    claim = read_claim(path)
    assert (claim.sampling, claim.steps, claim.rounds, claim.noise_multiplier) == (0.4, 9, 3, 1.1)
    assert (claim.epsilon, claim.batch_size) == (8.0, 8.0)


def test_there_is_none_where_nobody_trains_privately(tmp_path):
    assert write_claim(tmp_path, [witness("0", rows((0, 40)))], rounds=3) is None
    assert not [*tmp_path.iterdir()]
