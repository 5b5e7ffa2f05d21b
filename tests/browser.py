"""A real browser for the tests of the pages, and a server to point it at."""

import os
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

SCREENSHOTS = Path(__file__).parent.parent / "build" / "screenshots"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_BROWSER = (
    f"No browser: none of {', '.join(NAMES)} is on the PATH. Install one (on Debian: "
    "apt-get install chromium) to test the pages."
)


@contextmanager
def browser() -> Iterator[Any]:
    """The system's Chromium without a window; skips where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed.")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(NO_BROWSER)
    options = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=path, args=options)
        yield opened
        opened.close()


class Visit:
    """One page that is looked at, and all that it said and asked for meanwhile."""

    def __init__(self, browser: Any, url: str, **settings: Any):
        self.url = url
        self.complaints: list[str] = []
        self.requests: list[str] = []
        size = {"width": 1280, "height": 900}
        self.page = browser.new_page(**{"viewport": size, **settings})
        self.page.set_default_timeout(30_000)
        self.page.on("console", self._listen)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(url)
        self.page.wait_for_selector(".text b")

    def classes(self) -> list[str]:
        """How each token in sight is drawn."""
        return self.page.eval_on_selector_all(".text b", "found => found.map(b => b.className)")

    def shoot(self, name: str) -> None:
        """Keep a picture to be looked at."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")

    def settle(self) -> None:
        """Wait until everything asked for so far has been drawn."""
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")

    def close(self, expected: tuple[str, ...] = ()) -> None:
        """Nothing may have gone wrong, and nothing may have come from elsewhere."""
        self.page.close()
        strange = [text for text in self.complaints if not any(part in text for part in expected)]
        assert strange == []
        home = self.url if self.url.startswith("file:") else self.url.rstrip("/")
        assert [url for url in self.requests if not url.startswith((home, "data:"))] == []

    def _listen(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(message.text)


@contextmanager
def served(subjects: Any, limits: Any) -> Iterator[str]:
    """The live page on a free port of this machine; gives its address."""
    import uvicorn

    from expire_span.serve.app import create_app
    from expire_span.serve.command import Address

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        address = Address(port=listening.getsockname()[1])
        app = create_app(subjects, limits, address.hosts())
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive(), "The server did not start."
                time.sleep(0.01)
            yield f"http://127.0.0.1:{address.port}/"
        finally:
            server.should_exit = True
            thread.join()
