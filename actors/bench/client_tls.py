"""What a client of ours shows a server over TLS, and whose certificate it takes: of bench, run, chat, run-batch."""

from __future__ import annotations

import argparse
import http.client
import os
import ssl
from functools import cache
from typing import NamedTuple

from ..options.config import Config, ConfigError

CERTIFICATE, KEY = "--client-certfile", "--client-keyfile"
ALERTS = ("CERTIFICATE_REQUIRED", "UNKNOWN_CA", "BAD_CERTIFICATE", "CERTIFICATE_UNKNOWN", "HANDSHAKE_FAILURE")
WANTED = f"the server wants to see a certificate of its authority (--ssl-ca-certs): {CERTIFICATE} names it"
PERHAPS_WANTED = (
    f"connections are closed without an answer; if the server wants to see a certificate, {CERTIFICATE} names it"
)


class ClientTls(NamedTuple):
    """`own`: the server was started here, so that no proxy stands before it, and no authority that this machine knows
    need have signed its certificate.
    """

    own: bool = False
    certificate: str | None = None
    key: str | None = None  # it may be in the certificate's file

    def context(self) -> ssl.SSLContext:
        """ConfigError if the files will not do."""
        return _context(self)


OWN = ClientTls(own=True)


def add_client_certificate(group: argparse._ActionsContainer) -> None:
    """The options of a client."""
    text = "a PEM file with the certificate to show a server that wants to see one (--ssl-ca-certs)"
    group.add_argument(CERTIFICATE, metavar="FILE", help=text)
    group.add_argument(KEY, metavar="FILE", help="with its key, if that is not in the same file")


def client_tls(arguments: argparse.Namespace, own: bool) -> ClientTls:
    """What these options say; ConfigError if the files will not do."""
    files = (given and os.path.expanduser(given) for given in (arguments.client_certfile, arguments.client_keyfile))
    tls = ClientTls(own, *files)
    if tls.certificate is not None:
        tls.context()
    elif tls.key is not None:
        raise ConfigError(f"{KEY}: there is no certificate without {CERTIFICATE}")
    return tls


def own_tls(arguments: argparse.Namespace, config: Config) -> ClientTls:
    """The same for a server that is started with `config`; ConfigError if it would let nobody in."""
    tls = client_tls(arguments, own=True)
    if config.ssl_ca_certs is not None and tls.certificate is None:
        text = "the server will let nobody in without a certificate of these authorities"
        raise ConfigError(f"--ssl-ca-certs: {text}: {CERTIFICATE} names one")
    return tls


def wants_certificate(error: BaseException) -> bool:
    """Does a server say with this that it does not take who shows no certificate, or a wrong one?"""
    reason = getattr(error, "reason", None)
    if isinstance(reason, BaseException):
        return wants_certificate(reason)
    return isinstance(error, ssl.SSLError) and str(reason).endswith(tuple(f"ALERT_{alert}" for alert in ALERTS))


def may_want_certificate(error: BaseException, url: str) -> bool:
    """Does a server that speaks TLS close the connection without a word, as asyncio does where one is missing?"""
    reason = getattr(error, "reason", error)
    return url.startswith("https:") and isinstance(reason, http.client.RemoteDisconnected | ConnectionResetError)


@cache
def _context(tls: ClientTls) -> ssl.SSLContext:
    from ..options.serving.tls import load_certificate

    context = ssl.create_default_context()
    if tls.own:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.certificate is not None:
        load_certificate(context, tls.certificate, tls.key, (CERTIFICATE, KEY))
    return context
