"""Certificates for tests: an authority, and what it signs. Made by the openssl command, with keys that nobody keeps."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

OPENSSL = shutil.which("openssl")
CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")


class Certificates:
    """What was signed by whom."""

    def __init__(self, folder: Path) -> None:
        self.authority = make_authority(folder, "authority")
        self.server = make_certificate(folder, "server", self.authority)
        self.client = make_certificate(folder, "client", self.authority)
        self.stranger = make_authority(folder, "stranger")

    def options(self) -> tuple[str, ...]:
        return "--ssl-certfile", str(self.server[0]), "--ssl-keyfile", str(self.server[1])

    def context(self, certificate: tuple[Path, Path] | None = None) -> ssl.SSLContext:
        """A client's."""
        context = ssl.create_default_context(cafile=str(self.authority[0]))
        if certificate is not None:
            context.load_cert_chain(*certificate)
        return context


def make_authority(folder: Path, name: str) -> tuple[Path, Path]:
    """(certificate, key) of an authority of its own."""
    return _make(folder, name, "-addext", "keyUsage=critical,keyCertSign")


def make_certificate(folder: Path, name: str, authority: tuple[Path, Path]) -> tuple[Path, Path]:
    """(certificate, key) for this machine, signed by the authority."""
    names = ("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE")
    return _make(folder, name, *names, "-CA", str(authority[0]), "-CAkey", str(authority[1]))


def encrypt_key(key: Path, password: str) -> Path:
    """The key, to be read with a password only."""
    locked = key.with_suffix(".locked")
    _run("ec", "-in", str(key), "-aes256", "-passout", f"pass:{password}", "-out", str(locked))
    return locked


def _make(folder: Path, name: str, *more: str) -> tuple[Path, Path]:
    certificate, key = folder / f"{name}.pem", folder / f"{name}.key"
    _run("req", "-x509", *CURVE, "-subj", f"/CN={name}", "-keyout", str(key), "-out", str(certificate), *more)
    return certificate, key


def _run(*arguments: str) -> None:
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True, text=True)
