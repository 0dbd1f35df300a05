"""The paths of files and batches, which are there with --files-dir."""

from __future__ import annotations

from functools import partial

from ..anthropic.batches.objects import BatchesQuery
from ..anthropic.schemas import MessageBatchRequest
from ..openai.batches.jobs import BatchJobQuery, BatchJobRequest, BatchJobsQuery
from ..openai.batches.schemas import BatchRequestBody, FileForm, FilesQuery
from ..openai.responses.schemas import InputItemsQuery
from ..openapi import files as answers
from ..openapi.dialects import AnthropicError
from ..route import TAKES_BODY, Route

FILES, BATCHES, MESSAGE_BATCHES = "/v1/files", "/v1/batches", "/v1/messages/batches"
BATCH_JOBS = "/v1/batch/jobs"
_Route = partial(Route, of_files=True)
_Anthropics = partial(_Route, error=AnthropicError)
FILES_AND_BATCHES: tuple[Route, ...] = (
    _Route(
        "post",
        FILES,
        "files.create",
        "Keep a file, such as one of requests for a batch",
        answers.FileObject,
        FileForm,
        form=True,
        statuses=(*TAKES_BODY, 404, 409, 422, 507),
    ),
    _Route(
        "get", FILES, "files.list", "Which files there are", answers.FileList, query=FilesQuery, statuses=(400, 404)
    ),
    _Route("get", f"{FILES}/{{id}}", "files.retrieve", "What is known of a file", answers.FileObject, statuses=(404,)),
    _Route("delete", f"{FILES}/{{id}}", "files.delete", "Remove it", answers.FileDeleted, statuses=(404, 409)),
    _Route("get", f"{FILES}/{{id}}/content", "files.content", "Its bytes", statuses=(404,)),
    _Route(
        "post",
        BATCHES,
        "batches.create",
        "Answer each line of a file",
        answers.BatchObject,
        BatchRequestBody,
        statuses=(*TAKES_BODY, 404, 422, 507),
    ),
    _Route(
        "get",
        BATCHES,
        "batches.list",
        "Which batches there are",
        answers.BatchList,
        query=InputItemsQuery,
        statuses=(400, 404),
    ),
    _Route("get", f"{BATCHES}/{{id}}", "batches.retrieve", "How far a batch is", answers.BatchObject, statuses=(404,)),
    _Route(
        "post",
        f"{BATCHES}/{{id}}/cancel",
        "batches.cancel",
        "Begin no more lines of it",
        answers.BatchObject,
        statuses=(404, 409, 507),
    ),
    _Route(
        "post",
        BATCH_JOBS,
        "batch_jobs.create",
        "Answer each line of some files, or many requests",
        answers.BatchJob,
        BatchJobRequest,
        statuses=(*TAKES_BODY, 404, 422, 507),
    ),
    _Route(
        "get",
        BATCH_JOBS,
        "batch_jobs.list",
        "Which batch jobs there are",
        answers.BatchJobList,
        query=BatchJobsQuery,
        statuses=(400, 404),
    ),
    _Route(
        "get",
        f"{BATCH_JOBS}/{{id}}",
        "batch_jobs.retrieve",
        "How far a batch job is",
        answers.BatchJob,
        query=BatchJobQuery,
        statuses=(400, 404),
    ),
    _Route(
        "delete",
        f"{BATCH_JOBS}/{{id}}",
        "batch_jobs.delete",
        "Remove it",
        answers.BatchJobDeleted,
        statuses=(404, 409),
    ),
    _Route(
        "post",
        f"{BATCH_JOBS}/{{id}}/cancel",
        "batch_jobs.cancel",
        "Begin no more requests of it",
        answers.BatchJob,
        statuses=(404, 409, 507),
    ),
    _Anthropics(
        "post",
        MESSAGE_BATCHES,
        "message_batches.create",
        "Answer many requests for messages",
        answers.MessageBatch,
        MessageBatchRequest,
        statuses=(*TAKES_BODY, 404, 422, 507),
    ),
    _Anthropics(
        "get",
        MESSAGE_BATCHES,
        "message_batches.list",
        "Which batches of messages there are",
        answers.MessageBatchList,
        query=BatchesQuery,
        statuses=(400, 404),
    ),
    _Anthropics(
        "get",
        f"{MESSAGE_BATCHES}/{{id}}",
        "message_batches.retrieve",
        "How far a batch of messages is",
        answers.MessageBatch,
        statuses=(404,),
    ),
    _Anthropics(
        "delete",
        f"{MESSAGE_BATCHES}/{{id}}",
        "message_batches.delete",
        "Remove it, and its results",
        answers.MessageBatchDeleted,
        statuses=(400, 404),
    ),
    _Anthropics(
        "get",
        f"{MESSAGE_BATCHES}/{{id}}/results",
        "message_batches.results",
        "What came of its requests, a line each",
        text="application/x-jsonl",
        statuses=(404,),
    ),
    _Anthropics(
        "post",
        f"{MESSAGE_BATCHES}/{{id}}/cancel",
        "message_batches.cancel",
        "Begin no more of its requests",
        answers.MessageBatch,
        statuses=(400, 404, 507),
    ),
)
