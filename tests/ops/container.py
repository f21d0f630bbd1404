"""The image, and containers of it in runc as the profile *restricted* of Kubernetes has them: no
root, a root folder that cannot be written, no capabilities, no new privileges, and the default list
of system calls."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import uuid

import pytest

from conftest import ROOT

UID = 10001
TOOLS = ("buildah", "mmdebstrap", "runc", "umoci")
# Kept from run to run: the image's base takes a minute, and Debian's archive.
OUT = ROOT / "build/images/tests"
TAG = "test"
# The list that podman, buildah and CRI-O use when nothing else is said. It lets a process make
# namespaces and mount in them, which the lists of Docker and containerd do not.
DEFAULT_SECCOMP = pathlib.Path("/usr/share/containers/seccomp.json")
NOT_IN_OTHER_LISTS = {
    "fsconfig",
    "fsmount",
    "fsopen",
    "fspick",
    "mount",
    "mount_setattr",
    "move_mount",
    "open_tree",
    "pivot_root",
    "setns",
    "umount",
    "umount2",
    "unshare",
}
ARCHITECTURES = ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]


def default_seccomp():
    """The calls that each default list allows a process without capabilities on x86-64, as runc
    wants it."""
    given = json.loads(DEFAULT_SECCOMP.read_text())
    rules = []
    for rule in given["syscalls"]:
        needs, without = rule.get("includes", {}), rule.get("excludes", {})
        if needs.get("caps") or "amd64" not in needs.get("arches", ["amd64"]):
            continue
        if "amd64" in without.get("arches", []):
            continue
        # `excludes.caps` are of rules for processes that lack these capabilities: ours.
        names = [name for name in rule["names"] if name not in NOT_IN_OTHER_LISTS]
        if not names:
            continue
        kept = {"names": names, "action": rule["action"]}
        if rule.get("args"):
            kept["args"] = rule["args"]
        if rule.get("errnoRet") is not None:
            kept["errnoRet"] = rule["errnoRet"]
        rules.append(kept)
    return {
        "defaultAction": given["defaultAction"],
        "defaultErrnoRet": given.get("defaultErrnoRet", 1),
        "architectures": ARCHITECTURES,
        "syscalls": rules,
    }


def allowed_calls(names):
    """Only these system calls, as systemd's SystemCallFilter has it: others fail with EPERM."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": 1,
        "architectures": ARCHITECTURES,
        "syscalls": [{"names": sorted(names), "action": "SCMP_ACT_ALLOW"}],
    }


def build_image(programs, out, *more):
    """The tool that makes the image, when it has ended."""
    tool = ROOT / "deploy/docker/image.py"
    words = [sys.executable, tool, "--programs", programs, "--out", out, *more]
    return subprocess.run(words, capture_output=True, text=True, check=False)


def built_line(programs, *more):
    """Makes the image of these programs in OUT; what the tool prints. Skips the test where that is
    not possible. `more`: further words for the tool."""
    for name in TOOLS:
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed: `make image` installs it")
    if os.geteuid() != 0:
        pytest.skip("no image: it needs the rights of root")
    done = build_image(programs, OUT, "--tag", TAG, *more)
    unreachable = r"Could not resolve|Unable to connect|Temporary failure|Failed to fetch"
    if done.returncode != 0 and re.search(unreachable, done.stderr):
        pytest.skip("no image: Debian's archive cannot be reached")
    assert done.returncode == 0, done.stderr
    return done.stdout


class Image:
    """An image of an OCI layout, unpacked. Containers share its files, which none can write."""

    def __init__(self, layout, tag, folder):
        self.folder = folder
        subprocess.run(
            ["umoci", "unpack", "--image", f"{layout}:{tag}", folder / "bundle"],
            check=True,
            capture_output=True,
        )
        self.root = folder / "bundle/rootfs"
        self._config = json.loads((folder / "bundle/config.json").read_text())

    @property
    def environment(self):
        return dict(entry.split("=", 1) for entry in self._config["process"]["env"])

    def command(
        self, arguments, binds=(), seccomp=None, memory=None, environment=None, network=None
    ):
        """The words that run `arguments` in a new container, and a function that removes what is
        left of it. `binds`: (path here, path there, writable). `memory`: its limit in bytes.
        `network`: the path of a network namespace; without it the container shares ours."""
        name = f"cairn-test-{uuid.uuid4().hex[:12]}"
        bundle = self.folder / name
        bundle.mkdir()
        config = json.loads(json.dumps(self._config))
        process = config["process"]
        process["args"] = [str(argument) for argument in arguments]
        process["terminal"] = False
        process["user"] = {"uid": UID, "gid": UID, "additionalGids": []}
        process["noNewPrivileges"] = True
        sets = ("bounding", "effective", "inheritable", "permitted", "ambient")
        process["capabilities"] = {each: [] for each in sets}
        process.pop("rlimits", None)
        for key, value in (environment or {}).items():
            process["env"].append(f"{key}={value}")
        config["root"] = {"path": str(self.root), "readonly": True}
        config["mounts"].append(
            {
                "destination": "/tmp",
                "type": "tmpfs",
                "source": "tmpfs",
                "options": ["nosuid", "nodev", "noexec", "mode=1777", "size=64m"],
            }
        )
        for here, there, writable in binds:
            config["mounts"].append(
                {
                    "destination": str(there),
                    "type": "bind",
                    "source": str(here),
                    "options": ["rbind", "nosuid", "nodev", "rw" if writable else "ro"],
                }
            )
        linux = config["linux"]
        linux["seccomp"] = seccomp or default_seccomp()
        linux["namespaces"] = [{"type": each} for each in ("pid", "ipc", "uts", "mount")]
        if network is not None:
            linux["namespaces"].append({"type": "network", "path": network})
        linux["cgroupsPath"] = f"/{name}"
        if memory is not None:
            linux.setdefault("resources", {})["memory"] = {"limit": memory}
        (bundle / "config.json").write_text(json.dumps(config))
        state = self.folder / "state"

        def remove():
            subprocess.run(
                ["runc", "--root", state, "delete", "--force", name],
                check=False,
                capture_output=True,
            )
            shutil.rmtree(bundle, ignore_errors=True)

        return ["runc", "--root", state, "run", "--bundle", bundle, name], remove

    def run(self, arguments, **options):
        """Runs a command to its end; its result."""
        words, remove = self.command(arguments, **options)
        try:
            return subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        finally:
            remove()
