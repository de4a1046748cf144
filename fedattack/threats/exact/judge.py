"""Judge what was read off: which part of the clients' training examples is there, number by number."""

from collections.abc import Iterator
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.clients import ClientsJudge, Fits
from fedattack.audit.finding import NOT_APPLICABLE
from fedattack.audit.intervals import t_interval
from fedattack.audit.measures import UNKNOWN, Measurement, Rate, measure, no_value
from fedattack.audit.readoff import BITS, read_off
from fedattack.audit.significance import Significance, significance_of
from fedattack.audit.summaries import null_of
from fedattack.audit.table import Row, rows_of
from fedattack.threats.exact import tables
from fedattack.threats.exact.case import PRECISE, TOLERANCE, ExactCase
from fedattack.threats.exact.exact import RULES
from fedattack.threats.exact.exchange import LinkedExamples, MetExamples, MetOfRuns
from fedattack.threats.inversion.images import IDENTICAL, peak_ratio

Floats = NDArray[np.float64]

AUXILIARY = "auxiliary examples"

# Streams of random numbers, apart from each other.
_TESTING, _CHOOSING, _SHUFFLING, _TRACING, _LINKING = 1, 2, 3, 4, 5


class ExactJudge(ClientsJudge[ExactCase]):
    """States which part of the clients' examples was read off exactly, and how much of what was read off is one.

    The test exchanges who holds which of all known examples, and what was read off stays.
    """

    case = ExactCase
    notes = (
        "An example counts as recovered if each of its numbers is within a thousandth of its feature's range. The "
        "null of exact.recovered compares what was recovered with examples that nobody trained on.",
        f"A recovered example is certain if each of its numbers is within {PRECISE:g} of its feature's range, and "
        f"{BITS:g} bits or more tell it from every example that another client or nobody holds.",
    )

    @measure("recovered", "Training examples recovered exactly", headline=True)
    def find_recovered(self) -> Measurement:
        """Count the clients' examples that are among those that were read off."""
        if not self.asked:
            return no_value("there is no client whose training examples are all known, so nothing can be compared")
        rate = Rate.of([case.is_read for case in self.asked])
        bars = {AUXILIARY: self._guess()}
        reason, parts = "", {}
        if all(len(case.evaluation) for case in self.asked):
            null = Rate.of([case.others_read for case in self.asked])
            parts = {"null": null.null(), "chance": null.value}
            reason = "the null compares the same with examples that nobody trained on"
        return rate.measured(
            reason or "no example is known that nobody trained on",
            bars=bars,
            baselines=bars,
            by_seed=rate.by_seed,
            series=self.show(tables.RULES, tables.CLIENTS, tables.ROUNDS, tables.UPDATES),
            test=self._test,
            read_off=read_off(
                "example", [case.right_of for case in self.asked], [case.certain_of for case in self.asked]
            ),
            **parts,
        )

    def _guess(self) -> float:
        """Return which part of the examples is among the attacker's own."""
        shares = [case.compare(case.examples[0], case.auxiliary)[1].max(axis=1) <= TOLERANCE for case in self.asked]
        return float(np.concatenate(shares).mean())

    @cached_property
    def _met(self) -> MetOfRuns:
        """What was read off and equals a known example."""
        return MetOfRuns([MetExamples.of(case, self.rng(_CHOOSING)) for case in self.asked])

    @cached_property
    def _test(self) -> Significance:
        """Say how likely so much of what was read off is held by whom it is said to be of alone."""
        return self._met.test(self.rng(_TESTING), self.draws)

    @measure("precision", "Recovered examples that a client trained on")
    def find_precision(self) -> Measurement | None:
        """Count what was read off and is an example of the client, or of sums of any."""
        credit = [case.truly_of >= 0 for case in self.asked if len(case.truly_of)]
        if not credit:
            return None
        rate = Rate.of(credit)
        exchanged = self._met.draw(self.rng(_SHUFFLING), self.shuffles) / rate.n
        return rate.measured(
            "it says how far the attacker can trust what was recovered",
            null=null_of(exchanged.tolist(), rate.n),
            chance=float(exchanged.mean()),
            test=self._test,
            by_seed=rate.by_seed,
        )

    @cached_property
    def _sums(self) -> list[ExactCase]:
        """The seeds in which examples of clients were read off sums."""
        return [case for case in self.asked if case.is_sum and (case.truly_of >= 0).any()]

    @measure("clients", "Examples of sums traced to their client")
    def find_clients(self) -> Measurement | None:
        """Count of sums which part of the examples that were read off is traced to the client that holds it."""
        if not self._sums:
            return None
        credit = []
        for case in self._sums:
            real = case.truly_of >= 0
            credit.append((case.read[1] == case.truly_of)[real])
        rate = Rate.of(credit)
        fits = Fits([case.traced for case in self._sums])
        exchanged = fits.draw(self.rng(_SHUFFLING), self.shuffles) * sum(fits.sizes) / rate.n
        return rate.measured(
            "the share of correctly recovered examples whose owner is named right; the owner follows from who took "
            "part in which round",
            null=null_of(exchanged.tolist(), rate.n),
            chance=float(exchanged.mean()),
            test=fits.test(self.rng(_TRACING), self.draws),
            baselines={"guessing": float(np.mean([1 / len(case.asked) for case in self._sums]))},
            by_seed=rate.by_seed,
        )

    @measure("linked", "Examples of sums linked to another one of the same client")
    def find_linked(self) -> Measurement | None:
        """Count of sums which part of the examples that were read off is in a group, all of one client."""
        if not self._sums:
            return None
        rate = Rate.of([case.is_linked[case.truly_of >= 0] for case in self._sums])
        wrong = sum(int((case.is_grouped & ~case.is_linked).sum()) for case in self._sums)
        linked = [LinkedExamples.of(case) for case in self._sums]

        def draw(rng: np.random.Generator, count: int) -> Floats:
            return np.asarray(sum(run.draw(rng, count) for run in linked)) / rate.n

        exchanged = draw(self.rng(_SHUFFLING), self.shuffles)
        test = significance_of(
            rate.value,
            draw,
            self.rng(_LINKING),
            "the owners of the recovered examples exchanged",
            arrangements=prod(run.arrangements for run in linked),
            draws=self.draws,
        )
        return rate.measured(
            f"the share of correctly recovered examples that are in a group of one client; {wrong} examples are in a "
            "group of several clients",
            null=null_of(exchanged.tolist(), rate.n),
            chance=float(exchanged.mean()),
            test=test,
            by_seed=rate.by_seed,
        )

    @measure("psnr", "Mean peak signal-to-noise ratio of the nearest recovered example")
    def find_ratio(self) -> Measurement | None:
        """Take the mean of the peak signal-to-noise ratios of images."""
        return self._take_mean("psnr", _ratio_of, (0.0, IDENTICAL), "dB", is_image=True)

    @measure("columns", "Numbers of an example that the nearest recovered one has")
    def find_columns(self) -> Measurement | None:
        """Take the mean share of columns of tables that are right."""
        return self._take_mean("columns", _share_of_columns, (0.0, 1.0), "proportion", is_image=False)

    def _take_mean(
        self, name: str, score: Any, bounds: tuple[float, float], units: str, *, is_image: bool
    ) -> Measurement | None:
        """Take a mean over examples; beside it that of the attacker's own nearest examples."""
        cases = [case for case in self.asked if case.is_image == is_image]
        if not cases or len(cases) < len(self.asked):
            return None
        values = [score(case.apart) for case in cases]
        guesses = [score(case.compare(case.examples[0], case.auxiliary)[1]) for case in cases]
        every = np.concatenate(values)
        interval = UNKNOWN
        if len(every) > 1:
            low, high = t_interval(every.tolist())
            interval = max(low, bounds[0]), min(high, bounds[1])
        return Measurement(
            value=float(every.mean()),
            n=len(every),
            interval=interval,
            reason=f"the verdict is that of exact.recovered; {name} also counts what is nearly right",
            units=units,
            baselines={AUXILIARY: float(np.concatenate(guesses).mean())},
            verdict=NOT_APPLICABLE,
        )

    @rows_of(tables.RULES)
    def count_by_rule(self) -> Iterator[Row]:
        """Count by rule what was read off, what of it is an example, and the largest error of these."""
        for index, rule in enumerate(RULES):
            read = right = 0
            errors = [0.0]
            for case in self.asked:
                own = case.take_asked(case.found.told_by) == index
                real = own & (case.truly_of >= 0)
                read, right = read + int(own.sum()), right + int(real.sum())
                errors += case.compare(case.read[0][real], case.examples[0])[1].max(axis=1).tolist()
            yield {"rule": rule, "named": read, "right": right, "error": float(max(errors))}

    @rows_of(tables.CLIENTS)
    def describe_clients(self, case: ExactCase) -> Iterator[Row]:
        """Describe the clients of a run."""
        for index, client in enumerate(case.asked):
            own = case.examples[1] == index
            yield {"client": client, "examples": int(own.sum()), "read": int(case.is_read[own].sum())}

    @rows_of(tables.ROUNDS)
    def follow_rounds(self, case: ExactCase) -> Iterator[Row]:
        """Say after which round of a run how many examples were read off."""
        rounds = np.array([update.round for update in case.found.updates])
        numbers = rounds[case.take_asked(case.found.first)]
        for round_ in sorted({*rounds.tolist()}):
            known = case.read[0][numbers <= round_]
            apart = case.compare(case.examples[0], known)[1].max(axis=1)
            yield {"round": round_, "share": float((apart <= TOLERANCE).mean())}

    @rows_of(tables.UPDATES)
    def describe_updates(self, case: ExactCase) -> Iterator[Row]:
        """Say of updates whether they were taken apart into all examples, and why not: of each reason the first."""
        told = set()
        for update in case.found.updates:
            if update.why in told:
                continue
            if update.why:
                told.add(update.why)
            yield vars(update) | {"client": case.truth.nodes.get(update.client, update.client)}

    @rows_of(tables.EXAMPLES)
    def list_examples(self, case: ExactCase) -> Iterator[Row]:
        """List every example that was read off."""
        x, whose = case.read
        errors = case.compare(x, case.examples[0])[1].max(axis=1, initial=0)
        found = case.found
        told_by, first, groups = map(case.take_asked, (found.told_by, found.first, found.groups))
        for index, (client, holder) in enumerate(zip(whose.tolist(), case.truly_of.tolist(), strict=True)):
            yield {
                "client": case.asked[client] if client >= 0 else "all clients",
                "group": int(groups[index]),
                "round": found.updates[int(first[index])].round,
                "rule": RULES[int(told_by[index])],
                "holder": case.asked[holder] if holder >= 0 else "nobody",
                "error": float(errors[index]),
            }


def _ratio_of(apart: Floats) -> Floats:
    """Return the peak signal-to-noise ratio of examples in dB, by how far their pixels are apart."""
    return peak_ratio(np.square(np.minimum(apart, 1.0)).mean(axis=1))


def _share_of_columns(apart: Floats) -> Floats:
    """Return which part of the numbers of examples is right."""
    return np.asarray((apart <= TOLERANCE).mean(axis=1))
