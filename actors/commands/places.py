"""The words of a command for another process, and which of them name files and folders of this machine: for one in
another folder, which has to find the same, and for a service, which sees and changes no more than it is told of.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from functools import reduce
from pathlib import Path

import msgspec
from msgspec import inspect

from ..options.also import NEXT
from ..options.checks import PLUGINS
from ..options.command_line import POSITIONAL
from ..options.fields import LEFT_OUT, SECRETS, flag, option_fields, plain_type
from ..options.other_servers import meaning_of
from ..options.serving.access import SOCKET
from ..options.sources import CONFIG_VARIABLE, items_of, read_environment, read_yaml
from ..protocol.media import MODALITIES
from .links import folder_for_elsewhere, what_it_needs

READ = (  # one path each, or several, where there is such a file or folder: it may be another thing's name
    *("model", "tokenizer", "chat_template", "api_key_file", "key_file", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"),
    *("node_secret_file", "engine_secret_file", "engine_certfile", "engine_ca_certs"),
    *("allowed_local_media_path", "lora_folder", "weights_folder", "models_dir", "models_preset"),
)
ALONE = "allowed_local_media_path"  # of these: links that lead out of it are not followed
PATTERN = "*.gguf"  # in the place of a file's name: the one model of a folder
FILES = ("record", "uds")  # that the server makes
HOST = "host"  # of whose addresses one may be such a file, too
FOLDERS = ("profile_dir", "dump_dir", "download_dir", "files_dir")  # in which it makes files
CODE = ("logits_processors", *PLUGINS)  # FILE.py:name
LISTS = [name for name, field in option_fields().items() if isinstance(plain_type(field.type), inspect.ListType)]
NOWHERE = "none"  # of dump_dir


def is_there(text: str) -> bool:
    """Is it the path of something? A template's text may be too long for one."""
    try:
        return Path(text).expanduser().exists()
    except (OSError, ValueError, RuntimeError):
        return False


class Paths:
    """What values name, as they are made absolute."""

    def __init__(self) -> None:
        self.read: list[Path] = []
        self.written: list[tuple[str, Path]] = []  # the field that names it, and a file or a folder
        self._ways: dict[str, Callable[[str], str]] = {
            **dict.fromkeys(READ, self.there),
            ALONE: self._alone,
            **dict.fromkeys(CODE, self._code),
            HOST: lambda text: ",".join(map(self._address, text.split(","))),
            "also": self._further_model,
            "tool_server": self._tool_servers,
            "lora_modules": self._adapter,
            "speculative_config": lambda text: self._of_object(text, "model"),
            "default_mm_loras": lambda text: reduce(self._of_object, MODALITIES, text),
            "kv_offload": lambda text: ",".join(map(self._tier, text.split(","))),
        }

    def placed(self, name: str, value: object) -> object:
        """A field's value that says the same in another folder."""
        if isinstance(value, list):
            return [self.placed(name, one) for one in value]
        if isinstance(value, dict) and name in self._ways:
            value = msgspec.json.encode(value).decode()
        if not isinstance(value, str) or not value:
            return value
        if name in FILES or (name in FOLDERS and value != NOWHERE):
            return self._made(name, value)
        return self._ways[name](value) if name in self._ways else value

    def there(self, text: str) -> str:
        """A path, if there is something."""
        if not is_there(text):
            pattern = Path(text)
            return str(Path(self.there(str(pattern.parent))) / PATTERN) if pattern.name == PATTERN else text
        path = folder_for_elsewhere(Path(text).expanduser().absolute())
        self.read += what_it_needs(path)
        return str(path)

    def _alone(self, text: str) -> str:
        if not is_there(text):
            return text
        self.read.append(Path(text).expanduser().absolute())
        return str(self.read[-1])

    def _made(self, name: str, text: str) -> str:
        self.written.append((name, Path(text).expanduser().absolute()))
        return str(self.written[-1][1])

    def _address(self, text: str) -> str:
        """One that clients come to."""
        return self._made(HOST, text.strip()) if text.strip().endswith(SOCKET) else text

    def _code(self, text: str) -> str:
        """`FILE.py:name`, with whatever may stand behind it."""
        file, suffix, rest = text.partition(".py:")
        return self.there(file + ".py") + f":{rest}" if suffix else text

    def _further_model(self, text: str) -> str:
        if text.lstrip().startswith("{"):
            return self._further_object(text)
        model, *options = NEXT.split(text.strip())
        pairs = [option.partition("=") for option in options]
        return ",".join((self.there(model), *(f"{name}={self._of_further(name, value)}" for name, _, value in pairs)))

    def _further_object(self, text: str) -> str:
        """The same as JSON; what is none is told by whoever reads it."""
        try:
            given = msgspec.json.decode(text, type=dict[str, object])
        except msgspec.MsgspecError:
            return text
        return msgspec.json.encode({name: self._of_further(name, value) for name, value in given.items()}).decode()

    def _of_further(self, given: str, value: object) -> object:
        """The value of a further model's option, by whichever name; what is none is told by whoever reads it."""
        name = given.strip().replace("-", "_")
        if name not in option_fields() and (meaning := meaning_of(flag(name))) is not None:
            name = "model" if meaning.key == "model" else meaning.field
        if name not in self._ways:
            return value
        if name not in LISTS or not isinstance(value, str):
            return self.placed(name, value.strip() if isinstance(value, str) else value)
        try:
            items = [str(self.placed(name, one)) for one in items_of(name, value.strip())]
        except ValueError:
            return value
        return msgspec.json.encode(items).decode() if value.strip().startswith("[") else ",".join(items)

    def _tool_servers(self, text: str) -> str:
        parts = (part.strip() for part in text.split(","))
        return ",".join(self.there(part) if part.endswith(".json") else part for part in parts)

    def _adapter(self, text: str) -> str:
        if text.startswith("{"):
            return self._of_object(text, "path")
        name, mark, path = text.partition("=")
        return name + mark + self.there(path) if path else text

    def _of_object(self, text: str, key: str) -> str:
        """A JSON object with a path at this key; what is none is told by whoever reads it."""
        try:
            given = msgspec.json.decode(text, type=dict[str, object])
        except msgspec.MsgspecError:
            return text
        if not isinstance(old := given.get(key), str) or (new := self.there(old)) == old:
            return text
        return msgspec.json.encode({**given, key: new}).decode()

    def _tier(self, text: str) -> str:
        """A part of --kv-offload."""
        kind, _, rest = text.strip().partition(":")
        path, mark, size = rest.rpartition(":")
        if kind == "folder" and path:
            return f"folder:{self._made('kv_offload', path)}{mark}{size}"
        return f"plugin:{self._code(rest)}" if kind == "plugin" else text


def given_words(arguments: argparse.Namespace, paths: Paths | None = None) -> list[str]:
    """The words that say the same to another process; with `paths` to one in another folder and with another
    environment, and what they name there is in it. Of the file of --config that is said again which names paths, but
    for those that are absolute: it stands above the environment then.
    """
    given = {name: value for name, value in vars(arguments).items() if name in option_fields()}
    file = arguments.config
    if paths is not None:
        given = read_environment(os.environ) | given
        file = file or os.environ.get(CONFIG_VARIABLE)
    words = [] if not file else [f"--config={file if paths is None else paths.there(str(file))}"]
    if paths is not None:
        given = {name: paths.placed(name, value) for name, value in given.items() if name not in SECRETS}
        if file:
            for name, value in read_yaml(Path(file), told=lambda _: None).items():
                if name not in given and (placed := paths.placed(name, value)) != value:
                    given[name] = placed
    return [*words, *(word for name, value in given.items() for word in _words(name, value))]


def _words(name: str, value: object) -> list[str]:
    """Of one option."""
    if isinstance(value, bool):
        return [flag(name) if value else f"--no-{flag(name)[2:]}"]
    if value is None:  # it was said to be left out
        return [f"{flag(name)}={LEFT_OUT[name][0]}"]
    if name == POSITIONAL:
        return [str(value)]
    return [f"{flag(name)}={item}" for item in (value if isinstance(value, list) else [value])]
