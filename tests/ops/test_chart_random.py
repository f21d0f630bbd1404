"""Random values that the schema allows render to valid objects, or are refused with a reason.

CAIRN_CHART_SEED and CAIRN_CHART_SETS play a run again, or a longer one. If CAIRN_CHART_VERSIONS is
"all", each set is compared with all versions of Kubernetes, otherwise with one of them. CAIRN_HELM
is Helm's own program (tools/fetch_helm.py), which is a version newer than the SDK: then both get
each set.
"""

import json
import os
import random
import re
import subprocess

import helm_python as helm
import pytest
import yaml

import random_values
from custom_resources import validate
from pod_security import pod_specs, violations
from rendered_chart import IMAGE, LOADER, documents, merged

SEED = int(os.environ.get("CAIRN_CHART_SEED", random.randrange(1 << 32)))
SETS = int(os.environ.get("CAIRN_CHART_SETS", 300))
HELM = os.environ.get("CAIRN_HELM")
VERSIONS = ["1.30", "1.33", "1.36"]
ALL_VERSIONS = os.environ.get("CAIRN_CHART_VERSIONS") == "all"
# A refusal begins with the value. A template that crashes may name a value, too, somewhere.
BY_CHART = re.compile(r"^execution error at \(cairn/templates/[^)]+\): ([a-zA-Z_.]+): .")
BY_SCHEMA = "values don't meet the specifications of the schema(s)"
AT = re.compile(r"^ *- at '(/[^']+)'", re.M)
# A program's: a place in the file, the setting, its value, and what was expected.
BY_PROGRAM = re.compile(
    r"^cairn-[a-z]+: (?:\S+ line \d+: )?([a-z_.]+): .*(got|expected|needs)", re.M
)
# Settings that programs may refuse although the chart wrote them: texts of the values, of which the
# chart does not know the form, and `memory`, of which this machine has less than the pod asks for.
LEFT_TO_PROGRAMS = {
    "cairn-cache": {"memory"},
    "cairn-worker": {"cache.recipe", "memory", "read_policy"},
    "cairn-router": {"engines.events", "memory", "workers"},
}


def unknown(path, values):
    """Whether there is no such value; those of groups have names that the values choose."""
    for key in path:
        if key in ("groups", "config") or key.isdigit():
            return False
        if not isinstance(values, dict) or key not in values:
            return True
        values = values[key]
    return False


def refused_without_a_value(error, values):
    """What is wrong with an error of Helm, if it does not name a value that there is."""
    if found := BY_CHART.match(error):
        paths = [found[1].split(".")]
    elif error.startswith(BY_SCHEMA):
        paths = [found.strip("/").split("/") for found in AT.findall(error)]
    else:
        return f"not refused, but failed: {error}"
    if not paths or any(unknown(path, values) for path in paths):
        return f"refused without a value: {error}"
    return None


def settings_of(config, prefix=""):
    for key, value in config.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{prefix}{key}.")
        else:
            yield prefix + key


def given_settings(values, role):
    """Those that the values' `config` has."""
    part = values.get(role, {})
    for one in [part, *part.get("groups", {}).values()]:
        yield from settings_of(one.get("config", {}))


def refused_by_a_program(answers, values):
    """What a program said of its settings, if that is about one that the chart wrote by itself."""
    for program, code, said in answers:
        if code == 0:
            continue
        found = BY_PROGRAM.search(said)
        role = program.removeprefix("cairn-")
        if not found or found[1] not in {*LEFT_TO_PROGRAMS[program], *given_settings(values, role)}:
            return said
    return None


def numbers_with_a_point(value):
    """Kubernetes' fields are whole numbers: 1e+09 is none to it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [n for v in value for n in numbers_with_a_point(v)]
    return [value] if isinstance(value, float) else []


def has_claims(docs):
    """They have another form in 1.30."""
    return any("resourceClaims" in spec for doc in docs for _, spec in pod_specs(doc))


def versions_for(docs, number):
    chosen = VERSIONS if ALL_VERSIONS else [VERSIONS[number % len(VERSIONS)]]
    return ["1.31" if v == "1.30" and has_claims(docs) else v for v in chosen]


def wrong_with(rendered, number):
    """What is wrong with what the chart made; None: nothing."""
    for path, text in rendered.items():
        if not path.endswith(".yaml"):
            continue
        try:
            docs = [doc for doc in yaml.load_all(text, Loader=LOADER) if doc]
        except yaml.YAMLError as error:
            return f"{path}: no YAML: {error}"
        for doc in docs:
            if found := numbers_with_a_point(doc):
                return f"{path}: {found}"
            for version in versions_for([doc], number):
                try:
                    validate(doc, version)
                except Exception as error:  # The package has no common base of its errors.
                    return f"{path}: {version}: {str(error)[:500]}"
            for name, spec in pod_specs(doc):
                if found := violations(spec):
                    return f"{name}: {found}"
            if doc["kind"] == "ConfigMap":
                for file, content in doc["data"].items():
                    if file.endswith(".yaml") and not isinstance(yaml.safe_load(content), dict):
                        return f"{path}: {file} is no map"
    return None


def made_by_program(root, values):
    """The documents that Helm's program makes; None: it refuses the values."""
    done = subprocess.run(
        [HELM, "template", "test", root / "helm/cairn", "--namespace", "kv", "--values", "-"],
        # Not as YAML: the program reads version 1.1, where `y` is true.
        input=json.dumps(merged(IMAGE, values)),
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return None
    return in_order(doc for doc in yaml.load_all(done.stdout, Loader=LOADER) if doc)


def in_order(docs):
    return sorted(docs, key=lambda doc: (doc["kind"], doc["metadata"]["name"]))


VALUES = {"cache": {"host": {"capacityMiB": 1}}}


@pytest.mark.parametrize(
    "error, named",
    [
        ("execution error at (cairn/templates/a.yaml:1:2): cache.host.capacityMiB: got 1", True),
        ("execution error at (cairn/templates/a.yaml:1:2): cache.gone: got 1", False),
        ("execution error at (cairn/templates/a.yaml:1:2): no such thing", False),
        (f"{BY_SCHEMA} in the chart\n- at '/cache/host': want 1\n", True),
        (f"{BY_SCHEMA} in the chart\n- at '/cache/gone': want 1\n", False),
        (f"{BY_SCHEMA} in the chart\n- at '': missing property\n", False),
        # A template that crashes.
        (
            'template: cairn/templates/a.yaml:1:2: executing "a" at <.Values.cache.host.x.y>: '
            "nil pointer evaluating interface {}.y",
            False,
        ),
        ("YAML parse error on cairn/templates/cache-a.yaml: error converting YAML to JSON", False),
    ],
)
def test_a_crash_is_no_refusal(error, named):
    assert (refused_without_a_value(error, VALUES) is None) == named


@pytest.mark.parametrize(
    "said, accepted",
    [
        ("cairn-cache: /x/cache.yaml line 3: lease.ttl: got '1us', expected a time from 1s", True),
        ("cairn-cache: memory: 1GiB for this + that, expected at most the 2 MiB of memory", True),
        # The chart wrote it.
        (
            "cairn-cache: /x/cache.yaml line 3: host.capacity: got '1e+07MiB', expected a size",
            False,
        ),
        ("cairn-cache: std::bad_alloc", False),
    ],
)
def test_a_program_may_refuse_only_what_the_values_say(said, accepted):
    values = {"cache": {"config": {"lease": {"ttl": "1us"}}}}
    refused = refused_by_a_program([("cairn-router", 0, ""), ("cairn-cache", 1, said)], values)
    assert (refused is None) == accepted


def test_random_values_render_or_are_refused_with_a_reason(chart, root, programs, mounted):
    values = random_values.load(root, SEED)
    defaults = yaml.safe_load((root / "helm/cairn/values.yaml").read_text(encoding="utf-8"))
    usable = 0
    for number in range(SETS):
        made = values.make()
        where = f"seed {SEED}, set {number}\n{yaml.safe_dump(made)}"
        try:
            rendered = chart.render(made, name="test", namespace="kv")
        except helm.HelmError as error:
            wrong = refused_without_a_value(str(error), defaults)
            assert wrong is None, f"{wrong}: {where}"
            assert HELM is None or made_by_program(root, made) is None, f"not refused: {where}"
            continue
        wrong = wrong_with(rendered, number)
        assert wrong is None, f"{wrong}: {where}"
        if HELM is not None:
            assert made_by_program(root, made) == in_order(documents(rendered)), where
        answers = mounted.check(documents(rendered), programs)
        assert (said := refused_by_a_program(answers, made)) is None, f"{said}: {where}"
        usable += 1
    # Otherwise nothing was tried.
    assert usable > SETS / 5, f"seed {SEED}: {usable} of {SETS}"
