"""What was said so far, and the commands."""

from __future__ import annotations

from actorserve.actors.chat.conversation import Conversation, Next
from actorserve.actors.chat.options import key_of


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def test_turns_behind_an_instruction() -> None:
    talk = Conversation("Be brief.")
    assert talk.take("Hello") == (Next.ANSWER, "")
    talk.heard("Hi")
    assert talk.take("//etc is what?") == (Next.ANSWER, "")
    turns = [said("user", "Hello"), said("assistant", "Hi"), said("user", "/etc is what?")]
    assert talk.messages() == [said("system", "Be brief."), *turns]


def test_what_was_not_answered_is_not_asked_again() -> None:
    talk = Conversation()
    talk.take("one")
    talk.heard("")
    talk.take("two")
    talk.forget()
    assert talk.take("  ") == (Next.NOTHING, "") and talk.messages() == []


def test_commands() -> None:
    talk = Conversation()
    talk.take("one")
    talk.heard("two")
    assert talk.take("/system  Be kind. ") == (Next.NOTHING, "Be kind.") == talk.take("/system")
    assert talk.take("/clear")[0] is Next.NOTHING and talk.messages() == [said("system", "Be kind.")]
    assert talk.take("/system -")[0] is Next.NOTHING and talk.messages() == []
    assert "/clear" in talk.take("/help")[1] and "/help" in talk.take("/clera")[1] and talk.messages() == []
    assert [talk.take(word)[0] for word in ("/exit", "/quit", "/bye")] == [Next.END] * 3


def test_openai_s_key_is_for_a_server_that_was_named() -> None:
    both = {"ACTORSERVE_API_KEY": "ours", "OPENAI_API_KEY": "theirs"}
    assert key_of(both, named=True) == key_of(both, named=False) == "ours"
    del both["ACTORSERVE_API_KEY"]
    assert key_of(both, named=True) == "theirs" and key_of(both, named=False) is None
