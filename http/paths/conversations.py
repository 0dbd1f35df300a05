"""The paths of OpenAI's conversations."""

from __future__ import annotations

from ..openai.responses.schemas import ConversationChange, ConversationItems, ConversationRequest, InputItemsQuery
from ..openapi import dialects
from ..route import TAKES_BODY, Route

PATH = "/v1/conversations"
ONE = f"{PATH}/{{id}}"
ITEMS = f"{ONE}/items"
ITEM = f"{ITEMS}/{{item}}"
CONVERSATIONS: tuple[Route, ...] = (
    Route(
        "post",
        PATH,
        "conversations.create",
        "A conversation that responses go on with",
        dialects.Conversation,
        ConversationRequest,
        statuses=TAKES_BODY,
    ),
    Route(
        "get",
        ONE,
        "conversations.retrieve",
        "When it was made, and its metadata",
        dialects.Conversation,
        statuses=(404,),
    ),
    Route(
        "post",
        ONE,
        "conversations.update",
        "Give it other metadata",
        dialects.Conversation,
        ConversationChange,
        statuses=(*TAKES_BODY, 404, 503),
    ),
    Route("delete", ONE, "conversations.delete", "Forget it", dialects.ConversationDeleted, statuses=(404, 503)),
    Route(
        "post",
        ITEMS,
        "conversations.add",
        "Add items to it",
        dialects.InputItems,
        ConversationItems,
        statuses=(*TAKES_BODY, 404, 503),
    ),
    Route(
        "get",
        ITEMS,
        "conversations.items",
        "What is in it",
        dialects.InputItems,
        query=InputItemsQuery,
        statuses=(400, 404),
    ),
    Route("get", ITEM, "conversations.item", "One item of it", dict, statuses=(404,)),
    Route("delete", ITEM, "conversations.remove", "Take an item out of it", dialects.Conversation, statuses=(404, 503)),
)
