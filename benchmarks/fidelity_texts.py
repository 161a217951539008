"""Writes the fidelity benchmark's texts from what a Python installation holds, and prints their hashes.

Usage: python3 fidelity_texts.py FOLDER

prose.txt: the language reference's topics in alphabetical order, only their running text: paragraphs that are not indented,
have two lines and more and are no grammar, each once (topics share parts). code.txt: the module `typing` as it is.
"""
import hashlib
import pathlib
import platform
import sys
import typing

from pydoc_data.topics import topics


def is_prose(paragraph: str) -> bool:
    lines = paragraph.split("\n")
    indented = any(line.startswith(" ") for line in lines)
    heading = any(line and set(line) <= set("*=-~") for line in lines)
    return len(lines) > 1 and not indented and not heading and "::=" not in paragraph


def prose() -> str:
    paragraphs = [part for name in sorted(topics) for part in topics[name].split("\n\n")]
    running = [" ".join(part.split()) for part in paragraphs if is_prose(part.strip("\n"))]
    return "\n\n".join(dict.fromkeys(running))


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    texts = {"prose.txt": prose(), "code.txt": pathlib.Path(typing.__file__).read_text(encoding="utf-8")}
    print("Python", platform.python_version())
    for name, text in texts.items():
        data = text.encode("utf-8")
        (folder / name).write_bytes(data)
        print(name, len(data), "bytes, SHA-256", hashlib.sha256(data).hexdigest())


if __name__ == "__main__":
    main()
