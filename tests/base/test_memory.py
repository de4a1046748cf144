import pytest

from fedattack.attacks import ATTACKS
from fedattack.base.errors import ConfigError
from fedattack.base.machine import MEMORY, read_size, shown_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("300MB", 300_000_000), ("0.5 gib", 2**29), ("100000000", 10**8), ("70000kB", 70_000_000)],
)
def test_sizes_are_read(text, size):
    assert read_size(text) == size


@pytest.mark.parametrize("text", ["", "much", "2 apples", "-1GB", "1e9", "nan", "2GiB2", "9" * 40, "63MB"])
def test_what_is_no_size_or_too_little_is_refused(text):
    with pytest.raises(ConfigError, match=r"expected a size (such as 2GiB or 300MB|of at least 64MB)"):
        read_size(text)


def test_a_size_is_shown_as_people_say_it():
    assert (shown_size(2**31), shown_size(3 * 2**29), shown_size(300e6)) == ("2 GiB", "1.5 GiB", "300 MB")


def test_attacks_that_hold_what_grows_have_one_default():
    having = {name for name, attack in ATTACKS.items() if "memory" in attack.options.list_settings()}
    assert {"prolin", "private-attribute", "membership", "ara", "aia", "inversion"} <= having
    for name in having:
        assert ATTACKS[name].options.memory == MEMORY
        assert ATTACKS[name].with_options({"memory": "300MB"}).options.memory == 300_000_000
