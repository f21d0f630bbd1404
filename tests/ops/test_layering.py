"""The rules for includes: services meet only in the protocol and the client, and each library has
one place where it may be seen."""

import re

import pytest

from conftest import ROOT

# The floors, from the ground up, each with the beginnings of what others include from it. A file
# includes from its own floor and from those below; floors of one line do not know each other.
FLOORS = [
    {"kernels": ["kernels/", "cairn/kernels/"]},
    {"common": ["common/", "cairn/common/"]},
    {"protocol": ["protocol/", "cairn/v1/"]},
    {"clients": ["clients/", "cairn/client/"], "model": ["model/"]},
    {"services": ["services/"]},
    {"tools": ["tools/"]},
]
PRODUCT = [name for floor in FLOORS for name in floor]
# Folders of C++ that nothing of the product includes.
OUTSIDE = ["benchmarks", "examples", "tests"]
SERVICES = sorted(p.name for p in (ROOT / "services").iterdir() if p.is_dir())
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]')

# Folders of one floor, from the ground up: each includes only from those before it. A cycle between
# folders cannot be written down here.
ORDERS = {
    "kernels": ["include", "reference", "cpu", "cuda", "codecs", "slices", "selections"],
    "common": [
        "include",
        "status",
        "concurrency",
        "tenants",
        "memory",
        "hash",
        "log",
        "device",
        "link",
        "format",
        "recipe",
        "keys",
        "config",
        "lifecycle",
        "net",
        "auth",
        "http",
        "tracing",
        "metrics",
        "rpc",
        "membership",
        "service",
    ],
    "protocol": ["shm", "wire", "frames", "link"],
    "clients/cpp": ["include", "src", "testing"],
    "clients/cpp/src": ["core", "device", "local", "grpc"],
    "kernels/cpu": ["codec", "selection", "reading"],
    "kernels/selections": ["stages", "methods"],
    # The store serves without the other two wings, which stand on it.
    "services/cache": ["store", "cluster", "serve"],
    "services/cache/store": [
        "tier",
        "source",
        "block",
        "placement",
        "index",
        "state",
        "lease",
        "mover",
        "engine",
    ],
    "services/cache/cluster": ["directory", "peer", "link", "members"],
    "services/cache/serve": ["local", "events", "rpc", "node"],
    "services/worker": ["kv", "compute", "scheduling", "session", "engine", "methods", "rpc"],
    "services/worker/methods": ["calibration", "selections", "reading", "turned"],
    "services/router": [
        "index",
        "policy",
        "registry",
        "events",
        "engine",
        "relay",
        "http",
        "picker",
        "rpc",
    ],
    "tools/cairn": [
        "output",
        "process",
        "doctor",
        "generator",
        "bench",
        "demo",
        "fidelity",
        "size",
        "cluster",
        "replay",
        "launch",
        "report",
        "top",
        "commands",
    ],
}
# The wing for methods. Nobody outside includes it: what it gives comes through doors, which lie
# with the worker, and through the names of selections, which recipes have.
METHODS = ["services/worker/methods/", "kernels/selections/", "tools/cairn/fidelity/"]
METHOD_NAMES = "kernels/selections/registry.h"
DOORS = [
    "services/worker/engine/prompt_way.h",
    "services/worker/compute/decode_reader.h",
    "services/worker/engine/recipe_stage.h",
]
# Public headers, by the beginning of their names: the folder that is installed, where they lie.
PUBLIC = {"cairn/client/": "clients/cpp/include/", "cairn/common/": "common/include/"}
# Headers that are included without the folders above them: the public ones, and the kernels'.
SHORT_NAMES = {**PUBLIC, "cairn/kernels/": "kernels/include/"}
# Libraries of others that public headers may include: CairnConfig.cmake finds them for users.
PUBLIC_LIBRARIES = ["absl/", "fmt/"]
# Folders that know gRPC, protobuf, RocksDB and the like: a core includes neither these libraries
# nor these folders.
EDGES = [
    "services/cache/serve/rpc/",
    "services/cache/serve/node/",
    "services/cache/main.cc",
    "services/cache/store/tier/disk/",
    "services/worker/rpc/",
    "services/worker/main.cc",
    "services/router/http/",
    "services/router/picker/",
    "services/router/relay/",
    "services/router/rpc/",
    "services/router/main.cc",
]
EDGE_ONLY = [
    "services/cache/serve/rpc/",
    "services/cache/serve/node/",
    "services/cache/store/tier/disk/",
    "services/worker/rpc/",
    "services/router/rpc/",
    "protocol/wire/",
    "protocol/frames/",
    "protocol/link/",
    "cairn/v1/",
    "common/http/",
    "common/metrics/",
    "common/rpc/",
    "common/service/",
    "common/net/credentials.h",
]
# A library, by the beginning of its headers' names, and the paths that may include them.
LIBRARIES = {
    r"grpc": [
        "services/cache/serve/rpc/",
        "common/membership/etcd/etcd_client.cc",
        "common/net/credentials.",
        "common/rpc/",
        "services/router/picker/process_stream.",
        "services/router/rpc/",
        "clients/cpp/src/grpc/",
        "protocol/frames/",
        "protocol/link/",
        "tools/cairn/generator/remote_",
    ],
    r"google/protobuf/|cairn/v1/": [
        "common/rpc/",
        "services/cache/serve/rpc/",
        "services/worker/rpc/",
        "services/router/rpc/",
        "clients/cpp/src/grpc/",
        "protocol/wire/",
        "protocol/frames/",
        "protocol/link/",
        "tools/cairn/generator/remote_",
        "tools/cairn/generator/summary_proto.",
    ],
    r"envoy/": ["services/router/picker/messages.h"],
    r"etcd/v3/": ["common/membership/etcd/etcd_client.cc"],
    r"zmq": [
        "services/cache/serve/events/zmq/zmq_publisher.cc",
        "services/router/events/zmq/zmq_follower.cc",
    ],
    r"ares.h": ["common/membership/cares_resolver.cc"],
    r"rocksdb/": ["services/cache/store/tier/disk/"],
    r"prometheus/": ["common/metrics/metrics.cc"],
    r"nlohmann/": [
        "common/log/log.cc",
        "common/membership/etcd/member_record.cc",
        "common/tracing/otlp.cc",
        "services/router/http/api_answer.cc",
        "services/router/http/api_error.cc",
        "services/router/http/api_request.cc",
        "services/router/http/json_fields.",
        "services/router/http/relay_request.cc",
        "services/router/relay/answer_relay.cc",
        "services/router/relay/answer_usage.cc",
        "services/router/relay/model_list.cc",
        "services/router/relay/prompt_reader.cc",
        "tools/cairn/output/json.h",
    ],
    r"yaml-cpp/": ["common/config/yaml"],
    r"xxhash": ["common/hash/", "common/memory/", "kernels/slices/"],
    r"openssl/": ["common/hash/hash.cc", "common/http/transport.cc", "common/net/tls.cc"],
    r"boost/": [
        "common/http/client.cc",
        "common/http/client_connection.",
        "common/http/connection.",
        "common/http/request_parser.cc",
        "common/http/response_parser.cc",
        "common/http/server.cc",
        "common/http/transport.",
    ],
    r"nanobind/": [
        f"clients/python/src/{name}."
        for name in (
            "arguments",
            "calls",
            "cluster_calls",
            "memory",
            "module",
            "page_moves",
            "part_source",
            "reading",
        )
    ],
    r"cuda(\.h|_runtime|Typedefs)": [
        "common/device/cuda/",
        "kernels/cuda/forward_table.cu",
        "kernels/cuda/gpu_launcher.cuh",
    ],
    r"pcre2": ["model/pre_tokenizer.cc"],
    r"CLI/": ["tools/cairn/app.cc", "tools/cairn/commands/"],
}


def includes():
    """(path, line, included name) of every include in the product's sources."""
    for folder in PRODUCT:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc", ".cuh", ".cu"):
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


@pytest.mark.parametrize("floor", PRODUCT)
def test_floors_use_only_what_is_below_them(floor):
    level = next(n for n, names in enumerate(FLOORS) if floor in names)
    above = [
        beginning
        for n, names in enumerate(FLOORS)
        for name, beginnings in names.items()
        if n >= level and name != floor
        for beginning in beginnings
    ]
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith(floor + "/") and starts(name, above)
    ]
    assert not wrong, "\n".join(wrong)


def test_each_rule_names_what_is_really_included():
    """A beginning that nobody writes so forbids nothing."""
    beginnings = [b for floor in FLOORS for names in floor.values() for b in names]
    # Nothing is above the tools: they are included among themselves.
    unused = [b for b in beginnings + EDGE_ONLY if not any(n.startswith(b) for _, _, n in INCLUDES)]
    assert not unused, unused


def test_every_source_stands_on_a_floor():
    folders = {path.relative_to(ROOT).parts[0] for path in ROOT.glob("*/**/*.cc")}
    unknown = folders - set(PRODUCT) - set(OUTSIDE) - {"build"}
    assert not unknown, unknown


def test_the_product_includes_nothing_from_outside():
    outside = [f"{folder}/" for folder in OUTSIDE]
    wrong = [f"{path}:{line}: {name}" for path, line, name in INCLUDES if starts(name, outside)]
    assert not wrong, "\n".join(wrong)


def test_each_service_has_an_order():
    missing = [service for service in SERVICES if f"services/{service}" not in ORDERS]
    assert not missing, missing


def test_public_headers_have_one_name():
    """The rules know them by their short names alone."""
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if starts(name, list(SHORT_NAMES.values()))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("service", [f"services/{s}" for s in SERVICES])
def test_services_never_include_each_other(service):
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith(service + "/")
        and name.startswith("services/")
        and not name.startswith(service + "/")
    ]
    assert not wrong, "\n".join(wrong)


def path_of(name, folders=None):
    """Where a header lies that is included without the folders above it."""
    for beginning, folder in (folders or SHORT_NAMES).items():
        if name.startswith(beginning):
            return folder + name
    return None


def folder_below(parent, path):
    """The folder of `path` right below `parent`; None for files of `parent` itself and others."""
    if not path.startswith(parent + "/"):
        return None
    rest = path[len(parent) + 1 :].split("/")
    return rest[0] if len(rest) > 1 else None


@pytest.mark.parametrize("parent", ORDERS)
def test_folders_stand_in_their_order(parent):
    order = ORDERS[parent]
    wrong = []
    for path, line, name in INCLUDES:
        name = path_of(name) or name
        here, there = folder_below(parent, path), folder_below(parent, name)
        if here is None or there is None:
            continue
        for folder in (here, there):
            assert folder in order, f"{parent}/{folder} has no place in ORDERS"
        if order.index(there) > order.index(here):
            wrong.append(f"{path}:{line}: {name}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("parent", ORDERS)
def test_each_folder_of_an_order_exists(parent):
    missing = [f for f in ORDERS[parent] if not (ROOT / parent / f).is_dir()]
    assert not missing, missing


def test_methods_are_included_by_methods_only():
    """The rest builds without them (CAIRN_METHODS=OFF)."""
    # A command of the CLI is a file, which the build leaves out with what it runs.
    command = "tools/cairn/commands/fidelity.cc"
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if starts(name, METHODS)
        and name != METHOD_NAMES
        and not starts(path, METHODS)
        and path != command
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("door", DOORS)
def test_each_door_is_used_from_both_sides(door):
    sides = {starts(path, METHODS) for path, _, name in INCLUDES if name == door}
    assert sides == {True, False}, f"{door}: included from {len(sides)} sides, expected 2"


def test_cores_do_not_see_the_edges():
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith("services/") and not starts(path, EDGES) and starts(name, EDGE_ONLY)
    ]
    assert not wrong, "\n".join(wrong)


def test_public_headers_of_the_client_know_no_transport():
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if path.startswith("clients/cpp/include/")
        and starts(name, ["clients/cpp/", "protocol/", "cairn/v1/"])
    ]
    assert not wrong, "\n".join(wrong)


def is_public(name):
    """True for the name of a header that users of an installation can include."""
    where = path_of(name, PUBLIC)
    return where is not None and (ROOT / where).is_file()


def test_public_headers_include_only_what_is_installed():
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if starts(path, list(PUBLIC.values()))
        and not is_public(name)
        # The standard library's names have neither a folder nor an ending.
        and re.search(r"[/.]", name)
        and not starts(name, PUBLIC_LIBRARIES)
    ]
    assert not wrong, "\n".join(wrong)


def test_folders_of_public_headers_have_only_those():
    """Everything in such a folder is installed, under a name that does not collide with others."""
    beginnings = {folder + beginning for beginning, folder in PUBLIC.items()}
    wrong = [
        path.relative_to(ROOT).as_posix()
        for folder in PUBLIC.values()
        for path in (ROOT / folder).rglob("*.*")
        if not starts(path.relative_to(ROOT).as_posix(), beginnings)
    ]
    assert not wrong, wrong


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_is_seen_in_its_place_only(library):
    wrong = [
        f"{path}:{line}: {name}"
        for path, line, name in INCLUDES
        if re.match(library, name) and not starts(path, LIBRARIES[library])
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_each_place_of_a_library_includes_it(library):
    """A place that does not is a permission that nobody needs."""
    users = [path for path, _, name in INCLUDES if re.match(library, name)]
    unused = [p for p in LIBRARIES[library] if not any(path.startswith(p) for path in users)]
    assert not unused, unused


def test_each_edge_exists():
    paths = {path for path, _, _ in INCLUDES}
    missing = [edge for edge in EDGES if not any(path.startswith(edge) for path in paths)]
    assert not missing, missing


def test_the_client_takes_its_time_from_a_clock():
    """So that tests can move it. gRPC waits by the system's clock, which one file translates."""
    now = re.compile(r"(steady|system)_clock::now\(\)")
    wrong = [
        path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "clients/cpp/src").rglob("*.*"))
        if now.search(path.read_text(encoding="utf-8")) and path.name != "channel.cc"
    ]
    assert not wrong, wrong
