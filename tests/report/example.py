"""Realistic pairs of findings and run.

:func:`findings` and :func:`run` are as a seeded SIA audit on digits would write them, :func:`prolin_findings` and
:func:`prolin_run` as a PROLIN audit on MNIST-10k would.
"""

import numpy as np
from scipy.stats import binom

from fedattack.audit.finding import Finding, verdict
from fedattack.audit.intervals import clopper_pearson, rate_interval

CLIENTS, ROUNDS, SEEDS, TARGETS = 10, 20, [0, 1, 2], 1000
CHANCE = 1 / CLIENTS


def findings():
    rng = np.random.default_rng(5)
    rounds = list(range(1, ROUNDS + 1))
    rates = 0.2 + 0.34 * (1 - np.exp(-np.arange(ROUNDS) / 5)) + rng.normal(0, 0.012, ROUNDS)
    hits = rng.binomial(TARGETS, rates, (len(SEEDS), ROUNDS))
    nulls = rng.binomial(TARGETS * 3, CHANCE, ROUNDS) / (TARGETS * 3)
    ends = [rate_interval(hits[:, r].tolist(), [TARGETS] * 3) for r in range(ROUNDS)]
    null_low, null_high = clopper_pearson(297, 3000)
    null = {"value": 0.099, "low": null_low, "high": null_high, "n": 3000}
    common = {
        "attack": "sia",
        "view": "individual",
        "n": TARGETS * 3,
        "seeds": SEEDS,
        "chance": CHANCE,
        "null": null,
        "paper": "Hu et al., Source Inference Attacks in Federated Learning, ICDM 2021, section IV",
    }

    def measured(successes, n, comparisons=1):
        value = sum(successes) / sum(n)
        low, high = rate_interval(successes, n, comparisons=comparisons)
        p = float(binom.sf(round(sum(successes)) - 1, sum(n), CHANCE))
        said, reason = verdict(value, CHANCE, p, {"size prior": 0.143}, how="the clients of each run exchanged")
        here_low, here_high = clopper_pearson(sum(successes), sum(n))
        seeds = np.array(successes) / np.array(n)
        return {
            "value": value,
            "low": low,
            "high": high,
            "here_low": here_low if len(n) > 1 else None,
            "here_high": here_high if len(n) > 1 else None,
            "p": p,
            "p_adjusted": min(6 * p, 1.0),
            "verdict": said,
            "reason": reason,
            "comparisons": comparisons,
            "seed_mean": float(seeds.mean()),
            "seed_sd": float(seeds.std(ddof=1)) if len(seeds) > 1 else None,
        }

    shares = np.sort(rng.dirichlet(np.full(CLIENTS, 3.0)))[::-1]
    per_client = []
    for i, rate in enumerate(np.linspace(0.9, 0.22, CLIENTS)):
        k = int(rng.binomial(300, rate))
        low, high = clopper_pearson(k, 300)
        per_client.append(
            {"client": str((7 * i + 3) % CLIENTS), "value": k / 300, "low": low, "high": high, "n": 300}
            | {"share": float(shares[i])}
        )
    per_client.sort(key=lambda client: -client["value"])
    confidence = np.linspace(0.15, 0.98, 8)
    series = {
        "per_round": {
            "rounds": rounds,
            "value": (hits.sum(0) / 3000).tolist(),
            "low": [low for low, _ in ends],
            "high": [high for _, high in ends],
            "null": nulls.tolist(),
        },
        "per_client": per_client,
        "reliability": {
            "confidence": confidence.tolist(),
            "accuracy": np.clip(confidence - 0.14 * confidence**2 + rng.normal(0, 0.01, 8), 0, 1).tolist(),
            "count": [310, 520, 480, 360, 300, 260, 320, 450],
            "ece": 0.061,
        },
        "most_exposed": [
            {"record": int(record), "client": str(int(client)), "posterior": float(posterior), "right": True}
            for record, client, posterior in zip(
                rng.integers(0, 1400, 25), rng.integers(0, 10, 25), np.linspace(0.99996, 0.97, 25), strict=True
            )
        ],
    }
    best = int(hits.sum(0).argmax())
    worst = per_client[0]
    return [
        Finding(
            metric="asr",
            label="Source inference, all rounds combined",
            headline=True,
            baselines={"size prior": 0.143},
            series=series,
            **common,
            **measured([574, 592, 577], [TARGETS] * 3),
        ),
        Finding(
            metric="asr-last-round",
            label="Source inference, last round",
            **common,
            **measured(hits[:, -1].tolist(), [TARGETS] * 3),
        ),
        Finding(
            metric="asr-best-round",
            label="Source inference, best of all rounds",
            selected_after_the_fact=True,
            **common,
            **measured(hits[:, best].tolist(), [TARGETS] * 3, comparisons=ROUNDS),
        ),
        Finding(
            metric="asr-worst-client",
            label=f"Source inference, most exposed client ({worst['client']})",
            selected_after_the_fact=True,
            **{**common, "n": 300},
            **measured([worst["value"] * 300], [300], comparisons=CLIENTS),
        ),
        Finding(
            metric="asr-class-matched-null",
            label="Source inference among owners of the same class only",
            **{**common, "chance": 0.41},
            **{**measured([1200 / 3] * 3, [TARGETS] * 3), "verdict": "no evidence"}
            | {"reason": "40.0% is not above chance (41.0%)"},
        ),
        Finding(
            metric="asr-aggregate",
            label="Source inference from the aggregate alone",
            value=None,
            low=None,
            high=None,
            verdict="not applicable",
            reason="the attack needs each client's update, and an aggregate view does not hold them",
            **{**common, "view": "aggregate", "n": 0, "null": None, "chance": None},
        ),
        Finding(
            attack="sia",
            metric="loss-gap",
            label="Loss of the owner's model below that of the next best",
            view="individual",
            value=0.412,
            low=0.371,
            high=0.455,
            n=3000,
            seeds=SEEDS,
            units="nats",
            chance=0.0,
            null={"value": 0.003, "low": -0.02, "high": 0.026, "n": 3000},
            verdict="leak",
            reason="the interval's lower end, 0.371 nats, is above chance (0 nats) and the null run's upper end "
            "(0.026 nats)",
            setting={"preset": "quickstart", "temperature": 0.5},
        ),
    ]


def run():
    rng = np.random.default_rng(6)
    rounds = list(range(1, ROUNDS + 1))
    shares = rng.dirichlet(np.full(CLIENTS, 0.4), 10)
    counts = np.stack([rng.multinomial(140, share) for share in shares], axis=1)
    rise = 1 - np.exp(-np.array(rounds) / 4)
    return {
        "title": "Source inference on digits, 10 clients, Dirichlet α = 0.1",
        "threat_model": {
            "server": "passive: it follows the protocol and only looks",
            "view": "individual updates",
            "sees": "each sampled client's model update in every round, its number of examples, and the metrics that "
            "it sends along",
            "does_not_see": "training examples, labels, the clients' data loaders, or anything that stays on a client",
            "knows": [
                "the model's architecture and loss, which it distributes itself",
                "the target records, but not who holds them",
            ],
        },
        "setting": {
            "preset": "quickstart",
            "dataset": "digits",
            "model": "sia-mlp",
            "clients": CLIENTS,
            "rounds": ROUNDS,
            "local-epochs": 5,
            "batch-size": 12,
            "lr": 0.01,
            "alpha": 0.1,
            "fraction": 1.0,
            "defence": None,
        },
        "provenance": {
            "fedattack": "0.1.0",
            "flwr": "1.41.0",
            "torch": "2.15.0",
            "python": "3.11.9",
            "seeds": SEEDS,
            "config_sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
            "record_sha256": [
                "60303ae22b998861bce3b28f33eec1be758a213c86c93c076dbe9f558c11c752",
                "fd61a03af4f77d870fc21e05e7e80678095c92d808cfb3b5c279ee04c74aca13",
                "a4e624d686e03ed2767c0abd85c14426b0b1157d2ce81d27bb4fe4f6f01d688a",
            ],
            "commands": ["fedattack audit quickstart --seed 0 --seed 1 --seed 2 --set alpha=0.1 --out runs/quickstart"],
            "started": "2026-11-09T10:12:31+00:00",
            "finished": "2026-11-09T10:15:02+00:00",
        },
        "holdings": {
            "clients": [str(i) for i in range(CLIENTS)],
            "classes": [str(i) for i in range(10)],
            "counts": counts.tolist(),
            "seed": 0,
        },
        "accuracy": {
            "rounds": rounds,
            "seeds": {str(s): (0.93 * rise + rng.normal(0, 0.012, ROUNDS)).clip(0, 1).tolist() for s in SEEDS},
            "what": "global model on the test split",
        },
        "overfitting": {
            "rounds": rounds,
            "seeds": {str(s): (0.34 - 0.12 * rise + rng.normal(0, 0.01, ROUNDS)).tolist() for s in SEEDS},
            "what": "local models' accuracy on own training examples minus on the test split",
        },
        "observed": {
            "rounds": ROUNDS,
            "replies": 599,
            "failed": 1,
            "missing": 0,
            "late": 0,
            "in_plaintext": ["num-examples", "train_loss"],
        },
        "notes": ["One client failed in round 7 of seed 1; its targets were attacked through the other rounds."],
    }


def privacy():
    """What a run's ``privacy`` holds where clients train by DP-SGD."""
    return {
        "name": "DP-SGD",
        "noise_is": "noise multiplier σ",
        "mechanism": "DP-SGD: each gradient is clipped, the sum is noisy",
        "unit": "one example of one client",
        "not_protected": "a client's mix of classes",
        "accountant": "Rényi orders",
        "assumes": "that batches stay secret",
        "clip": 1.0,
        "delta": 1e-5,
        "rounds": ROUNDS,
        "noise": {"low": 0.5, "high": 0.5},
        "epsilon_round": {"low": 5.551, "high": 6.349},
        "epsilon_run": {"low": 40.04, "high": 1234.5},
        "hazards": [
            {"what": "Numbers sent with the update", "checked": True, "why": "without noise pass: train_loss"},
            {"what": "Floating point", "checked": False, "why": "ε speaks of real numbers"},
        ],
    }


def prolin_findings(clients=50, rounds=300):
    rng = np.random.default_rng(clients)
    seeds, prefixes = [0, 1, 2], list(range(10, rounds + 1, 10))
    steps = np.array(prefixes)
    methods = {}
    kinds = ("PROLIN", 0.95, 1), ("REG", 0.9, 1.2), ("OLS", 0.8, 2.5), ("BASELINE", 0.5, 2), ("posterior", 0.97, 0.9)
    for name, top, slow in kinds:
        rise = top * (1 - np.exp(-steps / (clients * slow)))
        measures = [np.clip(rise + rng.normal(0, 0.03, len(steps)), 0, 1).tolist() for _ in range(3)]
        methods[name] = dict(zip(("f1", "precision", "recall"), measures, strict=True))
    methods["BASELINE"]["precision"][:3] = [None] * 3
    every = np.arange(1, rounds + 1)
    middle = 0.1 + 0.75 * (1 - np.exp(-every / 90)) + rng.normal(0, 0.02, rounds)
    shots = []
    for r in (1, rounds // 6, rounds // 2, rounds):
        gap = 6 * np.exp(-r / 90) + 0.3
        shots.append(
            {
                "round": r,
                "plus": {"mean": gap / 2, "sd": 1.1},
                "minus": {"mean": -gap / 2, "sd": 0.9},
                "overlap": float(middle[r - 1]),
                "plus_sample": rng.normal(gap / 2, 1.1, 200).tolist(),
                "minus_sample": rng.normal(-gap / 2, 0.9, 200).tolist(),
            }
        )
    posteriors = []
    for seed in seeds:
        for client in range(clients):
            positive = client < 5
            sure = float(rng.beta(6, 1) if positive else rng.beta(1, 9))
            spread = 0.4 * sure * (1 - sure)
            numbers = (sure, sure - spread, sure + spread)
            posteriors.append(
                {"client": f"{rng.integers(9 * 10**18):019d}", "target": f"{client % 3}", "seed": seed}
                | dict(zip(("posterior", "low", "high"), numbers, strict=True))
                | {"positive": positive, "rounds": int(rng.binomial(rounds, 0.2))}
            )
    series = {
        "methods": {"rounds": prefixes, "methods": methods, "chance": 2 * 0.1 * 0.5 / 0.6},
        "overlap": {
            "rounds": every.tolist(),
            "overlap": middle.clip(0, 1).tolist(),
            "low": (middle - 0.1).clip(0, 1).tolist(),
            "high": (middle + 0.1).clip(0, 1).tolist(),
            "accuracy": (1 - middle / 2).clip(0, 1).tolist(),
            "checked_rounds": [1, rounds // 6, rounds],
            "checked_accuracy": [0.93, 0.74, 0.55],
        },
        "distributions": shots,
        "posteriors": posteriors,
        "stability": {
            "rounds": prefixes,
            "methods": {name: (1 - 0.08 * i * (1 - steps / rounds)).tolist() for i, name in enumerate(methods, 1)},
        },
        "plaintext": [
            {"metric": "num-examples", "auc": 0.5, "low": None, "high": None},
            {"metric": "train_loss", "auc": 0.981, "low": 0.95, "high": 0.997},
        ],
    }
    score = methods["PROLIN"]["f1"][-1]
    common = {
        "attack": "prolin",
        "view": "aggregate",
        "seeds": seeds,
        "setting": {"shadow-mode": "exact"},
        "paper": "Kerkouche et al., Client-specific Property Inference against Secure Aggregation in Federated "
        "Learning, WPES 2023",
    }
    return [
        Finding(
            metric="f1",
            label="F1 score",
            value=score,
            low=score - 0.12,
            high=min(score + 0.08, 1),
            n=3 * clients,
            chance=series["methods"]["chance"],
            null={"value": 0.03, "low": 0.0, "high": 0.11, "n": 3 * clients},
            headline=True,
            verdict="leak",
            p=0.0001,
            p_adjusted=0.0003,
            reason="91.0% is above chance (18.2%), and this is unlikely to be an accident: p = 0.0001",
            seed_mean=score,
            seed_sd=0.04,
            series=series,
            **common,
        ),
        Finding(
            metric="false-alarms",
            label="Clients named although they do not have the property",
            value=0.022,
            low=0.005,
            high=0.064,
            n=3 * (clients - 5),
            verdict="not applicable",
            reason="a rate of false alarms is no leak by itself; it says how far the named clients can be trusted",
            **common,
        ),
        Finding(
            metric="detector-accuracy",
            label="Detector on unseen records, mean over the rounds",
            value=0.71,
            low=None,
            high=None,
            n=6000,
            chance=0.5,
            verdict="not applicable",
            reason="it is measured on the attacker's own examples",
            **common,
        ),
    ]


def prolin_run(clients=50):
    counts = np.random.default_rng(7).multinomial(20, np.full(10, 0.1), clients)
    facts = run()
    return {
        "title": f"PROLIN: membership on MNIST-10k, {clients} clients",
        "threat_model": facts["threat_model"]
        | {
            "view": "aggregate",
            "sees": "sums of the clients' replies, who took part, and what secure aggregation lets through in "
            "plaintext",
            "does_not_see": "any single client's model or update",
        },
        "setting": facts["setting"] | {"preset": "prolin-membership", "clients": clients, "rounds": 300},
        "provenance": facts["provenance"],
        "holdings": {
            "clients": [str(i) for i in range(clients)],
            "classes": [str(i) for i in range(10)],
            "counts": counts.tolist(),
            "seed": 0,
        },
        "observed": facts["observed"] | {"rounds": 900},
        "notes": ["One client never took part in seed 2: whether it has the property is unknown."],
    }
