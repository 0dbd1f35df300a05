"""From a checked body to a job and the form of its answer: all that differs between chat and completions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from actorserve.actors.protocol.request import Think
from actorserve.actors.protocol.topics.prompts import Prompt, TextPrompt

from ..errors import ApiError, bad_request
from ..openai.functions import renamed, with_tools
from ..openai.mistral import as_openai, body_of
from ..openai.schemas import ChatRequest, CompletionRequest, GenerationFields, NamedTool
from ..openai.thinking import BUDGET, budget_field
from ..output.answer import AnswerOptions
from ..output.events import FirstCall, JoinedCalls, OutputParser
from ..output.parsers.calls import ShortIds
from ..output.parsers.markup import TO_ALL
from ..output.parsers.registry import (
    HARMONY_TOOLS,
    JSON_ARRAY,
    NEEDS_SPECIAL,
    PLUGIN,
    STARTS_INSIDE,
    THINK_MARKERS,
    make_parser,
)
from ..settings import Settings
from .adapters import adapter_for, adapter_of, check_alike
from .fields.decoding import decode
from .fields.kv_transfer import hands_on, peer_of
from .fields.plugins import plugin_names, plugin_request
from .fields.ranges import check_cut
from .fields.sampling import check_device, check_fields, max_tokens_of, parameters
from .infill import infill_ends, infill_tokens
from .job import Job
from .prompts import (
    chat_prompt,
    check_template,
    completion_prompts,
    final_text,
    tool_schemas,
    tools_of,
    with_allowed_tools,
)
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
    plugins: list[str] = field(default_factory=list)  # names of logits processors that may change its logits
    tells_all: bool = False  # as a Job has it
    lost: ApiError | None = None  # what its prompts are to say is gone: what was begun is read, and nothing is begun

    def new_job(self) -> Job:
        """One that has not begun."""
        job = Job(self.prompts, self.params, self.rendering, self.make_parser, self.wants_ids)
        job.plugins, job.lost, job.tells_all = self.plugins, self.lost, self.tells_all
        return job


def ask_chat(body: ChatRequest, settings: Settings, request_id: str, client: str = "") -> PreparedRequest:
    """A chat request, checked. `client` is the key's name (idempotency_keys.client_of)."""
    body = as_openai(body)
    check_fields(body, settings.vocab_size, settings.kv, settings.most_logprobs)
    try:
        return _ask_chat(with_tools(body), settings, request_id, client)
    except ApiError as error:
        raise renamed(error) if body.functions else error from None


def _ask_chat(body: ChatRequest, settings: Settings, request_id: str, client: str) -> PreparedRequest:
    check_device(body, settings)
    body = with_allowed_tools(_salted(body, settings, client))
    check_template(body, settings.trust_request_chat_template)
    _check_texts(settings, {"messages": True})
    reasoning, tools = settings.reasoning_parser, _tool_parser(body, settings)
    named = body.tool_choice.function.name if isinstance(body.tool_choice, NamedTool) else None
    think, budget = _thinking(body, reasoning, settings.reasoning_closing)
    schemas = {} if _calls_nothing(body) else tool_schemas(tools_of(body))

    def parser(opened: bool, key: str) -> OutputParser:
        alone = named if tools is None else None
        made = make_parser(reasoning=reasoning, tools=tools, schemas=schemas, opened=opened, named=alone)
        if settings.tool_parser == "mistral" and (tools or named):
            made = ShortIds(made, key)
        return FirstCall(made) if body.parallel_tool_calls is False else made

    parsed = reasoning is not None or tools is not None or named is not None
    keep_special = bool({reasoning, tools} & (NEEDS_SPECIAL | {PLUGIN}))
    prompt = chat_prompt(body, settings)
    adapter = adapter_for(body.model, {one.modality for one in prompt.media}, settings)
    plugins = plugin_request(body, settings.plugins)
    peer = peer_of(body.kv_transfer_params, settings.kv)
    params = parameters(body, settings.sampling_defaults, request_id, think, keep_special, adapter, plugins, peer)
    wants = _wanted(body, settings, named is not None)
    needs_ids = wants.ids or wants.prompt_ids or wants.each_prompt or wants.prompt_text
    rendering = _rendering(body, settings, adapter) | {"think": think, "thinking_budget": budget}
    made = parser if parsed else None
    names = plugin_names(body, settings.plugins)
    return PreparedRequest([prompt], params, rendering, wants, made, needs_ids, plugins=names)


def as_mistral(asked: PreparedRequest, is_client: bool = True) -> PreparedRequest:
    """The same, with usage in a stream's last event, each call in one event, and a content that thinking is part of.
    `is_client`: it is for Mistral's own, which reads no event without a choice, and errors in its own form.
    """
    wants = replace(asked.wants, last_usage=True, thinking_parts=True)
    if is_client:
        wants = replace(wants, usage=wants.continuous_usage, error_body=body_of)
    make = asked.make_parser
    if make is None:
        return replace(asked, wants=wants)
    wants = replace(wants, whole_calls=True)
    return replace(asked, wants=wants, make_parser=lambda opened, key: JoinedCalls(make(opened, key)))


def _thinking(body: ChatRequest, reasoning: str | None, closing: str) -> tuple[Think | None, int | None]:
    """(how the model's thinking is marked, of how many tokens it may be)."""
    budget, name = None if body.thinking_token_budget == -1 else body.thinking_token_budget, budget_field(body)
    if reasoning is None and name != BUDGET:
        budget = None  # clients send it to every model by these names; one that does not think keeps to any
    if budget is not None and reasoning not in THINK_MARKERS:
        raise bad_request(f"{name}: how this model marks its thinking is not known; see --reasoning-parser.", name)
    think = None
    if reasoning in THINK_MARKERS:
        think = Think(*THINK_MARKERS[reasoning], always=reasoning in STARTS_INSIDE, closing=closing)
    return think, budget


def _wanted(body: ChatRequest, settings: Settings, forced: bool) -> AnswerOptions:
    """What the answer is to say. `forced`: it is a call of a tool that the request names. Logprobs and ids would
    tell the tokens of thinking that is left out.
    """
    hides_thinking = body.include_reasoning is False and settings.reasoning_parser is not None
    return AnswerOptions(
        **_told_beside(body, settings),
        logprobs=bool(body.logprobs) and not hides_thinking,
        listed=bool(body.logprob_token_ids),
        as_ids=_names_ids(body, settings),
        ids=bool(body.return_token_ids) and not hides_thinking,
        prompt_ids=bool(body.return_token_ids),
        each_prompt=bool(body.return_prompt_token_ids),
        prompt_logprobs=body.prompt_logprobs is not None,
        reasoning=body.include_reasoning is not False,
        echo=[final_text(body)] if body.echo else None,
        forced=forced,
        role=settings.response_role,
        function=bool(body.functions),
        tier=body.service_tier is not None,
    )


def _told_beside(body: GenerationFields, settings: Settings) -> dict[str, Any]:
    """The fields of AnswerOptions that chat and completions have in common."""
    options = body.stream_options
    continuous = settings.enable_force_include_usage or _continuous(body)
    final = settings.stream_response_default_include_usage or bool(options and options.include_usage)
    asks_states = isinstance(body, ChatRequest | CompletionRequest) and body.return_hidden_states
    if asks_states and not settings.enable_return_hidden_states:
        text = "return_hidden_states: a server tells them that has --enable-return-hidden-states."
        raise bad_request(text, "return_hidden_states")
    return {
        "usage": final or continuous,
        "continuous_usage": continuous,
        "metrics": bool(body.return_metrics) or settings.enable_per_request_metrics,
        "timings": bool(body.timings_per_token),
        "progress": bool(body.return_progress),
        "hands_on": settings.kv if hands_on(body.kv_transfer_params) else None,
        "prompt_text": bool(body.return_prompt_text),
        "padded": bool(options and options.include_obfuscation),
    }


def _names_ids(body: GenerationFields, settings: Settings) -> bool:
    """Are tokens named by their ids?"""
    return bool(body.return_tokens_as_token_ids) or settings.return_tokens_as_token_ids


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
    check_alike([one.rendering["adapter"] for one in asked])
    echo = [text for one in asked for text in one.wants.echo or ()] if body.echo else None
    wants = replace(asked[0].wants, echo=echo)
    return replace(asked[0], prompts=[prompt for one in asked for prompt in one.prompts], wants=wants)


def _continuous(body: GenerationFields) -> bool:
    """Is usage told in each event of the stream? Who wants none (include_usage: false) is told none at all."""
    options = body.stream_options
    return bool(options and options.continuous_usage_stats and options.include_usage is not False)


def _calls_nothing(body: ChatRequest) -> bool:
    return not body.tools or body.tool_choice == "none"


def _tool_parser(body: ChatRequest, settings: Settings) -> str | None:
    """The parser that finds calls in the answer; None where there are no tools to call, or it is one's arguments. Where
    an answer is said to somebody as calls are, it is read without tools, too.
    """
    if _calls_nothing(body):
        return settings.tool_parser if settings.tool_parser in TO_ALL else None
    if body.tool_choice not in (None, "auto") and settings.tool_parser != HARMONY_TOOLS:
        return JSON_ARRAY if body.tool_choice == "required" else None
    if settings.tool_parser is None:
        text = "tools: how this model writes tool calls is not known; start the server with --tool-call-parser."
        raise bad_request(text, "tools")
    return settings.tool_parser


def _check_texts(settings: Settings, texts: dict[str, Any]) -> None:
    """400 if there is no tokenizer, for the first of the fields that needs one."""
    if settings.has_tokenizer:
        return
    if field_ := next((name for name, value in texts.items() if value), None):
        text = f"{field_} needs texts, and the server has no tokenizer (--skip-tokenizer-init): prompt takes token ids."
        raise bad_request(text, field_)


def _rendering(body: GenerationFields, settings: Settings, adapter: int) -> dict[str, Any]:
    """The fields of its Render that all requests have."""
    constraint, field_ = constraint_of(
        body, settings.tool_parser, settings.reasoning_parser, settings.structured_defaults
    )
    texts = {name: getattr(body, name) for name in ("stop", "bad_words", "dry_sequence_breakers")}
    _check_texts(settings, {**texts, field_: constraint})
    check_cut(body.truncate_prompt_tokens, settings.max_model_len)
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
        ("max_tokens", body.max_tokens == 0),
    ):
        if wanted:
            raise bad_request(f"{name}: not with this model, whose prompt is read by an encoder.", name)


def ask_completion(body: CompletionRequest, settings: Settings, request_id: str, client: str = "") -> PreparedRequest:
    """A completion request, checked. `client` is the key's name (idempotency_keys.client_of)."""
    check_fields(body, settings.vocab_size, settings.kv, settings.most_logprobs)
    check_device(body, settings)
    body = _salted(body, settings, client)
    if settings.encoder is not None:
        _check_encoded(body)
    if body.suffix and not body.ignore_eos:
        special = settings.special_tokens()
        ends = infill_ends(special, infill_tokens(special, "suffix"))
        body = msgspec.structs.replace(body, stop_token_ids=[*(body.stop_token_ids or []), *ends])
    adapter = adapter_of(body.model, settings)
    plugins = plugin_request(body, settings.plugins)
    peer = peer_of(body.kv_transfer_params, settings.kv)
    params = parameters(body, settings.sampling_defaults, request_id, adapter=adapter, plugins=plugins, kv_peer=peer)
    prompts = completion_prompts(body, settings.special_tokens, settings.prompt_embeds)
    _check_texts(settings, {"prompt": any(isinstance(prompt, TextPrompt) for prompt in prompts)})
    if len(prompts) * len(params) > MAX_SEQUENCES:
        raise bad_request(f"At most {MAX_SEQUENCES} prompts times n are taken in one request.", "prompt")
    wants = AnswerOptions(
        **_told_beside(body, settings),
        logprobs=body.logprobs is not None and body.logprobs is not False,
        as_ids=_names_ids(body, settings) or not settings.has_tokenizer,
        ids=bool(body.return_token_ids) or not settings.has_tokenizer,
        prompt_logprobs=body.prompt_logprobs is not None,
        echo=([] if settings.has_tokenizer else [""] * len(prompts)) if body.echo else None,
        nothing=body.max_tokens == 0,
        best_of=(body.n or 1) if len(params) > (body.n or 1) else 0,
    )
    if wants.nothing and body.min_tokens:
        raise ApiError(400, "min_tokens must be 0 with max_tokens 0.", "min_tokens")
    needs_ids = wants.ids or wants.prompt_text or (wants.logprobs and wants.echo is not None)
    echoed, names = prompts if body.echo and settings.has_tokenizer else [], plugin_names(body, settings.plugins)
    rendering = _rendering(body, settings, adapter)
    return PreparedRequest(prompts, params, rendering, wants, None, needs_ids, echoed, names)
