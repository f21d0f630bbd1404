"""vLLM's connector with LoRA adapters: keys have the bytes of their files, and adapters whose files
may not be those that the engine has are bypassed. Stand-ins replace vLLM; the node is real."""

import os
import shutil
import threading
import types
from unittest import mock

import pytest

import cairn
from conftest import SLOW, wait_until
from test_vllm_drafts import BLOCK, OneGroup
from test_vllm_pools import World, groups_of, standins, tokens_of  # noqa: F401

TOKENS = tokens_of(1, 160)


def write(folder, weights=b"weights", rank=8):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "adapter_model.safetensors").write_bytes(weights)
    (folder / "adapter_config.json").write_text(f'{{"r": {rank}}}')
    return folder


def lora(folder, number=1, name="a", **changes):
    fields = {"load_inplace": False, "is_3d_lora_weight": False}
    return types.SimpleNamespace(
        lora_name=name, lora_int_id=number, lora_path=str(folder), **(fields | changes)
    )


class Served(OneGroup):
    """An engine whose requests may name an adapter. What it stores is at the node."""

    def __init__(self, node, serial, lora_config=None, **settings):
        self.lora_config = lora_config or types.SimpleNamespace(lora_dtype="auto")
        self.lora = None
        super().__init__(node, serial, None, **settings)

    def configure(self, config):
        config.lora_config = self.lora_config

    def request(self, tokens, prompt=None):
        request = super().request(tokens, prompt)
        request.lora_request = self.lora
        request.cache_salt = getattr(self, "salt", None)
        return request

    def ask(self, adapter, tokens=TOKENS):
        """Tokens that were found, and blocks that were stored."""
        self.lora = adapter
        found = self.offered(tokens)
        return found, self.store(tokens)


@pytest.fixture
def old(monkeypatch):
    """Files that a test has just written count as older than the engine."""
    from cairn.vllm import adapters

    monkeypatch.setattr(adapters, "_CLOCK", -(10**10))


@pytest.fixture
def serve(node, serial):
    made, number = [], serial()

    def make(**settings):
        made.append(Served(node, number, **settings))
        return made[-1]

    yield make
    for one in made:
        one.close()


NOTHING, ALL, BYPASSED = (0, 10), (144, 10), (0, 0)


def test_two_adapters_under_one_name_and_path_share_nothing(serve, old, tmp_path):
    """One after the other, in two engines: each finds its own."""
    path = tmp_path / "adapter"
    for weights in (b"one", b"another"):
        write(path, weights)
        one = serve()
        assert one.ask(lora(path)) == NOTHING
        assert one.ask(lora(path)) == ALL
        assert one.count("bypassed_requests") == 0
    write(path, b"one")
    assert serve().ask(lora(path)) == ALL


def test_a_configuration_is_part_of_an_adapter(serve, old, tmp_path):
    one = serve()
    assert one.ask(lora(write(tmp_path / "a", rank=8))) == NOTHING
    assert one.ask(lora(write(tmp_path / "b", rank=16), 2)) == NOTHING
    other = serve(lora_config=types.SimpleNamespace(lora_dtype="bfloat16"))
    assert other.ask(lora(tmp_path / "a")) == NOTHING
    fused = serve()
    assert fused.ask(lora(tmp_path / "a", is_3d_lora_weight=True)) == NOTHING


def test_equal_files_meet_under_any_name(serve, old, tmp_path):
    one = serve()
    assert one.ask(lora(write(tmp_path / "a"), 1, "a")) == NOTHING
    assert one.ask(lora(write(tmp_path / "b"), 2, "b")) == ALL


def test_requests_without_an_adapter_and_with_another_salt_find_nothing(serve, old, tmp_path):
    one = serve()
    adapter = lora(write(tmp_path / "a"))
    assert one.ask(adapter) == NOTHING
    assert one.ask(None) == NOTHING
    one.salt = "red"
    assert one.ask(adapter) == NOTHING


def rewrite(path):
    """As an editor does: same size, same times as far as a program can set them."""
    file = path / "adapter_model.safetensors"
    times = file.stat()
    file.write_bytes(b"w" + file.read_bytes()[1:])
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


def rename_over(path):
    write(path.parent / "next", b"other")
    shutil.rmtree(path)
    (path.parent / "next").rename(path)


def remove(path):
    shutil.rmtree(path)


def add_file(path):
    (path / "adapter_model.bin").write_bytes(b"more")


@pytest.mark.parametrize("change", [rewrite, rename_over, remove, add_file])
def test_an_adapter_that_is_replaced_while_it_is_served_is_bypassed_from_then_on(
    serve, old, tmp_path, change
):
    path = write(tmp_path / "a")
    one = serve()
    assert one.ask(lora(path)) == NOTHING
    change(path)
    for _ in range(2):
        assert one.ask(lora(path)) == BYPASSED
    # `ask` makes two requests.
    assert one.count("changed_adapter_requests") == one.count("bypassed_requests") == 4
    assert one.ask(None) == NOTHING


def test_files_that_change_while_a_request_waits(serve, old, tmp_path):
    path = write(tmp_path / "a")
    one = serve()
    assert one.ask(lora(path)) == NOTHING
    one.lora = lora(path)
    request = one.request(TOKENS)
    one.half.on_new_request(request)
    rewrite(path)
    wait_until(lambda: one.half.matched_tokens(request, 0) is not None, SLOW, "an answer")
    assert one.half.matched_tokens(request, 0) == 0
    assert one.count("changed_adapter_requests") == 1
    assert one.step(request, 0, 160) == []


def test_adapters_in_several_pools(node, serial, old, tmp_path):
    one = World(node, groups_of((16, None), (16, 40)), serial())
    made, plain = [], one.request
    named = [lora(write(tmp_path / name, name.encode()), n) for n, name in ((1, "a"), (2, "b"))]
    named = [*named, *named, None, None]

    def request(tokens, prompt=None):
        made.append(plain(tokens, prompt))
        made[-1].lora_request = named[len(made) - 1]
        return made[-1]

    one.request = request
    one.key = lambda *_: mock.ANY  # Keys are others than those of the tokens alone.
    assert [one.prompt(tokens_of(1, 300)) for _ in named] == [0, 0, 288, 288, 0, 288]
    one.close()


def test_links_that_are_turned_are_noticed(serve, old, tmp_path):
    link = tmp_path / "current"
    link.symlink_to(write(tmp_path / "v1"))
    one = serve()
    assert one.ask(lora(link / "." / "")) == NOTHING
    link.unlink()
    link.symlink_to(write(tmp_path / "v2"))
    assert one.ask(lora(link)) == BYPASSED


def test_files_younger_than_the_engine_are_bypassed_unless_an_operator_says_they_are_fixed(
    serve, tmp_path
):
    """The engine may have read those that were there before."""
    fixed = serve(fixed_adapters=True)
    one = serve()
    path = write(tmp_path / "a")
    assert one.ask(lora(path)) == BYPASSED
    assert one.count("changed_adapter_requests") == 2
    assert fixed.ask(lora(path)) == NOTHING
    rewrite(path)
    assert fixed.ask(lora(path)) == BYPASSED


def test_a_link_younger_than_the_engine_counts_as_a_younger_file(serve, old, tmp_path, monkeypatch):
    from cairn.vllm import adapters

    write(tmp_path / "v1")
    one = serve()
    monkeypatch.setattr(one.half._adapters, "_start", newest(adapters, tmp_path / "v1") + 1)
    assert one.ask(lora(tmp_path / "v1", 1)) == NOTHING
    wait_until(lambda: turned(adapters, tmp_path, one), SLOW, "a later time of a link")
    assert one.ask(lora(tmp_path / "link", 2)) == BYPASSED


def newest(adapters, path):
    return adapters.AdapterFiles.look(str(path)).newest()


def turned(adapters, tmp_path, one):
    (tmp_path / "link").unlink(missing_ok=True)
    (tmp_path / "link").symlink_to(tmp_path / "v1")
    return newest(adapters, tmp_path / "link") >= one.half._adapters._start


@pytest.mark.parametrize("missing", ["folder", "configuration"])
def test_files_that_cannot_be_read(serve, old, tmp_path, missing):
    path = tmp_path / "a"
    if missing == "configuration":
        (write(path) / "adapter_config.json").unlink()
    one = serve()
    assert one.ask(lora(path)) == BYPASSED
    assert one.count("unread_adapter_requests") == one.count("bypassed_requests") == 2
    # They may come.
    write(path)
    assert one.ask(lora(path)) == NOTHING


def test_numbers_that_get_other_weights(serve, old, tmp_path):
    one = serve()
    paths = [write(tmp_path / name, name.encode()) for name in "abc"]
    assert one.ask(lora(paths[0], 1)) == NOTHING
    # The engine goes on with the first one's weights.
    assert one.ask(lora(paths[1], 1)) == BYPASSED
    assert one.ask(lora(paths[0], 1)) == BYPASSED
    assert one.ask(lora(paths[2], 2)) == NOTHING
    assert one.ask(lora(paths[2], 2, load_inplace=True)) == BYPASSED
    assert one.ask(lora(paths[2], 2)) == BYPASSED


def test_a_request_does_not_wait_long_for_files(serve, old, tmp_path, monkeypatch):
    from cairn.vllm import adapters

    read, go_on = adapters.AdapterFiles.digest, threading.Event()

    def slow(files):
        assert go_on.wait(SLOW)
        return read(files)

    monkeypatch.setattr(adapters.AdapterFiles, "digest", slow)
    one = serve(lookup_timeout=0.05)
    adapter = lora(write(tmp_path / "a"))
    one.lora = adapter
    assert one.offered(TOKENS) == 0
    assert one.count("unread_adapter_requests") == 1
    go_on.set()
    one.half._adapters._known[1].reading.result(SLOW)
    assert one.store(TOKENS) == 10


def test_blocks_are_not_stored_if_the_files_changed_before_the_step_ended(serve, old, tmp_path):
    """The engine may have read the new ones in this step."""
    from cairn.vllm.metadata import Metadata, SaveJob
    from cairn.vllm.worker import WorkerHalf

    one = serve()
    path = write(tmp_path / "a")
    one.lora = lora(path)
    request = one.request(TOKENS)
    one.half.on_new_request(request)
    wait_until(lambda: one.half.matched_tokens(request, 0) is not None, SLOW, "an answer")
    saves = one.metadata(request, 0, 160).saves
    assert [job.adapter.folder for job in saves] == [str(path)]
    other = SaveJob([b"k" * 32], 0, [1], None)

    worker = WorkerHalf(one.connector._store, one.connector._plan, 0)
    saved = []
    worker._pages = types.SimpleNamespace(save=saved.extend, close=lambda: None)
    worker.start_saves(Metadata(one.namespace, saves=[*saves, other]))
    assert saved == [*saves, other]
    saved.clear()
    rewrite(path)
    worker.start_saves(Metadata(one.namespace, saves=[*saves, other]))
    assert saved == [other]
    assert one.count("changed_adapter_blocks") == 10
    worker.close()


def test_files_that_change_while_they_are_read(serve, old, tmp_path, monkeypatch):
    from cairn.vllm import adapters

    read = adapters.AdapterFiles.digest
    path = write(tmp_path / "a")

    def changing(files):
        found = read(files)
        rewrite(path)
        return found

    monkeypatch.setattr(adapters.AdapterFiles, "digest", changing)
    one = serve()
    assert one.ask(lora(path)) == BYPASSED
    assert one.count("changed_adapter_requests") == 2


def test_generated_tokens_have_the_keys_of_a_prompt(serve, old, tmp_path):
    """Keys are made some at a time, each from the one before."""
    one = serve(save_generated=True)
    one.lora = lora(write(tmp_path / "a"))
    one.store(TOKENS)
    request = one.request(TOKENS[:40], prompt=33)
    one.half.on_new_request(request)
    wait_until(lambda: one.half.matched_tokens(request, 0) is not None, SLOW, "an answer")
    found = one.step(request, 0, 33)
    request.all_token_ids, request.num_tokens = TOKENS, 160
    found += one.step(request, 33, 127)
    assert [block for block, _ in found] == list(range(10))
    with one.client.match(one.namespace, [key for _, key in found], deadline=SLOW) as match:
        assert match.matched_blocks == 10
    assert {key for _, key in found}.isdisjoint(cairn.block_keys(one.namespace, TOKENS, BLOCK))
