"""What deploy/compose/compose.yaml says, with its variables put in, and the mistakes in it that
Compose would find or that would only show when it runs."""

import re

import yaml

from conftest import ROOT

FOLDER = ROOT / "deploy/compose"
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*)|:\?([^}]*))?\}")
# The keys of the Compose specification that this file needs: others would be a misspelling.
SERVICE_KEYS = {
    "cap_drop",
    "command",
    "environment",
    "hostname",
    "image",
    "mem_limit",
    "network_mode",
    "pids_limit",
    "ports",
    "read_only",
    "restart",
    "security_opt",
    "stop_grace_period",
    "tmpfs",
    "volumes",
}
TOP_KEYS = {"services", "volumes"}


class Missing(Exception):
    """A variable that the file asks for is not set."""


def load(environment, folder=FOLDER):
    """The file, as Compose sees it."""

    def put_in(match):
        name, default, message = match.groups()
        value = environment.get(name) or default
        if value is None:
            raise Missing(f"{name}: {message}")
        return value

    text = _VARIABLE.sub(put_in, (folder / "compose.yaml").read_text(encoding="utf-8"))
    return yaml.safe_load(text)


def mounts(service):
    """[(source, target, options)] of a service."""
    return [tuple((*entry.split(":"), "")[:3]) for entry in service.get("volumes", [])]


def mistakes(file, folder=FOLDER):
    """Texts, each with the service and what is wrong."""
    found = [f"{key}: no such key" for key in file if key not in TOP_KEYS and key[:2] != "x-"]
    for name, service in file["services"].items():
        found += [f"{name}: {key}: no such key" for key in service if key not in SERVICE_KEYS]
        if not service.get("image"):
            found.append(f"{name}: no image")
        mode = service.get("network_mode", "")
        if mode and mode.removeprefix("service:") not in file["services"]:
            found.append(f"{name}: network_mode: got {mode}, expected that of a service")
        if mode and (service.get("ports") or service.get("hostname")):
            found.append(f"{name}: ports and hostname are those of {mode}")
        for source, _target, _options in mounts(service):
            if source.startswith((".", "/")):
                if not (folder / source).exists():
                    found.append(f"{name}: {source} does not exist")
            elif source not in file["volumes"]:
                found.append(f"{name}: volume {source} is not declared")
        for port in service.get("ports", []):
            if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port):
                found.append(f"{name}: port {port}, expected 127.0.0.1:HERE:THERE")
    used = {m[0] for service in file["services"].values() for m in mounts(service)}
    found += [
        f"volume {name} is used by no service" for name in file["volumes"] if name not in used
    ]
    return found


def address_of(file, name):
    """The name under which others reach a service."""
    mode = file["services"][name].get("network_mode", "")
    return mode.removeprefix("service:") or name
