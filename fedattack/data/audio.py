"""Spoken digits with private attributes: AudioMNIST (Becker et al. 2018)."""

from __future__ import annotations

import math
import re
import struct
import warnings
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedattack.data._pool import Pool
from fedattack.errors import DataError
from fedattack.untrusted import read_json

AUDIOMNIST_PAGE = "https://github.com/soerenab/AudioMNIST"

TAKES = 10
"""The first of each speaker's 50 recordings of a digit: each process that loads them has to analyse them."""

BY_HAND = f"fetch {AUDIOMNIST_PAGE} and put what is in its folder data (01 to 60 and audioMNIST_meta.txt) into a folder audiomnist"  # noqa: E501 - one line for a person

RATE = 8_000
"""Samples a second to which recordings are brought, as in the paper."""

SIDE = 64
"""Frequencies and moments of a spectrogram."""

_WINDOW = 4 * SIDE
_STEP = _WINDOW // 2
_SAMPLES = _WINDOW + (SIDE - 1) * _STEP

# Power of what is no sound, against that of the loudest.
_SILENCE = 1e-10


def audiomnist(seed: int, root: Path) -> Pool:
    """Read AudioMNIST, with the spoken digit as the task.

    Recordings are brought to 8 kHz and 1.04 s (cut, or silent at the end), and become logarithmic spectrograms of 64 x
    64: windows of 32 ms that overlap by a half, with neighbouring frequencies added. Private are ``gender``, ``native``
    (whether English is the speaker's first language), and both together as ``identity``, which RecUP-FL hides (Cui et
    al. 2023, Section 6.1). Records can be divided by ``speaker``.

    Parameters
    ----------
    seed : int
        Not used.
    root : Path
        The data folder, with ``audiomnist/01/0_01_0.wav`` and so on, and ``audiomnist/audioMNIST_meta.txt``.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    folder = root / "audiomnist"
    if not folder.is_dir():
        raise DataError(f"dataset 'audiomnist' is not in {root}: expected a folder audiomnist; {BY_HAND}")
    known = _speakers(folder / "audioMNIST_meta.txt")
    found = []
    for file in sorted(folder.glob("*/*.wav")):
        named = re.fullmatch(r"(\d)_(\w+)_(\d+)\.wav", file.name, re.ASCII)
        if named is None or named[2] != file.parent.name or named[2] not in known:
            raise DataError(
                f"{file}: expected DIGIT_SPEAKER_TAKE.wav, in the folder of a speaker of audioMNIST_meta.txt; move it "
                "away"
            )
        if int(named[3]) < TAKES:
            found.append((file, int(named[1]), named[2]))
    if not found:
        raise DataError(f"{folder}: no recordings; expected 01/0_01_0.wav and so on; {BY_HAND}")
    speakers = [speaker for _, _, speaker in found]
    genders, natives = np.array([known[speaker] for speaker in speakers], dtype=np.int64).T
    both = ("female, not native", "male, not native", "female, native", "male, native")
    return Pool(
        np.stack([spectrogram(file) for file, _, _ in found])[:, np.newaxis],
        np.array([digit for _, digit, _ in found], dtype=np.int64),
        classes=10,
        images=True,
        groups={"speaker": np.unique(speakers, return_inverse=True)[1]},
        private={
            "gender": (("female", "male"), genders),
            "native": (("no", "yes"), natives),
            "identity": (both, 2 * natives + genders),
        },
    )


def _speakers(file: Path) -> dict[str, tuple[bool, bool]]:
    """Say of each speaker whether male, and whether a native."""
    described = read_json(file, DataError, BY_HAND)
    try:
        told = {
            name: (str(item["gender"]).strip(), str(item["native speaker"]).strip()) for name, item in described.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected gender and native speaker of each ({error}); {BY_HAND}") from None
    for name, (gender, native) in told.items():
        if gender not in ("female", "male") or native not in ("no", "yes"):
            raise DataError(
                f"{file}: speaker {name}: expected gender female or male and native speaker yes or no; got {gender!r} "
                f"and {native!r}; mend it"
            )
    return {name: (gender == "male", native == "yes") for name, (gender, native) in told.items()}


def spectrogram(file: Path) -> NDArray[np.float32]:
    """Return the logarithmic spectrogram (64, 64) of a WAV file, frequencies from 0 to 4 kHz by moments.

    Raises
    ------
    DataError
        If it is none that can be read.
    """
    from scipy import signal
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # of chunks that are no sound
            rate, samples = wavfile.read(file)
    except (OSError, ValueError, EOFError, struct.error) as error:
        reason = " ".join(str(error).split())
        raise DataError(f"{file}: no WAV file that can be read ({reason}); fetch the dataset again") from None
    if samples.dtype != np.int16 or samples.ndim != 1 or not len(samples):
        raise DataError(
            f"{file}: expected samples of 16 bit in one channel, got {samples.dtype} of shape {samples.shape}; fetch "
            "the dataset again"
        )
    common = math.gcd(rate, RATE)
    sound = signal.resample_poly(samples / 2.0**15, RATE // common, rate // common)[:_SAMPLES]
    sound = np.pad(sound, (0, _SAMPLES - len(sound)))
    _, _, power = signal.spectrogram(
        sound, RATE, window="hann", nperseg=_WINDOW, noverlap=_WINDOW - _STEP, scaling="spectrum"
    )
    pairs = power[:-1].reshape(SIDE, 2, SIDE).sum(axis=1)
    return np.asarray(np.log10(pairs + _SILENCE), dtype=np.float32)
