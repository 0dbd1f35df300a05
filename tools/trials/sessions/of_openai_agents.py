"""openai-agents: chat completions and responses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from openai import AsyncOpenAI
from told import HELLO, MODEL, REPORT, URL, WEATHER, Report, told

QUIET = RunConfig(tracing_disabled=True)


@function_tool(strict_mode=False)
def get_weather(city: Literal["Oslo"]) -> str:
    """The weather."""
    return "7 degrees"


async def ran(agent: Any, word: str, **more: Any) -> Any:
    return (await Runner.run(agent, f"@{word}", run_config=QUIET, **more)).final_output


async def streamed(agent: Any, word: str) -> Any:
    """The end of it; its events are all read, and there are some of each kind."""
    run = Runner.run_streamed(agent, f"@{word}", run_config=QUIET)
    kinds = {event.type async for event in run.stream_events()}
    return run.final_output if {"raw_response_event", "run_item_stream_event"} <= kinds else kinds


async def resumed(agent: Any) -> Any:
    session = SQLiteSession("trip")
    await ran(agent, "tool", session=session)
    return await ran(agent, "hello", session=session)


def steps(api: str, kind: Any) -> dict[str, Callable[[], Any]]:
    def agent(**more: Any) -> Any:
        model = kind(MODEL, AsyncOpenAI(base_url=URL, api_key="none", max_retries=0))
        return Agent(name="Clerk", instructions="Be brief.", model=model, **more)

    desk = agent(handoffs=[agent(handoff_description="knows all")])
    return {
        f"{api} chat": lambda: ran(agent(), "hello"),
        f"{api} streamed chat": lambda: streamed(agent(), "hello"),
        f"{api} trip": lambda: ran(agent(tools=[get_weather]), "tool"),
        f"{api} streamed trip": lambda: streamed(agent(tools=[get_weather]), "silent"),
        f"{api} required trip": lambda: ran(
            agent(tools=[get_weather], model_settings=ModelSettings(tool_choice="required", parallel_tool_calls=False)),
            "silent",
        ),
        f"{api} agent's tool's trip": lambda: ran(
            agent(tools=[agent().as_tool("get_weather", "the weather", max_turns=2)]), "tool"
        ),
        f"{api} beside a handoff, a chat": lambda: ran(desk, "hello"),
        f"{api} resumed chat": lambda: resumed(agent(tools=[get_weather])),
        f"{api} report": lambda: ran(agent(output_type=Report), "any"),
        f"{api} streamed report": lambda: streamed(agent(output_type=Report), "any"),
        f"{api} error": lambda: ran(agent(model_settings=ModelSettings(temperature=9)), "hello"),
    }


every = steps("chat", OpenAIChatCompletionsModel) | steps("responses", OpenAIResponsesModel)
told(every, chat=HELLO, trip=WEATHER, report=REPORT, error="temperature must be")
