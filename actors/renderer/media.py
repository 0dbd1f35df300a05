"""Pictures and sounds in prompts: what is written in place of their placeholders, and where their embeddings go."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..protocol.block_hash import Span
from ..protocol.media import MediaItem, PreparedMedia

PLACEHOLDER = "placeholder"  # of a content's part, for templates that read texts alone


class Misplaced(ValueError):
    """There are not as many placeholders as there are pictures; the message says so."""


def marked(text: str, marker: str, media: Sequence[PreparedMedia], written: Callable[[PreparedMedia], str]) -> str:
    """The text with what is `written` for each, in its order, where it has the marker."""
    first, *others = text.split(marker)
    _check(marker, len(others), len(media))
    return first + "".join(written(one) + part for one, part in zip(media, others, strict=True))


def expanded(text: str, media: Sequence[PreparedMedia], rename: Callable[[str], str] = str) -> str:
    """The text with what is written for each picture, in the place of its placeholder. `rename`: special tokens have
    other names in this text.
    """
    ahead = {rename(placeholder): ones for placeholder, ones in _by_placeholder(media).items()}
    found = _pattern(ahead).split(text)
    for placeholder, ones in ahead.items():
        _check(ones[0].placeholder, found[1::2].count(placeholder), len(ones))
    turns = {placeholder: iter(ones) for placeholder, ones in ahead.items()}
    found[1::2] = [rename(next(turns[placeholder]).text) for placeholder in found[1::2]]
    return "".join(found)


def _pattern(placeholders: Iterable[str]) -> re.Pattern[str]:
    return re.compile(f"({'|'.join(map(re.escape, sorted(placeholders, key=len, reverse=True)))})")


def in_order(text: str, media: Sequence[PreparedMedia]) -> list[PreparedMedia]:
    """The pictures, films and sounds as their placeholders stand in the text; each kind is in its own order already."""
    ahead = _by_placeholder(media)
    found = _pattern(ahead).findall(text)
    for placeholder, ones in ahead.items():
        _check(placeholder, found.count(placeholder), len(ones))
    turns = {placeholder: iter(ones) for placeholder, ones in ahead.items()}
    return [next(turns[placeholder]) for placeholder in found]


def expanded_ids(
    ids: Sequence[int], media: Sequence[PreparedMedia], encode: Callable[[str], list[int]]
) -> tuple[list[int], list[PreparedMedia]]:
    """Token ids with those of each picture in the place of its placeholder's, and the pictures in that order. A prompt
    that holds all of their ids already is taken as it is.
    """
    if sum(map(ids.count, {one.token for one in media})) == sum(one.count for one in media):
        return list(ids), list(media)
    ahead = _by_placeholder(media)
    spelt = {placeholder: encode(placeholder) for placeholder in ahead}
    turns = {spelling[0]: iter(ahead[placeholder]) for placeholder, spelling in spelt.items() if len(spelling) == 1}
    for placeholder, spelling in spelt.items():
        _check(placeholder, ids.count(spelling[0]) if len(spelling) == 1 else 0, len(ahead[placeholder]))
    made: list[int] = []
    order: list[PreparedMedia] = []
    for token in ids:
        if token in turns:
            order.append(next(turns[token]))
            made += encode(order[-1].text)
        else:
            made.append(token)
    return made, order


def _by_placeholder(media: Sequence[PreparedMedia]) -> dict[str, list[PreparedMedia]]:
    found: dict[str, list[PreparedMedia]] = defaultdict(list)
    for one in media:
        found[one.placeholder].append(one)
    return found


def _check(placeholder: str, there: int, wanted: int) -> None:
    if there != wanted:
        raise Misplaced(
            f"the prompt has {there} times {placeholder}, and the request {wanted} of what stands there: a text must "
            "not hold it, and the chat template must write it for each"
        )


def items_of(tokens: Sequence[int], media: Sequence[PreparedMedia]) -> list[MediaItem]:
    """Where the embeddings of each go; `media` in the order of the prompt."""
    ids = {one.token for one in media}
    places = [position for position, token in enumerate(tokens) if token in ids] if media else []
    if len(places) != sum(one.count for one in media):
        raise Misplaced(
            f"the prompt has {len(places)} tokens for embeddings of pictures, which have "
            f"{sum(one.count for one in media)}"
        )
    items, first = [], 0
    for one in media:
        own = places[first : first + one.count]
        first += one.count
        start = own[0] if own else 0
        length = own[-1] - start + 1 if own else 0
        items.append(MediaItem(one.modality, one.digest, start, length, one.tensors))
    return items


def spans_of(items: Sequence[MediaItem]) -> list[Span]:
    """What the hashes of blocks must say beside token ids."""
    return [(item.start, item.start + item.length, item.digest) for item in items if item.length]


def with_placeholders(messages: Any, media: Sequence[PreparedMedia]) -> Any:
    """Messages whose parts that are pictures say what stands for them in a text."""
    placeholders = {one.modality: one.placeholder for one in media}
    if not placeholders or not isinstance(messages, list):
        return messages
    return [_with_placeholders(message, placeholders) for message in messages]


def _with_placeholders(message: Any, placeholders: dict[str, str]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    parts = [
        {**part, PLACEHOLDER: placeholders[kind]} if kind in placeholders else part
        for kind, part in zip(kinds, content, strict=True)
    ]
    return {**message, "content": parts}


def written_as_texts(messages: Any, text: str, media: Sequence[PreparedMedia]) -> Any | None:
    """Messages in which those parts are texts of which a template has written nothing, as it does that knows no films;
    None where it has written of all.
    """
    unknown = {one.modality for one in media if one.placeholder not in text}
    if not unknown or not isinstance(messages, list):
        return None
    return [_as_texts(message, unknown) for message in messages]


def _as_texts(message: Any, kinds: set[str]) -> Any:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return message
    parts = [
        {"type": "text", "text": part[PLACEHOLDER]} if isinstance(part, dict) and part.get("type") in kinds else part
        for part in content
    ]
    return {**message, "content": parts}
