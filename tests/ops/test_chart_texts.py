"""A text of the values is only ever that text: whatever it looks like, the objects are those of a
plain one, but for the text itself."""

import json
import re

import pytest
import yaml

from conftest import ROOT
from rendered_chart import GATEWAY, VALUES, merged, render

# Each is something else to YAML, to templates or to shells; together they are one bad text.
HOSTILE = [
    "x\": {{ .Values.tls }}' # \\ $(id) ${HOME}, optional: true\n- a: &b *c !d %e @f `g`\n  h: >-",
    "x, optional: true",
    "1e3",
    "0755",
    "null",
    "yes",
    "2024-11-29",
    "1:30",
    # Where spaces, colons, slashes, quotes or braces may not be.
    "x{{.Values.tls}}'#$(id)",
    "x#$(id)*&!|>%@`",
]
PLAIN = ["plain", "plain/text", "dns:plain:7400", "http://plain"]
WHOLE = merged(
    merged(VALUES["everything"], VALUES["settings"]),
    {
        "tls": {"secrets": {"cache": "c"}},
        "cache": {"device": {"enabled": True}},
        "worker": {"readPolicy": "precision:rows=0.02"},
        "router": {
            "picker": {"enabled": False},
            "http": {"route": {"enabled": True, "parentRefs": [{"name": "g"}]}},
            "callers": GATEWAY,
        },
        "podMonitor": {"enabled": True},
    },
)
# What an object needs in addition to its text.
CONTAINER = {"name": "side", "image": "x"}
SIBLINGS = {
    "extraEnv": {"name": "A"},
    "extraVolumes": {"name": "more", "emptyDir": {}},
    "extraVolumeMounts": {"name": "more", "mountPath": "/more"},
    "extraContainers": CONTAINER,
    "extraInitContainers": CONTAINER,
    "ipBlock": {"cidr": "10.0.0.0/8"},
    "rules": {"identity": "cn:a", "role": "reader", "tenants": ["a"]},
    "limits": {"tenants": ["a"], "memory": "1GiB"},
    "parentRefs": {"name": "gateway"},
}
# A text in the form that its value has.
FORMS = {
    "mountPath": "/{}",
    "model.path": "{}.gguf",
    "keda.prometheus": "http://{}",
    "corsOrigins": "https://{}",
    "router.cacheAddress": "{}:7400",
    "router.engines.events": "http://{}=tcp://{}:1",
    "runbookUrl": "https://{}",
    "alerts.selector": 'a="{}"',
    "uriPrefix": "spiffe://{}",
    "auth.rules.identity": "uri:{}",
}
MANAGER = {
    "existingSecret": "",
    "secrets": {"cache": "", "worker": "", "router": ""},
    "certManager": {"enabled": True, "issuerRef": {"name": "ca"}},
}
KEDA = {"autoscaling": {"enabled": True, "keda": {"prometheus": "http://prometheus"}}}
# Other values that a value needs to be looked at.
MORE = {
    "auth.rules.identity": {"tls": {"adminIdentities": []}},
    "auth.rules.tenants": {"tls": {"adminIdentities": []}},
    "auth.limits.tenants": {
        "tls": {"adminIdentities": []},
        "auth": {"rules": [{"identity": "cn:a", "role": "reader", "tenants": ["a"]}]},
    },
    "worker.cacheAddress": {"router": {"cacheAddress": "none"}},
    "router.http.tenantHeader": {"router": {"http": {"apiKeysSecret": ""}}},
    "router.autoscaling.keda.prometheus": {"router": KEDA},
    "router.autoscaling.keda.query": {"router": KEDA},
    "worker.autoscaling.keda.prometheus": {"worker": KEDA},
    "worker.autoscaling.keda.query": {"worker": KEDA},
    **{
        f"tls.certManager.{key}": {"tls": MANAGER}
        for key in ("issuerRef.name", "issuerRef.kind", "issuerRef.group", "uriPrefix")
    },
}
NO_TEXT = "its form has room for digits and units only"
UNTRIED = {
    "image.digest": NO_TEXT,
    "tls.certManager.duration": NO_TEXT,
    "tls.certManager.renewBefore": NO_TEXT,
    "cache.disk.flushAfter": NO_TEXT,
    "cache.cpu": NO_TEXT,
    "router.cpu": NO_TEXT,
    "router.maxWait": NO_TEXT,
    "connection.settings.save_buffer": NO_TEXT,
    "podMonitor.interval": NO_TEXT,
    **{
        f"auth.limits.{size}": NO_TEXT
        for size in (
            *("memory", "guaranteed_memory", "disk", "guaranteed_disk"),
            "bytes_per_second",
        )
    },
    "router.engines.events": "its beginning must be one of router.workers: test_chart_router.py",
}


def leaves(schema, defs, path=()):
    """(path, schema) of each text; items of lists have the key 0."""
    if "$ref" in schema:
        schema = {**defs[schema["$ref"].rsplit("/", 1)[1]], **schema}
    if schema.get("type") == "string":
        yield path, schema
    if schema.get("type") == "array":
        yield from leaves(schema["items"], defs, (*path, 0))
    for key, inner in schema.get("properties", {}).items():
        yield from leaves(inner, defs, (*path, key))
    if isinstance(schema.get("additionalProperties"), dict) and "groups" not in path:
        yield from leaves(schema["additionalProperties"], defs, (*path, "key"))


def nested(path, value):
    for key in reversed(path):
        if isinstance(value, dict):
            value = {**SIBLINGS.get(key, {}), **value}
        elif key != 0 and isinstance(value, list) and isinstance(value[0], dict):
            value = [{**SIBLINGS.get(key, {}), **value[0]}]
        value = [value] if key == 0 else {key: value}
    return value


def fits(schema, text):
    if len(text) > schema.get("maxLength", 4096) or len(text) < schema.get("minLength", 0):
        return False
    return re.search(schema.get("pattern", ""), text) and not (
        "not" in schema and re.search(schema["not"]["pattern"], text)
    )


def readable(doc):
    """Without what is computed from texts, and with files as their programs read them."""
    for name, text in (doc.get("data") or {}).items() if doc["kind"] == "ConfigMap" else ():
        if name.endswith(".yaml"):
            doc["data"][name] = yaml.safe_load(text)
        if name.endswith(".json"):
            doc["data"][name] = json.loads(text)
    template = doc.get("spec", {}).get("template")
    if isinstance(template, dict):
        notes = template["metadata"].get("annotations", {})
        for key in [k for k in notes if k.startswith("checksum/")]:
            del notes[key]
    return doc


def replaced(value, old, new):
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, list):
        return [replaced(v, old, new) for v in value]
    if isinstance(value, dict):
        return {replaced(k, old, new): replaced(v, old, new) for k, v in value.items()}
    return value


def objects(chart, values):
    return [readable(doc) for doc in render(chart, merged(WHOLE, values))]


SCHEMA = json.loads((ROOT / "helm/cairn/values.schema.json").read_text(encoding="utf-8"))
OWNED = yaml.safe_load((ROOT / "helm/cairn/files/owned-settings.yaml").read_text())
LEAVES = list(leaves(SCHEMA, SCHEMA["$defs"]))
VALUES_OF_CHART = [(path, schema) for path, schema in LEAVES if "config" not in path]


def test_there_are_texts_to_try():
    assert len(VALUES_OF_CHART) > 100 and len(LEAVES) > 180


@pytest.mark.parametrize("part", sorted({path[0] for path, _ in VALUES_OF_CHART}))
def test_texts_stay_texts(chart, part):
    untried = set()
    for path, schema in VALUES_OF_CHART:
        if path[0] != part:
            continue
        name = ".".join(str(key) for key in path if key != 0)
        form = next((form for end, form in FORMS.items() if name.endswith(end)), "{}")
        plain, texts = (
            [form.replace("{}", t) for t in some if fits(schema, form.replace("{}", t))]
            for some in (PLAIN, HOSTILE)
        )
        if not plain or not texts or name in UNTRIED:
            untried.add(name)
            continue
        more = MORE.get(name, {})
        # Those at the ends: the one of everything, where it fits, and one without spaces.
        texts = [texts[0], texts[-1]]
        expected, *found = [
            objects(chart, merged(more, nested(path, text))) for text in [plain[0], *texts]
        ]
        for text, docs in zip(texts, found, strict=True):
            assert replaced(docs, text, plain[0]) == expected, f"{name}: {text!r}"
    assert untried == {name for name in UNTRIED if name.split(".")[0] == part}


@pytest.mark.parametrize("role", ["cache", "worker", "router"])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_texts_of_settings_stay_texts(chart, role, which):
    """All settings of a program at once; they do not change each other."""
    wanted = {}
    for path, schema in LEAVES:
        if path[:2] != (role, "config") or "pattern" in schema:
            continue
        if ".".join(str(key) for key in path[2:] if key != 0) not in OWNED[role]:
            wanted[path] = [t for t in HOSTILE if fits(schema, t)][which]
    assert len(wanted) > 10
    values = {}
    for path, text in wanted.items():
        values = merged(values, nested(path, text))
    (config,) = [
        doc["data"][f"{role}.yaml"]
        for doc in objects(chart, values)
        if doc["kind"] == "ConfigMap" and f"{role}.yaml" in doc["data"]
    ]
    for path, text in wanted.items():
        found = config
        for key in path[2:]:
            found = found[key]
        assert found == text, path
