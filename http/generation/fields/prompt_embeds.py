"""Prompts of /v1/completions that are embeddings, in the place of tokens. What they hold the renderer looks at."""

from __future__ import annotations

from actorserve.actors.protocol.topics.prompts import EmbedsPrompt

from ...errors import bad_request
from ...openai.schemas import CompletionRequest

FIELD = "prompt_embeds"


def given_embeds(request: CompletionRequest, taken: bool) -> list[EmbedsPrompt]:
    """They stand before the prompts that are texts or ids. 400 where they cannot be, or not with another field."""
    given = request.prompt_embeds
    if given is None:
        return []
    if not taken:
        raise bad_request(f"{FIELD}: embeddings are taken where the server has --enable-prompt-embeds.", FIELD)
    texts = [given] if isinstance(given, str) else given
    if not texts:
        raise bad_request(f"{FIELD} must not be an empty list.", FIELD)
    for index, text in enumerate(texts):
        place = FIELD if isinstance(given, str) else f"{FIELD}[{index}]"
        if not text or not text.isascii():
            raise bad_request(f"{place}: a tensor as torch.save writes it, in base64, is taken.", place)
    check_beside_embeds(request)
    return [EmbedsPrompt(text.encode()) for text in texts]


def check_beside_embeds(request: CompletionRequest) -> None:
    """400 for what asks for the prompt's tokens, which there are none of."""
    for name, wanted in (
        ("echo", request.echo),
        ("suffix", request.suffix),
        ("prompt_logprobs", request.prompt_logprobs is not None),
        ("return_prompt_text", request.return_prompt_text),
        ("truncate_prompt_tokens", request.truncate_prompt_tokens is not None),
        ("use_beam_search", request.use_beam_search),
    ):
        if wanted:
            raise bad_request(f"{name} does not go with {FIELD}, which have no tokens.", name)
