"""The paths of the server: one entry of ROUTES says all that anybody asks of a path.

The entries stand in paths/, by what they are for. The app routes by them, the middleware reads whom a path is open to,
/openapi.json what it takes and answers, the frontend what it begins at once, and logs and traces what generates.
Schemas come from the structs that are named there.
"""

from __future__ import annotations

from .openapi import answers
from .paths.administration import ADMINISTRATION
from .paths.completions import COMPLETIONS
from .paths.conversations import CONVERSATIONS
from .paths.dialects.cohere import COHERE
from .paths.dialects.llamacpp import LLAMACPP
from .paths.dialects.lmstudio import LMSTUDIO
from .paths.dialects.ollama import OLLAMA
from .paths.dialects.sglang import SGLANG
from .paths.dialects.sglang_operations import SGLANG_OPERATIONS
from .paths.dialects.tei import TEI
from .paths.dialects.tgi import TGI
from .paths.files import FILES_AND_BATCHES
from .paths.operations import OPERATIONS
from .paths.page import PAGE
from .paths.pooling import POOLING
from .paths.responses import RESPONSES_AND_MESSAGES
from .paths.scaling import SCALING
from .paths.speech import SPEECH
from .paths.unversioned import UNVERSIONED
from .route import Route

ROUTES: tuple[Route, ...] = (
    *COMPLETIONS,
    *RESPONSES_AND_MESSAGES,
    *CONVERSATIONS,
    *FILES_AND_BATCHES,
    *POOLING,
    *SPEECH,
    *OPERATIONS,
    *PAGE,
    *ADMINISTRATION,
    *SCALING,
    *OLLAMA,
    *LMSTUDIO,
    *COHERE,
    *LLAMACPP,
    *SGLANG,
    *SGLANG_OPERATIONS,
    *TGI,
    *TEI,
    *UNVERSIONED,
)

# --- what is asked of paths ----------------------------------------------------------------------------------------

OPEN_PATHS = frozenset(route.path for route in ROUTES if route.open)  # no key is asked for
GUARDED = frozenset((route.method, route.path) for route in ROUTES if route.path in OPEN_PATHS and not route.open)
PROBE_PATHS = frozenset(route.path for route in ROUTES if route.open and not route.page)  # how is the server?
PAGE_PATHS = OPEN_PATHS - PROBE_PATHS  # the page's files
ADMIN_PATHS = frozenset(route.path for route in ROUTES if route.admin)
ROUTER_PATHS = frozenset(route.path for route in ROUTES if route.of_router)
UNBUILT_PATHS = frozenset(route.path for route in ROUTES if not route.handler)
SWITCHES = frozenset(option for route in ROUTES for option in route.options)
BATCHED = tuple(route.path for route in ROUTES if route.is_batched)  # of which a batch's lines may be
GENERATING = {route.path: route.generates for route in ROUTES if route.generates is not None}
ERRORS = {route.path.partition("/{")[0]: route.error for route in ROUTES if route.error is not answers.Error}
OPENAIS = frozenset(route.path.partition("/{")[0] for route in ROUTES) - ERRORS.keys()
DEEPEST = max(path.count("/") for path in ERRORS.keys() | OPENAIS)


def error_of(path: str) -> type:
    """The struct of errors as the clients of this path read them, also below it, where nothing is."""
    path = "/".join(path.split("/", DEEPEST + 1)[: DEEPEST + 1])  # a path may have thousands of slashes
    while path not in ERRORS and path not in OPENAIS:
        path = path.rpartition("/")[0]
        if path in ("", "/"):
            return answers.Error
    return ERRORS.get(path, answers.Error)
