"""Requests with a sound: the fields of their forms."""

from __future__ import annotations

import base64
import json
from typing import Any

import aiohttp
import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from actorserve.actors.batch.forms import FormError, fields_of, form_of, takes_form
from actorserve.actors.files.lines import Request

SOUND = b"RIFF some bytes"
URL = f"data:audio/wav;base64,{base64.b64encode(SOUND).decode()}"
PATH = "/v1/audio/transcriptions"


def request(url: str = PATH, **body: Any) -> Request:
    return msgspec.json.decode(json.dumps({"custom_id": "a", "url": url, "body": body}), type=Request)


@pytest.mark.parametrize(
    ("path", "taken"),
    [(PATH, True), ("/v1/audio/translations?x=1", True), ("/audio/translations", True), ("/v1/embeddings", False)],
)
def test_which_paths_take_forms(path: str, taken: bool) -> None:
    assert takes_form(request(path)) is taken


def test_fields_are_those_of_the_line() -> None:
    body: dict[str, Any] = {
        "model": "ears",
        "temperature": 0.5,
        "stream": False,
        "user": None,
        "prompt": "null",
        "timestamp_granularities": ["word", None],
    }
    assert fields_of(request(file_url=URL, **body)) == (
        URL,
        [
            *(("model", "ears"), ("temperature", "0.5"), ("stream", "false"), ("prompt", "null")),
            ("timestamp_granularities[]", "word"),
        ],
    )


async def test_a_form_has_the_sound_as_a_file() -> None:
    received: dict[str, Any] = {}

    async def take(asked: web.Request) -> web.Response:
        for name, value in (await asked.post()).items():
            received[name] = value.file.read() if isinstance(value, web.FileField) else value
        return web.Response()

    app = web.Application()
    app.router.add_post(PATH, take)
    async with TestServer(app) as server:
        async with (
            aiohttp.ClientSession() as session,
            session.post(server.make_url(PATH), data=form_of(SOUND, [("model", "ears")])) as answer,
        ):
            assert answer.status == 200
    assert received == {"file": SOUND, "model": "ears"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "file_url must be an address"),
        ({"file_url": 1}, "file_url must be an address"),
        ({"file_url": URL, "file": "x"}, "file cannot stand in a line"),
    ],
)
def test_what_cannot_be_is_told(body: dict[str, Any], said: str) -> None:
    with pytest.raises(FormError, match=said):
        fields_of(request(**body))


def test_a_value_that_is_no_text_is_told_by_its_name() -> None:
    line = b'{"custom_id": "a", "url": "/v1/audio/translations", "body": {"prompt": "\xff"}}'
    with pytest.raises(FormError, match=r"^prompt: .*utf-8"):
        fields_of(msgspec.json.decode(line, type=Request))
