"""How far the prompts of a job have come, by what its schedulers write."""

from __future__ import annotations

from actorserve.http.generation.job import Job
from actorserve.http.generation.times import PromptProgress
from actorserve.shm.kv_map.view import KVView

from ...runtime.process import Context


class PromptsProgress:
    """Looks when it is asked. Of an engine elsewhere, whose link computes nothing, it says what was cached."""

    def __init__(self, context: Context) -> None:
        system = context.system
        self._table = context.table
        self._maps = [KVView(context.segment, offset, *system.kv_map_sizes[:3]) for offset in system.kv_map_offsets]

    def progress(self, job: Job) -> list[PromptProgress]:
        """Of each choice whose prompt was rendered."""
        found = []
        for choice in job.choices:
            engine = self._table.engine(choice.ref) if choice.ref and choice.prompt_tokens else None
            if engine is not None:
                computed = min(self._maps[engine].computed(choice.ref), choice.prompt_tokens)
                cached = self._table.cached(choice.ref)
                found.append(PromptProgress(choice.index, choice.prompt_tokens, cached, computed))
        return found
