"""pydantic-ai: chat completions, responses, messages and Mistral's chats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from pydantic_ai import Agent, NativeOutput, Tool, ToolOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.mistral import MistralModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.mistral import MistralProvider
from pydantic_ai.providers.openai import OpenAIProvider
from told import HELLO, MODEL, REPORT, ROOT, URL, WEATHER, Report, told

OPENAI = OpenAIProvider(base_url=URL, api_key="none")
MODELS: dict[str, Any] = {
    "chat": OpenAIChatModel(MODEL, provider=OPENAI),
    "responses": OpenAIResponsesModel(MODEL, provider=OPENAI),
    "messages": AnthropicModel(MODEL, provider=AnthropicProvider(base_url=ROOT, api_key="none")),
    "mistral": MistralModel(MODEL, provider=MistralProvider(api_key="none", base_url=ROOT)),
}
WITHOUT_FORMATS = ("messages", "mistral")  # of models whose names it does not know, or at all


def get_weather(city: Literal["Oslo"]) -> str:
    """The weather."""
    return "7 degrees"


async def streamed(agent: Any, word: str) -> Any:
    async with agent.run_stream(word) as run:
        return await run.get_output()


async def counted(agent: Any, word: str) -> bool:
    """Are a stream's tokens?"""
    async with agent.run_stream(word) as run:
        await run.get_output()
        return bool(run.usage.input_tokens and run.usage.output_tokens)


def resumed(agent: Any) -> str:
    return str(agent.run_sync("@hello", message_history=agent.run_sync("@tool").all_messages()).output)


def steps(api: str, model: Any) -> dict[str, Callable[[], Any]]:
    plain = Agent(model)  # and not strict, since a script goes on as it likes behind what a grammar forced
    tools = Agent(model, tools=[Tool(get_weather, strict=False)], instructions="Be brief.")
    native = Agent(model, tools=[get_weather], output_type=NativeOutput(Report))
    strict = Agent(model, output_type=ToolOutput(Report, strict=True))
    found = {
        f"{api} chat": lambda: plain.run_sync("@hello").output,
        f"{api} streamed chat": lambda: streamed(plain, "@hello"),
        f"{api} streamed usage": lambda: counted(plain, "@hello"),
        f"{api} trip": lambda: tools.run_sync("@tool").output,
        f"{api} streamed trip": lambda: streamed(tools, "@silent"),
        f"{api} resumed chat": lambda: resumed(tools),
        f"{api} report": lambda: Agent(model, output_type=Report).run_sync("@any").output,
        f"{api} strict report": lambda: strict.run_sync("@any").output,
        f"{api} streamed report": lambda: streamed(Agent(model, output_type=Report), "@any"),
        f"{api} native report": lambda: native.run_sync("@any").output,
        f"{api} error": lambda: plain.run_sync("@hello", model_settings={"temperature": 9}),
    }
    if api in WITHOUT_FORMATS:
        del found[f"{api} native report"]
    return found


every = {name: step for api, model in MODELS.items() for name, step in steps(api, model).items()}
told(every, chat=HELLO, trip=WEATHER, report=REPORT, usage=True, error="temperature must be")
