"""Bad requests get the named error, a good one afterwards gets its answer. Bad checkpoints are refused at start."""

import concurrent.futures
import json
import shutil
import struct
import time

import pytest

from hotset_server import DEFAULT_MODEL, FIXTURES, Server, refused_at_start

ENDPOINTS = ["/v1/completions", "/v1/chat/completions"]
CONTEXT = 256


@pytest.fixture(scope="module")
def server(logs):
    """The default model with a small context, so that its limit is easy to reach."""
    with Server(logs / "bad.log", "--max-context", CONTEXT, model=DEFAULT_MODEL) as server:
        yield server


def valid(path):
    if path == "/v1/completions":
        return {"prompt": "Hello", "max_tokens": 2, "temperature": 0}
    return {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2, "temperature": 0}


def assert_refused(response, *words, status=400):
    """An error in OpenAI's form, small, before any stream byte."""
    assert response.status == status, response.text[:500]
    assert response.headers["content-type"].startswith("application/json")
    assert len(response.body) < 4096
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and error["message"]
    for word in words:
        assert word in error["message"], error["message"]
    return error


def assert_serves(server):
    assert server.completion(**valid("/v1/completions"))["usage"]["completion_tokens"] <= 2


# --- A04: bad text ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
def test_a04_bad_text(server, path, stream):
    body = {**valid(path), "model": server.model_name, "stream": stream}
    text = json.dumps(body)
    cases = [
        text.replace("Hello", "x\\ud83d").encode(),  # half a surrogate pair
        text.replace("Hello", "x\\udc00y").encode(),
        text.encode().replace(b"Hello", b"a\xffb"),  # no UTF-8
        text.replace("Hello", "\u4f60\u597d").encode("gbk"),
        text.encode("utf-16"),
        text[:-1].encode(),
        b"",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ]
    for case in cases:
        assert_refused(server.post(path, case))
    huge = json.dumps({**body, "prompt": ["x"] * 50_000 + [{}], "messages": ["x"] * 50_000})
    assert_refused(server.post(path, huge.encode()))
    assert_serves(server)


# --- A10: token ids --------------------------------------------------------------------------------------------------

VOCABULARY = 49152


def test_a10_token_ids_outside_the_vocabulary(server):
    good = {"prompt": [504, 3575, 282], "max_tokens": 24, "temperature": 0, "return_token_ids": True, "ignore_eos": True}
    wanted = server.completion(**good)["choices"][0]["token_ids"]
    bad = [
        {"prompt": [1, 2, 4294967295]},
        {"prompt": [-1]},
        {"prompt": [VOCABULARY]},
        {"prompt": [[1], [VOCABULARY]]},
        {"prompt": [1.5]},
        {"prompt": [2**70]},
        {"prompt": [1], "stop_token_ids": [VOCABULARY]},
        {"prompt": [1], "stop_token_ids": [-1]},
        {"prompt": [1], "logit_bias": {"9999999": 5}},
        {"prompt": [1], "logit_bias": {"-1": 5}},
        {"prompt": [1], "logit_bias": {"abc": 5}},
    ]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        in_flight = [pool.submit(server.completion, **good) for _ in range(8)]
        for fields in bad:
            assert_refused(server.post("/v1/completions", {"max_tokens": 2, **fields}))
        for one in in_flight:
            assert one.result()["choices"][0]["token_ids"] == wanted
    for fields in ({"prompt": [VOCABULARY - 1]}, {"prompt": [1], "stop_token_ids": [VOCABULARY - 1]}):
        assert server.post("/v1/completions", {"max_tokens": 2, **fields}).status == 200
    assert_refused(server.post("/detokenize", {"tokens": [VOCABULARY]}))
    assert_refused(server.post("/detokenize", {"tokens": [-1]}))


# --- A11: absurd numbers ---------------------------------------------------------------------------------------------

NUMERIC = ["max_tokens", "n", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"]
NUMERIC += ["repetition_penalty"]
WRONG_TYPES = ["10", True, [1], {"a": 1}]
OUT_OF_RANGE = {
    "max_tokens": [-1, 1.5, 2**63],
    "n": [0, -1, 5_000_000, 1.5],
    "temperature": [-1, 999999],
    "top_p": [-1, 2],
    "top_k": [-2, 1.5],
    "min_p": [-1, 2],
    "seed": [2**70, 1.5],
    "presence_penalty": [-3, 3],
    "frequency_penalty": [-3, 3],
    "repetition_penalty": [-1, 0],
}


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a11_numbers(server, path):
    memory = server.resident_bytes()
    for field in NUMERIC:
        for value in WRONG_TYPES + OUT_OF_RANGE[field]:
            began = time.monotonic()
            response = server.post(path, {**valid(path), field: value})
            assert response.status == 400, (field, value, response.text[:300])
            assert_refused(response, field)
            assert time.monotonic() - began < 1
        assert server.post(path, {**valid(path), field: None, **({"max_tokens": 2} if field != "max_tokens" else {})}).status == 200
    for number in ("1e999", "NaN", "Infinity", "-Infinity"):
        text = json.dumps({**valid(path), "model": server.model_name, "top_p": 12345}).replace("12345", number)
        assert_refused(server.post(path, text.encode()))
    assert server.resident_bytes() < memory + (100 << 20)
    assert_serves(server)


def test_a11_logprobs(server):
    for value in (10**9, -1, 1.5, "5", [1]):
        assert_refused(server.post("/v1/completions", {**valid("/v1/completions"), "logprobs": value}), "logprobs")
        chat = {**valid("/v1/chat/completions"), "logprobs": True, "top_logprobs": value}
        assert_refused(server.post("/v1/chat/completions", chat), "top_logprobs")
    assert server.post("/v1/completions", {**valid("/v1/completions"), "logprobs": None}).status == 200


# --- A12: caps and unknown fields ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a12_max_completion_tokens(server, stream):
    fields = {"messages": [{"role": "user", "content": "Count to one hundred."}], "temperature": 0}
    for cap in ({"max_completion_tokens": 5}, {"max_completion_tokens": 5, "max_tokens": 50}):
        if stream:
            options = {"stream_options": {"include_usage": True}}
            chunks = list(server.stream("/v1/chat/completions", {**fields, **cap, **options}))
            usage, reasons = chunks[-1]["usage"], [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
            reason = reasons[-1]
        else:
            answer = server.chat(**fields, **cap)
            usage, reason = answer["usage"], answer["choices"][0]["finish_reason"]
        assert usage["completion_tokens"] == 5 and reason == "length"


@pytest.mark.parametrize("path", ENDPOINTS)
def test_a12_unknown_fields_are_ignored(server, path):
    plain = server.post(path, valid(path)).json()["choices"]
    assert server.post(path, {**valid(path), "foo": 1, "metadata": {"a": ["b"]}}).json()["choices"] == plain


# --- A13: too long ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a13_prompt_at_the_limit(server, stream):
    def ask(length, **fields):
        return server.post("/v1/completions", {"prompt": [504] * length, "stream": stream, **fields})

    assert ask(CONTEXT - 1, max_tokens=1).status == 200
    for length in (CONTEXT, CONTEXT + 1, 10 * CONTEXT):
        error = assert_refused(ask(length, max_tokens=1), str(CONTEXT), str(length))
        assert error["code"] == "context_length_exceeded"
    text = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "word " * 1000}], "stream": stream})
    assert assert_refused(text)["code"] == "context_length_exceeded"


def test_a13_an_answer_that_would_pass_the_limit_is_clipped(server):
    fields = {"prompt": [504] * (CONTEXT - 3), "max_tokens": 50, "temperature": 0, "ignore_eos": True}
    answer = server.completion(**fields)
    assert answer["usage"]["completion_tokens"] == 3 and answer["choices"][0]["finish_reason"] == "length"
    chunks = list(server.stream("/v1/completions", {**fields, "stream_options": {"include_usage": True}}))
    assert chunks[-1]["usage"] == answer["usage"] and chunks[-2]["choices"][0]["finish_reason"] == "length"


# --- A14: shapes of messages -----------------------------------------------------------------------------------------


def prompt_tokens(server, messages):
    return server.chat(messages, max_tokens=1)["usage"]["prompt_tokens"]


def test_a14_legal_messages(server):
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    for content in ({}, {"content": None}, {"content": ""}):
        messages = [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", **content, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "user", "content": "Thanks"},
        ]
        without_tool = [messages[0], messages[1], messages[3]]
        assert prompt_tokens(server, messages) > prompt_tokens(server, without_tool)


def test_a14_parts_equal_strings(server):
    for role in ("system", "user", "assistant"):
        as_string = prompt_tokens(server, [{"role": role, "content": "Hello there"}])
        one_part = [{"type": "text", "text": "Hello there"}]
        two_parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": " there"}]
        assert prompt_tokens(server, [{"role": role, "content": one_part}]) == as_string
        assert prompt_tokens(server, [{"role": role, "content": two_parts}]) >= as_string
    assert prompt_tokens(server, [{"role": "user", "content": []}]) == prompt_tokens(server, [{"role": "user", "content": ""}])


def test_a14_refused_messages(server):
    picture = {"type": "image_url", "image_url": {"url": "data:,"}}
    bad = [[], None, "hello", [1], [{}], [{"role": "user", "content": 5}], [{"role": "user", "content": [picture]}]]
    bad += [[{"role": 1, "content": "x"}], [{"content": "x"}], [{"role": "user", "content": [{"type": "text"}]}]]
    for messages in bad:
        assert_refused(server.post("/v1/chat/completions", {"messages": messages}))
    assert_refused(server.post("/v1/chat/completions", {}), "messages")
    assert_refused(server.post("/v1/completions", {}), "prompt")


# --- paths, methods, a checkpoint without tokenizer ------------------------------------------------------------------


def test_paths_and_methods(server):
    assert server.get("/v1/nothing").status == 404
    assert server.get("/v1/completions").status == 405
    assert server.post("/health", b"").status == 405


def test_without_tokenizer_text_is_refused(tiny_server):
    assert_refused(tiny_server.post("/v1/completions", {"prompt": "Hello"}), "tokenizer")
    assert_refused(tiny_server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}), "tokenizer")
    assert_refused(tiny_server.post("/v1/completions", {"prompt": [2], "stop": ["x"]}), "tokenizer")
    assert_refused(tiny_server.post("/tokenize", {"prompt": "Hello"}), "tokenizer")


def test_raise_exception_of_a_template_is_told(logs, tmp_path):
    template = tmp_path / "strict.jinja"
    template.write_text("{{ raise_exception('roles must alternate') }}", encoding="utf-8")
    with Server(logs / "raise.log", "--chat-template", template, model=DEFAULT_MODEL) as server:
        assert_refused(server.post("/v1/chat/completions", valid("/v1/chat/completions")), "roles must alternate")
        assert_serves(server)


def test_a_template_that_cannot_be_compiled(logs, tmp_path):
    template = tmp_path / "broken.jinja"
    template.write_text("{% for m in messages %}", encoding="utf-8")
    with Server(logs / "broken.log", "--chat-template", template, model=DEFAULT_MODEL) as server:
        assert "template" in server.log()
        assert_refused(server.post("/v1/chat/completions", valid("/v1/chat/completions")), "template")
        assert_serves(server)


# --- D01 to D06: damaged checkpoints ---------------------------------------------------------------------------------


def assert_refused_at_start(tmp_path, model, *words):
    began = time.monotonic()
    code, log = refused_at_start(tmp_path / "start.log", model=model)
    assert code == 1, f"exit status {code}:\n{log[-2000:]}"
    assert time.monotonic() - began < 5
    for word in words:
        assert word in log, log[-2000:]


@pytest.fixture
def checkpoint(tmp_path):
    return shutil.copytree(FIXTURES / "tiny-llama", tmp_path / "checkpoint")


def read_header(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def write_header(path, header, payload):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def gguf_of(tensor_count=0, metadata_count=0, rest=b""):
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, metadata_count) + rest


def gguf_tensor(name, *dimensions, offset=0):
    text = name.encode()
    packed = struct.pack("<Q", len(text)) + text + struct.pack("<I", len(dimensions))
    return packed + struct.pack(f"<{len(dimensions)}Q", *dimensions) + struct.pack("<IQ", 0, offset)


def test_d01_dimensions_that_wrap(tmp_path):
    model = tmp_path / "wrap.gguf"
    for dimensions in ((2**42 + 1, 2**22), (2**63, 2), (2**32, 2**32), (0, 5)):
        model.write_bytes(gguf_of(tensor_count=1, rest=gguf_tensor("blk.0.attn_q.weight", *dimensions)) + bytes(4096))
        assert_refused_at_start(tmp_path, model)


@pytest.mark.parametrize("count", [2**31, 2**63, 2**64 - 1])
def test_d02_counts_beyond_the_file(tmp_path, count):
    model = tmp_path / "count.gguf"
    key = struct.pack("<Q", 1) + b"a"
    for data in (
        gguf_of(tensor_count=count),
        gguf_of(metadata_count=count),
        gguf_of(metadata_count=1, rest=struct.pack("<Q", count)),  # length of a key
        gguf_of(metadata_count=1, rest=key + struct.pack("<IQ", 8, count)),  # length of a string
        gguf_of(metadata_count=1, rest=key + struct.pack("<IIQ", 9, 4, count)),  # length of an array
        gguf_of(metadata_count=1, rest=key + struct.pack("<IIQ", 9, 9, count)),  # array of arrays
    ):
        model.write_bytes(data)
        assert_refused_at_start(tmp_path, model)


def test_d02_header_longer_than_the_file(checkpoint, tmp_path):
    for length in (2**31, 2**63, 10**9, 100):
        (checkpoint / "model.safetensors").write_bytes(struct.pack("<Q", length) + b"{}")
        assert_refused_at_start(tmp_path, checkpoint, "model.safetensors")


def test_d03_damaged_tokenizer(checkpoint, tmp_path):
    path = checkpoint / "tokenizer.json"
    base = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}}
    base |= {"decoder": {"type": "ByteLevel"}}
    models = [
        {"type": "BPE", "vocab": {"a": "zero"}, "merges": []},
        {"type": "BPE", "vocab": {"a": -1}, "merges": []},
        {"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []},
        {"type": "BPE", "vocab": {"a": 4294967296}, "merges": []},
        {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": ["a z"]},
        {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [5]},
        {"type": "BPE"},
    ]
    for model in models:
        path.write_text(json.dumps({**base, "model": model}), encoding="utf-8")
        assert_refused_at_start(tmp_path, checkpoint, "tokenizer.json")
    path.write_text('{"model": ', encoding="utf-8")
    assert_refused_at_start(tmp_path, checkpoint, "tokenizer.json")


def test_d03_unsupported_tokenizer_leaves_token_ids(checkpoint, logs):
    text = json.dumps({"model": {"type": "Unheard", "vocab": {}, "merges": []}})
    (checkpoint / "tokenizer.json").write_text(text, encoding="utf-8")
    with Server(logs / "unheard.log", model=checkpoint) as server:
        assert "Unheard" in server.log()
        assert_refused(server.post("/v1/completions", {"prompt": "Hello"}), "tokenizer")
        assert server.completion(prompt=[2, 3], max_tokens=1)["usage"]["prompt_tokens"] == 2


def test_d04_damaged_safetensors_header(checkpoint, tmp_path):
    path = checkpoint / "model.safetensors"
    header, payload = read_header(path)
    name, other = [key for key in header if key != "__metadata__"][:2]
    begin, end = header[name]["data_offsets"]

    def broken(**changes):
        return {**header, name: {**header[name], **changes}}

    cases = [
        broken(data_offsets=[begin, end - 2]),
        broken(data_offsets=[end, begin]),
        broken(data_offsets=[-2, end]),
        broken(data_offsets=[begin, 2**63]),
        broken(data_offsets=header[other]["data_offsets"]),
        broken(data_offsets=[begin]),
        broken(shape=[-1, 5]),
        broken(shape=[2**40, 2**40]),
        broken(shape="x"),
        broken(dtype="Q9"),
        broken(dtype=5),
        {**header, name: []},
        {key: value for key, value in header.items() if key != name},
        [],
    ]
    for case in cases:
        write_header(path, case, payload)
        assert_refused_at_start(tmp_path, checkpoint, "model.safetensors")
    write_header(path, header, payload[:-1])
    assert_refused_at_start(tmp_path, checkpoint, "model.safetensors")
    bad_text = json.dumps(header).encode().replace(b"BF16", b"BF\xff6", 1)
    path.write_bytes(struct.pack("<Q", len(bad_text)) + bad_text + payload)
    assert_refused_at_start(tmp_path, checkpoint, "model.safetensors")


def test_d04_extra_metadata_is_fine(checkpoint, logs):
    path = checkpoint / "model.safetensors"
    header, payload = read_header(path)
    write_header(path, {**header, "__metadata__": {"format": "pt", "extra": "yes"}}, payload)
    with Server(logs / "metadata.log", model=checkpoint) as server:
        assert server.completion(prompt=[2, 3], max_tokens=1)["usage"]["prompt_tokens"] == 2


def test_d06_shards(checkpoint, tmp_path, logs):
    header, payload = read_header(checkpoint / "model.safetensors")
    names = sorted(key for key in header if key != "__metadata__")
    index = {"metadata": {}, "weight_map": {}}
    for shard, part in enumerate((names[::2], names[1::2])):
        file, cursor, shard_header, shard_payload = f"model-0000{shard + 1}-of-00002.safetensors", 0, {}, b""
        for name in part:
            begin, end = header[name]["data_offsets"]
            shard_header[name] = {**header[name], "data_offsets": [cursor, cursor + end - begin]}
            shard_payload += payload[begin:end]
            cursor += end - begin
            index["weight_map"][name] = file
        write_header(checkpoint / file, shard_header, shard_payload)
    (checkpoint / "model.safetensors").unlink()
    index_path = checkpoint / "model.safetensors.index.json"

    def write_index(weight_map):
        index_path.write_text(json.dumps({**index, "weight_map": weight_map}), encoding="utf-8")

    write_index(index["weight_map"])
    with Server(logs / "shards.log", model=checkpoint) as server:
        assert server.completion(prompt=[2, 3], max_tokens=1)["usage"]["prompt_tokens"] == 2

    write_index({**index["weight_map"], names[0]: "model-00003-of-00003.safetensors"})
    assert_refused_at_start(tmp_path, checkpoint, "model-00003-of-00003.safetensors")
    write_index({**index["weight_map"], names[0]: "../outside.safetensors"})
    assert_refused_at_start(tmp_path, checkpoint, names[0], "model.safetensors.index.json")
    # A tensor that the index names and its shard lacks, and one that neither has.
    first_shard = checkpoint / "model-00001-of-00002.safetensors"
    shard_header, shard_payload = read_header(first_shard)
    moved = shard_header.pop(names[0])
    write_header(first_shard, {**shard_header, "unused.weight": moved}, shard_payload)
    write_index(index["weight_map"])
    assert_refused_at_start(tmp_path, checkpoint, names[0])
    write_index({name: file for name, file in index["weight_map"].items() if name != names[0]})
    assert_refused_at_start(tmp_path, checkpoint, names[0].removeprefix("model.").removesuffix(".weight"))
    write_header(first_shard, {**shard_header, names[0]: moved}, shard_payload)
    write_index(index["weight_map"])
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    assert_refused_at_start(tmp_path, checkpoint, "model-00002-of-00002.safetensors")


def test_d06_empty_folder_and_missing_path(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert_refused_at_start(tmp_path, empty, "empty")
    assert_refused_at_start(tmp_path, tmp_path / "nothing", "nothing")
