"""Judge gradient inversion: how close reconstructed examples are to those that clients trained on.

What is compared with what is said in :mod:`fedattack.threats.inversion.case`. Each example counts once, however many
rounds it was attacked in.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedattack.audit.finding import NOT_APPLICABLE
from fedattack.audit.intervals import median_interval
from fedattack.audit.judge import Judge
from fedattack.audit.measures import UNKNOWN, Measurement, Rate, measure
from fedattack.audit.reach import Prepared, Reach
from fedattack.audit.significance import Significance, count_of, exchange_within, least_p, significance_of
from fedattack.audit.table import Row, rows_of
from fedattack.threats.inversion.case import MEAN, RANDOM, RECOGNISED, Compared, Floats, InversionCase
from fedattack.threats.inversion.cells import COMMON, RANDOM_ROW, TOLERANCE, CellsCase, Flags, FoundCells
from fedattack.threats.inversion.exchange import Exchanged, ExchangedCells, arrangements_of
from fedattack.threats.inversion.images import IDENTICAL, Images
from fedattack.threats.inversion.options import SURE
from fedattack.threats.inversion.preflight import Preflight
from fedattack.threats.inversion.tables import CELLS, COLUMNS, MOST_PICTURES, QUARTER_NAMES, QUARTERS, RECORDS

# The stream of random numbers of tests.
_TESTING = 3


class InversionJudge(Judge[InversionCase]):
    """States how close reconstructed examples are to the true ones."""

    case = InversionCase
    needs_truth = ("records",)
    notes = (
        "A reconstruction is also compared with guesses without any gradient, because images of one class resemble "
        "each other. If the residual of the replay is large, the attack's assumed computation differs from the "
        "client's, and its failure says nothing about privacy.",
    )

    def __init__(
        self, cases: Sequence[InversionCase], *, setting: Mapping[str, Any], provenance: Mapping[str, Any]
    ) -> None:
        super().__init__(cases, setting=setting, provenance=provenance)
        self.results = [case.results for case in cases]
        self.nulls = [case.nulls for case in cases]
        self.exchanged = [case.exchange(self.draws) for case in cases]
        self.guesses: dict[str, list[list[Compared]]] = {}
        for name in (RANDOM, MEAN):
            self.guesses[name] = [case.guesses[name] for case in cases]
        self.cells = self._read_cells()
        self.exchanged_cells = [of_run.exchange(self.draws) for of_run in self.cells]

    def _read_cells(self) -> list[CellsCase]:
        """Read rows of a table with categories cell by cell; nothing of other examples."""
        cells = []
        for case in self.cases:
            coding = case.knowledge.coding
            if coding is None or all(coding.is_number):
                return []
            cells.append(CellsCase(case, coding))
        return cells

    @measure("recognised", f"Examples reconstructed to {RECOGNISED:g} dB or better", headline=True)
    def recognise_examples(self) -> Measurement:
        """Count the examples with a high peak signal-to-noise ratio."""
        found = self._recognise(self.results)
        by_mean = {MEAN: self._recognise(self.guesses[MEAN]).value}
        return found.measured(
            f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            null=self._recognise(self.nulls).null(),
            test=self._test("recognised", np.mean, self.exchanged),
            chance=self._recognise(self.guesses[RANDOM]).value,
            baselines=by_mean,
            bars=by_mean,
            series={"pictures": [*itertools.islice(self._draw_pictures(), MOST_PICTURES)]},
            by_seed=found.by_seed,
        )

    @measure("psnr", "Peak signal-to-noise ratio, median")
    def measure_ratio(self) -> Measurement:
        """Take the median of the peak signal-to-noise ratios."""
        return self._take_median("ratio", "dB", (0.0, IDENTICAL))

    @measure("ssim", "Structural similarity, median")
    def measure_similarity(self) -> Measurement | None:
        """Take the median of the structural similarities of images."""
        if self.cases[0].held.x.ndim != 4:
            return None
        return self._take_median("similarity", "", (-1.0, 1.0))

    @measure("mse", "Mean squared error of inputs in 0 … 1, median")
    def measure_error(self) -> Measurement:
        """Take the median of the mean squared errors."""
        values = self._by_seed(self.results, "error")
        return Measurement(
            reason="lower is a worse leak; the verdict is that of the peak signal-to-noise ratio, which says the same "
            "in dB",
            value=_median_of(values),
            n=sum(map(len, values)),
            interval=median_interval(values, bounds=(0.0, 1.0)),
            units="",
            baselines={name: _median_of(self._by_seed(guesses, "error")) for name, guesses in self.guesses.items()},
            verdict=NOT_APPLICABLE,
        )

    @measure("cells", "Cells of rows that are right")
    def count_cells(self) -> Measurement | None:
        """Count the right cells of rows of a table."""
        return self._count_right("cells", CellsCase.share_cells, self.show(COLUMNS) if self.cells else {})

    @measure("rows", "Rows that are right in all cells")
    def count_rows(self) -> Measurement | None:
        """Count the rows of a table that are right as a whole."""
        return self._count_right("rows", CellsCase.share_rows, {})

    @measure("sure-cells", "Cells that are right of the quarter that the attacker is surest of")
    def count_sure_cells(self) -> Measurement | None:
        """Count the right ones of the cells about which the searches agree most."""
        series = self.show(QUARTERS)
        if not series[QUARTERS.name]:
            return None
        surest = series[QUARTERS.name][0]
        # Cells of a row are not independent of each other: there is no interval.
        return Measurement(
            reason="the attacker knows which cells these are: those on which its searches agree most; the verdict is "
            "that of all cells",
            value=surest["right"],
            n=surest["cells"],
            baselines={COMMON: surest["common"]},
            series=series,
            verdict=NOT_APPLICABLE,
        )

    @measure("labels", "Labels restored")
    def restore_labels(self) -> Measurement | None:
        """Count how many labels are right, where there are classes."""
        if not self.cases[0].has_classes:
            return None
        sums, sizes, nulls, chances = [], [], [], []
        for case in self.cases:
            sums.append(float(case.in_common.trace()))
            sizes.append(int(case.sizes.sum()))
            # The reply of the next client; there is none where there is one client.
            nulls.append(float(np.roll(case.in_common, -1, axis=0).trace()))
            counts = np.bincount(case.others[1].astype(np.int64))
            chances.append(float(counts.max() / counts.sum()))
        alone = any(self.each(lambda case: len(case.sizes) == 1))
        return Rate(sums, sizes).measured(
            "how many of a batch's restored labels are among its true ones; chance is the most common label, the null "
            "another client's labels",
            null=None if alone else Rate(nulls, sizes).null(),
            test=self._test_labels(sum(sums)),
            chance=max(chances),
        )

    @measure("preflight", "Residual of a replay of the true examples, median")
    def replay_examples(self) -> Measurement | None:
        """Replay the true examples, and take the median residual; where the app itself was asked, there is no model."""
        if any(self.each(lambda case: case.knowledge.model is None)):
            return None
        preflights: list[Preflight] = []
        for case in self.cases:
            preflights += case.preflights
        # Each cause once, in their order.
        causes: dict[str, None] = {}
        for replay in preflights:
            causes |= dict.fromkeys(replay.causes)
        note = f"; possible causes for the others: {'; '.join(causes)}" if causes else ""
        residuals = np.minimum([replay.residual for replay in preflights], 1e9)
        right = sum(replay.fits for replay in preflights)
        return Measurement(
            reason="the true examples, put through the training that the attacker assumes, give what the client sent "
            f"for {right} of {len(preflights)} replies{note}",
            value=float(np.median(residuals)),
            n=len(preflights),
            units="",
            verdict=NOT_APPLICABLE,
        )

    @classmethod
    def reach(cls, runs: Sequence[Prepared], needed: float) -> Reach | None:
        """Count the ways to take others of their labels for the true examples, if all small clients are attacked."""
        arrangements, examples = 1.0, 0
        for run in runs:
            held, others = run.truth.records, run.truth.evaluation[1]
            if held is None or not len(held.y):
                continue
            owners, asked = np.array(held.owners), held.y
            if not len(others):
                # Those that are searched for stand first, and other clients' examples behind them.
                is_first = owners == owners[0]
                owners, asked, others = owners[is_first], held.y[is_first], held.y[~is_first]
            examples += len(asked)
            labels, of_others = np.zeros(len(asked), np.int64), np.zeros(len(others), np.int64)
            if np.issubdtype(held.y.dtype, np.integer):
                labels, of_others = asked.astype(np.int64), others.astype(np.int64)
            arrangements *= arrangements_of([labels[owners == name] for name in np.unique(owners)], of_others)
        if not examples:
            return None
        enough = f"1 example, and {math.ceil(1 / needed) - 1} others of its label that nobody trained on"
        return Reach(least_p(arrangements), f"{examples} examples to reconstruct", enough)

    @rows_of(RECORDS)
    def list_examples(self, case: InversionCase) -> Iterator[Row]:
        """List every example with how well it was reconstructed from each reply."""
        cells: Sequence[Flags | None] = [None] * len(case.batches)
        for of_run in self.cells:
            if of_run.case is case:
                cells = of_run.results
        for (number, client, rows), result, of_cells in zip(case.batches, case.results, cells, strict=True):
            round_ = case.found.batches[number].round
            for index, record in enumerate(rows.tolist()):
                ratio = float(result.ratio[index])
                yield {
                    "client": client,
                    "round": round_,
                    "record": record,
                    "psnr": ratio,
                    "ssim": None if result.similarity is None else float(result.similarity[index]),
                    "mse": float(result.error[index]),
                    "recognised": ratio >= RECOGNISED,
                    "cells": None if of_cells is None else float(of_cells[index].mean()),
                }

    @rows_of(CELLS)
    def list_cells(self, case: InversionCase) -> Iterator[Row]:
        """List every cell that was found, with how unsure of it the attacker is."""
        for of_run in self.cells:
            found = of_run.found_cells
            if of_run.case is not case or found is None:
                continue
            for index in range(len(found.right)):
                number, client, _ = case.batches[found.batches[index]]
                yield {
                    "client": client,
                    "round": case.found.batches[number].round,
                    "record": int(found.records[index]),
                    "column": of_run.coding.names[found.columns[index]],
                    "found": float(found.values[index]),
                    "unsure": float(found.unsure[index]),
                    "right": bool(found.right[index]),
                }

    @rows_of(COLUMNS)
    def list_columns(self, case: InversionCase) -> Iterator[Row]:
        """List every column of a table with the share of its cells that is right."""
        for of_run in self.cells:
            if of_run.case is not case:
                continue
            right = np.concatenate(of_run.results).mean(axis=0)
            common = np.concatenate(of_run.guesses[COMMON]).mean(axis=0)
            for column, name in enumerate(of_run.coding.names):
                sure, sure_right = _share_sure(of_run.found_cells, column)
                yield {
                    "column": name,
                    "right": float(right[column]),
                    "common": float(common[column]),
                    "sure": sure,
                    "sure_right": sure_right,
                }

    @rows_of(QUARTERS)
    def divide_cells(self) -> Iterator[Row]:
        """Divide the cells of all runs by how sure of them the attacker is, the surest first."""
        parts = [of_run.found_cells for of_run in self.cells if of_run.found_cells is not None]
        if not parts:
            return
        found = FoundCells.join(parts)
        for number, chosen in enumerate(np.array_split(np.argsort(found.unsure, kind="stable"), len(QUARTER_NAMES))):
            cells = found.take(chosen)
            if len(chosen):
                yield {
                    "quarter": QUARTER_NAMES[number],
                    "cells": len(chosen),
                    "unsure": float(cells.unsure.max()),
                    "right": float(cells.right.mean()),
                    "common": float(cells.common.mean()),
                }

    def _count_right(
        self, name: str, share: Callable[[CellsCase, Sequence[Flags]], Floats], series: Mapping[str, Any]
    ) -> Measurement | None:
        """Count what is right of rows of a table, beside guesses without any gradient."""
        if not self.cells:
            return None
        found = Rate.of([share(of_run, of_run.results) for of_run in self.cells])
        nulls = Rate.of([share(of_run, of_run.nulls) for of_run in self.cells])
        guessed = {}
        for guess in (RANDOM_ROW, COMMON):
            guessed[guess] = Rate.of([share(of_run, of_run.guesses[guess]) for of_run in self.cells]).value
        by_common = {COMMON: guessed[COMMON]}
        return found.measured(
            f"a number is right within {TOLERANCE:g} standard deviations; chance is {RANDOM_ROW}, the null what is "
            "rebuilt from another client's reply",
            null=nulls.null(),
            test=self._test(name, np.mean, self.exchanged_cells),
            chance=guessed[RANDOM_ROW],
            baselines=by_common,
            bars=by_common,
            series=series,
            by_seed=found.by_seed,
        )

    def _test(
        self, measure: str, middle: Callable[..., Any], exchanges: Sequence[Exchanged | ExchangedCells]
    ) -> Significance:
        """Hold the middle of all examples' values against what exchanges give.

        Each run has a table of exchanges, of which the truth is one; a draw takes a row of each.
        """
        tables = [getattr(exchanged, measure) for exchanged in exchanges]
        arrangements = 1.0
        for table, exchanged in zip(tables, exchanges, strict=True):
            arrangements *= min(exchanged.arrangements, len(table))

        def draw(rng: np.random.Generator, count: int) -> Floats:
            rows = [table[rng.integers(len(table), size=count)] for table in tables]
            return np.asarray(middle(np.concatenate(rows, axis=1), axis=1))

        observed = float(middle(np.concatenate([table[0] for table in tables])))
        alike = "others of their labels" if self.cases[0].has_classes else "others"
        whose = "nobody trained on" if all(self.each(lambda case: case.has_nobodys)) else "other clients hold"
        how = f"the true examples exchanged with {alike} that {whose}"
        rng = self.rng(_TESTING)
        return significance_of(observed, draw, rng, how, arrangements=arrangements, draws=self.draws)

    def _test_labels(self, observed: float) -> Significance:
        """Exchange the clients of a run that have as many examples: restored labels know how many there are."""

        def draw(rng: np.random.Generator, count: int) -> Floats:
            total = np.zeros(count)
            for case in self.cases:
                who = exchange_within(case.sizes, rng, count)
                total += case.in_common[np.arange(len(case.sizes)), who].sum(axis=1)
            return total

        arrangements = count_of(sum(self.each(lambda case: case.label_arrangements)))
        how, rng = "the clients of each run with equally many examples exchanged", self.rng(_TESTING)
        return significance_of(observed, draw, rng, how, arrangements=arrangements, draws=self.draws)

    def _recognise(self, seeds: Sequence[Sequence[Compared]]) -> Rate:
        """Count for each seed the examples that are recognised."""
        return Rate.of([case.share_recognised(batches) for case, batches in zip(self.cases, seeds, strict=True)])

    def _by_seed(self, seeds: Sequence[Sequence[Compared]], measure: str) -> list[Floats]:
        """Return a measure, such as ``ratio``, of the examples of each seed."""
        return [case.by_example(batches, measure) for case, batches in zip(self.cases, seeds, strict=True)]

    def _take_median(self, measure: str, units: str, bounds: tuple[float, float]) -> Measurement:
        values, nulls = self._by_seed(self.results, measure), self._by_seed(self.nulls, measure)
        n = sum(map(len, values))
        null_low, null_high = median_interval(nulls, bounds=bounds)
        by_mean = {MEAN: _median_of(self._by_seed(self.guesses[MEAN], measure))}
        return Measurement(
            reason=f"chance is {RANDOM}, the null a reconstruction from another client's reply",
            value=_median_of(values),
            n=n,
            interval=median_interval(values, bounds=bounds),
            here=median_interval([np.concatenate(values)]) if len(values) > 1 else UNKNOWN,
            null={"value": _median_of(nulls), "low": null_low, "high": null_high, "n": n},
            test=self._test(measure, np.median, self.exchanged),
            chance=_median_of(self._by_seed(self.guesses[RANDOM], measure)),
            units=units,
            baselines=by_mean,
            bars=by_mean,
        )

    def _draw_pictures(self) -> Iterator[dict[str, Any]]:
        """Yield reconstructions of images, as pixels 0 … 255: (height, width), or with 3 channels last."""
        for case in self.cases:
            if case.held.x.ndim == 4 and case.held.x.shape[1] in (1, 3):
                for batch, result in zip(case.batches, case.results, strict=True):
                    yield from self._draw_batch(case, batch, result)

    def _draw_batch(
        self, case: InversionCase, batch: tuple[int, str, NDArray[np.int64]], result: Compared
    ) -> Iterator[dict[str, Any]]:
        number, client, rows = batch
        if result.similarity is None:
            raise AssertionError("asked for of images alone")
        for index, truth in enumerate(case.true_records(rows)):
            yield {
                "client": self.title_of(case, client),
                "round": case.found.batches[number].round,
                "psnr": float(result.ratio[index]),
                "ssim": float(result.similarity[index]),
                "truth": _pixels_of(truth),
                "image": _pixels_of(result.images[index]),
            }


def _median_of(values: Sequence[Floats]) -> float:
    """Return the median over all seeds."""
    return float(np.median(np.concatenate(values)))


def _pixels_of(image: Images) -> Any:
    last = np.moveaxis(np.round(255 * image).astype(int), 0, -1)
    if last.shape[-1] == 1:
        last = last[..., 0]
    return last.tolist()


def _share_sure(found: FoundCells | None, column: int) -> tuple[float | None, float | None]:
    """Return of which share of a column's cells the attacker is sure, and which share of these is right."""
    if found is None:
        return None, None
    own = found.take(found.columns == column)
    if not len(own.right):
        return None, None
    sure = own.unsure <= SURE
    return float(sure.mean()), float(own.right[sure].mean()) if sure.any() else None
