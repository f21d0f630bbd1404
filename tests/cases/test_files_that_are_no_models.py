"""Files that people give as a model: a pointer of Git LFS, a page, an unfinished download, an older
format, a folder, nothing; and good files by the links of a download cache.

Sources: ollama/ollama #3010; ggml-org/llama.cpp #3358, #3492; abetlen/llama-cpp-python #755, #902;
stacklok/codegate #850.
"""

import pytest
from programs import MODEL

FILES = {
    "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\n",
    "page": b"<!doctype html>\n<html></html>\n",
    "empty": b"",
    "magic": b"GGUF",
    "unfinished": MODEL.read_bytes()[:500_000],
    "older": b"ggjt" + bytes(4096),
    "zip": b"PK\x03\x04" + bytes(4096),
    "safetensors": (200).to_bytes(8, "little") + b'{"a":{}}' + bytes(4096),
    "byte order": b"GGUF\x00\x00\x00\x03" + bytes(4096),
}


@pytest.mark.parametrize("name", FILES)
def test_the_file_is_named(programs, tmp_path, name):
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(FILES[name])
    worker = programs.worker(model=path)
    assert worker.wait() in (1, 2)
    assert path.name in worker.stderr()
    for command in (("size", path), ("generate", "--model", path, "--prompt", "x")):
        done = programs.cairn(*command)
        if name == "unfinished" and command[0] == "size":
            continue  # Its metadata is whole, and nothing else is read.
        assert done.returncode in (1, 2)
        assert path.name in done.stderr


@pytest.mark.parametrize("path", ["/", "/none.gguf", "/dev/zero"])
def test_what_is_no_file_is_named(programs, path):
    worker = programs.worker(model=path)
    assert worker.wait() in (1, 2)
    assert f"'{path}'" in worker.stderr()


def test_links_of_a_download_cache(programs, tmp_path):
    (tmp_path / "blob").symlink_to(MODEL)
    link = tmp_path / "model \u00fc.gguf"
    link.symlink_to("blob")
    worker = programs.worker(model=link)
    assert worker.ready(), worker.stderr()
