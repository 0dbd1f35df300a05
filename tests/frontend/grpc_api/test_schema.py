"""actorserve.proto is read whole, and what cannot be read is an error."""

from __future__ import annotations

import re

import pytest

from actorserve.actors.frontend.grpc_api.schema import message_class, proto_text, read_proto, service_descriptor


def test_all_of_the_file_is_there() -> None:
    text = proto_text()
    made = read_proto(text)
    assert [message.name for message in made.message_type] == re.findall(r"^message (\w+)", text, re.M)
    fields = sum(len(message.field) for message in made.message_type)
    assert fields == len(re.findall(r"^  (?!rpc).* = \d+;", text, re.M)) > 30
    assert [method.name for method in service_descriptor().methods] == re.findall(r"rpc (\w+)", text)


def test_what_is_left_out_is_known() -> None:
    made = message_class("GenerateRequest")(text="", stop=["a", "b"], temperature=0.5)
    again = message_class("GenerateRequest").FromString(made.SerializeToString())
    assert again.HasField("text") and not again.HasField("max_tokens") and list(again.stop) == ["a", "b"]
    assert again == made and again.temperature == 0.5


@pytest.mark.parametrize("line", ["  map<string, string> a = 1;", "  oneof a {", "  bytes;"])
def test_what_it_does_not_know_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match="what does this line say"):
        read_proto(proto_text().replace("  repeated float values = 1;", line))
