"""The renderer actor: conversation or text → token ids in the request table.

It keeps no state but caches: it can be killed for being slow, and the message it was handling is delivered again. It
writes to a slot only what a Render names, and only while the slot's use is current and not cancelled.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import slot_of

from ..engines.routing import EngineRouter
from ..grammar.compiler import GrammarError
from ..model.encoder_decoder.spec import EncoderSpec
from ..protocol.block_hash import Span, extend_hashes, first_hash
from ..protocol.media import MediaItem
from ..protocol.messages import NO_QUOTA, Admit, Failed, Render, Rendered, ToRenderer
from ..protocol.request import Rendition
from ..protocol.topics.calls import Detokenize, Measure, Sync, Synced, Tokenize
from ..protocol.topics.io_processors import PostProcess, PreProcess
from ..protocol.topics.prompts import ChatPrompt, EmbedsPrompt, SoundPrompt
from ..runtime.in_flight import CALL, GivenUp, log_debug, request_name
from ..runtime.process import RENEW, Actor, Context, run
from ..sound.decode import SoundError
from ..telemetry.trace_events import EventKind
from .artifacts import Renditions
from .calls import Calls, caller_of
from .embeds import given_rows
from .encoder_input import lay_out
from .hearing import Hearer
from .media import spans_of
from .prompts import Prompts
from .refused import GONE, TOO_LONG, RenderRefused
from .templates.chat_template import TemplateProblem
from .templates.problem import OutOfMemory

FIRST_LIFE = 1
LONGEST_REASON = 2000  # characters of an error; a template may quote all of a message in it


class RendererActor(Actor):
    """Adapter between the rings and template and tokenizer."""

    one_record = True

    def __init__(self, context: Context) -> None:
        self.context = context
        self.table = context.table
        self.stamps = Stamps(context.table)
        self.arena = context.media()
        pooling = context.model.pooling  # of prompts that are computed whole no block is found again
        self._may_share = pooling is None or pooling.chunked
        self.prompts = Prompts(context)
        self.renditions = Renditions(self.prompts.tokenizer, context.model, self.table.rendition_bytes)
        self.engine = context.served.engines[0]
        self.router = EngineRouter(context) if len(context.served.engines) > 1 else None
        encoder = context.model.encoder
        self.sounds, self.hearer = context.sounds(), None
        if encoder is not None and encoder.speech is not None:
            own = self.prompts.tokenizer, encoder, encoder.speech, self.table.block_size
            self.hearer = Hearer(*own, beat=context.status.beat)
        self.embeds = context.prompt_embeds()
        self.calls = Calls(context, self.prompts, self.hearer)
        if context.config.io_processor_plugin is not None and context.incarnation == FIRST_LIFE:
            self.calls.try_plugin()
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
                self._guarded(lambda: self.calls.tokenize(message), CALL | message.call, call=message.call)
            case Detokenize():
                self._guarded(lambda: self.calls.detokenize(message), CALL | message.call, call=message.call)
            case Measure():
                self._guarded(lambda: self.calls.measure(message), CALL | message.call, call=message.call)
            case PreProcess():
                self._guarded(lambda: self.calls.pre_process(message), CALL | message.call, call=message.call)
            case PostProcess():
                self._guarded(lambda: self.calls.post_process(message), CALL | message.call, call=message.call)
            case Sync():
                self.context.post(caller_of(message.call), Synced(message.call))

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
        target = self.context.system.frontend_of(slot_of(refs[0])) if refs else caller_of(call)
        reason = str(error)[:LONGEST_REASON].encode(errors="replace").decode()  # it must not break the lane
        self.context.post(target, Failed(refs, error.status, reason, error.param, call, error.code, error.lengths))

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
        self.prompts.check_form(message.prompt)
        if message.pools:
            self._write_pooled(refs, message)
            return
        text = self.prompts.chat_text(message.prompt, message.media) if isinstance(message.prompt, ChatPrompt) else None
        rendition = self._rendition(refs, message, text)
        if isinstance(message.prompt, EmbedsPrompt):
            self._write_embeds(refs, message, message.prompt, rendition)
            return
        if message.media:
            tokens, items = self.prompts.with_media(message, text)
        else:
            self.prompts.check_length(message.prompt, text)
            tokens, items = self.prompts.truncated(self.prompts.prompt_tokens(message.prompt, text), message), []
        if (spec := self.context.model.encoder) is not None:
            self._write_encoded(refs, message, spec, tokens, rendition)
            return
        self._store(refs, message, tokens, self.prompts.limit(len(tokens), message), rendition, items)

    def _write_pooled(self, refs: list[int], message: Render) -> None:
        """The same of one that pools."""
        if message.media:
            tokens, items = self.prompts.pooled_with_media(message)
            self._store(refs, message, tokens, 1, b"", items)
        else:
            tokens, second = self.prompts.pooled_tokens(message)
            rendition = msgspec.msgpack.encode(Rendition(second=second)) if second else b""
            self._store(refs, message, tokens, 1, rendition)

    def _rendition(self, refs: list[int], message: Render, text: str | None) -> bytes:
        """What its parameters come to, beside this text of a chat."""
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
        return rendition

    def _write_embeds(self, refs: list[int], message: Render, prompt: EmbedsPrompt, rendition: bytes) -> None:
        """The same of a prompt that is embeddings: they lie in the slots before the prompt is published."""
        if self.embeds is None:
            raise RenderRefused(400, "prompt_embeds: this model takes none.", "prompt_embeds")
        given = given_rows(prompt, self.context.model)
        given.write(self.embeds, [ref for ref in refs if self._is_wanted(ref)])
        limit = self.prompts.limit(len(given.rows), message)
        self._store(refs, message, given.tokens, limit, rendition, spans=[given.span])

    def _write_encoded(
        self, refs: list[int], message: Render, spec: EncoderSpec, tokens: list[int], rendition: bytes
    ) -> None:
        """The same of a prompt that an encoder reads."""
        if len(tokens) > spec.longest:
            raise self.prompts.too_long(len(tokens), message.prompt, longest=spec.longest)
        log = lay_out(spec, self.table.block_size, tokens, spec.start, rendition)
        limit = self.prompts.limit(len(log.tokens), message)
        if limit > log.room and message.max_tokens is not None:
            text = f"max_tokens: {limit} is more than the {log.room} tokens that this model's decoder writes."
            raise RenderRefused(400, text, "max_tokens", TOO_LONG)
        self._store(refs, message, log.tokens, min(limit, log.room), log.rendition)

    def _hear(self, refs: list[int], message: Render, prompt: SoundPrompt) -> None:
        """Each slot has a window of the sound: its features lie there before the prompt is published."""
        assert self.hearer is not None and self.sounds is not None
        try:
            found = self.hearer.features(prompt.data, [prompt.window + message.refs.index(ref) for ref in refs])
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

    def _store(
        self,
        refs: list[int],
        message: Render,
        tokens: list[int],
        limit: int,
        rendition: bytes,
        items: Sequence[MediaItem] = (),
        spans: Sequence[Span] = (),
    ) -> None:
        """Into the slots that are still wanted."""
        limit = _within_quota(len(tokens), limit, message)
        self.prompts.check_rows(tokens, items, message)
        ids = np.array(tokens, np.int32).tobytes()
        hashes = b""
        if self._may_share:
            first = first_hash(message.cache_salt, message.adapter)
            hashes = extend_hashes(first, ids, self.table.block_size, spans=[*spans, *spans_of(items)])
        if any(len(given) > limit for given in message.given):
            raise RenderRefused(400, f"choices: more tokens than the {limit} that the answer may have.", "choices")
        among = () if message.engine is None else (message.engine,)
        engine = self.engine if self.router is None else self.router.choose(hashes, len(tokens), len(refs), among)
        self._stamp(refs, Stamp.RENDERED)
        for ref in refs:
            if self._is_wanted(ref):
                if self.arena is not None and items:
                    self.arena.write_items(ref, list(items))
                given = message.given[message.refs.index(ref)] if message.given else []
                pinned = message.engine is not None
                self.table.write_prompt(ref, ids, hashes, limit, rendition, engine, pinned, given)

    def _stamp(self, refs: list[int], stamp: Stamp) -> None:
        now = time.monotonic_ns()
        for ref in refs:
            self.stamps.set_first(ref, stamp, now)

    def _is_wanted(self, ref: int) -> bool:
        return self.table.is_current(ref) and not self.table.is_cancelled(ref)


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
        raise RenderRefused(429, text, None, NO_QUOTA)
    return limit if message.pools else min(limit, left)
