"""The messages of actorserve.proto, as classes that are made when the server starts: no code is generated for them.

It reads what is in that file and no more of the language: messages of plain fields, and services. What it does not
know is an error, which a test meets before anybody else.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FILE = "actorserve.proto"
SERVICE = "Inference"
MESSAGE = re.compile(r"message (\w+) \{\n(.*?)\n\}", re.S)
FIELD = re.compile(r"  (optional |repeated |)(\w+) (\w+) = (\d+);(?:  // .*)?")
METHOD = re.compile(r"  rpc (\w+)\((\w+)\) returns \((stream |)(\w+)\);")
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    "string": Field.TYPE_STRING,
    "bool": Field.TYPE_BOOL,
    "float": Field.TYPE_FLOAT,
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
}


def proto_text() -> str:
    """The file."""
    return files(__package__).joinpath(FILE).read_text()


def read_proto(text: str) -> Any:
    """Its FileDescriptorProto."""
    package = re.findall(r"^package ([\w.]+);$", text, re.M)[0]
    made = descriptor_pb2.FileDescriptorProto(name=FILE, package=package, syntax="proto3")
    for name, body in MESSAGE.findall(text):
        _add_message(made.message_type.add(name=name), body.split("\n"), package)
    methods = re.findall(rf"service {SERVICE} \{{\n(.*?)\n\}}", text, re.S)[0].split("\n")
    service = made.service.add(name=SERVICE)
    for line in methods:
        name, taken, streamed, answered = _matched(METHOD, line)
        types = {"input_type": f".{package}.{taken}", "output_type": f".{package}.{answered}"}
        service.method.add(name=name, server_streaming=bool(streamed), **types)
    return made


def _add_message(message: Any, lines: list[str], package: str) -> None:
    for line in lines:
        label, kind, name, number = _matched(FIELD, line)
        field = message.field.add(name=name, number=int(number), label=Field.LABEL_OPTIONAL)
        if label == "repeated ":
            field.label = Field.LABEL_REPEATED
        if kind in SCALARS:
            field.type = SCALARS[kind]
        else:
            field.type, field.type_name = Field.TYPE_MESSAGE, f".{package}.{kind}"
        if label == "optional ":  # proto3 writes it as a choice of one
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{name}")


def _matched(pattern: re.Pattern[str], line: str) -> tuple[str, ...]:
    found = pattern.fullmatch(line)
    if found is None:
        raise ValueError(f"{FILE}: what does this line say? {line!r}")
    return found.groups()


@cache
def service_descriptor() -> Any:
    """That of the service, with all messages in the default pool, where reflection looks for them."""
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(read_proto(proto_text()).SerializeToString())
    return pool.FindFileByName(FILE).services_by_name[SERVICE]


@cache
def message_class(name: str) -> Any:
    """The class of a message."""
    return message_factory.GetMessageClass(service_descriptor().file.message_types_by_name[name])
