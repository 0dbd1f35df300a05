"""Bodies that are no request, and numbers that are none: what server/fuzz/test_fuzz.py sends."""

from __future__ import annotations

DEEP = 100_000
NUMBERS = [b"9" * 4000, b"9" * 5000, b"-" + b"9" * 400, b"1e400", b"1e999999999", b"0." + b"1" * 9000, b"1e-9999"]
NUMBERS += [b"NaN", b"Infinity", b"0x10", b"1_000", b"01"]
FIELDS = (b"max_tokens", b"n", b"seed", b"temperature", b"top_k", b"priority", b"logprobs", b"stream_interval")
START = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":2'

BODIES = {
    "brackets": b"[" * DEEP,
    "pairs": b"[" * DEEP + b"]" * DEEP,
    "objects": b'{"a":' * DEEP,
    "deep prompt": b'{"prompt":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep messages": b'{"messages":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep message": b'{"messages":[{"role":"user","content":"a","x":' + b"[" * DEEP + b"]" * DEEP + b"}]}",
    "deep unknown": START + b',"unknown":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep metadata": START + b',"metadata":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep schema": START + b',"response_format":{"type":"json_schema","json_schema":{"schema":'
    + b'{"items":' * DEEP + b"{}" + b"}" * DEEP + b"}}}",
    "null bytes": b"\0" * 1000,
    "null in text": START + b',"user":"a\0b"}',
    "not UTF-8": START + b',"unknown":"\xff\xfe"}',
    "overlong": START + b',"stop":"\xc0\xaf"}',
    "half a pair": START + b',"stop":"\\ud83d"}',
    "other half": b'{"messages":[{"role":"user","content":"\\ude00"}]}',
    "UTF-16": START.decode().encode("utf-16"),
    "two byte order marks": b"\xef\xbb\xbf" * 2 + START + b"}",
    "twice": START + b"}" + START + b"}",
    "ids": b'{"prompt":[' + b"9" * 300 + b"]}",
    "many ids": b'{"prompt":[' + b",".join([b"1"] * 200_000) + b"]}",
    "many lists": b'{"prompt":[' + b",".join([b"[1]"] * 100_000) + b"]}",
    "many messages": b'{"messages":[' + b",".join([b'{"role":"user","content":"a"}'] * 5000) + b"]}",
    "too long": b" " * 1_000_001,
}  # fmt: skip
