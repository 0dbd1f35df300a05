"""The caretaker: keeps so many engines on a Ray cluster, and tells their links where these are (shm/engine_places.py).
The only one who imports ray.

Ray places them (a placement group for each), starts them again, here or on another machine, and adds machines where its
autoscaler does that. No token passes it, and nobody waits for it to see a death: links and stewards know of each other.

    the caretaker dies       engines are detached, and go on; its successor finds them by their namespace, and asks
    the server dies          they end after a minute without a caretaker (engine.py), unless the next server, which
                             names the same cluster and options, has taken them over
    an engine, its machine   its link has given all away; Ray starts another, which says where it is once it computes
    Ray's head               what is there serves on; the caretaker is started again until Ray is back
An engine of other options is ended, and replaced. A place outlives everybody, and has the name of the engine for which
it was made: one without an engine is given back by the caretaker that finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import time
from typing import Any

from actorserve.shm.engine_places import PARKED, EnginePlaces

from ..engines.loads import EngineLoads
from ..options.config import Config, ConfigError
from ..options.fields import default, flag, option_fields
from ..options.objects.remote import RayEngines, ray_engines, read_engine_secret
from ..protocol.messages import ToCaretaker
from ..protocol.sockets.engine_facts import ALIKE
from ..runtime.process import Actor, Context, run
from ..telemetry.gauges import SchedulerGauge
from .demand import Demand, DemandSample
from .engine import Engine

LOOK_S = 0.5
ASK_S = 2.0  # for an answer
CREATED, REMOVED = "CREATED", "REMOVED"  # states of a placement group: it has its place; it is there no more
RUNNING, WAITING_TOKENS = int(SchedulerGauge.RUNNING), int(SchedulerGauge.WAITING_TOKENS)
PLACES = ("engine_certfile", "engine_ca_certs")
OTHERS = """
    model tokenizer tokenizer_mode skip_tokenizer_init hf_overrides download_dir generation_config
    override_generation_config logits_processors logits_processor_timeout revision dtype quantization model_impl
    trust_remote_code deterministic config_format load_format seed max_model_len kv_cache_memory_bytes
    kv_cache_memory_fraction gpu_memory_utilization kv_cache_dtype block_size enable_prefix_caching
    enable_eplb eplb_config max_num_batched_tokens target_itl_ms max_num_seqs max_num_queued_reqs keep_kv
    long_prefill_token_threshold scheduling_policy tensor_parallel_size pipeline_parallel_size enable_expert_parallel
    worker scripted_step_ms device enforce_eager cudagraph_capture_sizes speculative_config threads cpu_kernels
    weight_cache_gib step_timeout max_restarts log_level debug max_loras max_cpu_loras runner convert pooler_config
"""
COMPUTING = frozenset((*ALIKE, *PLACES, *OTHERS.split()))  # options that engines have, too


class CaretakerActor(Actor):
    """Of one server."""

    wait_s = LOOK_S

    def __init__(self, context: Context, ray: Any) -> None:
        self._context, self._ray = context, ray
        config = context.config
        wanted = ray_engines(config)
        assert wanted is not None
        self._wanted: RayEngines = wanted
        self._words, self._secret = engine_words(config), read_engine_secret(config).decode()
        self._options = hashlib.sha256(repr((self._words, self._secret)).encode()).hexdigest()[:16]
        self._places = EnginePlaces(context.files["places"], len(config.remote_engines))
        self._engines: list[Any] = [None] * wanted.most  # handles
        self._names = [""] * wanted.most  # of these actors
        self._known: list[tuple[str, str] | None] = [None] * wanted.most  # which life of each
        self._asked: list[tuple[Any, float] | None] = [None] * wanted.most  # answers that are waited for
        self._first = config.remote_engines.index(wanted.names[0])  # among those on other machines
        self._own = context.system.remote_engines[self._first :][: wanted.most]  # among all
        self._find()
        found = max((number + 1 for number, engine in enumerate(self._engines) if engine is not None), default=0)
        tokens, rows = config.max_num_batched_tokens, config.max_num_seqs
        self._demand = Demand(wanted.least, wanted.most, tokens, rows, wanted.idle_s, found)
        self._loads = EngineLoads(context.board, context.system)
        self._schedulers = [one.position for one in context.system.of_kind("scheduler")]
        self._show_parked()

    def handle(self, message: ToCaretaker) -> None:
        """Nobody sends it any."""

    def _find(self) -> None:
        """Those of a caretaker before, and places that nobody has, as of one that has died while it began an engine."""
        for entry in self._ray.util.list_named_actors(all_namespaces=True):
            if entry["namespace"] != self._wanted.namespace:
                continue
            number = int(entry["name"].partition("-")[0])
            handle = self._ray.get_actor(entry["name"], namespace=self._wanted.namespace)
            if number < len(self._engines) and self._engines[number] is None:
                self._engines[number], self._names[number] = handle, entry["name"]
            else:
                self._ray.kill(handle, no_restart=True)
        for group in self._ray.util.placement_group_table().values():
            namespace, _, name = group["name"].rpartition("/")
            if namespace == self._wanted.namespace and name not in self._names and group["state"] != REMOVED:
                self._give_back(name)

    def _place_of(self, name: str) -> str:
        """That of an engine: names of actors are of a namespace, and the table of all groups has none."""
        return f"{self._wanted.namespace}/{name}"

    def _give_back(self, name: str) -> None:
        """The place of the engine of this name."""
        with contextlib.suppress(ValueError):  # there is none: the engine has given it back itself
            self._ray.util.remove_placement_group(self._ray.util.get_placement_group(self._place_of(name)))

    def do_work(self) -> int:
        """Ask each how it is; begin those that are missing, end those that are not wanted."""
        wanted = self._look_at_load()
        for number, engine in enumerate(self._engines):
            if number >= wanted:
                if engine is not None:
                    self._end(number, engine)
            elif engine is None:
                self._engines[number] = self._begin(number)
            else:
                self._look_at(number, engine)
        return 0

    def _look_at_load(self) -> int:
        """How many are wanted now."""
        gauge, loads = self._context.board.gauge, self._loads
        up = [engine for engine in loads.engines if loads.is_up(engine)]
        own = sum(engine in self._own for engine in up)
        running, tokens = (sum(gauge(one, name) for one in self._schedulers) for name in (RUNNING, WAITING_TOKENS))
        before = self._demand.wanted
        wanted = self._demand.look(time.monotonic(), DemandSample(own, len(up) - own, running, tokens))
        if wanted != before:
            self._context.log.info("%d engines are wanted of Ray, %d before", wanted, before)
            self._show_parked()
        return wanted

    def _show_parked(self) -> None:
        """Nobody misses those that are not wanted; of others it is not known where they are, or it stays as it was."""
        for number in range(len(self._engines)):
            place = self._places.read(self._first + number)
            if number >= self._demand.wanted:
                self._places.write(self._first + number, PARKED)
            elif place == PARKED:
                self._places.write(self._first + number, "")

    def _end(self, number: int, engine: Any) -> None:
        """In order: its steward goes, and its link gives all away. One that has no place yet would hear of it only once
        it has one, for which a machine may be added meanwhile.
        """
        self._context.log.info("engine %d is not wanted any more", self._first + number)
        if self._is_placed(self._names[number]):
            engine.retire.remote()
        else:
            self._ray.kill(engine, no_restart=True)
            self._give_back(self._names[number])
        self._forget(number)

    def _is_placed(self, name: str) -> bool:
        """Is there room that is the engine's of this name?"""
        groups = self._ray.util.placement_group_table().values()
        return any(group["name"] == self._place_of(name) and group["state"] == CREATED for group in groups)

    def _forget(self, number: int) -> None:
        self._engines[number] = self._known[number] = self._asked[number] = None
        self._names[number] = ""

    def _begin(self, number: int) -> Any:
        """It is placed when there is room for it, which Ray's autoscaler sees, too."""
        ray, wanted = self._ray, self._wanted
        name = self._names[number] = f"{number}-{secrets.token_hex(4)}"
        place = ray.util.placement_group(
            [wanted.resources], strategy="STRICT_PACK", name=self._place_of(name), lifetime="detached"
        )
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            place, placement_group_capture_child_tasks=True
        )
        options = {
            **{"name": name, "namespace": wanted.namespace, "lifetime": "detached"},
            **{"max_restarts": -1, "scheduling_strategy": strategy, "max_concurrency": 2},
            **{"num_cpus": wanted.cpus, "num_gpus": wanted.gpus},
        }
        self._context.log.info("engine %d is placed by Ray", self._first + number)
        return ray.remote(Engine).options(**options).remote(self._words, self._secret, self._options)

    def _look_at(self, number: int, engine: Any) -> None:
        ray, asked = self._ray, self._asked[number]
        if asked is None:
            self._asked[number] = engine.state.remote(), time.monotonic()
            return
        answer, since = asked
        done, _ = ray.wait([answer], timeout=0)
        if not done:
            if time.monotonic() > since + ASK_S:  # it starts, or its machine is gone: links see that by themselves
                self._asked[number] = engine.state.remote(), time.monotonic()
            return
        self._asked[number] = None
        try:
            self._learn(number, ray.get(answer))
        except ray.exceptions.ActorUnavailableError:
            return  # Ray starts it again
        except ray.exceptions.RayActorError as error:
            self._context.log.error("engine %d has ended for good: %s", self._first + number, str(error)[:300])
            self._give_back(self._names[number])
            self._forget(number)

    def _learn(self, number: int, state: dict[str, Any]) -> None:
        if state["options"] != self._options:
            self._context.log.warning("engine %d was begun with other options: it is replaced", self._first + number)
            self._ray.kill(self._engines[number], no_restart=True)
            self._give_back(self._names[number])
            self._forget(number)
            return
        address = f"{state['host']}:{state['port']}" if state["port"] else ""
        if address and (state["id"], address) != self._known[number]:
            self._known[number] = state["id"], address
            self._context.log.info("engine %d is at %s", self._first + number, address)
            self._places.write(self._first + number, address)


def engine_words(config: Config) -> list[str]:
    """The options with which an engine computes the same, where they are not as they are anyway."""
    words: list[str] = []
    for field in option_fields().values():
        value = getattr(config, field.name)
        if field.name not in COMPUTING or value == default(field):
            continue
        if isinstance(value, bool):
            words.append(flag(field.name) if value else f"--no-{flag(field.name)[2:]}")
        else:
            words += [f"{flag(field.name)}={item}" for item in (value if isinstance(value, list) else [value])]
    return words


def main(context: Context) -> None:
    """Run the caretaker until it is told to stop. Engines go on."""
    import ray
    import ray.util.scheduling_strategies

    wanted = ray_engines(context.config)
    assert wanted is not None
    try:
        ray.init(address=wanted.address, namespace=wanted.namespace, log_to_driver=False, configure_logging=False)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"--engines: no Ray cluster is found at {wanted.address}: {error}") from None
    run(CaretakerActor(context, ray), context)
