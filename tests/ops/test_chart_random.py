"""Random values that the schema allows render to valid objects, or are refused with a reason.

CAIRN_CHART_SEED and CAIRN_CHART_SETS play a run again, or a longer one.
"""

import os
import random
import re

import helm_python as helm
import kubernetes_validate
import yaml

import random_values
from pod_security import pod_specs, violations

SEED = int(os.environ.get("CAIRN_CHART_SEED", random.randrange(1 << 32)))
SETS = int(os.environ.get("CAIRN_CHART_SETS", 60))
VERSIONS = ["1.31", "1.33", "1.36"]  # Claims have another form before 1.31.
NAMED = re.compile(r"\b(alerts|cache|dashboards|router|tls|worker)[.:/]")


def wrong_with(rendered, version):
    """What is wrong with what the chart made; None: nothing."""
    for path, text in rendered.items():
        if not path.endswith(".yaml"):
            continue
        try:
            docs = [doc for doc in yaml.safe_load_all(text) if doc]
        except yaml.YAMLError as error:
            return f"{path}: no YAML: {error}"
        for doc in docs:
            group = doc["apiVersion"].split("/")[0]
            if "." in group and not group.endswith("k8s.io"):
                continue
            try:
                kubernetes_validate.validate(doc, version, strict=True)
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


def test_random_values_render_or_are_refused_with_a_reason(chart, root):
    values = random_values.load(root, SEED)
    usable = 0
    for number in range(SETS):
        made = values.make()
        where = f"seed {SEED}, set {number}\n{yaml.safe_dump(made)}"
        try:
            rendered = chart.render(made, name="test", namespace="kv")
        except helm.HelmError as error:
            assert NAMED.search(str(error)), f"refused without a reason: {error}: {where}"
            continue
        wrong = wrong_with(rendered, VERSIONS[number % len(VERSIONS)])
        assert wrong is None, f"{wrong}: {where}"
        usable += 1
    # Otherwise nothing was tried.
    assert usable > SETS / 5, f"seed {SEED}: {usable} of {SETS}"
