"""The official openai client."""

import openai
import pytest

from hotset_server import DEFAULT_MODEL, FIXTURES, Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
COUNTING = "1, 2, 3, 4, 5, 6, 7, 8,"


@pytest.fixture(scope="module")
def server(logs):
    with Server(logs / "openai.log", model=DEFAULT_MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="unused", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def model(client):
    (model,) = client.models.list().data
    return model.id


def test_chat(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
    assert answer.object == "chat.completion" and answer.model == model
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == 37
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stream(client, model):
    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, temperature=0, n=2, stream=True))
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and {chunk.created for chunk in chunks} == {chunks[0].created}
    for index in (0, 1):
        deltas = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        assert [delta.delta.role for delta in deltas if delta.delta.role] == ["assistant"]
        assert deltas[0].delta.role == "assistant"
        assert "".join(delta.delta.content or "" for delta in deltas) == "The capital of France is Paris."
        assert [delta.finish_reason for delta in deltas if delta.finish_reason] == ["stop"]
        assert deltas[-1].finish_reason == "stop"


@pytest.mark.parametrize("options, chunks_with_usage", [(None, 0), ({}, 0), ({"include_usage": True}, 1)])
def test_stream_usage(client, model, options, chunks_with_usage):
    extra = {} if options is None else {"stream_options": options}
    chunks = list(client.chat.completions.create(model=model, messages=QUESTION, temperature=0, stream=True, **extra))
    with_usage = [chunk for chunk in chunks if chunk.usage is not None]
    assert len(with_usage) == chunks_with_usage
    if with_usage:
        assert with_usage == chunks[-1:] and chunks[-1].choices == []
        whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0)
        assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_stream_never_splits_a_character(client, model):
    messages = [{"role": "user", "content": "Привет! 你好 🙂"}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=48)
    deltas = [
        chunk.choices[0].delta.content or ""
        for chunk in client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=48, stream=True)
    ]
    assert "".join(deltas) == whole.choices[0].message.content
    assert not any("\ufffd" in delta for delta in deltas)


def test_max_completion_tokens(client, model):
    answer = client.chat.completions.create(model=model, messages=QUESTION, max_completion_tokens=3, temperature=0)
    assert answer.usage.completion_tokens == 3 and answer.choices[0].finish_reason == "length"


def test_completions_with_several_prompts_and_samples(client, model):
    prompts = ["The capital of France is", COUNTING]
    single = [client.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=8) for prompt in prompts]
    answer = client.completions.create(model=model, prompt=prompts, n=2, temperature=0, max_tokens=8)
    assert sorted(choice.index for choice in answer.choices) == [0, 1, 2, 3]
    for choice in answer.choices:
        assert choice.text == single[choice.index // 2].choices[0].text
    assert answer.usage.prompt_tokens == sum(one.usage.prompt_tokens for one in single)
    assert answer.usage.completion_tokens == 2 * sum(one.usage.completion_tokens for one in single)


def test_completion_echo(client, model):
    answer = client.completions.create(model=model, prompt=COUNTING, echo=True, logprobs=1, max_tokens=4, temperature=0)
    (choice,) = answer.choices
    assert choice.text.startswith(COUNTING)
    assert "".join(choice.logprobs.tokens) == choice.text
    assert len(choice.logprobs.tokens) == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert choice.logprobs.token_logprobs[0] is None and all(value <= 0 for value in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset[0] == 0


def test_text_offsets_count_the_text_that_the_client_has(client, model):
    def offsets(**fields):
        fields = dict(model=model, temperature=0, logprobs=0, **fields)
        (whole,) = client.completions.create(**fields).choices
        streamed = [chunk.choices[0] for chunk in client.completions.create(**fields, stream=True)]
        assert "".join(choice.text for choice in streamed) == whole.text
        places = [place for choice in streamed if choice.logprobs for place in choice.logprobs.text_offset]
        assert places == whole.logprobs.text_offset
        assert len(places) == len(whole.logprobs.tokens) and max(places) <= len(whole.text)
        return list(zip(whole.logprobs.tokens, places)), whole.text

    pairs, text = offsets(prompt="<|im_start|>user\nhié😀<|im_end|>\n", max_tokens=2, echo=True)
    assert text.startswith("user\nhié😀\n") and pairs[0] == ("<|im_start|>", 0)
    assert ("<|im_end|>", 9) in pairs
    for token, place in pairs:
        if not token.startswith(("<|im_", "bytes:")):
            assert text[place : place + len(token)] == token
    pairs, text = offsets(prompt=COUNTING, max_tokens=40, stop=", 12")
    assert pairs[-1][1] == len(text)


@pytest.mark.parametrize("stop", [" 12", ", 12", " 11, 12", "2, 13", ["12, 13", "12"]])
def test_stop_strings_across_tokens(client, model, stop):
    fields = dict(model=model, prompt=COUNTING, temperature=0, max_tokens=40)
    free = client.completions.create(**fields).choices[0].text
    stops = [stop] if isinstance(stop, str) else stop
    cut = min(free.index(one) for one in stops)
    whole = client.completions.create(**fields, stop=stop).choices[0]
    assert whole.text == free[:cut] and whole.finish_reason == "stop"
    streamed = list(client.completions.create(**fields, stop=stop, stream=True))
    assert "".join(chunk.choices[0].text for chunk in streamed) == free[:cut]
    assert streamed[-1].choices[0].finish_reason == "stop"


def test_seeds(client, model):
    def text(**fields):
        prompt = "Once upon a time"
        return client.completions.create(model=model, prompt=prompt, max_tokens=16, temperature=1.0, **fields).choices

    assert text(seed=42)[0].text == text(seed=42)[0].text
    assert len({text()[0].text for _ in range(4)}) > 1
    assert len({choice.text for choice in text(seed=7, n=3)}) > 1


@pytest.mark.parametrize("top", [0, 5])
def test_chat_logprobs(client, model, top):
    fields = dict(model=model, messages=QUESTION, temperature=0, logprobs=True, top_logprobs=top)
    answer = client.chat.completions.create(**fields).choices[0]
    content = answer.logprobs.content
    assert bytes(byte for item in content for byte in item.bytes).decode().startswith(answer.message.content)
    assert all(len(item.top_logprobs) == top and item.logprob <= 0 for item in content)
    streamed = client.chat.completions.create(**fields, stream=True)
    parts = [item for chunk in streamed for choice in chunk.choices if choice.logprobs for item in choice.logprobs.content]
    assert [part.logprob for part in parts] == [item.logprob for item in content]


def test_logit_bias_and_penalties(client, model):
    chat = dict(model=model, messages=QUESTION, temperature=0, max_tokens=8)
    free = client.chat.completions.create(**chat).choices[0].message.content
    banned = client.chat.completions.create(**chat, logit_bias={"504": -100})
    assert free.startswith("The") and not banned.choices[0].message.content.startswith("The")
    repeating = dict(model=model, prompt="la la la la la la", temperature=0, max_tokens=24)
    plain = client.completions.create(**repeating).choices[0].text
    assert client.completions.create(**repeating, frequency_penalty=2.0).choices[0].text != plain


def test_errors(client, server, model):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=[])
    assert refused.value.type == "invalid_request_error" and "messages" in refused.value.message
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=model, messages=QUESTION, temperature=-1, stream=True)
    with pytest.raises(openai.NotFoundError):
        client.with_options(base_url=f"http://127.0.0.1:{server.port}/nothing").models.list()


def test_api_key(logs):
    with Server(logs / "key.log", model=FIXTURES / "tiny-llama", api_key="secret") as locked:
        url = f"http://127.0.0.1:{locked.port}/v1"
        assert openai.OpenAI(base_url=url, api_key="secret", max_retries=0).models.list().data
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
        locked.api_key = None
        assert locked.get("/v1/models").status == 401
        assert locked.get("/health").status == 200
