"""The detokenizer actor: token logs → text for the frontends.

An Advance says which slots moved; how far is in the table. The text cursor of a slot moves only after the text up to it
was published, so a successor decodes the log up to there without sending and goes on; text that comes twice is dropped
by the frontend, which counts characters.
"""

from __future__ import annotations

import msgspec

from actorserve.shm.logprobs import Logprobs
from actorserve.shm.table import slot_of

from ..hand import GivenUp, log_debug, request_name
from ..messages import Delta, Finish, PromptTold, Resend, Stopped, ToDetokenizer, ToldToken
from ..parameters import Generation, Rendition
from ..runtime import Actor, Context, run
from ..tokenization import load_tokenizer
from .incremental import decoder_factory, word_bytes
from .stream import PIECE, TextStream
from .told import Teller

DEADLY = 0xFFFFFFFF  # in the stop word: no stop string was found, but detokenizers die on this text


class DetokenizerActor(Actor):
    """Adapter between the rings, the table and the text streams of its slots."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.table = context.table
        self.streams: dict[int, TextStream] = {}
        tokenizer = load_tokenizer(context.model)
        self._make_decoder = decoder_factory(tokenizer)
        area = Logprobs(context.files["logprobs"], *context.system.logprobs)
        self.teller = Teller(self.table, area, word_bytes(tokenizer))
        self._read_rendition = msgspec.msgpack.Decoder(Rendition).decode
        self._read_params = msgspec.msgpack.Decoder(Generation).decode
        self._moved: dict[int, int] = {}  # text cursors to store once what they count is published
        for ref in self.table.current_refs(0, self.table.slots):
            mine = context.system.detokenizer_of(slot_of(ref)) == context.name
            if mine and self.table.prompt_length(ref) is not None:
                self.advance(ref)

    def handle(self, message: ToDetokenizer) -> None:
        """Look at the slots that moved, or that have a new reader."""
        for ref in message.refs:
            self.advance(ref, from_start=isinstance(message, Resend))

    def published(self) -> None:
        """The deltas are in the lanes: say how far their text goes."""
        for ref, tokens in self._moved.items():
            self.table.set_text(ref, tokens)
        self._moved.clear()

    def advance(self, ref: int, from_start: bool = False) -> None:
        """Turn what is new in a slot's log into text and send it. May be called any number of times."""
        try:
            self.context.hand.take(ref)
        except GivenUp:
            self._give_up(ref)
        self._advance(ref, from_start)
        self.context.hand.drop()

    def _give_up(self, ref: int) -> None:
        """Detokenizers have died on this text: it ends here, and the scheduler is told so as of a stop string."""
        self.context.log.error("%s is given up: detokenizers died on it", request_name(self.table, ref))
        if self.table.prompt_length(ref) is not None:
            self.table.set_stop(ref, DEADLY)
            self.context.post("scheduler", Stopped([ref]))

    def _advance(self, ref: int, from_start: bool) -> None:
        table = self.table
        finish = table.finish(ref)  # before the tokens cursor, which the scheduler stores first
        prompt = table.prompt_length(ref)
        if from_start:
            self.streams.pop(ref, None)
        if not table.is_current(ref) or prompt is None:
            self.streams.pop(ref, None)
            return
        if table.stop(ref) == DEADLY:
            self.streams.pop(ref, None)
            self._post(Delta(ref, 0, "", table.text(ref), Finish.ERROR, last=bool(finish)))
            return
        generated = table.generated(ref)
        stream = self.streams.get(ref) or self._open(ref, prompt, 0 if from_start else table.text(ref))
        if stream is None:
            return
        if not stream.prompt_told and (generated or finish):
            self._tell_prompt(ref, stream, prompt)
        was_found = stream.found is not None
        while stream.tokens < generated and not stream.is_over:
            stop = min(generated, stream.tokens + PIECE)
            stream.push(table.token_ids(ref, prompt + stream.tokens, prompt + stop).tolist())
            if stop < generated and not stream.is_over and stream.has_news:
                self._send(ref, stream, 0, False)
        if finish and not was_found:
            stream.finish()
        if stream.found is not None and not was_found:
            self._stop(ref, stream)
        self._send(ref, stream, finish, was_found)
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
        self.streams[ref] = stream
        stream.prompt_told = stream.params.sampling.prompt_logprobs < 0 or sent > 0
        if sent:
            stream.push(self.table.token_ids(ref, prompt, prompt + sent).tolist())
            stream.take()
        return stream

    def _stop(self, ref: int, stream: TextStream) -> None:
        """A stop string was found: the scheduler must not go on with this sequence."""
        self.table.set_stop(ref, stream.tokens)
        self.context.post("scheduler", Stopped([ref]))

    def _send(self, ref: int, stream: TextStream, finish: int, was_found: bool) -> None:
        code = Finish.STOP_STRING if stream.found is not None else Finish(finish)
        ends = bool(finish) or (stream.found is not None and not was_found)
        if not ends and not stream.has_news:
            return
        told_from = stream.told
        offset, text = stream.take()
        reason: str | int | None = stream.found
        if code is Finish.STOP:
            last = self._last_token(ref)
            reason = last if last in stream.params.stop_token_ids else None
        end = (int(code), reason) if ends else (0, None)
        told = self._told(ref, stream, told_from) if stream.is_told else []
        self._post(Delta(ref, offset, text, stream.tokens, *end, bool(finish), stream.thought, told))
        self._moved[ref] = stream.tokens

    def _tell_prompt(self, ref: int, stream: TextStream, length: int) -> None:
        stream.prompt_told = True
        for start, told in self.teller.prompt(ref, length, stream.params.sampling.prompt_logprobs):
            self._post(PromptTold(ref, start, told))

    def _told(self, ref: int, stream: TextStream, start: int) -> list[ToldToken]:
        """The stream's tokens from number `start` on."""
        prompt = self.table.prompt_length(ref) or 0
        return self.teller.tell(ref, prompt + start, prompt + stream.tokens, stream.params.sampling.logprobs)

    def _post(self, message: Delta | PromptTold) -> None:
        self.context.post(self.context.system.frontend_of(slot_of(message.ref)), message)

    def _last_token(self, ref: int) -> int:
        """The token that ended the sequence."""
        end = (self.table.prompt_length(ref) or 0) + self.table.generated(ref)
        return self.table.token_ids(ref, end - 1, end)[0]


def main(context: Context) -> None:
    """Run a detokenizer until it is told to stop."""
    run(DetokenizerActor(context), context)
