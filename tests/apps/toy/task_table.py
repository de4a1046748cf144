"""Rows of a table with categories and numbers, as pandas makes inputs of them, and a small network."""

import numpy as np
import pandas as pd
import torch
from torch import nn
from toyapp.digits import test, train  # noqa: F401
from toyapp.states import arrays_of, put  # noqa: F401

PEOPLE, EACH, OTHERS = 400, 4, 12


def make_people():
    """Draw people, with categories that few of them have."""
    draw = np.random.default_rng(5)
    columns = {
        "age": draw.normal(40, 12, PEOPLE),
        "job": draw.choice([f"job {number:02}" for number in range(12)], PEOPLE, p=np.arange(12, 0, -1) / 78),
        "hours": draw.normal(38, 9, PEOPLE),
        "country": draw.choice([f"country {number:02}" for number in range(20)], PEOPLE, p=[0.81, *[0.01] * 19]),
        "degree": draw.choice(["a", "b", "c", "d", "e"], PEOPLE, p=[0.4, 0.3, 0.15, 0.1, 0.05]),
        "sex": draw.choice([0.0, 1.0], PEOPLE),
    }
    people = pd.DataFrame(columns)
    for name in ("age", "hours"):
        people[name] = (people[name] - people[name].mean()) / people[name].std()
    rich = people["age"] + (people["degree"] == "a") + draw.normal(size=PEOPLE) > 0.5
    kinds = {name: pd.get_dummies(people[name], dtype=float) for name in ("job", "country", "degree")}
    parts = [people[["age"]], kinds["job"], people[["hours"]], kinds["country"], kinds["degree"], people[["sex"]]]
    x = pd.concat(parts, axis=1).to_numpy(np.float32)
    return torch.from_numpy(x), torch.from_numpy(rich.to_numpy(np.int64))


X, Y = make_people()


def make_model():
    return nn.Sequential(nn.Linear(X.shape[1], 64), nn.ReLU(), nn.Linear(64, 2))


def initial_arrays():
    torch.manual_seed(0)
    return arrays_of(make_model())


def load_data(site: int, sites: int = 0):
    start = (EACH + OTHERS) * site
    own, other = slice(start, start + EACH), slice(start + EACH, start + EACH + OTHERS)
    return (X[own], Y[own]), (X[other], Y[other])
