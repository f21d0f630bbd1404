"""Random values that the schema allows render to valid objects, or are refused with a reason.

CAIRN_CHART_SEED and CAIRN_CHART_SETS play a run again, or a longer one. CAIRN_HELM is Helm's own
program (tools/fetch_helm.py), which is a version newer than the SDK: then both get each set.
"""

import json
import os
import random
import re
import subprocess

import helm_python as helm
import yaml

import random_values
from custom_resources import validate
from pod_security import pod_specs, violations
from rendered_chart import IMAGE, LOADER, documents, merged

SEED = int(os.environ.get("CAIRN_CHART_SEED", random.randrange(1 << 32)))
SETS = int(os.environ.get("CAIRN_CHART_SETS", 300))
CHECKED = 10  # Of so many sets, one is read by the programs: they take longer than all else.
HELM = os.environ.get("CAIRN_HELM")
VERSIONS = ["1.31", "1.33", "1.36"]  # Claims have another form before 1.31.
NAMED = re.compile(r"\b(alerts|cache|dashboards|router|tls|worker)[.:/]")


# A program's error names the setting, its value, and what was expected.
REASON = re.compile(r"[a-z_.]+: .*(got|expected|needs)")


def wrong_with(rendered, version):
    """What is wrong with what the chart made; None: nothing."""
    for path, text in rendered.items():
        if not path.endswith(".yaml"):
            continue
        try:
            docs = [doc for doc in yaml.load_all(text, Loader=LOADER) if doc]
        except yaml.YAMLError as error:
            return f"{path}: no YAML: {error}"
        for doc in docs:
            try:
                validate(doc, version)
            except Exception as error:  # The package has no common base of its errors.
                return f"{path}: {str(error)[:500]}"
            for name, spec in pod_specs(doc):
                if found := violations(spec):
                    return f"{name}: {found}"
            if doc["kind"] == "ConfigMap":
                for file, content in doc["data"].items():
                    if file.endswith(".yaml") and not isinstance(yaml.safe_load(content), dict):
                        return f"{path}: {file} is no map"
    return None


def refused_without_a_reason(answers):
    """What a program said of its settings, if that names none of them."""
    for _, code, said in answers:
        if code != 0 and not REASON.search(said):
            return said
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


def test_random_values_render_or_are_refused_with_a_reason(chart, root, programs, mounted):
    values = random_values.load(root, SEED)
    usable = 0
    for number in range(SETS):
        made = values.make()
        where = f"seed {SEED}, set {number}\n{yaml.safe_dump(made)}"
        try:
            rendered = chart.render(made, name="test", namespace="kv")
        except helm.HelmError as error:
            assert NAMED.search(str(error)), f"refused without a reason: {error}: {where}"
            assert HELM is None or made_by_program(root, made) is None, f"not refused: {where}"
            continue
        wrong = wrong_with(rendered, VERSIONS[number % len(VERSIONS)])
        assert wrong is None, f"{wrong}: {where}"
        if HELM is not None:
            assert made_by_program(root, made) == in_order(documents(rendered)), where
        if number % CHECKED == 0:
            answers = mounted.check(documents(rendered), programs)
            assert (said := refused_without_a_reason(answers)) is None, f"{said}: {where}"
        usable += 1
    # Otherwise nothing was tried.
    assert usable > SETS / 5, f"seed {SEED}: {usable} of {SETS}"
