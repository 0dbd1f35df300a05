"""Looks at each replica again and again, on a connection of its own each time, so that no frozen one is asked twice.

Refused: nobody listens there. It is sent nothing, but streams that it may still end, in a drain, are left to it. Silent
for the detection limit, or not to be reached for so long: it is frozen, or cut off, and what it was doing goes on
elsewhere. One that fails a request is looked at without delay: until it is found ready again, nobody who has seen it
fail asks it once more.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import time

import aiohttp
import msgspec

from .fleet import Fleet, within
from .metrics import RouterMetrics
from .replica import Replica
from .settings import RouteSettings
from .upstream import is_own

MODELS_S = 10.0  # between two looks at the names of a replica's models
SOONEST = 0.1  # of the interval is left between two looks, however many requests fail
MOST_ANSWER = 1 << 20  # bytes of an answer to a probe
NO_WAY = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT})
log = logging.getLogger("route")


class Prober:
    """One loop a replica."""

    def __init__(
        self, fleet: Fleet, settings: RouteSettings, session: aiohttp.ClientSession, metrics: RouterMetrics
    ) -> None:
        """`session` keeps no connection."""
        self._fleet, self._settings, self._session, self._metrics = fleet, settings, session, metrics
        key = settings.replica_api_key or (settings.api_keys[0] if settings.api_keys else None)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def run(self) -> None:
        """Until it is cancelled."""
        watched = set[Replica]()
        async with asyncio.TaskGroup() as group:
            while True:
                self._fleet.came.clear()
                for replica in self._fleet.replicas:
                    if replica not in watched and not replica.is_gone:
                        watched.add(replica)
                        task = group.create_task(self._watch(replica))
                        task.add_done_callback(lambda _, replica=replica: watched.discard(replica))  # type: ignore[misc]
                await self._fleet.came.wait()

    async def _watch(self, replica: Replica) -> None:
        heard, models_at = time.monotonic(), 0.0
        while not replica.is_gone or replica.in_flight:
            began = time.monotonic()
            replica.doubted.clear()
            try:
                async with asyncio.timeout(self._settings.detection_limit - self._settings.probe_interval / 2):
                    status, _ = await self._get(replica, "/ready")
                    self._told(replica, status, began)
                    heard = time.monotonic()
                    if status == 200 and heard >= models_at:
                        replica.models, models_at = await self._models(replica), heard + MODELS_S
                    if status == 200:
                        replica.told_load = await self._load(replica)
            except TimeoutError:
                self._silent(replica, time.monotonic() - heard)
            except (aiohttp.ClientError, OSError, ValueError, msgspec.MsgspecError, RecursionError) as error:
                log.debug("%s: %s", replica.address, error)
                if is_own(error):  # nobody was looked at: no silence is counted
                    heard = time.monotonic()
                else:
                    self._refused(replica, _refusal(error))
                    models_at = 0.0
                if _is_cut_off(error) and self._is_over(time.monotonic() - heard):
                    self._leave(replica)
            await asyncio.sleep(SOONEST * self._settings.probe_interval)
            await within(replica.doubted, began + self._settings.probe_interval - time.monotonic())
        self._metrics.gone(replica)

    def _told(self, replica: Replica, status: int, began: float) -> None:
        """By a look that began then."""
        was_proved = replica.is_proved
        if status == 200:
            replica.heard_at = began
        self._set(replica, status == 200, "ready" if status == 200 else f"not ready ({status})")
        if replica.is_proved and not was_proved:
            self._fleet.changed.set()

    def _refused(self, replica: Replica, state: str) -> None:
        if not replica.is_up and state != replica.state:  # else _set tells it
            log.warning("%s: %s", replica.address, state)
        self._set(replica, False, state)

    def _silent(self, replica: Replica, seconds: float) -> None:
        if self._is_over(seconds):  # else it has said that it is ready, and was slow to say the rest
            self._set(replica, False, f"silent for {seconds:.1f} s")
            self._leave(replica)

    def _is_over(self, seconds: float) -> bool:
        """Has it said nothing for too long?"""
        return seconds >= self._settings.detection_limit - self._settings.probe_interval

    def _leave(self, replica: Replica) -> None:
        if (count := replica.leave()) > 0:
            log.warning("%s is silent: %d requests go on elsewhere", replica.address, count)

    def _set(self, replica: Replica, up: bool, state: str) -> None:
        if up != replica.is_up:
            log.log(logging.INFO if up else logging.WARNING, "%s: %s", replica.address, state)
            self._metrics.up.labels(replica.address).set(up)
        if up and not replica.is_up:
            self._fleet.forget(replica)
            self._fleet.changed.set()
        replica.is_up, replica.state = up, state

    async def _get(self, replica: Replica, path: str) -> tuple[int, bytes]:
        async with self._session.get(replica.address + path, headers=self._headers) as response:
            body = await response.content.read(MOST_ANSWER)
            while not response.content.at_eof() and len(body) < MOST_ANSWER:
                body += await response.content.read(MOST_ANSWER - len(body))
            return response.status, body

    async def _models(self, replica: Replica) -> frozenset[str] | None:
        status, body = await self._get(replica, "/v1/models")
        if status != 200:
            return None  # a key is asked for that we have not: each model may be there
        return _names(body)

    async def _load(self, replica: Replica) -> int:
        status, body = await self._get(replica, "/load")
        return _number(body) if status == 200 else 0


def _is_cut_off(error: Exception) -> bool:
    """Does no way lead to its machine? Then nothing comes of what runs there, which no connection tells."""
    return isinstance(error, OSError) and error.errno in NO_WAY


def _refusal(error: Exception) -> str:
    """A state that says what to look at: a certificate is no closed port."""
    if _is_cut_off(error):
        return "not reachable"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        cause: Exception = error.certificate_error
        return f"refused: its certificate: {getattr(cause, 'verify_message', '') or cause}"
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"refused: no TLS: {error.os_error.strerror or error.os_error}"
    return "refused"


def _names(body: bytes) -> frozenset[str]:
    found = msgspec.json.decode(body, type=dict[str, object]).get("data")
    cards = found if isinstance(found, list) else []
    return frozenset(str(card["id"]) for card in cards if isinstance(card, dict) and "id" in card)


def _number(body: bytes) -> int:
    found = msgspec.json.decode(body, type=dict[str, object]).get("server_load")
    return found if isinstance(found, int) else 0
