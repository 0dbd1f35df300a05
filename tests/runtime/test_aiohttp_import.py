"""aiohttp loads the system's certificates late, and then trusts whom they name, and nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.certificates import OPENSSL, Certificates

CLIENT = """
import asyncio, ssl, sys
from actorserve.actors.runtime.aiohttp_import import import_aiohttp

whole = ssl.create_default_context, ssl.SSLContext.set_default_verify_paths
import_aiohttp()
assert whole == (ssl.create_default_context, ssl.SSLContext.set_default_verify_paths)
import aiohttp
from aiohttp import web
from aiohttp.connector import _SSL_CONTEXT_VERIFIED as verified

assert verified.cert_store_stats()["x509"] == 0
assert verified.verify_mode == ssl.CERT_REQUIRED and verified.check_hostname
context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
context.load_cert_chain(*sys.argv[1:3])


async def ask():
    app = web.Application()
    app.router.add_get("/", lambda request: web.Response(text="heard"))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as session, session.get(f"https://127.0.0.1:{port}/") as answer:
            return await answer.text()
    except aiohttp.ClientConnectorCertificateError:
        return "refused"
    finally:
        await runner.cleanup()


print(asyncio.run(ask()), verified.cert_store_stats()["x509"])
"""


@pytest.mark.skipif(OPENSSL is None, reason="openssl is not installed")
def test_who_imported_aiohttp_without_certificates_trusts_the_systems_and_nobody_else(tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    for trusted, said in ((made.authority, "heard 1"), (made.stranger, "refused 1")):
        system = {"SSL_CERT_FILE": str(trusted[0]), "SSL_CERT_DIR": str(tmp_path / "none")}
        command = [sys.executable, "-c", CLIENT, *map(str, made.server)]
        done = subprocess.run(command, env={**os.environ, **system}, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout.strip()) == (0, said), done.stderr
