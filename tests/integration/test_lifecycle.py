"""Start, stop, configuration, and the chat client."""

import concurrent.futures
import contextlib
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import time

import pytest

from hotset_server import BINARY, DEFAULT_MODEL, FIXTURES, Server, clean_environment, refused_at_start, sse_events

TINY = FIXTURES / "tiny-llama"


def test_idle_server_ends_at_once(tmp_path):
    with Server(tmp_path / "idle.log", model=TINY) as server:
        with socket.create_connection(("127.0.0.1", server.port)):  # an idle keep-alive connection does not hold it
            began = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - began < 3


def open_stream(server, tokens):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {"model": server.model_name, "prompt": [2, 3], "max_tokens": tokens, "ignore_eos": True, "stream": True}
    body["return_token_ids"] = True
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def test_running_streams_are_finished(tmp_path):
    with Server(tmp_path / "drain.log", model=TINY) as server, contextlib.ExitStack() as stack:
        streams = [open_stream(server, 400) for _ in range(5)]
        for connection, answer in streams:
            stack.callback(connection.close)
            assert answer.status == 200
            answer.readline()
        server.process.send_signal(signal.SIGTERM)
        for _, answer in streams:
            events = list(sse_events(iter(answer.readline, b"")))
            assert events[-1] == "[DONE]"
            assert [choice["finish_reason"] for event in events[:-1] for choice in event["choices"]][-1] == "length"
        assert server.process.wait(10) == 0


def test_drain_has_a_deadline(tmp_path):
    options = ["--drain-timeout-ms", 300, "--max-batch", 1]
    with Server(tmp_path / "deadline.log", *options, model=DEFAULT_MODEL) as server:
        connection, answer = open_stream(server, 2000)
        with contextlib.closing(connection):
            answer.readline()
            began = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            events = list(sse_events(iter(answer.readline, b"")))
            assert "error" in events[-1] and events[-1] != "[DONE]"
            assert server.process.wait(10) == 0
            assert time.monotonic() - began < 5


def test_second_server_on_the_same_port_is_refused(tmp_path):
    with Server(tmp_path / "first.log", model=TINY) as server:
        second = Server(tmp_path / "second.log", model=TINY, port=server.port)
        second.start()
        assert second.process.wait(30) == 1
        assert str(server.port) in second.log()
        assert server.get("/health").status == 200


def test_output_that_nobody_reads_any_more(tmp_path):
    """The reader of the log goes away: answers go on, and the end is orderly."""
    with Server(tmp_path / "pipe.log", "--log-level", "debug", model=TINY) as server:
        server.stop()
        reading, writing = os.pipe()
        server.process = subprocess.Popen(server.command, stdout=writing, stderr=writing, env=server.env)
        os.close(writing)
        server.port = 0
        with open(reading, "rb") as output:
            seen = b""
            while b"Ready" not in seen:
                seen += output.readline()
        server.port = int(re.search(rb"Ready: http://127\.0\.0\.1:(\d+)/", seen).group(1))
        connection, answer = open_stream(server, 400)
        with contextlib.closing(connection):
            answer.readline()
            server.process.send_signal(signal.SIGTERM)
            assert list(sse_events(iter(answer.readline, b"")))[-1] == "[DONE]"
        assert server.process.wait(10) == 0


def test_few_open_files_are_refused_by_name(tmp_path):
    script = f'ulimit -n 64; exec "{BINARY}" serve --port 0 --model "{TINY}"'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=30, env=clean_environment())
    assert done.returncode == 1 and "ulimit -n" in done.stdout + done.stderr


def test_unknown_keys_are_named(tmp_path):
    config = tmp_path / "hotset.toml"
    config.write_text("thraeds = 2\n", encoding="utf-8")
    code, log = refused_at_start(tmp_path / "key.log", "--config", config, model=TINY)
    assert code != 0 and "thraeds" in log
    code, log = refused_at_start(tmp_path / "flag.log", "--thraeds", 2, model=TINY)
    assert code != 0 and "--thraeds" in log
    code, log = refused_at_start(tmp_path / "file.log", "--config", tmp_path / "nothing.toml", model=TINY)
    assert code != 0 and "nothing.toml" in log


@pytest.mark.parametrize(
    "option, value",
    [
        ("--threads", "many"),
        ("--port", "70000"),
        ("--kv-mode", "lukewarm"),
        ("--algorithm", "guess"),
        ("--host-kv", "12 bananas"),
        ("--max-context", "-5"),
        ("--device", "abacus"),
        ("--sparse-block", "7"),
        ("--max-batch", "0"),
    ],
)
def test_bad_values_name_the_option(tmp_path, option, value):
    code, log = refused_at_start(tmp_path / "value.log", option, value, model=TINY)
    assert code != 0 and option in log, log


def test_more_memory_than_there_is_is_refused(tmp_path):
    code, log = refused_at_start(tmp_path / "memory.log", "--host-kv", "900TiB", model=TINY)
    assert code == 1 and "--host-kv" in log


def context_of(tmp_path, *options, env=None):
    """The context length that a server started like that names when it refuses a longer prompt."""
    with Server(tmp_path / "precedence.log", *options, model=TINY, env=env) as server:
        response = server.post("/v1/completions", {"prompt": [2] * 4000, "max_tokens": 1})
        assert response.status == 400, response.text
        (limit,) = (number for number in (64, 128, 192, 2048) if str(number) in response.json()["error"]["message"])
        return limit


def test_flag_before_environment_before_file_before_default(tmp_path):
    config = tmp_path / "hotset.toml"
    config.write_text("# context of the tests\nmax-context = 64\n", encoding="utf-8")
    from_file, from_environment, from_flag = ["--config", config], {"HOTSET_MAX_CONTEXT": "128"}, ["--max-context", 192]
    assert context_of(tmp_path) == 2048
    assert context_of(tmp_path, *from_file) == 64
    assert context_of(tmp_path, *from_file, env=from_environment) == 128
    assert context_of(tmp_path, *from_file, *from_flag, env=from_environment) == 192


def test_start_up_line_and_version(tmp_path):
    with Server(tmp_path / "line.log", "--device-kv-tokens", 512, model=TINY) as server:
        line, = (line for line in server.log().splitlines() if "Serving model" in line)
        assert "tiny-llama" in line and "device pool 512 tokens" in line and "kv mode auto" in line
        assert "has no effect" not in server.log()
        assert server.get("/version").json()["version"]
    version = subprocess.run([BINARY, "version"], capture_output=True, text=True, timeout=20, check=True)
    assert version.stdout.strip()


def test_hot_mode_that_nothing_can_use_is_warned_of(tmp_path):
    with Server(tmp_path / "warning.log", "--kv-mode", "hot", "--algorithm", "dense", model=TINY) as server:
        (warning,) = (line for line in server.log().splitlines() if "[warning] --kv-mode hot" in line)
        assert "--algorithm" in warning


def test_default_model_is_found_without_model(tmp_path):
    with Server(tmp_path / "default.log", env={"HOTSET_DEFAULT_MODEL": str(DEFAULT_MODEL)}) as server:
        assert "SmolLM2" in server.model_name


def test_chat_with_piped_input(tmp_path):
    with Server(tmp_path / "chat.log", model=DEFAULT_MODEL) as server:
        chat = subprocess.run(
            [BINARY, "chat", "--url", f"http://127.0.0.1:{server.port}", "--temperature", "0"],
            input="What is the capital of France?\n",
            capture_output=True,
            text=True,
            timeout=60,
            env=clean_environment(),
            check=False,
        )
        assert chat.returncode == 0, chat.stderr
        assert "Paris" in chat.stdout


def test_chat_without_a_server_says_so():
    with socket.socket() as deaf:  # bound, so that nobody else listens there
        deaf.bind(("127.0.0.1", 0))
        chat = subprocess.run(
            [BINARY, "chat", "--url", f"http://127.0.0.1:{deaf.getsockname()[1]}"],
            input="hi\n",
            capture_output=True,
            text=True,
            timeout=30,
            env=clean_environment(),
            check=False,
        )
    assert chat.returncode == 1 and chat.stderr.strip()


def test_many_requests_at_the_moment_of_the_stop(tmp_path):
    """Every open request ends: with its answer, with 503, or refused at the door."""
    with Server(tmp_path / "stop.log", model=TINY) as server:
        with concurrent.futures.ThreadPoolExecutor(20) as pool:

            def ask(_):
                try:
                    return server.post("/v1/completions", {"prompt": [2, 3], "max_tokens": 200, "ignore_eos": True}).status
                except (OSError, http.client.HTTPException):
                    return None

            answers = [pool.submit(ask, number) for number in range(60)]
            time.sleep(0.2)
            server.process.send_signal(signal.SIGTERM)
            assert {answer.result() for answer in answers} <= {200, 503, None}
        assert server.process.wait(10) == 0


def test_a_trace_that_reaches_the_limit_of_file_sizes_ends_alone(tmp_path):
    trace = tmp_path / "trace"
    options = ["--algorithm", "lowrank", "--sparse-threshold", 0, "--sparse-budget", 256, "--trace-selections", trace]
    with Server(tmp_path / "log", *options, model=TINY) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (300_000, 300_000))
        for _ in range(5):
            answer = server.completion(prompt=list(range(2, 502)), max_tokens=150, temperature=0, ignore_eos=True)
            assert answer["usage"]["completion_tokens"] == 150
        assert server.log().count("--trace-selections") == 1
    assert trace.stat().st_size <= 300_000
