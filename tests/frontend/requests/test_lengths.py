"""What is longer than its lane is refused before anything is begun for it, and names the field."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any

import pytest

from actorserve.actors.protocol.messages import Failed, Render, Rendered
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, SoundPrompt, TextPrompt, TokenPrompt
from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job

from ..others import PARAMS, Others, job

CHAT = b'[{"role":"user","content":"Hello"}]'


def size_of(others: Others, name: str = "renderer-0") -> int:
    return others.context.outboxes[name].max_message


def refused(others: Others, asked: Job) -> ApiError:
    before = others.engine.slots.free, others.engine.in_flight(), others.engine.renderers.in_flight
    with pytest.raises(ApiError) as caught:
        others.engine.submit(asked)
    assert (others.engine.slots.free, others.engine.in_flight(), others.engine.renderers.in_flight) == before
    assert caught.value.status == 413 and caught.value.message.startswith(f"{caught.value.param}: ")
    return caught.value


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("messages", "messages"),
        ("tools", "tools"),
        ("documents", "documents"),
        ("template_kwargs", "chat_template_kwargs"),
    ],
)
async def test_of_a_chat_the_longest_part_is_named(others: Others, name: str, field: str) -> None:
    fields: dict[str, Any] = {"messages": CHAT, name: bytes(size_of(others))}
    error = refused(others, Job([ChatPrompt(**fields)], [PARAMS] * 2))
    assert error.param == field and f"at most {size_of(others)} are taken" in error.message


@pytest.mark.parametrize(("prompt", "field"), [(TokenPrompt, "prompt"), (TextPrompt, "prompt"), (SoundPrompt, "file")])
async def test_of_another_prompt_its_field_is(others: Others, prompt: Any, field: str) -> None:
    size = size_of(others)
    long: dict[Any, Prompt] = {
        TokenPrompt: TokenPrompt([1] * size),
        TextPrompt: TextPrompt("a" * size),
        SoundPrompt: SoundPrompt(bytes(size), ""),
    }
    assert refused(others, Job([long[prompt]], [PARAMS])).param == field


async def test_a_schema_counts_and_so_does_each_slot(others: Others) -> None:
    """At the very limit a request is taken, and no byte beyond it."""
    rendering = {"constraint": bytes(size_of(others)), "constrained_by": "structured_outputs"}
    assert refused(others, Job([TextPrompt("Hello")], [PARAMS], rendering)).param == "structured_outputs"
    shorter = {**rendering, "constraint": bytes(size_of(others) - 100)}
    others.engine.submit(asked := Job([TextPrompt("Hello")], [PARAMS], shorter))
    (render,) = others.received("renderer-0")
    assert isinstance(render, Render) and render.refs == asked.refs
    refused(others, Job([TextPrompt("Hello")], [PARAMS] * 12, shorter))


async def test_of_several_prompts_none_is_begun(others: Others) -> None:
    asked = Job([TextPrompt("Hello"), TextPrompt("a" * size_of(others))], [PARAMS])
    asked.fields = ["input[0]", "input[1]"]
    assert refused(others, asked).param == "input[1]"
    assert not others.received("renderer-0")


async def test_what_was_begun_is_ended_whatever_goes_wrong(others: Others, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots of which no renderer was told are free at once, and the others once it has answered."""
    free, render = others.engine.slots.free, others.engine.renderers.render

    def fails_once(renderer: str, message: Render) -> None:
        if message.prompt == TextPrompt("second"):
            raise RuntimeError("what nobody has thought of")
        render(renderer, message)

    monkeypatch.setattr(others.engine.renderers, "render", fails_once)
    with pytest.raises(RuntimeError):
        others.engine.submit(Job([TextPrompt("first"), TextPrompt("second"), TextPrompt("third")], [PARAMS] * 2))
    assert (others.engine.slots.free, others.engine.in_flight()) == (free - 2, 0)
    (message,) = others.received("renderer-0")
    assert all(map(others.table.is_cancelled, message.refs))
    others.tell("renderer-0", Failed(message.refs, 499, "the client has gone"))
    assert (others.engine.slots.free, others.engine.renderers.in_flight) == (free, 0)
    others.engine.submit(job())
    others.put_prompt(refs := others.received("renderer-0")[0].refs)
    others.tell("renderer-0", Rendered(refs, 3))
    assert not others.engine.renderers.in_flight


def calls(others: Others) -> dict[str, tuple[str, Awaitable[Any]]]:
    """By the field that is too long: who would be asked, and how."""
    engine, few, many = others.engine, size_of(others, "scheduler"), size_of(others)
    call = engine.administration.call_workers
    return {
        "request_ids": ("scheduler", engine.abort_requests(["a" * 36] * (few // 36), False)),
        "args": ("scheduler", call("check_health", ["a" * few], {})),
        "kwargs": ("scheduler", call("check_health", [], {"a": "a" * few})),
        "lora_path": ("scheduler", engine.load_adapter("a", "a" * few, False)),
        "prompt": ("renderer-0", engine.tokenize(TextPrompt("a" * many), False)),
        "tokens": ("renderer-0", engine.detokenize([1] * many)),
        "file": ("renderer-0", engine.measure(bytes(many))),
        "data": ("renderer-0", engine.pre_process("id", bytes(many))),
    }


async def test_calls_name_their_field_too(others: Others) -> None:
    for field, (name, asked) in calls(others).items():
        with pytest.raises(ApiError) as caught:
            await asked
        assert (caught.value.status, caught.value.param) == (413, field)
        assert not others.received(name)
