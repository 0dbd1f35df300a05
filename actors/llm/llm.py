"""`LLM`: the server's actors for a script or a notebook, without HTTP.

    from actorserve import LLM, SamplingParams
    llm = LLM("a folder or a hub name", max_num_seqs=32)
    for output in llm.generate(["One and one is", "Two and two is"], SamplingParams(temperature=0)):
        print(output.outputs[0].text)

A prompt that cannot be answered (too long, a grammar that cannot be) does not hold the others up: they are finished,
and then PromptError, a ValueError, is raised, which has their outputs. What can be seen before is refused at once.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from actorserve.http.errors import ApiError
from actorserve.http.settings import ServedAdapter

from .batch import PromptBatch, PromptRequest, make_request
from .engine import FrontendThread
from .inputs.lora import LoadedAdapters, LoRARequest, LoRARequests
from .inputs.media import GivenPictures
from .inputs.prompts import GivenPrompt, PromptType, given_prompts
from .inputs.tokenization import tokenized
from .inside import InProcess
from .launched import Listener, join_launched
from .link import HostLink
from .methods.administration import AdministrationMethods
from .methods.beam_search import BeamSearchMethods
from .methods.chats import ChatMethods
from .methods.engine_facts import EngineFactsMethods
from .methods.enqueued import EnqueuedMethods
from .methods.metrics import MetricsMethods
from .methods.pooling_models import PoolingMethods
from .outputs import RequestOutput
from .pooling import PooledPrompt, PooledPrompts
from .progress import ProgressBar
from .sampling_params import Params, Priorities, RequestOutputKind, SamplingParams
from .settings import make_settings, read_options
from .streaming.engine_args import EngineArgs


class LLM(
    EnqueuedMethods,
    ChatMethods,
    PoolingMethods,
    BeamSearchMethods,
    AdministrationMethods,
    MetricsMethods,
    EngineFactsMethods,
):
    """One set of actors with one model. `options` are those of `actorserve launch`, by their names with underscores.
    `in_process`: the actors are objects of this process and take turns in one thread, so that a breakpoint stops all.

    Threads may share it; a forked process cannot use its parent's. It is closed by `close()`, as a context manager,
    with its last reference or with the process; nothing is left even if that is killed.
    """

    def __init__(self, model: str = "", *, in_process: bool = False, **options: Any) -> None:
        self.config = read_options(model, options)
        self._launched = join_launched(self.config.distributed_executor_backend)
        if isinstance(self._launched, Listener):  # another process has the actors
            self._closer: Callable[[], object] = weakref.finalize(self, self._launched.close)
            self._launched.take_over(self)
            return
        self._link = InProcess(self.config) if in_process else HostLink(self.config)
        try:
            if isinstance(self._link, HostLink):
                self._link.wait_ready()
            self._engine = FrontendThread(self._link)
        except BaseException:
            self._link.close()
            if self._launched is not None:
                self._launched.close()
            raise
        self._pid = os.getpid()
        self._closer = weakref.finalize(self, _close, self._engine, self._link, self._pid)
        self._adapters = LoadedAdapters(self.config.enable_lora)
        self._settings = replace(make_settings(self.config, self._engine.model), adapters=self._adapters)
        self._pictures = GivenPictures(self.config, self._settings.media)
        self._ids = itertools.count()
        self._enqueued: list[PromptBatch] = []
        self._tokenizer: Any = None
        if self._launched is not None:
            weakref.finalize(self, self._launched.close)
            self._launched.take_over(self)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> LLM:
        """Of options as an object."""
        return cls(engine_args.model, **engine_args.options)

    # --- generating ----------------------------------------------------------------------------------------------

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        priority: Priorities = None,
        lora_request: LoRARequests = None,
        tokenization_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """The outputs in the order of the prompts: texts, lists of token ids, or dicts of `prompt`, `prompt_token_ids`
        or (with enable_prompt_embeds) a tensor as `prompt_embeds`, with pictures of Pillow as
        `multi_modal_data["image"]`, films as `["video"]`. One SamplingParams for all, or one for each, and so with
        `lora_request` and `priority`.
        """
        self._check_generates()
        given = tokenized(given_prompts(prompts, self._pictures), tokenization_kwargs)
        return self._run(self._batch(given, sampling_params, priority, lora_request), use_tqdm)

    def _batch(self, given: list[GivenPrompt], params: Params, priority: Priorities, lora: LoRARequests) -> PromptBatch:
        """All prompts, checked as far as that goes before the first of them is begun."""
        self._check_usable()
        if params is None:
            params = self.get_default_sampling_params()
        each = [params] * len(given) if isinstance(params, SamplingParams) else list(params)
        priorities = list(priority) if isinstance(priority, Iterable) else [priority or 0] * len(given)
        if not len(given) == len(each) == len(priorities):
            raise ValueError(
                f"{len(given)} prompts, {len(each)} sampling_params and {len(priorities)} priorities do not match"
            )
        names = self._adapters.load(lora, len(given), self._load_adapter)
        rows = zip(given, each, priorities, names, strict=True)
        return PromptBatch([self._wanted(index, *one) for index, one in enumerate(rows)])

    def _load_adapter(self, given: LoRARequest) -> ServedAdapter:
        return self._engine.load_adapter(given.lora_name, given.lora_path, given.load_inplace)

    def prepare(
        self,
        request_id: str,
        prompt: PromptType,
        params: SamplingParams | None,
        priority: int,
        lora: LoRARequest | None,
    ) -> PromptRequest:
        """One prompt, whose output is to be told as it comes; for those who begin it themselves (llm/streaming/)."""
        self._check_generates()
        self._check_usable()
        (given,) = given_prompts([prompt], self._pictures)
        (name,) = self._adapters.load(lora, 1, self._load_adapter)
        params = self.get_default_sampling_params() if params is None else params
        stream = params.output_kind is not RequestOutputKind.FINAL_ONLY
        return self._wanted(0, given, params, priority, name, request_id, stream)

    def _wanted(
        self,
        index: int,
        given: GivenPrompt,
        params: SamplingParams,
        priority: int,
        adapter: str | None,
        request_id: str = "",
        stream: bool = False,
    ) -> PromptRequest:
        own = request_id or str(next(self._ids))
        try:
            wanted = make_request(
                own, given, params, priority, self._settings, self._engine.most_bytes, adapter, stream
            )
        except (ApiError, ValueError) as error:
            raise ValueError(f"prompt {index}: {error}") from None
        if wanted.sequences > self._engine.most_sequences:
            most = self._engine.most_sequences
            raise ValueError(
                f"prompt {index}: n: {wanted.sequences} sequences are more than the {most} that run or wait"
            )
        return wanted

    def _pooled(self, pooled: list[PooledPrompt], use_tqdm: bool | Callable[..., Any]) -> list[Any]:
        self._check_usable()
        return self._run(PromptBatch(pooled), use_tqdm)

    def _pooled_prompts(self) -> PooledPrompts:
        return PooledPrompts(self._settings, lambda: str(next(self._ids)), self._pictures)

    def _run(self, batch: PromptBatch, use_tqdm: bool | Callable[..., Any]) -> list[Any]:
        self._engine.submit(batch)
        try:
            self._wait(batch, None, use_tqdm)
        except BaseException:  # Ctrl-C: nobody wants these any more, and others can be asked for
            self._engine.cancel(batch)
            raise
        return batch.results()

    def _wait(self, batch: PromptBatch, deadline: float | None, use_tqdm: bool | Callable[..., Any]) -> None:
        """Until each of its prompts has ended."""
        with ProgressBar(batch, use_tqdm) as progress:
            while progress.left:
                progress.next(None if deadline is None else max(0.0, deadline - time.monotonic()))

    # --- what else there is --------------------------------------------------------------------------------------

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's generation_config.json recommends; with that are generated prompts without parameters."""
        values: dict[str, Any] = dict(self._engine.model.sampling_defaults)
        if (most := values.pop("max_new_tokens", None)) is not None:
            values["max_tokens"] = int(most)
        if "top_k" in values:
            values["top_k"] = int(values["top_k"])
        return SamplingParams(**values)

    @property
    def engine(self) -> FrontendThread:
        """What begins and ends prompts; EngineDead if nothing can be generated any more."""
        self._check_usable()
        return self._engine

    @property
    def is_dead(self) -> bool:
        """Can nothing be generated any more?"""
        return self._engine.dead is not None

    @property
    def pid(self) -> int:
        """The process that supervises the actors; `actorserve ps` shows them by it."""
        return self._link.pid

    def get_tokenizer(self) -> Any:
        """The model's tokenizer, as transformers loads it."""
        if not self._engine.model.tokenizer_folder:
            raise ValueError("skip_tokenizer_init: there is no tokenizer")
        if self._tokenizer is None:
            from transformers import AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(
                self._engine.model.tokenizer_folder, trust_remote_code=self.config.trust_remote_code
            )
        return self._tokenizer

    def _check_generates(self) -> None:
        if (pooling := self._engine.model.pooling) is not None:
            raise ValueError(f"this model pools ({', '.join(pooling.tasks)}); runner='generate' makes texts")

    def _check_usable(self) -> None:
        if os.getpid() != self._pid:
            text = "a forked process cannot use its parent's: make an LLM in the process that uses it"
            raise RuntimeError(f"this LLM belongs to process {self._pid}; {text}")
        if self._engine.dead is not None:
            raise self._engine.dead

    def close(self) -> None:
        """Stop all actors and wait for their end. What is still generated is given up."""
        self._closer()
        gc.collect()  # what has mapped the shared memory refers to itself

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close(engine: FrontendThread, link: HostLink | InProcess, pid: int) -> None:
    if os.getpid() != pid:  # a fork has copies of it all, and nothing to end
        return
    if engine.is_own_thread:  # the collector came by there: it cannot wait for its own end
        threading.Thread(target=_close, args=(engine, link, pid)).start()
    else:
        engine.close()
        link.close()
