import pytest

from fedattack.app import load_preset
from fedattack.errors import ConfigError
from fedattack.pipeline import choose_attacks, choose_seeds


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
    assert (ara.updates, baselines.name) == ("pre1", "attribute-baselines")


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["sia", "magic"], {}, "unknown attack 'magic': expected one of aia, ara"),
        (["ara", "aia"], {"magic": "1"}, "--option magic: ara and aia have the options label, membership"),
        (["sia"], {"magic": "1"}, "--option magic: sia has no options"),
        (["ara"], {"updates": "soon"}, "option updates=soon: expected one of pre1"),
    ],
)
def test_an_option_that_no_attack_has_is_refused(names, options, message):
    with pytest.raises(ConfigError, match=message):
        choose_attacks(names, options)
