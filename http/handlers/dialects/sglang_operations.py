"""What SGLang's operators tell a server, by its paths and bodies, and what its clients ask to be read out of a text."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web

from actorserve.actors.options.fields import canonical

from ...errors import bad_request
from ...generation.fields.unsupported import read
from ...generation.prompts import checked_tools, tool_schemas
from ...output.events import OutputParser, Turn
from ...output.parsers.registry import JSON_ARRAY, REASONING_PARSERS, STARTS_INSIDE, TOOL_PARSERS, make_parser
from ...settings import Settings
from ...sglang.schemas import MemoryRequest, ParseCallsRequest, PauseRequest, SeparateReasoningRequest
from ...transport.json_response import json_response
from ..operators.adapters import AdaptersApi
from ..operators.administration import PARTS
from ..operators.operations import ServerEngine

GRAPHS = "cuda_graph"  # has no memory of its own here
MOST_WAIT_S = 300  # until requests that run can be set aside


class SglangOperations:
    """Its handlers, by the names that the table of routes has for them."""

    def __init__(
        self,
        engine: ServerEngine,
        settings: Settings,
        adapters: AdaptersApi,
        read_body: Callable[[web.Request], Awaitable[bytes]],
    ) -> None:
        self._engine, self._settings, self._adapters, self._read_body = engine, settings, adapters, read_body

    async def pause(self, request: web.Request) -> web.Response:
        """POST /pause_generation: `retract` is computed anew later, and `in_place` goes on from where it is."""
        body = read(PauseRequest, await self._read_body(request) or b"{}")
        await self._engine.pause("abort" if body.mode == "abort" else "keep", body.mode == "retract")
        return json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def go_on(self, request: web.Request) -> web.Response:
        """POST /continue_generation."""
        await self._engine.resume()
        return json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def release_memory(self, request: web.Request) -> web.Response:
        """POST /release_memory_occupation: what runs goes on when the memory is there again."""
        if (parts := await self._parts(request)) and len(parts) < len(PARTS):
            raise bad_request(f"tags must name {' and '.join(PARTS)}, or none: they are given back together.", "tags")
        if parts:
            await self._engine.administration.sleep(1, "keep", False, MOST_WAIT_S)
        return json_response({"status": "sleeping" if self._engine.administration.is_sleeping() else "awake"})

    async def resume_memory(self, request: web.Request) -> web.Response:
        """POST /resume_memory_occupation."""
        if parts := await self._parts(request):
            await self._engine.administration.wake_up(parts)
        return json_response({"status": "sleeping" if self._engine.administration.is_sleeping() else "awake"})

    async def _parts(self, request: web.Request) -> list[str]:
        """That the body names; all, if it names none. Empty: graphs alone."""
        tags = read(MemoryRequest, await self._read_body(request) or b"{}").tags
        if wrong := next((tag for tag in tags or () if tag not in (*PARTS, GRAPHS)), None):
            raise bad_request(f"tags must be among {', '.join(PARTS)} and {GRAPHS}, not {wrong:.64}.", "tags")
        return [part for part in PARTS if not tags or part in tags]

    async def load_adapter(self, request: web.Request) -> web.Response:
        """POST /load_lora_adapter."""
        await self._adapters.load(request)
        return self._loaded()

    async def unload_adapter(self, request: web.Request) -> web.Response:
        """POST /unload_lora_adapter."""
        await self._adapters.unload(request)
        return self._loaded()

    def _loaded(self) -> web.Response:
        found = {one.name: one.path for one in self._settings.adapters.all()}
        return json_response({"success": True, "error_message": "", "loaded_adapters": found})

    async def parse_calls(self, request: web.Request) -> web.Response:
        """POST /parse_function_call."""
        body = read(ParseCallsRequest, await self._read_body(request))
        name = _known("tool_call_parser", body.tool_call_parser or self._settings.tool_parser, TOOL_PARSERS)
        turn = _turn(
            make_parser(reasoning=None, tools=name, schemas=tool_schemas(checked_tools(body.tools))), body.text
        )
        calls = [
            {"tool_index": index, "name": call.name, "parameters": call.arguments}
            for index, call in enumerate(turn.calls)
        ]
        return json_response({"normal_text": turn.content, "calls": calls})

    async def separate_reasoning(self, request: web.Request) -> web.Response:
        """POST /separate_reasoning."""
        body = read(SeparateReasoningRequest, await self._read_body(request))
        name = _known("reasoning_parser", body.reasoning_parser or self._settings.reasoning_parser, REASONING_PARSERS)
        parser = make_parser(reasoning=name, tools=None, schemas={}, opened=name in STARTS_INSIDE)
        turn = _turn(parser, body.text)
        return json_response({"reasoning_text": turn.reasoning, "text": turn.content})


def _known(field: str, given: str | None, names: Iterable[str]) -> str:
    """The parser's name here, whatever SGLang calls it; 400 for one that is none, or where none is named."""
    known = sorted(set(names) - {JSON_ARRAY})
    name = str(canonical(field, given))
    if name not in known:
        wrong = f"not {given:.64}" if given else "since none was found in the model's chat template"
        raise bad_request(f"{field} must be one of {', '.join(known)}, {wrong}.", field)
    return name


def _turn(parser: OutputParser, text: str) -> Turn:
    """A whole text, read."""
    turn = Turn()
    turn.add(parser.feed(text))
    turn.add(parser.finish())
    return turn
