"""Sign a record by its recorder's key, so that a reader can tell whether somebody has changed it since.

Checksums tell damage alone: whoever can write the folder can compute them anew. A signature (Ed25519) can be made only
by the holder of the key. It signs the file of the manifest, which holds the last line's seal. Each line holds the seal
of the line before and the SHA-256 of its file.
"""

import base64
import hashlib
import os
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from fedattack.base.errors import ConfigError
from fedattack.base.files import FolderLock, write_atomically
from fedattack.base.untrusted import read_bytes

SIGNING_KEY = "FEDATTACK_SIGNING_KEY"
"""Environment variable that names the file of the key by which observers sign."""

_HINT = "expected an Ed25519 key in PEM, as `fedattack keygen` makes it"
_MAX_KEY = 2**16


def make_key(path: Path) -> str:
    """Make a private key at ``path``, for its owner alone, and its public half beside it; returns the fingerprint.

    Raises
    ------
    ConfigError
        If one of the files is there already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    # A raw key would be 32 bytes; PEM is what other tools read.
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    try:
        # Nobody else makes a key here meanwhile.
        with FolderLock(path.parent):
            _write_key(path, private, public)
    except OSError as cause:
        raise ConfigError(f"{path} cannot be written ({cause.strerror}); choose another file") from None
    return fingerprint(signer_of(key))


def _write_key(path: Path, private: bytes, public: bytes) -> None:
    """Write both halves of a key, whole, or neither."""
    beside = public_file(path)
    # lexists: a link that leads nowhere counts as there, too.
    for file in (path, beside):
        if os.path.lexists(file):
            raise ConfigError(f"{file} already exists, and a key is never overwritten; choose another")
    try:
        # The public half first: a private key without it would be refused as taken the next time.
        write_atomically(beside, public)
        beside.chmod(0o644)
        write_atomically(path, private)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def public_file(path: Path) -> Path:
    """Return where the public half of the key at ``path`` lies."""
    return path.with_name(f"{path.name}.pub")


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Read the key that a recorder signs by.

    Raises
    ------
    ConfigError
        If the file is not there, or holds no such key.
    """
    data = read_bytes(path, ConfigError, _HINT, limit=_MAX_KEY)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no private key that signs records; {_HINT}")
    return key


def read_signer(given: str) -> str:
    """Return the fingerprint that a user means: by itself, or that of the public key in a file.

    Raises
    ------
    ConfigError
        If it is neither.
    """
    if given.startswith(_PREFIX):
        return given
    path = Path(given).expanduser()
    data = read_bytes(
        path, ConfigError, f"expected a fingerprint {_PREFIX}… or the file of a public key", limit=_MAX_KEY
    )
    try:
        key = serialization.load_pem_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{path} holds no public key; {_HINT} next to the private one, with the ending .pub")
    return fingerprint(_encode(key))


def signer_of(key: Ed25519PrivateKey) -> str:
    """Return a key's public half as the manifest names it."""
    return _encode(key.public_key())


def is_signed(signer: str, signature: bytes, data: bytes) -> bool:
    """Whether ``signature`` is that of ``data`` by the key whose public half is ``signer``."""
    try:
        # `validate=True` refuses what is no base64, which would else be skipped.
        Ed25519PublicKey.from_public_bytes(base64.b64decode(signer, validate=True)).verify(signature, data)
    except (ValueError, InvalidSignature):
        return False
    return True


_PREFIX = "SHA256:"


def fingerprint(signer: str) -> str:
    """Name a public key for people, such as ``SHA256:Zm9v…``."""
    digest = hashlib.sha256(base64.b64decode(signer)).digest()
    # As OpenSSH writes fingerprints, so that people can compare them by eye.
    return _PREFIX + base64.b64encode(digest).decode().rstrip("=")


def _encode(key: Ed25519PublicKey) -> str:
    raw = key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return base64.b64encode(raw).decode()
