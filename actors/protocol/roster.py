"""Which actors there are, whom each is for, and who hears whom; where all of it lies says topology.py."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from ..model.info import ModelInfo
from ..options.config import Config
from .actor_kind import ActorKind
from .actor_spec import ActorSpec, actor_name
from .kinds import HTTP2, KINDS, LINK, OWN_TEMPLATE, RELAY, SUPERVISOR, TEMPLATE
from .served import ServedModel, served_models


class Roster:
    """The actors of one set of options."""

    def __init__(self, config: Config, model: ModelInfo, also: Sequence[ModelInfo] = ()) -> None:
        """`model` is that of MODEL, and `also` those of --also."""
        self.config = config
        self.model = model
        self.models = served_models(config, [model, *also])
        self.engines = range(self.models[-1].engines.stop)
        self.remote_engines = range(config.local_engines, config.engines)  # a link stands for the scheduler
        self.local_engines = [engine for engine in self.engines if engine not in self.remote_engines]
        self.actors: list[ActorSpec] = []
        for kind in KINDS.values():
            for served in self.models if kind.by_engine or kind.by_model else self.models[:1]:
                self._add(kind, served)
        self.meetings = [f"meeting@{engine}" if engine else "meeting" for engine in self.engines]  # files, by engine
        self.schedulers = [actor.name for actor in self.of_kind("scheduler")]  # by engine
        behind = len(self.actors)
        self.template = ActorSpec(TEMPLATE, TEMPLATE, 0, behind)
        own = [kind.name for kind in KINDS.values() if kind.early_imports and self._imports(kind)]
        self.own_templates = {  # by the kind that each of them forks
            name: ActorSpec(OWN_TEMPLATE.format(name), TEMPLATE, index, behind + index)
            for index, name in enumerate(own, 1)
        }
        wanted = [kind for kind, given in ((RELAY, config.uds), (HTTP2, config.http2_port)) if given is not None]
        self.relays = {
            kind: ActorSpec(kind, kind, 0, place) for place, kind in enumerate(wanted, behind + 1 + len(own))
        }
        self.beside = [self.template, *self.own_templates.values(), *self.relays.values()]  # on the board behind actors
        self.supervisor = ActorSpec(SUPERVISOR, SUPERVISOR, 0, behind + len(self.beside))  # and behind these

    def _add(self, kind: ActorKind, served: ServedModel) -> None:
        """The actors of this kind that are this model's, or the server's."""
        before = 0 if kind.by_engine else len(self.of_kind(kind.name))
        for engine in served.engines if kind.by_engine else (0,):
            is_link = kind.by_engine and engine in self.remote_engines  # of an engine elsewhere nothing else is here
            if is_link and kind.group:
                continue
            for index in range(self._count(kind, served)):
                name = "link" if is_link else actor_name(kind, index, served)
                if kind.by_engine and len(self.engines) > 1:
                    name = f"{name}@{engine}"
                place = before + index, len(self.actors), engine, served.index
                self.actors.append(ActorSpec(name, kind.name, *place, LINK if is_link else ""))

    def _count(self, kind: ActorKind, served: ServedModel) -> int:
        """How many actors of this kind a model has, in an engine if they are of engines."""
        if self.config.steward is not None and not kind.of_stewards:
            return 0
        if kind.only_with and not any(getattr(one.info, kind.only_with) for one in self._of(kind, served)):
            return 0
        if kind.only_if and not getattr(self.config, kind.only_if):
            return 0
        return int(getattr(served.config, kind.count)) if kind.count else 1

    def _of(self, kind: ActorKind, served: ServedModel) -> Sequence[ServedModel]:
        """The models for which these actors are."""
        return [served] if kind.by_engine or kind.by_model else self.models

    def _imports(self, kind: ActorKind) -> bool:
        """Has this kind a template of its own here?"""
        return bool(self.of_kind(kind.name)) and (not kind.computes or self.config.worker == "model")

    def imports_of(self, kind: str) -> list[str]:
        """Modules that the template of this kind imports for the models that are served."""
        if not KINDS[kind].computes:
            return []
        return list(dict.fromkeys(module for served in self.models for module in served.worker_modules()))

    @property
    def max_model_len(self) -> int:
        """Of the model that takes most."""
        return max(one.info.max_model_len for one in self.models)

    @property
    def max_num_seqs(self) -> int:
        """That run at once in all engines together."""
        return sum(one.config.max_num_seqs * len(one.engines) for one in self.models)

    def detokenizers_of(self, model: int) -> list[str]:
        """Who is told of tokens of a model; on a machine that computes for others its steward is."""
        return [one.name for kind in ("detokenizer", "steward") for one in self.of_kind(kind) if one.model == model]

    def _senders(self) -> list[ActorSpec]:
        """Those that are started last come first: so an inbox hears a request's senders in the order of its way."""
        return [actor for kind in reversed(KINDS) for actor in self.of_kind(kind)]

    def _targets(self, source: ActorSpec, kind: ActorKind) -> list[tuple[str, tuple[str, ...]]]:
        """(name, readers) of each lane from this actor to this kind: those of a group get everything by one lane."""
        found: list[tuple[str, tuple[str, ...]]] = []
        for engine in self._heard_by(source, kind):
            names = tuple(actor.name for actor in self._of_both(source, kind) if actor.engine == engine)
            if kind.group and names:
                found.append((self.group_of(kind, engine), names))
            elif not kind.group:
                found += [(name, (name,)) for name in names]
        return found

    def _of_both(self, source: ActorSpec, kind: ActorKind) -> list[ActorSpec]:
        """The actors of a kind that are for a model which this actor is for, too."""
        if not kind.by_model or not (source.traits.by_engine or source.traits.by_model):
            return self.of_kind(kind.name)
        return [actor for actor in self.of_kind(kind.name) if actor.model == source.model]

    def _heard_by(self, source: ActorSpec, kind: ActorKind) -> list[int]:
        """The engines whose actors of this kind hear this actor."""
        if not kind.by_engine:
            return [0]
        if not (source.traits.by_engine or source.traits.by_model):
            return list(self.engines)
        engines = self.models[source.model].engines
        if not source.traits.by_engine:
            return list(engines)
        return [engine for engine in engines if (engine == source.engine) != (kind is source.traits)]

    def group_of(self, kind: ActorKind, engine: int) -> str:
        """The name of the lanes to all of an engine's group."""
        return kind.name if len(self.engines) == 1 else f"{kind.name}@{engine}"

    def workers_of(self, engine: int) -> list[ActorSpec]:
        """That share its model, stage by stage."""
        return [actor for actor in self.of_kind("worker") if actor.engine == engine]

    def is_reporter(self, worker: ActorSpec) -> bool:
        """Whether this one tells the scheduler what its group has done: the first of those who draw."""
        config = self.models[worker.model].config
        return worker.index == config.workers - config.tensor_parallel_size

    def model_of(self, engine: int) -> ServedModel:
        """The one that this engine computes."""
        return next(one for one in self.models if engine in one.engines)

    def whose(self, actor: ActorSpec) -> str:
        """The name of the model that an actor is for; empty of those that are for all, and where there is one."""
        is_of_one = actor.kind in KINDS and (actor.traits.by_engine or actor.traits.by_model)
        return self.models[actor.model].name if is_of_one and len(self.models) > 1 else ""

    def first_device(self, engine: int) -> int:
        """The number of GPUs that others take before this engine: each worker has its own, but those on a CPU. Models
        that yield take theirs when all others have some.
        """
        own = self._devices(range(engine), yields := self.model_of(engine).yields)
        return own + self.num_devices if yields else own

    @property
    def num_devices(self) -> int:
        """The GPUs of models that yield to no other."""
        return self._devices(self.engines, yields=False)

    def _devices(self, engines: Iterable[int], yields: bool) -> int:
        """Those of engines whose models yield, or do not."""
        models = {engine: self.model_of(engine) for engine in engines}
        return sum(
            len(self.workers_of(engine))
            for engine, served in models.items()
            if served.yields == yields and not served.is_on_cpu
        )

    @cached_property
    def by_name(self) -> dict[str, ActorSpec]:
        return {actor.name: actor for actor in self.actors}

    def of_kind(self, kind: str) -> list[ActorSpec]:
        return [actor for actor in self.actors if actor.kind == kind]

    def scheduler_of(self, engine: int | None, model: int = 0) -> str:
        """Whom to tell of a slot of this engine. None: of one of this model that has no prompt yet; the model's first
        passes it on.
        """
        return self.schedulers[self.models[model].engines[0] if engine is None else engine]

    @property
    def with_clients(self) -> list[ActorSpec]:
        """Those that are handed clients' connections."""
        return [actor for actor in self.actors if actor.traits.has_clients]
