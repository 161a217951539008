import json

import pytest

from hotset_server import FIXTURES, Server


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def tiny_server(logs):
    """tiny-llama: no tokenizer, 512 tokens of vocabulary, context 2,048."""
    with Server(logs / "tiny.log", model=FIXTURES / "tiny-llama") as server:
        yield server


def expected(path):
    return json.loads((FIXTURES / path).read_text(encoding="utf-8"))
