"""Random values that the chart's schema allows."""

import copy
import json
import random
import re
import re._parser as parser  # The only reader of patterns that gives a tree.


# Texts that YAML and templates may take for something else.
HOSTILE = [
    "plain",
    "x, optional: true",
    "a: b",
    "{{ .Values.x }}",
    "# no comment",
    "'",
    '"',
    "yes",
    "null",
    "1e3",
    "- a",
    "ü",
    "a\nb: c",
    " ",
]
# What the schema leaves to Kubernetes.
EXAMPLES = {
    "peers": [[], [{"podSelector": {"matchLabels": {"a": "b"}}}], [{"ipBlock": {"cidr": "::/0"}}]],
    "volumes": [[], [{"name": "more", "emptyDir": {}}]],
    "volumeMounts": [[], [{"name": "sockets", "mountPath": "/more", "readOnly": True}]],
    "env": [[], [{"name": "A", "value": "x: y"}]],
    "metrics": [[]],
    "containers": [[], [{"name": "side", "image": "x: y"}]],
    "parentRef": [{"name": "gateway"}, {"name": "g", "namespace": "ingress", "port": 443}],
    "pullSecrets": [[], ["pull"], [{"name": "pull"}, "other"]],
    "groups": [
        {},
        {},
        {"prefill": {"replicas": 2, "config": {"role": "prefill"}}, "decode": {"threads": 8}},
    ],
    "affinity": [{}, {"podAntiAffinity": {}}],
    "extraObjects": [
        [],
        [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "b"}}],
    ],
}
ANY = [chr(c) for c in range(33, 127)]


class Values:
    """`schema`: of the chart, whose defaults fill what a set leaves out."""

    def __init__(self, schema, seed):
        self._schema = schema
        self._random = random.Random(seed)

    def make(self):
        values = self._object(self._schema, "", few=True)
        values["tls"] = self._random.choice(
            [
                {"existingSecret": "cairn-tls"},
                {"existingSecret": "cairn-tls", "secrets": {"worker": "w"}},
                {"acceptPlaintextOnTheNetwork": True},
                {"certManager": {"enabled": True, "issuerRef": {"name": "ca"}}},
            ]
        )
        if "acceptPlaintextOnTheNetwork" in values["tls"]:
            values.get("cache", {}).get("cluster", {}).pop("peerIdentities", None)
            values.pop("auth", None)
        if auth := values.get("auth"):
            limits = {
                "tenants": ["a-*"],
                "memory": "4GiB",
                "guaranteed_memory": "1GiB",
                "sessions": 9,
            }
            auth["limits"] = [limits] * self._random.randrange(3) if auth.get("rules") else []
        # Without one nothing is installed, which tests of its own say.
        if values.get("image", {}).get("repository") == "":
            del values["image"]["repository"]
        return values

    def _make(self, schema, name):
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[1]
            merged = {**self._schema["$defs"][name], **schema}
            merged.pop("$ref")
            return self._make(merged, name)
        if name in EXAMPLES:
            return copy.deepcopy(self._random.choice(EXAMPLES[name]))
        if "enum" in schema:
            return self._random.choice(schema["enum"])
        return getattr(self, f"_{schema['type']}")(schema, name)

    def _boolean(self, _schema, _name):
        return self._random.random() < 0.5

    def _integer(self, schema, _name):
        low, high = schema.get("minimum", 0), schema.get("maximum", 1000)
        return self._random.choice([low, high, min(high, low + 1), min(high, max(low, 2))])

    def _number(self, schema, _name):
        return self._random.uniform(schema["minimum"], schema["maximum"])

    def _array(self, schema, name):
        made = [self._make(schema["items"], name) for _ in range(self._random.randrange(3))]
        for item in made:  # No defaults are below them.
            for key in schema["items"].get("required", []):
                item.setdefault(key, self._make(schema["items"]["properties"][key], key))
        if schema.get("uniqueItems"):
            return list({str(item): item for item in made}.values())
        return made

    def _object(self, schema, name, few=False):
        if "properties" not in schema:
            if not isinstance(schema.get("additionalProperties"), dict):
                return {}
            return {
                f"example.org/{key}": self._make(schema["additionalProperties"], name)
                for key in ["a", "b"][: self._random.randrange(3)]
            }
        wanted = [p for p in schema["properties"] if self._random.random() < (0.6 if few else 0.3)]
        return {key: self._make(schema["properties"][key], key) for key in wanted}

    def _string(self, schema, _name):
        least, most = schema.get("minLength", 0), schema.get("maxLength", 1000)
        if "pattern" not in schema:
            fitting = [t for t in [*HOSTILE, ""] if least <= len(t) <= most]
            return self._random.choice(fitting)
        while True:
            text = "".join(self._sequence(parser.parse(schema["pattern"])))
            forbidden = schema.get("not", {}).get("pattern")
            if least <= len(text) <= most and not (forbidden and re.search(forbidden, text)):
                return text

    def _sequence(self, items):
        for kind, value in items:
            name = str(kind)
            if name == "LITERAL":
                yield chr(value)
            elif name == "NOT_LITERAL":
                yield self._random.choice([c for c in ANY if ord(c) != value])
            elif name == "ANY":
                yield self._random.choice(ANY)
            elif name == "IN":
                yield self._random.choice(self._members(value))
            elif name in ("MAX_REPEAT", "MIN_REPEAT"):
                low, high, inner = value
                for _ in range(self._random.randint(low, min(int(high), low + 3))):
                    yield from self._sequence(inner)
            elif name == "SUBPATTERN":
                yield from self._sequence(value[-1])
            elif name == "BRANCH":
                yield from self._sequence(self._random.choice(value[1]))
            elif name != "AT":
                raise NotImplementedError(name)

    @staticmethod
    def _members(items):
        chosen, negated = set(), False
        for kind, value in items:
            if str(kind) == "NEGATE":
                negated = True
            elif str(kind) == "LITERAL":
                chosen.add(chr(value))
            elif str(kind) == "RANGE":
                chosen.update(chr(c) for c in range(value[0], value[1] + 1))
        return [c for c in ANY if c not in chosen] if negated else sorted(chosen)


def load(root, seed):
    text = (root / "helm/cairn/values.schema.json").read_text(encoding="utf-8")
    return Values(json.loads(text), seed)
