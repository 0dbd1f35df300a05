"""What a frontend keeps of a request until its answer is whole, and what is said where that takes too much memory."""

from __future__ import annotations

from actorserve.http.errors import ApiError, bad_request
from actorserve.http.generation.job import Job

from ...options.config import Config


def too_much_to_tell(job: Job, hidden: int, config: Config) -> ApiError | None:
    """What is told beside the texts, once a job's prompts are known. `hidden`: the numbers of a token's state."""
    return _too_many_of_prompts(job, config.max_prompt_logprobs) or _too_many_states(
        job, hidden, config.max_hidden_states
    )


def _too_many_of_prompts(job: Job, most: int) -> ApiError | None:
    asked, tokens = job.sampling, job.rendered_tokens
    each = 1 + asked.prompt_logprobs + (len(asked.logprob_token_ids) if asked.lists_prompt else 0)
    if asked.prompt_logprobs < 0 or tokens * each <= most:
        return None
    text = (
        f"prompt_logprobs: {each} of each of {tokens} tokens, its own included, are more than the {most} that are told"
    )
    return bad_request(f"{text} of a request's prompts (--max-prompt-logprobs).", "prompt_logprobs")


def _too_many_states(job: Job, hidden: int, most: int) -> ApiError | None:
    if not (job.tells_all and job.sampling.hidden_states):
        return None
    tokens = sum(choice.prompt_tokens + choice.limit for choice in job.choices)
    if tokens * hidden <= most:
        return None
    text = f"return_hidden_states: {hidden} numbers of each of {tokens} tokens, of prompts and what may be generated,"
    text += f" are more than the {most} that a request is told (--max-hidden-states)."
    return bad_request(text, "return_hidden_states")


def too_many_logprobs(job: Job, most: int) -> ApiError | None:
    """Of the answers, as far as they have come and are kept: a stream gives them away, unless each event tells all."""
    each = 1 + max(0, job.sampling.logprobs) + len(job.sampling.logprob_token_ids)
    if job.told_tokens * each <= most:  # no sum over thousands of choices at each of their tokens
        return None
    kept = sum(choice.logprob_tokens if job.tells_all else len(choice.logprobs) for choice in job.choices)
    if kept * each <= most:
        return None
    text = f"logprobs: {each} of each of {kept} tokens of the answers, its own included, are more than the {most} that"
    text += " are kept until an answer is whole (--max-answer-logprobs)."
    return bad_request(text, "logprobs")
