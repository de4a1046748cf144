"""The comparison with peers, without any peer: stand-ins written here take their places."""

import json
import sys
import textwrap
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.benchmarks.peers import __main__ as command
from tests.benchmarks.peers import attributes, getting, labels, membership, one_run, source
from tests.benchmarks.peers.rows import Method, missing_row, shown
from tests.benchmarks.peers.runs import recorded


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr(getting, "_ran", lambda *words: f"{words[0]} found no network")


@pytest.mark.parametrize(
    "peer",
    [
        getting.SIA_AUTHORS,
        getting.FEDKIT,
        getting.FEDMIA_AUTHORS,
        getting.LEAKPRO,
        getting.JAX_PRIVACY,
    ],
    ids=str,
)
def test_a_peer_that_is_not_there_is_named_with_the_reason(peer, no_network, tmp_path):
    with pytest.raises(getting.PeerMissingError, match=r"could not be cloned \(git found no network\); clone https"):
        peer.find(tmp_path)
    (tmp_path / peer.folder).mkdir()
    with pytest.raises(getting.PeerMissingError, match=f"{peer.files[0]} is not there; clone https"):
        peer.find(tmp_path)
    with pytest.raises(getting.PeerMissingError, match="--peers"):
        peer.find(None)


def test_a_file_whose_imports_are_not_installed_is_named(tmp_path):
    path = tmp_path / "attack.py"
    path.write_text("import no_such_package_anywhere\n", encoding="utf-8")
    with pytest.raises(getting.PeerMissingError, match=r"attack\.py cannot be imported: No module"):
        getting.load_file(path)


def test_differences_are_paired_by_examples():
    ours = Method("ours", "", [np.array([1.0, 1, 1, 0])], [0.2, 0.4, 0.3])
    theirs = Method("peer", "", [np.array([0.0, 1, 1, 1])])
    row = ours.row("here", theirs)
    assert (row["value"], row["above"], row["seconds"], row["beside"]) == (75, 0, 0.3, "peer")
    assert row["above_low"] < -20
    assert row["above_high"] > 20
    by_seed = Method("peer", "", [np.full(4, 0.5)])
    assert ours.row("here", by_seed)["above"] == 25
    assert shown(missing_row("here", "peer", "no network"))[2] == "not measured: no network"


SMALL = ("clients=3", "rounds=2", "targets=20", "size=300", "dataset=synthetic")


@pytest.fixture(scope="module")
def sources():
    with recorded("sia-fedavg", SMALL, 0) as run:
        yield source.Case.of(*run)


def test_authors_are_given_the_same_models_and_targets(sources, tmp_path):
    """The stand-in says how many targets it was given of each client, and whether a model fits the network."""
    path = tmp_path / "Sia.py"
    path.write_text(
        textwrap.dedent("""
            class SIA:
                def __init__(self, args, w_locals, dataset, dict_sia_users):
                    self.models, self.data, self.users = w_locals, dataset, dict_sia_users

                def attack(self, net):
                    print("as peers do")
                    for user, rows in self.users.items():
                        net.load_state_dict(self.models[user])
                        assert [net(self.data[row][0][None]).shape for row in rows] == [(1, 10)] * 20
                    return 100 * len(self.users) / 10
            """),
        encoding="utf-8",
    )
    rates = source.authors(getting.load_file(path), sources, sources.models())
    np.testing.assert_allclose(rates, [0.3, 0.3])


@pytest.fixture(scope="module")
def columns():
    with recorded("aia-model", ("clients=2", "rounds=6", "fraction=1"), 0) as run:
        yield attributes.Case.of(*run)


def test_fedkit_learn_is_given_the_same_rounds_examples_and_labels(columns):
    seen = []

    class Attack:
        def __init__(self, *, messages_metadata, dataset, sensitive_attribute_id, model_init_fn, **_):
            states = {}
            for mode, paths in messages_metadata.items():
                states[mode] = [torch.load(path)["model_state_dict"] for path in paths.values()]
            model_init_fn().load_state_dict(states["local"][0])
            self.sensitive_attribute = torch.stack([x for x, _ in dataset])[:, sensitive_attribute_id].clone()
            self.sensitive_attribute[0] += 1
            seen.append((states, torch.stack([y for _, y in dataset])))

        def execute_attack(self, steps):
            assert steps == attributes.STEPS

        def evaluate_attack(self):
            pass

    right = attributes.fedkit_matched(SimpleNamespace(AttributeInferenceAttack=Attack), columns, 1.0)
    assert right.sum() == len(right) - 2
    for (states, y), client in zip(seen, columns.clients, strict=True):
        assert y.shape == (len(client.rows), 1)
        assert len(states["global"]) == len(client.victim.gradients) == 5
        for sent, received, gradient in zip(states["local"], states["global"], client.victim.gradients, strict=True):
            for name, part in gradient.items():
                moved = (received[name] - sent[name]) / columns.knowledge.training.lr
                np.testing.assert_allclose(moved, part, rtol=1e-3, atol=1e-5)


def test_fedmias_authors_are_asked_about_every_client_in_turn():
    def first_file(pattern, epoch, clients, folder):
        asked = torch.load(pattern.format(0, epoch))["tarin_cos"].numpy()
        others = [torch.load(pattern.format(place, epoch))["test_cos"].numpy() for place in range(1, clients)]
        return None, (asked - np.sum(others, axis=0), None)

    measured = np.random.default_rng(0).normal(size=(2, 5, 3))
    found = membership.authors(SimpleNamespace(lira_attack_ldh_cosine=first_file), measured)
    # The clients' own cosines less those of all others.
    expected = (2 * measured - measured.sum(axis=2, keepdims=True)).mean(axis=0)
    np.testing.assert_allclose(found, expected)


def test_the_command_keeps_other_parts_and_names_what_is_missing(no_network, tmp_path, monkeypatch, capsys):
    out = tmp_path / "peers.json"
    out.write_text('{"sia": [{"kept": true}]}', encoding="utf-8")
    monkeypatch.setattr(one_run, "rows", partial(one_run.rows, runs=1))
    asked = ["--peers", str(tmp_path / "peers"), "--only", "epsilon", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["peers", *asked])
    command.main()
    found = json.loads(out.read_text(encoding="utf-8"))
    assert found["sia"] == [{"kept": True}]
    assert "git found no network" in json.dumps(found["epsilon"])
    assert "not measured" in capsys.readouterr().out


def test_leakpro_is_given_the_same_gradients(no_network, tmp_path):
    """The stand-in tells the label of the lowest gradient of the bias for all examples, and is given the model."""
    place = tmp_path / getting.LEAKPRO.folder / getting.LEAKPRO.files[0]
    place.parent.mkdir(parents=True)
    place.write_text(
        textwrap.dedent("""
            from types import SimpleNamespace

            class IDLGLabelInference:
                def infer_labels(self, gradients, model, num_samples):
                    assert [gradient.shape for gradient in gradients] == [part.shape for part in model.parameters()]
                    return SimpleNamespace(labels=gradients[-1].argmin().repeat(num_samples))

            class GengLabelInference(IDLGLabelInference):
                pass

            class DimitrovLabelInference(IDLGLabelInference):
                def __init__(self, epochs, batch_size, learning_rate):
                    assert (epochs, batch_size, learning_rate) in ((1, 8, 0.1), (5, 8, 0.1))
            """),
        encoding="utf-8",
    )
    found = {(row["setting"], row["method"]): row for row in labels.rows(tmp_path, 2)}
    assert len(found) == len(labels.SETTINGS) * (len(labels.OURS) + 2)
    ours, theirs = (found["gradients, new model", name]["value"] for name in ("ours, solved", "LeakPro, iDLG"))
    assert ours < 1 < theirs
    assert any("not measured" in shown(row)[2] for row in labels.rows(None, 1))


def test_jax_privacy_is_given_the_same_scores(tmp_path):
    """The stand-in bounds by the difference of means, which is what the Gaussian was moved by."""
    place = tmp_path / getting.JAX_PRIVACY.folder / getting.JAX_PRIVACY.files[0]
    place.parent.mkdir(parents=True)
    place.write_text(
        textwrap.dedent("""
            from dataclasses import dataclass

            @dataclass(frozen=True)
            class Split:
                seed: int

            @dataclass(frozen=True)
            class CanaryScoreAuditor:
                inside: object
                outside: object

                def epsilon_one_run(self, significance, delta, **options):
                    assert (round(significance, 9), delta) == (0.05, 1e-5)
                    return self.inside.mean() - self.outside.mean()

                epsilon_one_run_fdp = epsilon_from_gdp = epsilon_clopper_pearson = epsilon_one_run
            """),
        encoding="utf-8",
    )
    found = {(row["setting"], row["method"]): row for row in one_run.rows(tmp_path, 2)}
    assert len(found) == len(one_run.CANARIES) * len(one_run.SHIFTS) * (len(one_run.OURS) + 6)
    theirs = found["1000 canaries, ε = 4.4", "jax_privacy, one run, all thresholds"]
    assert theirs["value"] == pytest.approx(100 / 4.38, rel=0.1)
    ours = found["1000 canaries, ε = 4.4", one_run.FREE]["value"]
    assert theirs["above"] == pytest.approx(ours - theirs["value"], abs=0.02)
    assert any("not measured" in shown(row)[2] for row in one_run.rows(None, 1))
