"""Observers record less where they are told to, and say before the first round how much that is."""

import logging
import shutil
from collections import namedtuple

import numpy as np
import pytest
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedattack.base.errors import ConfigError
from fedattack.observe import ObservedLegacyStrategy, ObservedServerApp, ObservedStrategy
from fedattack.record import Keep, Record, check_record, shrink_record
from fedattack.record.size import Size
from tests.observe import apps
from tests.observe.test_observers import NODES, ROUNDS, context, run_message
from tests.worlds.local_grid import LocalGrid

LESS = {"every": 2, "clients": 0.5}

Usage = namedtuple("Usage", "total used free")


def observed(out, kind, strategy=FedAvg, **options):
    """Run four rounds of five clients, observed at the strategy or the grid, of either generation."""
    results = {}
    if kind == "legacy":
        made = ObservedLegacyStrategy(apps.legacy_fedavg(results), out, names=["layer.weight", "layer.bias"], **options)
        app = apps.legacy_server(lambda: made, ROUNDS)
        app(LocalGrid(ClientApp(client_fn=apps.client_fn), NODES), context())
        made.close()
        return
    make = (lambda: ObservedStrategy(strategy(), out, **options)) if kind == "strategy" else strategy
    app = apps.message_server(make, ROUNDS, results)
    if kind == "grid":
        app = ObservedServerApp(app, out, **options)
    app(LocalGrid(apps.message_client, NODES), context())


@pytest.mark.parametrize("kind", ["strategy", "grid", "legacy"])
def test_every_observer_records_what_it_is_told_to(kind, tmp_path):
    observed(tmp_path / "whole", kind)
    observed(tmp_path / "less", kind, **LESS)
    whole, less = Record(tmp_path / "whole"), Record(tmp_path / "less", thinned=True)
    assert check_record(tmp_path / "less").whole
    assert less.keep == Keep(2, 0.5)
    assert [item.number for item in less] == [1, 3]
    for item in less:
        of_whole = {seen.node: seen for seen in whole.rounds[item.number - 1].observations}
        assert {seen.node for seen in item.observations} == of_whole.keys()
        kept = [seen for seen in item.observations if seen.arrays is not None]
        assert len(kept) == 3
        for seen in kept:
            assert {"layer.weight", "layer.bias"} <= seen.arrays.keys()
            for name, array in seen.arrays.items():
                np.testing.assert_allclose(array, of_whole[seen.node].arrays[name], rtol=0, atol=1e-6)


def test_the_run_ends_in_the_same_model_as_without(tmp_path):
    expected = run_message(FedAvg, None, None)
    got = run_message(lambda: ObservedStrategy(FedAvg(), tmp_path / "r", **LESS), None, None)
    assert {name: array.tobytes() for name, array in got.items()} == {n: a.tobytes() for n, a in expected.items()}


def test_an_aggregate_view_is_thinned_too(tmp_path):
    observed(tmp_path / "whole", "strategy", view="aggregate")
    observed(tmp_path / "less", "strategy", view="aggregate", every=3)
    whole, less = Record(tmp_path / "whole"), Record(tmp_path / "less", thinned=True)
    assert [item.number for item in less] == [1, 4]
    for item in less:
        for name, array in item.aggregate.items():
            np.testing.assert_allclose(array, whole.rounds[item.number - 1].aggregate[name], rtol=0, atol=1e-6)
        assert all(seen.arrays is None for seen in item.observations)


@pytest.mark.parametrize(("options", "words"), [({"every": 0}, "every=0"), ({"clients": 0}, "clients=0")])
def test_a_wrong_option_is_refused_before_the_run(tmp_path, options, words):
    with pytest.raises(ConfigError, match=words):
        ObservedStrategy(FedAvg(), tmp_path / "r", **options)
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("kind", "begins"),
    [
        ("strategy", "this run will write about 740 bytes (4 rounds of 5 x 36 bytes); "),
        ("grid", "each round will write about 180 bytes (5 x 36 bytes); "),
        ("legacy", "each round will write about 180 bytes (5 x 36 bytes); "),
    ],
)
def test_the_log_says_once_how_much_will_be_written(kind, begins, tmp_path, caplog):
    # The model has nine numbers, and a count that the legacy app does not send.
    begins = begins if kind == "legacy" else begins.replace("36", "44").replace("740", "924").replace("180", "220")
    with caplog.at_level(logging.INFO, "fedattack"):
        observed(tmp_path / "r", kind)
    told = [record.getMessage() for record in caplog.records if "will write" in record.getMessage()]
    assert len(told) == 1
    assert told[0].startswith(begins)
    assert " are free" in told[0]


def test_a_disk_that_is_too_small_is_warned_of_before_the_run_and_costs_no_round(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1000, 400, 600))
    observed(tmp_path / "r", "strategy")
    (warning,) = [record for record in caplog.records if "will write" in record.getMessage()]
    assert warning.levelno == logging.WARNING
    assert "600 bytes are free, enough for 2 rounds: the recording will end there, and the training go on" in (
        warning.getMessage()
    )
    assert len(Record(tmp_path / "r")) == ROUNDS


@pytest.mark.parametrize("strategy", [FedAvg, FedMedian])
@pytest.mark.parametrize(
    "keep",
    [Keep(), Keep(every=3), Keep(clients=0.4)],
    ids=lambda keep: "-".join(keep.kinds) or "whole",
)
def test_what_is_foretold_is_written(keep, strategy, tmp_path, monkeypatch):
    """Arrays alone: the rest is a few hundred bytes a reply. A server that does not average writes a model more."""
    wide = np.zeros((300, 200), dtype=np.float32)
    monkeypatch.setattr(apps, "initial_arrays", lambda: {"layer.weight": wide, "layer.bias": wide[0].copy()})
    options = {"every": keep.every, "clients": keep.clients}
    try:
        observed(tmp_path / "r", "strategy", strategy, **options)
    except TypeError as cause:
        if "Invalid arguments for Array" in str(cause):
            pytest.skip("this version of Flower fails without an observer, too")
        raise
    size = Size.of(apps.initial_arrays(), NODES, keep, view="individual", protocol="fedavg")
    foretold = size.run(ROUNDS)
    # One model more for each kept round: before it, or after it.
    slack = 0 if strategy is FedAvg else foretold / size.round * size.once + ROUNDS * size.once
    written = sum(path.stat().st_size for path in (tmp_path / "r").rglob("*.safetensors"))
    assert 0.7 * foretold - 2000 < written < foretold + slack + 20_000


def test_shrinking_a_recorded_run_takes_the_same_clients(tmp_path):
    observed(tmp_path / "whole", "strategy", seed=3)
    observed(tmp_path / "less", "strategy", seed=3, clients=0.4)
    made = shrink_record(Record(tmp_path / "whole"), tmp_path / "shrunk", Keep(clients=0.4, seed=3))

    def nodes(record):
        return {seen.node for item in record for seen in item.observations if seen.arrays is not None}

    assert nodes(made) == nodes(Record(tmp_path / "less", thinned=True))
    assert len(nodes(made)) == 2
