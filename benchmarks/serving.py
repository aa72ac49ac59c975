"""Throughput, latency and memory of `lmlab serve`, on this machine's loopback address alone.

    python benchmarks/serving.py [--minutes 10] [--out benchmarks/results/serving.json]

A small GPT is trained for a few steps on WordNet's glosses. One server process, one thread, scores
test glosses:

- scoring: tokens per second of 8 clients that send 32 texts a request, beside `model.score` (what
  `lmlab score` calls) on the same texts in this process, in alternating rounds: the ratio of
  medians, and the lowest and highest ratio of a round.
- load: requests per second and latency of 1, 8 and 64 clients that send one text a request, beside
  a server that does not batch (`--batch-tokens 1`), in alternating rounds.
- memory: resident memory of the server under 8 clients with requests of all kinds, after one minute
  and at the end (`--minutes`, 10 by default; 0 leaves it out).

Times are on the clock, so the machine should be idle. Loops end after their requests or seconds.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from measuring import ratio
from record_file import RESULTS

import lmlab

CLIENTS = (1, 8, 64)
ROUNDS = 5
SCORED_TEXTS, TEXTS_PER_REQUEST = 2048, 32
SECONDS = 4.0
"""Of each measurement under load."""
MEGABYTE = 1 << 20


@contextmanager
def served(run: Path, *options: str) -> Iterator[tuple[str, int, int]]:
    """A server of a run: host, port and process id."""
    command = [sys.executable, "-m", "lmlab", "serve", str(run), "--port", "0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8")
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+(?=;)", process.stdout.readline())
        assert address, "the server did not start"
        url = urlsplit(address[0])
        assert url.hostname and url.port
        yield url.hostname, url.port, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)


def post(connection: http.client.HTTPConnection, path: str, body: Any) -> Any:
    """The answer to a request; an error ends the benchmark."""
    headers = {"Content-Type": "application/json"}
    connection.request("POST", path, json.dumps(body).encode(), headers)
    answer = connection.getresponse()
    content = answer.read()
    assert answer.status == 200, (answer.status, content[:300])
    return json.loads(content)


def in_threads(
    count: int, work: Callable[[http.client.HTTPConnection, int], None], at: Any
) -> None:
    """Run `work` in so many threads, each with a connection of its own."""
    errors: list[BaseException] = []

    def client(number: int) -> None:
        connection = http.client.HTTPConnection(at[0], at[1], timeout=120)
        try:
            work(connection, number)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=client, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in errors:
        raise error


def scored_by_server(at: Any, texts: Sequence[str]) -> float:
    """Tokens per second of 8 clients that send their share of the texts."""
    requests = [
        texts[first : first + TEXTS_PER_REQUEST]
        for first in range(0, len(texts), TEXTS_PER_REQUEST)
    ]
    waiting, tokens = iter(requests), []
    lock = threading.Lock()

    def client(connection: http.client.HTTPConnection, number: int) -> None:
        while True:
            with lock:
                batch = next(waiting, None)
            if batch is None:
                return
            results = post(connection, "/lmlab/score", {"texts": batch})["results"]
            tokens.append(sum(result["tokens"] for result in results))

    start = time.perf_counter()
    in_threads(8, client, at)
    return sum(tokens) / (time.perf_counter() - start)


def scored_by_verb(model: lmlab.LanguageModel, texts: Sequence[str]) -> float:
    """Tokens per second of the verb."""
    start = time.perf_counter()
    tokens = sum(score.tokens for score in model.score(texts, per_token=False, carry=False))
    return tokens / (time.perf_counter() - start)


def load(at: Any, texts: Sequence[str], clients: int, seconds: float) -> dict[str, float]:
    """Requests per second and latencies in milliseconds of clients that send a text at a time."""
    latencies: list[float] = []

    def client(connection: http.client.HTTPConnection, number: int) -> None:
        for index in itertools.count(number):
            begun = time.perf_counter()
            if begun - start > seconds:
                return
            post(connection, "/lmlab/score", {"texts": [texts[index % len(texts)]]})
            latencies.append(time.perf_counter() - begun)

    start = time.perf_counter()
    in_threads(clients, client, at)
    elapsed = time.perf_counter() - start
    return {
        "requests_per_second": len(latencies) / elapsed,
        "p50_ms": 1000 * statistics.median(latencies),
        "p99_ms": 1000 * statistics.quantiles(latencies, n=100)[98],
    }


def resident_memory(process_id: int) -> int:
    """Bytes of a process in memory."""
    status = Path(f"/proc/{process_id}/status").read_text(encoding="ascii")
    return 1024 * int(re.search(r"VmRSS:\s+(\d+)", status)[1])  # type: ignore[index]


def mixed_request(texts: Sequence[str], index: int) -> tuple[str, dict[str, Any]]:
    """Requests of all kinds in turns."""
    text = texts[index % len(texts)]
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("/lmlab/score", {"texts": [text], "per_token": True}),
        ("/v1/completions", {"prompt": text[:40], "max_tokens": 8, "seed": index % 1000}),
        ("/v1/embeddings", {"input": text}),
        ("/lmlab/encode", {"texts": [text], "per_token": True}),
    ]
    return kinds[index % len(kinds)]


def memory(run: Path, texts: Sequence[str], minutes: float) -> dict[str, float]:
    """Memory of a server after one minute of mixed requests, and at the end."""
    samples: list[tuple[float, int]] = []
    answered = [0] * 8
    with served(run) as at:
        start = time.monotonic()

        def client(connection: http.client.HTTPConnection, number: int) -> None:
            for index in itertools.count(number, 8):
                elapsed = time.monotonic() - start
                if elapsed > 60 * minutes:
                    return
                post(connection, *mixed_request(texts, index))
                answered[number] += 1
                if number == 0 and (not samples or elapsed - samples[-1][0] >= 5):
                    samples.append((elapsed, resident_memory(at[2])))

        in_threads(8, client, at)
        samples.append((time.monotonic() - start, resident_memory(at[2])))
    after_first = [size for elapsed, size in samples if elapsed >= 60]
    return {
        "minutes": minutes,
        "requests": sum(answered),
        "after_one_minute_mb": after_first[0] / MEGABYTE,
        "largest_mb": max(after_first) / MEGABYTE,
        "last_mb": after_first[-1] / MEGABYTE,
        "growth": max(after_first) / after_first[0] - 1,
    }


def median_fields(records: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(one[name] for one in records) for name in records[0]}


def speed(run: Path, texts: Sequence[str], rounds: int) -> dict[str, Any]:
    """Scoring beside the verb, and load beside a server without batches."""
    model = lmlab.load(run)
    record: dict[str, Any] = {"texts": len(texts)}
    with ExitStack() as stack:
        batching = stack.enter_context(served(run))
        single = stack.enter_context(served(run, "--batch-tokens", "1"))
        scored_by_server(batching, texts[:256])
        scored_by_verb(model, texts[:256])
        pairs = [
            (scored_by_server(batching, texts), scored_by_verb(model, texts)) for _ in range(rounds)
        ]
        served_rates, verb_rates = zip(*pairs, strict=True)
        record["scoring"] = ratio(list(served_rates), list(verb_rates))
        print(record["scoring"], flush=True)
        for clients in CLIENTS:
            sides = [
                (load(batching, texts, clients, SECONDS), load(single, texts, clients, SECONDS))
                for _ in range(rounds)
            ]
            batched, one_by_one = zip(*sides, strict=True)
            rates = [[one["requests_per_second"] for one in side] for side in (batched, one_by_one)]
            record[f"{clients} clients"] = {
                "batched": median_fields(batched),
                "one by one": median_fields(one_by_one),
                "ratio": ratio(*rates),
            }
            print(clients, record[f"{clients} clients"], flush=True)
    return record


def wordnet_texts(count: int) -> list[str]:
    """Test glosses."""
    from lmlab.data.corpus import open_corpus

    return [
        example.text for example in itertools.islice(open_corpus("wordnet").split("test"), count)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RESULTS / "serving.json")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the memory's measurement")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of speed; 0 leaves it out")
    parser.add_argument("--size", default="small")
    arguments = parser.parse_args()
    record: dict[str, Any] = {}
    if arguments.out.exists():
        record = json.loads(arguments.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        run, texts = Path(folder) / "gpt", wordnet_texts(SCORED_TEXTS)
        lmlab.train("gpt", data="wordnet", out=run, size=arguments.size, steps=20, quiet=True)
        record["size"] = arguments.size
        if arguments.rounds:
            record |= speed(run, texts, arguments.rounds)
        if arguments.minutes > 1:
            record["memory"] = memory(run, texts, arguments.minutes)
            print(record["memory"], flush=True)
    arguments.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
