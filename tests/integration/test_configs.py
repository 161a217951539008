"""Every example configuration starts a server that answers."""

import pytest

from hotset_server import DEFAULT_MODEL, REPOSITORY, Server

CONFIGS = sorted((REPOSITORY / "configs").glob("*.toml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_example_configuration(config, logs):
    with Server(logs / f"{config.stem}.log", "--config", config, "--host", "127.0.0.1", model=DEFAULT_MODEL) as server:
        answer = server.completion(prompt="The capital of France is", max_tokens=1, temperature=0)
        assert answer["choices"][0]["text"] == " Paris"


def test_there_are_examples():
    assert len(CONFIGS) >= 4
