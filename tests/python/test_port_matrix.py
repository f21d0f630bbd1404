"""Who gets in: every port of a node, a worker and a router with policies, asked by callers with
every kind of certificate or key."""

import hashlib
import http.client
import json
import pathlib
import ssl
import subprocess
import sys
import time

import grpc
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

sys.path.insert(0, str(ROOT / "tests/support"))
from authority import Authority  # noqa: E402  (needs the path)
from programs import PATIENCE, Programs, ask  # noqa: E402
from protos import call, message  # noqa: E402
from waiting import wait_until  # noqa: E402

URI = "spiffe://test/{}".format
KEY, OTHER_KEY = "a key of tenant a", "a key of tenant b"
IN, UNKNOWN, DENIED, OUT = "OK", "UNAUTHENTICATED", "PERMISSION_DENIED", "UNAVAILABLE"

# Who calls, as tenant a, and what comes of it at each gRPC port. "names": of the certificate.
GOOD = {"uris": [URI("good")]}
CALLERS = {
    "in plaintext": (None, OUT),
    "without a certificate": ({}, OUT),
    "with another authority's certificate": ({**GOOD, "authority": "another"}, OUT),
    "with a certificate that is over": ({**GOOD, "begins": -2, "days": -1}, OUT),
    "with a certificate that has not begun": ({**GOOD, "begins": 1, "days": 2}, OUT),
    "who expects a server of another name": ({**GOOD, "expects": "another.server"}, OUT),
    "with two URIs, one of which is known": ({"uris": [URI("good"), URI("second")]}, UNKNOWN),
    "whose common name is a known URI": ({"common_name": URI("good")}, DENIED),
    "whose DNS name is a known common name": ({"dns": ["ops"], "common_name": "c"}, DENIED),
    "with a URI beside a known common name": ({"uris": [URI("x")], "common_name": "ops"}, DENIED),
    "without a name that is known": ({"uris": [URI("nobody")]}, DENIED),
    "with a part more than a pattern": ({"uris": [URI("team/a/b")]}, DENIED),
    "with the role of another kind": ({"uris": [URI("operator")]}, DENIED),
    "with the role for another tenant": ({"uris": [URI("foreign")]}, DENIED),
    "whom a rule names": (GOOD, IN),
    "whose common name a rule names": ({"common_name": "ops"}, IN),
    "whom a pattern names": ({"uris": [URI("team/a")]}, IN),
}
RULES = [
    {"identity": "uri:" + URI("good"), "role": "writer", "tenants": ["a"]},
    {"identity": "cn:ops", "role": "writer", "tenants": ["a"]},
    {"identity": "uri:" + URI("team/*"), "role": "writer", "tenants": ["a"]},
    {"identity": "uri:" + URI("operator"), "role": "operator", "tenants": ["*"]},
    {"identity": "uri:" + URI("foreign"), "role": "writer", "tenants": ["b"]},
]


class World:
    def __init__(self, folder):
        self.folder = folder
        self.programs = Programs(folder)
        self._authorities = {name: Authority(folder / name) for name in ("authority", "another")}
        self._certificates = {}
        self.addresses, self.policies = {}, {}
        server = self._files("server", {"dns": ["localhost"]})
        worker = self._files("worker", {"uris": [URI("worker")]})
        router = self._files("router", {"uris": [URI("router")]})
        self.node = self._start(
            "node", self.programs.node, server, [("worker", "writer", "a"), ("router", "reader")]
        )
        cache = {"address": self.addresses["node"], **tls(worker)}
        self._start(
            "worker", self.programs.worker, server, [("router", "writer")], tenant="a", cache=cache
        )
        (folder / "keys").write_text(
            "".join(f"{t} {sha256(key)}\n" for t, key in [("a", KEY), ("b", OTHER_KEY)])
        )
        self.router = self._start(
            "router",
            lambda *args: self.programs.router(self.addresses["worker"], *args),
            server,
            [],
            workers_tls=tls(router),
            http={"api_keys": folder / "keys"},
        )
        wait_until(lambda: self.chat(key=KEY) == 200, "the router has its worker")

    def _start(self, name, start, server, own, **settings):
        rules = [
            {"identity": "uri:" + URI(who), "role": role, "tenants": tenants or ["*"]}
            for who, role, *tenants in own
        ]
        self.policies[name] = (self.folder / f"{name}.policy", rules)
        self.write_policy(name, RULES)
        settings["tls"] = {
            "cert": server["tls.crt"],
            "key": server["tls.key"],
            "client_ca": server["ca.crt"],
        }
        settings["auth"] = {"policy": self.policies[name][0]}
        program = start(*flags(settings))
        ready = program.ready()
        assert ready, program.stderr()
        self.addresses[name] = ready["grpc"].replace("127.0.0.1", "localhost")
        return ready

    def write_policy(self, name, rules):
        path, own = self.policies[name]
        new = path.with_suffix(".new")
        new.write_text(json.dumps({"rules": own + rules}), encoding="ascii")
        new.replace(path)

    def certificate(self, dns=(), uris=(), common_name="c", authority="authority", **days):
        key = json.dumps([dns, uris, common_name, authority, days])
        if key not in self._certificates:
            self._certificates[key] = self._authorities[authority].make(
                dns, uris, common_name=common_name, **days
            )
        return self._certificates[key]

    def _files(self, name, names):
        """The certificate's files, by their names in a Secret."""
        folder = self.folder / f"{name}.tls"
        folder.mkdir()
        return self._write(folder, self.certificate(**names))

    @staticmethod
    def _write(folder, secret):
        for file, text in secret.items():
            (folder / file).write_text(text, encoding="ascii")
        return {file: folder / file for file in secret}

    def channel(self, port, who):
        address = self.addresses[port]
        if who is None:
            return grpc.insecure_channel(address)
        who = dict(who)
        options = [("grpc.ssl_target_name_override", who.pop("expects", "localhost"))]
        trusted = self.certificate()["ca.crt"].encode()
        if not who:
            credentials = grpc.ssl_channel_credentials(trusted)
        else:
            made = self.certificate(**who)
            credentials = grpc.ssl_channel_credentials(
                trusted, made["tls.key"].encode(), made["tls.crt"].encode()
            )
        return grpc.secure_channel(address, credentials, options)

    def code(self, port, who):
        """What comes of the first answer to a call for tenant a."""
        with self.channel(port, who) as channel:
            answers = ask_for_a(port, channel)
            try:
                next(answers)
            except grpc.RpcError as error:
                return error.code().name
            answers.cancel()
            return IN

    def chat(self, who=None, key=None, **headers):
        """The status of a chat over HTTP. None: there was no answer."""
        if key:
            headers["Authorization"] = f"Bearer {key}"
        body = json.dumps({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1})
        address = self.router["http"].replace("127.0.0.1", "localhost")
        connection = http.client.HTTPSConnection(
            address, timeout=PATIENCE, context=self._context(dict(GOOD if who is None else who))
        )
        try:
            connection.request("POST", "/v1/chat/completions", body, headers)
            return connection.getresponse().status
        except (ssl.SSLError, ConnectionError):
            return None
        finally:
            connection.close()

    def _context(self, who):
        context = ssl.create_default_context(cadata=self.certificate()["ca.crt"])
        if who:
            folder = self.folder / f"http-{len(self._certificates)}-{time.monotonic_ns()}"
            folder.mkdir()
            files = self._write(folder, self.certificate(**who))
            context.load_cert_chain(files["tls.crt"], files["tls.key"])
        return context


def flags(settings):
    """As words of a command line."""
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from flags({f"{name}.{key}": inner for key, inner in value.items()})
        else:
            yield from (f"--{name}", value)


def tls(files):
    return {"ca": files["ca.crt"], "cert": files["tls.crt"], "key": files["tls.key"]}


def sha256(text):
    return hashlib.sha256(text.encode()).hexdigest()


def ask_for_a(port, channel):
    if port == "node":
        request = message("OpenSessionRequest")(tenant="a")
        return call(channel, "Cache/OpenSession", request, "SessionEvent")
    request = message("GenerateRequest")(raw_text="hi", max_tokens=1, tenant="a")
    service = {"worker": "Worker", "router": "Router"}[port]
    return call(channel, f"{service}/Generate", request, "GenerateResponse")


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("matrix"))
    yield made
    made.programs.stop()


@pytest.mark.parametrize("port", ["node", "worker", "router"])
@pytest.mark.parametrize("who", CALLERS)
def test_a_grpc_port_lets_in_whom_its_policy_names(world, port, who):
    certificate, code = CALLERS[who]
    assert world.code(port, certificate) == code


def test_a_rule_that_goes_takes_its_callers_along(world):
    """As a revoked certificate would: new calls within a second, and open sessions too."""
    with world.channel("node", GOOD) as node, world.channel("worker", GOOD) as worker:
        load = message("WatchLoadRequest")(interval_ms=60000)
        streams = [
            ask_for_a("node", node),
            call(worker, "Worker/WatchLoad", load, "LoadReport"),
        ]
        for stream in streams:
            next(stream)
        for name in world.policies:
            world.write_policy(name, [r for r in RULES if not r["identity"].endswith("good")])
        for name in world.policies:
            wait_until(lambda n=name: world.code(n, GOOD) == DENIED, f"{name} lets nobody in")
        for stream in streams:
            with pytest.raises(grpc.RpcError) as ended:
                list(stream)
            assert ended.value.code() == grpc.StatusCode.UNAVAILABLE
    for name in world.policies:
        world.write_policy(name, RULES)
    for name in world.policies:
        wait_until(lambda n=name: world.code(n, GOOD) == IN, f"{name} lets it in again")


@pytest.mark.parametrize(
    "who", [w for w, (names, _) in CALLERS.items() if names is not None and "expects" not in names]
)
def test_the_http_port_wants_a_certificate_and_a_key(world, who):
    """The certificate's name says nothing there: the key does."""
    names, code = CALLERS[who]
    status = None if code == OUT else 200
    assert world.chat(names, KEY) == status
    assert world.chat(names, "a wrong key") == (None if code == OUT else 401)


@pytest.mark.parametrize(
    "key, headers, status",
    [
        (None, {}, 401),
        ("a wrong key", {}, 401),
        (sha256(KEY), {}, 401),
        (KEY + "x", {}, 401),
        (None, {"x-cairn-tenant": "a"}, 401),
        (None, {"Authorization": "Basic " + KEY}, 401),
        (KEY, {}, 200),
        (OTHER_KEY, {}, 200),
    ],
)
def test_the_http_port_lets_in_who_has_a_key(world, key, headers, status):
    assert world.chat(key=key, **headers) == status


def test_ports_of_probes_change_nothing(world):
    for ready in (world.node, world.router):
        assert ask(f"http://{ready['admin']}/livez")[0] == 200
        assert ask(f"http://{ready['admin']}/metrics", b"text")[0] in (404, 405)


@pytest.mark.parametrize("port", ["node", "worker", "router"])
@pytest.mark.parametrize(
    "flags, works",
    [
        (["-tls1_3"], True),
        (["-tls1_2", "-cipher", "ECDHE+AESGCM"], True),
        (["-tls1_2", "-cipher", "ECDHE+AES+SHA1:@SECLEVEL=0"], False),
        (["-tls1_2", "-cipher", "eNULL:@SECLEVEL=0"], False),
        (["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], False),
        (["-tls1", "-cipher", "ALL:@SECLEVEL=0"], False),
    ],
)
def test_old_versions_and_weak_ciphers_of_tls_are_refused(world, port, flags, works):
    certificate = world.folder / "worker.tls"
    shaken = subprocess.run(
        [
            *("openssl", "s_client", "-connect", world.addresses[port], "-alpn", "h2", *flags),
            *("-cert", certificate / "tls.crt", "-key", certificate / "tls.key"),
            *("-CAfile", certificate / "ca.crt", "-verify_return_error"),
        ],
        input=b"",
        check=False,
        capture_output=True,
        timeout=PATIENCE,
    )
    told = shaken.stdout.decode(errors="replace")
    assert ("Cipher is (NONE)" not in told and "Cipher is" in told) == works, told
