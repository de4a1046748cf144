"""Location-30 and Purchase-100, as Shokri et al. 2017 distribute them."""

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedattack.base.errors import DataError
from fedattack.data.source import Pool, Source, one_line


@dataclass(frozen=True)
class _Shokri:
    """A file without a header: first the class from 1, in quotes or not, then zeros and ones."""

    name: str
    archive: str
    member: str
    classes: int
    width: int

    def read(self, seed: int, root: Path) -> Pool:
        import pandas as pd

        file = root / self.name / self.member
        if not file.is_file():
            raise DataError(
                f"dataset {self.name!r} is not in {root}: expected {self.name}/{self.member}, the file in "
                f"{self.archive}; run `fedattack download {self.name}` or put it there"
            )
        try:
            # dtype uint8: a wrong entry, such as a text, ends the reading.
            table = pd.read_csv(file, header=None, dtype=np.uint8).to_numpy()
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: cannot be read as {self.name} ({one_line(error)}); fetch it again") from None
        labels, x = table[:, 0].astype(np.int64) - 1, table[:, 1:]
        if x.shape[1] != self.width or labels.min() < 0 or labels.max() >= self.classes or x.max() > 1:
            raise DataError(
                f"{file}: expected a class from 1 to {self.classes} and {self.width} zeros and ones a line; got "
                f"{x.shape[1]} columns with classes {labels.min() + 1} to {labels.max() + 1}; fetch it again"
            )
        return Pool(x, labels, self.classes)

    def download(self, root: Path) -> None:
        file = root / self.name / self.member
        if file.is_file():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        archive = file.with_name(self.archive)
        url = f"https://raw.githubusercontent.com/privacytrustlab/datasets/master/{self.archive}"
        # Here, as TLS takes long to import for a listing.
        import urllib.request

        urllib.request.urlretrieve(url, archive)
        # Under another name until it is whole: a killed download leaves no half file.
        partial = file.with_name(f"{self.member}.part")
        partial.write_bytes(self._extract(archive))
        partial.replace(file)
        archive.unlink()

    def _extract(self, archive: Path) -> bytes:
        """Return the bytes of the one file, whatever else the archive holds and wherever it would put it."""
        with tarfile.open(archive) as tar:
            for member in tar:
                if not member.isfile() or Path(member.name).name != self.member:
                    continue
                if stream := tar.extractfile(member):
                    return stream.read()
        raise OSError(f"{self.archive} holds no file {self.member}")


LOCATION30 = _Shokri("location30", "dataset_location.tgz", "bangkok", classes=30, width=446)
PURCHASE100 = _Shokri("purchase100", "dataset_purchase.tgz", "dataset_purchase", classes=100, width=600)

SOURCES = (
    Source(
        LOCATION30.name,
        "visits of 5,010 persons to 446 places and kinds of place, 30 classes",
        LOCATION30.read,
        LOCATION30.download,
        position=30,
    ),
    Source(
        PURCHASE100.name,
        "197,324 customers and 600 goods, 100 classes",
        PURCHASE100.read,
        PURCHASE100.download,
        position=31,
    ),
)
