import re
import shutil

import pytest

from fedattack.attacks import ATTACKS
from fedattack.base.cluster import choose
from fedattack.base.errors import ConfigError
from fedattack.record import Exchange, Record, RecordWriter, Reply
from fedattack.runs.checks import check_cluster
from fedattack.runs.pipeline import attack_folder, choose_attacks, judge_folder
from fedattack.runs.presets import load_preset
from fedattack.runs.simulating import choose_seeds
from fedattack.runs.watch import Watch
from tests.worlds.attributes import write_attribute_run
from tests.worlds.federation import write_run


@pytest.mark.parametrize(
    ("first", "count", "seeds"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (None, 2, [0, 1]),
        (None, 7, [0, 1, 2, 3, 4, 5, 6]),
        (3, None, [3, 4, 5, 6, 7]),
        (3, 2, [3, 4]),
        (0, 1, [0]),
    ],
)
def test_seeds_are_the_presets_unless_said_otherwise(first, count, seeds):
    assert choose_seeds(load_preset("quickstart"), first, count) == seeds


def test_each_attack_gets_the_options_that_it_has():
    ara, baselines = choose_attacks(["ara", "attribute-baselines"], {"updates": "pre1"})
    assert (ara.options.updates, baselines.name) == ("pre1", "attribute-baselines")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["sia", "magic"], {}, "unknown attack 'magic': `fedattack list attacks` shows all"),
        (
            ["ara", "aia"],
            {"magic": "1"},
            "--option magic: ara and aia have no option 'magic': expected one of label",
        ),
        (["attribute-baselines"], {"magic": "1"}, "--option magic: attribute-baselines has no options"),
        (["ara"], {"updates": "soon"}, "option updates=soon: expected one of pre1"),
    ],
)
def test_an_option_that_no_attack_has_is_refused(names, options, message):
    with pytest.raises(ConfigError, match=message):
        choose_attacks(names, options)


@pytest.mark.slow
def test_markup_that_a_client_sends_stays_text_from_the_record_to_the_page(tmp_path):
    """In names and values of metrics, and as the reason of a failure."""
    run, taken = write_run(tmp_path / "run"), "<script>document.title='taken'</script><img src=x onerror=alert(1)>"
    old = Record(run / "record")
    exchanges = []
    for item in old:
        replies = [
            Reply(seen.node, "ok", dict(seen.arrays), seen.num_examples, {taken: 0.5, "site": taken})
            for seen in item.observations
        ]
        failed = Reply(replies[0].node, "failed", reason=f"error 2: {taken}") if item.number == 2 else replies[0]
        exchanges.append(Exchange(item.number, dict(item.common), [failed, *replies[1:]], config={taken: taken}))
    shutil.rmtree(run / "record")
    writer = RecordWriter(run / "record")
    for exchange in exchanges:
        writer.write(exchange)
    writer.close()
    (attack,) = choose_attacks(["sia"], {})
    attack_folder(attack, run, watch=Watch())
    _, page = judge_folder(run, watch=Watch())
    html = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;" in html
    assert not re.search(r"<(script|img)\b", html)


def test_an_attack_that_is_not_shared_says_so(tmp_path):
    """Nobody is at the address, and nobody is asked."""
    run = write_attribute_run(tmp_path)
    said = []
    try:
        choose("127.0.0.1:1")
        check_cluster(["aia"])
        attack_folder(ATTACKS["aia"], run, watch=Watch(say=lambda kind, text: said.append(text)))
        assert any(text.startswith("aia is made here, not on --cluster") for text in said)
        with pytest.raises(ConfigError, match="no Ray cluster answers there"):
            check_cluster(["aia", "sia"])
    finally:
        choose("")


@pytest.mark.slow
def test_a_report_has_tables_beside_it_and_links_them(tmp_path):
    run = write_run(tmp_path / "run")
    attack_folder(choose_attacks(["sia"], {})[0], run, device="cpu", watch=Watch())
    (run / "tables").mkdir()
    (run / "tables" / "prolin-clients.csv").write_text("of an earlier report")
    before = {path.name for path in tmp_path.iterdir()}
    _, page = judge_folder(run, device="cpu", watch=Watch())
    names = sorted(path.name for path in (run / "tables").iterdir())
    assert names == ["sia-clients.csv", "sia-records.csv"]
    assert re.findall(r'href="(tables/[^"]*)"', page.read_text()) == [f"tables/{name}" for name in names]
    assert {path.name for path in tmp_path.iterdir()} == before
    assert "sia-records" not in (run / "run.json").read_text()
