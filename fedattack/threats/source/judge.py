"""Judge source inference: whose example is this, how often right, against what.

Everything is computed per target as a credit in [0, 1]: 1 for naming the owner, 1/m for an owner among m clients that
tie for the best score. Ties then count neither for nor against the attack, whatever the order of the clients.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fedattack.audit.finding import Finding, Null, verdict
from fedattack.audit.intervals import rate_interval
from fedattack.audit.judge import Judge, TargetsCase, over_seeds
from fedattack.audit.summaries import null_rate, reliability
from fedattack.threats.source.sia import combine_likelihoods, combine_rounds, posterior

_MOST_EXPOSED = 10

# Kinds of targets beside those of the main measure.
_SEVERAL = "several clients hold"
_NEVER = "a client holds that was never seen"

# Streams of a seed's random numbers, apart from each other.
_DEALING = 1
_FOLDS = 2
_DEALING_SHARED = 3


@dataclass(frozen=True)
class SourceCase(TargetsCase):
    """One seed's scores of source inference beside its truth."""

    SEEN = "combined"

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """(rounds, targets, clients): the scores' losses, a client's several nodes put together."""
        return self.by_client(self.scores.arrays["losses"])

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
    def of(cls, scores: NDArray[np.float64], held: _Held, dealt: _Held, sizes: NDArray[np.int64]) -> "_Tally":
        """Count the scores (targets, clients) of ``held`` and of the null targets ``dealt`` like them."""
        by_size = np.where(np.isnan(scores).all(axis=0), np.nan, sizes.astype(float))
        single = scores[held.rows]
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
            null=_credit(scores[dealt.rows], dealt.by),
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
    - ``asr-best-round``: the paper's number, selected after the fact;
    - ``asr-worst-client``: the most exposed client, likewise;
    - ``asr-beyond-labels``: held against examples that nobody holds, but that fit the clients' labels as well;
    - ``asr-shared``: one of several owners named, where there are such targets.

    All but the last are about targets with one owner.
    """

    case = SourceCase
    headline = "asr"
    notes = (
        "The null run deals examples that nobody holds to clients at random, so it stays at chance unless something "
        "but the example's content gives the owner away. The null of sia.asr-beyond-labels is the harder one.",
    )

    def __init__(
        self, cases: Sequence[SourceCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.sole: list[tuple[_Held, _Held]] = []
        self.combined: list[NDArray[np.float64]] = []
        self.rounds: list[list[_Tally]] = []
        self.counts: Counter[str] = Counter()
        for case in cases:
            held = case.sole
            dealt = case.dealt(held, _DEALING)
            self.sole.append((held, dealt))
            self.combined.append(credits_of(case.combined))
            # A round's scores are counted and let go: the rounds of many clients are too large to be held twice.
            self.rounds.append([_Tally.of(-losses, held, dealt, case.sizes) for losses in case.losses])
            self.counts.update(case.counts)
        self.all_rounds = self._tallies(lambda case: case.combined, self.sole)

    def findings(self) -> list[Finding]:
        """State all of the above."""
        last = [rounds[-1] for rounds in self.rounds]
        likely = self._tallies(lambda case: case.likelihood, self.sole)
        choices = max(map(len, self.rounds))
        best = [max(rounds, key=_rate_of) for rounds in self.rounds]
        ways = {
            "last round alone": _pooled(last),
            f"best of {choices} rounds, known only afterwards": _pooled(best, choices),
            "all rounds: mean probability": _pooled(self.all_rounds),
            "all rounds: likelihood": _pooled(likely),
        }
        clients = self._per_client()
        series = {
            "per_round": self._per_round(),
            "combining": [{"way": way, **rate} for way, rate in ways.items() if rate is not None],
            "per_client": clients,
            "reliability": self._reliability(),
            "most_exposed": self._most_exposed(),
            "targets": dict(self.counts),
        }
        findings: list[Finding | None] = [
            self._rate(
                "asr",
                "Owner named, all rounds combined",
                self.all_rounds,
                headline=True,
                reason=self._left_out(),
                series=series,
            ),
            self._rate("asr-likelihood", "Owner named, all rounds combined as likelihoods", likely),
            self._rate("asr-last-round", "Owner named, last round alone", last),
        ]
        if choices > 1:
            label = f"Owner named, best of {choices} rounds, each seed's own"
            reason = "chosen after the fact among all rounds, as the paper does, with the interval widened for it: "
            findings.append(self._rate("asr-best-round", label, best, comparisons=choices, reason=reason))
        worst = self.worst_client(
            "asr-worst-client",
            "Owner named",
            clients,
            "; the null is how often this client is named for an example that nobody holds",
            chance=self._chance(),
        )
        findings += [worst, self._beyond_labels(), self._shared()]
        return [finding for finding in findings if finding is not None]

    def _tallies(
        self, scores_of: Callable[[SourceCase], NDArray[np.float64]], held: Sequence[tuple["_Held", "_Held"]]
    ) -> list["_Tally"]:
        tallies = []
        for case, (targets, dealt) in zip(self.cases, held, strict=True):
            tallies.append(_Tally.of(scores_of(case), targets, dealt, case.sizes))
        return tallies

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
            self._tallies(lambda case: case.combined, held),
            reason="examples that several clients hold, of whom any is right; their chance is the owners' share of the "
            "clients: ",
        )

    def _rate(
        self,
        metric: str,
        label: str,
        tallies: Sequence[_Tally],
        *,
        comparisons: int = 1,
        headline: bool = False,
        reason: str = "",
        series: dict[str, Any] | None = None,
    ) -> Finding:
        rate = _pooled(tallies, comparisons)
        if rate is None:
            reason = "no target record has an owner that was ever sampled"
            return self.unmeasured(metric, label, reason, headline=headline)
        words, why = verdict(rate["value"], rate["low"], rate["chance"], _high(rate["null"]), bars=rate["baselines"])
        rates = [_rate_of(tally) for tally in tallies if len(tally.hits)]
        return self.finding(
            metric,
            label,
            headline=headline,
            selected_after_the_fact=comparisons > 1,
            comparisons=comparisons,
            verdict=words,
            reason=f"{reason}{why}",
            series=series or {},
            **rate,
            **over_seeds(rates),
        )

    def _per_round(self) -> dict[str, list[Any]]:
        numbers = self.cases[0].scores.facts["rounds"]
        curve: dict[str, list[Any]] = {key: [] for key in ("rounds", "value", "low", "high", "null", "chance")}
        for position, tallies in enumerate(zip(*self.rounds, strict=False)):
            rate = _pooled(tallies)
            if rate is None or not all(len(tally.hits) for tally in tallies):
                continue
            null = rate["null"]
            curve["rounds"].append(numbers[position])
            curve["null"].append(null["value"] if null else None)
            for key in ("value", "low", "high", "chance"):
                curve[key].append(rate[key])
        return curve

    def _per_client(self) -> list[dict[str, Any]]:
        entries = []
        bars = sum(len(case.clients) for case in self.cases)
        for case, credit in zip(self.cases, self.combined, strict=True):
            # How often this client is named for a record that nobody holds: some clients attract all blame.
            blame = credit[case.null]
            sizes = case.sizes
            for column, name in enumerate(case.clients):
                hits = _observed(credit[case.owner == column, column])
                if not len(hits):
                    continue
                named = _observed(blame[:, column])
                low, high = rate_interval([float(hits.sum())], [len(hits)], comparisons=bars)
                entries.append(
                    {
                        "client": self.title_of(case, name),
                        "value": float(hits.mean()),
                        "low": low,
                        "high": high,
                        "n": len(hits),
                        "share": float(sizes[column] / sizes.sum()),
                        "null": null_rate([float(named.sum())], [len(named)], bars),
                    }
                )
        return sorted(entries, key=lambda entry: -entry["value"])

    def _beyond_labels(self) -> Finding | None:
        """Compare with examples that nobody holds but that would suit the clients' label distributions as well."""
        null_sums, null_sizes, sums, sizes = [], [], [], []
        for case, credit in zip(self.cases, self.combined, strict=True):
            # Expected success if each null target belonged to a client drawn in proportion to its label's holders.
            blame = credit[case.null]
            likely = np.where(np.isnan(blame), 0.0, case.label_shares())
            total = likely.sum(axis=1)
            held = total > 0
            null_sums.append(float((np.nansum(blame * likely, axis=1)[held] / total[held]).sum()))
            null_sizes.append(int(held.sum()))
            # The targets are drawn evenly over clients and the matched null evenly over records, so that the targets
            # are weighted by what their owners hold. Unequal weights count for fewer targets (Kish's effective size).
            rows = self._counted(case, credit)
            owner = case.owner[rows]
            targets = np.bincount(owner, minlength=len(case.sizes))
            weights = (case.sizes / np.maximum(targets, 1))[owner]
            effective = 0
            if len(rows):
                effective = int(weights.sum() ** 2 / (weights**2).sum())
            weighted = float((credit[rows, owner] * weights).sum() / max(weights.sum(), 1e-12))
            sums.append(effective * weighted)
            sizes.append(effective)
        matched = null_rate(null_sums, null_sizes)
        if matched is None or not all(sizes):
            return None
        return self.judged(
            "asr-beyond-labels",
            "Owner named, against label-matched examples that nobody holds",
            rate_interval(sums, sizes),
            matched,
            "the null is this attack's success on unseen examples whose owner is drawn among the holders of their "
            "label, so a leak here means memorised examples and not only unequal label distributions; clients are "
            "weighted by how many examples they hold",
            value=sum(sums) / sum(sizes),
            n=sum(sizes),
            chance=self._chance(),
        )

    def _chance(self) -> float:
        """Success of guessing, all rounds combined."""
        rate = _pooled(self.all_rounds)
        return rate["chance"] if rate else 0.0

    @staticmethod
    def _counted(case: SourceCase, credit: NDArray[np.float64]) -> NDArray[np.int64]:
        """Targets with one owner, who was seen."""
        rows = np.flatnonzero(case.owner >= 0)
        return rows[~np.isnan(credit[rows, case.owner[rows]])]

    def _reliability(self) -> dict[str, Any]:
        """Calibrate γ on one half of the targets and test it on the other, both ways."""
        confidence, correct, gammas = [], [], []
        for case, credit in zip(self.cases, self.combined, strict=True):
            draw = np.random.default_rng((case.seed, _FOLDS))
            rows = draw.permutation(self._counted(case, credit))
            combined, prior = case.combined, case.log_prior
            for test, fit in ((rows[::2], rows[1::2]), (rows[1::2], rows[::2])):
                if not len(fit):
                    continue
                gamma = fit_gamma(combined[fit], prior, case.owner[fit])
                gammas.append(gamma)
                belief = posterior(combined[test], prior, gamma)
                confidence.append(belief.max(axis=1))
                # With a prior the posterior may name another client than the scores alone.
                named = credits_of(combined[test] / gamma + (prior - prior.max()))
                correct.append(named[np.arange(len(test)), case.owner[test]])
        if not confidence:
            return {}
        sure, right = np.concatenate(confidence), np.concatenate(correct)
        return {**reliability(sure, right), "gamma": float(np.median(gammas))}

    def _most_exposed(self) -> list[dict[str, Any]]:
        """List the targets whose owner was named with the highest posterior, γ fitted on all targets."""
        named: list[tuple[float, int, str]] = []
        for case, credit in zip(self.cases, self.combined, strict=True):
            rows = self._counted(case, credit)
            if not len(rows):
                continue
            combined, prior = case.combined, case.log_prior
            belief = posterior(combined[rows], prior, fit_gamma(combined[rows], prior, case.owner[rows]))
            for row, beliefs in zip(rows, belief, strict=True):
                owner = case.owner[row]
                if credit[row, owner] == 1:
                    named.append((float(beliefs[owner]), int(row), self.title_of(case, case.clients[owner])))
        top = sorted(named, reverse=True)[:_MOST_EXPOSED]
        return [{"record": row, "client": name, "posterior": sure} for sure, row, name in top]


def fit_gamma(combined: NDArray[np.float64], log_prior: NDArray[np.float64], owner: NDArray[np.int64]) -> float:
    """Fit the temperature γ of the posterior by maximum likelihood of the true owners.

    This uses the truth, so it belongs to the auditor: an attacker would use γ = 1. It changes how sure the posterior
    is, never whom it names.
    """

    def loss(log_gamma: float) -> float:
        belief = posterior(combined, log_prior, float(np.exp(log_gamma)))
        return -float(np.log(np.maximum(belief[np.arange(len(owner)), owner], 1e-300)).mean())

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x))


class _Rate(TypedDict):
    """A pooled rate: the fields of a :class:`Finding` that speak of numbers."""

    value: float
    low: float
    high: float
    n: int
    chance: float
    null: Null | None
    baselines: dict[str, float]


def _pooled(tallies: Sequence[_Tally], comparisons: int = 1) -> _Rate | None:
    """Pool the seeds in which something counts."""
    rows = []
    for tally in tallies:
        if len(tally.hits):
            hits, null = float(tally.hits.sum()), float(tally.null.sum())
            rows.append((hits, len(tally.hits), null, len(tally.null), tally.chance, tally.largest))
    if not rows:
        return None
    sums, sizes, null_sums, null_sizes, chances, largest = zip(*rows, strict=True)
    low, high = rate_interval(sums, sizes, comparisons=comparisons)
    total = sum(sizes)
    return {
        "value": sum(sums) / total,
        "low": low,
        "high": high,
        "n": total,
        "chance": sum(chances) / total,
        "null": null_rate(null_sums, null_sizes),
        "baselines": {"always naming the largest client": sum(largest) / total},
    }


def _rate_of(tally: _Tally) -> float:
    if not len(tally.hits):
        return 0.0
    return float(tally.hits.mean())


def _credit(scores: NDArray[np.float64], by: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Credit for naming a holder, of targets (rows of ``scores``) of which a holder was seen."""
    credit = credits_of(scores)
    counted = (by & ~np.isnan(credit)).any(axis=1)
    return np.asarray(np.where(by, np.nan_to_num(credit), 0.0).sum(axis=1)[counted])


def _observed(credit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out owners that were not seen: "not seen" is no wrong answer."""
    return np.asarray(credit[~np.isnan(credit)])


def _high(null: Null | None) -> float | None:
    return None if null is None else null["high"]
