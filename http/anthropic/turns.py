"""Anthropic's messages to chat messages: each of their turns may hold what chat says in several."""

from __future__ import annotations

from ..errors import bad_request
from ..generation.adapter import checked, encoded
from .schemas import AnthropicTurn, ContentBlock, MediaSourceBlock, Object
from .tool_changes import CHANGES

Placed = tuple[str, ContentBlock]  # a block, and its path in the request
# Claude Code's note to whoever bills. It differs in each request, so that with it no prefix would be found again.
NOT_FOR_MODELS = "x-anthropic-billing-header:"
CALLS = ("tool_use", "server_tool_use", "mcp_tool_use")  # the last two called tools that the server ran that answered
RAN = "_tool_result"  # how types of what these gave end, which stands in the same message
SEALED = "encrypted_"  # how names of fields begin that none but that server reads


def messages_of(system: str | list[ContentBlock] | None, messages: list[AnthropicTurn]) -> list[Object]:
    """The chat messages. Neighbours of one role are one turn."""
    if not messages:
        raise bad_request("messages must not be empty.", "messages")
    if _is_empty_answer(messages[-1]) and len(messages) > 1:
        messages = messages[:-1]
    chat = _system(_for_models(_blocks(system, "system"))) if system else []
    for role, blocks in _turns(messages):
        if role == "assistant":
            chat += _assistant(blocks)
        elif role == "user":
            chat += _user(blocks)
        else:
            chat += _system(blocks)
    return chat


def begins_answer(messages: list[AnthropicTurn]) -> bool:
    """Is the last message the beginning of the answer, which the model goes on with?"""
    if not messages or messages[-1].role != "assistant":
        return False
    if _is_empty_answer(messages[-1]):
        return False
    path = f"messages[{len(messages) - 1}]"
    blocks = _blocks(messages[-1].content, f"{path}.content")
    behind = next((at for at, (_, block) in enumerate(reversed(blocks)) if _ran(block)), len(blocks))
    if not behind:
        return False  # with what a tool gave, to which the model has said nothing yet
    blocks = blocks[-behind:]
    if called := next((block.type for _, block in blocks if block.type in CALLS), None):
        raise bad_request(f"{path}: after a {called} block must come its tool_result.", path)
    if not any(block.text for _, block in blocks):
        raise bad_request(f"{path}: there is no text to go on with.", path)
    return True


def _is_empty_answer(message: AnthropicTurn) -> bool:
    """The last message may be an assistant's in which nothing is said: the answer begins as without it."""
    return message.role == "assistant" and not any(
        block.type != "text" or block.text for _, block in _blocks(message.content, "")
    )


def _blocks(content: str | list[ContentBlock] | None, path: str) -> list[Placed]:
    if isinstance(content, str):
        return [(path, ContentBlock("text", text=content))]
    return [(f"{path}[{index}]", block) for index, block in enumerate(content or [])]


def _turns(messages: list[AnthropicTurn]) -> list[tuple[str, list[Placed]]]:
    """A system's message of which no model reads anything, as one that only says which tools come and go, is none."""
    turns: list[tuple[str, list[Placed]]] = []
    for index, message in enumerate(messages):
        blocks = _blocks(message.content, f"messages[{index}].content")
        if message.role == "system":
            blocks = [one for one in _for_models(blocks) if one[1].type not in CHANGES]
            if not blocks:
                continue
        if turns and turns[-1][0] == message.role:
            turns[-1][1].extend(blocks)
        else:
            turns.append((message.role, blocks))
    return turns


def _for_models(blocks: list[Placed]) -> list[Placed]:
    return [one for one in blocks if not (one[1].text or "").startswith(NOT_FOR_MODELS)]


def _system(blocks: list[Placed]) -> list[Object]:
    if strange := next((one for one in blocks if one[1].type == "image"), None):
        raise bad_request(f"{strange[0]}: a system's content is text, and no picture.", strange[0])
    return [{"role": "system", "content": _text(blocks)}] if blocks else []


def _user(blocks: list[Placed]) -> list[Object]:
    """Results of tools stand before all else that the user says."""
    results = [_result(path, block) for path, block in blocks if block.type == "tool_result"]
    rest = [(path, block) for path, block in blocks if block.type != "tool_result"]
    said: list[Object] = [{"role": "user", "content": _text(rest)}] if rest or not results else []
    return results + said


def _result(path: str, block: ContentBlock) -> Object:
    content = _text(_contents(block.content, f"{path}.content"))
    message: Object = {"role": "tool", "tool_call_id": _given(path, block, "tool_use_id"), "content": content}
    return message | {"is_error": True} if block.is_error else message


def _contents(given: str | list[Object] | Object | None, path: str) -> list[Placed]:
    """Blocks that stand inside another one."""
    if isinstance(given, dict):
        raise bad_request(f"{path} must be a text or a list of blocks, and no object.", path)
    return _blocks(checked(list[ContentBlock], given, path) if isinstance(given, list) else given, path)


def _ran(block: ContentBlock) -> bool:
    """Is it what a tool gave that another server ran as it answered?"""
    return block.type.endswith(RAN)


def _assistant(blocks: list[Placed]) -> list[Object]:
    """One message; several where tools were run in between, whose results are as if the client had sent them."""
    said: list[Object] = []
    start = 0
    for at, (path, block) in enumerate(blocks):
        if _ran(block):
            said += [_answer(blocks[start:at])] if start < at else []
            said.append(_given_by_tool(path, block))
            start = at + 1
    return said if said and start == len(blocks) else [*said, _answer(blocks[start:])]


def _given_by_tool(path: str, block: ContentBlock) -> Object:
    """Texts as they are, all else as the JSON that came, without what only the one who wrote it reads."""
    given = block.content
    if isinstance(given, str):
        content = given
    elif isinstance(given, list) and all(isinstance(one.get("text"), str) for one in given):
        content = "\n".join(one["text"] for one in given)
    else:
        content = encoded(_unsealed(given), f"{path}.content").decode()
    return {"role": "tool", "tool_call_id": _given(path, block, "tool_use_id"), "content": content}


def _unsealed(given: object) -> object:
    if isinstance(given, dict):
        return {name: _unsealed(value) for name, value in given.items() if not name.startswith(SEALED)}
    return [_unsealed(one) for one in given] if isinstance(given, list) else given


def _answer(blocks: list[Placed]) -> Object:
    texts: list[Placed] = []
    thinking: list[str] = []
    calls: list[Object] = []
    for path, block in blocks:
        match block.type:
            case "thinking":
                thinking.append(_given(path, block, "thinking"))
            case "redacted_thinking":  # none of this server's
                continue
            case kind if kind in CALLS:
                calls.append(_call(path, block))
            case _:
                texts.append((path, block))
    message: Object = {"role": "assistant", "content": _text(texts)}
    if thinking:
        message["reasoning_content"] = "\n\n".join(thinking)
    if calls:
        message["tool_calls"] = calls
    return message


def _call(path: str, block: ContentBlock) -> Object:
    if block.input is None:
        raise bad_request(f"{path}.input is missing.", f"{path}.input")
    function = {"name": _given(path, block, "name"), "arguments": encoded(block.input, f"{path}.input").decode()}
    return {"id": _given(path, block, "id"), "type": "function", "function": function}


def _text(blocks: list[Placed]) -> str | list[Object]:
    """One text is a string; several are parts, and so are pictures. Documents and results are what they say."""
    parts = [_part(path, block) for outer in blocks for path, block in _inside(*outer)]
    if len(parts) < 2 and all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(path: str, block: ContentBlock) -> Object:
    if block.type == "image":
        return _picture(path, block)
    if block.type == "tool_reference":
        return {"type": "text", "text": _given(path, block, "tool_name")}
    if block.type in CHANGES:
        raise bad_request(f"{path}: {block.type} stands in messages of the role system alone.", path)
    if block.type != "text":
        raise bad_request(f"{path}: content of type {block.type!r} is not supported here.", path)
    return {"type": "text", "text": _given(path, block, "text")}


def _inside(path: str, block: ContentBlock) -> list[Placed]:
    """Of a document of text its title, what is said of it, and what it says; of what was found where that was, too; all
    else as it is.
    """
    if block.type != "search_result" and (block.type != "document" or block.source is None):
        return [(path, block)]
    if isinstance(block.citations, dict) and block.citations.get("enabled"):
        raise bad_request(f"{path}.citations are not supported: no citations are made.", f"{path}.citations")
    if block.type == "search_result":
        about, said = (block.title, _place(path, block)), _contents(block.content, f"{path}.content")
    else:
        about, said = (block.title, block.context), _document(path, _source(path, block))
    return [*(placed for given in about if given for placed in _blocks(given, path)), *said]


def _document(path: str, source: MediaSourceBlock) -> list[Placed]:
    match source.type:
        case "text" if source.data is not None:
            return _blocks(source.data, f"{path}.source.data")
        case "content" if source.content is not None:
            return _contents(source.content, f"{path}.source.content")
        case "text" | "content" as kind:
            name = f"{path}.source.{'data' if kind == 'text' else 'content'}"
            raise bad_request(f"{name} is missing.", name)
        case kind:
            raise bad_request(f"{path}.source.type: documents of {kind!r} are not read.", f"{path}.source.type")


def _picture(path: str, block: ContentBlock) -> Object:
    """As a chat's messages have it, which look at it."""
    source = _source(path, block)
    name = {"base64": "data", "url": "url"}.get(source.type)
    if name is None:
        raise bad_request(f"{path}.source.type: {source.type!r} is neither base64 nor url.", f"{path}.source.type")
    given = source.data if name == "data" else source.url
    if given is None:
        raise bad_request(f"{path}.source.{name} is missing.", f"{path}.source.{name}")
    url = given if name == "url" else f"data:{source.media_type or 'image/png'};base64,{given}"
    return {"type": "image", "image_url": {"url": url}, "place": path, "leaf": f"source.{name}"}


def _source(path: str, block: ContentBlock) -> MediaSourceBlock:
    if isinstance(block.source, MediaSourceBlock):
        return block.source
    what = "is missing" if block.source is None else f"of a {block.type} is an object, and no text"
    raise bad_request(f"{path}.source {what}.", f"{path}.source")


def _place(path: str, block: ContentBlock) -> str | None:
    """Where something was found."""
    if isinstance(block.source, MediaSourceBlock):
        raise bad_request(f"{path}.source of a {block.type} is a text, and no object.", f"{path}.source")
    return block.source


def _given(path: str, block: ContentBlock, name: str) -> str:
    value: str | None = getattr(block, name)
    if value is None:
        raise bad_request(f"{path}.{name} is missing.", f"{path}.{name}")
    return value
