"""What renderers are asked beside rendering: tokens of a text, text of tokens, how long a sound is."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..model.tokenizers.token_bytes import bytes_of_tokens
from ..options.config import ConfigError
from ..protocol.topics.calls import Detokenize, Detokenized, Measure, Measured, Tokenize, Tokenized, frontend_of_call
from ..protocol.topics.io_processors import PostProcess, PostProcessed, PreProcess, PreProcessed
from ..protocol.topics.prompts import ChatPrompt
from ..runtime.process import Context
from ..sound.decode import SoundError
from .hearing import Hearer
from .prompts import Prompts
from .refused import RenderRefused

if TYPE_CHECKING:
    from .io_processors.processor import IOProcessorCalls

T = TypeVar("T")
REPLY_ROOM = 512  # bytes of a reply that are not its token list


def caller_of(call: int) -> str:
    """The frontend that has asked."""
    return f"frontend-{frontend_of_call(call)}"


class Calls:
    """Each is answered, or RenderRefused."""

    def __init__(self, context: Context, prompts: Prompts, hearer: Hearer | None) -> None:
        self._context, self._prompts, self._hearer = context, prompts, hearer
        self._token_bytes: Callable[[int], bytes] | None = None  # made for the first request that it is for
        self._plugin: IOProcessorCalls | None = None  # made at the start, or for the first request that it is for

    def tokenize(self, message: Tokenize) -> None:
        """Ids of a prompt as they would be computed, and what they stand for."""
        caller, prompt = caller_of(message.call), message.prompt
        self._prompts.check_form(prompt)
        if message.pools:
            self._post_parts(caller, message.call, self._prompts.pooled_tokens(message)[0])
            return
        text = self._prompts.chat_text(prompt, message.media) if isinstance(prompt, ChatPrompt) else None
        if message.media:
            tokens, _ = self._prompts.media_tokens(prompt, text, message.media)
        else:
            self._prompts.check_length(prompt, text)
            tokens = self._prompts.truncated(self._prompts.tokens(prompt, text), message)
        string_of = self._prompts.tokenizer.id_to_token
        strings = [string_of(token) or "" for token in tokens] if message.token_strings else None
        offsets = self._prompts.offsets(message, text) if message.offsets else None
        size = 5 * len(tokens) + 11 * len(offsets or ()) + sum(5 + 4 * len(string) for string in strings or ())
        if size + REPLY_ROOM > self._context.outboxes[caller].max_message:
            raise RenderRefused(413, f"The answer with its {len(tokens)} tokens is too long to send.", "prompt")
        self._context.post(caller, Tokenized(message.call, tokens, strings, offsets))

    def _post_parts(self, caller: str, call: int, tokens: list[int]) -> None:
        """As many at a time as a message has room for. A successor of who dies meanwhile begins anew."""
        most = (self._context.outboxes[caller].max_message - REPLY_ROOM) // 5
        for start in range(0, len(tokens), most):
            part = tokens[start : start + most]
            self._context.post(caller, Tokenized(call, part, start=start, more=start + most < len(tokens)))

    def detokenize(self, message: Detokenize) -> None:
        """The text of ids."""
        self._prompts.check_ids(message.tokens, "tokens")
        if not self._prompts.has_tokenizer:
            raise RenderRefused(400, "tokens: the server has no tokenizer (--skip-tokenizer-init).", "tokens")
        caller = caller_of(message.call)
        if message.pieces:
            self._post_pieces(caller, message)
            return
        groups = [[token] for token in message.tokens] if message.each else [message.tokens]
        decode, skip = self._prompts.tokenizer.decode, message.skip_special
        texts = [decode(tokens, skip_special_tokens=skip) for tokens in groups]
        if sum(5 + len(text.encode()) for text in texts) + REPLY_ROOM > self._context.outboxes[caller].max_message:
            raise RenderRefused(413, f"The text of {len(message.tokens)} tokens is too long to send.", "tokens")
        answer = Detokenized(message.call, "", texts) if message.each else Detokenized(message.call, texts[0])
        self._context.post(caller, answer)

    def _post_pieces(self, caller: str, message: Detokenize) -> None:
        """The bytes of each token by itself."""
        if self._token_bytes is None:
            self._token_bytes = bytes_of_tokens(self._prompts.tokenizer)
        pieces = [self._token_bytes(token) for token in message.tokens]
        if sum(5 + len(piece) for piece in pieces) + REPLY_ROOM > self._context.outboxes[caller].max_message:
            raise RenderRefused(413, f"The text of {len(message.tokens)} tokens is too long to send.", "tokens")
        self._context.post(caller, Detokenized(message.call, "", pieces=pieces))

    def try_plugin(self) -> None:
        """At the server's start: ConfigError says why --io-processor-plugin names nothing that can be made."""
        try:
            self._made_plugin()
        except ConfigError:
            raise
        except Exception as error:
            given = self._context.config.io_processor_plugin
            self._context.log.exception("the plugin %s has failed", given)
            raise ConfigError(f"--io-processor-plugin: {given} has failed: {type(error).__name__}: {error}") from None

    def pre_process(self, message: PreProcess) -> None:
        """Prompts of what a request's data say."""
        prompts = self._guarded(lambda plugin: plugin.pre_process(message.request_id, message.data))
        self._reply(message.call, PreProcessed(message.call, prompts), "prompts")

    def post_process(self, message: PostProcess) -> None:
        """The answer, of what the model has made of the prompts."""
        about = message.request_id, message.data, message.pooled
        output = self._guarded(lambda plugin: plugin.post_process(*about))
        self._reply(message.call, PostProcessed(message.call, output), "answer")

    def _guarded(self, ask: Callable[[IOProcessorCalls], T]) -> T:
        """Whatever the plugin raises is told as its own, and stands in the log."""
        config = self._context.config
        if config.io_processor_plugin is None:
            raise RenderRefused(400, "data: the server has no --io-processor-plugin.", "data")
        try:
            return ask(self._made_plugin())
        except RenderRefused:
            raise
        except Exception as error:
            self._context.log.exception("the plugin %s has failed", config.io_processor_plugin)
            text = f"The server's IO processor failed: {type(error).__name__}; the server's log says how."
            raise RenderRefused(500, text, None, "io_processor_failed") from None

    def _made_plugin(self) -> IOProcessorCalls:
        if self._plugin is None:
            from .io_processors.processor import IOProcessorCalls  # what servers with one alone have a use for

            self._plugin = IOProcessorCalls(self._context.config, self._context.model)
        return self._plugin

    def _reply(self, call: int, message: PreProcessed | PostProcessed, what: str) -> None:
        caller = caller_of(call)
        if len(msgspec.msgpack.encode(message)) + REPLY_ROOM > self._context.outboxes[caller].max_message:
            raise RenderRefused(413, f"data: the {what} of the server's IO processor are too long to send.", "data")
        self._context.post(caller, message)

    def measure(self, message: Measure) -> None:
        """How long a sound is, and in how many windows it would be heard."""
        if self._hearer is None:
            raise RenderRefused(400, "model: this model does not listen.", "model")
        try:
            seconds, windows = self._hearer.measure(message.data)
        except SoundError as error:
            raise RenderRefused(400, f"file: {error}.", "file") from None
        self._context.post(caller_of(message.call), Measured(message.call, seconds, windows))
