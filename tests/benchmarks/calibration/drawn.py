"""How often findings on drawn scores are called an accident, or are not."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np

from fedattack.audit.finding import ERROR, LEAK, TOO_FEW, Finding
from fedattack.audit.intervals import clopper_pearson
from fedattack.audit.judge import Judge
from fedattack.audit.significance import correct_findings
from fedattack.audit.truth import Truth

W = TypeVar("W")

Judged = Callable[[W, np.random.Generator], list[Finding]]
"""Draws scores and truth of a world, and judges them."""


REPORT = "any of the report"
"""Stands for all findings of a report: how often one is a leak, corrected as in a report, or by what is certain."""

RECORD: Any = SimpleNamespace(view="individual")
"""Stands for a record of which nothing is read."""


def truth_of(clients: int, **given: Any) -> Truth:
    """Make the truth about clients by number: one label and no targets, but for what is given."""
    names = tuple(map(str, range(clients)))
    usual = {
        "clients": names,
        "classes": ("0",),
        "counts": np.ones((clients, 1), dtype=np.int64),
        "owners": np.zeros(0, dtype=np.str_),
        "evaluation": (np.zeros((1, 2), np.float32), np.zeros(1, np.int64)),
        "nodes": {f"node{name}": name for name in names},
        "targets": "",
    }
    return Truth(**(usual | given))


def draw_less(judge: type[Judge[Any]], *, draws: int = 999) -> type[Judge[Any]]:
    """Return a judge that draws fewer exchanges, so that a row takes seconds."""
    return type(judge.__name__, (judge,), {"draws": draws, "shuffles": 20})


def judge_drawn(
    judge: type[Judge[Any]],
    draw_case: Callable[[W, int, np.random.Generator], Any],
    world: Any,
    rng: np.random.Generator,
) -> list[Finding]:
    """Draw the runs of a world, ``world.seeds`` of them, and judge them together."""
    cases = [draw_case(world, int(rng.integers(2**31)), rng) for _ in range(world.seeds)]
    return judge(cases, setting={}, provenance={}).findings()


def measured(
    kind: str, worlds: Mapping[str, W], judged: Judged[W], repetitions: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield how often each finding of each world has p ≤ 0.05, and how often a report shows a leak.

    Parameters
    ----------
    kind
        ``null`` where there is nothing to find, so that these are false alarms; ``power`` where there is.
    worlds
        By name.
    judged
        Draws and judges one of them.
    repetitions, seed
        How often, and of the random numbers.

    Yields
    ------
    dict
        ``kind``, ``world``, ``finding``; ``alarms`` with p ≤ 0.05 of how many (``of``), their ``rate`` with its
        Clopper-Pearson interval ``low``, ``high``; and how many had the verdicts ``leaks`` and ``too_few``. The row of
        the finding :data:`REPORT` counts reports that show a leak.
    """
    for index, (name, world) in enumerate(worlds.items()):
        drawn: dict[str, list[Finding]] = defaultdict(list)
        shown = 0
        for repetition in range(repetitions):
            findings = judged(world, np.random.default_rng((seed, index, repetition)))
            shown += any(finding.verdict == LEAK for finding in correct_findings(findings))
            for finding in findings:
                if finding.p is not None:
                    drawn[finding.metric].append(finding)
        for metric, findings in drawn.items():
            alarms = sum(finding.p is not None and finding.p <= ERROR for finding in findings)
            verdicts = [finding.verdict for finding in findings]
            yield {
                "kind": kind,
                "world": name,
                "finding": metric,
                **share(alarms, len(findings)),
                "leaks": verdicts.count(LEAK),
                "too_few": verdicts.count(TOO_FEW),
            }
        yield {"kind": kind, "world": name, "finding": REPORT, **share(shown, repetitions), "leaks": shown}


def study(
    nulls: Mapping[str, W], powers: Mapping[str, W], judged: Judged[W], repetitions: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Measure false alarms and power; see :func:`measured` for a row."""
    yield from measured("null", nulls, judged, repetitions, seed)
    yield from measured("power", powers, judged, repetitions, seed)


def share(alarms: int, of: int) -> dict[str, Any]:
    """Return how many alarms there are of how many, and their rate with its Clopper-Pearson interval."""
    low, high = clopper_pearson(alarms, of)
    return {"alarms": alarms, "of": of, "rate": alarms / of, "low": low, "high": high}
