import math
import re
import tomllib

import pytest

from fedattack.base.errors import ConfigError
from fedattack.claims import make_claim, read_claim
from fedattack.claims.claim import classical_sigma
from tests.claims.known import PLATFORM_CLAIM

PLATFORM = PLATFORM_CLAIM.format(rounds=1)


def claim(**values):
    return make_claim("claim.toml", **{"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "rounds": 1, **values})


def test_a_claim_is_read(tmp_path):
    path = tmp_path / "claim.toml"
    path.write_text(PLATFORM)
    read = read_claim(path)
    assert read.deviation == pytest.approx(1e-4 * math.sqrt(2 * math.log(1.25 / 1e-5)) / 10)
    assert read.deviation == pytest.approx(4.845e-5, rel=1e-3)
    assert (read.protects, read.relation, read.rounds) == ("client", "replace", 1)


def test_neighbours_and_units_follow_the_mechanism():
    assert claim().relation == "replace"
    assert claim(mechanism="dp-sgd").relation == "add-remove"
    assert claim(mechanism="central-gaussian").relation == "add-remove"
    assert claim(mechanism="dp-sgd").protects == "example"
    assert claim(mechanism="dp-sgd", unit="record").protects == "example"
    assert claim(mechanism="central-gaussian").protects == "client"
    assert claim(neighbours="add-remove").relation == "add-remove"


def test_sigma_and_noise_multiplier_are_one_number():
    assert claim(sigma=3.0, clip=1.5).multiplier == 2
    assert claim(noise_multiplier=2.0, clip=1.5).deviation == 3
    assert claim(noise_multiplier=2.0, clip=1.5, sigma=3.0).deviation == 3
    central = claim(mechanism="central-gaussian", noise_multiplier=2.0, clip=1.5, clients=10)
    assert central.deviation == pytest.approx(0.3)
    assert claim(mechanism="central-gaussian", sigma=0.3, clip=1.5, clients=10).multiplier == pytest.approx(2)
    assert claim(sigma=3.0).multiplier is None
    assert claim().deviation is None
    assert classical_sigma(2.0, 1.0, 1e-5) == pytest.approx(2 * classical_sigma(1.0, 1.0, 1e-5))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"epsilon": 0.0}, "epsilon: input should be greater than 0"),
        ({"epsilon": math.inf}, "epsilon: input should be a finite number"),
        ({"epsilon": "10"}, "epsilon: input should be a valid number"),
        ({"delta": 0.0}, "delta: input should be greater than 0"),
        ({"delta": 1.0}, "delta: input should be less than 1"),
        ({"clip": True}, "clip"),
        ({"sensitivity": 0.0}, "sensitivity"),
        ({"sigma": -1.0}, "sigma"),
        ({"noise-multiplier": math.inf}, "noise-multiplier"),
        ({"sigma": 1.0, "noise-multiplier": 2.0, "clip": 1.0}, "sigma = 1, and the other keys imply 2"),
        ({"mechanism": "dp-sgd", "sampling": 1.5}, "sampling"),
        ({"mechanism": "dp-sgd", "sampling": 1e-320}, "sampling: input should be greater than or equal to 0.00"),
        ({"clip": 5e-324}, "clip: value error, expected 0, or from 1e-40 to 1e+40, got 5e-324"),
        ({"clip": 0.0}, "clip: input should be greater than 0"),
        ({"noise-multiplier": 1e300}, "noise-multiplier: value error, expected 0, or from 1e-40"),
        ({"rounds": 1.5}, "rounds"),
        ({"rounds": 2**53 + 1}, "rounds: input should be less than or equal to 9007199254740992"),
        ({"mechanism": "dp-sgd", "batch-size": 1e17}, "batch-size: input should be less than or equal to"),
        ({"sigmma": 1.0}, "sigmma is not a key of a claim: did you mean sigma?"),
        ({"mechanism": "gausian"}, "mechanism"),
        ({"sampling": 0.5}, "sampling is a key of dp-sgd"),
        ({"mechanism": "dp-sgd", "unit": "client"}, "contradicts dp-sgd"),
        ({"mechanism": "flower-localdp", "clip": 1.0}, "needs clip and sensitivity"),
        ({"mechanism": "central-gaussian", "largest-share": 0.5}, "needs clients"),
        (
            {"mechanism": "central-gaussian", "largest-share": 0.05, "clients": 10, "weights": "examples"},
            "below 1/10",
        ),
        (
            {"mechanism": "central-gaussian", "largest-share": 0.5, "clients": 10, "weights": "equal"},
            "contradicts equal weights",
        ),
        ({"mechanism": "dp-sgd", "sampling-method": "shuffled"}, "epochs is missing, which shuffled batches need"),
        ({"mechanism": "dp-sgd", "epochs": 2}, "epochs needs batches that are shuffled or in order"),
        (
            {"mechanism": "central-gaussian", "sampling-method": "shuffled"},
            "belongs to dp-sgd, but the mechanism is central",
        ),
        ({"skipped": 1}, "skipped is a key of dp-sgd"),
        (
            {"mechanism": "flower-localdp", "clip": 1.0, "sensitivity": 1.0, "noise-multiplier": 1.0},
            "not a key of flower-localdp",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(values, said):
    with pytest.raises(ConfigError) as caught:
        claim(**values)
    text = str(caught.value)
    assert said in text
    assert text.startswith("claim.toml: ")
    assert "\n" not in text
    assert len(text) <= 300


@pytest.mark.parametrize(
    "text",
    [
        "mechanism = ",
        "\udcff",
        "epsilon = 1",
        "[epsilon]\nx = 1",
        pytest.param("epsilon = " + "9" * 5000, id="digits"),
        pytest.param("epsilon = " + "[" * 5000, id="lists"),
    ],
)
def test_a_file_that_is_no_claim(tmp_path, text):
    path = tmp_path / "claim.toml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(ConfigError, match=r"claim\.toml"):
        read_claim(path)


def test_the_epsilon_of_a_run_needs_the_number_of_rounds():
    with pytest.raises(ConfigError, match="rounds is missing"):
        make_claim("claim.toml", mechanism="gaussian", epsilon=1.0, delta=1e-5)
    assert make_claim("claim.toml", mechanism="gaussian", epsilon=1.0, delta=1e-5, epsilon_of="message").rounds == 1


@pytest.mark.parametrize("values", [{"rounds": None}, {"mechanism": "dp-sgd", "unit": "client"}])
def test_what_is_to_be_written_is_toml(values):
    said = {"mechanism": "gaussian", "epsilon": 1.0, "delta": 1e-5, "rounds": 1, **values}
    with pytest.raises(ConfigError) as caught:
        make_claim("claim.toml", **{key: value for key, value in said.items() if value is not None})
    keys = tomllib.loads(re.search("write (.*);", str(caught.value))[1])
    make_claim("claim.toml", **{**said, "rounds": 1, **keys})


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="is not there"):
        read_claim(tmp_path / "claim.toml")


def test_a_key_of_any_name_is_refused_in_one_line(tmp_path):
    (tmp_path / "claim.toml").write_text('mechanism = "gaussian"\nepsilon = 1.0\ndelta = 1e-5\nwhere = 1\n')
    with pytest.raises(ConfigError, match="where is not a key of a claim"):
        read_claim(tmp_path / "claim.toml")
