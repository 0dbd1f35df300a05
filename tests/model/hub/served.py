"""A hub of models that a test has in this process, and what is said of a name that is none."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.options.config import ConfigError, make_config

COMMIT = "a" * 40
NAME = "org/name"


def refusal(name: str, **options: object) -> str:
    """What is said of it, on one line."""
    with pytest.raises(ConfigError) as caught:
        find_model(make_config({"model": name, "device": "cpu"} | options))
    said = str(caught.value)
    assert "\n" not in said
    return said


class Hub(ThreadingHTTPServer):
    """It has one model, over HTTP; `asked` are the files that were fetched, in order; `others` are models that it has
    not.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.files = {file.name: file.read_bytes() for file in DEMO_FOLDER.iterdir() if file.is_file()}
        self.asked: list[str] = []
        self.others: list[str] = []
        self.ranges = True  # it answers with parts of files

    def change(self, file: str, change: Callable[[dict[str, Any]], object]) -> None:
        values = json.loads(self.files[file])
        change(values)
        self.files[file] = json.dumps(values).encode()


class Answers(BaseHTTPRequestHandler):
    """To what huggingface_hub asks of it."""

    server: Hub

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        files, path = self.server.files, self.path.partition("?")[0]
        about, _, file = path.partition("/resolve/" + COMMIT + "/")
        if file in files and about == f"/{NAME}":
            self.answer(files[file], file)
        elif path.startswith(f"/api/models/{NAME}/tree/"):
            tree = [{"type": "file", "path": n, "size": len(b), "oid": tag(b)} for n, b in files.items()]
            self.answer(json.dumps(tree).encode())
        elif path.startswith(f"/api/models/{NAME}"):
            names = [{"rfilename": name} for name in files]
            self.answer(json.dumps({"id": NAME, "sha": COMMIT, "siblings": names}).encode())
        else:
            self.server.others.append(path.removeprefix("/api/models/").partition("/revision/")[0])
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()

    def answer(self, body: bytes, file: str = "") -> None:
        asked = re.fullmatch(r"bytes=0-(\d+)", self.headers.get("Range", "")) if self.server.ranges else None
        if file and self.command == "GET":
            self.server.asked.append(f"{file} to {asked[1]}" if asked else file)
        if asked:
            whole, body = len(body), body[: int(asked[1]) + 1]
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes 0-{len(body) - 1}/{whole}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "application/json")
        if file:
            self.send_header("ETag", f'"{tag(body)}"')
            self.send_header("X-Repo-Commit", COMMIT)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        """Nothing: the test's output is for others."""


def tag(body: bytes) -> str:
    return hashlib.sha1(body).hexdigest()
