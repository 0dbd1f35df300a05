"""The handlers of the API: each reads its body and leaves the rest to what makes answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter

from aiohttp import web

from ..anthropic.answers import count
from ..anthropic.edits import edited
from ..anthropic.requests import prompt_of
from ..anthropic.schemas import CountRequest
from ..cohere.about import endpoints, model_of
from ..errors import bad_request
from ..generation.fields.decoding import decode_query
from ..generation.fields.depth import check_depth
from ..generation.fields.unsupported import read
from ..generation.trail import GoOnRequest, check_size, longest_wrapper, read_given
from ..llamacpp.about import UNLOADED, has_come, listed, meta, status, unserved
from ..llamacpp.schemas import ModelsQuery
from ..middleware.context import ACCOUNT, BODY, GIVEN, PATH, name_request
from ..openai.mistral import is_mistrals, model_fields
from ..pooling.prepare import check_generates
from ..routes import ROUTES
from ..settings import Settings
from ..speech.prepare import sound_limit
from ..transport.body import BodyBudget, check_length, read_body
from ..transport.form import read_form_body
from ..transport.json_response import json_response
from .answering import model_for
from .derendering import DerenderingApi
from .dialects.cohere import CohereApi
from .dialects.decisions import DecisionsApi
from .dialects.invocations import Invocations
from .dialects.llamacpp import LlamaApi
from .dialects.lmstudio import LmStudioApi
from .dialects.mistral import MistralApi
from .dialects.ollama import OllamaApi
from .dialects.rendering import DialectRendering
from .dialects.sglang import SglangApi
from .dialects.sglang_operations import SglangOperations
from .dialects.tei import TeiApi
from .dialects.tgi import TgiApi
from .files.batch_jobs import BatchJobsApi
from .files.batches import BatchesApi
from .files.files import FilesApi
from .files.message_batches import MessageBatchesApi
from .generate import Generator
from .openapi import Described
from .operators.adapters import AdaptersApi
from .operators.administration import Administration
from .operators.models import LoadingApi
from .operators.operations import Operations, ServerEngine
from .operators.scaling import ScalingApi
from .page import Page
from .pooling import PoolingApi
from .realtime.api import RealtimeApi
from .realtime.client_secrets import ClientSecretsApi
from .rendering import RenderingApi
from .responses.api import ResponsesApi
from .responses.compaction import CompactionApi
from .responses.conversations import ConversationsApi
from .responses.sockets import ResponseSockets
from .scoring import ScoringApi
from .sessions import SessionsApi
from .speech import SpeechApi
from .tokenization import TokenizationApi

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Api:
    """The handlers, by the names that routes.py has for them."""

    def __init__(self, engine: ServerEngine, settings: Settings, responses: ResponsesApi | None = None) -> None:
        """`responses`: those of the server's first model, if this is another."""
        self.engine = engine
        self.settings = settings
        self.longest = settings.max_body_bytes if settings.media is None else settings.media.body_bytes
        self._unfinished = BodyBudget(max(self.longest, settings.longest_form))
        self._generator = Generator(engine, settings)
        self.described = Described(settings)
        self.operations = Operations(engine, settings, self._body)
        self.administration = Administration(engine, self._body)
        self.page = Page(engine, settings)
        self.responses = ResponsesApi(self._generator, responses)
        self.compaction = CompactionApi(self.responses)
        self.conversations = ConversationsApi(self.responses, self._body_with_media)
        self.files = FilesApi(settings, self._unfinished)
        self.batches = BatchesApi(settings, self._body)
        self.batch_jobs = BatchJobsApi(settings, settings.max_body_bytes, self._body)
        self.message_batches = MessageBatchesApi(settings, self.longest, self._unfinished)
        self.response_sockets = ResponseSockets(self.responses, self.longest, self._unfinished)
        self.sessions = SessionsApi(self._generator, self._body_to_generate)
        self.decisions = DecisionsApi(self._generator, self._conversation)
        self.pooling = PoolingApi(self._generator, self._body)
        self.scoring = ScoringApi(self._generator, self._body, self.pooling.score)
        self.cohere = CohereApi(self._generator, self.pooling, self._body, self._body_with_media)
        sleeps = engine.administration.is_sleeping
        self.llamacpp = LlamaApi(self._generator, self.pooling, sleeps, self._body, self._body_with_media)
        self.sglang = SglangApi(self._generator, self.pooling, self._body, self._body_with_media)
        self.tokenization = TokenizationApi(self._generator, self._body, self._body_with_media)
        self.tei = TeiApi(self._generator, self.pooling, self._body, self._body_with_media, self.tokenization.tokenize)
        self.tgi = TgiApi(self._generator, self._body, self._body_with_media, self.sglang.generate, self.tei.root)
        self.mistral = MistralApi(self._generator, self._body_to_generate)
        self.rendering = RenderingApi(self._generator, self._body_with_media)
        self.derendering = DerenderingApi(self._generator, self._body_with_media)
        conversations = (self.responses, self.cohere)
        self.dialect_rendering = DialectRendering(self.rendering, self._generator, conversations, self._body_with_media)
        self.invocations = Invocations(self, self._body_with_media)
        self.ollama = OllamaApi(self._generator, self.pooling, engine.administration, self._body, self._body_with_media)
        self.lmstudio = LmStudioApi(engine.administration, settings)
        self.adapters = AdaptersApi(engine, settings, self._body)
        self.sglang_operations = SglangOperations(engine, settings, self.adapters, self._body)
        self.scaling = ScalingApi(engine, self._body)
        self.loading = LoadingApi(engine, settings, self._body)
        self.speech = SpeechApi(self._generator, self._form)
        self.realtime = RealtimeApi(self._generator, self._unfinished)
        self.client_secrets = ClientSecretsApi(self._generator, self._body)
        self._movable: dict[str, Handler] = {
            route.path: attrgetter(route.handler)(self) for route in ROUTES if route.movable
        }

    async def _body(self, request: web.Request) -> bytes:
        if BODY in request:
            return check_length(request[BODY], self.settings.max_body_bytes)
        return check_depth(await read_body(request, self.settings.max_body_bytes, self._unfinished))

    async def _body_to_generate(self, request: web.Request) -> bytes:
        """Read before anything is refused: an answer that does not wait for it leaves it on the connection."""
        body = await self._body(request)
        check_generates(self.settings)
        return body

    async def _body_with_media(self, request: web.Request) -> bytes:
        """Of a conversation, which may have pictures in it."""
        if BODY in request:
            return check_length(request[BODY], self.longest)
        return check_depth(await read_body(request, self.longest, self._unfinished))

    async def _conversation(self, request: web.Request) -> bytes:
        """The same of one that is to be answered."""
        body = await self._body_with_media(request)
        check_generates(self.settings)
        return body

    async def _wrapper(self, request: web.Request) -> bytes:
        """Of a request that goes on with another one: longer than that one's body, which has its own limit."""
        most = longest_wrapper(self.longest)
        if BODY in request:
            body = check_length(request[BODY], most)
        else:
            body = check_depth(await read_body(request, most, self._unfinished))
        check_generates(self.settings)
        return body

    async def _form(self, request: web.Request) -> bytes:
        return await read_form_body(request, self.settings.longest_form, self._unfinished, sound_limit(self.settings))

    # --- generating ----------------------------------------------------------------------------------------------

    async def chat(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.chat(request, await self._conversation(request))

    async def chats(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.chats(request, await self._body_to_generate(request))

    async def completions(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.completions(request, await self._body_to_generate(request))

    async def respond(self, request: web.Request) -> web.StreamResponse:
        return await self.responses.create(request, await self._conversation(request))

    async def compact(self, request: web.Request) -> web.StreamResponse:
        return await self.compaction.create(request, await self._conversation(request))

    async def count_input(self, request: web.Request) -> web.StreamResponse:
        return await self.responses.count(request, await self._body_with_media(request))

    async def messages(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.messages(request, await self._conversation(request))

    async def count_tokens(self, request: web.Request) -> web.Response:
        body = read(CountRequest, await self._body_with_media(request))
        model_for(request, body.model, self.settings)
        tokens_of = partial(self._generator.tokens_of, prompt_of)
        body, edits = await edited(body, tokens_of)
        counted = None if edits is None else edits.left
        return json_response(count(await tokens_of(body) if counted is None else counted, edits))

    async def go_on(self, request: web.Request) -> web.StreamResponse:
        """A stream that another server has begun: its request's handler goes on with it."""
        asked = read(GoOnRequest, await self._wrapper(request))
        check_size(asked, self.settings.max_body_bytes)
        handler = self._movable.get(asked.path)
        if handler is None:
            raise bad_request(f"path: it must be one of {', '.join(self._movable)}.", "path")
        request[GIVEN] = read_given(asked, self.settings.vocab_size, self.settings.max_model_len)
        request[PATH], request[BODY] = asked.path, check_depth(asked.body.encode(errors="surrogateescape"))
        name_request(request, asked.request_id)
        return await handler(request)

    async def generate(self, request: web.Request) -> web.StreamResponse:
        return await self._generator.generate(request, await self._body_to_generate(request))

    # --- models -----------------------------------------------------------------------------------------

    async def models(self, request: web.Request) -> web.Response:
        asked = decode_query(ModelsQuery, request.query)
        named = self.settings.all_named
        if (account := request.get(ACCOUNT)) is not None:
            named = [(name, one) for name, one in named if account.may_ask_for(name)]
        if (endpoint := asked.endpoint) is not None:
            named = [(name, one) for name, one in named if endpoint in endpoints(one)]
        cards = [await self._card(request, name, one) for name, one in named]
        models = [listed(name, one, await one.card()) for name, one in named]
        if endpoint is None:
            beside = {name: status(UNLOADED, why) for name, why in self.settings.catalog.unserved.items()}
            if asked.reload:
                since = await self.engine.administration.models_found_since()
                beside |= {name: has_come(why) for name, why in since.items()}
            found = [unserved(name, how, self.settings.created) for name, how in beside.items()]
            cards += [card for card in found if account is None or account.may_ask_for(card["id"])]
        first, last = (cards[0]["id"], cards[-1]["id"]) if cards else (None, None)
        ends = {"first_id": first, "last_id": last}
        return json_response({"object": "list", "data": cards, "models": models, **ends, "has_more": False})

    async def model(self, request: web.Request) -> web.Response:
        name = request.match_info["model"]
        settings = next((one for one in self.settings.all_models if name in one.served), self.settings)
        model_for(request, name, settings)
        return json_response(await self._card(request, name, settings))

    async def _card(self, request: web.Request, name: str, settings: Settings) -> dict[str, object]:
        """A model, or an adapter of it, as OpenAI's, Anthropic's and Cohere's clients read it, or Mistral's own."""
        served, about = settings.served, self.engine.administration
        adapter = None if name in served else settings.adapters.find(name)
        return {
            "id": name,
            "object": "model",
            "created": settings.created,
            "owned_by": "actorserve",
            "root": served[0] if adapter is None else adapter.path,
            "parent": None if name in served else served[0],
            "max_model_len": settings.max_model_len,
            "type": "model",
            "display_name": name,
            "created_at": f"{datetime.fromtimestamp(settings.created, UTC):%Y-%m-%dT%H:%M:%SZ}",
            "max_input_tokens": settings.max_model_len,
            "max_tokens": settings.max_model_len,
            "lifecycle": "active",
            **model_of(name, settings),
            "meta": meta(settings, await settings.card()),
            "status": status(about.model_state(settings.model), about.load_problem(settings.model)),
            **dict.fromkeys(("capabilities", "deprecated_at", "line", "retires_at")),
            **(model_fields(settings) if is_mistrals(request.headers.get("User-Agent", "")) else {}),
        }
