"""Checks that includes go only down and that each library stays in its home (docs/architecture.md, section 2).

usage: check_layering.py REPOSITORY    prints one line per violation; exit status 1 when there is one
"""

import pathlib
import re
import sys

LAYERS = ["api", "actors", "model", "sparse", "storage", "kernels", "core"]  # a folder sees itself and what follows
OUTSIDE_THE_LAYERS = ["tests", "benchmarks"]  # may include anything
OTHER_FOLDERS = ["configs", "docker", "docs", "cmake", "tools", "build", "third_party", "third_party_peers"]  # hold no checked sources
SOURCE_SUFFIXES = {".h", ".cpp", ".cu", ".cuh"}

# Library, pattern of its headers, pattern of the paths that may include them.
HOMES = [
    ("CAF", r"caf/", r"actors/"),
    ("Boost.Beast", r"boost/beast", r"api/"),
    ("cpp-httplib", r"httplib\.h", r"api/"),
    ("Boost.Asio", r"boost/asio", r"(api|storage)/"),
    ("spdlog", r"spdlog/", r"core/log[^/]*$"),
    ("prometheus-cpp", r"prometheus/", r"core/metrics[^/]*$"),
    ("Eigen", r"Eigen/", r"sparse/"),
    ("xxHash", r"xxhash", r"core/content_hash[^/]*$"),
    ("CUDA", r"(cuda|cublas|cudnn|nccl|cub/|cooperative_groups|mma\.h|nvtx)", r"kernels/cuda/"),
]
NOT_IN_CUDA_SOURCES = r"(caf/|spdlog/|fmt/|nlohmann/)"

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)


def check_include(path: str, quote: str, header: str):
    """Yields what is wrong with one include of the file `path` (relative to the repository)."""
    folder = path.split("/")[0]
    if path.endswith((".cu", ".cuh")) and re.match(NOT_IN_CUDA_SOURCES, header):
        yield f"a CUDA source must not include {header}"
    if folder in OUTSIDE_THE_LAYERS:
        return
    target = header.split("/")[0]
    if target in LAYERS and "/" in header:
        if LAYERS.index(target) < LAYERS.index(folder):
            yield f"{folder} must not include {target}, which lies above it: {header}"
    elif quote == '"':
        yield f"write the path from the repository root: {header}"
    for library, pattern, home in HOMES:
        if re.match(pattern, header) and not re.match(home, path):
            yield f"{library} does not belong here: {header}"


def violations(root: pathlib.Path) -> list[str]:
    found = []
    for folder in sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith(".")):
        if folder.name in OTHER_FOLDERS:
            continue
        sources = sorted(file for file in folder.rglob("*") if file.suffix in SOURCE_SUFFIXES)
        if sources and folder.name not in LAYERS + OUTSIDE_THE_LAYERS:
            found.append(f"{folder.name}: not a folder of the architecture")
            continue
        for source in sources:
            path = source.relative_to(root).as_posix()
            for match in INCLUDE.finditer(source.read_text(encoding="utf-8")):
                found += [f"{path}: {problem}" for problem in check_include(path, *match.groups())]
    return found


def main() -> int:
    found = violations(pathlib.Path(sys.argv[1]))
    print("\n".join(found) if found else "includes go one way, libraries are at home")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
