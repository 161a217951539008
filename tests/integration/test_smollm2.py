"""The default model against the reference library: tokens, chat prompts, log-probabilities, greedy text."""

import json
import struct
import tarfile

import pytest

from compare import assert_close, assert_same_until_near_tie, margin
from conftest import expected
from hotset_server import DEFAULT_MODEL, FIXTURES, Server

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
NEAR_TIE = 0.02


@pytest.fixture(scope="module")
def reference():
    return expected("smollm2/expected.json")


def write_safetensors(path, tensors):
    """`tensors`: {name: (shape, two bytes that every element has)}, all bfloat16."""
    header, payload = {}, bytearray()
    for name, (shape, element) in tensors.items():
        count = 1
        for size in shape:
            count *= size
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [len(payload), len(payload) + 2 * count]}
        payload += element * count
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + payload)


def folder_with_tokenizer(folder):
    """A checkpoint folder with the default model's vocabulary: the tokenizer in its other format, tiny equal weights."""
    vocabulary, hidden, heads, head_dim, inner = 49152, 32, 2, 16, 32
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    one, small = b"\x80\x3f", b"\x80\x3c"  # 1 and 1/64
    layer = "model.layers.0."
    write_safetensors(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": ([vocabulary, hidden], small),
            "model.norm.weight": ([hidden], one),
            layer + "input_layernorm.weight": ([hidden], one),
            layer + "post_attention_layernorm.weight": ([hidden], one),
            layer + "self_attn.q_proj.weight": ([heads * head_dim, hidden], small),
            layer + "self_attn.k_proj.weight": ([heads * head_dim, hidden], small),
            layer + "self_attn.v_proj.weight": ([heads * head_dim, hidden], small),
            layer + "self_attn.o_proj.weight": ([hidden, heads * head_dim], small),
            layer + "mlp.gate_proj.weight": ([inner, hidden], small),
            layer + "mlp.up_proj.weight": ([inner, hidden], small),
            layer + "mlp.down_proj.weight": ([hidden, inner], small),
        },
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer.json").write_bytes(read_tokenizer())
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": CHAT_TEMPLATE, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}), encoding="utf-8"
    )
    return folder


def read_tokenizer():
    with tarfile.open(FIXTURES / "smollm2" / "tokenizer.tar.xz") as archive:
        return archive.extractfile("tokenizer.json").read()


@pytest.fixture(scope="module")
def gguf_server(logs):
    with Server(logs / "gguf.log", model=DEFAULT_MODEL) as server:
        yield server


@pytest.fixture(scope="module")
def folder_server(logs, tmp_path_factory):
    with Server(logs / "folder.log", model=folder_with_tokenizer(tmp_path_factory.mktemp("checkpoint"))) as server:
        yield server


@pytest.fixture(scope="module", params=["gguf_server", "folder_server"])
def either(request):
    return request.getfixturevalue(request.param)


def tokenize(server, **fields):
    response = server.post("/tokenize", fields)
    assert response.status == 200, response.text
    answer = response.json()
    assert answer["count"] == len(answer["tokens"])
    return answer["tokens"]


def detokenize(server, ids):
    response = server.post("/detokenize", {"tokens": ids})
    assert response.status == 200, response.text
    return response.json()["prompt"]


def test_difficult_strings(either, reference):
    assert len(reference["tokenize"]) == 79
    for case in reference["tokenize"]:
        assert tokenize(either, prompt=case["text"], add_special_tokens=False) == case["ids"], repr(case["text"])
        assert detokenize(either, case["ids"]) == case["decoded"]


def test_chat_prompts(either, reference):
    assert len(reference["chat_prompts"]) == 12
    for case in reference["chat_prompts"]:
        ids = tokenize(either, messages=case["messages"], add_generation_prompt=case["add_generation_prompt"])
        assert ids == case["ids"]
        assert detokenize(either, ids) == case["prompt"]


def test_prompt_logprobs(gguf_server, reference):
    tolerance = reference["tolerance"]["prompt_logprobs_abs"]
    for case in reference["generate"]:
        answer = gguf_server.completion(prompt=case["ids"], max_tokens=0, echo=True, logprobs=1)
        assert_close(answer["choices"][0]["logprobs"]["token_logprobs"], case["prompt_logprobs"], tolerance)


def completion_of(server, case):
    choice = server.completion(prompt=case["prompt"], max_tokens=48, temperature=0, return_token_ids=True)["choices"][0]
    return choice, choice["text"]


def chat_of(server, case):
    choice = server.chat(case["messages"], max_tokens=48, temperature=0, return_token_ids=True)["choices"][0]
    return choice, choice["message"]["content"]


def test_greedy_text(gguf_server, reference):
    compared = total = 0
    for case in reference["generate"]:
        choice, text = (chat_of if case["kind"] == "chat" else completion_of)(gguf_server, case)
        assert choice["prompt_token_ids"] == case["ids"]
        margins = [margin(step["top"]) for step in case["steps"]]
        same = assert_same_until_near_tie(choice["token_ids"], case["greedy"], margins, NEAR_TIE)
        compared, total = compared + same, total + len(case["greedy"])
        if same == len(case["greedy"]):
            assert text == case["greedy_text"]
            assert choice["finish_reason"] == case["finish"]
    print(f"{compared} of {total} greedy tokens compared")
    assert compared > 0.8 * total


def test_top_logprobs_of_the_first_step(gguf_server, reference):
    tolerance = reference["tolerance"]["prompt_logprobs_abs"]
    for case in reference["generate"]:
        answer = gguf_server.completion(prompt=case["ids"], max_tokens=1, temperature=0, logprobs=5, return_token_ids=True)
        top = list(answer["choices"][0]["logprobs"]["top_logprobs"][0].values())
        assert_close(sorted(top, reverse=True)[:5], [logprob for _, logprob in case["steps"][0]["top"][:5]], tolerance)
