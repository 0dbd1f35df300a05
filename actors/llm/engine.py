"""The frontend's part, played by a thread of the calling process: prompts go in, outputs come out.

It gives the actors no more sequences than they run or keep waiting (prompt_queue.py). What any thread may call says so;
all else belongs to this thread's event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar

from actorserve.http.errors import ApiError
from actorserve.http.settings import ServedAdapter
from actorserve.shm.board.board import ActorState

from ..frontend.engine import FrontendEngine
from ..frontend.rpc import CALL_S, LOAD_S
from ..model.tokenizers.tokenizer import load_tokenizer
from ..protocol.messages import ToFrontend
from ..runtime.loop import LoopActor, LoopTurns
from ..runtime.process import Context
from .batch import PromptBatch
from .host_wire import HostEnded
from .inside import InProcess
from .link import EngineDead, HostLink
from .prompt_queue import PromptQueue

T = TypeVar("T")
RESET_S = 2 * CALL_S  # the scheduler gets the half of it to answer
MARGIN_BYTES = 4096  # of a message, beside prompt and parameters


class FrontendThread(LoopActor):
    """One frontend without HTTP; actors inside this process have their turns between its own.

    `dead`: why nothing can be generated any more.
    """

    def __init__(self, link: HostLink | InProcess) -> None:
        assert link.boot is not None
        self._link = link
        self._context = Context(link.boot)
        system = self._context.system
        self.model = self._context.model
        self.most_sequences = system.config.max_num_seqs + system.max_queued  # what the scheduler takes at once
        longest = self._context.outboxes["renderer-0"].max_message - MARGIN_BYTES
        self.most_bytes = min(longest, system.config.max_body_bytes)
        self.dead: Exception | None = None
        self._tokenizer = load_tokenizer(self.model)
        self._prompts = PromptQueue(self._context, self.decode)
        self._asked: dict[Future[Any], asyncio.Task[Any]] = {}  # questions, of which somebody waits for the answers
        self._loop = asyncio.new_event_loop()
        self._ending = threading.RLock()  # nobody calls the loop between its last turn and its end
        self._began = threading.Event()
        self._thread = threading.Thread(target=self._run, name="actorserve-llm", daemon=True)
        self._thread.start()
        try:
            self._began.wait()
        except BaseException:
            self.close()
            raise
        if self.dead is not None:
            raise self.dead

    @property
    def is_own_thread(self) -> bool:
        """Does the engine's thread ask?"""
        return threading.current_thread() is self._thread

    # --- for any thread ------------------------------------------------------------------------------------------

    def submit(self, batch: PromptBatch) -> None:
        """Begin; what comes of it is told by `batch.ended`."""
        self._call(self._submit, batch)

    def cancel(self, batch: PromptBatch) -> None:
        """Nobody waits for it any more."""
        self._call(lambda: self._prompts.cancel(batch))

    def abort(self, batch: PromptBatch) -> None:
        """Its prompts end with what they have, and the finish_reason abort."""
        self._call(lambda: self._prompts.abort(batch))

    def encode(self, text: str, begins: bool) -> list[int]:
        """The tokens of a text, with those that stand at a prompt's beginning if it is one."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=begins).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        """The text of a prompt's tokens."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        """Return when it is done; RuntimeError if that takes longer than anybody answers."""
        self._ask(
            lambda: self._engine.reset_prefix_cache(reset_running_requests), RESET_S, "the prefix cache was reset"
        )

    def reset_mm_cache(self) -> None:
        """The same, of processed pictures."""
        self._ask(lambda: self._engine.reset_mm_cache(), RESET_S, "the cache of pictures was reset")

    def load_adapter(self, name: str, path: str, in_place: bool) -> ServedAdapter:
        """The adapter, once it can be had; ValueError says why it cannot."""

        async def load() -> ServedAdapter:
            if not path:
                await self._engine.want_adapter(name)
            found = self._engine.adapters.find(name)
            if found is None or in_place or (path and found.path != path):
                await self._engine.load_adapter(name, path, found is not None)
                found = self._engine.adapters.find(name)
            assert found is not None
            return found

        return self._ask(load, 2 * LOAD_S, f"the adapter {name} was loaded")

    def ask(self, question: Callable[[FrontendEngine], Awaitable[T]], limit: float, what: str) -> T:
        """Something that an operator may ask; RuntimeError if nobody has answered within so many seconds."""
        return self._ask(lambda: question(self._engine), limit, what)

    def _ask(self, question: Callable[[], Awaitable[T]], limit: float, what: str) -> T:
        """The answer to something that is asked of other actors."""
        done: Future[T] = Future()
        self._call(self._begin_to_ask, done, question)
        try:
            return self._answer_to(done, limit)
        except TimeoutError:  # the thread has ended between the question and its turn
            raise RuntimeError(f"it was not known within {limit:.0f} s whether {what}") from None

    def _answer_to(self, done: Future[T], limit: float) -> T:
        """Whoever does not wait any more, as behind Ctrl-C, gives the question up."""
        try:
            return done.result(limit)
        except BaseException:
            self._call(self._give_up, done)
            raise

    def close(self) -> None:
        """End the thread; whoever still waits is told."""
        self._call(self._stop)
        self._thread.join()

    def _call(self, function: Any, *arguments: Any) -> None:
        try:
            with self._ending:
                self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:  # the loop is closed
            if function in (self._submit, self._begin_to_ask):
                raise EngineDead("the LLM object is closed") from None

    # --- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._begin())
        except Exception as error:
            self.dead = error
        finally:
            self._began.set()
        if self.dead is None:
            self._loop.run_forever()
            self._loop.run_until_complete(self._end_tasks())
        with self._ending:
            self._loop.run_until_complete(asyncio.sleep(0))  # who has called it meanwhile is told
            self._context.close()
            self._loop.close()
        # with them goes the shared memory, though the object may live on
        for name in ("_engine", "_prompts", "_context", "_turns"):
            self.__dict__.pop(name, None)

    async def _end_tasks(self) -> None:
        """Questions that nobody has answered are not waited for."""
        tasks = asyncio.all_tasks(self._loop) - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self) -> None:
        self._engine = FrontendEngine(self._context)
        self._loop.set_exception_handler(self._mistake)
        self._turns = LoopTurns(self._context, self._loop, self)
        self._prompts.open(self._engine, self._turns.turn)
        if isinstance(self._link, HostLink):
            self._loop.add_reader(self._link.socket, self._heard, self._link)
        self._context.set_state(ActorState.READY)
        self._turns.start()

    def handle(self, message: ToFrontend) -> None:
        self._engine.handle(message)

    def do_work(self) -> int:
        answers = self._engine.turn_ends()
        self._prompts.begin()
        return answers

    def published(self) -> int:
        return self._link.turn() if isinstance(self._link, InProcess) else 0

    def beat(self) -> None:
        self._engine.beat(0)

    def _stop(self) -> None:
        self._die(EngineDead("the LLM object is closed"))
        self._loop.stop()

    def _mistake(self, loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
        """The loop only logs what is raised in a callback; here whoever waits is told."""
        loop.default_exception_handler(about)
        self._die(EngineDead(f"a mistake in the calling process: {about.get('exception') or about['message']!r}"))

    def _submit(self, batch: PromptBatch) -> None:
        if self.dead is None:
            self._prompts.add(batch)
        else:
            batch.fail(self.dead)

    def _heard(self, link: HostLink) -> None:
        message = link.hear()
        if isinstance(message, HostEnded):
            self._loop.remove_reader(link.socket)
            self._die(EngineDead(message.reason))

    def _die(self, error: Exception) -> None:
        """Every waiting call raises."""
        if self.dead is None:
            self.dead = error
        self._prompts.fail(self.dead)
        for done, task in self._asked.items():
            done.set_exception(self.dead)
            task.cancel()  # the loop holds it then, which else knows of it only as long as nobody collects it
        self._asked.clear()

    # --- questions -----------------------------------------------------------------------------------------------

    def _begin_to_ask(self, done: Future[Any], question: Callable[[], Awaitable[Any]]) -> None:
        if self.dead is not None:
            done.set_exception(self.dead)
            return
        task = self._asked[done] = self._loop.create_task(self._answer(question))
        task.add_done_callback(partial(self._answered, done))

    def _give_up(self, done: Future[Any]) -> None:
        if (task := self._asked.pop(done, None)) is not None:
            task.cancel()

    async def _answer(self, question: Callable[[], Awaitable[Any]]) -> Any:
        self._loop.call_soon(self._turns.turn)  # behind what is posted now
        try:
            return await question()
        except ApiError as error:
            raise (ValueError if error.status < 500 else RuntimeError)(error.message) from None

    def _answered(self, done: Future[Any], task: asyncio.Task[Any]) -> None:
        if done not in self._asked:  # it was told of the end
            return
        del self._asked[done]
        if (error := task.exception()) is not None:
            done.set_exception(error)
        else:
            done.set_result(task.result())
