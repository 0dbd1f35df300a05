"""Files and batches as OpenAI's clients read them, and of files what Mistral's need beside that."""

from __future__ import annotations

from typing import Any

import msgspec

from actorserve.actors.files.batches import ENDED, Batch
from actorserve.actors.files.store import StoredFile

Object = dict[str, Any]
RESULTS, ERRORS_END = "batch_output", "_errors.jsonl"  # of files that batches end with: purpose, end of a name


def file_object(stored: StoredFile) -> Object:
    """A file."""
    return {
        "id": stored.id,
        "object": "file",
        "bytes": stored.size,
        "created_at": stored.created_at,
        "expires_at": stored.expires_at,
        "filename": stored.filename,
        "purpose": stored.purpose,
        "status": "processed",
        "status_details": None,
        "sample_type": sample_type(stored),
        "source": source(stored),
        "num_lines": stored.num_lines,
        "deleted": False,
    }


def sample_type(stored: StoredFile) -> str:
    """What its lines are."""
    if stored.purpose == "batch":
        return "batch_request"
    if stored.purpose != RESULTS:
        return "instruct"
    return "batch_error" if stored.filename.endswith(ERRORS_END) else "batch_result"


def source(stored: StoredFile) -> str:
    """Who has made it: a client, or the server, as Mistral calls its own."""
    return "mistral" if stored.purpose == RESULTS else "upload"


def batch_object(batch: Batch) -> Object:
    """A batch."""
    request, state = batch.request, batch.state
    errors = {"object": "list", "data": [msgspec.to_builtins(error) for error in state.errors]}
    ends = {f"{status}_at": state.ended_at if state.status == status else None for status in sorted(ENDED)}
    return {
        "id": request.id,
        "object": "batch",
        "endpoint": request.endpoint,
        "model": state.model,
        "errors": errors if state.errors else None,
        "input_file_id": request.input_file_id,
        "completion_window": request.completion_window,
        "status": batch.status,
        "output_file_id": state.output_file_id,
        "error_file_id": state.error_file_id,
        "created_at": request.created_at,
        "in_progress_at": state.in_progress_at,
        "expires_at": request.expires_at,
        "finalizing_at": state.finalizing_at,
        **ends,
        "cancelling_at": batch.cancelled_at,
        "request_counts": {"total": state.total, "completed": state.completed, "failed": state.failed},
        "metadata": request.metadata,
    }
