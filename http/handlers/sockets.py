"""What WebSockets have in common: who may open one, and whose key it goes on with."""

from __future__ import annotations

from aiohttp import hdrs, web

from actorserve.actors.accounts.account import Account

from ..errors import ApiError, bad_request
from ..middleware.context import ACCOUNT
from ..middleware.edge import allows_origin
from ..settings import Settings, printable

ENDING = "The server is about to end. Connect again."


def check_upgrade(request: web.Request, settings: Settings) -> None:
    """400 for what is no WebSocket, 403 for other sites' pages: browsers let any of them open one."""
    if request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
        raise bad_request("This path is a WebSocket: connect to it by ws:// or wss://.")
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and not allows_origin(settings.allowed_origins, origin):
        raise ApiError(403, f"Pages of {printable(origin)} are not among the --allowed-origins.")


def account_of(request: web.Request, settings: Settings) -> Account | None:
    """Whose key it is, as long as that is one."""
    if ACCOUNT not in request:
        return None
    own = request[ACCOUNT]
    account = settings.accounts.named(own.name)
    if account is None or account.digest != own.digest:
        raise ApiError(401, "The API key is not valid any more.", code="invalid_api_key")
    return account
