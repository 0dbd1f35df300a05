"""TLS 1.3 between a server and an engine elsewhere, whatever they are given.

With certificates of an authority (--engine-certfile) each side checks the other's. With the secret alone a steward
makes a certificate of its own when it starts, which no authority knows: who shows it is told by the proofs of the
handshake (protocol/sockets/engine_wire.py), since each is made over the digest of the certificate, too, as that side
has it. One that stands between the two has a certificate of its own, and a proof of another digest is none.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from ..options.config import Config
from ..options.objects.remote import engine_tls

YEARS = timedelta(days=3650)  # longer than a steward lives


def link_context(config: Config) -> ssl.SSLContext:
    """Of the side that connects."""
    if (given := engine_tls(config, server=False)) is not None:
        return given
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the proofs say who it is
    return context


def steward_context(config: Config) -> tuple[ssl.SSLContext, bytes]:
    """Of the side that listens, and the digest of its certificate."""
    if (given := engine_tls(config, server=True)) is not None:
        assert config.engine_certfile is not None
        return given, digest_of(_first_certificate(Path(config.engine_certfile).expanduser().read_text()))
    made = _make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    fd = os.memfd_create("actorserve-certificate", os.MFD_CLOEXEC)  # ssl reads files alone
    try:
        os.write(fd, made.encode())
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    finally:
        os.close(fd)
    return context, digest_of(_first_certificate(made))


def digest_of(certificate: bytes) -> bytes:
    """Of one in DER."""
    return hashlib.sha256(certificate).digest()


def _first_certificate(pem: str) -> bytes:
    """In DER; keys may stand before it."""
    begin, end = pem.index(ssl.PEM_HEADER), pem.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
    return ssl.PEM_cert_to_DER_cert(pem[begin:end] + "\n")


def _make_certificate() -> str:
    """A key and its certificate, as PEM."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "actorserve engine")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks differ
        .not_valid_after(now + YEARS)
        .sign(key, SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return (private + made.public_bytes(Encoding.PEM)).decode()
