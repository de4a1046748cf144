"""Sequences of tiny transformers are found, judged, and refused in one line."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from fedattack.attacks import ATTACKS, Knowledge, ModelKnowledge, Targets, read_knowledge
from fedattack.attacks.lookups import find_ids, trained_sequences
from fedattack.attacks.roles import PROJECTION, TABLE, ArrayRole
from fedattack.audit.finding import LEAK, NO_EVIDENCE, NOT_APPLICABLE, TOO_FEW
from fedattack.audit.truth import read_truth
from fedattack.base.errors import DataError, NeedsError
from fedattack.base.structured import pack
from fedattack.record import Record
from fedattack.report.section import show_table
from fedattack.threats.sequences import tables
from fedattack.threats.sequences.judge import _match_parts, bits_of_sequences
from fedattack.threats.sequences.layers import ModelReader, choose_entries
from fedattack.threats.sequences.search import Puzzle, build_forward, search_whole
from fedattack.threats.sequences.section import _count_exposed
from fedattack.threats.sequences.spans import Span, span_of
from tests.threats.sequences.world import LONGEST, TRUSTED, attacked, judged, known, texts, write_texts_run
from tests.worlds.attacked import judge, rewrite_truth
from tests.worlds.federation import write_run


@pytest.mark.parametrize("kind", ["gpt2", "bert", "llama"])
@pytest.mark.slow
def test_sequences_of_transformers_are_found_exactly(kind, tmp_path):
    pytest.importorskip("transformers")
    found = judged(write_texts_run(tmp_path, kind, clients=5, each=2, shortest=6))
    for metric in ("exact", "rouge1", "rouge2"):
        assert found[metric].value == 1.0
    assert (found["exact"].headline, found["exact"].verdict, found["exact"].n) == (True, LEAK, 5)
    assert found["exact"].p == pytest.approx(1 / 120, abs=2e-3)
    assert len(show_table(tables.CLIENTS, found["exact"]).rows) == 5
    assert _count_exposed([found["exact"]]) == "Every sequence of 5 of 5 clients is found, token by token."


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
@pytest.mark.parametrize("each", [1, 2, 4, 8])
def test_batches_of_up_to_eight_are_found(kind, each, tmp_path):
    pytest.importorskip("transformers")
    assert judged(write_texts_run(tmp_path, kind, clients=4, each=each))["exact"].value >= 0.99


@pytest.mark.slow
def test_the_model_of_the_reference_system_is_read_in_gradients_and_in_one_step(tmp_path):
    for protocol in ("fedsgd", "fedavg"):
        found = judged(write_texts_run(tmp_path / protocol, "decoder", clients=5, protocol=protocol))
        assert (found["exact"].value, found["exact"].verdict) == (1.0, LEAK)


def test_more_tokens_than_the_layers_are_wide_are_not_told(tmp_path):
    """The null: the span is everything, or leaves out what it should hold."""
    found = judged(write_texts_run(tmp_path, "decoder", clients=5, each=20))["exact"]
    assert found.value < 0.05
    assert found.verdict in (NO_EVIDENCE, TOO_FEW)


def test_gradients_of_noise_name_nothing(tmp_path):
    rng = np.random.default_rng(0)

    def noise(name, array, start):
        return rng.normal(size=array.shape).astype(array.dtype)

    scores = attacked(write_texts_run(tmp_path, "decoder", clients=5, alter=noise))
    assert scores.arrays["named"].sum() <= 1
    assert len(scores.arrays["lengths"]) == 0


@pytest.mark.slow
def test_findings_beside_anybody_s_sequences_are_no_leak(tmp_path):
    """The null: what was found stands beside sequences that are drawn anew each time."""
    folder, draw, ps = write_texts_run(tmp_path, "decoder", clients=5), np.random.default_rng(3), []
    truth = read_truth(folder / "truth")
    attacked(folder).save(folder / "scores" / "dager.npz")
    for _ in range(20):
        answers = dict(truth.answers["sequences"])
        answers["tokens"] = draw.integers(256, size=answers["tokens"].shape)
        rewrite_truth(folder, answers={"sequences": answers})
        ps.append(judge(folder, TRUSTED)["rouge1"].p)
    assert sum(p <= 0.05 for p in ps) <= 4


def test_without_all_examples_of_a_client_nothing_is_judged(tmp_path):
    folder = write_texts_run(tmp_path, "decoder")
    rewrite_truth(folder)
    found = judged(folder)["exact"]
    assert (found.verdict, found.value) == (NOT_APPLICABLE, None)
    assert "there is no client whose training examples are all known" in found.reason


def test_a_damaged_answer_is_refused(tmp_path):
    folder = write_texts_run(tmp_path, "decoder")
    attacked(folder).save(folder / "scores" / "dager.npz")
    good = dict(read_truth(folder / "truth").answers["sequences"])
    for bad in (
        {name: array for name, array in good.items() if name != "tokens"},
        good | {"lengths": good["lengths"] + 1},
        good | {"owners": good["owners"][:2]},
    ):
        rewrite_truth(folder, answers={"sequences": bad})
        with pytest.raises(DataError, match="seed 0: the truth's answer 'sequences'"):
            judge(folder, TRUSTED)


def test_scores_that_do_not_add_up_are_refused(tmp_path):
    folder = write_texts_run(tmp_path, "decoder")
    scores = attacked(folder)
    for name, number, words in (
        ("lengths", 1, "sequences are not as long"),
        ("whose", 99, "whose: expected indices below"),
    ):
        altered = {**scores.arrays, name: np.full_like(scores.arrays[name], number)}
        replace(scores, arrays=altered).save(folder / "scores" / "dager.npz")
        with pytest.raises(DataError, match=words):
            judge(folder, TRUSTED)


def test_a_sequence_tells_as_many_bits_as_its_tokens_are_rare_that_another_one_lacks():
    """By hand: beside the first there are 4 other tokens, and 5 different ones in all: 9 with one more of each."""
    known = [(1, 2, 2), (1, 3), (4, 5)]
    assert bits_of_sequences(known[:1], known[1:], known) == pytest.approx([2 * np.log2(9)])
    assert bits_of_sequences(known[:1], [], known) == pytest.approx([2 * np.log2(9) + np.log2(9 / 2)])
    assert bits_of_sequences([(2, 1, 2)], [(2, 2, 1)], known) == pytest.approx([0])


def test_long_sequences_are_certain_where_two_clients_are_too_few_for_a_test(tmp_path):
    folder = write_texts_run(tmp_path, "decoder", clients=2, each=2, shortest=LONGEST)
    found = judged(folder)["exact"]
    assert (found.value, found.p_least) == (1, 0.5)
    assert (found.verdict, found.read_off) == (LEAK, {"what": "sequence", "right": 4, "certain": 4, "clients": 2})
    # The same sequences are another client's, too.
    answers = dict(read_truth(folder / "truth").answers["sequences"])
    both = {name: np.concatenate([answers[name]] * 2) for name in ("tokens", "lengths", "owners")}
    both["owners"][4:] = both["owners"][3::-1]
    rewrite_truth(folder, answers={"sequences": answers | both})
    found = judge(folder, TRUSTED)["exact"]
    assert (found.read_off["certain"], found.verdict) == (0, TOO_FEW)


def rouge(one, other, size):
    """Count by hand: parts in common, each as often as it stands in both."""
    mine, yours = ([tokens[start : start + size] for start in range(len(tokens) - size + 1)] for tokens in (one, other))
    common, left = 0, [*yours]
    for part in mine:
        if part in left:
            left.remove(part)
            common += 1
    return 2 * common / max(len(mine) + len(yours), 1)


def test_parts_match_as_counted_by_hand():
    draw = np.random.default_rng(1)
    some = [tuple(draw.integers(4, size=draw.integers(1, 7)).tolist()) for _ in range(12)]
    found, true = [some[:3], some[3:8], []], some[8:]
    for size in (1, 2):
        expected = [[max((rouge(f, t, size) for f in own), default=0.0) for t in true] for own in found]
        np.testing.assert_allclose(_match_parts(found, true, size), expected)


@pytest.mark.parametrize("looks_ahead", [False, True])
def test_the_search_finds_what_trying_all_sequences_finds(looks_ahead):
    """The oracle: all sequences of four words, each measured."""
    draw = torch.Generator().manual_seed(5)
    words, length, width = 4, 4, 40
    table = torch.randn(words, width, generator=draw, dtype=torch.float64)
    places = torch.randn(length, width, generator=draw, dtype=torch.float64)

    def enter(sequences):
        own = table[sequences] * places[: sequences.shape[1]]
        before = own.cumsum(dim=1) / torch.arange(1, own.shape[1] + 1)[:, None]
        return own + torch.tanh(own.mean(dim=1, keepdim=True) if looks_ahead else before) * 0.3

    true = torch.tensor([[0, 1, 2, 3], [3, 1, 0, 0], [2, 2, 2, 1]])
    span = span_of(enter(true).reshape(-1, width).T.numpy(), None)
    puzzle = Puzzle(
        allowed=[torch.arange(words)] * length,
        leave=lambda sequences: span.leave(enter(sequences)),
        limit=0.05,
        noise=1e-5,
        by_place=True,
        most=None if not looks_ahead else 3,
    )
    everything = torch.tensor([*itertools.product(range(words), repeat=length)])
    right = everything[(puzzle.measure(everything) <= 1e-5).all(dim=1)].tolist()
    assert sorted(right) == sorted(true.tolist())
    found = search_whole(puzzle, seed=0, tries=8) if looks_ahead else build_forward(puzzle)
    assert sorted([*each.tokens] for each in found) == sorted(right)


def test_chance_comes_as_near_as_the_limit_says():
    """Inputs that lie anywhere are as far from a span as a beta distribution says."""
    draw = torch.Generator().manual_seed(2)
    basis, _ = torch.linalg.qr(torch.randn(20, 14, generator=draw, dtype=torch.float64))
    span = Span(basis)
    distances = span.measure(torch.randn(100_000, 20, generator=draw, dtype=torch.float64))
    limit = 2 * span.limit(1, 1.0)
    assert abs(float((distances <= limit).double().mean()) - 0.01) < 0.002
    assert span.limit(10**6, 1.0) < span.limit(1, 1.0)
    assert Span(basis[:, :0]).limit(5, 0.05) == 0.0


@pytest.mark.parametrize(
    ("kind", "layers", "looks_ahead", "by_place"),
    [
        ("gpt2", ("transformer.h.0.attn.c_attn", "transformer.h.1.attn.c_attn"), False, True),
        ("bert", tuple(f"bert.encoder.layer.{block}.attention.self.query" for block in (0, 1)), True, True),
        ("llama", tuple(f"model.layers.{block}.self_attn.q_proj" for block in (0, 1)), False, False),
    ],
)
def test_the_two_attention_layers_are_found_by_what_enters_them(kind, layers, looks_ahead, by_place):
    pytest.importorskip("transformers")
    model = known(kind).build()
    reader = ModelReader.of(model, texts(2, np.random.default_rng(0))[0])
    first, second = choose_entries(model, reader.entries(), {name for name, _ in model.named_parameters()})
    assert (first.module, second.module) == layers
    assert (second.looks_ahead, first.by_place) == (looks_ahead, by_place)
    assert len(first.weights) == (1 if kind == "gpt2" else 3)


def test_what_cannot_be_asked_is_refused_in_one_line(tmp_path):
    attack = ATTACKS["dager"]
    plain = write_run(tmp_path / "plain", rounds=1, epochs=1)
    with pytest.raises(NeedsError, match="it needs a model with an embedding that receives the ids"):
        attack.run(Record(plain / "record"), read_knowledge(plain / "knowledge"))
    folder = write_texts_run(tmp_path / "nan", "decoder", alter=lambda name, array, start: array * np.nan)
    with pytest.raises(NeedsError, match=r"needs updates of two blocks .*client node0 left out: it holds numbers that"):
        attacked(folder)
    flat = Knowledge(model=ModelKnowledge("tests.worlds.texts:classifier", (), 4, arguments={}), targets=nobody())
    assert attack.unfit(Record(folder / "record"), flat)[0].startswith(
        "it needs two consecutive blocks of self-attention"
    )


def nobody():
    from tests.worlds.texts import texts as words

    labels = np.zeros(3, dtype=np.int64)
    return Targets(words(labels, np.random.default_rng(0)), labels)


def test_masked_tokens_are_no_part_of_a_sequence():
    knowledge = Knowledge(model=ModelKnowledge("tests.worlds.texts:classifier", (), 4, arguments={}))
    x = nobody().x
    answers = trained_sequences(knowledge, [("a", x[:1]), ("b", x[1:])])
    assert answers["lengths"].tolist() == x["attention_mask"].sum(axis=1).tolist()
    assert answers["tokens"].tolist() == x["input_ids"][x["attention_mask"] > 0].tolist()
    assert answers["owners"].tolist() == ["a", "b", "b"]
    assert find_ids(knowledge.model.build(), x) == ("input_ids", 30)
    plain = Knowledge(model=ModelKnowledge("mlp", (LONGEST,), 2))
    assert trained_sequences(plain, [("a", np.zeros((2, LONGEST), np.float32))]) is None
    assert trained_sequences(knowledge, []) is None


def test_a_mask_needs_no_name():
    knowledge = Knowledge(
        roles=(ArrayRole("words", (30, 8), TABLE, "", ids="0"), ArrayRole("q", (8, 8), PROJECTION, ""))
    )
    ids, mask = np.array([[3, 4, 5], [6, 7, 0]]), np.array([[1, 1, 1], [1, 1, 0]])
    answers = trained_sequences(knowledge, [("a", pack({"0": ids, "1": mask}))])
    assert (answers["tokens"].tolist(), answers["lengths"].tolist()) == ([3, 4, 5, 6, 7], [3, 2])
    # Types of tokens, and numbers that come and go, are none.
    for other in (1 - mask, np.array([[1, 0, 1], [1, 1, 0]]), 2 * mask):
        assert trained_sequences(knowledge, [("a", pack({"0": ids, "1": other}))])["lengths"].tolist() == [3, 3]
