"""Every example configuration starts a server that answers."""

import re
import subprocess

import pytest

from hotset_server import BINARY, DEFAULT_MODEL, REPOSITORY, Server

CONFIGS = sorted((REPOSITORY / "configs").glob("*.toml"))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.name)
def test_example_configuration(config, logs):
    with Server(logs / f"{config.stem}.log", "--config", config, "--host", "127.0.0.1", model=DEFAULT_MODEL) as server:
        answer = server.completion(prompt="The capital of France is", max_tokens=1, temperature=0)
        assert answer["choices"][0]["text"] == " Paris"


def test_there_are_examples():
    assert len(CONFIGS) >= 4


def test_every_option_is_documented():
    help_text = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    options = re.findall(r"^  (--[a-z-]+) ", help_text, re.MULTILINE)
    assert len(options) > 30
    pages = "\n".join(path.read_text(encoding="utf-8") for path in [REPOSITORY / "README.md", *(REPOSITORY / "docs").glob("*.md")])
    missing = [option for option in options if not re.search(rf"{option}\b(?!-)", pages)]
    assert not missing, missing


def test_the_image_stops_within_dockers_grace():
    """`docker stop` kills after 10 s; after the drain the last bytes get 2 s (api/serve_command.cpp)."""
    dockerfile = (REPOSITORY / "docker" / "Dockerfile").read_text(encoding="utf-8")
    (drain,) = re.findall(r"HOTSET_DRAIN_TIMEOUT_MS=(\d+)", dockerfile)
    assert 1000 <= int(drain) <= 10_000 - 2_000 - 500
