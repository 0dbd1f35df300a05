"""What the app needs to know of options and model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.options.config import Config
from actorserve.actors.options.objects.media import MOST_MEDIA, media_limits
from actorserve.actors.protocol.request import USUAL_LOGPROBS
from actorserve.actors.protocol.topics.tools import ServerAddress, Tool, ToolCalled

from .accounts import Accounts


def printable(text: str) -> str:
    """What clients send in headers and paths may hold anything, also what is no UTF-8."""
    return "".join(filter(str.isprintable, text))


@dataclass(frozen=True)
class ModelCard:
    """What clients may read of the model. What is not known is empty, or 0."""

    architecture: str = ""  # as in config.json
    family: str = ""  # its model_type
    hidden: int = 0
    size: int = 0  # bytes of its weights
    parameters: int = 0
    stored_as: str = ""  # the type of most weights, in safetensors' or GGUF's words
    modified: int = 0  # Unix seconds
    trained_len: int = 0  # tokens of the longest sequence by its config.json, whatever is served of it
    layers: int = 0
    heads: int = 0  # of attention, that ask ...
    kv_heads: int = 0  # ... and whose keys and values are kept
    license: str = ""  # the text that lies with it

    @property
    def is_gguf(self) -> bool:
        return self.stored_as.startswith(("Q", "IQ"))


async def unknown_card() -> ModelCard:
    """Where there are no files of it."""
    return ModelCard()


@dataclass(frozen=True)
class KVSharing:
    """Of --kv-offload: how servers come by KV blocks that others have computed."""

    gives: bool = False  # others find what this one has
    takes: bool = False  # this one finds what others have
    address: tuple[str, int] = ("", 0)  # where this one gives them; ("", 0): they are found without
    allows: Callable[[str, int], bool] | None = None  # which servers a request may name; None: none is asked


@dataclass(frozen=True)
class MediaRules:
    """Of one server."""

    most: dict[str, int]  # of each modality that the model takes, in one prompt
    body_bytes: int  # the longest body with all of them; without, it is --max-body-bytes
    local_files: bool  # file:// addresses are taken
    embeds: bool = False  # embeddings are taken in the place of pictures
    changes: tuple[str, ...] = ()  # of `mm_processor_kwargs`, what requests may have
    pixels: int = 0  # that a picture may have
    trusts_changes: bool = True  # requests may change how files are read and made small

    @property
    def names(self) -> str:
        """What the model takes, for a message."""
        kinds = ["text", *self.most]
        return f"{', '.join(kinds[:-1])} and {kinds[-1]}"


def media_rules(config: Config, model: ModelInfo, body_bytes: int) -> MediaRules | None:
    """None where the model takes texts alone."""
    if not model.media:
        return None
    limits = media_limits(config)
    most = {modality: min(MOST_MEDIA, limits.most(modality)) for modality in model.media}
    changes, pixels = tuple(model.media_changes), config.max_media_pixels
    local = config.allowed_local_media_path is not None
    trusts = config.trust_request_mm_kwargs
    return MediaRules(most, body_bytes, local, config.enable_mm_embeds, changes, pixels, trusts)


@dataclass(frozen=True)
class ServedAdapter:
    """An adapter that requests may name."""

    id: int  # of its load
    name: str
    path: str


class AdapterNames:
    """Which adapters there are; as it stands, none."""

    enabled = False

    def find(self, name: str) -> ServedAdapter | None:
        """The one of this name that new requests may have."""
        return None

    def can_load(self, name: str) -> bool:
        """Would a request load one of this name?"""
        return False

    def all(self) -> list[ServedAdapter]:
        """Those that new requests may have."""
        return []


@dataclass(frozen=True)
class FileSettings:
    """Of --files-dir."""

    folder: str
    limit: int  # bytes of all files in it
    secret: bytes = b""  # by which the batcher shows for whom it asks (actors/files/owner.py)


@dataclass(frozen=True)
class LogitsPlugins:
    """Code that changes logits."""

    names: list[str]
    pattern: str | None  # requests may name more, by names that match


def plugins_of(config: Config) -> LogitsPlugins | None:
    """None where there are none."""
    if not config.changes_logits:
        return None
    return LogitsPlugins(config.logits_processors, config.logits_processor_pattern)


class Tools(Protocol):
    """Tools of MCP servers, that are called here."""

    labels: frozenset[str]  # of the servers of --tool-server

    @property
    def life(self) -> int:
        """Of whoever makes calls: what one life was asked to do, no other does."""

    def list(self, server: ServerAddress) -> Awaitable[list[Tool]]:
        """All that the server has. ApiError where they cannot be had."""

    def call(self, key: bytes, life: int, server: ServerAddress, name: str, arguments: str) -> Awaitable[ToolCalled]:
        """What the tool says, or why it says nothing. The same key in the same life asks for the same call."""


class Catalog:
    """All models of the server, the first of which is MODEL."""

    def __init__(self, unserved: Mapping[str, str] | None = None) -> None:
        self.models: list[Settings] = []
        self.unserved = unserved or {}  # by name, those that cannot be, and why


@dataclass(frozen=True)
class Settings:
    """Of options and one model."""

    served: list[str]
    api_keys: list[str]
    max_body_bytes: int
    max_model_len: int
    sampling_defaults: dict[str, float]
    vocab_size: int
    end_tokens: list[int]
    created: int  # when the server was started, Unix seconds
    has_tokenizer: bool = True
    idempotency_window_s: float = 300.0  # 0: keys are passed over
    idempotent_request_ids: bool = False
    prefix_cache_per_client: bool = False
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    trust_request_chat_template: bool = False
    exclude_tools_when_tool_choice_none: bool = False
    admin_api_key: str | None = None
    allowed_origins: tuple[str, ...] = ("*",)
    allowed_methods: tuple[str, ...] = ("*",)
    allowed_headers: tuple[str, ...] = ("*",)
    request_id_headers: bool = True
    max_log_len: int | None = None  # characters of a prompt in a line for who debugs
    pooling: PoolingSpec | None = None  # how the model pools, if it makes no texts
    files: FileSettings | None = None  # where clients' files and batches are kept
    kv: KVSharing | None = None  # how other servers find the KV blocks that this one has computed
    engines: range = range(1)  # of this model, the numbers by which X-data-parallel-rank names them
    first_engine: int = 0  # the number by which it names the first of the server
    model: int = 0  # which of the server's it is
    max_audio_bytes: int = 25 << 20  # of a sound that is to be written down ...
    max_form_bytes: int = 26 << 20  # ... and of the form that it is in
    catalog: Catalog = field(default_factory=Catalog, compare=False, repr=False)
    encoder: EncoderSpec | None = None  # where a part of the model's own reads the prompt
    media: MediaRules | None = None  # which pictures and sounds the model takes
    adapters: AdapterNames = field(default_factory=AdapterNames)
    default_adapters: frozenset[str] = frozenset()  # modalities of which one of the same name is for
    accounts: Accounts = field(default_factory=Accounts)  # of --key-file
    tokenizer_info: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json, and the chat template
    card: Callable[[], Awaitable[ModelCard]] = unknown_card  # files are read for it
    special_tokens: Callable[[], Mapping[str, int]] = dict  # of the tokenizer, their ids; a file is read for it
    max_num_seqs: int = 1
    response_role: str = "assistant"
    enable_force_include_usage: bool = False  # in each event of a stream
    stream_response_default_include_usage: bool = False  # at a stream's end
    enable_per_request_metrics: bool = False
    return_tokens_as_token_ids: bool = False
    most_logprobs: int = USUAL_LOGPROBS  # that a request may ask for beside each token
    enable_return_hidden_states: bool = False
    template_kwargs: dict[str, Any] = field(default_factory=dict)  # of chat templates, where a request says nothing
    structured_defaults: frozenset[str] = frozenset()  # of OPTIONS, those on where a request says nothing of them
    reasoning_closing: str = ""  # of thinking that has used up its budget; its own mark ends it anyway
    fingerprint: str = ""  # of version, model and what of the options answers depend on
    told_fingerprint: str | None = None  # to clients in its place; "": none
    io_processor: bool = False  # requests may give data to a plugin
    prompt_embeds: bool = False  # prompts may be embeddings
    keep_alive_s: float = 0.0  # between two comments of a stream that has nothing to say; 0: none
    realtime_idle_s: float = 600.0  # for which a client may say nothing over a WebSocket, and is told nothing
    allow_credentials: bool = False
    tools: Tools | None = None  # of MCP servers, where some may be called here
    tools_by_url: bool = False  # requests may name others
    max_tool_calls: int = 32  # of one response
    plugins: LogitsPlugins | None = None  # what --logits-processors says, where there are any
    draws_on_cpu: bool = True  # what a CPU alone does may be asked for
    any_model_name: bool = False  # one that nothing has is this model
    models_max: int = 0  # models that are loaded at once; 0: all
    models_autoload: bool = True  # one that is asked is loaded
    root_path: str = ""  # that clients find the server below, behind a proxy
    off: frozenset[str] = frozenset()  # options that turn paths off, as their routes have it

    @property
    def all_models(self) -> list[Settings]:
        """Those of all models of the server."""
        return self.catalog.models or [self]

    def asked(self, name: str | None, does: Callable[[Settings], bool]) -> Settings:
        """The model of this name; of none, or one that there is not, the first that does what is asked, or else the
        first.
        """
        by_name = (one for one in self.all_models if name in one.served)
        fit = (one for one in self.all_models if does(one))
        return next(by_name, next(fit, self.all_models[0]))

    @property
    def all_served(self) -> list[str]:
        """The names of all models of the server."""
        return [name for one in self.all_models for name in one.served]

    @property
    def all_named(self) -> list[tuple[str, Settings]]:
        """The names of all models of the server, and of its adapters, each with what it is a name of."""
        named = [(name, one) for one in self.all_models for name in one.served]
        return named + [(adapter.name, self) for adapter in self.adapters.all()]

    def instead(self, does: Callable[[Settings], bool]) -> str:
        """The names of the server's models that do something, for whoever has asked another one; empty if none does."""
        return " or ".join(one.served[0] for one in self.all_models if does(one))

    @property
    def longest_form(self) -> int:
        """Bytes of a form that is read at all."""
        return self.max_form_bytes if self.hears else self.max_body_bytes

    @property
    def hears(self) -> bool:
        """Does the model write down what it hears?"""
        return self.encoder is not None and self.encoder.speech is not None

    @property
    def generates(self) -> bool:
        """Does it answer in texts?"""
        return self.pooling is None and not self.hears

    @property
    def wants_keys(self) -> bool:
        """Has a client to send one?"""
        return bool(self.api_keys) or self.accounts.enabled

    @property
    def clients_load(self) -> bool:
        """May clients load and unload models? Where these change places, or wait for that, without a key for it: else
        it is an operator's.
        """
        return self.loads_when_asked and self.admin_api_key is None

    @property
    def loads_when_asked(self) -> bool:
        """Do models change places, or wait to be loaded by name?"""
        return self.models_max > 0 or not self.models_autoload

    @property
    def names(self) -> tuple[list[str], AdapterNames, bool]:
        """By which a request may ask: those of the model, those of adapters, and whether any other."""
        return self.served, self.adapters, self.any_model_name
