"""The live page as a web application: one page and three questions it can ask."""

import base64
import hashlib
import json
from collections.abc import AsyncIterator, Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from anyio import to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from expire_span.analysis.report import fill, page_file, script_json, view_script
from expire_span.analysis.subject import Subject
from expire_span.serve.guard import Guard
from expire_span.serve.limits import Busy, Desk, Limits, TooLong, within
from expire_span.serve.reading import Wish, read, write_on

PAGE = Path(__file__).parent / "page"
FIRST_TEXT = (
    "'''Egypt''' is a country in [[Africa]]. The capital of Egypt is [[Cairo]].\n\n"
    "== History ==\nIn 332 BC Alexander the Great conquered Egypt, and founded [[Alexandria]]. "
    "After his death one of his generals, Ptolemy, made himself king of Egypt.\n"
)


class Reading(BaseModel):
    """A text to be read."""

    text: str
    model: str


class Writing(Reading):
    """A text to be gone on with."""

    length: int = Field(default=200, ge=1)
    temperature: Annotated[float, Field(ge=0.05, le=5, allow_inf_nan=False)] = 1.0
    seed: int = Field(default=0, ge=0, lt=2**63)


def create_app(
    subjects: dict[str, Subject],
    limits: Limits,
    hosts: Collection[str],
    first_text: str = FIRST_TEXT,
) -> FastAPI:
    """The application.

    Args:
        subjects: models that can be asked, by name.
        limits: how much may be asked.
        hosts: names, with port, under which it may be called.
        first_text: what stands in the editor at first.
    """
    app = FastAPI(title="expire-span", docs_url=None, redoc_url=None, openapi_url=None)
    page, policy = _page(subjects, limits, first_text)
    app.add_middleware(Guard, hosts=hosts, body=limits.body, seconds=limits.seconds, policy=policy)
    desk = Desk(limits)

    def chosen(question: Reading) -> Subject:
        if question.model not in subjects:
            raise ValueError(f"There is no model {question.model!r}: choose {', '.join(subjects)}.")
        if len(question.text) > limits.characters:
            raise ValueError(
                f"This text has {len(question.text):,} characters, but at most "
                f"{limits.characters:,} can be read here: shorten it."
            )
        return subjects[question.model]

    @app.get("/", response_class=HTMLResponse)
    async def show_page() -> str:
        return page

    @app.post("/api/read")
    async def answer_read(question: Reading) -> JSONResponse:
        subject = chosen(question)
        async with desk.seat():
            work = partial(read, subject, question.text, limits.seconds)
            return JSONResponse(await to_thread.run_sync(work))

    @app.post("/api/write")
    async def answer_write(question: Writing) -> StreamingResponse:
        subject = chosen(question)
        if question.length > limits.continuation:
            raise ValueError(f"At most {limits.continuation:,} tokens can be written in one go.")
        desk.check()
        wish = Wish(question.length, question.temperature, question.seed)
        lines = within(limits.seconds, write_on(subject, question.text, wish))
        return StreamingResponse(_lines(desk, lines), media_type="application/x-ndjson")

    _explain_errors(app)
    return app


async def _lines(desk: Desk, items: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    """Items as lines of JSON, as they come; if something goes wrong, a last line says what."""
    try:
        async with desk.seat():
            while (item := await to_thread.run_sync(next, items, None)) is not None:
                if item:
                    yield json.dumps(item) + "\n"
    except (Busy, TooLong, ValueError) as error:
        yield json.dumps({"message": str(error)}) + "\n"


def _page(subjects: dict[str, Subject], limits: Limits, first_text: str) -> tuple[str, str]:
    """The page, and the policy under which nothing but its own parts runs."""
    style = page_file("view.css") + (PAGE / "live.css").read_text(encoding="utf-8")
    script = view_script() + (PAGE / "live.js").read_text(encoding="utf-8")
    settings = {
        "models": list(subjects),
        "characters": limits.characters,
        "continuation": limits.continuation,
        "text": first_text,
    }
    template = (PAGE / "live.html").read_text(encoding="utf-8")
    page = fill(template, {"style": style, "script": script, "data": script_json(settings)})
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return page, policy


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _explain_errors(app: FastAPI) -> None:
    """Whatever goes wrong, the answer is one sentence and the server goes on."""

    def say(status: int, message: str, **headers: str) -> JSONResponse:
        return JSONResponse({"message": message}, status, headers=headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:]) or "the question"
        return say(422, f"{place}: {first['msg']}.")

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        message = "There is nothing here." if error.status_code == 404 else str(error.detail)
        return say(error.status_code, message)

    @app.exception_handler(ValueError)
    async def mistaken(request: Request, error: ValueError) -> JSONResponse:
        return say(422, str(error))

    @app.exception_handler(Busy)
    async def busy(request: Request, error: Busy) -> JSONResponse:
        return say(503, str(error), **{"retry-after": "1"})

    @app.exception_handler(TooLong)
    async def too_long(request: Request, error: TooLong) -> JSONResponse:
        return say(503, str(error))
