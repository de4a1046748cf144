"""Judge source inference: whose example is this, how often right, against what.

All measures but ``asr-shared`` are about targets with one owner. Their tests are those of
:mod:`fedattack.audit.naming`: who is who for those that ask whether owners are named, within labels for the worst
client and beyond labels, and within clients and labels beyond the site.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from fedattack.audit.finding import Null, in_units, list_words
from fedattack.audit.intervals import LEVEL
from fedattack.audit.judge import Judge, entry_of_client, expose_client, rows_of_clients
from fedattack.audit.listing import several
from fedattack.audit.measures import Measurement, Rate, measure, no_value, separate
from fedattack.audit.naming import HolderExchanges, Holders, best_round, who_is_who
from fedattack.audit.reach import Prepared, Reach, smallest
from fedattack.audit.significance import Significance, least_p
from fedattack.audit.summaries import part_by_client, part_by_label, rate_populations, rate_surest
from fedattack.audit.table import Row, rows_of
from fedattack.audit.truth import NOBODY, SEVERAL
from fedattack.threats.source.case import Answered, Floats, SourceCase
from fedattack.threats.source.confidence import Confidence, calibrate, measure_reliability, separate_beliefs
from fedattack.threats.source.counterparts import Compared, compare_with_held_out, compare_with_labels, explain_success
from fedattack.threats.source.tables import CLIENTS, COMBINING, MOST_EXPOSED, RECORDS

# Kinds of targets beside those of the main measure.
_SEVERAL = "several clients hold"
_NEVER = "a client holds that was never seen"

# The stream of random numbers of each test.
_TESTS = {
    "asr": 11,
    "asr-likelihood": 12,
    "asr-last-round": 13,
    "asr-best-round": 14,
    "asr-worst-client": 15,
    "asr-beyond-site": 17,
    "asr-shared": 18,
}

_WITHIN_LABELS = "owners exchanged among all targets of the same label, those that nobody holds included"
_WITHIN_SITES = "members and held-out examples exchanged within each client and label"


@dataclass(frozen=True)
class Pooled:
    """The success of the seeds in which something counts: on targets, on null targets, and by guessing."""

    rate: Rate
    null: Null | None
    chance: float
    baselines: Mapping[str, float]

    def as_entry(self) -> dict[str, Any]:
        """Return the numbers as a series holds them."""
        return self.rate.as_entry() | {"chance": self.chance, "null": self.null, "baselines": self.baselines}


def pool_seeds(answers: Sequence[Answered]) -> Pooled | None:
    """Pool the seeds; ``None`` where in none of them anything counts."""
    hits, nulls, chances, largest = [], [], [], []
    for answered in answers:
        if len(answered.hits):
            hits.append(answered.hits)
            nulls.append(answered.null)
            chances.append(answered.chance)
            largest.append(answered.largest)
    if not hits:
        return None
    rate = Rate.of(hits)
    baselines = {"always naming the largest client": sum(largest) / rate.n}
    return Pooled(rate, Rate.of(nulls).null(), sum(chances) / rate.n, baselines)


class SourceJudge(Judge[SourceCase]):
    """States how often the owner of an example was named."""

    case = SourceCase
    notes = (
        "The null run assigns examples that nobody holds to clients at random, so it stays at chance unless something "
        "other than the example's content reveals the owner. The nulls of sia.asr-beyond-labels and "
        "sia.asr-beyond-site "
        "are the harder ones.",
    )

    @measure("asr", "Owner named, all rounds combined", headline=True)
    def name_owners(self) -> Measurement:
        """Take all rounds together, as fixed in advance."""
        targets = sum(self.each(lambda case: len(case.all_rounds.hits)))
        reason = self._say_left_out() + say_explanation(self._explained, targets)
        return self._hold_against_null("asr", "all_rounds", reason, series=self._series())

    @measure("asr-likelihood", "Owner named, all rounds combined as likelihoods")
    def name_by_likelihood(self) -> Measurement:
        """Combine the rounds in the other way."""
        reason = "the same targets, with the rounds combined in the other way"
        return self._hold_against_null("asr-likelihood", "by_likelihood", reason)

    @measure("asr-last-round", "Owner named, last round alone")
    def name_in_last_round(self) -> Measurement:
        """Take the last round alone."""
        reason = "the targets of the clients that took part in it"
        return self._hold_against_null("asr-last-round", "last_round", reason)

    @measure("asr-best-round")
    def name_in_best_round(self) -> Measurement | None:
        """Choose the best round on one half of the targets, and measure it on the other."""
        if self._choices < 2:
            return None
        pooled, plain = pool_seeds(self.each(lambda case: max(case.rounds.whole, key=attrgetter("rate")))), 0.0
        if pooled is not None:
            plain = pooled.rate.value
        return self._hold_against_null(
            "asr-best-round",
            "best_round",
            "chosen after the fact among all rounds: each half of the targets is named from the round that was best on "
            f"the other half; the plain maximum, as in the paper, is {in_units(plain)}",
            self.each(lambda case: case.rounds.named),
            best_round,
            label=f"Owner named, best of {self._choices} rounds, each seed's own",
            chosen_among=self._choices,
        )

    @measure("asr-worst-client")
    def name_worst_client(self) -> Measurement | None:
        """Take the client that is above what examples of the same labels give by most standard deviations."""
        if not self._clients:
            return None
        _, worst = max(self._clients, key=lambda client: client[0])
        return expose_client(
            worst,
            len(self._clients),
            "Owner named, client that stands out most surely from its labels",
            ", as the one that is above what examples of the same labels give, which is its null, by most standard "
            "deviations: another client may be named more often",
            chance=self._chance,
            test=self._within_labels.significance(self._within_labels.largest_excess),
        )

    @measure("asr-beyond-labels", "Owner named, against label-matched examples that nobody holds")
    def name_beyond_labels(self) -> Measurement | None:
        """Compare with examples that nobody holds, but that fit the clients' labels as well."""
        found, null, runs = compare_with_labels(self.cases)
        if not all(null.sizes) or not all(found.sizes):
            return None
        return self._hold_against_alike(
            (found, null, runs),
            self._within_labels,
            "the null is this attack's success on unseen examples whose owner is drawn among the holders of their "
            "label, so a leak here means that single examples, or what a client's data have in common, reveal the "
            "owner, and not only unequal label distributions; clients are weighted by how many examples they hold",
        )

    @measure("asr-beyond-site", "Owner named, against held-out examples of the same clients")
    def name_beyond_site(self) -> Measurement | None:
        """Compare with examples of the same clients on which they did not train, where there are any."""
        compared = compare_with_held_out(self.cases)
        if compared is None:
            return None
        counterparts = sum(len(alike.slots) for alike, _ in compared[2])
        return self._hold_against_alike(
            compared,
            HolderExchanges([alike for alike, _ in compared[2]], self.rng(_TESTS["asr-beyond-site"]), _WITHIN_SITES),
            "the null is how often examples of the same clients and labels, on which nobody trained, are traced to "
            "their client, so a leak here means that the models reveal single examples; "
            f"{counterparts:,} targets have such a counterpart; clients are weighted by how many examples they hold",
        )

    @measure("asr-shared", "One of several owners named, all rounds combined")
    def name_one_of_several(self) -> Measurement | None:
        """Judge targets that several clients hold, where there are such: naming any of them is right."""
        if not self._counts[_SEVERAL]:
            return None
        reason = "examples that several clients hold; any of these is right; their chance is the owners' share of the "
        return self._hold_against_null("asr-shared", "of_several", f"{reason}clients")

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach:
        """Count the ways to say who is who among clients that hold targets, if all of them are seen."""
        holders = [len({*run.truth.owners.tolist()} - {NOBODY, SEVERAL}) for run in runs]
        arrangements = math.prod(map(math.factorial, holders))
        enough = smallest(lambda clients: math.factorial(clients) * needed >= 1)
        size = f"{min(holders)} clients with targets of their own"
        # Nobody is named where there is no such client.
        least = 1.0
        if any(holders):
            least = least_p(arrangements)
        return Reach(least, size, f"{enough} clients", f"clients={enough}")

    @rows_of(CLIENTS)
    def list_clients(self) -> Iterator[Row]:
        """List the clients, most often named first."""
        return rows_of_clients(self, self._by_success)

    @rows_of(RECORDS)
    def list_answers(self, case: SourceCase) -> Iterator[Row]:
        """List every target with the client that was named for it."""
        beliefs: dict[int, Floats] = {}
        for part in self._confidence:
            if part.case is case:
                beliefs |= zip(part.rows.tolist(), part.beliefs, strict=True)
        holders = np.zeros(case.credit.shape, dtype=np.bool_)
        for held in (case.sole, case.shared):
            holders[held.rows] = held.by
        for record, (credit, holds) in enumerate(zip(case.credit, holders, strict=True)):
            columns = np.flatnonzero(credit > 0)
            right = credit[holds & ~np.isnan(credit)]
            owner = str(case.truth.owners[record])
            is_sure = record in beliefs and len(columns) == 1
            yield {
                "record": record,
                "holders": several(case.truth.shared[record]) if owner == SEVERAL else owner,
                "named": several([case.clients[column] for column in columns]),
                "confidence": float(beliefs[record][columns[0]]) if is_sure else None,
                "right": float(right.sum()) if len(right) else None,
            }

    @property
    def _chance(self) -> float:
        """Success of guessing, all rounds combined."""
        pooled = pool_seeds(self.each(lambda case: case.all_rounds))
        if not pooled:
            return 0.0
        return pooled.chance

    @property
    def _choices(self) -> int:
        """How many rounds there are to choose from."""
        return max(self.each(lambda case: len(case.rounds.whole)))

    @cached_property
    def _explained(self) -> dict[str, Any]:
        return explain_success(self.cases)

    @cached_property
    def _confidence(self) -> list[Confidence]:
        parts: list[Confidence] = []
        for case in self.cases:
            parts += calibrate(case)
        return parts

    def _hold_against_null(
        self,
        metric: str,
        way: str,
        reason: str,
        named: Sequence[Any] = (),
        test: Callable[[list[Any], np.random.Generator], Significance] = who_is_who,
        **parts: Any,
    ) -> Measurement:
        """Hold a success against that on null targets, and against naming the largest client.

        ``way`` is how a case's targets were answered. ``test`` is of what ``named`` says of each seed, by default of
        how these answers name clients.
        """
        answers: list[Answered] = self.each(attrgetter(way))
        pooled = pool_seeds(answers)
        if pooled is None:
            return no_value("no target record has an owner that was ever sampled", label=parts.get("label", ""))
        runs = []
        for place, of_seed in enumerate(answers):
            if len(of_seed.held.rows):
                names = of_seed.named
                if named:
                    names = named[place]
                runs.append((Holders.of(of_seed.held.by), names))
        return pooled.rate.measured(
            reason,
            test=test(runs, self.rng(_TESTS[metric])),
            null=pooled.null,
            chance=pooled.chance,
            baselines=pooled.baselines,
            bars=pooled.baselines,
            by_seed=pooled.rate.by_seed,
            **parts,
        )

    @cached_property
    def _within_labels(self) -> HolderExchanges:
        """The targets of the same labels, exchanged for all findings that ask about these."""
        held = [case.alike for case in self.cases if len(case.alike.slots)]
        return HolderExchanges(held, self.rng(_TESTS["asr-worst-client"]), _WITHIN_LABELS)

    def _hold_against_alike(self, compared: Compared, exchanges: HolderExchanges, reason: str) -> Measurement:
        """Hold a weighted success against that on examples that are like the targets."""
        found, null, runs = compared
        weights = [of_holders for alike, of_holders in runs if len(alike.slots)]
        test = exchanges.significance(exchanges.weighted(weights))
        return found.measured(reason, test=test, null=null.null(), chance=self._chance)

    @cached_property
    def _counts(self) -> Counter[str]:
        """How many targets there are of each kind, over all seeds."""
        counts: Counter[str] = Counter()
        for case in self.cases:
            sole, nobody, shared = len(case.sole.rows), int(case.null.sum()), len(case.truth.shared)
            of_kind = {"one client holds": sole, "nobody holds": nobody, _SEVERAL: shared}
            counts.update(of_kind | {_NEVER: len(case.owner) - sole - nobody - shared})
        return counts

    def _say_left_out(self) -> str:
        several, never = self._counts[_SEVERAL], self._counts[_NEVER]
        reason = ""
        if several:
            reason += f"{several:,} targets that several clients hold are judged separately (asr-shared); "
        if never:
            reason += f"{never:,} targets of clients that were never seen are left out; "
        return reason

    @cached_property
    def _clients(self) -> list[tuple[float, dict[str, Any]]]:
        """Measure each client; first how surely it is above what examples of the same labels give."""
        entries = []
        bars = sum(self.each(lambda case: len(case.clients)))
        for case in self.cases:
            alike, sizes = case.alike, case.sizes
            expected = alike.expected[0] / alike.sizes
            excess = alike.excess(alike.by_holder(alike.observed()))[0]
            for column, rate, above in zip(alike.holders, expected, excess, strict=True):
                credit = case.right[case.owner[case.counted] == column]
                if len(credit):
                    entry = entry_of_client(self.title_of(case, case.clients[column]), credit, bars)
                    entry["share"] = float(sizes[column] / max(sizes.sum(), 1))
                    entry["null"] = range_of(float(rate), len(credit))
                    entries.append((float(above), entry))
        return entries

    @property
    def _by_success(self) -> list[dict[str, Any]]:
        """What is measured of each client, most often named first."""
        return sorted((entry for _, entry in self._clients), key=lambda entry: -entry["value"])

    @rows_of(COMBINING)
    def compare_ways(self) -> Iterator[Row]:
        """Compare the ways to take rounds together."""
        ways = {
            "last round alone": "last_round",
            f"best of {self._choices} rounds, known only afterwards": "best_round",
            "all rounds: mean probability": "all_rounds",
            "all rounds: likelihood": "by_likelihood",
        }
        for words, way in ways.items():
            pooled = pool_seeds(self.each(attrgetter(way)))
            if pooled is not None:
                yield {"way": words, **pooled.as_entry()}

    def _series(self) -> dict[str, Any]:
        series = {
            "per_round": self._per_round(),
            "per_client": self._by_success,
            "reliability": measure_reliability(self._confidence),
            "targets": dict(self._counts),
            "populations": rate_populations(self._list_populations()),
            **self.show(COMBINING, MOST_EXPOSED),
        }
        sure = [(part.sure, part.right) for part in self._confidence]
        if surest := rate_surest(sure, self.cases[0].seed, self._chance):
            series["surest"] = surest
        if self._explained:
            series["explained"] = self._explained
        beliefs = separate_beliefs(self._confidence)
        if all(map(len, beliefs)):
            series |= separate(*beliefs)
        return series

    def _list_populations(self) -> Iterator[tuple[Floats, dict[str, NDArray[np.str_]]]]:
        for case in self.cases:
            owners = [case.clients[column] for column in case.owner[case.counted]]
            parts = part_by_label(case.truth, case.labels[case.counted])
            yield case.right, parts | part_by_client(case.truth, owners)

    def _per_round(self) -> dict[str, list[Any]]:
        numbers = self.cases[0].found.rounds
        by_round: dict[str, list[Any]] = {key: [] for key in ("rounds", "value", "low", "high", "null", "chance")}
        for position, answers in enumerate(zip(*self.each(lambda case: case.rounds.whole), strict=False)):
            pooled = pool_seeds(answers)
            if pooled is None or not all(len(of_seed.hits) for of_seed in answers):
                continue
            entry = pooled.as_entry() | {"rounds": numbers[position]}
            entry["null"] = None
            if pooled.null:
                entry["null"] = pooled.null["value"]
            for key, column in by_round.items():
                column.append(entry[key])
        return by_round

    @rows_of(MOST_EXPOSED)
    def list_most_exposed(self) -> list[Row]:
        """List the targets of whose owner the attack was most sure, right or wrong; the surest first."""
        answers: list[Row] = []
        for part in self._confidence:
            named, sure = part.named, part.sure
            for index in np.argsort(-sure, kind="stable")[: MOST_EXPOSED.most]:
                answers.append(
                    {
                        "record": int(part.rows[index]),
                        "client": self.title_of(part.case, part.case.clients[named[index]]),
                        "posterior": float(sure[index]),
                        "right": bool(part.right[index] == 1),
                    }
                )
        return sorted(answers, key=lambda answer: -answer["posterior"])


def say_explanation(explained: Mapping[str, Any], targets: int) -> str:
    """Say in a sentence what the success on so many targets is made of."""
    if not explained:
        return "all rounds together"
    guessing, *others = explained["parts"]
    parts = [f"{guessing['part']} gives {100 * guessing['value']:.1f} points"]
    parts.extend(f"{part['part']} {100 * part['value']:.1f}" for part in others)
    words = f"of {in_units(explained['value'])}, {list_words(parts, 'and')}"
    if explained["n"] < targets:
        words += f" (on the {explained['n']:,} targets that have counterparts)"
    if len(parts) < 4:
        words += ", which cannot be told apart without held-out examples of the clients"
    return words


def range_of(rate: float, n: int) -> Null:
    """State an expected rate with the range in which so many targets fall."""
    low, high = stats.binom.interval(LEVEL, n, min(rate, 1.0))
    return {"value": rate, "low": min(max(float(low) / n, 0.0), rate), "high": max(float(high) / n, rate), "n": n}
