"""tools/bundle: the folder that it makes starts by itself, holds what it loads, and nothing that is another machine's."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from hotset_server import BINARY, REPOSITORY

GLIBC = r"(ld-linux-x86-64|linux-vdso|lib(c|m|dl|rt|pthread|resolv))\.so\."
CUDA = r"libcublas(Lt)?\.so\."
# ICU's own names end with its version.
NORMALIZE = """
import ctypes, pathlib, sys
(path,) = pathlib.Path(sys.argv[1]).glob("libicuuc.so.*")
version = path.name.split(".")[2]
uc = ctypes.CDLL(str(path))
status = ctypes.c_int(0)
form = getattr(uc, f"unorm2_getNFKCInstance_{version}")
form.restype = ctypes.c_void_p
handle = ctypes.c_void_p(form(ctypes.byref(status)))
assert status.value <= 0, status.value
text, out = "\\ufb01\\u2460\\u00c5".encode("utf-16-le"), ctypes.create_string_buffer(64)
length = getattr(uc, f"unorm2_normalize_{version}")(handle, text, len(text) // 2, out, 32, ctypes.byref(status))
assert status.value <= 0, status.value
sys.stdout.buffer.write(out.raw[: 2 * length].decode("utf-16-le").encode())
"""


def bundle(*arguments, cwd=None):
    command = [REPOSITORY / "tools" / "bundle", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    target = tmp_path_factory.mktemp("bundle") / "with a space"
    done = bundle("--system-cuda", "--build", BINARY.parent, target)
    assert done.returncode == 0, done.stderr
    assert re.search(r"MB, for glibc 2\.\d+ or newer", done.stdout)
    return target


def test_starts_without_an_environment_from_wherever_it_is(folder, tmp_path):
    wanted = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=True).stdout
    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    link = tmp_path / "link"
    link.symlink_to(moved / "hotset")
    for program in (folder / "hotset", moved / "hotset", link):
        done = subprocess.run([program, "--version"], env={}, cwd="/", capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, wanted), done.stderr


def check_libraries(folder, others):
    """The program finds all its libraries in the bundle, but for the others; returns their names."""
    listed = subprocess.run(
        ["ldd", folder / "lib" / "hotset"], env={"LD_LIBRARY_PATH": str(folder / "lib"), "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    ).stdout
    own = [line for line in listed.splitlines() if str(folder) in line]
    for line in set(listed.splitlines()) - set(own):
        assert re.search(others, line), line
    names = {line.split()[0] for line in own}
    assert names | {"hotset"} == {path.name for path in (folder / "lib").iterdir()}
    assert not any(re.match(GLIBC, name) for name in names)
    return names


def test_loads_only_its_own_libraries_and_glibc(folder):
    assert any("libstdc++.so" in name for name in check_libraries(folder, f"{GLIBC}|{CUDA}"))


def test_by_default_cuda_is_in_it(tmp_path):
    linked = subprocess.run(["ldd", BINARY], capture_output=True, text=True, check=True).stdout
    if not re.search(CUDA, linked):
        pytest.skip("a build without CUDA")
    whole = tmp_path / "whole"
    assert bundle("--build", BINARY.parent, whole).returncode == 0
    assert any(re.match(CUDA, name) for name in check_libraries(whole, GLIBC))
    assert subprocess.run([whole / "hotset", "--version"], env={}, cwd="/").returncode == 0
    shutil.rmtree(whole)  # half a gigabyte


def test_is_small(folder):
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 30e6
    for path in files:
        sections = subprocess.run(["readelf", "-SW", path], capture_output=True, text=True).stdout
        assert ".debug_info" not in sections, path


def test_unicode_normalization_has_its_data(folder):
    environment = {"LD_LIBRARY_PATH": str(folder / "lib"), "PATH": os.environ["PATH"], "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", NORMALIZE, folder / "lib"], env=environment, capture_output=True)
    assert done.stdout.decode() == "fi1\u00c5", done.stderr.decode()


def test_paths_are_the_callers(tmp_path):
    build = os.path.relpath(BINARY.parent.resolve(), tmp_path)
    done = bundle("--system-cuda", "--build", build, "made", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "made" / "hotset").exists()


def test_replaces_a_bundle_and_nothing_else(folder, tmp_path):
    stale = folder / "lib" / "stale"
    stale.touch()
    assert bundle("--system-cuda", "--build", BINARY.parent, folder).returncode == 0
    assert not stale.exists()
    (tmp_path / "mine").touch()
    refused = bundle("--build", BINARY.parent, tmp_path)
    assert refused.returncode == 1 and "is no bundle" in refused.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "arguments,words",
    [
        (["--build", "/nowhere"], "there is no /nowhere/hotset"),
        (["--build"], "--build needs a folder"),
        (["--cuda"], "unknown option --cuda"),
        (["/one", "/two"], "one folder, not /one and /two"),
    ],
)
def test_says_what_is_wrong(arguments, words):
    done = bundle(*arguments)
    assert done.returncode == 1 and words in done.stderr


def test_help():
    done = bundle("--help")
    assert done.returncode == 0 and "--system-cuda" in done.stdout
