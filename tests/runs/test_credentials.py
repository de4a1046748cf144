"""Certificates verify for their hosts alone, and no secret can be read by others."""

import re
import socket
import ssl
import stat
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedattack.base.errors import ConfigError
from fedattack.runs.credentials import make_certificates, make_node_key, make_secret


def handshake(certificates, trusted, host: str) -> None:
    """Shake hands over TLS in this process; raises what the client sees."""
    server, client = socket.socketpair()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)

    def serve() -> None:
        try:
            context.wrap_socket(server, server_side=True).close()
        except (ssl.SSLError, OSError):
            server.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        ssl.create_default_context(cafile=str(trusted.authority)).wrap_socket(client, server_hostname=host).close()
    finally:
        client.close()
        thread.join()


def test_a_server_is_trusted_under_its_hosts_and_by_its_authority_alone(tmp_path):
    ours = make_certificates(tmp_path / "ours", ["127.0.0.1", "superlink"])
    others = make_certificates(tmp_path / "others", ["127.0.0.1"])
    handshake(ours, ours, "127.0.0.1")
    handshake(ours, ours, "superlink")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        handshake(ours, ours, "127.0.0.2")
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(ours, ours, "localhost")
    with pytest.raises(ssl.SSLCertVerificationError, match="certificate verify failed"):
        handshake(ours, others, "127.0.0.1")


def test_secrets_are_their_owners_alone_and_the_authoritys_key_is_gone(tmp_path):
    make_certificates(tmp_path / "keys", ["localhost"])
    make_node_key(tmp_path / "keys", "node-0")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "keys").iterdir()}
    assert modes == {"ca.crt": 0o644, "server.pem": 0o644, "server.key": 0o600, "node-0": 0o600, "node-0.pub": 0o644}
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    secrets = {path.name for path in (tmp_path / "keys").iterdir() if b"PRIVATE" in path.read_bytes()}
    assert secrets == {"server.key", "node-0"}
    authority = x509.load_pem_x509_certificate((tmp_path / "keys" / "ca.crt").read_bytes())
    server = serialization.load_pem_private_key((tmp_path / "keys" / "server.key").read_bytes(), None)
    assert authority.public_key() != server.public_key()


def test_a_node_key_is_one_that_flower_takes(tmp_path):
    files = make_node_key(tmp_path, "node-0")
    private = serialization.load_ssh_private_key(files.private.read_bytes(), None)
    public = serialization.load_ssh_public_key(files.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.curve.name == "secp384r1"
    assert private.public_key() == public
    assert make_node_key(tmp_path, "node-1").public.read_bytes() != files.public.read_bytes()


def test_nothing_is_overwritten_and_nonsense_is_refused_in_one_line(tmp_path):
    files = make_certificates(tmp_path, ["localhost"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "file").write_text("")
    for call, message in (
        (lambda: make_certificates(tmp_path, ["localhost"]), "ca.crt already exists; keys are never overwritten"),
        (lambda: make_certificates(tmp_path / "file" / "keys", ["localhost"]), "cannot be written"),
        (lambda: make_certificates(tmp_path / "other", []), "for no host, 365 days: expected a host"),
        (lambda: make_node_key(tmp_path, "server.key"), "already exists"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert all(path.read_bytes() == content for path, content in before.items())
    assert files.key in before


def test_a_secret_is_random_and_its_owners_alone(tmp_path):
    make_secret(tmp_path / "one")
    make_secret(tmp_path / "two")
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o600
    assert re.fullmatch("[0-9a-f]{64}", (tmp_path / "one").read_text())
    assert (tmp_path / "one").read_bytes() != (tmp_path / "two").read_bytes()
    with pytest.raises(ConfigError, match="never overwritten"):
        make_secret(tmp_path / "one")
