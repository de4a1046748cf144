"""Hazards of a claim of privacy: what was looked at comes first, and nothing is called checked that was not."""

from fedattack.defences.hazards import list_hazards


def test_only_what_was_looked_at_is_called_checked():
    assert [hazard.what for hazard in list_hazards(own_noise=False) if hazard.checked] == []
    found = list_hazards(own_noise=True, plaintext=["loss", "num-examples"])
    assert [hazard.what for hazard in found if hazard.checked] == [
        "Randomness of the noise",
        "Numbers beside the update",
    ]
    assert [hazard.checked for hazard in found] == sorted((hazard.checked for hazard in found), reverse=True)
    assert "loss, num-examples" in found[1].why


def test_every_hazard_is_named_in_either_case():
    names = {hazard.what for hazard in list_hazards(own_noise=False)}
    assert names == {hazard.what for hazard in list_hazards(own_noise=True, plaintext=[])}
    assert {"Floating point", "Time and size of messages", "Tuning and early stopping"} <= names
