"""llama-index: its models and embeddings of servers that are like OpenAI's. It reads annotations as they are."""

from collections.abc import Callable
from typing import Any, Literal

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike, OpenAILikeResponses
from told import EMBEDDER, HELLO, MODEL, OSLO, REPORT, URL, WEATHER, WIDTH, Report, told

WHERE: dict[str, Any] = {"model": MODEL, "api_base": URL, "api_key": "none", "max_retries": 0, "context_window": 8192}
CAN: dict[str, Any] = {"is_chat_model": True, "is_function_calling_model": True}


def get_weather(city: Literal["Oslo"]) -> str:
    """The weather."""
    return "7 degrees"


TOOL = FunctionTool.from_defaults(get_weather)
ANY = PromptTemplate("@any")
CALLED = PromptTemplate("@report")  # where it streams, it forces no call


def asked(word: str) -> list[Any]:
    return [ChatMessage(role="user", content=f"@{word}")]


async def streamed(llm: Any) -> str:
    return "".join([part.delta or "" async for part in await llm.astream_chat(asked("hello"))])


async def trip(llm: Any) -> str:
    return str(await FunctionAgent(tools=[TOOL], llm=llm).run("@tool"))


def steps(api: str, kind: Any, **more: Any) -> dict[str, Callable[[], Any]]:
    llm, bad = kind(**WHERE, **CAN, **more), kind(**WHERE, **CAN, **more, additional_kwargs={"temperature": 9})

    def called(chat: Any) -> list[Any]:
        return [call.tool_kwargs for call in llm.get_tool_calls_from_response(chat)[:1]]

    def called_streamed(word: str) -> list[Any]:
        *_, last = llm.stream_chat_with_tools([TOOL], chat_history=asked(word))
        return called(last)

    found: dict[str, Callable[[], Any]] = {
        f"{api} completed chat": lambda: llm.complete("@hello").text,
        f"{api} chat": lambda: llm.chat(asked("hello")).message.content,
        f"{api} streamed chat": lambda: "".join(part.delta or "" for part in llm.stream_chat(asked("hello"))),
        f"{api} awaited streamed chat": lambda: streamed(llm),
        f"{api} call": lambda: called(llm.chat_with_tools([TOOL], chat_history=asked("tool"))),
        f"{api} streamed call": lambda: called_streamed("tool"),
        f"{api} required call": lambda: called(
            llm.chat_with_tools([TOOL], chat_history=asked("any"), tool_required=True)
        ),
        f"{api} agent's trip": lambda: trip(kind(**WHERE, **CAN, **more)),  # in an event loop of its own
        f"{api} report": lambda: llm.structured_predict(Report, ANY),
        f"{api} streamed report": lambda: Report(**[*llm.stream_structured_predict(Report, CALLED)][-1].model_dump()),
        f"{api} error": lambda: bad.chat(asked("hello")),
    }
    if api == "responses":
        del found[f"{api} streamed report"]  # it looks for calls where its own reader of responses puts none
    return found


def embedded() -> list[int]:
    """How long the vectors are, of one text and of several."""
    embedder = OpenAILikeEmbedding(model_name=EMBEDDER, api_base=URL, api_key="none", max_retries=0)
    return [len(one) for one in (embedder.get_query_embedding("a"), *embedder.get_text_embedding_batch(["b", "c"]))]


plain = OpenAILike(**WHERE)
every: dict[str, Callable[[], Any]] = {
    **steps("chat", OpenAILike),
    **steps("chat with formats,", OpenAILike, should_use_structured_outputs=True),
    **steps("responses", OpenAILikeResponses),
    "completions, as text": lambda: plain.complete("<hello0>").text,
    "completions, streamed text": lambda: "".join(part.delta or "" for part in plain.stream_complete("<hello0>")),
    "embeddings, their widths": embedded,
}
told(
    every,
    chat=HELLO,
    text=HELLO,
    call=[OSLO],
    trip=WEATHER,
    report=REPORT,
    error="temperature must be",
    widths=[WIDTH] * 3,
)
