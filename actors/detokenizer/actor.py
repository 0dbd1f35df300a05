"""The detokenizer actor: token logs → text for the frontends.

An Advance says which slots moved; how far is in the table. The text cursor of a slot moves only after the text up to it
was published, so a successor decodes the log up to there without sending and goes on; text that comes twice is dropped
by the frontend, which counts characters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from actorserve.shm.layout import LOW32
from actorserve.shm.rings.mailbox import Outbox
from actorserve.shm.table.logprobs import Logprobs
from actorserve.shm.table.table import slot_of
from actorserve.shm.table.token_cursor import TokenCursor

from ..model.tokenizers.token_bytes import bytes_of_tokens
from ..model.tokenizers.tokenizer import load_tokenizer
from ..protocol.messages import (
    Delta,
    Finish,
    Message,
    PromptTokenLogprobs,
    Resend,
    Resent,
    Stopped,
    ToDetokenizer,
    TokenLogprobs,
)
from ..protocol.request import Generation, Rendition
from ..runtime.in_flight import GivenUp, log_debug, request_name
from ..runtime.process import Actor, Context, run
from .decoder import decoder_factory
from .logprobs import LogprobReader, in_parts
from .stream import PIECE, TextStream

REPEATED = "repetition_detected"  # as vLLM says why
DEADLY = LOW32  # in the stop word: no stop string was found, but detokenizers die on this text


@dataclass(eq=False, slots=True)
class Followed:
    """A sequence in the middle of its text, and where that goes."""

    ref: int
    prompt: int  # tokens
    stream: TextStream
    cursors: TokenCursor
    post: Callable[[Message], None]  # to its frontend


class DetokenizerActor(Actor):
    """Adapter between the rings, the table and the text streams of its slots."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.table = context.table
        self.streams: dict[int, Followed] = {}
        tokenizer = load_tokenizer(context.model)
        self._make_decoder = decoder_factory(tokenizer)
        area = Logprobs(context.files["logprobs"], *context.system.files.logprobs)
        self.logprobs = LogprobReader(self.table, area, bytes_of_tokens(tokenizer))
        self._read_rendition = msgspec.msgpack.Decoder(Rendition).decode
        self._read_params = msgspec.msgpack.Decoder(Generation).decode
        self._moved: dict[TokenCursor, int] = {}  # text cursors to store once what they count is published
        for ref in self.table.current_refs(0, self.table.slots):
            mine = context.system.detokenizer_of(slot_of(ref), self.table.model(ref))
            if mine == context.name and self.table.prompt_length(ref) is not None:
                self.advance(ref)
        context.in_flight.drop()

    def handle(self, message: ToDetokenizer) -> None:
        """Look at the slots that moved, or that have a new reader."""
        from_start = isinstance(message, Resend)
        if from_start:  # of one frontend's slots
            self._outbox_of(message.refs[0]).post(Resent(message.refs))
        for ref in message.refs:
            self.advance(ref, from_start)
        self.context.in_flight.drop()

    def published(self) -> None:
        """The deltas are in the lanes: say how far their text goes."""
        for cursors, tokens in self._moved.items():
            cursors.set_text(tokens)
        self._moved.clear()

    def advance(self, ref: int, from_start: bool = False) -> None:
        """Turn what is new in a slot's log into text and send it. May be called any number of times."""
        try:
            self.context.in_flight.take(ref)
        except GivenUp:
            self._give_up(ref)
        followed = None if from_start else self.streams.get(ref)
        if followed is None:
            followed = self._begin(ref, from_start)
        if followed is not None:
            self._go_on(followed)

    def _give_up(self, ref: int) -> None:
        """Detokenizers have died on this text: it ends here, and the scheduler is told so as of a stop string."""
        self.context.log.error("%s is given up: detokenizers died on it", request_name(self.table, ref))
        if self.table.prompt_length(ref) is not None:
            self.table.set_stop(ref, DEADLY)
            self.context.post_to_owners(Stopped, [ref])

    def _begin(self, ref: int, from_start: bool) -> Followed | None:
        """Follow a slot; None where there is no text to come: it was reused, or is given up."""
        table = self.table
        finish = table.finish(ref)
        prompt = table.prompt_length(ref)
        self.streams.pop(ref, None)
        if not table.is_current(ref) or prompt is None:
            return None
        post = self._outbox_of(ref).post
        if table.stop(ref) == DEADLY:
            post(Delta(ref, 0, "", table.text(ref), Finish.ERROR, last=bool(finish)))
            return None
        stream = self._open(ref, prompt, 0 if from_start else table.text(ref))
        if stream is None:
            return None
        followed = self.streams[ref] = Followed(ref, prompt, stream, TokenCursor(table, ref), post)
        return followed

    def _outbox_of(self, ref: int) -> Outbox:
        """Of the slot's frontend."""
        return self.context.outboxes[self.context.system.frontend_of(slot_of(ref))]

    def _go_on(self, followed: Followed) -> None:
        """What is new in the log of a slot that is followed."""
        ref, prompt, stream = followed.ref, followed.prompt, followed.stream
        seen = followed.cursors.look()
        if seen is None:
            del self.streams[ref]
            return
        generated, finish = seen
        if not stream.prompt_logprobs_sent and (generated or finish):
            self._tell_prompt(followed)
        was_cut = stream.is_cut
        while stream.tokens < generated and not stream.is_over:
            stop = min(generated, stream.tokens + PIECE)
            stream.push(self.table.token_ids(ref, prompt + stream.tokens, prompt + stop).tolist())
            if stop < generated and not stream.is_over and stream.has_news:
                self._send(followed)
        if (finish or stream.repeated) and not was_cut:
            stream.finish()
        cut = stream.is_cut and not was_cut
        if cut:
            self._stop(followed)
        if finish or cut:
            self._send(followed, self._end(followed, finish), bool(finish))
        elif stream.has_news:
            self._send(followed)
        if finish:
            del self.streams[ref]

    def _open(self, ref: int, prompt: int, sent: int = 0) -> TextStream | None:
        """A sequence after `sent` tokens, whose text was sent before; None if the slot was reused just now."""
        params = self.table.params(ref)
        if not params:
            return None
        rendition = self.table.rendition(ref)
        opened = bool(rendition) and self._read_rendition(rendition).opened
        log_debug(self.context.log, "the text of %s begins", self.table, ref)
        stream = TextStream.open(self._read_params(params), self._make_decoder, self.context.model.end_tokens, opened)
        stream.prompt_logprobs_sent = stream.params.sampling.prompt_logprobs < 0 or sent > 0
        if sent:
            stream.push(self.table.token_ids(ref, prompt, prompt + sent).tolist())
            stream.take()
        return stream

    def _stop(self, followed: Followed) -> None:
        """A stop string was found, or a repetition: the scheduler must not go on with this sequence."""
        self.table.set_stop(followed.ref, followed.stream.tokens)
        self.context.post_to_owners(Stopped, [followed.ref])

    def _end(self, followed: Followed, finish: int) -> tuple[int, str | int | None]:
        """Why the text ends, as a client is told."""
        stream = followed.stream
        if stream.found is not None:
            return int(Finish.STOP_STRING), stream.found
        if stream.repeated:
            return int(Finish.REPETITION), REPEATED
        if finish != Finish.STOP:
            return finish, None
        last = self._last_token(followed.ref)
        return finish, last if last in stream.params.stop_token_ids else None

    def _send(self, followed: Followed, end: tuple[int, str | int | None] = (0, None), last: bool = False) -> None:
        stream = followed.stream
        *before, told = in_parts(self._told(followed)) if stream.with_logprobs else [[]]
        at, (offset, text) = stream.taken, stream.take()
        for part in before:
            at += len(part)
            followed.post(Delta(followed.ref, offset, "", at, thought=min(at, stream.thought), logprobs=part))
        followed.post(Delta(followed.ref, offset, text, stream.tokens, *end, last, stream.thought, told))
        if stream.with_logprobs:  # of a log that is said again there are many
            self.context.status.beat()
        self._moved[followed.cursors] = stream.tokens

    def _tell_prompt(self, followed: Followed) -> None:
        """Part by part: all of a long prompt may take longer than an actor may stand still, and much memory."""
        ref, stream, outbox = followed.ref, followed.stream, self._outbox_of(followed.ref)
        stream.prompt_logprobs_sent = True
        asked = stream.params.sampling
        listed = asked.logprob_token_ids if asked.lists_prompt else ()
        for start, told in self.logprobs.prompt(ref, followed.prompt, asked.prompt_logprobs, listed):
            followed.post(PromptTokenLogprobs(ref, start, told))
            outbox.flush()
            self.context.status.beat()

    def _told(self, followed: Followed) -> list[TokenLogprobs]:
        """The stream's tokens that were not taken yet."""
        prompt, stream = followed.prompt, followed.stream
        asked = stream.params.sampling
        start, stop = prompt + stream.taken, prompt + stream.tokens
        return self.logprobs.tell(followed.ref, start, stop, asked.logprobs, asked.logprob_token_ids)

    def _last_token(self, ref: int) -> int:
        """The token that ended the sequence."""
        end = (self.table.prompt_length(ref) or 0) + self.table.generated(ref)
        return self.table.token_ids(ref, end - 1, end)[0]


def main(context: Context) -> None:
    """Run a detokenizer until it is told to stop."""
    run(DetokenizerActor(context), context)
