"""The response object: of one that has just begun, of one that has ended, and of one that failed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from actorserve.actors.protocol.messages import TokenLogprobs

from ...errors import bad_request
from ...generation.choice import Choice
from ...output.events import Piece
from .items import PLAIN, OutputItems, ResponseOptions
from .requests import echo, wanted
from .schemas import Object, ResponsesRequest
from .tools.custom import customs_of
from .tools.namespaces import names_of

INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
CODES = {400: "invalid_prompt", 422: "invalid_prompt", 429: "rate_limit_exceeded"}


@dataclass
class RawMessages:
    """What the model read and wrote, as text and as tokens: vLLM's `input_messages` and `output_messages`."""

    prompt_text: Callable[[], str]  # known once something of the answer has come
    prompt_ids: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)

    def add(self, choice: Choice) -> None:
        """What is about to be taken of it, also what its client has from an earlier connection."""
        self.prompt_ids = choice.prompt_ids
        self.texts += choice.text
        self.ids += choice.ids

    def fields(self) -> Object:
        """Those of the response."""
        said = _raw_message("".join(self.texts), self.ids)
        return {"input_messages": [_raw_message(self.prompt_text(), self.prompt_ids)], "output_messages": [said]}


def _raw_message(text: str, ids: list[int]) -> Object:
    return {"type": "raw_message_tokens", "message": text, "tokens": ids}


def check_raw(body: ResponsesRequest, elsewhere: bool) -> None:
    """`elsewhere`: it is more than one answer, or one that another request or connection is told."""
    if body.enable_response_messages and elsewhere:
        name = "enable_response_messages"
        text = "is not for a WebSocket, a compaction, nor with background, context_management or tools of MCP servers."
        raise bad_request(f"{name} {text}", name)


@dataclass(frozen=True)
class ResponseAnswer:
    """What all states of one response have in common."""

    key: str  # of which all ids are made
    model: str
    created: int  # Unix seconds
    echo: Object  # what it says again of the request (requests.echo)
    wants: ResponseOptions = PLAIN
    raw: RawMessages | None = None  # where they are wanted

    @property
    def id(self) -> str:
        return f"resp_{self.key}"

    def response(self, status: str, output: list[Object] | None = None, **fields: object) -> Object:
        """The response object."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": None,
            "status": status,
            "model": self.model,
            "output": output or [],
            "error": None,
            "incomplete_details": None,
            "usage": None,
            **self.echo,
            **fields,
        }

    def whole(
        self,
        pieces: Iterable[Piece],
        finish_reason: str,
        usage: Object,
        completed_at: int,
        tokens: Iterable[TokenLogprobs] = (),
    ) -> Object:
        """The response to a request that has ended. `usage` is the chat answer's, `tokens` those with logprobs."""
        return self.ended(self.output(pieces, tokens), finish_reason, usage, completed_at)

    def output(self, pieces: Iterable[Piece] = (), tokens: Iterable[TokenLogprobs] = ()) -> OutputItems:
        """What the model said, as the client knows its tools."""
        tools = self.echo.get("tools", ())
        customs = customs_of(tools, self.echo.get("tool_choice"))
        summarised = bool(self.echo.get("reasoning", {}).get("summary"))
        return OutputItems(self.key, pieces, tokens, names_of(tools), customs, summarised, self.wants)

    def ended(self, output: OutputItems, finish_reason: str, usage: Object, completed_at: int) -> Object:
        """The same, of items that were put together before."""
        status = status_of(finish_reason)
        reason = INCOMPLETE.get(finish_reason)
        return self.response(
            status,
            output.objects(item_status(finish_reason)),
            completed_at=completed_at if status == "completed" else None,
            incomplete_details={"reason": reason} if reason else None,
            usage=usage_of(usage),
            **({} if self.raw is None else self.raw.fields()),
        )

    def failed(self, output: OutputItems, message: str, status: int) -> Object:
        """The response to a request that failed with this HTTP status."""
        error = {"code": CODES.get(status, "server_error"), "message": message}
        return self.response("failed", output.objects("incomplete"), error=error)


def answer_to(
    body: ResponsesRequest, key: str, model: str, created: int, defaults: Mapping[str, float]
) -> ResponseAnswer:
    """The response to a request; `defaults` are the sampling parameters' own."""
    return ResponseAnswer(key, model, created, echo(body, defaults), wanted(body))


def status_of(finish_reason: str) -> str:
    """`abort` is somebody's order that it end."""
    if finish_reason == "abort":
        return "cancelled"
    return "incomplete" if finish_reason in INCOMPLETE else "completed"


def item_status(finish_reason: str) -> str:
    """The status of the item that was open at the end: a call that was cut is not to be run."""
    return "completed" if status_of(finish_reason) == "completed" else "incomplete"


def usage_of(usage: Object) -> Object:
    """A chat answer's usage under this API's names."""
    prompt = usage.get("prompt_tokens_details") or {}
    completion = usage.get("completion_tokens_details") or {}
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": prompt.get("cached_tokens", 0), "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": completion.get("reasoning_tokens", 0)},
        "total_tokens": usage["total_tokens"],
    }
