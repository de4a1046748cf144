"""What arrays hold: how long it takes to find, how often nothing is called a leak, and what remedies do.

``python -m tests.benchmarks.contents`` prints three tables; it takes five minutes on one core. A process of its
own, ``python -m tests.benchmarks.contents COLUMNS``, measures each size; it imports no PyTorch.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedattack.threats.plaintext.exchange import Nearest
from tests.threats.plaintext.sending import draw_nothing, find

Says = Callable[[int, Any, Any], Mapping[str, Any]]
SHARES = [[12, 6, 2], [10, 1, 0], [5, 8, 4], [1, 9, 12], [0, 7, 10], [6, 3, 8]]


def time_large(columns: int, examples: int = 100_000, numbers: int = 1_000_000) -> None:
    """Find 200 rows among a million numbers of ten clients, beside so many examples."""
    draw = np.random.default_rng(0)
    each = examples // 10
    parts = [(draw.normal(size=(each, columns)).astype("f"), draw.integers(10, size=each)) for _ in range(10)]

    def says(client: int, x: Any, y: Any) -> Mapping[str, Any]:
        rows = draw.normal(size=(numbers // 10 // columns, columns)).astype("f")
        rows[:20] = x[:20]
        return {"rows": rows}

    start = time.process_time()
    right, certain = find(parts, says).count_read(examples=True)
    seconds = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    print(f"| {columns} | {seconds:.1f} s | {peak:.0f} MB | {right.sum()} | {certain.sum()} |", flush=True)


def count_false(kind: str, runs: int = 1_000) -> None:
    """Count the runs of nothing in which something is certain, or a test says that it is a leak."""
    certain = shown = 0
    for run in range(runs):
        contents = find(*draw_nothing(np.random.default_rng(run), kind))
        least = 1.0
        for examples in (True, False):
            certain += bool(contents.count_read(examples=examples)[1].sum())
            if shares := contents.shares(examples=examples):
                found = Nearest({name: (share,) for name, share in shares.items()})
                least = min(least, found.test(np.random.default_rng(run)).p)
        shown += least <= 0.025
    print(f"| {kind} | {runs} | {certain} | {shown} |", flush=True)


def tables_of_clusters() -> list[tuple[Any, Any]]:
    """Draw tables in which some clusters have one example."""
    parts = []
    for site in range(6):
        draw = np.random.default_rng(100 + site)
        middles = np.random.default_rng(7).normal(scale=4, size=(5, 5))
        x = middles[draw.integers(5, size=24)] + draw.normal(size=(24, 5))
        x[:2] += draw.choice([-12, 12], size=(2, 5))
        parts.append((x, np.zeros(24, int)))
    return parts


def irises() -> list[tuple[Any, Any]]:
    """Give six clients unequal shares of the classes of iris."""
    from sklearn.datasets import load_iris

    x, y = load_iris(return_X_y=True)
    parts = []
    for site in range(6):
        draw = np.random.default_rng(0)
        rows = []
        for label in range(3):
            of_class = draw.permutation(np.flatnonzero(y == label))
            start = sum(share[label] for share in SHARES[:site])
            rows.append(of_class[start : start + SHARES[site][label]])
        which = np.concatenate(rows)
        parts.append((x[which], y[which]))
    return parts


def digits() -> list[tuple[Any, Any]]:
    """Give each of six clients forty digits."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.random.default_rng(0).permutation(len(data.data))[:240].reshape(6, 40)
    return [(data.data[part] / 16, data.target[part]) for part in rows]


def count_remedies() -> None:
    """Print what is found of what clients send, with and without remedies."""
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_iris
    from sklearn.naive_bayes import GaussianNB
    from sklearn.svm import SVC, LinearSVC

    draw = np.random.default_rng(0)
    start = np.random.default_rng(0).normal(scale=5, size=(8, 5))

    def centres(least: int) -> Says:
        def says(client: int, x: Any, y: Any) -> Mapping[str, Any]:
            fitted = KMeans(8, init=start, n_init=1).fit(x)
            return {"centres": fitted.cluster_centers_[np.bincount(fitted.labels_, minlength=8) >= least]}

        return says

    def bayes(x: Any, y: Any) -> dict[str, Any]:
        model = GaussianNB().partial_fit(x, y, classes=[0, 1, 2])
        return {"theta": np.nan_to_num(model.theta_), "var": np.nan_to_num(model.var_)}

    deviation = load_iris().data.std(axis=0)
    sends: list[tuple[str, list[tuple[Any, Any]], Says]] = [
        ("k-means", tables_of_clusters(), centres(1)),
        ("k-means, centres of five or more", tables_of_clusters(), centres(5)),
        ("support vectors", digits(), lambda client, x, y: {"vectors": SVC().fit(x, y).support_vectors_}),
        ("linear model", digits(), lambda client, x, y: {"weights": LinearSVC(max_iter=200).fit(x, y).coef_}),
        ("naive Bayes", irises(), lambda client, x, y: bayes(x, y)),
        (
            "naive Bayes, noise of 1 %",
            irises(),
            lambda client, x, y: {
                name: value + 0.01 * deviation * draw.normal(size=value.shape) for name, value in bayes(x, y).items()
            },
        ),
        (
            "naive Bayes, float16",
            irises(),
            lambda client, x, y: {name: value.astype(np.float16) for name, value in bayes(x, y).items()},
        ),
        ("counts", irises(), lambda client, x, y: {"counts": np.bincount(y, minlength=3)}),
        ("counts, multiples of five", irises(), lambda client, x, y: {"counts": 5 * np.rint(np.bincount(y) / 5)}),
    ]
    for name, parts, says in sends:
        contents = find(parts, says)
        found: dict[str, list[int]] = {}
        for matches, sure in zip(contents.matches, contents.certain, strict=True):
            row = found.setdefault(matches.kind, [0, 0])
            row[0] += len(matches.own)
            row[1] += len(sure)
        words = "; ".join(f"{own} {kind}, {sure} certain" for kind, (own, sure) in found.items() if own)
        print(f"| {name} | {words or 'nothing'} |", flush=True)


def main() -> None:
    """Print all tables; or, in a process of its own, the line of one size."""
    if len(sys.argv) > 1:
        time_large(int(sys.argv[1]))
        return
    print("| columns | processor time | memory, at most | found of 200 | certain |\n|---|---|---|---|---|", flush=True)
    for columns in (10, 100):
        subprocess.run([sys.executable, "-m", "tests.benchmarks.contents", str(columns)], check=True)
    print("\n| data | runs | something is certain | a leak is shown |\n|---|---|---|---|")
    for kind in ("numbers", "few values", "dependent"):
        count_false(kind)
    print("\n| what clients send | found |\n|---|---|")
    count_remedies()


if __name__ == "__main__":
    main()
