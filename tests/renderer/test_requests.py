"""What clients may do to a renderer: nothing that costs another request or the process, and no prompt is changed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers.processors import TemplateProcessing

from actorserve.actors.protocol.media import PreparedMedia
from actorserve.actors.protocol.messages import Admit, Failed, Render, Rendered
from actorserve.actors.protocol.topics.calls import Tokenize, Tokenized
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt, TokenPrompt
from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from actorserve.actors.renderer.templates.problem import OutOfMemory
from actorserve.actors.runtime.in_flight import Ended

from .test_actor import CHAT, LENGTH, PARAMS, Bench, ids

PICTURE = PreparedMedia("image", b"", "<img>", "<img>", 3, 1, [])
SHOWS = "{%- for part in messages[0].content -%}{{ part.text if part.type == 'text' else '[<img>]' }}{%- endfor -%}"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.memory.close()


def messages(content: Any, **fields: Any) -> bytes:
    return json.dumps([{"role": "user", "content": content, **fields}]).encode()


def prompt_of(bench: Bench, ref: int) -> list[int]:
    return list(bench.table.token_ids(ref, 0, bench.table.prompt_length(ref) or 0))


def test_what_was_rendered_stays_though_the_template_says_another_thing_now(bench: Bench) -> None:
    """A predecessor died before its turn was committed: its prompt may run already, and a clock has moved since."""
    message = Render([bench.open(), bench.open()], ChatPrompt(CHAT), max_tokens=5)
    answer = bench.ask(message)
    admit = bench.got(bench.scheduler)
    before = [prompt_of(bench, ref) for ref in message.refs]
    bench.restart(Ended.DIED)
    bench.renderer.prompts.template = None  # type: ignore[assignment]  # it is not asked again
    bench.table.append(message.refs[0], [9, 9])
    assert bench.ask(message) == answer and bench.got(bench.scheduler) == admit
    assert [prompt_of(bench, ref) for ref in message.refs] == before
    assert list(bench.table.token_ids(message.refs[0], len(before[0]), len(before[0]) + 2)) == [9, 9]


def test_a_conversation_stands_behind_its_context(bench: Bench) -> None:
    """And its text has no second beginning there."""
    head, bos = "a <s> here", bench.renderer.prompts.bos
    assert bos is not None and ids(f"<s>{head}")[0] == bos
    for template, behind in (("<s>" + head, ids(head)), (head, ids(head))):
        for context, before in (([], ids(template)), ([7, bos], [7, bos, *behind])):
            ref = bench.open()
            (answer,) = bench.ask(Render([ref], ChatPrompt(CHAT, chat_template=template, context=context)))
            assert isinstance(answer, Rendered) and prompt_of(bench, ref) == before


def test_a_predecessor_died_between_two_slots(bench: Bench) -> None:
    first, second = bench.open(), bench.open()
    (answer,) = bench.ask(Render([first], TextPrompt("hello")))
    bench.got(bench.scheduler)
    (answer,) = bench.ask(Render([first, second], TextPrompt("hello")))
    assert answer == Rendered([first, second], len(ids("hello")))
    assert bench.got(bench.scheduler) == [Admit([first, second])]
    assert prompt_of(bench, first) == prompt_of(bench, second) == ids("hello")


def test_who_goes_while_the_prompt_is_rendered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [bench.open(), bench.open(), bench.open()]
    encode = bench.renderer.prompts.segments.encode

    def slow(text: str) -> list[int]:
        bench.table.cancel(refs[0])
        bench.table.open_slot(bench.slot, PARAMS, 0)  # the last one is used again meanwhile
        return encode(text)

    monkeypatch.setattr(bench.renderer.prompts.segments, "encode", slow)
    failed, rendered = bench.ask(Render(refs, ChatPrompt(CHAT)))
    assert (failed.refs, failed.status) == ([refs[0], refs[2]], 499)
    assert rendered.refs == [refs[1]] and bench.got(bench.scheduler) == [Admit([refs[1]])]
    assert bench.table.prompt_length(refs[0]) is None
    (newest,) = bench.table.current_refs(bench.slot, 1)
    assert newest != refs[2] and bench.table.prompt_length(newest) is None


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        (ChatPrompt(b'[{"role": "user", "content": "\\ud83d"}]'), "surrogate"),
        (ChatPrompt(b"[{]"), "JSON"),
        (ChatPrompt(b"[" * 100_000), "JSON"),
        (ChatPrompt(b"null"), "messages"),
        (ChatPrompt(b"[]", continue_final_message=True), "messages"),
        (ChatPrompt(CHAT, template_kwargs=b"[1"), "JSON"),
        (TextPrompt("x" * 5000), "maximum context length"),
    ],
)
def test_what_cannot_be_rendered_is_the_clients(bench: Bench, prompt: Prompt, words: str) -> None:
    answer = bench.render(prompt)
    assert isinstance(answer, Failed) and answer.status == 400 and words in f"{answer.message} {answer.param}"
    assert isinstance(bench.render(ChatPrompt(CHAT)), Rendered)


@pytest.mark.parametrize("quoted", ["x" * 5_000_000, "\ud800" * 10])
def test_an_error_that_quotes_the_client_does_not_break_the_lane(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, quoted: str
) -> None:
    def refuse(*args: Any) -> str:
        raise TemplateProblem(f"no role {quoted}")

    monkeypatch.setattr(bench.renderer.prompts.template, "render", refuse)
    answer = bench.render(ChatPrompt(CHAT))
    assert answer.status == 400 and answer.message.startswith("no role ") and len(answer.message) <= 2000


def test_a_defect_of_ours_costs_one_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(bench.renderer.prompts.template, "render", lambda *args: 1 / 0)
        answer = bench.render(ChatPrompt(CHAT))
        assert (answer.status, answer.param) == (500, None) and "zero" not in answer.message
    assert isinstance(bench.render(ChatPrompt(CHAT)), Rendered)


def test_nothing_is_no_prompt_but_can_be_tokenised(bench: Bench) -> None:
    assert bench.ask(Tokenize(1, TextPrompt(""), True)) == [Tokenized(1, [], [])]
    bench.renderer.prompts.bos = None
    for prompt in (TextPrompt(""), TokenPrompt([])):
        answer = bench.render(prompt)
        assert (answer.status, answer.param) == (400, "prompt") and "empty" in answer.message


@pytest.mark.parametrize("token", [-1, 10**6])
def test_ids_that_are_not_there(bench: Bench, token: int) -> None:
    answer = bench.render(TokenPrompt([0, token, 5]))
    size = bench.context.model.vocab_size
    assert (answer.status, answer.message) == (400, f"Token id {token} is out of vocabulary (0 to {size - 1}).")
    assert isinstance(bench.render(TokenPrompt([0, size - 1])), Rendered)


@pytest.mark.parametrize("form", ["text", "chat"])
def test_a_text_with_a_token_that_the_model_has_no_row_for(bench: Bench, form: str) -> None:
    """As gemma-3-1b's tokenizer has one for pictures: the worker would die of it, again and again."""
    prompts, beyond = bench.renderer.prompts, "<|beyond|>"
    prompts.tokenizer.add_special_tokens([beyond])
    number = prompts.tokenizer.token_to_id(beyond) or 0
    prompts._model = msgspec.structs.replace(prompts._model, vocab_size=number)
    text = f"hello {beyond}"
    answer = bench.render(TextPrompt(text) if form == "text" else ChatPrompt(messages(text)))
    field = "prompt" if form == "text" else "messages"
    assert (answer.status, answer.param) == (400, field)
    wanted = f"{field}: the token {beyond!r} ({number}) is out of the model's vocabulary (0 to {number - 1})."
    assert answer.message == wanted
    assert isinstance(bench.render(TextPrompt("hello")), Rendered)


def test_any_truncation_keeps_the_end(bench: Bench) -> None:
    rng = random.Random(0)
    for _ in range(20):
        tokens = [rng.randrange(50) for _ in range(rng.randrange(1, 100))]
        keep = rng.randrange(1, 60)
        bench.slot = 0
        answer = bench.render(TokenPrompt(tokens), truncate_prompt_tokens=keep)
        assert prompt_of(bench, answer.refs[0]) == tokens[-keep:] and answer.prompt_tokens == min(keep, len(tokens))
        answer = bench.render(TokenPrompt(tokens), truncate_prompt_tokens=keep, keep_first=True)
        assert prompt_of(bench, answer.refs[0]) == tokens[:keep] and answer.prompt_tokens == min(keep, len(tokens))


@pytest.mark.parametrize("keep_first", [True, False])
def test_what_stands_around_a_text_stays_where_it_is_cut(bench: Bench, keep_first: bool) -> None:
    """As a model's BOS."""
    prompts, begin = bench.renderer.prompts, "<|begin|>"
    tokenizer = prompts.tokenizer
    tokenizer.add_special_tokens([begin])
    number = tokenizer.token_to_id(begin) or 0
    prompts._model = msgspec.structs.replace(prompts._model, vocab_size=number + 1)
    tokenizer.post_processor = TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, number)])
    whole = ids("one two three four five six")
    for keep in (1, 3, len(whole)):
        bench.slot = 0
        text = TextPrompt("one two three four five six")
        answer = bench.render(text, truncate_prompt_tokens=keep, keep_first=keep_first)
        rest = whole[: keep - 1] if keep_first else whole[len(whole) - keep + 1 :]
        assert prompt_of(bench, answer.refs[0]) == [number, *rest] and answer.prompt_tokens == keep


@pytest.mark.parametrize("asked", [None, 1, 16, LENGTH - 1])
def test_what_is_truncated_by_itself_leaves_room_for_the_answer(bench: Bench, asked: int | None) -> None:
    for count in (LENGTH - 1, LENGTH, 3 * LENGTH):
        bench.slot = 0
        answer = bench.render(TokenPrompt([5] * count), truncate_prompt_tokens=-1, max_tokens=asked)
        assert isinstance(answer, Rendered) and answer.prompt_tokens == LENGTH - (asked or 1)
    answer = bench.render(TokenPrompt([5]), truncate_prompt_tokens=-1, max_tokens=LENGTH)
    assert (answer.status, answer.param, answer.code) == (400, "max_tokens", "context_length_exceeded")


REFUSES = "{%- if messages[0].role != 'system' -%}{{ raise_exception('a system message comes first') }}{%- endif -%}"


@pytest.mark.parametrize(
    ("template", "text"),
    [(REFUSES, "<img>"), ("{{ messages[0].content[1].type }}", "<img>"), (SHOWS, "[<img>]")],
)
def test_a_picture_at_a_mark_needs_no_chat_template(tmp_path: Path, template: str, text: str) -> None:
    """What stands around it in conversations is there where the template takes a lone turn of a user."""
    bench = Bench(tmp_path, chat_template=template)
    assert bench.renderer.prompts._as_in_chats(PICTURE) == text
    bench.memory.close()


def test_a_renderer_without_memory_does_not_go_on_with_a_picture(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def hungry(*given: Any) -> str:
        raise OutOfMemory("there is none left")

    monkeypatch.setattr(bench.renderer.prompts, "chat_text", hungry)
    with pytest.raises(OutOfMemory):
        bench.renderer.prompts._as_in_chats(PICTURE)
