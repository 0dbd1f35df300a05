"""The methods of LLM that are given conversations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from actorserve.http.settings import Settings

from ...options.config import Config
from ..batch import PromptBatch
from ..inputs.lora import LoRARequests
from ..inputs.media import GivenPictures
from ..inputs.prompts import Conversation, GivenPrompt, given_conversations
from ..inputs.tokenization import tokenized
from ..outputs import RequestOutput
from ..sampling_params import Params, Priorities


class ChatVariables(TypedDict, total=False):
    """How conversations become prompts: by the chat template, and by the tokenizer."""

    chat_template: str | None
    chat_template_content_format: str  # of the LLM object
    add_generation_prompt: bool  # True if left out
    continue_final_message: bool
    tools: Sequence[Mapping[str, Any]] | None
    chat_template_kwargs: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    tokenization_kwargs: Mapping[str, Any] | None


class ChatMethods:
    """What LLM inherits of them."""

    config: Config
    _settings: Settings
    _pictures: GivenPictures

    def _check_generates(self) -> None:
        raise NotImplementedError

    def _batch(self, given: list[GivenPrompt], params: Params, priority: Priorities, lora: LoRARequests) -> PromptBatch:
        raise NotImplementedError

    def _run(self, batch: PromptBatch, use_tqdm: bool | Callable[..., Any]) -> list[Any]:
        raise NotImplementedError

    def _enqueue(self, batch: PromptBatch) -> list[str]:
        raise NotImplementedError

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        use_tqdm: bool | Callable[..., Any] = True,
        lora_request: LoRARequests = None,
        priority: Priorities = None,
        **variables: Unpack[ChatVariables],
    ) -> list[RequestOutput]:
        """The next turn of a conversation, or of each in a list of them. The text is as the model writes it: thinking
        and tool calls are not taken out of it.
        """
        given = self._conversations(messages, variables)
        return self._run(self._batch(given, sampling_params, priority, lora_request), use_tqdm)

    def enqueue_chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: Params = None,
        lora_request: LoRARequests = None,
        priority: Priorities = None,
        use_tqdm: bool | Callable[..., Any] = True,  # vLLM's; nothing is waited for
        **variables: Unpack[ChatVariables],
    ) -> list[str]:
        """Begin with conversations as `chat` takes them, and return their request ids at once."""
        given = self._conversations(messages, variables)
        return self._enqueue(self._batch(given, sampling_params, priority, lora_request))

    def _conversations(
        self, messages: Conversation | Sequence[Conversation], variables: ChatVariables
    ) -> list[GivenPrompt]:
        fields: dict[str, Any] = {"add_generation_prompt": True, **variables}
        if unknown := next((name for name in fields if name not in ChatVariables.__annotations__), None):
            raise TypeError(f"{unknown!r} is no argument: it is none of {', '.join(ChatVariables.__annotations__)}")
        if fields.pop("chat_template_content_format", "auto") not in ("auto", self.config.chat_template_content_format):
            raise ValueError("chat_template_content_format is an option of the LLM object")
        self._check_generates()
        how = fields.pop("tokenization_kwargs", None)
        given, _ = given_conversations(messages, fields, self._pictures, self._settings)
        return tokenized(given, how)
