"""docs/operate/tenants.md goes from an open node to three tenants: its commands, as they are."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "tests/support"))
from ports import free_port  # noqa: E402  (needs the path)
from programs import BIN, PATIENCE, Programs  # noqa: E402
from waiting import wait_until  # noqa: E402

PAGE = (ROOT / "docs/operate/tenants.md").read_text(encoding="utf-8")
PORT = "7400"  # The page's.
CHECK = (
    "cairn-cache --check-config --listen 127.0.0.1:0 --host.capacity 64MiB --tls.cert node.pem"
    " --tls.key node.key --tls.client_ca ca.pem"
)


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.M | re.S)


class World:
    """A folder in which the page was followed up to the node, at a port of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.port = str(free_port())
        self.programs = Programs(folder)
        self.env = {**self.programs.env, "PATH": f"{BIN}:{os.environ['PATH']}"}
        certificates, serve, self.looks = blocks("sh")
        (self.policy,) = blocks("yaml")
        self.run(certificates)
        self.write(self.policy)
        name, *settings = serve.replace(PORT, self.port).split()
        assert name == "cairn-cache"
        self.node = self.programs.start(
            name, *settings, "--admin.listen", "127.0.0.1:0", "--host.capacity", "64MiB", cwd=folder
        )
        assert self.node.ready(), self.node.stderr()

    def run(self, script, check=True):
        done = subprocess.run(
            ["bash", "-e", "-c", script.replace(PORT, self.port)],
            cwd=self.folder,
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done

    def write(self, policy):
        (self.folder / "policy.new").write_text(policy, encoding="utf-8")
        (self.folder / "policy.new").replace(self.folder / "policy.yaml")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("tenants"))
    yield made
    made.programs.stop()


def test_an_administrator_sees_the_numbers_and_a_tenant_does_not(world):
    first, second = (world.run(line).stdout for line in world.looks.splitlines())
    assert " host " in first and " host " not in second


def test_a_client_uses_its_own_tenant_and_no_other(world):
    (script,) = blocks("python")
    told = subprocess.run(
        [sys.executable, "-c", script.replace(PORT, world.port)],
        cwd=world.folder,
        env={**world.env, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        check=True,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    own, other = told.stdout.splitlines()
    assert own == "acme is open to acme"
    assert other.startswith("team-a ") and "policy" in other and "uri:spiffe" in other
    assert "call_refused" in world.node.stderr()


def test_each_role_of_the_page_is_one_of_the_policys(world):
    table = re.findall(r"^\| `([a-z]+)` \| ", PAGE, re.M)
    rules = "".join(f"- {{identity: cn:x, role: {role}, tenants: ['*']}}\n" for role in table)
    (world.folder / "roles.yaml").write_text("rules:\n" + rules, encoding="utf-8")
    assert len(table) == 5
    assert world.run(CHECK + " --auth.policy roles.yaml").returncode == 0


def test_a_wrong_policy_is_told_and_changes_nothing(world):
    world.write("rules: 7\n")
    wait_until(lambda: "policy_refused" in world.node.stderr(), "policy_refused")
    assert world.run(world.looks.splitlines()[0]).returncode == 0
    checked = world.run(CHECK + " --auth.policy policy.yaml", check=False)
    assert checked.returncode != 0 and "policy.yaml line 1" in checked.stderr
    world.write(world.policy)
