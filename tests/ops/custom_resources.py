"""Schemas of the custom resources that the chart makes: the keys that it uses, as the projects'
references have them. Strict: a key that is not here is wrong."""

import functools

import jsonschema
import kubernetes_validate

# It reads its schemas again for each object, which takes half of the time.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents
)

TEXT = {"type": "string", "minLength": 1}
NAME = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", "maxLength": 253}
LABELS = {"type": "object", "additionalProperties": {"type": "string"}}
PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
DURATION = {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}


def _object(required=(), **properties):
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(required),
        "properties": properties,
    }


def _list(items, least=0):
    return {"type": "array", "items": items, "minItems": least}


_SELECTOR = _object(["matchLabels"], matchLabels={**LABELS, "minProperties": 1})
_ENDPOINT = _object(["port"], port=TEXT, path=TEXT, interval=DURATION)
_RULE = _object(
    ["alert", "expr"],
    alert=TEXT,
    expr=TEXT,
    labels=LABELS,
    annotations=LABELS,
    **{"for": DURATION},
)
_POLICY = _object(
    ["type", "value", "periodSeconds"],
    type={"enum": ["Pods", "Percent"]},
    value={"type": "integer", "minimum": 1},
    periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
)
_SCALING = _object(
    scaleDown=_object(
        stabilizationWindowSeconds={"type": "integer", "minimum": 0, "maximum": 3600},
        policies=_list(_POLICY, 1),
    )
)
_TRIGGER = _object(
    ["type", "metadata"],
    type={"const": "prometheus"},
    # KEDA takes texts only.
    metadata=_object(
        ["serverAddress", "query", "threshold"], serverAddress=TEXT, query=TEXT, threshold=TEXT
    ),
)
_BACKEND = _object(["name"], group={"type": "string"}, kind=TEXT, name=NAME, port=PORT)
_PARENT = _object(["name"], name=NAME, namespace=NAME, sectionName=NAME, port=PORT)
SPECS = {
    ("monitoring.coreos.com/v1", "PodMonitor"): _object(
        ["selector", "podMetricsEndpoints"],
        jobLabel=TEXT,
        podTargetLabels=_list(TEXT),
        selector=_SELECTOR,
        podMetricsEndpoints=_list(_ENDPOINT, 1),
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): _object(
        ["groups"], groups=_list(_object(["name", "rules"], name=TEXT, rules=_list(_RULE, 1)), 1)
    ),
    ("cert-manager.io/v1", "Certificate"): _object(
        ["secretName", "issuerRef", "dnsNames"],
        secretName=NAME,
        issuerRef=_object(["name"], name=NAME, kind=TEXT, group={"type": "string"}),
        duration=DURATION,
        renewBefore=DURATION,
        privateKey=_object(
            algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
            size={"type": "integer"},
            rotationPolicy={"enum": ["Never", "Always"]},
        ),
        usages=_list({"enum": ["digital signature", "server auth", "client auth"]}),
        dnsNames=_list(
            {"type": "string", "pattern": "^([*][.])?[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"}, 1
        ),
        uris=_list({"type": "string", "pattern": "^[a-z][a-z0-9+.-]*://"}),
    ),
    ("keda.sh/v1alpha1", "ScaledObject"): _object(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=_object(["name"], apiVersion=TEXT, kind=TEXT, name=NAME),
        minReplicaCount={"type": "integer", "minimum": 0},
        maxReplicaCount={"type": "integer", "minimum": 1},
        advanced=_object(horizontalPodAutoscalerConfig=_object(behavior=_SCALING)),
        triggers=_list(_TRIGGER, 1),
    ),
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): _object(
        ["parentRefs", "rules"],
        parentRefs=_list(_PARENT, 1),
        hostnames=_list(TEXT),
        rules=_list(
            _object(
                matches=_list(_object(path=_object(type={"const": "PathPrefix"}, value=TEXT))),
                timeouts=_object(request=DURATION),
                backendRefs=_list(_BACKEND, 1),
            ),
            1,
        ),
    ),
    ("inference.networking.k8s.io/v1", "InferencePool"): _object(
        ["selector", "targetPorts", "endpointPickerRef"],
        selector=_SELECTOR,
        targetPorts={**_list(_object(["number"], number=PORT), 1), "maxItems": 8},
        endpointPickerRef=_object(
            ["name"],
            kind=TEXT,
            name=NAME,
            port=_object(["number"], number=PORT),
            failureMode={"enum": ["FailOpen", "FailClose"]},
        ),
    ),
}


def validate(doc, version):
    """Raises what says why Kubernetes of this version, or the resource's owner, would refuse it."""
    spec = SPECS.get((doc["apiVersion"], doc["kind"]))
    if spec is None:
        kubernetes_validate.validate(doc, version, strict=True)
        return
    metadata = _object(["name"], name=NAME, labels=LABELS, annotations=LABELS)
    whole = _object(["metadata", "spec"], apiVersion=TEXT, kind=TEXT, metadata=metadata, spec=spec)
    jsonschema.validate(doc, whole)
