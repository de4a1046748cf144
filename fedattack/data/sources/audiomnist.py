"""Spoken digits with private attributes: AudioMNIST (Becker et al. 2018)."""

import math
import re
import struct
import warnings
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedattack.base.errors import DataError
from fedattack.base.untrusted import read_json
from fedattack.data.source import Pool, Source, one_line

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

    Recordings are brought to 8 kHz and 1.04 s (cut, or silent at the end). They become logarithmic spectrograms (1, 64,
    64): windows of 32 ms overlap by a half, and neighbouring frequencies are added. Examples can be divided by
    ``speaker``. The private attributes are:

    - ``gender``;
    - ``native``: whether English is the speaker's first language;
    - ``identity``: both together, which RecUP-FL hides (Cui et al. 2023, Section 6.1).

    The data folder ``root`` has ``audiomnist/01/0_01_0.wav`` and so on, and ``audiomnist/audioMNIST_meta.txt``.

    Raises
    ------
    DataError
        If something is missing or damaged.
    """
    folder = root / "audiomnist"
    if not folder.is_dir():
        raise DataError(f"dataset 'audiomnist' is not in {root}: expected a folder audiomnist; {BY_HAND}")
    speakers = _read_speakers(folder / "audioMNIST_meta.txt")
    recordings = _find_recordings(folder, speakers)
    names = [recording.speaker for recording in recordings]
    genders, natives = np.array([speakers[name] for name in names], dtype=np.int64).T
    # Index 2 · native + male.
    identities = ("female, not native", "male, not native", "female, native", "male, native")
    spectrograms = np.stack([spectrogram(recording.file) for recording in recordings])
    return Pool(
        spectrograms[:, np.newaxis],
        np.array([recording.digit for recording in recordings], dtype=np.int64),
        classes=10,
        images=True,
        # Recordings of one speaker go to one client, where the partition asks for it.
        groups={"speaker": np.unique(names, return_inverse=True)[1]},
        private={
            "gender": (("female", "male"), genders),
            "native": (("no", "yes"), natives),
            "identity": (identities, 2 * natives + genders),
        },
    )


class _Recording(NamedTuple):
    file: Path
    digit: int
    speaker: str


def _read_speakers(file: Path) -> dict[str, tuple[bool, bool]]:
    """Read whether each speaker is male, and whether a native."""
    described = read_json(file, DataError, BY_HAND)
    texts = {}
    try:
        for name, speaker in described.items():
            texts[name] = (str(speaker["gender"]).strip(), str(speaker["native speaker"]).strip())
    except (AttributeError, KeyError, TypeError) as error:
        raise DataError(f"{file}: expected gender and native speaker of each ({error}); {BY_HAND}") from None
    for name, (gender, native) in texts.items():
        if gender not in ("female", "male") or native not in ("no", "yes"):
            raise DataError(
                f"{file}: speaker {name}: expected gender female or male and native speaker yes or no; got {gender!r} "
                f"and {native!r}; mend it"
            )
    return {name: (gender == "male", native == "yes") for name, (gender, native) in texts.items()}


def _find_recordings(folder: Path, speakers: Container[str]) -> list[_Recording]:
    """List the first :data:`TAKES` recordings of each speaker and digit, in the order of their files."""
    recordings = []
    for file in sorted(folder.glob("*/*.wav")):
        name = re.fullmatch(r"(\d)_(\w+)_(\d+)\.wav", file.name, re.ASCII)
        if name is None or name[2] != file.parent.name or name[2] not in speakers:
            raise DataError(
                f"{file}: expected DIGIT_SPEAKER_TAKE.wav, in the folder of a speaker of audioMNIST_meta.txt; move it "
                "away"
            )
        if int(name[3]) < TAKES:
            recordings.append(_Recording(file, int(name[1]), name[2]))
    if not recordings:
        raise DataError(f"{folder}: no recordings; expected 01/0_01_0.wav and so on; {BY_HAND}")
    return recordings


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
            warnings.simplefilter("ignore", wavfile.WavFileWarning)  # about chunks that are no sound
            rate, samples = wavfile.read(file)
    except (OSError, ValueError, EOFError, struct.error) as error:
        raise DataError(f"{file}: no WAV file that can be read ({one_line(error)}); fetch the dataset again") from None
    if samples.dtype != np.int16 or samples.ndim != 1 or not len(samples):
        raise DataError(
            f"{file}: expected samples of 16 bit in one channel, got {samples.dtype} of shape {samples.shape}; fetch "
            "the dataset again"
        )
    # Reduced, so that the resampling filter stays short.
    common = math.gcd(rate, RATE)
    # 16-bit samples, scaled to −1 … 1.
    sound = signal.resample_poly(samples / 2.0**15, RATE // common, rate // common)[:_SAMPLES]
    sound = np.pad(sound, (0, _SAMPLES - len(sound)))
    _, _, power = signal.spectrogram(
        sound, RATE, window="hann", nperseg=_WINDOW, noverlap=_WINDOW - _STEP, scaling="spectrum"
    )
    # Neighbouring frequencies in pairs: 128 become 64, without the highest bin.
    pairs = power[:-1].reshape(SIDE, 2, SIDE).sum(axis=1)
    return np.asarray(np.log10(pairs + _SILENCE), dtype=np.float32)


SOURCES = (
    Source(
        "audiomnist",
        "6,000 spoken digits as spectrograms, 64 x 64; private attributes gender, native and both as identity; from "
        "your folder",
        audiomnist,
        by_hand=BY_HAND,
        position=80,
    ),
)
