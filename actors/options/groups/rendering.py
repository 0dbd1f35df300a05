"""Prompts and answers: tokenizer, chat template, parsers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ...protocol.request import MOST_LOGPROBS, USUAL_LOGPROBS
from ..choices import ContentFormat, ReasoningParser, TokenizerMode, ToolParser
from .server import ServerOptions


class RenderingOptions(ServerOptions, frozen=True, kw_only=True):
    """How prompts are made of requests, and what is read in answers."""

    tokenizer: Annotated[str | None, Meta(description="a folder, GGUF file or hub name, if not the model's own")] = None
    tokenizer_mode: Annotated[
        TokenizerMode,
        Meta(
            description="which of its files is read: auto (any), hf (any but Mistral's), slow (any but "
            "tokenizer.json), mistral (tekken.json or tokenizer.model); deepseek_v32 and deepseek_v4 are hf, with "
            "chats written as these models have them"
        ),
    ] = "auto"
    skip_tokenizer_init: Annotated[
        bool, Meta(description="no tokenizer is loaded: prompts and answers are token ids, and texts are refused")
    ] = False
    chat_template: Annotated[
        str | None, Meta(description="a Jinja file or the text of one, if not the model's own")
    ] = None
    default_chat_template_kwargs: Annotated[
        str | None,
        Meta(description='for chat templates, where requests say nothing: JSON such as {"enable_thinking": false}'),
    ] = None
    chat_template_content_format: Annotated[
        ContentFormat,
        Meta(description="the form in which templates read contents: a string, or a list of parts"),
    ] = "auto"
    escape_special_tokens: Annotated[
        bool, Meta(description="what users and tools say that reads like a special token stays text")
    ] = False
    trust_request_chat_template: Annotated[
        bool, Meta(description="take chat templates from requests, too; they are programs, if in a sandbox")
    ] = False
    exclude_tools_when_tool_choice_none: Annotated[
        bool, Meta(description='the model is told of no tools where a request says "tool_choice": "none"')
    ] = False
    enable_force_include_usage: Annotated[
        bool, Meta(description="each event of a stream tells usage, whether its request asks for that or not")
    ] = False
    stream_response_default_include_usage: Annotated[
        bool, Meta(description="streams tell usage at their end, whether their requests ask for that or not")
    ] = False
    enable_per_request_metrics: Annotated[
        bool, Meta(description="answers tell their times, as if each request said return_metrics")
    ] = False
    return_tokens_as_token_ids: Annotated[
        bool, Meta(description="logprobs name tokens token_id:N, as if each request said return_tokens_as_token_ids")
    ] = False
    max_logprobs: Annotated[
        int,
        Meta(
            ge=-1,
            le=MOST_LOGPROBS,
            description="the most likely tokens that requests may ask for beside each; -1: the vocabulary, or 1024 "
            "of it. Memory is taken for those that are asked for",
        ),
    ] = USUAL_LOGPROBS
    max_prompt_logprobs: Annotated[
        int,
        Meta(
            ge=1,
            description="logprobs that a request may be told of its prompts: those beside each token and its own; a "
            "frontend keeps each in some 300 bytes until the answer is whole",
        ),
    ] = 1 << 22
    max_answer_logprobs: Annotated[
        int,
        Meta(
            ge=1,
            description="logprobs of a request's answers that a frontend keeps, each in some 300 bytes, until they are "
            "whole: those beside each token and its own; what is streamed is not kept",
        ),
    ] = 1 << 24
    max_hidden_states: Annotated[
        int,
        Meta(
            ge=1,
            description="numbers of hidden states that /generate tells a request: those of each token of its prompts "
            "and answers; a frontend takes some 40 bytes for each until the answer is out",
        ),
    ] = 1 << 24
    enable_return_hidden_states: Annotated[
        bool,
        Meta(
            description="/generate, chat and completions tell hidden states to requests that say return_hidden_states; "
            "on a CPU. Memory is taken for those that do"
        ),
    ] = False
    response_role: Annotated[str, Meta(min_length=1, max_length=64, description="the role of chat's answers")] = (
        "assistant"
    )
    tool_call_parser: Annotated[
        ToolParser,
        Meta(description="how the model writes tool calls; auto finds it out from the chat template, or takes hermes"),
    ] = "auto"
    reasoning_parser: Annotated[
        ReasoningParser, Meta(description="how the model marks its thinking; auto finds it out from the chat template")
    ] = "auto"
    reasoning_config: Annotated[
        str | None,
        Meta(
            description='JSON such as {"reasoning_end_str": "Enough.</think>"}: what is written where thinking has '
            "used up its budget; the parser's mark ends it anyway"
        ),
    ] = None
    structured_outputs_config: Annotated[
        str | None,
        Meta(
            description="how JSON of answers looks where requests say nothing: JSON such as "
            '{"disable_any_whitespace": true}, or disable_additional_properties'
        ),
    ] = None
    tool_parser_plugin: Annotated[
        str | None,
        Meta(
            description="what makes a parser of tool calls, in place of --tool-call-parser: module:name, FILE.py:name "
            "or an entry point of actorserve.tool_parsers"
        ),
    ] = None
    reasoning_parser_plugin: Annotated[
        str | None, Meta(description="the same of thinking; entry points are those of actorserve.reasoning_parsers")
    ] = None
    io_processor_plugin: Annotated[
        str | None,
        Meta(
            description="what makes prompts of the data of /pooling, and answers of what the model makes of these: "
            "module:Class, FILE.py:Class or an entry point of actorserve.io_processor_plugins"
        ),
    ] = None
    enable_auto_tool_choice: Annotated[
        bool, Meta(description="let the model decide whether to call tools, where a parser is known")
    ] = True
