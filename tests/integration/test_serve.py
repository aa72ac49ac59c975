"""A real server process and real clients: completions, scores, streams, limits, hostile input."""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest
from tests.serving import RunningServer, running_server

import lmlab

pytestmark = pytest.mark.xdist_group("serve")  # shares its trained runs and a server
LINES = ["the cat sat on the mat", "a big dog ran", "the bird flew under the old tree"] * 8
KEY = "a-key-of-the-tests"
TEXTS = ["the cat sat on the mat", "a big dog", "the purple bird", "", "the old tree flew 中国 🙂"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("serve")
    (folder / "corpus.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    for name, steps in (("gpt", 60), ("lstm", 30), ("bert", 2), ("electra", 2), ("t5", 2)):
        data = folder / "corpus.txt"
        lmlab.train(name, data=data, out=folder / name, size="tiny", steps=steps, quiet=True)
    lmlab.train(
        "gpt",
        data=folder / "corpus.txt",
        out=folder / "bytes",
        size="tiny",
        tokenizer="byte",
        steps=2,
        quiet=True,
    )
    return folder


@pytest.fixture(scope="module")
def server(runs) -> Iterator[RunningServer]:
    names = ("gpt", "lstm", "bert", "electra", "bytes")
    with running_server(
        *(runs / name for name in names), environment={"LMLAB_API_KEY": KEY}
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def http(server) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=120) as made:
        yield made


def error_of(answer: httpx.Response) -> str:
    """The sentence of an error in OpenAI's form."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].endswith(".") and "\n" not in error["message"]
    return error["message"]


# OpenAI's client ---------------------------------------------------------------------------------


def test_models_are_listed_and_described(client):
    assert [model.id for model in client.models.list()] == [
        *("gpt", "lstm", "bert", "electra", "bytes")
    ]
    assert client.models.retrieve("lstm").system == "lstm"
    with pytest.raises(openai.NotFoundError, match="did you mean 'gpt'"):
        client.models.retrieve("gtp")


@pytest.mark.parametrize("name", ["gpt", "lstm", "bytes"])
def test_echoed_log_probabilities_are_those_of_score(client, runs, name):
    """The tokens joined are the text, and each has the log-probability that `lmlab score` gives."""
    texts = [text for text in TEXTS if text]
    answer = client.completions.create(
        model=name, prompt=texts, max_tokens=0, echo=True, logprobs=2
    )
    assert answer.kind == "exact"
    for text, choice, score in zip(
        texts, answer.choices, lmlab.load(runs / name).score(texts, carry=False), strict=True
    ):
        expected = [token.log_prob for token in score.per_token[:-1]]  # all but the end token
        assert choice.text == text and choice.finish_reason == "length"
        assert choice.logprobs.token_logprobs == pytest.approx(expected, abs=1e-5)
        assert "".join(choice.logprobs.tokens) == text
        starts = choice.logprobs.text_offset
        pieces = [text[a:b] for a, b in zip(starts, [*starts[1:], None], strict=True)]
        assert pieces == choice.logprobs.tokens
        for top, value in zip(choice.logprobs.top_logprobs, expected, strict=True):
            assert len(top) in (2, 3) and max(top.values()) >= value - 1e-5


def test_ids_are_scored_as_their_text(client, runs):
    """With or without a start token, which has no log-probability of its own."""
    model = lmlab.load(runs / "gpt")
    ids, start = model.tokenizer.encode(TEXTS[0]), model.tokenizer.vocabulary.start
    made = client.completions.create(
        model="gpt", prompt=[ids, [start, *ids]], max_tokens=0, echo=True, logprobs=0
    )
    plain, started = made.choices
    assert plain.text == started.text == TEXTS[0]
    assert started.logprobs.token_logprobs[0] is None
    assert started.logprobs.token_logprobs[1:] == pytest.approx(plain.logprobs.token_logprobs)
    expected = [token.log_prob for token in model.score([TEXTS[0]])[0].per_token[:-1]]
    assert plain.logprobs.token_logprobs == pytest.approx(expected, abs=1e-5)


def test_greedy_completion_is_that_of_sample(client, runs):
    [expected] = lmlab.load(runs / "gpt").sample(1, prefix="the", method="greedy", max_length=12)
    made = client.completions.create(model="gpt", prompt="the", max_tokens=12, temperature=0)
    assert "the" + made.choices[0].text == expected.text
    assert made.choices[0].finish_reason == ("stop" if expected.finished else "length")
    assert made.usage.completion_tokens == expected.tokens


def test_sampled_completions_depend_on_the_seed_alone(client):
    """Alone, as one of several choices, and in a batch with other requests."""

    def texts(**options) -> list[str]:
        made = client.completions.create(
            model="gpt", max_tokens=8, temperature=1.3, top_p=0.95, **options
        )
        return [choice.text for choice in made.choices]

    alone = texts(prompt="the", seed=5)
    assert texts(prompt="the", seed=5, n=3)[0] == alone[0]
    assert len(set(texts(prompt="the", seed=5, n=8))) > 1
    with ThreadPoolExecutor(8) as pool:
        many = list(pool.map(lambda seed: texts(prompt="the", seed=seed), [5, 6, 7, 8] * 4))
    assert many[0::4] == [alone] * 4


def test_frequencies_of_the_first_token_match_its_probabilities(client, runs):
    """400 choices: each frequency within 5 standard deviations of its probability."""
    model = lmlab.load(runs / "gpt")
    made = client.completions.create(model="gpt", prompt="the", max_tokens=1, n=400, seed=0)
    scored = client.completions.create(model="gpt", prompt="the", max_tokens=1, logprobs=15)
    top = scored.choices[0].logprobs.top_logprobs[0]
    drawn = [choice.text.strip() for choice in made.choices]
    assert model.tokenizer.kind == "word"
    for word, log_prob in top.items():
        if word in ("</s>", "<unk>"):
            continue
        p = math.exp(log_prob)
        assert abs(drawn.count(word) / 400 - p) <= 5 * math.sqrt(p * (1 - p) / 400) + 1e-9


@pytest.mark.parametrize("options", [{}, {"stop": ["zz", " the"]}, {"n": 3, "echo": True}])
@pytest.mark.parametrize("name", ["gpt", "bytes"])
def test_stream_adds_up_to_the_whole_answer(client, name, options):
    settings = {"model": name, "prompt": "the cat", "max_tokens": 20, "seed": 3, "logprobs": 1}
    whole = client.completions.create(**settings, **options)
    streamed = client.completions.create(
        **settings, **options, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(streamed)
    assert chunks.pop().usage == whole.usage
    for choice in whole.choices:
        own = [c for chunk in chunks for c in chunk.choices if c.index == choice.index]
        assert "".join(chunk.text for chunk in own) == choice.text
        assert [chunk.finish_reason for chunk in own if chunk.finish_reason] == [
            choice.finish_reason
        ]
        values = [value for chunk in own for value in chunk.logprobs.token_logprobs]
        assert values == pytest.approx(choice.logprobs.token_logprobs, abs=1e-5)


def test_stop_strings_end_the_text_before_them(client):
    settings = {"model": "gpt", "prompt": "the cat", "max_tokens": 12, "temperature": 0}
    whole = client.completions.create(**settings).choices[0].text
    third = whole.split()[2]
    cut = client.completions.create(**settings, stop=[f" {third}"], logprobs=0).choices[0]
    assert cut.text == whole[: whole.index(f" {third}")] and cut.finish_reason == "stop"
    assert "".join(cut.logprobs.tokens) == cut.text


def test_embeddings_are_those_of_encode(client, runs):
    texts = ["the cat sat", "a big dog ran"]
    made = client.embeddings.create(model="gpt", input=texts)
    plain = client.embeddings.create(model="gpt", input=texts, encoding_format="float")
    for record, other, expected in zip(
        made.data, plain.data, lmlab.load(runs / "gpt").encode(texts), strict=True
    ):
        assert np.allclose(record.embedding, expected.vector, atol=1e-5)
        assert record.embedding == other.embedding
    assert made.usage.prompt_tokens == 7


def test_errors_reach_the_client_as_sentences(client, server):
    with pytest.raises(openai.BadRequestError, match="does not generate token by token"):
        client.completions.create(model="bert", prompt="the")
    with pytest.raises(openai.BadRequestError, match="at most 64 tokens"):
        client.completions.create(model="gpt", prompt="the " * 80)
    with pytest.raises(openai.NotFoundError, match="no model called"):
        client.completions.create(model="none", prompt="the")
    with pytest.raises(openai.BadRequestError, match="suffix does not apply"):
        client.completions.create(model="gpt", prompt="the", suffix="x")
    with pytest.raises(openai.AuthenticationError, match="needs its key"):
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong").models.list()


# lmlab's own routes ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "bert", "bytes"])
def test_scores_are_those_of_the_verb_with_kind_and_convention(http, runs, name):
    body = {"model": name, "texts": TEXTS, "per_token": True}
    answer = http.post("/lmlab/score", json=body).json()
    expected = lmlab.load(runs / name).score(TEXTS, carry=False)
    assert answer["kind"] == expected[0].kind
    # JSON has lists for tuples.
    assert answer["convention"] == json.loads(json.dumps(expected[0].convention.as_dict()))
    for record, score in zip(answer["results"], expected, strict=True):
        assert record["total"] == pytest.approx(score.total, abs=1e-5)
        assert [token["token"] for token in record["per_token"]] == [
            token.token for token in score.per_token
        ]


def test_other_verbs_answer_as_in_python(http, runs):
    filled = http.post("/lmlab/fill", json={"model": "bert", "texts": ["the <mask> sat"]}).json()
    [expected] = lmlab.load(runs / "bert").fill(["the <mask> sat"])
    options = filled["results"][0]["masks"][0]["options"]
    assert [o["text"] for o in options] == [o.text for o in expected.masks[0].options]
    body = {"model": "gpt", "texts": ["the cat"], "per_token": True, "layer": 0}
    encoded = http.post("/lmlab/encode", json=body).json()
    [vectors] = lmlab.load(runs / "gpt").encode(["the cat"], per_token=True, layer=0)
    assert np.allclose(encoded["results"][0]["token_vectors"], vectors.token_vectors, atol=1e-5)
    assert encoded["kind"] is None and encoded["convention"]["layer"] == 0
    detected = http.post("/lmlab/detect", json={"model": "electra", "texts": ["the cat"]}).json()
    [marked] = lmlab.load(runs / "electra").detect(["the cat"])
    assert [token["probability"] for token in detected["results"][0]["tokens"]] == pytest.approx(
        [token.probability for token in marked.tokens], abs=1e-5
    )
    refused = http.post("/lmlab/ask", json={"model": "gpt", "questions": ["who ?"]})
    assert refused.status_code == 400 and "needs a system with Ask" in error_of(refused)


def test_many_clients_get_the_scores_of_one(http, server, runs):
    """32 requests at once, one of them wrong: batched together, and each with its own answer."""
    texts = [" ".join(LINES[i % 3].split()[: 1 + i % 5]) for i in range(32)]
    expected = [score.total for score in lmlab.load(runs / "lstm").score(texts, carry=False)]

    async def ask_all() -> list[httpx.Response]:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with httpx.AsyncClient(base_url=server.url, headers=headers, timeout=120) as many:
            return await asyncio.gather(
                *(
                    many.post("/lmlab/score", json={"model": "lstm", "texts": [text]})
                    for text in texts
                )
            )

    totals = [answer.json()["results"][0]["total"] for answer in asyncio.run(ask_all())]
    assert totals == pytest.approx(expected, abs=1e-5)
    counted = [
        float(line.split()[-1])
        for line in http.get("/metrics").text.splitlines()
        if line.startswith(
            ('lmlab_batch_requests_sum{model="lstm"', "lmlab_batch_requests_count{m")
        )
    ]
    assert len(counted) >= 2


# Access and hostile input ------------------------------------------------------------------------


@pytest.mark.parametrize("header", [None, "", KEY, f"Basic {KEY}", f"Bearer {KEY}x", "Bearer ü"])
def test_every_route_but_health_needs_the_key(server, header):
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("/v1/models", "/metrics", "/openapi.json", "/nothing"):
        answer = httpx.get(server.url + path, headers=headers)
        assert answer.status_code == 401 and "needs its key" in error_of(answer)
    assert httpx.get(server.url + "/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:8000"}, 403),
        ({"Host": "localhost.evil.example"}, 403),
        ({"Host": ""}, 403),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:1"}, 200),
    ],
)
def test_foreign_hosts_and_origins_are_refused(server, headers, status):
    assert httpx.get(server.url + "/health", headers=headers).status_code == status


def test_a_form_of_another_site_is_refused(http):
    """A page can send a text without asking first, and no JSON."""
    answer = http.post("/v1/completions", content=b"{}", headers={"Content-Type": "text/plain"})
    assert answer.status_code == 400 and "application/json" in error_of(answer)


JSON = {"Content-Type": "application/json"}
DEEP = b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[1]", 400),
        (b"\xff\xfe", 400),
        (DEEP, 400),
        (b'{"seed": ' + b"9" * 6000 + b"}", 400),
        (b'{"temperature": NaN}', 400),
        (b'{"temperature": 1e999}', 400),
        (b'{"top_p": 0}', 400),
        (b'{"prompt": "\\ud800"}', 400),
        (b'{"prompt": [1, "a"]}', 400),
        (b'{"prompt": [-1]}', 400),
        (b'{"prompt": [99999999999999999999]}', 400),
        (b'{"prompt": []}', 400),
        (b'{"prompt": [[]]}', 400),
        (b'{"prompt": "x", "max_tokens": 100000}', 400),
        (b'{"prompt": "x", "n": 100000}', 400),
        (b'{"prompt": "x", "stop": ""}', 400),
        (b'{"prompt": "x", "<script>": 1}', 400),
        (b'{"prompt": "' + b"x " * 1_500_000 + b'"}', 413),
        (b'{"prompt": "' + b"x" * 4_100_000 + b'"}', 413),
        (b'{"prompt": "\\u0000\\u202e <s> </s> <mask>", "max_tokens": 2}', 200),
        (b'{"prompt": "the"}', 200),
    ],
    ids=lambda value: str(value)[:40],
)
def test_wrong_bodies_are_refused_in_one_sentence(http, body, status):
    if body.startswith(b'{"'):
        body = b'{"model": "gpt", ' + body[1:]
    answer = http.post("/v1/completions", content=body, headers=JSON)
    assert answer.status_code == status, answer.text[:300]
    if status != 200:
        assert len(error_of(answer)) < 300


def test_a_long_list_of_wrong_items_is_one_sentence(http):
    texts = [1] * 500_000
    answer = http.post("/lmlab/score", json={"model": "gpt", "texts": texts})
    assert (answer.status_code, error_of(answer)) == (400, "texts must be a list of texts.")


def test_schemathesis_finds_no_server_error(server, http):
    """Generated requests, valid and not, of every operation of the OpenAPI description."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings

    description = http.get("/openapi.json").json()
    schema = schemathesis.openapi.from_dict(description)
    paths = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        paths.add(operation.path)
        for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):

            @seed(0)
            @settings(
                max_examples=12,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=operation.as_strategy(generation_mode=mode))
            def check(case):
                answer = case.call(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"})
                assert answer.status_code < 500, (case, answer.text)

            try:
                check()
            except Exception as error:
                if "Unsatisfiable" not in type(error).__name__:  # nothing to be wrong in a GET
                    raise
    assert {"/v1/completions", "/lmlab/score", "/lmlab/ask", "/metrics"} <= paths


LONG = [5] * 15_000
"""Token ids that take an LSTM some seconds, one after the other."""

# Limits ------------------------------------------------------------------------------------------


def test_queue_and_time_are_limited(runs):
    """One slow request is worked on, one waits, and more are told to come back."""
    slow = {"prompt": LONG * 2, "max_tokens": 0, "echo": True, "logprobs": 1}
    with (
        running_server(runs / "lstm", "--max-waiting", "1", "--timeout", "3") as server,
        httpx.Client(base_url=server.url, timeout=60) as http,
        ThreadPoolExecutor(8) as pool,
    ):
        first = pool.submit(http.post, "/v1/completions", json=slow)
        time.sleep(0.5)
        others = [pool.submit(http.post, "/lmlab/score", json={"texts": ["a"]}) for _ in range(6)]
        statuses = [other.result().status_code for other in others]
        assert statuses.count(429) == 5 and set(statuses) <= {200, 429, 503}
        refused = next(other.result() for other in others if other.result().status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert first.result().status_code == 503
        assert "took longer than 3 seconds" in error_of(first.result())
        # What was given up no longer keeps the model busy.
        assert http.post("/lmlab/score", json={"texts": ["a"]}).status_code == 200


def test_other_addresses_need_a_key(runs, capfd):
    from lmlab.cli.main import main

    assert main(["serve", str(runs / "gpt"), "--host", "0.0.0.0"]) == 2
    error = capfd.readouterr().err
    assert "a key is needed; give one by LMLAB_API_KEY or --api-key" in error


# Workers -----------------------------------------------------------------------------------------


def worker_ids(process_id: int) -> list[int]:
    """The worker processes of a server."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children")
    if not children.exists():
        pytest.skip("the child processes are read from /proc")
    return [
        int(child)
        for child in children.read_text().split()
        if b"lmlab.serve.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def test_killed_worker_interrupts_its_request_alone(runs):
    """Two requests in two workers: that of the killed one gets 503, the other its answer."""
    import os
    import signal

    body = {"prompt": LONG, "max_tokens": 0, "echo": True, "logprobs": 1}
    with (
        running_server(runs / "lstm", "--workers", "2", "--timeout", "200") as server,
        httpx.Client(base_url=server.url, timeout=250) as http,
        ThreadPoolExecutor(2) as pool,
    ):
        assert http.post("/lmlab/score", json={"texts": ["the cat"]}).status_code == 200
        requests = [pool.submit(http.post, "/v1/completions", json=body) for _ in range(2)]
        time.sleep(0.7)
        victim, _ = worker_ids(server.process.pid)
        os.kill(victim, signal.SIGKILL)
        answers = [request.result() for request in requests]
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 503]
        whole = min(answers, key=lambda answer: answer.status_code).json()
        assert len(whole["choices"][0]["logprobs"]["tokens"]) == len(LONG)
        interrupted = max(answers, key=lambda answer: answer.status_code)
        assert "the process that worked on this request has ended" in error_of(interrupted)
        # The other worker answers at once, and another takes the killed one's place.
        assert http.post("/lmlab/score", json={"texts": ["the cat"]}).status_code == 200
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            text = http.get("/metrics").text
            if all(f'worker="{number}"' in text for number in (0, 1)):
                break
            time.sleep(0.2)
        assert victim not in worker_ids(server.process.pid)
        assert len(worker_ids(server.process.pid)) == 2
        assert 'lmlab_requests_total{path="/lmlab/score",status="200",worker="' in text


def test_stream_of_a_worker_that_ends_has_an_error_as_its_last_event(tmp_path):
    """A worker in the front's place of one: it sends an event, and its connection breaks."""
    import asyncio
    from types import SimpleNamespace

    from lmlab.serve.front import Front

    event = b'data: {"choices": []}\n\n'
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
    answer += b"\r\n%x\r\n%s\r\n" % (len(event), event)  # and no last chunk, which is empty
    worker = SimpleNamespace(socket_path=str(tmp_path / "socket"), requests=0)
    workers = SimpleNamespace(choose=lambda tried: None if tried else worker)
    path, headers = "/v1/completions", [(b"host", b"localhost")]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    requests, sent = [{"type": "http.request", "body": b""}], []

    async def work(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def receive():
        return requests.pop() if requests else await asyncio.Event().wait()

    async def send(message):
        sent.append(message)

    async def exchange():
        async with await asyncio.start_unix_server(work, worker.socket_path):
            await Front(workers)(scope | {"headers": headers}, receive, send)

    asyncio.run(exchange())
    start, *parts = sent
    assert start["status"] == 200 and parts[0]["body"] == event
    assert not parts[-1].get("more_body")
    error = json.loads(parts[-1]["body"].removeprefix(b"data: "))["error"]
    assert error["code"] == "interrupted" and "has ended; try again" in error["message"]
    assert worker.requests == 0


def test_workers_end_with_the_server(runs):
    with running_server(runs / "gpt", "--workers", "2") as server:
        ids = worker_ids(server.process.pid)
        assert len(ids) == 2
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{worker}").exists() for worker in ids):
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_application_can_be_extended(runs):
    """Others add routes to it: errors, host and key are handled there too."""
    from fastapi.testclient import TestClient

    from lmlab.core.errors import UserError
    from lmlab.serve.access import Access
    from lmlab.serve.application import create_app

    app = create_app({"gpt": lmlab.load(runs / "gpt")}, access=Access(key=KEY))

    @app.get("/own")
    def own() -> None:
        raise UserError("there is nothing here; go on.")

    client = TestClient(app, base_url="http://127.0.0.1")
    assert client.get("/own").status_code == 401
    answer = client.get("/own", headers={"Authorization": f"Bearer {KEY}"})
    assert (answer.status_code, error_of(answer)) == (400, "there is nothing here; go on.")
    assert list(app.state.services) == ["gpt"]
    assert threading.active_count() < 50
