"""Certificates for TLS, keys of SuperNodes and shared secrets: files that their owner alone can read.

A deployment has an authority of its own. Everybody gets its certificate. Its key signs the SuperLink's certificate and
is not kept, so that nobody can sign another.
"""

import ipaddress
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedattack.base.errors import ConfigError

# Clocks of machines differ a little.
_SKEW = timedelta(minutes=5)


@dataclass(frozen=True)
class Certificates:
    """Files of one TLS server: the authority's certificate, the server's own, and its private key; all PEM."""

    authority: Path
    certificate: Path
    key: Path


@dataclass(frozen=True)
class NodeKey:
    """Files of one SuperNode's key: the private one, and the public one that is registered; both OpenSSH."""

    private: Path
    public: Path


def make_certificates(folder: Path, hosts: Sequence[str], *, days: int = 365) -> Certificates:
    """Make an authority and a certificate of a server that it signs.

    Parameters
    ----------
    folder
        Where the files go; it is created, for its owner alone.
    hosts
        Names and IP addresses under which the server is reached.
    days
        How long the certificates are valid.

    Raises
    ------
    ConfigError
        If there is no host, a file is there already, or the folder cannot be written.
    """
    if not hosts or days < 1:
        raise ConfigError(f"certificates for {', '.join(hosts) or 'no host'}, {days} days: expected a host and a day")
    authority_key = ec.generate_private_key(ec.SECP384R1())
    server_key = ec.generate_private_key(ec.SECP384R1())
    name = _name("fedattack's own authority")
    authority = (
        _builder(name, name, authority_key.public_key(), days)
        # path_length=0: it signs servers, and no further authorities. Its private key is dropped, so that nobody signs
        # with it later.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    server = (
        _builder(_name(hosts[0]), name, server_key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        # Clients compare the host with the alternative names; the common name is not looked at.
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA384())
    )
    files = Certificates(folder / "ca.crt", folder / "server.pem", folder / "server.key")
    pem = serialization.Encoding.PEM
    secret = server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _write(files.authority, authority.public_bytes(pem), 0o644)
    _write(files.certificate, server.public_bytes(pem), 0o644)
    _write(files.key, secret, 0o600)
    return files


def make_node_key(folder: Path, name: str) -> NodeKey:
    """Make the key by which a SuperNode shows who it is, on the curve P-384.

    Raises
    ------
    ConfigError
        If a file is there already, or the folder cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    ssh = serialization.Encoding.OpenSSH
    files = NodeKey(folder / name, folder / f"{name}.pub")
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH) + b"\n"
    _write(files.private, private, 0o600)
    _write(files.public, public, 0o644)
    return files


def make_secret(path: Path) -> None:
    """Make a secret that programs share: 32 random bytes in hexadecimal digits, which every reader of text takes.

    Raises
    ------
    ConfigError
        If the file is there already, or cannot be written.
    """
    _write(path, secrets.token_hex(32).encode(), 0o600)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file that is never open to others, not for a moment."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # O_EXCL follows no link and overwrites nothing; the mode holds from the first moment.
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(handle, "wb") as file:
            file.write(content)
    except FileExistsError:
        raise ConfigError(f"{path} already exists; keys are never overwritten: choose another folder") from None
    except OSError as cause:
        raise ConfigError(f"{path} cannot be written ({cause.strerror}); choose another folder") from None
