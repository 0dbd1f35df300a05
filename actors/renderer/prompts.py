"""Token ids of prompts, in whatever form these come: text, conversation, ids, pairs, with pictures."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..model.tokenizers.tokenizer import load_tokenizer, special_tokens
from ..protocol.media import MediaItem, PreparedMedia
from ..protocol.messages import Render
from ..protocol.topics.calls import Tokenize
from ..protocol.topics.prompts import ChatPrompt, EmbedsPrompt, PairPrompt, Prompt, SoundPrompt, TextPrompt, TokenPrompt
from ..runtime.process import Context
from .encode_cache import SegmentCache
from .media import (
    Misplaced,
    expanded,
    expanded_ids,
    in_order,
    items_of,
    marked,
    with_placeholders,
    written_as_texts,
)
from .oversized import least_tokens
from .pooled import PooledTexts, TooFewTokens, lowered, without_punctuation
from .refused import NO_TOKENIZER, TOO_LONG, RenderRefused
from .templates.chat_template import ChatTemplate, TemplateProblem, find_templates
from .templates.escaping import Escaped, Escaping
from .templates.problem import OutOfMemory

if TYPE_CHECKING:
    from tokenizers import Encoding

T = TypeVar("T")
Span = tuple[int, int]
SURROGATE = re.compile("[\ud800-\udfff]")  # JSON may escape one without the other
BEFORE, BEHIND = "the text before", "the text behind"  # what is shown


class Prompts:
    """Template and tokenizer of the model; RenderRefused says what is wrong with a prompt."""

    def __init__(self, context: Context) -> None:
        self._model = context.model
        self.has_tokenizer = bool(context.model.tokenizer_folder)
        self.tokenizer = load_tokenizer(context.model)
        self.segments = SegmentCache(self.tokenizer)
        self._pooled = PooledTexts(self.tokenizer, context.model)
        self.template = ChatTemplate(context.config, context.model, context.status.beat)
        self._escaping: Escaping | None = None
        if context.config.escape_special_tokens:
            self._escaping = Escaping(self.tokenizer, find_templates(context.config, context.model).values())
        self.bos = self.tokenizer.token_to_id(special_tokens(context.model).get("bos_token", ""))

    def prompt_tokens(self, prompt: Prompt, chat: str | None) -> list[int]:
        """The prompt's ids; never empty. `chat` is the text of a conversation."""
        tokens = self.tokens(prompt, chat)
        if not tokens and self.bos is not None:
            tokens = [self.bos]
        if not tokens:
            field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
            raise RenderRefused(400, "The prompt is empty: it must contain at least one token.", field)
        return tokens

    def tokens(self, prompt: Prompt, chat: str | None) -> list[int]:
        """As `prompt_tokens`, or none."""
        match prompt:
            case ChatPrompt():
                return self._behind(prompt.context, self._text_tokens(chat or "", prompt.add_special_tokens))
            case TextPrompt():
                return self._text_tokens(prompt.text, prompt.add_special_tokens)
            case TokenPrompt():
                self.check_ids(prompt.tokens, "prompt")
                return prompt.tokens
            case PairPrompt():
                return self._pooled.encode(prompt)[0]
            case EmbedsPrompt():
                raise RenderRefused(400, "prompt_embeds: embeddings have no tokens.", "prompt_embeds")
            case SoundPrompt():
                raise RenderRefused(400, "file: a sound has no tokens.", "file")

    def _behind(self, context: list[int], tokens: list[int]) -> list[int]:
        """A text has begun once: what a template, or the tokenizer, writes at the head of each is left out here."""
        if not context:
            return tokens
        self.check_ids(context, "context")
        return context + tokens[1 if tokens[:1] == [self.bos] else 0 :]

    def check_length(self, prompt: Prompt, chat: str | None) -> None:
        """400 for a text that is seen to be too long before it is tokenised; also where most of it would be cut off, or
        is to be counted only: everybody else's prompts would wait for that.
        """
        text, tokenizer = prompt.text if isinstance(prompt, TextPrompt) else chat or "", self.tokenizer
        if self._escaping is not None and isinstance(text, Escaped):
            text, tokenizer = text.renamed, self._escaping.copy
        if least := least_tokens(tokenizer, text, self._model.max_model_len):
            raise self.too_long(least, prompt, exact=False)

    def too_long(
        self, count: int, prompt: Prompt, field: str = "", longest: int = 0, exact: bool = True
    ) -> RenderRefused:
        """What is answered to a prompt of so many tokens, or of more."""
        field = field or ("messages" if isinstance(prompt, ChatPrompt) else "prompt")
        longest = longest or self._model.max_model_len
        text = (
            f"This model's maximum context length is {longest} tokens. However, "
            f"your prompt has {'' if exact else 'at least '}{count} tokens. Please shorten it."
        )
        return RenderRefused(400, text, field, TOO_LONG, (count, longest))

    def check_ids(self, tokens: list[int], field: str) -> None:
        """400 for ids that no token has."""
        size = self._model.vocab_size
        bad = next((token for token in tokens if not 0 <= token < size), None)
        if bad is not None:
            raise RenderRefused(400, f"Token id {bad} is out of vocabulary (0 to {size - 1}).", field)

    def check_rows(self, tokens: Sequence[int], items: Sequence[MediaItem], message: Render) -> None:
        """400 where a text has a token that the model has no row for, as the tokenizers of some have: its worker would
        die of it. What stands for pictures has embeddings of its own.
        """
        size = self._model.vocab_size
        missing = np.asarray(tokens) >= size
        for item in items:
            missing[item.start : item.start + item.length] = False
        if missing.any():
            token = int(tokens[int(missing.argmax())])
            name = self.tokenizer.id_to_token(token) if self.has_tokenizer else None
            field = message.field or ("messages" if isinstance(message.prompt, ChatPrompt) else "prompt")
            text = f"{field}: the token {name!r} ({token}) is out of the model's vocabulary (0 to {size - 1})."
            raise RenderRefused(400, text, field)

    def check_form(self, prompt: Prompt) -> None:
        """400 for a text where there is no tokenizer."""
        if self.has_tokenizer or isinstance(prompt, TokenPrompt | EmbedsPrompt):
            return
        field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
        raise RenderRefused(400, f"{field}: {NO_TOKENIZER.format('prompt')}.", field)

    def chat_text(self, prompt: ChatPrompt, media: Sequence[PreparedMedia] = ()) -> str:
        """The text of a conversation, as the chat template makes it."""
        parts = (prompt.messages, prompt.documents, prompt.tools, prompt.template_kwargs)
        messages, documents, *others = map(_loads, parts)

        def render(messages: Any, documents: Any) -> str:
            tools, variables = others
            messages = with_placeholders(messages, media)
            how = (prompt.add_generation_prompt, prompt.continue_final_message, prompt.chat_template)
            text = self.template.render(messages, tools, documents, variables, *how)
            if (changed := written_as_texts(messages, text, media)) is not None:
                text = self.template.render(changed, tools, documents, variables, *how)
            return text

        if self._escaping is None:
            text = render(messages, documents)
        else:
            text = self._escaping.rendered(render, messages, documents, *others, prompt.chat_template)
        if SURROGATE.search(text):
            raise TemplateProblem("half a character (a lone surrogate) cannot be tokenised")
        return text

    def _text_tokens(self, text: str, add_special_tokens: bool) -> list[int]:
        if self._escaping is not None and isinstance(text, Escaped):
            return self._escaping.encode(text, add_special_tokens)
        if add_special_tokens:
            ids: list[int] = self.tokenizer.encode(text).ids
            return ids
        return self.segments.encode(text)

    def limit(self, count: int, message: Render) -> int:
        """How many tokens may be generated; 400 with the numbers where the model is too short for the request."""
        longest = self._model.max_model_len
        if count >= longest:
            raise self.too_long(count, message.prompt)
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
                (count, longest),
            )
        return message.max_tokens

    def with_media(self, message: Render, text: str | None) -> tuple[list[int], list[MediaItem]]:
        """The ids of a prompt with pictures, and where these stand in it."""
        tokens, order = self.media_tokens(message.prompt, text, message.media)
        if len(self.truncated(tokens, message)) < len(tokens):
            field = "truncate_prompt_tokens"
            raise RenderRefused(400, f"{field}: a prompt with pictures is not cut; it has {len(tokens)} tokens.", field)
        return tokens, self._items(message.prompt, tokens, order)

    def media_tokens(
        self, prompt: Prompt, text: str | None, media: Sequence[PreparedMedia]
    ) -> tuple[list[int], list[PreparedMedia]]:
        """(ids, pictures in the order in which they stand there)."""
        try:
            if isinstance(prompt, TokenPrompt):
                self.check_ids(prompt.tokens, "prompt")
                return expanded_ids(prompt.tokens, media, self.segments.encode)
            given = prompt.text if isinstance(prompt, TextPrompt) else text or ""
            if isinstance(prompt, TextPrompt) and prompt.marker:
                given = marked(given, prompt.marker, media, self._as_in_chats)
            order = in_order(given, media)
            if self._escaping is not None and isinstance(given, Escaped):
                whole: str = self._escaping.expanded(given, lambda renamed, rename: expanded(renamed, media, rename))
            else:
                whole = expanded(given, media)
        except Misplaced as error:
            raise _misplaced(prompt, error) from None
        self.check_length(prompt if isinstance(prompt, ChatPrompt) else TextPrompt(whole), whole)
        special = isinstance(prompt, ChatPrompt | TextPrompt) and prompt.add_special_tokens
        return self._text_tokens(whole, special), order

    def _items(self, prompt: Prompt, tokens: list[int], order: list[PreparedMedia]) -> list[MediaItem]:
        """Where the embeddings go; 400 where a text has a token that stands for one."""
        try:
            return items_of(tokens, order)
        except Misplaced as error:
            raise _misplaced(prompt, error) from None

    def _as_in_chats(self, one: PreparedMedia) -> str:
        """What the chat template writes for it: of some models there are marks before and behind the placeholder."""
        parts = [{"type": "text", "text": BEFORE}, {"type": one.modality}, {"type": "text", "text": BEHIND}]
        try:
            chat = self.chat_text(ChatPrompt(json.dumps([{"role": "user", "content": parts}]).encode()), [one])
        except OutOfMemory:
            raise
        except (RenderRefused, TemplateProblem):  # as of a turn of a user alone
            return one.placeholder
        found = str(chat).partition(BEFORE)[2].partition(BEHIND)[0].strip()
        return found if found.count(one.placeholder) == 1 else one.placeholder

    def pooled_tokens(self, message: Render | Tokenize) -> tuple[list[int], int]:
        """The ids of a prompt of which nothing is generated, and where the second of two texts begins."""
        prompt, longest = message.prompt, self._longest(message)
        keep = longest if message.truncate_prompt_tokens == -1 else message.truncate_prompt_tokens
        if isinstance(prompt, ChatPrompt):
            prompt = TextPrompt(self.chat_text(prompt), prompt.add_special_tokens)
        assert not isinstance(prompt, SoundPrompt | EmbedsPrompt)
        if isinstance(prompt, TokenPrompt):
            self.check_ids(prompt.tokens, message.field or "prompt")
            tokens, second = prompt.tokens, 0
            if keep is not None:
                tokens = tokens[:keep] if message.keep_first else tokens[max(0, len(tokens) - keep) :]
        else:
            tokens, second = self._encode_pooled(prompt, keep, message)
        if not tokens:
            raise RenderRefused(400, "The prompt is empty: it must contain at least one token.", message.field)
        if len(tokens) > longest:
            raise self.too_long(len(tokens), prompt, self._to_blame(prompt, message.field), longest)
        return tokens, second

    def _longest(self, message: Render | Tokenize) -> int:
        """Tokens that a text may have."""
        return message.pools if isinstance(message, Tokenize) else self._model.longest_text

    def _to_blame(self, prompt: Prompt, field: str) -> str:
        """The field of what is too long: of a pair the first text, where it alone is."""
        if isinstance(prompt, PairPrompt) and prompt.field:
            alone = self.tokenizer.encode(prompt.text, add_special_tokens=False)
            if len(alone.ids) >= self._model.longest_text:
                return prompt.field
        return field

    def pooled_with_media(self, message: Render) -> tuple[list[int], list[MediaItem]]:
        """The same of a prompt with pictures, and where these stand in it."""
        prompt, pooling = message.prompt, self._model.pooling
        text = self.chat_text(prompt, message.media) if isinstance(prompt, ChatPrompt) else None
        if pooling is not None and pooling.dual is not None:
            tokens, order = self._picture_alone(message, text)
        else:
            tokens, order = self.media_tokens(prompt, text, message.media)
        if len(tokens) > self._model.max_model_len:
            raise self.too_long(len(tokens), message.prompt, message.field)
        return tokens, self._items(prompt, tokens, order)

    def _picture_alone(self, message: Render, chat: str | None) -> tuple[list[int], list[PreparedMedia]]:
        """The same of a model that makes a vector of a text or of a picture, whose ids are none of the tokenizer's."""
        prompt, pictures = message.prompt, message.media
        given = prompt.text if isinstance(prompt, TextPrompt) else chat
        if given is None or len(pictures) > 1 or given.strip() not in ("", pictures[0].placeholder):
            text = "this model makes a vector of a text, or of one picture: send them one by one"
            raise RenderRefused(400, f"{message.field}: {text}.", message.field)
        return [pictures[0].token] * pictures[0].count, pictures

    def _encode_pooled(
        self, prompt: TextPrompt | PairPrompt, keep: int | None, message: Render | Tokenize
    ) -> tuple[list[int], int]:
        pooling = self._model.pooling
        if pooling is not None and pooling.lower_case:
            prompt = lowered(prompt)
        if pooling is not None and pooling.dual is not None and pooling.dual.without_punctuation:
            prompt = without_punctuation(prompt)
        longest = self._longest(message)
        if isinstance(prompt, PairPrompt) and (prompt.template or (pooling is not None and pooling.templated)):
            pooled = self._pooled
            cut = pooled.firsts(prompt) if keep is None else pooled.pair(prompt, message.keep_first)
            prompt = self._templated(cut)
        if keep is None and isinstance(prompt, TextPrompt) and prompt.most:
            keep = longest
        if keep is not None:
            try:
                return self._pooled.encode_cut(prompt, keep, message.keep_first)
            except TooFewTokens:
                text = f"truncate_prompt_tokens: {keep} leaves no room for a text."
                raise RenderRefused(400, text, "truncate_prompt_tokens") from None
        texts = {message.field: prompt.text}
        if isinstance(prompt, PairPrompt):
            texts = {prompt.field or message.field: prompt.text, message.field: prompt.second}
        for field, text in texts.items():
            if least := least_tokens(self.tokenizer, text, longest):
                raise self.too_long(least, prompt, field, longest, exact=False)
        return self._pooled.encode(prompt)

    def _templated(self, pair: PairPrompt) -> TextPrompt:
        """What a chat template for scores makes of two texts: messages of the roles that vLLM's templates read."""
        messages = [{"role": "query", "content": pair.text}, {"role": "document", "content": pair.second}]
        chat = ChatPrompt(
            json.dumps(messages).encode(),
            template_kwargs=pair.variables or None,
            add_generation_prompt=False,
            chat_template=pair.template or None,
        )
        return TextPrompt(self.chat_text(chat))

    def truncated(self, tokens: list[int], message: Render | Tokenize) -> list[int]:
        """So many of the prompt as the request wants; by itself, as many as leave room for the answer."""
        return self._truncated(tokens, message, lambda encoding: encoding.ids)

    def offsets(self, message: Tokenize, chat: str | None) -> list[Span] | None:
        """Where each of those tokens begins and ends in the text, in characters; none of what is no text, or is not
        tokenised as it is written (--escape-special-tokens).
        """
        prompt = message.prompt
        text = chat if isinstance(prompt, ChatPrompt) else prompt.text if isinstance(prompt, TextPrompt) else None
        if text is None or message.media or isinstance(text, Escaped):
            return None
        assert isinstance(prompt, ChatPrompt | TextPrompt)
        found = self.tokenizer.encode(text, add_special_tokens=prompt.add_special_tokens)
        return self._truncated(found.offsets, message, lambda encoding: encoding.offsets)

    def _truncated(self, found: list[T], message: Render | Tokenize, of: Callable[[Encoding], list[T]]) -> list[T]:
        """Of something that each token has, which `of` an encoding tells."""
        keep = message.truncate_prompt_tokens
        if keep is None:
            return found
        if keep < 0:
            spec, longest = self._model.encoder, self._model.max_model_len
            keep = max(1, longest - (message.max_tokens or 1)) if spec is None else spec.longest
        prompt = message.prompt
        if len(found) > keep and isinstance(prompt, TextPrompt) and prompt.add_special_tokens:
            return of(self._cut(prompt.text, keep, message.keep_first))[:keep]
        return found[:keep] if message.keep_first else found[max(0, len(found) - keep) :]

    def _cut(self, text: str, keep: int, keep_first: bool) -> Encoding:
        """So many tokens of it, those among them that stand around any text (BOS)."""
        try:
            self.tokenizer.enable_truncation(max_length=keep, direction="right" if keep_first else "left")
            return self.tokenizer.encode(text)
        finally:
            self.tokenizer.no_truncation()


def _misplaced(prompt: Prompt, error: Misplaced) -> RenderRefused:
    field = "messages" if isinstance(prompt, ChatPrompt) else "prompt"
    return RenderRefused(400, f"{field}: {error}.", field)


def _loads(data: bytes | None) -> Any:
    try:
        return None if data is None else json.loads(data)
    except (ValueError, RecursionError) as error:
        raise TemplateProblem(f"this is no JSON that can be read: {error}") from None
