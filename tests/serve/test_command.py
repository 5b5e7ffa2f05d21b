"""The command `serve`, as a user starts and stops it."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx

EXAMPLE = Path(__file__).parents[2] / "examples" / "enwik8-small"


def test_serve_says_where_it_is_answers_and_stops(tmp_path):
    command = [sys.executable, "-m", "expire_span", "serve", str(EXAMPLE), "--port", "0"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=EXAMPLE.parents[1],
    ) as process:
        try:
            assert process.stdout is not None
            url = re.search(r"http://127\.0\.0\.1:\d+/", process.stdout.readline())[0]
            assert "What is remembered" in httpx.get(url).text
            question = {"text": "Egypt", "model": EXAMPLE.name}
            assert httpx.post(f"{url}api/read", json=question).json()["pieces"] == list("Egypt")
        finally:
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=30)[1]
    assert "Traceback" not in said
