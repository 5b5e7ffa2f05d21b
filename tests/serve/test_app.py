"""The live page's answers, one by one and under load."""

import asyncio
import json
import resource
import socket
import sys
from dataclasses import replace

import httpx
import numpy as np
import pytest

from browser import served
from expire_span import ExpireSpan, FixedSpan
from expire_span.analysis.recording import record_tokens
from expire_span.serve.command import Address
from expire_span.serve.limits import Limits, TooLong, within
from expire_span.serve.reading import Wish, read, write_on
from expire_span.tasks import Recall
from reading_models import reading_subject
from small_runs import small_experiment

SUBJECTS = {
    "one": reading_subject(name="one"),
    "two": reading_subject(FixedSpan(20), name="two"),
}
LIMITS = Limits(characters=500, continuation=40, seconds=20)
TEXT = "Egypt and the café.\n"


@pytest.fixture(scope="module")
def home():
    with served(SUBJECTS, LIMITS) as address:
        yield address.rstrip("/")


@pytest.fixture
def client(home):
    with httpx.Client(base_url=home, timeout=60) as opened:
        yield opened


def ask(client, path="/api/read", headers=None, **question):
    return client.post(path, json={"text": TEXT, "model": "one", **question}, headers=headers)


@pytest.mark.parametrize("model", ["one", "two"])
def test_a_text_is_read_as_the_model_reads_it(client, model):
    answer = ask(client, model=model)
    assert answer.status_code == 200
    assert answer.json() == read(SUBJECTS[model], TEXT, 60)
    assert "".join(answer.json()["pieces"]) == TEXT


def test_a_continuation_is_what_reading_it_whole_gives():
    subject = SUBJECTS["one"]
    lines = [line for line in write_on(subject, TEXT, Wish(30, 0.7, seed=5)) if line]
    first, tokens = lines[0]["text"], lines[1:]
    assert first == read(subject, TEXT, 60)
    assert len(tokens) == 30
    again = [line for line in write_on(subject, TEXT, Wish(30, 0.7, seed=5)) if line]
    assert again == lines
    other = [line for line in write_on(subject, TEXT, Wish(30, 0.7, seed=6)) if line]
    assert [t["piece"] for t in other[1:]] != [t["piece"] for t in tokens]


def test_spans_and_losses_of_a_continuation_are_those_of_its_bytes():
    subject = reading_subject(ExpireSpan(6, 2, initial=0.3), block=4)
    ascii_only = np.arange(256) < 128
    subject.model.head.linear.bias.data[~ascii_only] = -100  # so that the text can be read again
    lines = [line for line in write_on(subject, TEXT, Wish(25)) if line]
    tokens = lines[1:]
    text = TEXT + "".join(token["piece"] for token in tokens)
    whole = record_tokens(subject.model, subject.codec.encode(text))
    begin = len(TEXT.encode())
    spans = np.array([token["spans"] for token in tokens]).T
    np.testing.assert_allclose(spans, whole.spans[:, 0, begin:], rtol=1e-4)
    bits = whole.loss[0, begin - 1 : -1] / np.log(2)
    np.testing.assert_allclose([token["loss"] for token in tokens], bits, rtol=1e-3)
    assert any(token["deleted"] for token in tokens)


def test_the_stream_of_a_continuation_arrives_line_by_line(client):
    answer = ask(client, "/api/write", length=5)
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert answer.status_code == 200
    assert "text" in lines[0]
    assert [sorted(line) for line in lines[1:]] == [
        ["deleted", "live", "loss", "piece", "pooled", "spans"]
    ] * 5


def test_a_model_that_answers_writes_nothing():
    answering = replace(SUBJECTS["one"], experiment=small_experiment(Recall(period=16)))
    shown = read(answering, TEXT, seconds=20)
    assert len(shown["pieces"]) == len(TEXT.encode())
    with pytest.raises(ValueError, match="cannot go on writing"):
        next(write_on(answering, TEXT, Wish(3)))


@pytest.mark.parametrize(
    ("path", "question", "sentence"),
    [
        ("/api/read", {"text": "x" * 501}, "at most 500 can be read"),
        ("/api/read", {"text": ""}, "nothing to read"),
        ("/api/read", {"text": 7}, "text"),
        ("/api/read", {"model": "../../etc"}, "There is no model"),
        ("/api/write", {"length": 41}, "At most 40 tokens"),
        ("/api/write", {"length": 0}, "length"),
        ("/api/write", {"temperature": 0}, "temperature"),
        ("/api/write", {"seed": -1}, "seed"),
    ],
)
def test_a_wrong_question_gets_a_sentence(client, path, question, sentence):
    answer = ask(client, path, **question)
    assert answer.status_code == 422
    assert sentence in answer.json()["message"]
    assert ask(client).status_code == 200  # and the server goes on


def test_what_is_no_json_gets_a_sentence(client):
    for body in (b"{", b"\xff\xfe", b"[1]", b'{"text": "\\ud800", "model": "one"}', b"NaN"):
        answer = client.post(
            "/api/read", content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code == 422
        assert answer.json()["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "https://127.0.0.1:PORT"}, 403),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"host": "evil.example"}, 403),
        ({"host": "evil.example:PORT"}, 403),
        ({"origin": "http://127.0.0.1:PORT"}, 200),
        ({"host": "localhost:PORT", "origin": "http://localhost:PORT"}, 200),
    ],
)
def test_strangers_are_refused(client, headers, status):
    port = str(client.base_url.port)
    headers = {name: value.replace("PORT", port) for name, value in headers.items()}
    assert ask(client, headers=headers).status_code == status


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/%2e%2e/setup", "/static/x", "/api/models"]
)
def test_there_is_nothing_else_to_find(client, path):
    assert client.get(path).status_code == 404


def test_too_large_a_question_is_not_even_read(client):
    answer = client.post("/api/read", content=b"x" * (LIMITS.body + 1))
    assert answer.status_code == 413
    assert "too much text" in answer.json()["message"]
    chunked = client.post("/api/read", content=iter([b"x"]))
    assert chunked.status_code == 411
    assert client.request("DELETE", "/").status_code == 405


def test_the_page_allows_nothing_from_elsewhere(client):
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_time_is_bounded():
    assert list(within(60, [1, 2])) == [1, 2]
    with pytest.raises(TooLong, match="shorter text"):
        list(within(-1, [1]))


def test_what_takes_too_long_is_given_up():
    slow = Limits(characters=500_000, seconds=0.3)
    question = {"text": TEXT * 20_000, "model": "one"}
    with served(SUBJECTS, slow) as url, httpx.Client(base_url=url, timeout=60) as client:
        answer = client.post("/api/read", json=question)
        assert answer.status_code == 503
        assert "took longer than 0.3 seconds" in answer.json()["message"]
        last = client.post("/api/write", json=question).text.splitlines()[-1]
        assert "took longer" in json.loads(last)["message"]
        assert ask(client).status_code == 200


def test_fifty_clients_get_right_answers_or_are_told_to_wait():
    expected = {n: read(SUBJECTS["one"], f"{TEXT}{n}", 60) for n in range(50)}

    async def crowd(url):
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:

            async def one(number):
                question = {"text": f"{TEXT}{number}", "model": "one"}
                return number, await client.post("/api/read", json=question)

            return await asyncio.gather(*(one(number) for number in range(50)))

    with served(SUBJECTS, Limits(at_once=2, waiting=4)) as url:
        rounds, used = [], []
        for _ in range(4):
            rounds += asyncio.run(crowd(url))
            used.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        after = httpx.post(f"{url}api/read", json={"text": f"{TEXT}7", "model": "one"})
    assert after.json() == expected[7]
    statuses = [answer.status_code for _, answer in rounds]
    assert set(statuses) <= {200, 503}
    assert statuses.count(200) >= 4 * 6
    for number, answer in rounds:
        if answer.status_code == 200:
            assert answer.json() == expected[number]
        else:
            assert "busy" in answer.json()["message"]
            assert answer.headers["retry-after"] == "1"
    megabyte = 2**20 if sys.platform == "darwin" else 2**10
    assert used[-1] - used[0] < 50 * megabyte


def test_addresses_are_loopback_unless_told_otherwise():
    assert Address().host == "127.0.0.1"
    assert set(Address(port=1).hosts()) == {"127.0.0.1:1", "localhost:1", "[::1]:1"}
    assert "lab:1" in Address(port=1, host="0.0.0.0", names=("Lab",)).hosts()


def test_a_port_is_taken_or_refused_in_one_sentence():
    taken, listening = Address(port=0).listen()
    with listening:
        assert taken.url == f"http://127.0.0.1:{taken.port}/"
        assert taken.port > 0
        with pytest.raises(ValueError, match=f"port {taken.port} .*: choose others with --host"):
            taken.listen()
    for strange in ("192.0.2.1", "no such host"):
        with pytest.raises(ValueError, match="Nothing can listen on"):
            Address(host=strange, port=0).listen()
    with pytest.raises(ValueError, match="between 0 and 65535"):
        Address(port=70_000)
    assert Address(host="::1").url == "http://[::1]:8765/"
    assert "[fe80::1]:8765" in Address(names=("fe80::1",)).hosts()


def test_who_never_finishes_a_question_is_let_go(capfd):
    with served(SUBJECTS, Limits(seconds=0.3)) as url:
        port = httpx.URL(url).port
        with socket.create_connection(("127.0.0.1", port), timeout=20) as slow:
            head = f"POST /api/read HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            slow.sendall(
                f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode()
            )
            answer = slow.recv(4096)
        assert answer.startswith(b"HTTP/1.1 400")
        assert httpx.post(f"{url}api/read", json={"text": TEXT, "model": "one"}).status_code == 200
    assert "Traceback" not in capfd.readouterr().err
