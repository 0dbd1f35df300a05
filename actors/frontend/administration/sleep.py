"""What a sleep means for those who come meanwhile, as any frontend may read it (shm/kv_map/sleep.py)."""

from __future__ import annotations

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import not_loaded
from actorserve.shm.kv_map.sleep import SleepWord
from actorserve.shm.weights import LoadProblem

from ...runtime.process import Context


class SleepWatch:
    """The engines' words, as any frontend may read them."""

    def __init__(self, context: Context) -> None:
        self._words = [SleepWord(context.segment.map, offset) for offset in context.system.kv_map_offsets]
        config = context.system.config
        self._models, self._loads = context.system.models, config.models_autoload
        self.loads_some = config.loads_when_asked

    def is_on(self, by_itself: bool = True) -> bool:
        """Does an engine sleep, or is it to? `by_itself`: also one that has fallen asleep so, and wakes so."""
        return any((state := word.state).is_on and (by_itself or not state.idle) for word in self._words)

    @property
    def all_are_on(self) -> bool:
        """Does each model sleep, or is to, whether by itself or not?"""
        return all(any(self._words[engine].state.is_on for engine in one.engines) for one in self._models)

    def engines_to_wake(self) -> list[int]:
        """Which an operator's word wakes: all, or where models are loaded once they are asked for, those that do not
        sleep for want of that.
        """
        return [at for at, word in enumerate(self._words) if not (self.loads_some and word.state.idle)]

    def is_parked(self, engine: int) -> bool:
        """Has it given its model back?"""
        return self._words[engine].state.is_parked

    def is_unloaded(self, model: int) -> bool:
        """Have all of its engines given it back?"""
        return all(map(self.is_parked, self._models[model].engines))

    def is_leaving(self, model: int) -> bool:
        """Does one of its engines sleep once what has begun has ended?"""
        return any(self._words[engine].state.draining for engine in self._models[model].engines)

    def refusal(self, model: int) -> ApiError | None:
        """What a request for this model gets that comes now; None where it is taken."""
        if not self._loads and self.is_unloaded(model) and not self.is_on(by_itself=False):
            return not_loaded(self._models[model].name)
        if all((state := word.state).is_on and state.refuses for word in self._words):
            return asleep("The server sleeps; POST /wake_up wakes it.")
        return None

    def overdue(self, arrival_ns: int, now_ns: int) -> ApiError | None:
        """What a request of that time gets that nobody has begun with; None where it waits on."""
        for word in self._words:
            state = word.state
            if not state.is_on:
                return None
            if now_ns - max(arrival_ns, word.since_ns) < state.wait_s * 1_000_000_000:
                return None
        return asleep(f"The server sleeps, and was not woken within {self._words[0].state.wait_s} s.")


def load_problem(context: Context, model: int) -> str:
    """Why an engine of this model could not load it when it was asked for last; nothing where all could."""
    problems = (LoadProblem(context.files["weights"], engine).read() for engine in context.system.models[model].engines)
    return next(filter(None, problems), "")


def asleep(text: str) -> ApiError:
    """503."""
    return ApiError(503, text, code="asleep", retry_after=1)
