"""Runs what docs/operate/kubernetes.md tells an operator to type: its kubectl is the real one, and
its helm is Helm's own code, at the API server of a small cluster."""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import textwrap

import helm_python as helm
import yaml

from conftest import ROOT
from rendered_chart import merged
from small_cluster.api_server import serve

PAGE = (ROOT / "docs/operate/kubernetes.md").read_text(encoding="utf-8")
CHART = str(ROOT / "helm/cairn")
NAMESPACE = "kv"


def _value(text):
    if text.startswith("{"):
        return text.strip("{}").split(",")
    return yaml.safe_load(text)


def values_of(command):
    """The values of the --set of a helm command."""
    words = shlex.split(command.replace("\\\n", " "), comments=True)
    values = {}
    for flag, setting in zip(words, words[1:], strict=False):
        if flag != "--set":
            continue
        key, text = setting.split("=", 1)
        made = _value(text)
        for level in reversed(key.split(".")):
            made = {level: made}
        values = merged(values, made)
    return values


def _whole_lines(text):
    """Without indentation, and with what continues a line on that line."""
    return re.sub(r"\\\n\s*", " ", textwrap.dedent(text)).strip().splitlines()


def blocks(section):
    """The shell blocks of a section, and its commands between backquotes: lists of lines."""
    text = re.split(r"^## ", PAGE, flags=re.M)
    (found,) = [part for part in text if part.startswith(f"{section}\n")]
    fenced = [_whole_lines(b) for b in re.findall(r"```sh\n(.*?)```", found, flags=re.S)]
    prose = re.sub(r"```.*?```", "", found, flags=re.S)
    quoted = re.findall(r"`((?:helm|kubectl) [^`]+)`", prose)
    return fenced + [[" ".join(command.split())] for command in quoted]


def block(section, words):
    """The only block of a section that has these words."""
    (found,) = [b for b in blocks(section) if words in "\n".join(b)]
    return found


def program():
    """The kubectl of the tests' environment, or the machine's."""
    own = pathlib.Path(sys.prefix) / "bin/kubectl"
    return str(own) if own.exists() else shutil.which("kubectl")


class Operator:
    """`small`: values under those of the page, so that its release fits the machine. `folder`: what
    the operator works in."""

    def __init__(self, cluster, folder, small):
        self.cluster, self._folder, self._small = cluster, folder, small
        url = serve(cluster.objects, cluster)
        self._config = helm.Config(kube_apiserver=url, namespace=NAMESPACE, storage_driver="memory")
        self._values = {}
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/kubectl").symlink_to(program())
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "small",
            "clusters": [{"name": "small", "cluster": {"server": url}}],
            "contexts": [{"name": "small", "context": {"cluster": "small", "user": "me"}}],
            "users": [{"name": "me", "user": {}}],
        }
        (folder / "config").write_text(yaml.safe_dump(config), encoding="utf-8")

    def run(self, lines, **names):
        """Runs lines of the page. `names`: words that stand for others there. Its output."""
        said, rest = [], []
        for line in lines:
            for name, value in names.items():
                line = line.replace(name, value)
            if line.startswith("helm "):
                said.append(self._shell(rest))
                self._helm(line)
                rest = []
            else:
                rest.append(line)
        return "".join([*said, self._shell(rest)])

    def _shell(self, lines):
        if not lines:
            return ""
        done = subprocess.run(
            ["bash", "-e", "-c", "\n".join(lines)],
            cwd=self._folder,
            env={
                "PATH": f"{self._folder}/bin:/usr/bin:/bin",
                "KUBECONFIG": str(self._folder / "config"),
                "HOME": str(self._folder),
            },
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, f"{lines}:\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def _helm(self, command):
        words = shlex.split(command, comments=True)
        if words[1] == "install":
            self._values = merged(self._small, values_of(command))
            self._config.install(CHART, words[2], self._values, namespace=NAMESPACE)
        elif words[1] == "upgrade":
            kept = self._values if "--reuse-values" in words else self._small
            values = merged(kept, values_of(command))
            self._config.upgrade(CHART, words[2], values, namespace=NAMESPACE)
            self._values = values
        elif words[1] == "rollback":
            self._config.rollback(words[2])
        elif words[1] == "test":
            self._config.test(words[2])
        elif words[1] == "uninstall":
            self._config.uninstall(words[2])
        else:
            raise NotImplementedError(command)
