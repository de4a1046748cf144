"""What commands say of a cluster where nobody answers."""

import socket

import pytest

from fedattack.base.cluster import choose
from fedattack.base.errors import MESSAGE
from tests.attacks.test_contract import RUNS


@pytest.fixture
def nothing_chosen():
    yield
    choose("")


@pytest.fixture
def nobody():
    """Give an address where nobody listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_a_study_whose_cluster_does_not_answer_is_refused_in_one_line(call, nobody, nothing_chosen, tmp_path):
    words = ("--defence", "sparsify=0.5", "--seeds", "1", "--cluster", nobody)
    code, _, err = call("tradeoff", "quickstart", "--out", tmp_path / "out", *words)
    assert code == 2
    (line,) = [line for line in err.splitlines() if line.startswith("error:")]
    assert line.startswith(f"error: --cluster {nobody}: no Ray cluster answers there (")
    assert len(line) <= MESSAGE


def test_an_audit_that_would_use_the_cluster_is_refused_before_it_trains(
    call, nobody, nothing_chosen, tmp_path, monkeypatch
):
    monkeypatch.setenv("FEDATTACK_CLUSTER", nobody)
    code, _, err = call("audit", "prolin-inversion", "--out", tmp_path / "out")
    assert code == 2
    assert err.startswith(f"error: --cluster {nobody}: no Ray cluster answers there (")
    assert not (tmp_path / "out").exists()


def test_an_attack_that_does_not_gain_by_a_cluster_does_not_ask_it(call, nobody, nothing_chosen, tmp_path):
    folder = RUNS["attribute-baselines", "fedavg"](tmp_path)
    code, _, err = call("attack", "attribute-baselines", folder, "--cluster", nobody)
    assert code == 0
    assert "Ray" not in err
