"""What frontends speak TLS with: made of the files that options name, or refused with the option's name.

Leaf module: options are checked with it before anything starts, and each frontend makes its own of the same files.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from ..config import Config, ConfigError

OF_SERVER = ("--ssl-certfile", "--ssl-keyfile")


def make_context(config: Config, protocols: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext | None:
    """TLS 1.2 and newer, and within it the first of `protocols` that a client knows; None if no certificate is named.
    ConfigError if the files will not do.
    """
    certificate, key, authorities = config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs
    if certificate is None:
        for option, given in (("--ssl-keyfile", key), ("--ssl-ca-certs", authorities)):
            if given is not None:
                raise ConfigError(f"{option}: there is no TLS without --ssl-certfile")
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.set_alpn_protocols(list(protocols))
    load_certificate(context, certificate, key)
    if authorities is not None:
        _check_certificates("--ssl-ca-certs", authorities)
        context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_certificate(
    context: ssl.SSLContext, certificate: str, key: str | None, options: tuple[str, str] = OF_SERVER
) -> None:
    """What the options name, for `context`; the key may be in the certificate's file."""
    _check_certificates(options[0], certificate)
    _check_readable(options[1], key or certificate)
    try:
        context.load_cert_chain(certificate, key, password="")  # with none OpenSSL would ask at the terminal
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise ConfigError(f"{options[1]}: {key or certificate} is not the key of {certificate}") from None
        text = "holds no key that can be read without a password"
        raise ConfigError(f"{options[1]}: {key or certificate} {text}") from None


def _check_certificates(option: str, path: str) -> None:
    _check_readable(option, path)
    try:
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_verify_locations(path)
    except ssl.SSLError:
        raise ConfigError(f"{option}: {path} holds no certificate") from None


def _check_readable(option: str, path: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be read: {error.strerror}") from None
