"""The answers of /v1/files, /v1/batches, /v1/batch/jobs and /v1/messages/batches as msgspec structs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from ..openai.batches.jobs import Status

Object = dict[str, Any]


class FileObject(msgspec.Struct):
    """As OpenAI's clients read it."""

    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: None
    sample_type: str
    source: Literal["upload", "mistral"]
    num_lines: int | None
    deleted: Literal[False]


class FileList(msgspec.Struct):
    """With a `page` in the query there is a total in place of ids."""

    object: Literal["list"]
    data: list[FileObject]
    first_id: str | UnsetType | None = UNSET
    last_id: str | UnsetType | None = UNSET
    has_more: bool | UnsetType = UNSET
    total: int | UnsetType = UNSET


class FileDeleted(msgspec.Struct):
    id: str
    object: Literal["file"]
    deleted: Literal[True]


class JobError(msgspec.Struct):
    message: str
    count: int


class BatchJob(msgspec.Struct):
    """As Mistral's clients read it."""

    id: str
    object: Literal["batch"]
    input_files: list[str]
    metadata: Object | None
    endpoint: str
    model: str | None
    agent_id: None
    output_file: str | None
    error_file: str | None
    errors: list[JobError]
    outputs: list[Object] | None
    status: Status
    created_at: int
    started_at: int | None
    completed_at: int | None
    total_requests: int
    completed_requests: int
    succeeded_requests: int
    failed_requests: int


class BatchJobList(msgspec.Struct):
    object: Literal["list"]
    data: list[BatchJob]
    total: int


class BatchJobDeleted(msgspec.Struct):
    id: str
    object: Literal["batch"]
    deleted: Literal[True]


class BatchCounts(msgspec.Struct):
    total: int
    completed: int
    failed: int


class BatchObject(msgspec.Struct):
    """As OpenAI's clients read it."""

    id: str
    object: Literal["batch"]
    endpoint: str
    model: str | None
    errors: Object | None
    input_file_id: str
    completion_window: str
    status: Literal[
        "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
    ]
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    cancelled_at: int | None
    completed_at: int | None
    expired_at: int | None
    failed_at: int | None
    cancelling_at: int | None
    request_counts: BatchCounts
    metadata: dict[str, str] | None


class BatchList(msgspec.Struct):
    object: Literal["list"]
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class MessageBatchCounts(msgspec.Struct):
    processing: int
    succeeded: int
    errored: int
    canceled: int
    expired: int


class MessageBatch(msgspec.Struct):
    """As Anthropic's clients read it."""

    id: str
    type: Literal["message_batch"]
    processing_status: Literal["in_progress", "canceling", "ended"]
    request_counts: MessageBatchCounts
    created_at: str
    expires_at: str
    ended_at: str | None
    cancel_initiated_at: str | None
    archived_at: None
    results_url: str | None


class MessageBatchList(msgspec.Struct):
    data: list[MessageBatch]
    has_more: bool
    first_id: str | None
    last_id: str | None


class MessageBatchDeleted(msgspec.Struct):
    id: str
    type: Literal["message_batch_deleted"]
