"""Apps with attention of which no model can be built: their own step gives the sequences that a model gives."""

import numpy as np
import pytest

from fedattack.apps import sequencing
from fedattack.apps.asking import Asker, Inquiry
from fedattack.apps.auditing import attack_by_app, control_all, read_sequences_by_app
from fedattack.apps.witnessing import witnesses_of
from fedattack.attacks import ATTACKS
from fedattack.attacks.roles import POSITIONS, PROJECTION, TABLE, ArrayRole, find_words
from fedattack.audit.control import STEPPED, Control
from fedattack.audit.truth import read_truth
from fedattack.base.errors import NeedsError
from fedattack.record import Record
from fedattack.runs.pipeline import choose_attacks
from fedattack.runs.watch import Watch
from fedattack.threats.sequences.dager import ReadSequences
from tests.apps.test_roles_of_apps import BEGINNING, CLASSIFIER, ENDING, IN_ONE_STEP, judge, known, run_app
from tests.apps.worlds import attack_all, pose_all

# A transformer that nobody can import, of two blocks.
TEXTS = f"""{BEGINNING}
WORDS, LONGEST, WIDTH, CLASSES, OWN = 90, 6, 48, 3, 3
FEATURES = LONGEST
X = torch.randint(1, WORDS, (7, OWN, LONGEST), generator=torch.Generator().manual_seed(1))
Y = torch.randint(CLASSES, (7, OWN), generator=torch.Generator().manual_seed(2))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.out, self.up = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        PROJECTIONS

    def forward(self, x):
        h = self.norm(x)
        q, k, v = PROJECTED
        scores = q @ k.transpose(1, 2) / WIDTH**0.5
        LOOK
        x = x + self.out(scores.softmax(dim=-1) @ v)
        return x + self.up(torch.tanh(x))


class Twin(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(2 * LONGEST, WIDTH)
        self.blocks, self.head = nn.ModuleList([Block(), Block()]), nn.Linear(WIDTH, CLASSES)

    def forward(self, ids):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(dim=1))


def twin():
    return Twin()


def make():
    class Own(Twin):
        pass

    return Own()

{IN_ONE_STEP}{ENDING}"""
FUSED = {
    "PROJECTIONS": "self.qkv = nn.Linear(WIDTH, 3 * WIDTH)",
    "PROJECTED": "self.qkv(h).chunk(3, dim=-1)",
}
THREE = {
    "PROJECTIONS": "self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))",
    "PROJECTED": "self.q(h), self.k(h), self.v(h)",
}
BARE = {
    "PROJECTIONS": "self.q, self.k, self.v = (nn.Parameter(torch.randn(WIDTH, WIDTH) / 7) for _ in range(3))",
    "PROJECTED": "h @ self.q, h @ self.k, h @ self.v",
}
# Tokens come first here, and sequences second.
TOKENS_FIRST = {
    "PROJECTIONS": "self.qkv = nn.Linear(WIDTH, 3 * WIDTH)",
    "PROJECTED": "self.qkv(h.transpose(0, 1)).transpose(0, 1).chunk(3, dim=-1)",
}
BACK = "scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=bool).triu(1), -torch.inf)"


def write(words, look: str) -> str:
    text = TEXTS.replace("LOOK", look)
    for name, code in words.items():
        text = text.replace(name, code)
    return text


def ask(part, app, posed):
    return Asker(app).read_sequences(Inquiry(part, witnesses_of(part), posed.knowledge.targets), Record(part.record))


@pytest.mark.slow
@pytest.mark.parametrize(("words", "look"), [(FUSED, BACK), (THREE, BACK), (THREE, "pass")])
def test_sequences_are_read_as_where_the_model_can_be_built(words, look, tmp_path, here, monkeypatch):
    part, app, module = run_app(tmp_path, monkeypatch, write(words, look))
    (posed,) = pose_all([part], app=app)
    assert posed.knowledge.model is None
    kinds = {role.name: role.kind for role in posed.knowledge.roles}
    assert (kinds["words.weight"], kinds["places.weight"]) == (TABLE, POSITIONS)
    projections = {name for name, kind in kinds.items() if kind == PROJECTION}
    assert projections == {
        f"blocks.{block}.{one}.weight" for block in (0, 1) for one in (["qkv"] if words is FUSED else "qkv")
    }
    scores = ask(part, app, posed)
    by_layers = ATTACKS["dager"].run(Record(part.record), known(posed, module), device="cpu")
    assert scores.arrays.keys() == by_layers.arrays.keys()
    for name, array in by_layers.arrays.items():
        np.testing.assert_array_equal(scores.arrays[name], array, err_msg=name)
    assert scores.as_found(ReadSequences).looks_ahead == (look == "pass")
    # The truth is that of the examples' ids.
    truth = read_truth(part.truth).answers["sequences"]
    for site in range(6):
        own = truth["tokens"].reshape(-1, module.LONGEST)[truth["owners"] == str(site)]
        assert sorted(own.tolist()) == sorted(module.X[site].tolist())
    scores.save(part.scores("dager"))
    found = judge(part, posed)["dager.exact"]
    assert (found.value > 0.9, found.verdict) == (True, "leak")


@pytest.mark.slow
@pytest.mark.parametrize("words", [BARE, TOKENS_FIRST])
def test_projections_need_no_layers_and_no_order(words, tmp_path, here, monkeypatch):
    part, app, _ = run_app(tmp_path, monkeypatch, write(words, BACK))
    (posed,) = pose_all([part], app=app)
    scores = ask(part, app, posed)
    assert scores.as_found(ReadSequences).layers == tuple(
        f"blocks.{block}.{'q' if words is BARE else 'qkv.weight'}" for block in (0, 1)
    )
    scores.save(part.scores("dager"))
    assert judge(part, posed)["dager.exact"].value > 0.8


@pytest.mark.slow
def test_more_tokens_than_projections_are_wide_are_not_told(tmp_path, here, monkeypatch):
    """The null: the span is everything, or leaves out what it should hold."""
    part, app, _ = run_app(
        tmp_path,
        monkeypatch,
        write(FUSED, BACK).replace("CLASSES, OWN = 90, 6, 48, 3, 3", "CLASSES, OWN = 90, 6, 48, 3, 12"),
    )
    (posed,) = pose_all([part], app=app)
    done = attack_all([part], [posed], lambda names: choose_attacks(["sia"], {}))
    assert "the clients' model" in done.folder.study["untried"]["sequences"]
    done = attack_by_app(Asker(app), [posed], done)
    assert done.scored == ("sia", "dager")
    assert "sequences" not in done.folder.study["untried"]
    found = judge(part, posed)["dager.exact"]
    assert found.value < 0.05
    assert found.verdict != "leak"
    # One plain step on a few targets would be seen, through the app as well.
    control_all(Asker(app), done, Watch())
    control = Control(**done.folder.study["controls"]["dager"])
    assert (control.kind, control.is_seen) == (STEPPED, True)


@pytest.mark.slow
def test_a_model_without_words_is_told_what_it_lacks(tmp_path, here, monkeypatch):
    part, app, _ = run_app(tmp_path, monkeypatch, CLASSIFIER.replace("ENTERING", "x"))
    (posed,) = pose_all([part], app=app)
    done = attack_all([part], [posed], lambda names: choose_attacks(["sia"], {}))
    done = read_sequences_by_app(Asker(app), [posed], done)
    study = done.folder.study
    assert done.scored == ("sia",)
    assert study["untried"]["sequences"].startswith("by the gradients of single examples, no array is a table")
    assert study["remedies"]["sequences"].startswith("nothing does: the question is about models of two blocks")


@pytest.mark.slow
def test_a_search_is_bounded_by_what_it_costs_and_what_fails_is_said(tmp_path, here, monkeypatch):
    part, app, _ = run_app(tmp_path, monkeypatch, write(FUSED, BACK))
    (posed,) = pose_all([part], app=app)
    monkeypatch.setattr(sequencing, "_SECONDS", 1e-4)
    with pytest.raises(NeedsError, match="the search takes more than the 0 s that sequences may be put through"):
        ask(part, app, posed)


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        ((), "no array is a table whose rows are the ids in the examples"),
        ((ArrayRole("items", (60, 8), TABLE, "", ids="0"),), "no arrays are projections of attention"),
    ],
)
def test_without_words_or_attention_no_sequence_is_looked_for(roles, words):
    with pytest.raises(NeedsError, match=words):
        find_words(roles)
