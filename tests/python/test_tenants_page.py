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
        return subprocess.run(
            ["bash", "-e", "-c", script.replace(PORT, self.port)],
            cwd=self.folder,
            env=self.env,
            check=check,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def write(self, policy):
        (self.folder / "policy.new").write_text(policy, encoding="utf-8")
        (self.folder / "policy.new").replace(self.folder / "policy.yaml")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("tenants"))
    yield made
    made.programs.stop()


def test_an_administrator_sees_the_numbers_and_a_tenant_does_not(world):
    first, second = world.looks.splitlines()
    shown = world.run(first)
    assert "host" in shown.stdout and "no namespaces" not in shown.stderr
    hidden = world.run(second)
    assert "left out" in hidden.stderr
    assert re.search(r"^host ", shown.stdout, re.M)
    assert not re.search(r"^host ", hidden.stdout, re.M)


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
    for role in table:
        world.write(
            f'rules:\n  - identity: "cn:x"\n    role: {role}\n    tenants: ["*"]\n' + "# " + role
        )
        checked = world.run(
            "cairn-cache --check-config --tls.cert node.pem --tls.key node.key --tls.client_ca"
            " ca.pem --auth.policy policy.yaml --listen 127.0.0.1:0 --host.capacity 64MiB"
        )
        assert checked.returncode == 0
    assert len(table) == 5
    world.write(world.policy)


def test_a_wrong_policy_is_told_and_changes_nothing(world):
    world.write("rules: 7\n")
    wait_until(lambda: "policy_refused" in world.node.stderr(), "policy_refused")
    assert world.run(world.looks.splitlines()[0]).returncode == 0
    checked = world.run(
        "cairn-cache --check-config --tls.cert node.pem --tls.key node.key --tls.client_ca ca.pem"
        " --auth.policy policy.yaml",
        check=False,
    )
    assert checked.returncode != 0 and "policy.yaml line 1" in checked.stderr
    world.write(world.policy)
