"""The paths of files and batches, which are there with --files-dir."""

from __future__ import annotations

from functools import partial

from ..openai.batches.schemas import BatchRequestBody, FileForm, FilesQuery
from ..openai.responses.schemas import InputItemsQuery
from ..openapi import files as answers
from ..route import TAKES_BODY, Route

FILES, BATCHES = "/v1/files", "/v1/batches"
_Route = partial(Route, of_files=True)
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
)
