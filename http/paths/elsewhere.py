"""Paths of OpenAI's and Anthropic's API that are not here, and what does the same, or why nothing does."""

from __future__ import annotations

FILES = "`actorserve run-batch` answers a file of requests."
TEXTS = "This server's answers are texts."
KEPT = "Conversations are kept at /v1/conversations, and responses: previous_response_id goes on from one."
REASONS = {
    "/v1/files": FILES,
    "/v1/uploads": FILES,
    "/v1/batches": FILES,
    "/v1/messages/batches": FILES,
    "/v1/images": TEXTS,
    "/v1/videos": TEXTS,
    "/v1/audio/speech": TEXTS,
    "/v1/assistants": KEPT,
    "/v1/threads": KEPT,
    "/v1/vector_stores": "Nothing is searched here: vectors of texts are had of a model that makes them.",
    "/v1/moderations": "A classifier, where one is served, labels texts at POST /classify.",
    "/v1/fine_tuning": "Models and adapters are served as they are, and trained elsewhere.",
    "/v1/evals": "Whoever evaluates a model asks it by the other paths.",
    "/v1/containers": "No code is run here; tools of MCP servers are called by POST /v1/responses.",
}


def reason_of(path: str) -> str:
    """What to say of it, and nothing of a path that nobody has."""
    return next((f" {why}" for begin, why in REASONS.items() if path == begin or path.startswith(f"{begin}/")), "")
