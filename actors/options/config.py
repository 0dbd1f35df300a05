"""Every option, frozen: what the command line, a YAML file or the LLM class set, and all actors read.

The options stand in groups/, each group behind the one before it, since a struct has one base: server, rendering,
tool_calls, files, pictures, weights, kv_cache, batching, parallel, computing, processes. They know no actor, of models
only which weight formats there are, and import no torch. A value that cannot be is refused here, with the option's
name.
"""

from __future__ import annotations

import os
from typing import Any

import msgspec

from ..protocol.request import MOST_LOGPROBS
from .groups.processes import ProcessOptions

MEDIA_OBJECTS = ("limit_mm_per_prompt", "media_io_kwargs", "mm_processor_kwargs")
MAX_LORAS = 8  # that run at once, where no option says how many
OTHER_OBJECTS = (
    *("default_chat_template_kwargs", "reasoning_config"),
    *("hf_overrides", "override_generation_config", "eplb_config", "default_mm_loras"),
    "structured_outputs_config",
)


class ConfigError(ValueError):
    """An option has a value that cannot be; the message names the option."""

    status = 2  # with which a command ends


class PassingError(ConfigError):
    """It may be had at the next try: the hub and names need a network, and others may give memory back."""

    status = 1


class Config(ProcessOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of `actorserve launch`: the field `max_num_seqs` is `--max-num-seqs`, its description the help."""

    keys_of_file: int = 0  # no option: how many of api_key, its last ones, are those of --api-key-file
    models_found: int = 0  # nor this: how many of MODEL and `also`, their last ones, are of --models-dir or its preset
    unserved: dict[str, str] = {}  # nor this: by name, those of them that cannot be served, and why

    def served_names(self) -> list[str]:
        """The names under which requests may ask for the model; the first is the one in answers."""
        return self.served_model_name or [self.model or "actorserve-demo"]

    def json_object(self, name: str) -> dict[str, Any]:
        """What the field says, where its text is a JSON object; nothing where it is left out. ConfigError says that it
        is none.
        """
        text = getattr(self, name)
        try:
            return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise ConfigError(f"--{name.replace('_', '-')}: {text} is no JSON object: {error}") from None

    def adapters_in_memory(self) -> int:
        """How many of them there may be."""
        return 2 * self.adapters_at_once() if self.max_cpu_loras is None else self.max_cpu_loras

    def adapters_at_once(self) -> int:
        """How many of them may run."""
        return min(MAX_LORAS, self.max_cpu_loras or MAX_LORAS) if self.max_loras is None else self.max_loras

    @property
    def most_logprobs(self) -> int:
        """Of how many of the likeliest tokens a request may be told beside each."""
        return MOST_LOGPROBS if self.max_logprobs < 0 else self.max_logprobs

    @property
    def loads_when_asked(self) -> bool:
        """Do models change places, or wait to be loaded by name?"""
        return self.models_max > 0 or not self.models_autoload

    @property
    def offloads(self) -> bool:
        """Are KV blocks kept beside the workers' memory?"""
        return self.kv_offload is not None

    @property
    def shares_kv(self) -> bool:
        """Do servers give each other KV blocks over the network?"""
        parts = [part.strip().partition(":")[0] for part in (self.kv_offload or "").split(",")]
        return "tcp" in parts or "peer" in parts

    @property
    def tells_kv(self) -> bool:
        """Is anybody told which KV blocks are cached?"""
        if self.kv_events_config is None:
            return False
        from .objects.kv_events import read_events  # which knows Config

        return read_events(self).publishes

    @property
    def changes_logits(self) -> bool:
        """By code of whoever runs the server?"""
        return bool(self.logits_processors) or self.logits_processor_pattern is not None

    @property
    def has_tools(self) -> bool:
        """Are there tools that are called here?"""
        return bool(self.tool_server or self.allowed_tool_domains)

    @property
    def has_batches(self) -> bool:
        """Are there lines of batches to be asked?"""
        return self.files_dir is not None

    @property
    def engines(self) -> int:
        """That this server has room for; those on other machines are the last ones."""
        return self.local_engines + len(self.remote_engines)

    @property
    def local_engines(self) -> int:
        """Those of them with workers of its own."""
        if self.data_parallel_rank is not None:
            return 1
        return self.max_data_parallel_size or self.data_parallel_size

    @property
    def uses_ray(self) -> bool:
        """Does a Ray cluster keep some of those on other machines?"""
        return any(name.startswith("ray://") for name in self.remote_engines)

    @property
    def engines_at_start(self) -> int:
        """Those of them that are not parked then."""
        return min(self.data_parallel_size, self.local_engines)

    @property
    def workers(self) -> int:
        """That share one engine's model: of each stage as many."""
        return self.pipeline_parallel_size * self.tensor_parallel_size

    @property
    def local_workers(self) -> int:
        """Those of them on one machine."""
        return self.workers // self.nnodes

    def node_of(self, worker: int) -> int:
        """On which machine a worker of these is. The server's own draw: they answer, and have logs and grammars."""
        return (worker // self.local_workers + 1) % self.nnodes

    @property
    def first_engine(self) -> int:
        """The number by which others know the first of them."""
        return self.data_parallel_rank or 0

    @property
    def scheme(self) -> str:
        """Of the server's addresses."""
        return "http" if self.ssl_certfile is None else "https"


def make_config(values: dict[str, object]) -> Config:
    """Build a Config from plain values and the files that they name; raises ConfigError with the option's name."""
    if (drafts := values.get("speculative_config")) is not None:
        from .objects.speculative import canonical_drafts  # which knows Config

        values = {**values, "speculative_config": canonical_drafts(drafts)}
    for name in ("pooler_config", "kv_events_config", *MEDIA_OBJECTS, *OTHER_OBJECTS):
        if isinstance(given := values.get(name), dict):
            values = {**values, name: msgspec.json.encode(given).decode()}
    from .checks import check_config  # likewise
    from .fields import canonical, with_option  # likewise
    from .launcher import with_launcher  # likewise
    from .objects.structured_outputs import with_parser  # likewise
    from .serving.access import with_access, with_socket  # likewise

    values = with_socket({name: canonical(name, value) for name, value in with_parser(values).items()})
    try:
        config = msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(with_option(str(error), values)) from None
    config = with_launcher(with_access(config), os.environ)
    if config.remote_engines:
        from .objects.remote import addresses  # likewise

        config = msgspec.structs.replace(config, remote_engines=addresses(config))
    check_config(config)
    return config
