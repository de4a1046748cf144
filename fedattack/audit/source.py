"""Judge source inference: whose record is this, how often right, against what.

Everything is computed per target as a credit in [0, 1]: 1 for naming the owner, 1/m for an owner among m clients that
tie for the best score, so that ties count neither for nor against the attack whatever the order of the clients.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from fedattack.attacks import Scores
from fedattack.attacks.sia import SourceInference, combine_rounds, posterior
from fedattack.audit.finding import Finding, Null, verdict
from fedattack.audit.intervals import rate_interval
from fedattack.audit.truth import NOBODY, Truth
from fedattack.errors import DataError

_LEVEL = 0.95
_BINS = 10
_MOST_EXPOSED = 10

# Streams of a seed's random numbers, apart from each other.
_DEALING = 1
_FOLDS = 2


@dataclass(frozen=True)
class SourceCase:
    """One seed's scores beside its truth.

    Attributes
    ----------
    seed
        Seed of the run.
    scores
        What :class:`fedattack.attacks.sia.SourceInference` found.
    truth
        Who holds what.
    """

    seed: int
    scores: Scores
    truth: Truth

    @cached_property
    def _names(self) -> list[str]:
        """Names of the clients behind the scores' nodes; a client that was restarted may have had several nodes."""
        nodes = self.scores.facts["clients"]
        seen = ~np.isnan(self.scores.arrays["combined"]).all(axis=0)
        unknown = [
            node for node, was_seen in zip(nodes, seen, strict=True) if was_seen and node not in self.truth.nodes
        ]
        if unknown:
            raise DataError(
                f"node {unknown[0]} is in the record but not in the truth (seed {self.seed}); expected a file of its "
                "name in truth/nodes, which its client writes when it first trains"
            )
        return [self.truth.nodes.get(node, f"node {node}") for node in nodes]

    @cached_property
    def clients(self) -> list[str]:
        """Names of the clients, each once."""
        return list(dict.fromkeys(self._names))

    @cached_property
    def losses(self) -> NDArray[np.float64]:
        """(rounds, targets, clients): the scores' losses, a client's several nodes put together."""
        losses = self.scores.arrays["losses"]
        return np.stack([self._by_client(losses[..., self._columns(name)]) for name in self.clients], axis=-1)

    @cached_property
    def combined(self) -> NDArray[np.float64]:
        """(targets, clients): scores over all rounds, as the attack combines them."""
        return combine_rounds(self.losses)

    @cached_property
    def log_prior(self) -> NDArray[np.float64]:
        """(clients,): what the attacker believed before it looked."""
        prior = self.scores.arrays["log_prior"]
        return np.array([prior[self._columns(name)].max() for name in self.clients])

    def _columns(self, name: str) -> list[int]:
        return [index for index, other in enumerate(self._names) if other == name]

    @staticmethod
    def _by_client(losses: NDArray[np.float64]) -> NDArray[np.float64]:
        seen = ~np.isnan(losses)
        total = np.where(seen, losses, 0.0).sum(axis=-1)
        return np.asarray(np.where(seen.any(axis=-1), total / np.maximum(seen.sum(axis=-1), 1), np.nan))

    @property
    def labels(self) -> NDArray[np.int64]:
        """(targets,): the targets' labels."""
        return np.asarray(self.scores.arrays["labels"])

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(clients,): how many training records each client holds."""
        held = dict(zip(self.truth.clients, self.truth.counts.sum(axis=1), strict=True))
        return np.array([held.get(name, 0) for name in self.clients], dtype=np.int64)

    @property
    def owner(self) -> NDArray[np.int64]:
        """(targets,): index of the owner among :attr:`clients`; −1 for null targets and owners never sampled."""
        never = self.never_seen
        place = {name: index for index, name in enumerate(self.clients) if not never[index]}
        return np.array([place.get(name, -1) for name in self.truth.owners.tolist()], dtype=np.int64)

    @property
    def never_seen(self) -> NDArray[np.bool_]:
        """(clients,): whether the attack never got a usable model of a client."""
        return np.asarray(np.isnan(self.combined).all(axis=0))

    @property
    def null(self) -> NDArray[np.bool_]:
        """(targets,): whether no client holds the target."""
        return np.asarray(self.truth.owners == NOBODY)

    def dealt(self) -> NDArray[np.int64]:
        """Deal the null targets out as if they were somebody's, as evenly as the real ones; (null targets,)."""
        draw = np.random.default_rng((self.seed, _DEALING))
        return np.resize(draw.permutation(self.owner[self.owner >= 0]), int(self.null.sum()))

    def label_shares(self) -> NDArray[np.float64]:
        """(null targets, clients): shares of a label's records by client, of those seen; zero if none of them holds it.

        Without class labels (a regression, say) nothing is known, and all are zero.
        """
        labels = self.labels[self.null]
        if not np.issubdtype(labels.dtype, np.integer) or labels.size == 0 or labels.max() >= len(self.truth.classes):
            return np.zeros((len(labels), len(self.clients)))
        held = dict(zip(self.truth.clients, self.truth.counts.astype(float), strict=True))
        counts = np.array([held.get(name, np.zeros(len(self.truth.classes))) for name in self.clients])
        counts[self.never_seen] = 0
        totals = counts.sum(axis=0)
        return np.asarray((counts / np.maximum(totals, 1)).T[labels])


def credits_of(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """Turn scores (targets, clients) into each client's credit for being named.

    NaN stands for a client that was not seen and stays NaN; the others' credits sum to one in each row. A row without
    any finite score is a guess among the clients that were seen.
    """
    seen = ~np.isnan(scores)
    filled = np.where(seen, scores, -np.inf)
    best = (filled == filled.max(axis=1, keepdims=True)) & seen
    return np.asarray(np.where(seen, best / np.maximum(best.sum(axis=1, keepdims=True), 1), np.nan))


def judge_source(cases: Sequence[SourceCase], *, setting: dict[str, Any], provenance: dict[str, Any]) -> list[Finding]:
    """State what source inference found.

    Parameters
    ----------
    cases
        One per seed.
    setting, provenance
        Put into every finding.

    Returns
    -------
    list of Finding
        ``asr``, all rounds combined, the headline that is fixed in advance; ``asr-last-round``; ``asr-best-round``,
        the paper's number, selected after the fact; ``asr-worst-client``, likewise; ``asr-beyond-labels``, what is
        left when the same attack's success on records that nobody holds, but that fit the clients' labels as well, is
        taken away.
    """
    return _Judge(cases, setting, provenance).findings()


class _Judge:
    def __init__(self, cases: Sequence[SourceCase], setting: dict[str, Any], provenance: dict[str, Any]) -> None:
        self.cases = cases
        self.shared: dict[str, Any] = {
            "attack": SourceInference.name,
            "view": "individual",
            "paper": SourceInference.paper,
            "level": _LEVEL,
            "seeds": [case.seed for case in cases],
            "setting": setting,
            "provenance": provenance,
        }
        self.combined = [credits_of(case.combined) for case in cases]
        self.rounds = [[credits_of(-losses) for losses in case.losses] for case in cases]
        self.members = [case.owner >= 0 for case in cases]

    def findings(self) -> list[Finding]:
        last = [rounds[-1] for rounds in self.rounds]
        curve = self._per_round()
        clients = self._per_client()
        findings = [
            self._rate(
                "asr",
                "Owner named, all rounds combined",
                self.combined,
                headline=True,
                series={
                    "per_round": curve,
                    "per_client": clients,
                    "reliability": self._reliability(),
                    "most_exposed": self._most_exposed(),
                },
            ),
            self._rate("asr-last-round", "Owner named, last round alone", last),
            self._best_round(),
            self._worst_client(clients),
            self._beyond_labels(),
        ]
        return [finding for finding in findings if finding is not None]

    def _rate(
        self,
        metric: str,
        label: str,
        credit: Sequence[NDArray[np.float64]],
        *,
        comparisons: int = 1,
        headline: bool = False,
        reason: str = "",
        series: dict[str, Any] | None = None,
    ) -> Finding:
        hits = [self._hits(index, credit[index]) for index in range(len(self.cases))]
        sums, sizes = [float(h.sum()) for h in hits], [len(h) for h in hits]
        if not sum(sizes):
            return Finding(
                metric=metric,
                label=label,
                value=None,
                low=None,
                high=None,
                n=0,
                headline=headline,
                verdict="not applicable",
                reason="no target record has an owner that was ever sampled",
                **self.shared,
            )
        low, high = rate_interval(sums, sizes, _LEVEL, comparisons)
        value = sum(sums) / sum(sizes)
        null = self._null(credit)
        chance = self._chance(credit)
        baselines = self._size_prior()
        words, why = verdict(value, low, chance, null["high"] if null else None, bars=baselines)
        rates = [total / size for total, size in zip(sums, sizes, strict=True) if size]
        return Finding(
            metric=metric,
            label=label,
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=chance,
            null=null,
            baselines=baselines,
            headline=headline,
            selected_after_the_fact=comparisons > 1,
            comparisons=comparisons,
            seed_mean=float(np.mean(rates)),
            seed_sd=float(np.std(rates, ddof=1)) if len(rates) > 1 else None,
            verdict=words,
            reason=f"{reason}{why}",
            series=series or {},
            **self.shared,
        )

    def _hits(self, index: int, credit: NDArray[np.float64]) -> NDArray[np.float64]:
        """Credits for the true owners, of targets whose owner was seen in these scores."""
        owner = self.cases[index].owner
        rows = np.flatnonzero(owner >= 0)
        return _seen(credit[rows, owner[rows]])

    def _null(self, credit: Sequence[NDArray[np.float64]]) -> Null | None:
        sums, sizes = [], []
        for case, matrix in zip(self.cases, credit, strict=True):
            hits = _seen(matrix[np.flatnonzero(case.null), case.dealt()])
            sums.append(float(hits.sum()))
            sizes.append(len(hits))
        return _null(sums, sizes)

    @staticmethod
    def _chance(credit: Sequence[NDArray[np.float64]]) -> float:
        return float(np.mean([np.mean(1 / np.maximum((~np.isnan(matrix)).sum(axis=1), 1)) for matrix in credit]))

    def _size_prior(self) -> dict[str, float]:
        """Success of always naming the client that sent the largest example count."""
        shares = []
        for case, members in zip(self.cases, self.members, strict=True):
            shares.append(float(np.mean(case.owner[members] == case.sizes.argmax())) if members.any() else 0.0)
        return {"always naming the largest client": float(np.mean(shares))}

    def _per_round(self) -> dict[str, list[Any]]:
        numbers = self.cases[0].scores.facts["rounds"]
        curve: dict[str, list[Any]] = {"rounds": [], "value": [], "low": [], "high": [], "null": []}
        for position in range(min(len(rounds) for rounds in self.rounds)):
            credit = [rounds[position] for rounds in self.rounds]
            hits = [self._hits(index, matrix) for index, matrix in enumerate(credit)]
            sums, sizes = [float(h.sum()) for h in hits], [len(h) for h in hits]
            if not all(sizes):
                continue
            low, high = rate_interval(sums, sizes, _LEVEL)
            null = self._null(credit)
            for key, value in (
                ("rounds", numbers[position]),
                ("value", sum(sums) / sum(sizes)),
                ("low", low),
                ("high", high),
                ("null", null["value"] if null else None),
            ):
                curve[key].append(value)
        return curve

    def _best_round(self) -> Finding | None:
        count = min(len(rounds) for rounds in self.rounds)
        if count < 2:
            return None
        best = []
        for index, rounds in enumerate(self.rounds):
            rates = [float(np.mean(hits)) if len(hits := self._hits(index, credit)) else 0.0 for credit in rounds]
            best.append(rounds[int(np.argmax(rates))])
        return self._rate(
            "asr-best-round",
            f"Owner named, best of {count} rounds, each seed's own",
            best,
            comparisons=count,
            reason="chosen after the fact among all rounds, as the paper does, with the interval widened for it: ",
        )

    def _per_client(self) -> list[dict[str, Any]]:
        entries = []
        bars = sum(len(case.clients) for case in self.cases)
        for case, credit in zip(self.cases, self.combined, strict=True):
            # How often this client is named for a record that nobody holds: some clients attract all blame.
            blame = credit[case.null]
            sizes = case.sizes
            for place, name in enumerate(case.clients):
                hits = _seen(credit[case.owner == place, place])
                if not len(hits):
                    continue
                low, high = rate_interval([float(hits.sum())], [len(hits)], _LEVEL, bars)
                entries.append(
                    {
                        "client": name if len(self.cases) == 1 else f"{name} (seed {case.seed})",
                        "value": float(hits.mean()),
                        "low": low,
                        "high": high,
                        "n": len(hits),
                        "share": float(sizes[place] / sizes.sum()),
                        "null": _null([float(blame[:, place].sum())], [len(blame)], bars),
                    }
                )
        return sorted(entries, key=lambda entry: -entry["value"])

    def _worst_client(self, entries: list[dict[str, Any]]) -> Finding | None:
        if not entries:
            return None
        worst = max(entries, key=lambda entry: entry["low"])
        null = worst["null"]
        chance = self._chance(self.combined)
        words, why = verdict(worst["value"], worst["low"], chance, null["high"] if null else None)
        return Finding(
            metric="asr-worst-client",
            label=f"Owner named, most exposed client ({worst['client']})",
            value=worst["value"],
            low=worst["low"],
            high=worst["high"],
            n=worst["n"],
            chance=chance,
            null=null,
            selected_after_the_fact=True,
            comparisons=len(entries),
            verdict=words,
            reason="chosen after the fact among all clients; the null is how often this client is named for a record "
            f"that nobody holds: {why}",
            **self.shared,
        )

    def _beyond_labels(self) -> Finding | None:
        """Compare with records that nobody holds but that would suit the clients' label distributions as well."""
        null_sums, null_sizes, sums, sizes = [], [], [], []
        for case, credit in zip(self.cases, self.combined, strict=True):
            # Expected success if each null target belonged to a client drawn in proportion to its label's holders.
            likely = case.label_shares()
            held = likely.sum(axis=1) > 0
            null_sums.append(float(np.nansum((credit[case.null] * likely)[held])))
            null_sizes.append(int(held.sum()))
            # The targets are drawn evenly over clients and the matched null evenly over records, so that the targets
            # are weighted by what their owners hold. Unequal weights count for fewer targets (Kish's effective size).
            rows = np.flatnonzero(case.owner >= 0)
            owner = case.owner[rows]
            weights = (case.sizes / np.maximum(np.bincount(owner, minlength=len(case.sizes)), 1))[owner]
            effective = int(weights.sum() ** 2 / (weights**2).sum()) if len(rows) else 0
            sums.append(effective * float(np.nansum(credit[rows, owner] * weights) / max(weights.sum(), 1e-12)))
            sizes.append(effective)
        matched = _null(null_sums, null_sizes)
        if matched is None or not all(sizes):
            return None
        low, high = rate_interval(sums, sizes, _LEVEL)
        value = sum(sums) / sum(sizes)
        words, why = verdict(value, low, self._chance(self.combined), matched["high"])
        return Finding(
            metric="asr-beyond-labels",
            label="Owner named, against label-matched records that nobody holds",
            value=value,
            low=low,
            high=high,
            n=sum(sizes),
            chance=self._chance(self.combined),
            null=matched,
            verdict=words,
            reason="the null is this attack's success on unseen records whose owner is drawn among the holders of "
            "their label, so a leak here means memorised records and not only unequal label distributions; clients "
            f"are weighted by how many records they hold: {why}",
            **self.shared,
        )

    def _reliability(self) -> dict[str, Any]:
        """Calibrate γ on one half of the targets and test it on the other, both ways."""
        confidence, correct, gammas = [], [], []
        for index, case in enumerate(self.cases):
            draw = np.random.default_rng((case.seed, _FOLDS))
            rows = draw.permutation(np.flatnonzero(self.members[index]))
            combined, prior = case.combined, case.log_prior
            for test, fit in ((rows[::2], rows[1::2]), (rows[1::2], rows[::2])):
                if not len(fit):
                    continue
                gamma = fit_gamma(combined[fit], prior, case.owner[fit])
                gammas.append(gamma)
                belief = posterior(combined[test], prior, gamma)
                confidence.append(belief.max(axis=1))
                correct.append(self.combined[index][test, case.owner[test]])
        if not confidence:
            return {}
        sure, right = np.concatenate(confidence), np.concatenate(correct)
        slot = np.minimum((sure * _BINS).astype(int), _BINS - 1)
        used = [place for place in range(_BINS) if (slot == place).any()]
        means = [(float(sure[slot == place].mean()), float(right[slot == place].mean())) for place in used]
        sizes = [int((slot == place).sum()) for place in used]
        gap = sum(size * abs(a - b) for size, (a, b) in zip(sizes, means, strict=True)) / len(sure)
        return {
            "confidence": [a for a, _ in means],
            "accuracy": [b for _, b in means],
            "count": sizes,
            "ece": gap,
            "gamma": float(np.median(gammas)),
        }

    def _most_exposed(self) -> list[dict[str, Any]]:
        """List the targets whose owner was named with the highest posterior, γ fitted on all targets."""
        found: list[tuple[float, int, str]] = []
        for index, case in enumerate(self.cases):
            rows = np.flatnonzero(self.members[index])
            if not len(rows):
                continue
            combined, prior = case.combined, case.log_prior
            belief = posterior(combined[rows], prior, fit_gamma(combined[rows], prior, case.owner[rows]))
            for row, beliefs in zip(rows, belief, strict=True):
                owner = case.owner[row]
                if self.combined[index][row, owner] == 1:
                    name = case.clients[owner] if len(self.cases) == 1 else f"{case.clients[owner]} (seed {case.seed})"
                    found.append((float(beliefs[owner]), int(row), name))
        top = sorted(found, reverse=True)[:_MOST_EXPOSED]
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


def _seen(credit: NDArray[np.float64]) -> NDArray[np.float64]:
    """Leave out owners that were not seen: "not seen" is no wrong answer."""
    return np.asarray(credit[~np.isnan(credit)])


def _null(sums: Sequence[float], sizes: Sequence[int], comparisons: int = 1) -> Null | None:
    if not sizes or not all(sizes):
        return None
    low, high = rate_interval(sums, sizes, _LEVEL, comparisons)
    return {"value": sum(sums) / sum(sizes), "low": low, "high": high, "n": sum(sizes)}
