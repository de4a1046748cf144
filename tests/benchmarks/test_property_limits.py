import numpy as np
import pytest

from fedattack.attacks import Scores
from tests.benchmarks.property_limits import limits


def test_errors_are_those_of_drawn_clients():
    """The estimate that the errors are about, made many times from drawn features."""
    rounds, clients, draws, lasting = 40, 12, 4_000, 0.3
    draw = np.random.default_rng(0)
    A = (draw.random((rounds, clients)) < 0.5).astype(float)
    minus, spread = draw.normal(size=rounds), draw.uniform(0.5, 2, size=rounds)
    gap = spread * np.linspace(3, 0, rounds)
    positive = np.arange(clients) < 3
    noise = draw.normal(size=(draws, rounds, clients)) * spread[:, None]
    sums = (A * (minus[:, None] + np.where(positive, gap[:, None], 0) + noise[0])).sum(axis=1)
    densities = {"plus_mean": minus + gap, "minus_mean": minus, "plus_sd": spread, "minus_sd": spread}
    arrays = {name: values[None, :, None] for name, values in densities.items()}
    scores = Scores("prolin", arrays | {"participation": A, "sums": sums[None]}, {"lasting": [lasting]})
    distances, leave, own, seen = limits(scores, 0, positive)
    np.testing.assert_allclose(distances, np.linspace(3, 0, rounds), atol=1e-12)
    assert seen == pytest.approx(1, abs=0.3)
    assert limits(scores, 0, ~positive)[3] > 2

    errors = []
    for client in range(clients):
        told = A[:, client] * gap / (spread**2 * (A**2).sum(axis=1))
        errors.append(((noise * A).sum(axis=2) @ told / (A[:, client] * told @ gap)).std())
    assert leave == pytest.approx(np.mean(errors), rel=0.02)

    always = np.sqrt(lasting) * draw.normal(size=(draws, 1)) * spread
    told = gap / spread**2
    assert own == pytest.approx((always @ told / (told @ gap)).std(), rel=0.05)
