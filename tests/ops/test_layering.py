"""Who may include what: services meet only in the protocol and the client, and each library has one place where it may be seen."""

import pathlib
import re

import pytest

from conftest import ROOT

PRODUCT = ["kernels", "services", "clients", "tools"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')

# Our own folders, as includes name them: what a folder must not use.
FORBIDDEN = {
    "kernels": ["services/", "clients/", "cairn/client/", "cairn/v1/", "tools/"],
    "services/common": [
        "services/cache/",
        "services/worker/",
        "clients/",
        "cairn/client/",
        "cairn/v1/",
        "cairn/kernels/",
        "tools/",
    ],
    "services/cache": ["services/worker/", "cairn/client/", "cairn/kernels/", "tools/"],
    "services/worker": ["services/cache/", "tools/"],
    "clients": ["services/cache/", "services/worker/", "cairn/kernels/", "tools/"],
}
# Inside a service, what is not its edge uses neither the edge nor what only the edge may see.
EDGES = [
    "services/cache/rpc/",
    "services/cache/main.cc",
    "services/cache/tier/disk/",
    "services/worker/rpc/",
    "services/worker/main.cc",
]
EDGE_ONLY = [
    "services/cache/rpc/",
    "services/cache/tier/disk/",
    "services/worker/rpc/",
    "clients/cpp/wire/",
    "cairn/v1/",
    "services/common/metrics/",
    "services/common/net/credentials.h",
]
# A library, by the beginning of its headers' names, and the paths that may include them.
LIBRARIES = {
    r"grpc": [
        "services/cache/rpc/",
        "services/worker/rpc/",
        "services/common/net/credentials.",
        "clients/cpp/src/",
        "clients/cpp/wire/",
        "tools/cairn/generator/remote_",
        "tools/cairn/generator/summary_proto.",
    ],
    r"google/protobuf/|cairn/v1/": [
        "services/cache/rpc/",
        "services/worker/rpc/",
        "clients/cpp/src/",
        "clients/cpp/wire/",
        "tools/cairn/generator/remote_",
        "tools/cairn/generator/summary_proto.",
    ],
    r"rocksdb/": ["services/cache/tier/disk/"],
    r"prometheus/": ["services/common/metrics/metrics.cc"],
    r"civetweb": ["services/common/metrics/admin_server.cc"],
    r"spdlog/": ["services/common/log/log.cc"],
    r"nlohmann/": ["services/common/log/log.cc", "tools/cairn/output/json.h"],
    r"yaml-cpp/": ["services/common/config/yaml.cc"],
    r"xxhash": ["services/common/hash/", "services/common/memory/"],
    r"openssl/": ["services/common/hash/hash.cc", "services/common/net/tls.cc"],
    r"nanobind/": [
        f"clients/python/src/{name}."
        for name in ("arguments", "calls", "memory", "module", "part_source", "reading")
    ],
    r"pcre2": ["services/worker/model/pre_tokenizer.cc"],
    r"CLI/": ["tools/cairn/app.cc"],
}


def includes():
    """(path, line, included name) of every include in the product's sources."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                found = INCLUDE.match(line)
                if found:
                    yield path.relative_to(ROOT).as_posix(), number, found[1]


INCLUDES = list(includes())


def starts(text, beginnings):
    return any(text.startswith(beginning) for beginning in beginnings)


def test_something_is_read():
    assert len(INCLUDES) > 1000


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_folders_use_only_what_is_below_them(folder):
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith(folder + "/")
        and starts(name, FORBIDDEN[folder])
        # The wire's conversions are shared by both ends.
        and not (
            folder == "clients"
            and path.startswith("clients/cpp/wire/")
            and name.startswith("cairn/v1/")
        )
    ]
    assert not wrong, "\n".join(wrong)


def test_cores_do_not_see_the_edges():
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if starts(path, ["services/cache/", "services/worker/"])
        and not starts(path, EDGES)
        and starts(name, EDGE_ONLY)
    ]
    assert not wrong, "\n".join(wrong)


def test_public_headers_of_the_client_know_no_transport():
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith("clients/cpp/include/") and starts(name, ["clients/cpp/", "cairn/v1/"])
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_seen_in_its_place_only(library):
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if re.match(library, name) and not starts(path, LIBRARIES[library])
    ]
    assert not wrong, "\n".join(wrong)


def test_each_place_of_a_library_exists():
    for places in LIBRARIES.values():
        for place in places:
            folder, _, beginning = place.rpartition("/")
            assert any(
                p.name.startswith(beginning) for p in pathlib.Path(ROOT / folder).iterdir()
            ), place
