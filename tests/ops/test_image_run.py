"""deploy/docker/image.py really builds the image, and the programs in it run in runc: as user
10001, with a root folder that cannot be written, without capabilities, under the default list of
system calls."""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from conftest import ROOT
from container import (
    DEFAULT_SECCOMP,
    OUT,
    TAG,
    UID,
    Image,
    build_image,
    built_line,
    default_seccomp,
)

sys.path.insert(0, str(ROOT / "benchmarks"))
# Needs the path above.
from rows.processes import Server, wait_until  # noqa: E402

MODEL = ROOT / "build/models/SmolLM2-135M-Instruct.Q4_1.gguf"
PROGRAMS = ("cairn", "cairn-cache", "cairn-router", "cairn-worker")


@pytest.fixture(scope="module")
def built(programs):
    return built_line(programs)


def image_config():
    """The file with the image's configuration."""
    layout = OUT / "oci"

    def blob(entry):
        return layout / "blobs" / entry["digest"].replace(":", "/")

    index = json.loads((layout / "index.json").read_text())
    return blob(json.loads(blob(index["manifests"][0]).read_text())["config"])


@pytest.fixture(scope="module")
def image(built, tmp_path_factory):
    return Image(OUT / "oci", TAG, tmp_path_factory.mktemp("image"))


@pytest.fixture
def started(image, tmp_path):
    """Starts a program of the image; a Server, with the list of mounts."""
    with contextlib.ExitStack() as stack:

        def start(arguments, **options):
            words, remove = image.command(arguments, **options)
            stack.callback(remove)
            return stack.enter_context(Server(words, tmp_path / "log", ready_seconds=120))

        yield start


def test_the_tool_says_what_it_made(built):
    found = re.fullmatch(
        r"\S+/oci:test (sha256:[0-9a-f]{64}), revision (\S+): (\d+) MiB to download, (\d+) MiB "
        r"unpacked\n",
        built,
    )
    assert found, built
    assert int(found[4]) <= 200


def test_the_image_shows_its_revision(built, image, programs):
    revision = re.search(r"revision (\S+):", built)[1]
    for name in PROGRAMS:
        done = image.run([name, "--version"])
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip().endswith(f"({revision})")
    config = json.loads(image_config().read_text())["config"]
    assert config["Labels"]["org.opencontainers.image.revision"] == revision
    assert config["User"] == f"{UID}:{UID}"


def test_the_same_files_make_the_same_image(built, programs):
    again = build_image(programs, OUT, "--tag", "again")
    assert again.returncode == 0, again.stderr
    assert again.stdout.replace(":again", ":test") == built


def test_the_programs_are_the_ones_that_were_given(image, programs, tmp_path):
    for name in PROGRAMS:
        subprocess.run(["strip", "-o", tmp_path / name, programs / name], check=True)
        given, found = tmp_path / name, image.root / "usr/local/bin" / name
        assert (
            hashlib.sha256(given.read_bytes()).digest()
            == hashlib.sha256(found.read_bytes()).digest()
        )


def test_nothing_in_the_image_gives_rights(image):
    """No program with a set-user bit is needed; without capabilities none would help, and what is
    there is Debian's."""
    done = image.run(["find", "/usr/local", "/var/lib/cairn", "-perm", "/6000"])
    assert done.returncode == 0 and done.stdout == ""


def test_a_container_has_what_restricted_allows_and_no_more(image, tmp_path):
    done = image.run(
        ["sh", "-c", "id -u; grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status; touch /x; true"]
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == str(UID)
    status = dict(line.split(":\t") for line in lines[1:])
    assert {value for key, value in status.items() if key.startswith("Cap")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    assert "Read-only file system" in done.stderr


def test_the_default_list_refuses_what_it_should(image):
    """unshare makes namespaces, in which a process would have all capabilities. Lists differ in the
    error that they answer with."""
    done = image.run(["unshare", "--user", "true"])
    assert done.returncode != 0
    assert re.search("Operation not permitted|Function not implemented", done.stderr)


def healthy(router):
    try:
        with urllib.request.urlopen(f"http://{router.http}/health", timeout=60) as answer:
            return answer.status == 200
    except urllib.error.HTTPError:
        return False


def chat(router, text):
    request = urllib.request.Request(
        f"http://{router.http}/v1/chat/completions",
        json.dumps(
            {
                "messages": [{"role": "user", "content": text}],
                "max_tokens": 4,
                "temperature": 0,
            }
        ).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        return json.load(answer)


def test_node_worker_and_router_serve(image, started, programs, tmp_path):
    """A prompt that comes again is fetched from the node, over shared memory; blocks are on a disk
    that the user owns."""
    disk, run = tmp_path / "disk", tmp_path / "run"
    for folder in (disk, run):
        folder.mkdir()
        os.chown(folder, UID, UID)
    shared = {"environment": {"XDG_RUNTIME_DIR": "/run/cairn"}}
    model = (MODEL, "/models/model.gguf", False)
    local = ["--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"]
    node = started(
        ["cairn-cache", *local, "--host.capacity", "128MiB", "--disk.path", "/var/lib/cairn/disk"]
        + ["--disk.capacity", "256MiB"],
        binds=[(disk, "/var/lib/cairn", True), (run, "/run/cairn", True)],
        memory=2 << 30,
        **shared,
    )
    worker = started(
        ["cairn-worker", *local, "--model", "/models/model.gguf", "--cache", node.grpc]
        + ["--cache.match_deadline", "5s", "--cache.stall_deadline", "5s", "--kv_pool", "256MiB"]
        + ["--cache.choose", "off"],
        binds=[model, (run, "/run/cairn", False)],
        **shared,
    )
    router = started(
        ["cairn-router", *local, "--http.listen", "127.0.0.1:0", "--model", "/models/model.gguf"]
        + ["--workers", worker.grpc, "--cache", node.grpc],
        binds=[model],
    )
    wait_until(lambda: healthy(router), 60, "a router that has its worker")
    text = "Why is the sky blue? " * 40
    chat(router, text)
    wait_until(
        lambda: chat(router, text)["usage"]["prompt_tokens_details"]["cached_tokens"] > 0,
        60,
        "the prompt comes from the node",
    )
    assert node.metric("cairn_local_bytes_total") > 0
    assert worker.terminate() == 0
    assert router.terminate() == 0
    assert node.terminate() == 0
    assert any(disk.rglob("*")), "the node wrote its blocks"
    assert {path.stat().st_uid for path in disk.rglob("*")} == {UID}


def test_a_node_reads_the_limit_of_its_container(image):
    """Its settings do not fit into the memory that the container has."""
    done = image.run(["cairn-cache", "--check-config", "--host.capacity", "4GiB"], memory=1 << 30)
    assert done.returncode == 2
    assert "host.capacity" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--base", "debian:12"], "--base: got debian:12, expected NAME@sha256:DIGEST"),
        (["--base", "debian@sha256:12"], "--base: got debian@sha256:12, expected NAME@sha256"),
    ],
)
def test_a_base_without_a_digest_is_refused(programs, tmp_path, arguments, said):
    done = build_image(programs, tmp_path, *arguments)
    assert done.returncode == 1
    assert said in done.stderr


def test_programs_that_do_not_know_their_revision_are_refused(tmp_path):
    folder = tmp_path / "bin"
    folder.mkdir()
    done = build_image(folder, tmp_path / "out")
    assert done.returncode == 1 and "expected a folder with cairn" in done.stderr
    for name in PROGRAMS:
        (folder / name).write_text(f"#!/bin/sh\necho '{name} 0.1.0 (unknown)'\n")
        (folder / name).chmod(0o755)
    done = build_image(folder, tmp_path / "out")
    assert done.returncode == 1 and "configure with -DCAIRN_REVISION=" in done.stderr
    (folder / "cairn").write_text("#!/bin/sh\necho 'cairn 0.1.0 (abc)'\n")
    done = build_image(folder, tmp_path / "out")
    assert done.returncode == 1 and "expected one: " in done.stderr


def test_the_default_list_is_one():
    if not DEFAULT_SECCOMP.exists():
        pytest.skip("buildah is not installed: `make image` installs it")
    listed = default_seccomp()
    assert listed["defaultAction"] == "SCMP_ACT_ERRNO"
    names = {name for rule in listed["syscalls"] for name in rule["names"]}
    assert {"read", "clone3", "memfd_create"} <= names
    assert not {"mount", "setns", "bpf", "kexec_load"} & {
        name
        for rule in listed["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
