"""AudioMNIST from a small folder in the format of the real one."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile

from fedattack.base.errors import DataError
from fedattack.data import DATASETS, load_dataset
from fedattack.data.sources.audiomnist import SIDE, TAKES, spectrogram
from tests import refusals

SPEAKERS = {"01": ("male", "no"), "12": ("female", "no"), "26": ("male", "yes"), "56": ("female", "yes")}


def tone(hertz: float, *, rate: int = 48_000, seconds: float = 0.6, loud: float = 0.5) -> np.ndarray:
    moments = np.arange(int(rate * seconds)) / rate
    return np.round(loud * 32767 * np.sin(2 * np.pi * hertz * moments)).astype(np.int16)


def write_audiomnist(root: Path, takes: tuple[int, ...] = (0, 3)) -> None:
    """Each digit is a tone of its own, of 11, 22, … times 31.25 Hz, of which two make a band."""
    folder = root / "audiomnist"
    meta = {}
    for speaker, (gender, native) in SPEAKERS.items():
        (folder / speaker).mkdir(parents=True)
        meta[speaker] = {"accent": "German", "age": "30", "gender": gender, "native speaker": native}
        meta[speaker] |= {"origin": "Europe, Germany, Berlin", "recordingroom": "Kino"}
        for digit in range(10):
            for take in takes:
                wavfile.write(folder / speaker / f"{digit}_{speaker}_{take}.wav", 48_000, tone(343.75 * (digit + 1)))
    (folder / "audioMNIST_meta.txt").write_text(json.dumps(meta))


@pytest.mark.parametrize("rate", [48_000, 44_100, 8_000])
@pytest.mark.parametrize("hertz", [500.0, 1_234.0, 3_200.0])
def test_a_tone_is_in_the_band_of_its_frequency_as_long_as_it_sounds(tmp_path, rate, hertz):
    wavfile.write(tmp_path / "tone.wav", rate, tone(hertz, rate=rate, seconds=0.52))
    found = spectrogram(tmp_path / "tone.wav")
    assert (found.shape, found.dtype) == ((SIDE, SIDE), np.float32)
    # 64 bands to 4 kHz, 64 moments to 1.04 s
    assert (found[:, 2:28].argmax(axis=0) == int(hertz / (4_000 / SIDE))).all()
    assert found[:, 36:].max() < found[:, 2:28].max() - 6
    # the power of a sine of half the full scale is 1/8, and a Hann window has the noise bandwidth of 1.5 bands
    assert (10 ** found[:, 2:28]).sum(axis=0).mean() == pytest.approx(1 / 8 * 1.5, rel=0.1)


def test_a_recording_that_is_too_long_is_cut_and_a_short_one_is_silent_at_the_end(tmp_path):
    for name, seconds in (("long", 3.0), ("short", 0.01)):
        wavfile.write(tmp_path / f"{name}.wav", 48_000, tone(1_000, seconds=seconds))
    assert (spectrogram(tmp_path / "long.wav").argmax(axis=0)[2:-2] == 16).all()
    np.testing.assert_allclose(spectrogram(tmp_path / "short.wav")[:, 10:], -10)


def test_audiomnist_has_the_digit_as_its_task_and_speakers_attributes(tmp_path):
    write_audiomnist(tmp_path)
    pool = DATASETS["audiomnist"].read(0, tmp_path)
    assert (pool.x.shape, pool.classes) == ((80, 1, SIDE, SIDE), 10)
    np.testing.assert_array_equal(pool.x[:, 0, :, 2:30].mean(axis=2).argmax(axis=1), 11 * (pool.y + 1) // 2)
    assert np.bincount(pool.y).tolist() == [8] * 10
    speakers = [[*SPEAKERS][group] for group in pool.groups["speaker"]]
    for name, place in (("gender", 0), ("native", 1)):
        values, codes = pool.private[name]
        assert [values[code] for code in codes] == [SPEAKERS[speaker][place] for speaker in speakers]
    values, codes = pool.private["identity"]
    assert len(values) == 4
    named = {("male", "no"): "male, not native", ("female", "no"): "female, not native"}
    named |= {("male", "yes"): "male, native", ("female", "yes"): "female, native"}
    assert [values[code] for code in codes] == [named[SPEAKERS[speaker]] for speaker in speakers]
    data = load_dataset("audiomnist", root=tmp_path)
    assert (data.input_shape, data.x_train.shape[0]) == ((1, SIDE, SIDE), 64)
    assert set(data.private) == {"gender", "native", "identity"}


def test_the_first_takes_are_read(tmp_path):
    write_audiomnist(tmp_path, takes=(TAKES - 1, TAKES))
    assert len(DATASETS["audiomnist"].read(0, tmp_path).y) == 40


def test_audiomnist_that_is_missing_or_damaged_is_refused(tmp_path):
    def refused(message: str) -> None:
        with refusals.refused(DataError, message):
            load_dataset("audiomnist", root=tmp_path)

    write_audiomnist(tmp_path)
    folder = tmp_path / "audiomnist"
    meta = folder / "audioMNIST_meta.txt"
    told = meta.read_text()
    meta.write_text(told[:-3])
    refused("audioMNIST_meta.txt cannot be read as JSON")
    for broken in ("[]", '{"01": 3}', '{"01": {"gender": "male"}}'):
        meta.write_text(broken)
        refused("expected gender and native speaker of each")
    meta.write_text(told.replace('"female"', '"Frau"'))
    refused("speaker 12: expected gender female or male .* got 'Frau' and 'no'")
    meta.write_text(json.dumps({name: item for name, item in json.loads(told).items() if name != "26"}))
    refused(r"0_26_0.wav: expected DIGIT_SPEAKER_TAKE.wav")
    meta.unlink()
    refused("audioMNIST_meta.txt is not there; fetch https://github.com/soerenab/AudioMNIST")
    meta.write_text(told)
    file = folder / "26" / "4_26_3.wav"
    whole = file.read_bytes()
    for content in (b"", b"RIFF", b"no sound at all", whole[:30]):
        file.write_bytes(content)
        refused("4_26_3.wav: no WAV file that can be read")
    for samples in (np.zeros((9, 2), np.int16), np.zeros(9, np.float32), np.zeros(0, np.int16)):
        wavfile.write(file, 48_000, samples)
        refused("4_26_3.wav: (expected samples of 16 bit in one channel|no WAV file)")
    file.rename(folder / "12" / "4_26_3.wav")
    refused("expected DIGIT_SPEAKER_TAKE.wav, in the folder of a speaker")
    for left in folder.glob("*/*.wav"):
        left.unlink()
    refused("no recordings; expected 01/0_01_0.wav")
