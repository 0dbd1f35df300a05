"""From a checked body to a job and the form of its answer: all that differs between chat and completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from actorserve.actors.protocol.messages import Prompt, TextPrompt
from actorserve.actors.protocol.request import Think

from ..errors import ApiError, bad_request
from ..openai.schemas import ChatRequest, CompletionRequest, GenerationFields, NamedTool
from ..output.answer import AnswerOptions
from ..output.events import FirstCall, OutputParser
from ..output.parsers.calls import ShortIds
from ..output.parsers.registry import JSON_ARRAY, NEEDS_SPECIAL, PLUGIN, STARTS_INSIDE, THINK_MARKERS, make_parser
from ..settings import Settings
from .adapters import adapter_of
from .fields.decoding import decode
from .fields.kv_transfer import hands_on
from .fields.sampling import check_fields, max_tokens_of, parameters
from .prompts import chat_prompt, check_template, completion_prompts, final_text, tools_of
from .structured_output import constraint_of

Request = TypeVar("Request", bound=GenerationFields)
MAX_SEQUENCES = 1024  # prompts times choices of one request


@dataclass(frozen=True)
class PreparedRequest:
    """A request as the engine takes it."""

    prompts: list[Prompt]
    params: list[bytes]
    rendering: dict[str, Any]
    wants: AnswerOptions
    make_parser: Callable[[bool, str], OutputParser] | None = None
    wants_ids: bool = False
    echoed: list[Prompt] = field(default_factory=list)  # prompts whose text the answer begins with


def ask_chat(body: ChatRequest, settings: Settings, request_id: str, client: str = "") -> PreparedRequest:
    """A chat request, checked. `client` is the key's name (idempotency_keys.client_of)."""
    check_fields(body, settings.vocab_size, settings.shares_kv)
    body = _salted(body, settings, client)
    check_template(body, settings.trust_request_chat_template)
    _check_texts(settings, {"messages": True})
    reasoning, tools = settings.reasoning_parser, _tool_parser(body, settings)
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    budget = None if body.thinking_token_budget == -1 else body.thinking_token_budget
    if budget is not None and reasoning not in THINK_MARKERS:
        text = "thinking_token_budget: how this model marks its thinking is not known; see --reasoning-parser."
        raise bad_request(text, "thinking_token_budget")
    think = None
    if reasoning in THINK_MARKERS:
        think = Think(*THINK_MARKERS[reasoning], always=reasoning in STARTS_INSIDE)
    schemas = {tool.function.name: _schema(tool.function.parameters) for tool in tools_of(body)}

    def parser(opened: bool, key: str) -> OutputParser:
        made = make_parser(reasoning=reasoning, tools=tools, schemas=schemas, opened=opened, named=named)
        if settings.tool_parser == "mistral" and (tools or named):
            made = ShortIds(made, key)
        return FirstCall(made) if body.parallel_tool_calls is False else made

    parsed = reasoning is not None or tools is not None or named is not None
    keep_special = bool({reasoning, tools} & (NEEDS_SPECIAL | {PLUGIN}))
    adapter = adapter_of(body.model, settings)
    params = parameters(body, settings.sampling_defaults, request_id, think, keep_special, adapter)
    options, continuous = body.stream_options, _continuous(body)
    wants = AnswerOptions(
        usage=bool(options and options.include_usage) or continuous,
        continuous_usage=continuous,
        logprobs=bool(body.logprobs),
        as_ids=bool(body.return_tokens_as_token_ids),
        ids=bool(body.return_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
        reasoning=body.include_reasoning is not False,
        before=final_text(body) if body.echo else "",
        forced=named is not None,
        role=settings.response_role,
        metrics=bool(body.return_metrics),
        hands_on=hands_on(body.kv_transfer_params),
        prompt_text=bool(body.return_prompt_text),
    )
    needs_ids = wants.ids or wants.prompt_text
    rendering = _rendering(body, settings, adapter) | {"think": think, "thinking_budget": budget}
    prompts: list[Prompt] = [chat_prompt(body, settings)]
    return PreparedRequest(prompts, params, rendering, wants, parser if parsed else None, needs_ids)


def ask_chats(body: ChatRequest, settings: Settings, request_id: str, client: str = "") -> PreparedRequest:
    """Several conversations in the place of one: each is a prompt, and all else holds for all of them."""
    conversations = decode(list[msgspec.Raw], bytes(body.messages), "messages")
    if not conversations:
        raise bad_request("messages must not be empty.", "messages")
    if len(conversations) * (body.n or 1) > MAX_SEQUENCES:
        raise bad_request(f"At most {MAX_SEQUENCES} conversations times n are taken in one request.", "messages")
    asked = []
    for index, messages in enumerate(conversations):
        try:
            one = msgspec.structs.replace(body, messages=messages)
            asked.append(ask_chat(one, settings, request_id, client))
        except ApiError as error:
            if error.param is None or not error.param.startswith("messages"):
                raise
            path = f"messages[{index}]"
            text = error.message.replace("messages", path, 1)
            raise ApiError(error.status, text, path + error.param.removeprefix("messages"), error.code) from None
    return replace(asked[0], prompts=[prompt for one in asked for prompt in one.prompts])


def _continuous(body: GenerationFields) -> bool:
    """Is usage told in each event of the stream? Who wants none (include_usage: false) is told none at all."""
    options = body.stream_options
    return bool(options and options.continuous_usage_stats and options.include_usage is not False)


def _tool_parser(body: ChatRequest, settings: Settings) -> str | None:
    """The parser that finds calls in the answer; None where there are no tools to call."""
    if not body.tools or body.tool_choice == "none" or isinstance(body.tool_choice, NamedTool):
        return None
    if body.tool_choice == "required":
        return JSON_ARRAY
    if settings.tool_parser is None:
        text = "tools: how this model writes tool calls is not known; start the server with --tool-call-parser."
        raise bad_request(text, "tools")
    return settings.tool_parser


def _schema(parameters: dict[str, Any] | bool | None) -> dict[str, Any]:
    return parameters if isinstance(parameters, dict) else {}


def _check_texts(settings: Settings, texts: dict[str, Any]) -> None:
    """400 if there is no tokenizer, for the first of the fields that needs one."""
    if settings.has_tokenizer:
        return
    if field_ := next((name for name, value in texts.items() if value), None):
        text = f"{field_} needs texts, and the server has no tokenizer (--skip-tokenizer-init): prompt takes token ids."
        raise bad_request(text, field_)


def _rendering(body: GenerationFields, settings: Settings, adapter: int) -> dict[str, Any]:
    """The fields of its Render that all requests have."""
    constraint, field_ = constraint_of(body, settings.tool_parser)
    _check_texts(settings, {"stop": body.stop, "bad_words": body.bad_words, field_: constraint})
    limit, cap = max_tokens_of(body), settings.sampling_defaults.get("max_new_tokens")
    return {
        "cap": None if cap is None else max(1, int(cap)),
        "max_tokens": None if limit is None else max(1, limit),
        "truncate_prompt_tokens": body.truncate_prompt_tokens,
        "keep_first": body.truncation_side == "right",
        "cache_salt": body.cache_salt or "",
        "adapter": adapter,
        "bad_words": body.bad_words or [],
        "constraint": constraint,
        "constrained_by": field_,
    }


def _salted(body: Request, settings: Settings, client: str) -> Request:
    """With a salt that no other client's request has, if so wanted; its own one goes on keeping apart what it does."""
    if not settings.prefix_cache_per_client:
        return body
    return msgspec.structs.replace(body, cache_salt=f"{client} {body.cache_salt or ''}")


def _check_encoded(body: CompletionRequest) -> None:
    """400 for what there is not where an encoder reads the prompt: no text follows its tokens, which have no logits."""
    for name, wanted in (
        ("prompt_logprobs", body.prompt_logprobs is not None),
        ("echo", bool(body.echo)),
        ("use_beam_search", bool(body.use_beam_search)),
        ("max_tokens", body.max_tokens == 0),
    ):
        if wanted:
            raise bad_request(f"{name}: not with this model, whose prompt is read by an encoder.", name)


def ask_completion(body: CompletionRequest, settings: Settings, request_id: str, client: str = "") -> PreparedRequest:
    """A completion request, checked. `client` is the key's name (idempotency_keys.client_of)."""
    check_fields(body, settings.vocab_size, settings.shares_kv)
    body = _salted(body, settings, client)
    if settings.encoder is not None:
        _check_encoded(body)
    adapter = adapter_of(body.model, settings)
    params = parameters(body, settings.sampling_defaults, request_id, adapter=adapter)
    prompts = completion_prompts(body, settings.special_tokens)
    _check_texts(settings, {"prompt": any(isinstance(prompt, TextPrompt) for prompt in prompts), "echo": body.echo})
    if len(prompts) * len(params) > MAX_SEQUENCES:
        raise bad_request(f"At most {MAX_SEQUENCES} prompts times n are taken in one request.", "prompt")
    options, continuous = body.stream_options, _continuous(body)
    wants = AnswerOptions(
        usage=bool(options and options.include_usage) or continuous,
        continuous_usage=continuous,
        logprobs=body.logprobs is not None and body.logprobs is not False,
        as_ids=bool(body.return_tokens_as_token_ids) or not settings.has_tokenizer,
        ids=bool(body.return_token_ids) or not settings.has_tokenizer,
        prompt_logprobs=body.prompt_logprobs is not None,
        echo=[] if body.echo else None,
        nothing=body.max_tokens == 0,
        metrics=bool(body.return_metrics),
        hands_on=hands_on(body.kv_transfer_params),
        prompt_text=bool(body.return_prompt_text),
        best_of=(body.n or 1) if len(params) > (body.n or 1) else 0,
    )
    if wants.nothing and body.min_tokens:
        raise ApiError(400, "min_tokens must be 0 with max_tokens 0.", "min_tokens")
    needs_ids = wants.ids or wants.prompt_text or (wants.logprobs and wants.echo is not None)
    return PreparedRequest(
        prompts, params, _rendering(body, settings, adapter), wants, None, needs_ids, prompts if body.echo else []
    )
