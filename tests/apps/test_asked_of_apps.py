"""Which clients hold a class, and which group a client is in, asked of apps that `flwr run` runs."""

import json
from pathlib import Path

import pytest

from fedattack.attacks import Scores
from fedattack.audit.truth import read_truth
from tests.apps.projects import TEXTS, fedattack

SITES = 12
HOLDERS = [1, 4, 7, 10]
SOUTH = range(6, 12)

# Data in which there is something to find: who holds the class, and what the sites of the south have in common.
WORDS = '''

def load_data(partition_id: int, num_partitions: int) -> tuple[list[dict], list[dict]]:
    """Return this site's texts: some sites have none of label 1, and those of the south use other words."""
    rng = np.random.default_rng(100 + partition_id)
    texts = []
    for row in range(72):
        ids = rng.integers(*((30, WORDS) if partition_id in SOUTH else (4, 30)), size=rng.integers(5, LONGEST + 1))
        label = 1 if partition_id in HOLDERS and row % 2 else int(rng.choice([0, 2]))
        texts.append({"input_ids": [1 + label, *ids[1:].tolist()], "label": label})
    return texts[:16], texts[16:]
'''
HALF = ("fraction_train=1.0", "fraction_train=0.5")


def rewrite(path: Path, *pairs: tuple[str, str], more: str = "") -> None:
    text = path.read_text()
    for before, after in pairs:
        assert text.count(before) == 1
        text = text.replace(before, after)
    known = f"\nHOLDERS, SOUTH = {HOLDERS}, {[*SOUTH]}\n" if more else ""
    path.write_text(text + known + more)


def asked(tmp_path: Path, label: int, *settings: str) -> tuple[Path, dict]:
    """Ask both questions of an app, and of groups that mean nothing, too."""
    where, out = tmp_path / "project", tmp_path / "out"
    groups = tmp_path / "groups.toml"
    north = [site for site in range(SITES) if site not in SOUTH]
    groups.write_text(
        f"[region]\nnorth = {north}\nsouth = {[*SOUTH]}\n"
        f"[dealt]\neven = {[*range(0, SITES, 2)]}\nodd = {[*range(1, SITES, 2)]}\n"
    )
    done = fedattack(
        *("audit", str(where), "--out", str(out), "--supernodes", str(SITES), "--json"),
        *("--property", str(label), "--groups", str(groups)),
        # The first is the headline. Flower draws the clients of a round without a seed, and after some draws the
        # support vector machine names four of five groups rightly: not enough for a report of so many findings.
        *("--option", "adversaries=random-forest,svm"),
        *(word for setting in settings for word in ("--set", setting)),
        cwd=tmp_path,
    )
    return out, {f"{item['attack']}.{item['metric']}": item for item in json.loads(done.stdout)}


def check(out: Path, found: dict) -> None:
    """What is there is found beyond chance; groups that were dealt are not."""
    truth = read_truth(out / "truth")
    has = {int(name) for name, holds in zip(truth.clients, truth.positives[0], strict=True) if holds}
    assert has == {*HOLDERS}
    region = truth.private["region"]
    south = {
        int(name) for name, code in zip(truth.clients, region.values, strict=True) if region.names[code] == "south"
    }
    assert south == {*SOUTH}
    f1 = found["prolin.f1"]
    assert f1["verdict"] == "leak"
    assert f1["value"] > f1["chance"]
    told = [found[f"private-attribute.region-{name}"] for name in ("svm", "random-forest")]
    assert "leak" in {item["verdict"] for item in told}
    assert max(item["value"] for item in told) > told[0]["chance"]
    for name in ("svm", "random-forest"):
        assert found[f"private-attribute.dealt-{name}"]["verdict"] != "leak"


@pytest.mark.long
@pytest.mark.flower
@pytest.mark.parametrize(("optimizer", "rate"), [("SGD", "0.2"), ("AdamW", "0.002")])
def test_class_and_groups_of_an_app_with_texts(optimizer, rate, tmp_path):
    pytest.importorskip("transformers", reason="it is one of the packages that this app uses")
    where = TEXTS.copy(tmp_path)
    rewrite(where / "textexample" / "task.py", more=WORDS)
    rewrite(where / "textexample" / "server_app.py", HALF)
    settings = (
        "num-server-rounds=20",
        "local-epochs=1",
        f"learning-rate={rate}",
        f"optimizer={optimizer}",
        "batch-size=16",
    )
    out, found = asked(tmp_path, 1, *settings)
    check(out, found)
    assert {"likelihood-ratio", "rmia"} <= {*Scores.load(out / "scores" / "membership.npz").facts["methods"]}
