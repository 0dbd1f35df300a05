"""The renderer actor: conversation or text → token ids in the request table.

It keeps no state but caches: it can be killed for being slow, and the message it was handling is delivered again. It
writes to a slot only what a Render names, and only while the slot's use is current and not cancelled.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import slot_of

from ..engines.routing import Router
from ..grammar.compiler import GrammarError
from ..model.encoder_decoder.spec import EncoderSpec
from ..model.tokenizers.tokenizer import load_tokenizer, special_tokens
from ..protocol.block_hash import extend_hashes, first_hash
from ..protocol.media import MediaItem, PreparedMedia
from ..protocol.messages import (
    Admit,
    ChatPrompt,
    Detokenize,
    Detokenized,
    Failed,
    Measure,
    Measured,
    PairPrompt,
    Prompt,
    Render,
    Rendered,
    SoundPrompt,
    Sync,
    Synced,
    TextPrompt,
    Tokenize,
    Tokenized,
    TokenPrompt,
    ToRenderer,
    frontend_of_call,
)
from ..protocol.request import Rendition
from ..runtime.in_flight import CALL, GivenUp, log_debug, request_name
from ..runtime.process import RENEW, Actor, Context, run
from ..sound.decode import SoundError
from ..telemetry.trace_events import EventKind
from .artifacts import Renditions
from .encode_cache import SegmentCache
from .encoder_input import lay_out
from .hearing import Hearer
from .media import Misplaced, expanded, expanded_ids, in_order, items_of, spans_of, with_placeholders
from .oversized import least_tokens
from .pooled import PooledTexts, TooFewTokens, lowered
from .templates.chat_template import ChatTemplate, TemplateProblem, find_templates
from .templates.escaping import Escaped, Escaping
from .templates.problem import OutOfMemory

GONE = 499  # the client has gone: nobody reads this answer
REPLY_ROOM = 512  # bytes of a reply that are not its token list
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may escape one without the other
LONGEST_REASON = 2000  # characters of an error; a template may quote all of a message in it
NO_TOKENIZER = "the server has no tokenizer (--skip-tokenizer-init): {} takes token ids alone"
TOO_LONG = "context_length_exceeded"  # by this code clients know that they have to shorten


class RenderRefused(ValueError):
    """The request cannot be; status, message, field and code for the client."""

    def __init__(self, status: int, message: str, param: str | None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code


class RendererActor(Actor):
    """Adapter between the rings and template and tokenizer."""

    one_record = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.table = context.table
        self.stamps = Stamps(context.table)
        self.arena = context.media()
        self.has_tokenizer = bool(context.model.tokenizer_folder)
        pooling = context.model.pooling  # of prompts that are computed whole no block is found again
        self._may_share = pooling is None or pooling.chunked
        self.tokenizer = load_tokenizer(context.model)
        self.segments = SegmentCache(self.tokenizer)
        self.pooled = PooledTexts(self.tokenizer, context.model)
        self.renditions = Renditions(self.tokenizer, context.model, self.table.rendition_bytes)
        self.template = ChatTemplate(context.config, context.model)
        self.escaping: Escaping | None = None
        if context.config.escape_special_tokens:
            self.escaping = Escaping(self.tokenizer, find_templates(context.config, context.model).values())
        self.bos = self.tokenizer.token_to_id(special_tokens(context.model).get("bos_token", ""))
        self.router = Router(context) if len(context.system.engines) > 1 else None
        encoder = context.model.encoder
        self.sounds, self.hearer = context.sounds(), None
        if encoder is not None and encoder.speech is not None:
            self.hearer = Hearer(self.tokenizer, encoder, encoder.speech, self.table.block_size)
        self.frontend = ""  # who is being answered: calls name no slot
        self.worn_out = False  # Python itself is not to be trusted any more

    def handle(self, message: ToRenderer) -> None:
        """One message. What goes wrong in it is answered, and the next one is handled: nobody else is touched."""
        match message:
            case Render():
                began = time.monotonic_ns()
                log_debug(self.context.log, "%s is rendered", self.table, message.refs[0])
                self._guarded(lambda: self._render(message), message.refs[0], refs=message.refs)
                now = time.monotonic_ns()
                self.context.trace.add(now, EventKind.RENDERING, now - began, message.refs[0], len(message.refs))
            case Tokenize():
                self._guarded(lambda: self._tokenize(message), CALL | message.call, call=message.call)
            case Detokenize():
                self._guarded(lambda: self._detokenize(message), CALL | message.call, call=message.call)
            case Measure():
                self._guarded(lambda: self._measure(message), CALL | message.call, call=message.call)
            case Sync():
                self.context.post(self._caller(message.call), Synced(message.call))

    def _guarded(self, work: Callable[[], None], in_flight: int, refs: list[int] | None = None, call: int = 0) -> None:
        """Answer Failed for whatever goes wrong: the boundary where other people's templates and texts end.

        That holds for what kills this process, too: its successor finds `in_flight` on the board.
        """
        try:
            with self.context.in_flight.hold(in_flight):
                self._answered(work, refs or [], call)
        except GivenUp as error:
            name = request_name(self.table, refs[0]) if refs else f"call {call}"
            self.context.log.error("%s is given up: %s", name, "it hung" if error.hung else "it is deadly")
            self._post_failed(self._give_up(error, name), refs or [], call)

    def _give_up(self, error: GivenUp, name: str) -> RenderRefused:
        if error.hung:
            limit = self.context.config.hang_timeout
            return RenderRefused(
                422, f"The prompt could not be rendered within {limit:g} s; {name} is given up.", "messages"
            )
        return RenderRefused(500, f"Renderers have died on this prompt again and again; {name} is given up.", None)

    def _answered(self, work: Callable[[], None], refs: list[int], call: int) -> None:
        try:
            work()
        except RenderRefused as error:
            self._post_failed(error, refs, call)
        except TemplateProblem as error:
            self._post_failed(RenderRefused(400, str(error), error.param), refs, call)
            if isinstance(error, OutOfMemory):
                self.worn_out = True
                self.context.request_stop()
        except Exception:
            name = request_name(self.table, refs[0]) if refs else f"call {call}"
            self.context.log.exception("the prompt of %s could not be rendered", name)
            self._post_failed(RenderRefused(500, "The prompt could not be rendered.", None), refs, call)

    def _post_failed(self, error: RenderRefused, refs: list[int], call: int) -> None:
        target = self.context.system.frontend_of(slot_of(refs[0])) if refs else self._caller(call)
        reason = str(error)[:LONGEST_REASON].encode(errors="replace").decode()  # it must not break the lane
        self.context.post(target, Failed(refs, error.status, reason, error.param, call, error.code))

    def _caller(self, call: int) -> str:
        return f"frontend-{frontend_of_call(call)}"

    def _render(self, message: Render) -> None:
        refs = [ref for ref in message.refs if self._is_wanted(ref)]
        if not refs:
            raise RenderRefused(GONE, "the client has gone", None)
        new = [ref for ref in refs if self.table.prompt_length(ref) is None]
        if new:  # the others have what a predecessor wrote, and the scheduler may have begun with it
            self._stamp(new, Stamp.RENDER_BEGUN)
            self._write(new, message)
        refs = [ref for ref in refs if self._is_wanted(ref)]
        gone = [ref for ref in message.refs if ref not in refs]
        frontend = self.context.system.frontend_of(slot_of(message.refs[0]))
        if gone:
            self.context.post(frontend, Failed(gone, GONE, "the client has gone"))
        if refs:
            self.context.post_to_owners(Admit, refs)
            self.context.post(frontend, Rendered(refs, self.table.prompt_length(refs[0]) or 0))

    def _write(self, refs: list[int], message: Render) -> None:
        """The prompt, its hashes and its limit into the slots that are still wanted."""
        if isinstance(message.prompt, SoundPrompt):
            self._hear(refs, message, message.prompt)
            return
        if self.hearer is not None:
            raise RenderRefused(400, "prompt: this model writes down what it hears, and reads no text.", "prompt")
        self._check_form(message.prompt)
        if message.pools:
            tokens, second = self._pooled_tokens(message)
            rendition = msgspec.msgpack.encode(Rendition(second=second)) if second else b""
            self._store(refs, message, tokens, 1, rendition)
            return
        text = self._chat_text(message.prompt, message.media) if isinstance(message.prompt, ChatPrompt) else None
        try:
            rendition = self.renditions.make(message, text)
            if message.given and message.constraint and not self.renditions.follows(rendition, message.given):
                text = f"choices: tokens that {message.constrained_by} does not allow."
                raise RenderRefused(400, text, "choices")
        except GrammarError as error:
            raise RenderRefused(400, str(error), message.constrained_by) from None
        if remarks := self.renditions.take_remarks():
            said = "%s: %s is not strict, and its answer is not held to: %s"
            self.context.log.warning(
                said, request_name(self.table, refs[0]), message.constrained_by, ", ".join(remarks)
            )
        if message.media:
            tokens, items = self._with_media(message, text)
        else:
            self._check_length(message.prompt, text)
            tokens, items = self._truncated(self._prompt_tokens(message.prompt, text), message), []
        if (spec := self.context.model.encoder) is not None:
            self._write_encoded(refs, message, spec, tokens, rendition)
            return
        self._store(refs, message, tokens, self._limit(len(tokens), message), rendition, items)

    def _write_encoded(
        self, refs: list[int], message: Render, spec: EncoderSpec, tokens: list[int], rendition: bytes
    ) -> None:
        """The same of a prompt that an encoder reads."""
        if len(tokens) > spec.longest:
            raise self._too_long(str(len(tokens)), message.prompt, longest=spec.longest)
        log = lay_out(spec, self.table.block_size, tokens, spec.start, rendition)
        limit = self._limit(len(log.tokens), message)
        if limit > log.room and message.max_tokens is not None:
            text = f"max_tokens: {limit} is more than the {log.room} tokens that this model's decoder writes."
            raise RenderRefused(400, text, "max_tokens", TOO_LONG)
        self._store(refs, message, log.tokens, min(limit, log.room), log.rendition)

    def _hear(self, refs: list[int], message: Render, prompt: SoundPrompt) -> None:
        """Each slot has a window of the sound: its features lie there before the prompt is published."""
        assert self.hearer is not None and self.sounds is not None
        try:
            found = self.hearer.features(prompt.data, [message.refs.index(ref) for ref in refs])
        except SoundError as error:
            raise RenderRefused(400, f"file: {error}.", "file") from None
        log = self.hearer.log(prompt)
        limit = log.room if message.max_tokens is None else min(log.room, message.max_tokens)
        if limit < 1:
            raise RenderRefused(400, "prompt: it leaves no room for the text of a sound.", "prompt", TOO_LONG)
        for ref, features in zip(refs, found, strict=True):
            if self._is_wanted(ref):
                self.sounds.write(ref, 1, features.size, features.tobytes())
        self._store(refs, message, log.tokens, limit, log.rendition)

    def _measure(self, message: Measure) -> None:
        if self.hearer is None:
            raise RenderRefused(400, "model: this model does not listen.", "model")
        try:
            seconds, windows = self.hearer.measure(message.data)
        except SoundError as error:
            raise RenderRefused(400, f"file: {error}.", "file") from None
        self.context.post(self._caller(message.call), Measured(message.call, seconds, windows))

    def _store(
        self,
        refs: list[int],
        message: Render,
        tokens: list[int],
        limit: int,
        rendition: bytes,
        items: Sequence[MediaItem] = (),
    ) -> None:
        """Into the slots that are still wanted."""
        limit = _within_quota(len(tokens), limit, message)
        ids = np.array(tokens, np.int32).tobytes()
        hashes = b""
        if self._may_share:
            first = first_hash(message.cache_salt, message.adapter)
            hashes = extend_hashes(first, ids, self.table.block_size, spans=spans_of(items))
        if any(len(given) > limit for given in message.given):
            raise RenderRefused(400, f"choices: more tokens than the {limit} that the answer may have.", "choices")
        among = () if message.engine is None else (message.engine,)
        engine = 0 if self.router is None else self.router.choose(hashes, len(tokens), len(refs), among)
        self._stamp(refs, Stamp.RENDERED)
        for ref in refs:
            if self._is_wanted(ref):
                if self.arena is not None and items:
                    self.arena.write_items(ref, list(items))
                given = message.given[message.refs.index(ref)] if message.given else []
                pinned = message.engine is not None
                self.table.write_prompt(ref, ids, hashes, limit, rendition, engine, pinned, given)

    def _with_media(self, message: Render, text: str | None) -> tuple[list[int], list[MediaItem]]:
        """The ids of a prompt with pictures, and where these stand in it."""
        tokens, order = self._media_tokens(message.prompt, text, message.media)
        if len(self._truncated(tokens, message)) < len(tokens):
            field = "truncate_prompt_tokens"
            raise RenderRefused(400, f"{field}: a prompt with pictures is not cut; it has {len(tokens)} tokens.", field)
        return tokens, items_of(tokens, order)

    def _media_tokens(
        self, prompt: Prompt, text: str | None, media: Sequence[PreparedMedia]
    ) -> tuple[list[int], list[PreparedMedia]]:
        """(ids, pictures in the order in which they stand there)."""
        try:
            if isinstance(prompt, TokenPrompt):
                self._check_ids(prompt.tokens, "prompt")
                return expanded_ids(prompt.tokens, media, self.segments.encode)
            given = prompt.text if isinstance(prompt, TextPrompt) else text or ""
            order = in_order(given, media)
            if self.escaping is not None and isinstance(given, Escaped):
                whole: str = self.escaping.expanded(given, lambda renamed, rename: expanded(renamed, media, rename))
            else:
                whole = expanded(given, media)
        except Misplaced as error:
            field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise RenderRefused(400, f"{field}: {error}.", field) from None
        self._check_length(prompt if isinstance(prompt, ChatPrompt) else TextPrompt(whole), whole)
        special = isinstance(prompt, ChatPrompt | TextPrompt) and prompt.add_special_tokens
        return self._text_tokens(whole, special), order

    def _pooled_tokens(self, message: Render) -> tuple[list[int], int]:
        """The ids of a prompt of which nothing is generated, and where the second of two texts begins."""
        prompt, longest = message.prompt, self.context.model.max_model_len
        keep = longest if message.truncate_prompt_tokens == -1 else message.truncate_prompt_tokens
        if isinstance(prompt, ChatPrompt):
            prompt = TextPrompt(self._chat_text(prompt), prompt.add_special_tokens)
        assert not isinstance(prompt, SoundPrompt)
        if isinstance(prompt, TokenPrompt):
            self._check_ids(prompt.tokens, message.field or "prompt")
            tokens, second = prompt.tokens, 0
            if keep is not None:
                tokens = tokens[:keep] if message.keep_first else tokens[max(0, len(tokens) - keep) :]
        else:
            tokens, second = self._encode_pooled(prompt, keep, message)
        if not tokens:
            raise RenderRefused(400, "The prompt is empty: it must contain at least one token.", message.field)
        if len(tokens) > longest:
            raise self._too_long(str(len(tokens)), prompt, message.field)
        return tokens, second

    def _encode_pooled(
        self, prompt: TextPrompt | PairPrompt, keep: int | None, message: Render
    ) -> tuple[list[int], int]:
        pooling = self.context.model.pooling
        if pooling is not None and pooling.lower_case:
            prompt = lowered(prompt)
        longest = self.context.model.max_model_len
        if keep is not None:
            try:
                return self.pooled.encode_cut(prompt, keep, message.keep_first)
            except TooFewTokens:
                text = f"truncate_prompt_tokens: {keep} leaves no room for a text."
                raise RenderRefused(400, text, "truncate_prompt_tokens") from None
        texts = (prompt.text, prompt.second) if isinstance(prompt, PairPrompt) else (prompt.text,)
        for text in texts:
            if least := least_tokens(self.tokenizer, text, longest):
                raise self._too_long(f"at least {least}", prompt, message.field)
        return self.pooled.encode(prompt)

    def _truncated(self, tokens: list[int], message: Render) -> list[int]:
        """So many of the prompt as the request wants; by itself, as many as leave room for the answer."""
        keep = message.truncate_prompt_tokens
        if keep is None:
            return tokens
        if keep < 0:
            spec, longest = self.context.model.encoder, self.context.model.max_model_len
            keep = max(1, longest - (message.max_tokens or 1)) if spec is None else spec.longest
        return tokens[:keep] if message.keep_first else tokens[max(0, len(tokens) - keep) :]

    def _stamp(self, refs: list[int], stamp: Stamp) -> None:
        now = time.monotonic_ns()
        for ref in refs:
            self.stamps.set_first(ref, stamp, now)

    def _is_wanted(self, ref: int) -> bool:
        return self.table.is_current(ref) and not self.table.is_cancelled(ref)

    def _prompt_tokens(self, prompt: Prompt, chat: str | None) -> list[int]:
        """The prompt's ids; never empty. `chat` is the text of a conversation."""
        tokens = self._tokens(prompt, chat)
        if not tokens and self.bos is not None:
            tokens = [self.bos]
        if not tokens:
            field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise RenderRefused(400, "The prompt is empty: it must contain at least one token.", field)
        return tokens

    def _tokens(self, prompt: Prompt, chat: str | None) -> list[int]:
        match prompt:
            case ChatPrompt():
                return self._text_tokens(chat or "", prompt.add_special_tokens)
            case TextPrompt():
                return self._text_tokens(prompt.text, prompt.add_special_tokens)
            case TokenPrompt():
                self._check_ids(prompt.tokens, "prompt")
                return prompt.tokens
            case PairPrompt():
                return self.pooled.encode(prompt)[0]
            case SoundPrompt():
                raise RenderRefused(400, "file: a sound has no tokens.", "file")

    def _check_length(self, prompt: Prompt, chat: str | None) -> None:
        """400 for a text that is seen to be too long before it is tokenised; also where most of it would be cut off, or
        is to be counted only: everybody else's prompts would wait for that.
        """
        text, tokenizer = prompt.text if isinstance(prompt, TextPrompt) else chat or "", self.tokenizer
        if self.escaping is not None and isinstance(text, Escaped):
            text, tokenizer = text.renamed, self.escaping.copy
        if least := least_tokens(tokenizer, text, self.context.model.max_model_len):
            raise self._too_long(f"at least {least}", prompt)

    def _too_long(self, count: str, prompt: Prompt, field: str = "", longest: int = 0) -> RenderRefused:
        field = field or ("messages" if isinstance(prompt, ChatPrompt) else "prompt")
        text = (
            f"This model's maximum context length is {longest or self.context.model.max_model_len} tokens. However, "
            f"your prompt has {count} tokens. Please shorten it."
        )
        return RenderRefused(400, text, field, TOO_LONG)

    def _check_ids(self, tokens: list[int], field: str) -> None:
        size = self.context.model.vocab_size
        bad = next((token for token in tokens if not 0 <= token < size), None)
        if bad is not None:
            raise RenderRefused(400, f"Token id {bad} is out of vocabulary (0 to {size - 1}).", field)

    def _check_form(self, prompt: Prompt) -> None:
        """400 for a text where there is no tokenizer."""
        if self.has_tokenizer or isinstance(prompt, TokenPrompt):
            return
        field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
        raise RenderRefused(400, f"{field}: {NO_TOKENIZER.format('prompt')}.", field)

    def _chat_text(self, prompt: ChatPrompt, media: Sequence[PreparedMedia] = ()) -> str:
        parts = (prompt.messages, prompt.documents, prompt.tools, prompt.template_kwargs)
        messages, documents, *others = map(_loads, parts)

        def render(messages: Any, documents: Any) -> str:
            tools, variables = others
            messages = with_placeholders(messages, media)
            how = (prompt.add_generation_prompt, prompt.continue_final_message, prompt.chat_template)
            return self.template.render(messages, tools, documents, variables, *how)

        if self.escaping is None:
            text = render(messages, documents)
        else:
            text = self.escaping.rendered(render, messages, documents, *others, prompt.chat_template)
        if SURROGATE.search(text):
            raise TemplateProblem("half a character (a lone surrogate) cannot be tokenised")
        return text

    def _text_tokens(self, text: str, add_special_tokens: bool) -> list[int]:
        if self.escaping is not None and isinstance(text, Escaped):
            return self.escaping.encode(text, add_special_tokens)
        if add_special_tokens:
            ids: list[int] = self.tokenizer.encode(text).ids
            return ids
        return self.segments.encode(text)

    def _limit(self, count: int, message: Render) -> int:
        """How many tokens may be generated; 400 with the numbers where the model is too short for the request."""
        longest = self.context.model.max_model_len
        if count >= longest:
            raise self._too_long(str(count), message.prompt)
        if message.max_tokens is None:
            return min(longest - count, message.cap or longest)
        if count + message.max_tokens > longest:
            raise RenderRefused(
                400,
                f"This model's maximum context length is {longest} tokens. However, you requested "
                f"{count + message.max_tokens} tokens ({count} in the prompt, {message.max_tokens} for the answer). "
                "Please shorten the prompt or lower max_tokens.",
                "max_tokens",
                TOO_LONG,
            )
        return message.max_tokens

    def _tokenize(self, message: Tokenize) -> None:
        caller = self._caller(message.call)
        self._check_form(message.prompt)
        text = self._chat_text(message.prompt, message.media) if isinstance(message.prompt, ChatPrompt) else None
        if message.media:
            tokens, _ = self._media_tokens(message.prompt, text, message.media)
        else:
            self._check_length(message.prompt, text)
            tokens = self._tokens(message.prompt, text)
        strings = [self.tokenizer.id_to_token(token) or "" for token in tokens] if message.token_strings else None
        size = 5 * len(tokens) + sum(5 + 4 * len(string) for string in strings or ())
        if size + REPLY_ROOM > self.context.outboxes[caller].max_message:
            raise RenderRefused(413, f"The answer with its {len(tokens)} tokens is too long to send.", "prompt")
        self.context.post(caller, Tokenized(message.call, tokens, strings))

    def _detokenize(self, message: Detokenize) -> None:
        self._check_ids(message.tokens, "tokens")
        if not self.has_tokenizer:
            raise RenderRefused(400, "tokens: the server has no tokenizer (--skip-tokenizer-init).", "tokens")
        caller = self._caller(message.call)
        text = self.tokenizer.decode(message.tokens, skip_special_tokens=message.skip_special)
        if len(text.encode()) + REPLY_ROOM > self.context.outboxes[caller].max_message:
            raise RenderRefused(413, f"The text of {len(message.tokens)} tokens is too long to send.", "tokens")
        self.context.post(caller, Detokenized(message.call, text))


def _loads(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TemplateProblem(f"this is no JSON that can be read: {error}") from None


def main(context: Context) -> None:
    """Run a renderer until it is told to stop, or must be replaced."""
    renderer = RendererActor(context)
    run(renderer, context)
    if renderer.worn_out:
        sys.exit(RENEW)


def _within_quota(count: int, limit: int, message: Render) -> int:
    """How many tokens may be generated behind so many by what the request's key has left."""
    if message.most_generated is not None:
        limit = min(limit, message.most_generated)
    if message.most_tokens is None:
        return limit
    left = message.most_tokens - count
    if left < (0 if message.pools else 1):
        text = f"This key has {message.most_tokens} tokens left for the request, whose prompt has {count}."
        raise RenderRefused(429, text, None, "insufficient_quota")
    return limit if message.pools else min(limit, left)
