"""The real programs read the settings that the chart renders, with files where pods would have
them."""

import re
import subprocess

from conftest import ROOT
from pod_security import pod_specs
from rendered_chart import containers_of

MODEL = ROOT / "tests/data/gguf/kquant.gguf"


def _flags(docs, program):
    """The flags that a pod gives its program in addition to its file, as in the pod number 0."""
    for doc in docs:
        for _, spec in pod_specs(doc):
            for container in containers_of(spec):
                command = container.get("command") or [""]
                if command[0] != program:
                    continue
                flags = [flag for flag in command[1:] if flag.startswith(("--cluster", "--node"))]
                names = {"$(POD_NAME)": "test-cache-0", "$(POD_NODE)": "machine"}
                for name, value in names.items():
                    flags = [flag.replace(name, value) for flag in flags]
                return flags
    raise AssertionError(f"no pod runs {program}")


class MountedFiles:
    """What Secrets and volumes would hold: --check-config reads the files too, and a model's
    metadata."""

    def __init__(self, folder):
        self._folder = folder
        subprocess.run(
            [
                *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt"),
                *("ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=test"),
                *("-keyout", folder / "tls.key", "-out", folder / "tls.crt"),
            ],
            check=True,
            capture_output=True,
        )
        (folder / "ca.crt").write_bytes((folder / "tls.crt").read_bytes())
        (folder / "keys").write_text(f"chat {'0' * 64}\n", encoding="ascii")
        for name in ["key", "salt", "password"]:
            (folder / name).write_text(name, encoding="ascii")

    def check(self, docs, programs):
        """Yields (program, exit code, what it said) of --check-config for each program's file."""
        for doc in docs:
            for file, text in (doc.get("data") or {}).items() if doc["kind"] == "ConfigMap" else ():
                if file not in ("cache.yaml", "worker.yaml", "router.yaml"):
                    continue
                text = re.sub(
                    "/etc/cairn-(tls|keys|engines|secrets/[a-z]+)", str(self._folder), text
                )
                if policy := doc["data"].get("policy.yaml"):
                    (self._folder / "policy.yaml").write_text(policy, encoding="utf-8")
                    text = text.replace("/etc/cairn/policy.yaml", f"{self._folder}/policy.yaml")
                path = self._folder / file
                path.write_text(re.sub(r"/models/[^\n\"]+", str(MODEL), text), encoding="utf-8")
                program = programs / f"cairn-{file.removesuffix('.yaml')}"
                done = subprocess.run(
                    [program, "--config", path, "--check-config", *_flags(docs, program.name)],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    check=False,
                )
                yield program.name, done.returncode, done.stdout + done.stderr
