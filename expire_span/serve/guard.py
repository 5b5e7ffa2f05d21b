"""Stands before the pages: only this machine's own page may ask, and not for too much.

A page from elsewhere could send questions to a server on loopback, also under a name of its own
that it lets point here. So the name under which we are called must be one of ours, and so must the
page that asks.
"""

import asyncio
import json
from collections.abc import Collection
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-opener-policy": b"same-origin",
    b"cross-origin-resource-policy": b"same-origin",
    b"cache-control": b"no-store",
}


class Guard:
    """Refuses strangers and large questions, and adds headers that keep the page to itself.

    Args:
        app: what is guarded.
        hosts: names, with port, under which it may be called.
        body: most bytes of a question.
        seconds: longest time in which a question must have arrived.
        policy: what the page may load (Content-Security-Policy).
    """

    def __init__(
        self, app: ASGIApp, hosts: Collection[str], body: int, seconds: float, policy: str
    ):
        self._app = app
        self._hosts = {host.encode() for host in hosts}
        self._origins = {b"http://" + host for host in self._hosts}
        self._body, self._seconds = body, seconds
        self._headers = {**HEADERS, b"content-security-policy": policy.encode()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through what may pass."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *self._headers.items()]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await _answer(send_guarded, *refusal)
            return
        await self._app(scope, _timely(receive, self._seconds), send_guarded)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and message for what may not pass."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if headers.get(b"host", b"").lower() not in self._hosts:
            return 403, "This server is called by another name: open the address that it printed."
        origin = headers.get(b"origin")
        if origin is not None and origin.lower() not in self._origins:
            return 403, "Only this server's own page may ask it."
        if scope["method"] in ("GET", "HEAD"):
            return None
        if scope["method"] != "POST":
            return 405, "This server answers GET and POST."
        length = headers.get(b"content-length", b"")
        if not length.isdigit():
            return 411, "The length of the question must be given."
        if int(length) > self._body:
            return 413, f"This is too much text: at most {self._body:,} bytes can be sent."
        return None


def _timely(receive: Receive, seconds: float) -> Receive:
    """Receive a question that must have arrived in time; what comes after it may take longer."""
    loop = asyncio.get_running_loop()
    end, whole = loop.time() + seconds, False

    async def receive_timely() -> Message:
        nonlocal whole
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), end - loop.time())
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = not message.get("more_body", False)
        return message

    return receive_timely


async def _answer(send: Send, status: int, message: str) -> None:
    body = json.dumps({"message": message}).encode()
    headers: Any = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
