"""How often source inference finds a leak where there is none, and how often a true one, on drawn scores."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import ERROR, LEAK, Finding
from fedattack.audit.significance import correct_findings, significance_of
from fedattack.audit.truth import Truth
from fedattack.threats.source.case import SourceCase
from fedattack.threats.source.judge import SourceJudge
from tests.benchmarks.calibration.drawn import REPORT, share
from tests.threats.source.likely import make_scores
from tests.worlds.cases import make_case

BY_CLIENTS = ("asr", "asr-likelihood", "asr-last-round", "asr-best-round")
BY_LABELS = ("asr-worst-client", "asr-beyond-labels")
BEYOND = (*BY_LABELS, "asr-beyond-site")
ALL = (*BY_CLIENTS, *BEYOND)

# Exchanges of a test: fewer than in an audit, since p is held against 0.05 alone.
_DRAWS = 999

# So large that it decides whom a score names.
_DECIDES = 50.0


@dataclass(frozen=True)
class Drawn:
    """A federation of which scores are drawn, and what they know.

    Attributes
    ----------
    clients, targets, held_out, rounds, seeds
        How many; targets and held-out examples of each client.
    classes, alpha
        How many labels there are, and how evenly clients hold them (Dirichlet).
    seen
        How many clients take part in a round; 0 for all.
    by_labels
        How much a client's models like the labels that the client has.
    by_site
        How much they like its examples, whether they trained on them or not.
    together
        How much they like the examples of other clients, by accident, all of a client's together.
    blamed
        How much one client attracts all blame.
    unequal
        Whether clients have unequal sizes and numbers of targets, and those with more attract more.
    remembered
        Share of the targets that give their owner away.
    shuffled
        Whether owners are then exchanged at random, with those of their targets or of single ones.
    """

    clients: int = 10
    targets: int = 100
    held_out: int = 50
    rounds: int = 1
    seeds: int = 1
    classes: int = 10
    alpha: float = 100.0
    seen: int = 0
    by_labels: float = 0.0
    by_site: float = 0.0
    together: float = 0.0
    blamed: float = 0.0
    unequal: bool = False
    remembered: float = 0.0
    shuffled: bool = False


@dataclass(frozen=True)
class Null:
    """A federation in which some findings have nothing to find."""

    name: str
    drawn: Drawn
    silent: Sequence[str] = field(default=ALL)


_NOTHING = Drawn(alpha=0.3, rounds=3)

NULLS = (
    Null("scores are noise", _NOTHING),
    Null("owners shuffled", replace(_NOTHING, by_labels=1.0, by_site=1.0, remembered=0.2, shuffled=True)),
    Null("one client attracts all", replace(_NOTHING, blamed=3.0)),
    Null("unequal sizes, targets and attraction", replace(_NOTHING, unequal=True)),
    Null("targets of a client succeed together", replace(_NOTHING, together=1.0), (*BY_CLIENTS, "asr-beyond-site")),
    Null("labels alone", replace(_NOTHING, alpha=0.1, by_labels=1.0), BEYOND),
    Null("labels alone, 3 seeds", replace(_NOTHING, alpha=0.1, by_labels=1.0, seeds=3), BEYOND),
    Null("labels alone, unequal", replace(_NOTHING, alpha=0.1, by_labels=1.0, unequal=True), BEYOND),
    Null("sites alone", replace(_NOTHING, by_site=1.5), ("asr-beyond-site",)),
    Null("sites and labels", replace(_NOTHING, alpha=0.1, by_site=1.5, by_labels=1.0), ("asr-beyond-site",)),
    Null(
        "partial participation",
        replace(_NOTHING, clients=20, targets=20, held_out=10, rounds=6, seen=4, together=1.0),
        (*BY_CLIENTS, "asr-beyond-site"),
    ),
    Null("partial participation, noise", replace(_NOTHING, clients=20, targets=20, held_out=10, rounds=6, seen=4)),
    Null("3 clients", replace(_NOTHING, clients=3)),
    Null("20 targets", replace(_NOTHING, targets=2, held_out=2)),
    Null("3 seeds", replace(_NOTHING, blamed=1.0, seeds=3)),
)

POWERS = (
    ("12.7% against 10%", Drawn(remembered=0.03), "asr"),
    ("12.7% against 10%, 3 seeds", Drawn(remembered=0.03, seeds=3), "asr"),
    ("12.7% against 10%, 5 seeds", Drawn(remembered=0.03, seeds=5), "asr"),
    ("12.7% against 10%", Drawn(remembered=0.03), "asr-beyond-labels"),
    ("15% of examples beside sites", Drawn(remembered=0.15, by_site=1.0), "asr-beyond-site"),
    ("20% of examples beside labels", Drawn(alpha=0.3, by_labels=1.0, remembered=0.2), "asr-worst-client"),
)


def federation(drawn: Drawn, rng: np.random.Generator, seed: int) -> SourceCase:
    """Draw one seed's scores and its truth."""
    clients = np.arange(drawn.clients)
    weight = np.ones(drawn.clients)
    if drawn.unequal:
        weight = np.exp(rng.normal(size=drawn.clients))
    weight /= weight.mean()
    targets = np.maximum(np.round(weight * drawn.targets), 2).astype(int)
    held_out = np.maximum(np.round(weight * drawn.held_out), 1).astype(int)
    shares = rng.dirichlet(np.full(drawn.classes, drawn.alpha), size=drawn.clients)
    source = np.concatenate([np.repeat(clients, targets), np.repeat(clients, held_out)])
    member = np.arange(len(source)) < targets.sum()
    labels = np.array([rng.choice(drawn.classes, p=shares[client]) for client in source])
    own = source[:, None] == clients
    liking = drawn.by_labels * np.log(shares[:, labels].T + 1e-3) + drawn.by_site * own
    liking = liking + drawn.together * rng.normal(size=(drawn.clients, drawn.clients))[source]
    liking[:, 0] += drawn.blamed
    if drawn.unequal:
        liking = liking + np.log(weight)
    liking = liking + rng.gumbel(size=liking.shape)
    if drawn.remembered:
        known = member & (rng.random(len(source)) < drawn.remembered)
        liking[known[:, None] & own] += _DECIDES
    noise = 0.5 * rng.normal(size=(drawn.rounds, *liking.shape))
    losses = np.logaddexp(0.0, -(liking + noise) / 4)
    if drawn.seen:
        for of_round in losses:
            of_round[:, rng.permutation(drawn.clients)[drawn.seen :]] = np.nan
    if drawn.shuffled:
        source[member], source[~member] = rng.permutation(source[member]), rng.permutation(source[~member])
        labels = rng.permutation(labels)
    return _case(drawn, losses, labels, source, member, np.round(1_000 * weight[:, None] * shares), seed)


def _case(
    drawn: Drawn,
    losses: NDArray[np.float64],
    labels: NDArray[np.int64],
    source: NDArray[np.int64],
    member: NDArray[np.bool_],
    counts: NDArray[np.float64],
    seed: int,
) -> SourceCase:
    names = [str(client) for client in range(drawn.clients)]
    scores = make_scores(losses, labels, [f"node{name}" for name in names])
    truth = Truth(
        clients=tuple(names),
        classes=tuple(map(str, range(drawn.classes))),
        counts=counts.astype(np.int64),
        owners=np.where(member, source.astype(str), ""),
        origins=np.where(member, "", source.astype(str)),
        evaluation=(np.zeros((1, 1), dtype=np.float32), np.zeros(1, dtype=np.int64)),
        nodes={f"node{name}": name for name in names},
        targets="",
    )
    record: Any = SimpleNamespace(view="individual")
    return make_case(SourceCase, seed, scores, truth, record)


def findings_of(drawn: Drawn, rng: np.random.Generator) -> list[Finding]:
    """Draw a federation and judge it, corrected as in a report."""
    seeds = rng.integers(2**31, size=drawn.seeds).tolist()
    cases = [federation(drawn, rng, seed) for seed in seeds]
    with patch("fedattack.audit.naming.significance_of", partial(significance_of, draws=_DRAWS)):
        return correct_findings(SourceJudge(cases, setting={}, provenance={}).findings())


def alarms(null: Null, repetitions: int, seed: int) -> Counter[str]:
    """Count by finding how often one that has nothing to find has p ≤ 0.05, and the whole report a leak."""
    found: Counter[str] = Counter()
    for number in range(repetitions):
        rng = np.random.default_rng((seed, number))
        findings = findings_of(null.drawn, rng)
        for finding in findings:
            if finding.metric in null.silent and finding.p is not None:
                found[finding.metric] += finding.p <= ERROR
        if null.silent == ALL:
            found[REPORT] += any(finding.verdict == LEAK for finding in findings)
    return found


def rows(repetitions: int, seed: int) -> Iterator[dict[str, Any]]:
    """Measure false alarms and power.

    Parameters
    ----------
    repetitions
        Of each null, and of each federation with a leak.
    seed
        Of all draws.

    Yields
    ------
    dict
        ``kind`` (``null`` or ``power``), ``world``, ``finding``; how many ``alarms`` of how many (``of``), and their
        ``rate`` with its Clopper-Pearson interval ``low`` to ``high``.
    """
    for index, null in enumerate(NULLS):
        found = alarms(null, repetitions, seed + index)
        names = [*null.silent, REPORT] if null.silent == ALL else null.silent
        for metric in names:
            yield _row("null", null.name, metric, found[metric], repetitions)
    for index, (name, drawn, metric) in enumerate(POWERS, start=len(NULLS)):
        caught = alarms(Null(name, drawn, (metric,)), repetitions, seed + index)
        yield _row("power", name, metric, caught[metric], repetitions)


def _row(kind: str, world: str, finding: str, count: int, of: int) -> dict[str, Any]:
    return {"kind": kind, "world": world, "finding": finding, **share(count, of)}
