"""Judge source inference: whose example is this, how often right, against what.

Everything is computed per target as a credit in [0, 1]: 1 for naming the owner, 1/m for an owner among m clients that
tie for the best score. Ties then count neither for nor against the attack, whatever the order of the clients.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.optimize import minimize_scalar

from fedattack.audit.finding import Finding, Null, in_units, listed
from fedattack.audit.intervals import LEVEL, here_of, rate_interval
from fedattack.audit.judge import Judge, TargetsCase, over_seeds
from fedattack.audit.listing import Cell, Listing, several
from fedattack.audit.naming import (
    Alike,
    Holders,
    best_round,
    crossed,
    largest_excess,
    named_by_holder,
    own_rate,
    weighted_within,
    who_is_who,
)
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.roc import curve
from fedattack.audit.significance import Significance, least_p
from fedattack.audit.summaries import histogram, null_rate, reliability
from fedattack.audit.truth import NOBODY, SEVERAL
from fedattack.base.machine import let_go
from fedattack.threats.source.sia import combine_likelihoods, combine_rounds, posterior

_MOST_EXPOSED = 10

# Kinds of targets beside those of the main measure.
_SEVERAL = "several clients hold"
_NEVER = "a client holds that was never seen"

# Streams of a seed's random numbers, apart from each other.
_DEALING = 1
_FOLDS = 2
_DEALING_SHARED = 3
_HALVES = 4
_TESTS = {
    "asr": 11,
    "asr-likelihood": 12,
    "asr-last-round": 13,
    "asr-best-round": 14,
    "asr-worst-client": 15,
    "asr-beyond-labels": 16,
    "asr-beyond-site": 17,
    "asr-shared": 18,
}

# Cells into which targets without class labels are sorted by their labels.
_TENTHS = 10

_LARGEST = "always naming the largest client"
_WITHIN_LABELS = "owners exchanged among all targets of the same label, those that nobody holds included"
_WITHIN_SITES = "members and held-out examples exchanged within each client and label"


@dataclass(frozen=True)
class SourceCase(TargetsCase):
    """One seed's scores of source inference beside its truth."""

    SEEN = "combined"

    @property
    def losses(self) -> "_Losses":
        """(rounds, targets, clients): the scores' losses, a client's several nodes put together."""
        return _Losses(self)

    @cached_property
    def combined(self) -> NDArray[np.float64]:
        """(targets, clients): scores over all rounds, as the attack combines them."""
        return combine_rounds(self.losses)

    @cached_property
    def likelihood(self) -> NDArray[np.float64]:
        """(targets, clients): log likelihoods over all rounds."""
        return combine_likelihoods(self.losses)

    @cached_property
    def log_prior(self) -> NDArray[np.float64]:
        """(clients,): what the attacker believed before it looked."""
        prior = self.scores.arrays["log_prior"]
        return np.array([prior[self.columns(name)].max() for name in self.clients])

    @property
    def labels(self) -> NDArray[np.int64]:
        """(targets,): the targets' labels."""
        return np.asarray(self.scores.arrays["labels"])

    @cached_property
    def owner(self) -> NDArray[np.int64]:
        """(targets,): index of the sole owner among :attr:`clients`; −1 without one, or if it was never seen."""
        positions = {self.clients[position]: position for position in np.flatnonzero(~self.never_seen)}
        return np.array([positions.get(name, -1) for name in self.truth.owners.tolist()], dtype=np.int64)

    @cached_property
    def origin(self) -> NDArray[np.int64]:
        """(targets,): index of the client from whose data a target of nobody comes; −1 where there is none known."""
        positions = {self.clients[position]: position for position in np.flatnonzero(~self.never_seen)}
        return np.array([positions.get(name, -1) for name in self.truth.origins.tolist()], dtype=np.int64)

    @cached_property
    def cells(self) -> NDArray[np.int64]:
        """(targets,): cells of targets that have the same label.

        Of a regression they have about the same: tenths. Labels of several numbers say nothing here.
        """
        labels = self.labels
        if labels.ndim > 1 or not len(labels):
            return np.zeros(len(labels), dtype=np.int64)
        if np.issubdtype(labels.dtype, np.integer):
            return np.unique(labels, return_inverse=True)[1]
        edges = np.quantile(labels, np.linspace(0, 1, _TENTHS + 1)[1:-1])
        return np.searchsorted(edges, labels)

    @property
    def sole(self) -> "_Held":
        """The targets with one owner, if it was ever seen."""
        rows = np.flatnonzero(self.owner >= 0)
        return _Held(rows, self.owner[rows, None] == np.arange(len(self.clients)))

    @property
    def shared(self) -> "_Held":
        """The targets that several clients hold, of which one was ever seen at least."""
        rows, by = [], []
        for row, names in self.truth.shared.items():
            holds = np.isin(self.clients, names) & ~self.never_seen
            if holds.any():
                rows.append(row)
                by.append(holds)
        shape = (len(rows), len(self.clients))
        return _Held(np.array(rows, dtype=np.int64), np.array(by, dtype=np.bool_).reshape(shape))

    @property
    def counts(self) -> dict[str, int]:
        """How many targets there are of each kind."""
        sole, nobody, shared = int((self.owner >= 0).sum()), int(self.null.sum()), len(self.truth.shared)
        return {
            "one client holds": sole,
            "nobody holds": nobody,
            _SEVERAL: shared,
            _NEVER: len(self.owner) - sole - nobody - shared,
        }

    @cached_property
    def never_seen(self) -> NDArray[np.bool_]:
        """(clients,): whether the attack never got a usable model of a client."""
        return np.asarray(np.isnan(self.combined).all(axis=0))

    def dealt(self, held: "_Held", stream: int) -> "_Held":
        """Deal the null targets out as if they were held as those of ``held`` are, and as evenly."""
        draw = np.random.default_rng((self.seed, stream))
        rows = held.rows
        if len(rows):
            rows = np.flatnonzero(self.null)
        order = np.resize(draw.permutation(len(held.by)), len(rows))
        return _Held(rows, held.by[order])

    def label_shares(self) -> NDArray[np.float64]:
        """(null targets, clients): shares of a label's examples by client, of those seen; zero if none holds any.

        Without class labels (a regression, say) nothing is known, and all are zero.
        """
        labels, classes = self.labels[self.null], len(self.truth.classes)
        if not np.issubdtype(labels.dtype, np.integer) or labels.size == 0 or labels.max() >= classes:
            return np.zeros((len(labels), len(self.clients)))
        held = dict(zip(self.truth.clients, self.truth.counts.astype(float), strict=True))
        counts = np.array([held.get(name, np.zeros(classes)) for name in self.clients])
        counts[self.never_seen] = 0
        totals = counts.sum(axis=0)
        return np.asarray((counts / np.maximum(totals, 1)).T[labels])


@dataclass(frozen=True)
class _Losses:
    """The losses of one seed, round by round: those of all rounds may not fit into memory."""

    case: SourceCase

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.case.scores.arrays["losses"].shape[:2], len(self.case.clients))

    def __iter__(self) -> Iterator[NDArray[np.float64]]:
        of_nodes = self.case.scores.arrays["losses"]
        for of_round in of_nodes:
            yield self.case.by_client(of_round)
            let_go(of_nodes)


@dataclass(frozen=True)
class _Held:
    """Some targets, and who holds each.

    Attributes
    ----------
    rows
        (n,): indices of the targets.
    by
        (n, clients): who holds them.
    """

    rows: NDArray[np.int64]
    by: NDArray[np.bool_]

    def halves(self, rng: np.random.Generator) -> tuple["_Held", "_Held"]:
        """Split the targets in two, within each client as far as its targets are even."""
        order = rng.permutation(len(self.rows))
        order = order[np.argsort(self.by[order].argmax(axis=1), kind="stable")]
        ordered = _Held(self.rows[order], self.by[order])
        return ordered.every_other(0), ordered.every_other(1)

    def every_other(self, start: int) -> "_Held":
        """Take every second target."""
        return _Held(self.rows[start::2], self.by[start::2])


@dataclass(frozen=True)
class _Tally:
    """What one seed's scores come to; targets of which no owner was seen are left out: that is no wrong answer.

    Attributes
    ----------
    hits
        Credit for naming an owner, for each target that counts.
    chance, largest
        What guessing, and naming the largest client, would have got; sums over the same targets.
    null
        Credits for the null targets as dealt.
    """

    hits: NDArray[np.float64]
    chance: float
    largest: float
    null: NDArray[np.float64]

    @classmethod
    def of(cls, credit: NDArray[np.float64], held: _Held, dealt: _Held, sizes: NDArray[np.int64]) -> "_Tally":
        """Count the credit (targets, clients) for ``held`` and for the null targets ``dealt`` like them."""
        by_size = np.where(np.isnan(credit).all(axis=0), np.nan, sizes.astype(float))
        single = credit[held.rows]
        observed = ~np.isnan(single)
        holders = observed & held.by
        counted = holders.any(axis=1)
        guess = holders.sum(axis=1) / np.maximum(observed.sum(axis=1), 1)
        by_largest = np.nan_to_num(credits_of(by_size[None]))
        largest = np.where(held.by, by_largest, 0.0).sum(axis=1)
        return cls(
            hits=_credit(single, held.by),
            chance=float(guess[counted].sum()),
            largest=float(largest[counted].sum()),
            null=_credit(credit[dealt.rows], dealt.by),
        )


@dataclass(frozen=True)
class _Rounds:
    """What one seed's rounds come to, one by one.

    Attributes
    ----------
    whole, halves
        Each round, for all targets and for each half of them.
    named
        For each round and half what :func:`~fedattack.audit.naming.named_by_holder` gives.
    last
        The same for all targets in the last round.
    """

    whole: list[_Tally]
    halves: list[tuple[_Tally, _Tally]]
    named: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    last: NDArray[np.float64]

    @classmethod
    def of(cls, case: SourceCase, held: _Held, dealt: _Held) -> "_Rounds":
        """Count each round and let it go: the rounds of many clients are too large to be held twice."""
        first, second = held.halves(np.random.default_rng((case.seed, _HALVES)))
        parts = ((first, dealt.every_other(0)), (second, dealt.every_other(1)))
        whole, halves, named = [], [], []
        for losses in case.losses:
            credit = credits_of(-losses)
            whole.append(_Tally.of(credit, held, dealt, case.sizes))
            one, other = (_Tally.of(credit, *part, case.sizes) for part in parts)
            halves.append((one, other))
            named.append((_named(credit, first), _named(credit, second)))
        return cls(whole, halves, named, _named(credit, held))

    def best(self) -> _Tally:
        """Count each half of the targets in the round that is best on the other half, so that luck is not counted."""
        own = np.array([[own_rate(table) for table in halves] for halves in self.named])
        first, second = crossed(own)
        one, other = self.halves[first][0], self.halves[second][1]
        return _Tally(
            hits=np.concatenate([one.hits, other.hits]),
            chance=one.chance + other.chance,
            largest=one.largest + other.largest,
            null=np.concatenate([one.null, other.null]),
        )


def credits_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn scores (targets, clients) into each client's credit for being named.

    NaN stands for a client that was not seen and stays NaN; the others' credits sum to one in each row. A row without
    any finite score is a guess among the clients that were seen.
    """
    observed = ~np.isnan(scores)
    filled = np.where(observed, scores, -np.inf)
    best = (filled == filled.max(axis=1, keepdims=True)) & observed
    credit = best / np.maximum(best.sum(axis=1, keepdims=True), 1)
    return np.asarray(np.where(observed, credit, np.nan))


class SourceJudge(Judge[SourceCase]):
    """States how often the owner of an example was named.

    Its findings are

    - ``asr``: all rounds combined, the headline that is fixed in advance;
    - ``asr-likelihood``: the rounds combined in the other way;
    - ``asr-last-round``: the last round alone;
    - ``asr-best-round``: the best round, chosen on one half of the targets and measured on the other;
    - ``asr-worst-client``: the client that is furthest above what examples of the same labels give;
    - ``asr-beyond-labels``: held against examples that nobody holds, but that fit the clients' labels as well;
    - ``asr-beyond-site``: held against examples of the same clients on which they did not train, where there are any;
    - ``asr-shared``: one of several owners named, where there are such targets.

    All but the last are about targets with one owner. Their tests are those of :mod:`fedattack.audit.naming`: who is
    who for those that ask whether owners are named, within labels for the worst client and beyond labels, and within
    clients and labels beyond the site.
    """

    case = SourceCase
    headline = "asr"
    notes = (
        "The null run deals examples that nobody holds to clients at random, so it stays at chance unless something "
        "but the example's content gives the owner away. The nulls of sia.asr-beyond-labels and sia.asr-beyond-site "
        "are the harder ones.",
    )

    def __init__(
        self, cases: Sequence[SourceCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.sole: list[tuple[_Held, _Held]] = []
        self.combined: list[NDArray[np.float64]] = []
        self.rounds: list[_Rounds] = []
        self.alike: list[Alike] = []
        self.counts: Counter[str] = Counter()
        for case in cases:
            held = case.sole
            dealt = case.dealt(held, _DEALING)
            self.sole.append((held, dealt))
            self.combined.append(credits_of(case.combined))
            self.rounds.append(_Rounds.of(case, held, dealt))
            rows = np.flatnonzero((case.owner >= 0) | case.null)
            credit = np.nan_to_num(self.combined[-1][rows])
            self.alike.append(Alike(credit, case.owner[rows], case.cells[rows]))
            self.counts.update(case.counts)
        self.all_rounds = self._tallies(self.combined, self.sole)

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach:
        """Count the ways to say who is who among clients that hold targets, if all of them are seen."""
        holders = [len({*run.truth.owners.tolist()} - {NOBODY, SEVERAL}) for run in runs]
        arrangements = math.prod(map(math.factorial, holders))
        enough = smallest(lambda clients: math.factorial(clients) * needed >= 1)
        size = f"{min(holders)} clients with targets of their own"
        # Nobody is named where there is no such client.
        return Reach(least_p(arrangements) if any(holders) else 1.0, size, f"{enough} clients", f"clients={enough}")

    def findings(self) -> list[Finding]:
        """State all of the above."""
        last = [rounds.whole[-1] for rounds in self.rounds]
        likely_credit = [credits_of(case.likelihood) for case in self.cases]
        likely = self._tallies(likely_credit, self.sole)
        choices = max(len(rounds.whole) for rounds in self.rounds)
        best = [rounds.best() for rounds in self.rounds]
        ways = {
            "last round alone": _pooled(last),
            f"best of {choices} rounds, known only afterwards": _pooled(best),
            "all rounds: mean probability": _pooled(self.all_rounds),
            "all rounds: likelihood": _pooled(likely),
        }
        clients, sure = self._clients, self._sure
        explained = self._explained()
        series = {
            "per_round": self._per_round(),
            "combining": [{"way": way, **rate} for way, rate in ways.items() if rate is not None],
            "per_client": self._by_success(),
            "reliability": _reliability(sure),
            "most_exposed": self._most_exposed(sure),
            "targets": dict(self.counts),
        }
        if explained:
            series["explained"] = explained
        beliefs = self._beliefs()
        if all(map(len, beliefs)):
            series |= {"roc": curve(*beliefs, band=False), "scores": histogram(*beliefs)}
        findings: list[Finding | None] = [
            self._rate(
                "asr",
                "Owner named, all rounds combined",
                self.all_rounds,
                self._who_is_who("asr", self.combined, self.sole),
                self._left_out() + _explanation(explained, sum(len(tally.hits) for tally in self.all_rounds)),
                headline=True,
                series=series,
            ),
            self._rate(
                "asr-likelihood",
                "Owner named, all rounds combined as likelihoods",
                likely,
                self._who_is_who("asr-likelihood", likely_credit, self.sole),
                "the same targets, the rounds put together in the other way",
            ),
            self._rate(
                "asr-last-round",
                "Owner named, last round alone",
                last,
                self._who_is("asr-last-round", [rounds.last for rounds in self.rounds], self.sole),
                "the targets of the clients that took part in it",
            ),
        ]
        if choices > 1:
            findings.append(self._best_round(best, choices))
        findings += [self._worst_client(clients), self._beyond_labels(), self._beyond_site(), self._shared()]
        return [finding for finding in findings if finding is not None]

    def listings(self) -> Iterator[Listing]:
        """List the clients, and every target with the client that was named for it."""
        yield self.clients_listing(self._by_success(), "owner named")
        yield Listing(
            "records",
            "one row for each example that was asked about; right is 1/m where m clients are named alike, and empty "
            "where no client that was seen holds the example",
            ("seed", "record", "held by", "client named", "confidence", "right"),
            self._answers(),
        )

    def _answers(self) -> Iterator[tuple[Cell, ...]]:
        for case, credit in zip(self.cases, self.combined, strict=True):
            sure: dict[int, NDArray[np.float64]] = {}
            for part in self._sure:
                if part.case is case:
                    sure |= zip(part.rows.tolist(), part.beliefs, strict=True)
            by = np.zeros(credit.shape, dtype=np.bool_)
            for held in (case.sole, case.shared):
                by[held.rows] = held.by
            for row, (of_row, holds) in enumerate(zip(credit, by, strict=True)):
                places = np.flatnonzero(of_row > 0)
                named = [case.clients[place] for place in places]
                right = of_row[holds & ~np.isnan(of_row)]
                owner = str(case.truth.owners[row])
                yield (
                    case.seed,
                    row,
                    several(case.truth.shared[row]) if owner == SEVERAL else owner,
                    several(named),
                    float(sure[row][places[0]]) if row in sure and len(places) == 1 else None,
                    float(right.sum()) if len(right) else None,
                )

    def _tallies(
        self, scored: Sequence[NDArray[np.float64]], held: Sequence[tuple["_Held", "_Held"]]
    ) -> list["_Tally"]:
        tallies = []
        for case, credit, (targets, dealt) in zip(self.cases, scored, held, strict=True):
            tallies.append(_Tally.of(credit, targets, dealt, case.sizes))
        return tallies

    def _rng(self, metric: str) -> np.random.Generator:
        """Random numbers of a finding's test, so that the same folder gives the same p."""
        return np.random.default_rng((self.cases[0].seed, _TESTS[metric]))

    def _who_is_who(
        self, metric: str, scored: Sequence[NDArray[np.float64]], held: Sequence[tuple["_Held", "_Held"]]
    ) -> Significance | None:
        named = [_named(credit, targets) for credit, (targets, _) in zip(scored, held, strict=True)]
        return self._who_is(metric, named, held)

    def _who_is(
        self, metric: str, named: Sequence[NDArray[np.float64]], held: Sequence[tuple["_Held", "_Held"]]
    ) -> Significance | None:
        runs = []
        for table, (targets, _) in zip(named, held, strict=True):
            if len(targets.rows):
                runs.append((Holders.of(targets.by), table))
        return who_is_who(runs, self._rng(metric)) if runs else None

    def _best_round(self, best: Sequence[_Tally], choices: int) -> Finding:
        runs = []
        for rounds, (targets, _) in zip(self.rounds, self.sole, strict=True):
            if len(targets.rows):
                runs.append((Holders.of(targets.by), rounds.named))
        plain = _pooled([max(rounds.whole, key=_rate_of) for rounds in self.rounds])
        return self._rate(
            "asr-best-round",
            f"Owner named, best of {choices} rounds, each seed's own",
            best,
            best_round(runs, self._rng("asr-best-round")) if runs else None,
            "chosen after the fact among all rounds: each half of the targets is named from the round that was best on "
            f"the other half; the plain maximum, as in the paper, is {in_units(plain['value'] if plain else 0.0)}",
            selected_after_the_fact=True,
            comparisons=choices,
        )

    def _left_out(self) -> str:
        several, never = self.counts[_SEVERAL], self.counts[_NEVER]
        reason = ""
        if several:
            reason += f"{several:,} targets that several clients hold are judged apart (asr-shared); "
        if never:
            reason += f"{never:,} targets of clients that were never seen are left out; "
        return reason

    def _shared(self) -> Finding | None:
        """Judge the targets that several clients hold: naming any of them is right."""
        if not self.counts[_SEVERAL]:
            return None
        held = [(case.shared, case.dealt(case.shared, _DEALING_SHARED)) for case in self.cases]
        return self._rate(
            "asr-shared",
            "One of several owners named, all rounds combined",
            self._tallies(self.combined, held),
            self._who_is_who("asr-shared", self.combined, held),
            "examples that several clients hold, of whom any is right; their chance is the owners' share of the "
            "clients",
        )

    def _rate(
        self,
        metric: str,
        label: str,
        tallies: Sequence[_Tally],
        test: Significance | None,
        reason: str,
        **parts: Any,
    ) -> Finding:
        rate = _pooled(tallies)
        if rate is None:
            lacking = "no target record has an owner that was ever sampled"
            return self.unmeasured(metric, label, lacking, headline=parts.get("headline", False))
        low, high, null = rate.pop("low"), rate.pop("high"), rate.pop("null")
        counted = [tally for tally in tallies if len(tally.hits)]
        here = here_of([float(tally.hits.sum()) for tally in counted], [len(tally.hits) for tally in counted])
        spread = over_seeds(list(map(_rate_of, counted)))
        bars = rate["baselines"]
        return self.judged(
            metric, label, (low, high), null, reason, test=test, here=here, bars=bars, **rate, **spread, **parts
        )

    def _per_round(self) -> dict[str, list[Any]]:
        numbers = self.cases[0].scores.facts["rounds"]
        by_round: dict[str, list[Any]] = {key: [] for key in ("rounds", "value", "low", "high", "null", "chance")}
        for position, tallies in enumerate(zip(*[rounds.whole for rounds in self.rounds], strict=False)):
            rate = _pooled(tallies)
            if rate is None or not all(len(tally.hits) for tally in tallies):
                continue
            null = rate["null"]
            by_round["rounds"].append(numbers[position])
            by_round["null"].append(null["value"] if null else None)
            for key in ("value", "low", "high", "chance"):
                by_round[key].append(rate[key])
        return by_round

    @cached_property
    def _clients(self) -> list[tuple[float, dict[str, Any]]]:
        """Measure each client; first how far it is above what examples of the same labels give."""
        entries = []
        bars = sum(len(case.clients) for case in self.cases)
        for case, credit, alike in zip(self.cases, self.combined, self.alike, strict=True):
            expected = alike.expected[0] / alike.sizes
            excess = alike.excess(alike.observed())[0]
            sizes = case.sizes
            for column, rate, above in zip(alike.holders, expected, excess, strict=True):
                hits = _observed(credit[case.owner == column, column])
                if not len(hits):
                    continue
                n = len(hits)
                low, high = rate_interval([float(hits.sum())], [n], comparisons=bars)
                entry = {
                    "client": self.title_of(case, case.clients[column]),
                    "value": float(hits.mean()),
                    "low": low,
                    "high": high,
                    "n": n,
                    "share": float(sizes[column] / max(sizes.sum(), 1)),
                    "null": _range_of(float(rate), n),
                }
                entries.append((float(above), entry))
        return entries

    def _by_success(self) -> list[dict[str, Any]]:
        """Return what is measured of each client, most often named first."""
        return sorted((entry for _, entry in self._clients), key=lambda entry: -entry["value"])

    def _worst_client(self, clients: Sequence[tuple[float, dict[str, Any]]]) -> Finding | None:
        if not clients:
            return None
        _, worst = max(clients, key=lambda client: client[0])
        held = [alike for alike in self.alike if len(alike.slots)]
        return self.judged(
            "asr-worst-client",
            f"Owner named, client furthest above its labels ({worst['client']})",
            (worst["low"], worst["high"]),
            worst["null"],
            "chosen after the fact among all clients, as the one furthest above what examples of the same labels give; "
            "the null is that",
            value=worst["value"],
            n=worst["n"],
            chance=self._chance(),
            test=largest_excess(held, self._rng("asr-worst-client"), _WITHIN_LABELS),
            selected_after_the_fact=True,
            comparisons=len(clients),
        )

    def _beyond_labels(self) -> Finding | None:
        """Compare with examples that nobody holds but that would suit the clients' label distributions as well."""
        null_sums, null_sizes, sums, sizes, runs = [], [], [], [], []
        for case, credit, alike in zip(self.cases, self.combined, self.alike, strict=True):
            # Expected success if each null target belonged to a client drawn in proportion to its label's holders.
            blame = credit[case.null]
            likely = np.where(np.isnan(blame), 0.0, case.label_shares())
            total = likely.sum(axis=1)
            held = total > 0
            null_sums.append(float((np.nansum(blame * likely, axis=1)[held] / total[held]).sum()))
            null_sizes.append(int(held.sum()))
            # The targets are drawn evenly over clients and the matched null evenly over records, so that the targets
            # are weighted by what their owners hold.
            rows = self._counted(case, credit)
            owner = case.owner[rows]
            successes, size = _weighted(credit[rows, owner], _by_size(case, owner))
            sums.append(successes)
            sizes.append(size)
            runs.append((alike, _by_size(case, alike.owner[alike.slots])))
        matched = null_rate(null_sums, null_sizes)
        if matched is None or not all(sizes):
            return None
        return self.judged(
            "asr-beyond-labels",
            "Owner named, against label-matched examples that nobody holds",
            rate_interval(sums, sizes),
            matched,
            "the null is this attack's success on unseen examples whose owner is drawn among the holders of their "
            "label, so a leak here means that examples give their owners away, or what a client's data have in common, "
            "and not only unequal label distributions; clients are weighted by how many examples they hold",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=self._chance(),
            here=here_of(sums, sizes),
            test=weighted_within(runs, self._rng("asr-beyond-labels"), _WITHIN_LABELS),
        )

    def _beyond_site(self) -> Finding | None:
        """Compare with held-out examples of the same clients and labels: like the targets, but nobody learned them."""
        null_sums, null_sizes, sums, sizes, runs = [], [], [], [], []
        for case, credit in zip(self.cases, self.combined, strict=True):
            alike = _beside_held_out(case, credit)
            slots, others = alike.slots, np.flatnonzero(alike.owner < 0)
            if not len(slots):
                continue
            weights = _by_size(case, alike.owner[slots])
            successes, size = _weighted(alike.observed()[0], weights)
            if not size:  # the truth knows of no client how many examples it holds
                continue
            sums.append(successes)
            sizes.append(size)
            runs.append((alike, weights))
            # A held-out example stands for its part of the targets in its cell, of which all are one client's.
            client_of = np.zeros(alike.cells.max() + 1, dtype=np.int64)
            client_of[alike.cells[slots]] = alike.owner[slots]
            weight_of = np.bincount(alike.cells[slots], weights=weights) / np.bincount(alike.cells[others])
            traced = alike.credit[others, client_of[alike.cells[others]]]
            successes, size = _weighted(traced, weight_of[alike.cells[others]])
            null_sums.append(successes)
            null_sizes.append(size)
        if not runs:
            return None
        counterparts = sum(len(alike.slots) for alike, _ in runs)
        return self.judged(
            "asr-beyond-site",
            "Owner named, against held-out examples of the same clients",
            rate_interval(sums, sizes),
            null_rate(null_sums, null_sizes),
            "the null is how often examples of the same clients and labels, on which nobody trained, are traced to "
            "their client, so a leak here means that the models give single examples away; "
            f"{counterparts:,} targets have such a counterpart; clients are weighted by how many examples they hold",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=self._chance(),
            here=here_of(sums, sizes),
            test=weighted_within(runs, self._rng("asr-beyond-site"), _WITHIN_SITES),
        )

    def _explained(self) -> dict[str, Any]:
        """Take the success apart: each part is what one null has more than the one before it."""
        with_origins = any((case.origin >= 0).any() for case in self.cases)
        rows = []
        for case, credit in zip(self.cases, self.combined, strict=True):
            rows.append(self._nulls_of_targets(case, credit, with_origins))
        nulls = np.concatenate(rows)
        nulls = nulls[~np.isnan(nulls).any(axis=1)]
        if not len(nulls):
            return {}
        names = (
            ["guessing", "labels", "site", "examples"] if with_origins else ["guessing", "labels", "site or examples"]
        )
        parts = np.diff(nulls.mean(axis=0), prepend=0.0).tolist()
        return {
            "value": float(nulls[:, -1].mean()),
            "n": len(nulls),
            "parts": [{"part": name, "value": part} for name, part in zip(names, parts, strict=True)],
        }

    def _nulls_of_targets(
        self, case: SourceCase, credit: NDArray[np.float64], with_origins: bool
    ) -> NDArray[np.float64]:
        """(targets that count, nulls and success): success by guessing, by the label, by the site, and as it is."""
        rows = self._counted(case, credit)
        owner, cells = case.owner[rows], case.cells[rows]
        columns = [1 / (~np.isnan(credit[rows])).sum(axis=1)]
        labels = np.full(len(rows), np.nan)
        for cell in np.unique(cells):
            alike = credit[case.null & (case.cells == cell)]
            inside = cells == cell
            if len(alike):
                labels[inside] = np.nan_to_num(alike).mean(axis=0)[owner[inside]]
        columns.append(labels)
        if with_origins:
            held_out = np.flatnonzero(case.origin >= 0)
            traced = np.nan_to_num(credit[held_out, case.origin[held_out]])
            clients, size = len(case.clients), len(case.clients) * (int(case.cells.max()) + 1)
            site_of = case.cells[held_out] * clients + case.origin[held_out]
            counts = np.bincount(site_of, minlength=size)
            rates = np.where(counts, np.bincount(site_of, traced, size) / np.maximum(counts, 1), np.nan)
            columns.append(rates[cells * clients + owner])
        return np.stack([*columns, credit[rows, owner]], axis=1)

    def _chance(self) -> float:
        """Success of guessing, all rounds combined."""
        rate = _pooled(self.all_rounds)
        return rate["chance"] if rate else 0.0

    @staticmethod
    def _counted(case: SourceCase, credit: NDArray[np.float64]) -> NDArray[np.int64]:
        """Targets with one owner, who was seen."""
        rows = np.flatnonzero(case.owner >= 0)
        return rows[~np.isnan(credit[rows, case.owner[rows]])]

    @cached_property
    def _sure(self) -> list["_Sure"]:
        """Calibrate γ on one half of the targets and state confidence on the other, both ways."""
        parts = []
        for case, credit in zip(self.cases, self.combined, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS))
            rows = draw.permutation(self._counted(case, credit))
            combined, prior = case.combined, case.log_prior
            for test, fit in ((rows[::2], rows[1::2]), (rows[1::2], rows[::2])):
                if len(fit) and len(test):
                    gamma = fit_gamma(combined[fit], prior, case.owner[fit])
                    belief = posterior(combined[test], prior, gamma)
                    # With a prior the posterior may name another client than the scores alone.
                    named = credits_of(combined[test] / gamma + (prior - prior.max()))
                    right = named[np.arange(len(test)), case.owner[test]]
                    parts.append(_Sure(case, test, belief.argmax(axis=1), belief.max(axis=1), right, gamma))
        return parts

    def _beliefs(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return how sure the attack is of each target's holder, and of all other clients that were seen."""
        holders, others = [np.zeros(0)], [np.zeros(0)]
        for part in self._sure:
            believed, known = part.beliefs, ~np.isnan(part.case.combined[part.rows])
            places = np.arange(len(part.rows)), part.case.owner[part.rows]
            holders.append(believed[places])
            known[places] = False
            others.append(believed[known])
        return np.concatenate(holders), np.concatenate(others)

    def _most_exposed(self, parts: Sequence["_Sure"]) -> list[dict[str, Any]]:
        """List the targets of whose owner the attack was most sure, right or wrong."""
        answers: list[dict[str, Any]] = []
        for part in parts:
            for index in np.argsort(-part.confidence, kind="stable")[:_MOST_EXPOSED]:
                answers.append(
                    {
                        "record": int(part.rows[index]),
                        "client": self.title_of(part.case, part.case.clients[part.named[index]]),
                        "posterior": float(part.confidence[index]),
                        "right": bool(part.right[index] == 1),
                    }
                )
        return sorted(answers, key=lambda answer: -answer["posterior"])[:_MOST_EXPOSED]


@dataclass(frozen=True)
class _Sure:
    """How sure the attack was of some targets: whom it named, how surely, whether rightly; γ was fitted on others."""

    case: SourceCase
    rows: NDArray[np.int64]
    named: NDArray[np.int64]
    confidence: NDArray[np.float64]
    right: NDArray[np.float64]
    gamma: float

    @property
    def beliefs(self) -> NDArray[np.float64]:
        """(rows, clients): how sure it was of each client."""
        return posterior(self.case.combined[self.rows], self.case.log_prior, self.gamma)


def _reliability(parts: Sequence[_Sure]) -> dict[str, Any]:
    if not parts:
        return {}
    sure = np.concatenate([part.confidence for part in parts])
    right = np.concatenate([part.right for part in parts])
    return {**reliability(sure, right), "gamma": float(np.median([part.gamma for part in parts]))}


def _explanation(explained: Mapping[str, Any], targets: int) -> str:
    """Say in a sentence what the success on so many targets is made of."""
    if not explained:
        return "all rounds together"
    guessing, *others = explained["parts"]
    parts = [f"{guessing['part']} gives {100 * guessing['value']:.1f} points"]
    parts.extend(f"{part['part']} {100 * part['value']:.1f}" for part in others)
    words = f"of {in_units(explained['value'])}, {listed(parts, 'and')}"
    if explained["n"] < targets:
        words += f" (on the {explained['n']:,} targets that have examples like them beside them)"
    if len(parts) < 4:
        words += ", which cannot be told apart without held-out examples of the clients"
    return words


def _beside_held_out(case: SourceCase, credit: NDArray[np.float64]) -> Alike:
    """Take the targets, and the held-out examples of their clients, of all clients and labels that have both."""
    client = np.where(case.owner >= 0, case.owner, case.origin)
    rows = np.flatnonzero(client >= 0)
    rows = rows[~np.isnan(credit[rows, client[rows]])]
    _, cells = np.unique(case.cells[rows] * len(case.clients) + client[rows], return_inverse=True)
    members = case.owner[rows] >= 0
    both = (np.bincount(cells, members) > 0) & (np.bincount(cells, ~members) > 0)
    kept = both[cells]
    _, cells = np.unique(cells[kept], return_inverse=True)
    rows = rows[kept]
    return Alike(np.nan_to_num(credit[rows]), case.owner[rows], cells)


def _by_size(case: SourceCase, owner: NDArray[np.int64]) -> NDArray[np.float64]:
    """Weigh targets (n,) so that each client weighs as much as it holds examples."""
    targets = np.bincount(owner, minlength=len(case.sizes))
    return np.asarray((case.sizes / np.maximum(targets, 1))[owner])


def _weighted(credit: NDArray[np.float64], weights: NDArray[np.float64]) -> tuple[float, int]:
    """Sum weighted credits as of fewer targets: as many as they are worth (Kish's effective size)."""
    total = float(weights.sum())
    if total <= 0:
        return 0.0, 0
    # A rounding error must not take a target away.
    effective = int(total**2 / float((weights**2).sum()) + 1e-9)
    return effective * float((credit * weights).sum() / total), effective


def _range_of(rate: float, n: int) -> Null:
    """State an expected rate with the range in which so many targets fall."""
    low, high = stats.binom.interval(LEVEL, n, min(rate, 1.0))
    return {"value": rate, "low": min(max(float(low) / n, 0.0), rate), "high": max(float(high) / n, rate), "n": n}


def fit_gamma(combined: NDArray[np.float64], log_prior: NDArray[np.float64], owner: NDArray[np.int64]) -> float:
    """Fit the temperature γ of the posterior by maximum likelihood of the true owners.

    This uses the truth, so it belongs to the auditor: an attacker would use γ = 1. It changes how sure the posterior
    is, never whom it names.
    """

    def loss(log_gamma: float) -> float:
        belief = posterior(combined, log_prior, float(np.exp(log_gamma)))
        return -float(np.log(np.maximum(belief[np.arange(len(owner)), owner], 1e-300)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x))


def _pooled(tallies: Sequence[_Tally]) -> dict[str, Any] | None:
    """Pool the seeds in which something counts."""
    rows = []
    for tally in tallies:
        if len(tally.hits):
            hits, null = float(tally.hits.sum()), float(tally.null.sum())
            rows.append((hits, len(tally.hits), null, len(tally.null), tally.chance, tally.largest))
    if not rows:
        return None
    sums, sizes, null_sums, null_sizes, chances, largest = zip(*rows, strict=True)
    low, high = rate_interval(sums, sizes)
    total = sum(sizes)
    return {
        "value": sum(sums) / total,
        "low": low,
        "high": high,
        "n": total,
        "chance": sum(chances) / total,
        "null": null_rate(null_sums, null_sizes),
        "baselines": {_LARGEST: sum(largest) / total},
    }


def _rate_of(tally: _Tally) -> float:
    if not len(tally.hits):
        return 0.0
    return float(tally.hits.mean())


def _named(credit: NDArray[np.float64], held: _Held) -> NDArray[np.float64]:
    return named_by_holder(credit[held.rows], held.by)


def _credit(credit: NDArray[np.float64], by: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Credit for naming a holder, of targets (rows of ``credit``) of which a holder was seen."""
    counted = (by & ~np.isnan(credit)).any(axis=1)
    return np.asarray(np.where(by, np.nan_to_num(credit), 0.0).sum(axis=1)[counted])


def _observed(credit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out owners that were not seen: "not seen" is no wrong answer."""
    return np.asarray(credit[~np.isnan(credit)])
