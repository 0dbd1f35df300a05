"""What `actorserve launch` would load, and whether it could: every part is asked what it would say at its start.

Nothing is started and nothing is kept; a model of the hub is downloaded, as it would be then.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from actorserve.shm.segment import Segment, SegmentError

from ..frontend.parsers import choose_parsers, unknown_calls
from ..model.info import ModelInfo, resolve_model, with_tokenizer
from ..model.tokenizers.tokenizer import find_templates, load_tokenizer
from ..model.weights.weight_files import read_weights
from ..options.also import model_configs, without
from ..options.config import Config, ConfigError
from ..protocol.topology import System
from ..renderer.templates.chat_template import ChatTemplate

INSPECTION = "actorserve.actors.worker.inspection"  # by name: it loads torch, which nobody else here needs


class Checkup:
    """Facts by topic, and what is wrong."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.facts: dict[str, dict[str, Any]] = {}
        self.problems: list[str] = []
        self.info: ModelInfo | None = None  # of the model, once that is known

    def run(self) -> None:
        """Look at everything that can be looked at, whatever else is wrong."""
        try:
            model = resolve_model(self.config)
        except ConfigError as error:
            self.problems.append(str(error))
            return
        looks = [self._model, self._text, self._chat, self._computing, self._sharing]
        try:
            model = with_tokenizer(self.config, model)
        except ConfigError as error:
            self.problems.append(str(error))
            looks.remove(self._text)
        self.info = model
        for look in looks:
            self._guarded(look, model)

    def _guarded(self, look: Callable[[ModelInfo], None], model: ModelInfo) -> None:
        try:
            look(model)
        except (ConfigError, SegmentError) as error:
            if str(error) not in self.problems:
                self.problems.append(str(error))

    def _note(self, topic: str, **facts: Any) -> None:
        self.facts.setdefault(topic, {}).update(facts)

    def _model(self, model: ModelInfo) -> None:
        self._note(
            "model",
            names=self.config.served_names(),
            folder=model.folder,
            architecture=model.architecture,
            vocabulary=model.vocab_size,
            context_length=model.max_model_len,
            media=model.media,
            sampling_defaults=model.sampling_defaults,
        )
        if self.config.load_format != "dummy":
            self._note("model", stored_bytes=stored_bytes(Path(model.folder)))

    def _text(self, model: ModelInfo) -> None:
        if not model.tokenizer_folder:
            return
        words = load_tokenizer(model).get_vocab_size()
        self._note("tokenizer", folder=model.tokenizer_folder, words=words)

    def _chat(self, model: ModelInfo) -> None:
        if model.pooling is not None:
            return
        ChatTemplate(self.config, model)
        tools, reasoning = choose_parsers(self.config, model)
        templates = sorted(find_templates(self.config, model))
        self._note("chat", templates=templates, tool_parser=tools, reasoning_parser=reasoning)
        if doubt := unknown_calls(self.config, model):
            self._note("chat", doubt=doubt)

    def _computing(self, model: ModelInfo) -> None:
        self._note("computing", workers=self.config.workers)
        for facts in importlib.import_module(INSPECTION).inspect(self.config, model):
            self._note("computing", **facts)
        found, size = self.facts["computing"], self.config.block_size
        blocks, longest = found["blocks"], found.get("sequence_blocks") or -(-model.max_model_len // size)
        self._note(
            "room",
            tokens=found.get("kv_tokens", blocks * size),
            sequences=min(self.config.max_num_seqs, blocks),
            longest_sequences=min(self.config.max_num_seqs, blocks // longest),
        )

    def _sharing(self, model: ModelInfo) -> None:
        self.share(System(self.config, model))

    def share(self, system: System) -> None:
        """What all actors of this server have in common."""
        self._note("room", waiting=system.max_queued)
        self._note("sharing", segment_bytes=system.size, slots=system.slots)
        Segment.create(system.size, "lanes and request table").close()


def check_all(config: Config) -> tuple[list[Checkup], list[Checkup]]:
    """Of MODEL and those of --also, and of those that are left out: models of a folder, which nobody has named, such as
    cannot be served beside others. What all share, which is told with the first, is of all that are served.
    """
    checkups = [Checkup(msgspec.structs.replace(own, also=[])) for own in model_configs(config)]
    for checkup in checkups:
        checkup.run()
    named = len(checkups) - config.models_found
    unserved = {number: "" for number, one in enumerate(checkups) if number >= named and one.problems}
    if len(unserved) == len(checkups):
        return checkups, []
    served = [one for number, one in enumerate(checkups) if number not in unserved]
    infos = [checkup.info for checkup in served if checkup.info is not None]
    if len(served) > 1 and len(infos) == len(served):
        for checkup in served:
            checkup.facts.pop("sharing", None)
        kept = without(config, unserved) if unserved else config
        try:
            served[0].share(System(kept, infos[0], infos[1:]))
        except SegmentError as error:
            served[0].problems.append(str(error))
    return served, [checkups[number] for number in unserved]


def stored_bytes(folder: Path) -> dict[str, int]:
    """The sizes of the weights in the model's files, by the types in which they are stored."""
    sizes: Counter[str] = Counter()
    for tensor in read_weights(folder).values():
        sizes[tensor.dtype] += tensor.size
    return dict(sizes)
