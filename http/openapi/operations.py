"""Answers of paths by which a running server is watched and changed."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .answers import Said


class Health(Said):
    status: Literal["ok"]


class Ready(Said):
    status: Literal["ready", "degraded"]
    waiting_for: list[str] | msgspec.UnsetType = msgspec.UNSET


class NotReady(Said):
    status: Literal["not ready"]
    waiting_for: list[str]


class Paused(Said):
    status: Literal["paused", "resumed"]


class IsPaused(Said):
    is_paused: bool


class WorldSize(Said):
    world_size: int


class ProfileWritten(Said):
    path: str
    events: int
    missing: dict[str, str]
    cut: list[str]


class Results(Said):
    results: list[Any]


class WeightsUpdated(Said):
    success: bool
    message: str


class Resting(Said):
    status: Literal["sleeping", "awake"]


class Slept(Said):
    status: Literal["sleeping"]
    level: int
    elapsed_ms: float


class Woken(Resting):
    tags_woken: list[str] | None
    elapsed_ms: float


class IsSleeping(Said):
    is_sleeping: bool


class Aborted(Said):
    aborted: int


class Engines(Said):
    engines: int
    max_engines: int
    scaling: bool


class Scaled(Said):
    message: str


class IsScaling(Said):
    is_scaling_elastic_ep: bool


class Version(Said):
    version: str


class Load(Said):
    server_load: int


class KeyUsage(Said):
    object: Literal["usage"]
    name: str
    requests: int
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    running: int
    reserved_tokens: int
    requests_last_minute: int
    tokens_last_minute: int
    refused: dict[str, int]
    limits: dict[str, int]


class KeyUsageList(Said):
    object: Literal["list"]
    data: list[KeyUsage]


class ClientSecret(Said):
    """Of /v1/realtime: `value` is the key, `session` what begins with it."""

    value: str
    expires_at: int
    session: dict[str, Any]


class ClientSecretValue(Said):
    value: str
    expires_at: int


class RealtimeSession(msgspec.Struct):
    """A session, of which there is more, with the key that begins it."""

    id: str
    client_secret: ClientSecretValue
