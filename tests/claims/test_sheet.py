import hashlib
import json

import pytest

from fedattack.base.errors import ConfigError
from fedattack.claims import make_claim
from fedattack.claims.advice import Given
from fedattack.claims.check import check_claim
from fedattack.claims.measured import Trial
from fedattack.claims.sheet import sheet_of
from fedattack.report.validate import validate_claim
from tests.claims import known
from tests.report.claims import NOW


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
def test_it_says_by_what_it_was_made(tmp_path):
    file, manifest = tmp_path / "claim.toml", tmp_path / "record" / "seed-0" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    file.write_text(known.PLATFORM_CLAIM.format(rounds=5))
    manifest.write_text("{}")
    answer = check_claim(None, known.platform, Trial(draws=2000, seed=4))
    made = sheet_of(
        answer,
        Given(str(tmp_path), str(file), "tests.claims.known:platform"),
        trial=Trial(draws=2000, seed=4),
        command="fedattack claim",
        now=NOW,
    )
    facts = made["facts"]
    assert facts["checked"] == "2026-11-23 19:30 UTC"
    assert facts["claim_sha256"] == digest(file)
    assert facts["records"] == {"record/seed-0": digest(manifest)}
    assert len(facts["mechanism_sha256"]) == 64
    assert (facts["draws"], facts["seed"]) == (2000, 4)
    assert facts["sigma"] == pytest.approx(4.845e-5, rel=1e-3)
    assert {"fedattack", "Python", "flwr", "dp-accounting"} <= set(facts["versions"])
    assert made["stated"]["neighbours"] == "replace"
    assert "steps" not in made["stated"]
    assert json.loads(json.dumps(made, allow_nan=False)) == validate_claim(made)


def test_arithmetic_alone_has_neither_draws_nor_records(tmp_path):
    claim = make_claim("c", mechanism="gaussian", noise_multiplier=2.0, epsilon=9.0, delta=1e-5, rounds=1)
    facts = validate_claim(sheet_of(check_claim(claim), Given(), now=NOW))["facts"]
    assert facts["records"] == {}
    assert facts["draws"] is None
    assert facts["claim_sha256"] == facts["mechanism_sha256"] == ""


def test_a_file_that_is_gone_is_said(tmp_path):
    claim = make_claim("c", mechanism="gaussian", noise_multiplier=2.0, epsilon=9.0, delta=1e-5, rounds=1)
    with pytest.raises(ConfigError, match=r"gone\.toml is not there"):
        sheet_of(check_claim(claim), Given(claim=str(tmp_path / "gone.toml")))
