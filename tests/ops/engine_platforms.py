"""Values and objects of deploy/kubernetes for llm-d, production-stack and KServe: which keys these
take, and the pods that they make of them.

Written down from the projects' schemas and templates, and no copies of them. A key that is not here
is wrong.
"""

import yaml

from engine_pods import FOLDER

ANY = None  # Kubernetes' own type: the pod that comes of it is validated.
# llm-d-incubation/llm-d-modelservice 3051935, chart 0.4.12: values.schema.json, and what
# templates/_helpers.tpl reads of `decode`, which the schema leaves open.
_ROLE = {
    "create": bool,
    "replicas": int,
    "extraConfig": ANY,
    "initContainers": ANY,
    "containers": [
        {
            "name": str,
            "image": str,
            "modelCommand": str,
            "args": [str],
            "env": ANY,
            "ports": ANY,
            "resources": ANY,
            "mountModelVolume": bool,
            "volumeMounts": ANY,
            "extraConfig": ANY,
        }
    ],
    "volumes": ANY,
    "terminationGracePeriodSeconds": int,
}
LLM_D = {
    "modelArtifacts": {
        "name": str,
        "uri": str,
        "size": str,
        "authSecretName": str,
        "labels": ANY,
        "mountPath": str,
        "readOnly": bool,
    },
    "routing": {"servicePort": int, "proxy": {"enabled": bool, "image": str, "targetPort": int}},
    "prefill": _ROLE,
    "decode": _ROLE,
}
# vllm-project/production-stack a6c01db, chart vllm-stack 0.1.12: values.schema.json and
# templates/deployment-vllm-multi.yaml.
PRODUCTION_STACK = {
    "servingEngineSpec": {
        "securityContext": ANY,
        "containerSecurityContext": ANY,
        "runtimeClassName": str,
        "modelSpec": [
            {
                "name": str,
                "repository": str,
                "tag": str,
                "modelURL": str,
                "replicaCount": int,
                "requestCPU": int,
                "requestMemory": str,
                "requestGPU": int,
                "initContainer": {
                    "name": str,
                    "image": str,
                    "command": [str],
                    "args": [str],
                    "env": ANY,
                    "resources": ANY,
                    "extraVolumeMounts": ANY,
                },
                "vllmConfig": {"enablePrefixCaching": bool, "extraArgs": [str]},
                "env": ANY,
                "extraVolumeMounts": ANY,
                "extraVolumes": ANY,
            }
        ],
    }
}
# kserve/kserve aaac4e2: config/crd/full. Both have a pod's own fields.
_META = {"apiVersion": str, "kind": str, "metadata": {"name": str, "annotations": ANY}}
_POD = {"securityContext": ANY, "initContainers": ANY, "containers": ANY, "volumes": ANY}
KSERVE_LLM = {
    **_META,
    "spec": {
        "model": {"name": str, "uri": str},
        "replicas": int,
        "router": {"route": {}, "gateway": {}, "scheduler": {}},
        "template": _POD,
    },
}
KSERVE_ISVC = {**_META, "spec": {"predictor": {"minReplicas": int, "maxReplicas": int, **_POD}}}


def wrong(value, accepted, path=""):
    """Keys that are not accepted, and values of another type."""
    if accepted is ANY:
        return []
    if isinstance(accepted, list) and isinstance(value, list):
        return [w for i, v in enumerate(value) for w in wrong(v, accepted[0], f"{path}[{i}]")]
    if isinstance(accepted, dict) and isinstance(value, dict):
        unknown = [f"{path}.{key}" for key in value if key not in accepted]
        known = [key for key in value if key in accepted]
        return unknown + [w for k in known for w in wrong(value[k], accepted[k], f"{path}.{k}")]
    return [] if type(value) is accepted else [f"{path}: {value!r}"]


def _llm_d_pod(values):
    """templates/decode-deployment.yaml, with modelCommand vllmServe."""
    decode = values["decode"]
    (given,) = decode["containers"]
    model, port = values["modelArtifacts"]["name"], str(values["routing"]["servicePort"])
    container = {k: given[k] for k in ("name", "image", "env", "ports", "volumeMounts")}
    container["command"] = ["vllm", "serve"]
    words = [model, "--port", port, "--served-model-name", model]
    container["args"] = [*words, *given["args"]]
    return {
        **decode["extraConfig"],
        "initContainers": decode["initContainers"],
        "containers": [{**container, **given["extraConfig"]}],
        "volumes": decode["volumes"],
    }


def _production_stack_pod(values):
    """templates/deployment-vllm-multi.yaml."""
    engines = values["servingEngineSpec"]
    (model,) = engines["modelSpec"]
    context = engines["containerSecurityContext"]
    init = {"securityContext": context, **model["initContainer"]}
    init["volumeMounts"] = init.pop("extraVolumeMounts")
    words = ["vllm", "serve", model["modelURL"], "--host", "0.0.0.0", "--port", "8000"]
    container = {
        "name": "vllm",
        "image": f"{model['repository']}:{model['tag']}",
        "command": [*words, "--enable-prefix-caching", *model["vllmConfig"]["extraArgs"]],
        "env": [{"name": "HF_HOME", "value": "/tmp"}, *model["env"]],
        "ports": [{"name": "container-port", "containerPort": 8000}],
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
        "securityContext": context,
        "volumeMounts": model["extraVolumeMounts"],
    }
    return {
        "securityContext": engines["securityContext"],
        "initContainers": [init],
        "containers": [container],
        "volumes": model["extraVolumes"],
    }


def _kserve_llm_pod(value):
    """The preset has the container `main`; it and this one are merged."""
    pod = value["spec"]["template"]
    (main,) = pod["containers"]
    preset = {"ports": [{"containerPort": 8000}]}
    return {**pod, "containers": [{**preset, **main}]}


def _kserve_isvc_pod(value):
    predictor = value["spec"]["predictor"]
    return {key: predictor[key] for key in _POD}


PLATFORMS = {
    "llm-d-values.yaml": (LLM_D, _llm_d_pod),
    "production-stack-values.yaml": (PRODUCTION_STACK, _production_stack_pod),
    "kserve-llm.yaml": (KSERVE_LLM, _kserve_llm_pod),
    "kserve-isvc.yaml": (KSERVE_ISVC, _kserve_isvc_pod),
}


def load(name):
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def pod(name):
    """The spec of the pod that the platform makes."""
    return PLATFORMS[name][1](load(name))
