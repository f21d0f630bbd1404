"""Dead and hanging nodes, closed clients, forks, ends of interpreters: an error with its code,
never a crash."""

import os
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import cairn
from conftest import ROOT, SLOW, Prompt, connect, native_spec, opaque_spec

BIG = 1 << 20


def test_each_code_has_its_class():
    classes = {cls.code: cls for cls in cairn.Error.__subclasses__()}
    assert set(classes) == set(cairn.Code) - {cairn.Code.OK}
    for code, cls in classes.items():
        error = cls("text")
        assert (error.code, error.message, str(error)) == (code, "text", f"{code.name}: text")
    assert issubclass(cairn.DeadlineExceededError, TimeoutError) and issubclass(
        cairn.InvalidArgumentError, ValueError
    )


def test_actions_are_those_of_the_documentation():
    page = (ROOT / "docs/program/errors.md").read_text()
    for cls in cairn.Error.__subclasses__():
        row = next(
            line
            for line in page.splitlines()
            if line.startswith(f"| `{cls.code.name}` ({int(cls.code)})")
        )
        assert f"`{cls('').action.value}`" in row


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"address": ""}, cairn.InvalidArgumentError, "address"),
        ({"address": "nonsense"}, cairn.InvalidArgumentError, "nonsense"),
        ({"address": "127.0.0.1:1,b"}, cairn.InvalidArgumentError, "'b' in '127.0.0.1:1,b'"),
        ({"address": "dns:b"}, cairn.InvalidArgumentError, "'dns:b'.*dns:name:port"),
        ({"host": "h" * 129}, cairn.InvalidArgumentError, "'host'.*129"),
        ({"address": 5}, TypeError, None),
        ({"path": "carrier pigeon"}, cairn.InvalidArgumentError, "'path'.*carrier pigeon.*local"),
        ({"client_name": "x" * 129}, cairn.InvalidArgumentError, "client_name.*129"),
        ({"max_reconnect_backoff": -1}, cairn.InvalidArgumentError, "max_reconnect_backoff.*-1"),
        ({"spin": "fast"}, TypeError, "'spin'.*str"),
        ({"breaker": cairn.Breaker(failures=0)}, cairn.InvalidArgumentError, "breaker.failures"),
        ({"tls": cairn.Tls(ca_file="/nowhere.pem")}, cairn.InvalidArgumentError, "/nowhere.pem"),
    ],
)
def test_wrong_options_are_named(options, error, text):
    with pytest.raises(error, match=text):
        cairn.Client(**({"address": "127.0.0.1:1"} | options))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda c, ns: c.match(ns, []), cairn.InvalidArgumentError, "'keys'.*0"),
        (lambda c, ns: c.match(ns, [b"x" * 31]), cairn.InvalidArgumentError, r"'?keys\[0\]'?.*31"),
        (lambda c, ns: c.match(ns, [bytes(32), "y" * 32]), TypeError, r"keys\[1\].*str"),
        (lambda c, ns: c.match(ns, b"x" * 32), TypeError, r"keys\[0\].*int"),
        (lambda c, ns: c.match(ns, None), TypeError, "keys.*None"),
        (lambda c, ns: c.match(b"", [bytes(32)]), cairn.InvalidArgumentError, "fingerprint"),
        (
            lambda c, ns: c.match(ns, [bytes(32)], deadline=-1),
            cairn.InvalidArgumentError,
            "deadline.*-1",
        ),
        (
            lambda c, ns: c.match(ns, [bytes(32)], deadline=float("inf")),
            cairn.InvalidArgumentError,
            "deadline.*inf",
        ),
        (lambda c, ns: c.match(ns, [bytes(32)], lease_ttl="long"), TypeError, "lease_ttl.*str"),
        (lambda c, ns: c.push(ns, []), cairn.InvalidArgumentError, "parts"),
        (
            lambda c, ns: c.push(bytes(32), [cairn.Part(bytes(32), b"x")]),
            cairn.InvalidArgumentError,
            "fingerprint.*opened",
        ),
        (lambda c, ns: c.prefetch(ns, [bytes(32)], -1.0), cairn.InvalidArgumentError, "needed_in"),
        (lambda c, ns: c.watch(b"short"), cairn.InvalidArgumentError, "fingerprint"),
        (lambda c, ns: c.fetch(None, [bytearray(1)]), TypeError, None),
    ],
)
def test_wrong_arguments_are_named(node, call, error, text):
    with connect(node) as client:
        ns = client.open_namespace(opaque_spec()).fingerprint
        with pytest.raises(error, match=text):
            call(client, ns)


def test_recipes_that_need_a_codec_are_refused(node):
    with connect(node) as client:
        spec = native_spec(recipe="int8")
        ns = client.open_namespace(spec).fingerprint
        with pytest.raises(cairn.UnimplementedError, match="'recipe'.*int8.*raw"):
            client.push(ns, [cairn.Part(bytes(32), bytes(spec.layout.bytes()))])


def test_of_several_nodes_the_next_one_answers(start_node):
    nodes = {node.grpc: node for node in (start_node(), start_node())}
    with cairn.Client(",".join(nodes), home_key="test") as client:
        ns = client.open_namespace(opaque_spec(), deadline=SLOW).fingerprint
        first = client.stats().home
        nodes[first].kill()
        with client.match(ns, [bytes(32)], holders=["some-node"], deadline=SLOW) as match:
            assert match.matched_blocks == 0
        until = time.monotonic() + SLOW
        while client.stats().home == first:
            assert time.monotonic() < until, "it stays at the dead one"
            client.match(ns, [bytes(32)], deadline=SLOW)
        assert client.stats().home in nodes
        assert client.stats().home_changes == 1


def test_holders_are_checked(node):
    with connect(node) as client:
        ns = client.open_namespace(opaque_spec()).fingerprint
        for holders, error, text in [
            (["n"] * 5, cairn.InvalidArgumentError, "'holders'.*5"),
            ([""], cairn.InvalidArgumentError, r"'holders\[0\]'.*0"),
            ("node", TypeError, "holders.*str"),
            ([1], TypeError, "holders.*int"),
        ]:
            with pytest.raises(error, match=text):
                client.match(ns, [bytes(32)], holders=holders)


def test_hints_for_placement_are_checked(node):
    with connect(node) as client:
        ns = client.open_namespace(opaque_spec()).fingerprint
        for next_use in ("unknown", "soon", "later", "never"):
            client.match(ns, [bytes(32)], next=next_use, deadline=SLOW)
        with pytest.raises(ValueError, match="next: got 'maybe', expected soon, later, never"):
            client.match(ns, [bytes(32)], next="maybe")


def test_a_node_that_is_away_is_an_error_of_the_calls(path):
    with cairn.Client("127.0.0.1:1", path=path) as client:
        spec = opaque_spec()
        with pytest.raises((cairn.UnavailableError, cairn.DeadlineExceededError)) as caught:
            client.open_namespace(spec, deadline=0.1)
        assert caught.value.action == cairn.Action.RETRY_LATER
        with pytest.raises(cairn.UnavailableError):
            for _ in range(5):
                try:
                    client.match(cairn.fingerprint(spec), [bytes(32)])
                except cairn.DeadlineExceededError:
                    pass
        assert not client.stats().connected


@pytest.fixture
def loaded(start_node, path, serial):
    """A node of the test's own, a client, and 64 MiB there."""
    node = start_node("--host.capacity", "512MiB")
    with connect(node, path) as client:
        prompt = Prompt(client, opaque_spec(), serial(), 64, BIG).push(client)
        yield node, client, prompt
    node.thaw() if node_runs(node) else None


def node_runs(node):
    try:
        os.kill(node.pid, 0)
    except ProcessLookupError:
        return False
    return True


class Threaded(threading.Thread):
    """Runs a call; its result or exception, and when it began and ended."""

    def __init__(self, call):
        super().__init__()
        self.call, self.result, self.error, self.begin, self.end = call, None, None, 0.0, 0.0
        self.start()

    def run(self):
        self.begin = time.monotonic()
        try:
            self.result = self.call()
        except Exception as error:  # noqa: BLE001  (the test looks at it)
            self.error = error
        self.end = time.monotonic()

    @property
    def seconds(self):
        return self.end - self.begin


def test_kill_9_during_fetches(loaded):
    """Blocks that were reported complete are right, the rest is an error or a miss; then the client
    is told at once."""
    node, client, prompt = loaded
    match = prompt.match(client)
    outcomes = []

    def fetch_on():
        while True:
            into = [bytearray(BIG) for _ in prompt.keys]
            try:
                fetched = client.fetch(match.lease, into, deadline=SLOW)
            except cairn.Error as error:
                outcomes.append(error)
                fetched = error.fetched
                if fetched is not None:
                    assert into[: fetched.prefix] == prompt.data[: fetched.prefix]
                    assert all(
                        into[i] == prompt.data[i] for i in range(64) if i not in fetched.failed
                    )
                return
            assert all(into[i] == prompt.data[i] for i in range(64) if i not in fetched.failed)

    threads = [Threaded(fetch_on) for _ in range(2)]
    time.sleep(0.2)
    node.kill()
    for thread in threads:
        thread.join(SLOW)
        assert thread.error is None and not thread.is_alive()
    assert {error.code for error in outcomes} <= {
        cairn.Code.UNAVAILABLE,
        cairn.Code.NOT_FOUND,
        cairn.Code.DATA_LOSS,
    }
    assert len(outcomes) == 2
    with pytest.raises((cairn.UnavailableError, cairn.DeadlineExceededError)):
        client.match(prompt.namespace, prompt.keys, deadline=0.5)
    match.lease.release()


def test_kill_9_during_pushes(loaded):
    node, client, prompt = loaded
    stored = []

    def push_on():
        for i in range(1 << 20):
            part = cairn.Part(cairn.block_key(prompt.namespace, [i] * 16), prompt.data[i % 64])
            error = client.push(prompt.namespace, [part])[0]
            if error is not None:
                raise error
            stored.append(i)

    thread = Threaded(push_on)
    time.sleep(0.1)
    node.kill()
    thread.join(SLOW)
    assert isinstance(thread.error, cairn.Error), thread.error
    assert thread.error.action in (
        cairn.Action.RETRY_LATER,
        cairn.Action.REOPEN,
        cairn.Action.TREAT_AS_MISS,
    )


def test_a_node_that_hangs_costs_the_deadline_and_no_gil(loaded):
    """Another thread goes on while a call waits."""
    node, client, prompt = loaded
    node.freeze()
    try:
        thread = Threaded(lambda: client.stat(deadline=2.0))
        steps = []
        while thread.is_alive():
            steps.append(time.monotonic())
            time.sleep(0.001)
        assert isinstance(thread.error, cairn.DeadlineExceededError)
        assert 1.9 < thread.seconds < SLOW
        # While the GIL is held nobody steps; how many steps there are else is a matter of the
        # machine. The margin is for those on the way into the call and out of it.
        assert any(thread.begin + 0.1 < step < thread.end - 0.1 for step in steps)
    finally:
        node.thaw()


def test_cancellation_and_progress(loaded):
    """A fetch whose node hangs in the middle. Over shared memory nothing of it waits for the
    node."""
    node, client, prompt = loaded
    if client.stats().path == "local":
        pytest.skip("what is in memory is read without the node")
    match = prompt.match(client)
    into = [bytearray(BIG) for _ in prompt.keys]
    node.freeze()
    try:
        cancel = cairn.Cancellation()
        thread = Threaded(
            lambda: client.fetch(match.lease, into, progress=600.0, deadline=600.0, cancel=cancel)
        )
        time.sleep(0.2)
        assert thread.is_alive()
        cancel.cancel()
        thread.join(SLOW)
        assert isinstance(thread.error, cairn.CancelledError) and thread.seconds < SLOW
        assert thread.error.action == cairn.Action.STOP
        assert thread.error.fetched is not None and thread.error.fetched.prefix < 64
        with pytest.raises(cairn.DeadlineExceededError):
            client.fetch(match.lease, into, progress=0.2)
    finally:
        node.thaw()


def test_a_cancelled_fetch_does_not_begin(client, serial):
    prompt = Prompt(client, opaque_spec(), serial(), 1, 10).push(client)
    cancel = cairn.Cancellation()
    cancel.cancel()
    with prompt.match(client) as match, pytest.raises(cairn.CancelledError):
        client.fetch(match.lease, [bytearray(10)], cancel=cancel)


def test_close_ends_waiting_calls(loaded):
    _, client, prompt = loaded
    stream = client.watch()
    thread = Threaded(stream.next)
    time.sleep(0.1)
    assert thread.is_alive()
    client.close()
    thread.join(SLOW)
    assert isinstance(thread.error, cairn.Error) and thread.error.code in (
        cairn.Code.CANCELLED,
        cairn.Code.FAILED_PRECONDITION,
    )
    client.close()
    for call in (
        lambda: client.match(prompt.namespace, prompt.keys),
        client.stat,
        client.stats,
        client.watch,
        lambda: client.push(prompt.namespace, prompt.parts()),
        lambda: client.open_namespace(opaque_spec()),
    ):
        with pytest.raises(cairn.FailedPreconditionError, match="closed"):
            call()


def test_a_lease_may_outlive_its_client(node, serial):
    with connect(node) as client:
        lease = Prompt(client, opaque_spec(), serial(), 1, 10).push(client).match(client).lease
    assert lease.held
    lease.release()


def test_a_lease_is_of_its_client(node, path, serial):
    with connect(node, path) as one, connect(node, path) as two:
        prompt = Prompt(one, opaque_spec(), serial(), 1, 10).push(one)
        match = prompt.match(one)
        two.open_namespace(opaque_spec())
        with pytest.raises(cairn.NotFoundError):
            two.fetch(match.lease, [bytearray(10)])


def python(script, *arguments):
    """Another interpreter, so that its end can be seen."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=SLOW,
        check=False,
    )


SETUP = """
    import os, sys, threading, time, cairn
    sys.path.insert(0, sys.argv[2])
    from conftest import Prompt, connect, opaque_spec
    class Node: grpc = sys.argv[1]
    client = connect(Node, sys.argv[3])
    prompt = Prompt(client, opaque_spec(), int(sys.argv[4]), 2, 1000).push(client)
    match = prompt.match(client)
"""


@pytest.mark.parametrize(
    "end",
    ["", "sys.exit(0)", "os._exit(0)", "import gc; cycle = [match, client]; cycle.append(cycle)"],
)
def test_an_interpreter_may_end_with_leases_out(node, path, serial, end):
    done = python(
        SETUP + f"\n    print('alive', flush=True)\n    {end}\n",
        node.grpc,
        os.path.dirname(__file__),
        path,
        str(serial()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_an_interpreter_may_end_while_threads_wait(node, path, serial):
    done = python(
        SETUP
        + """
    stream = client.watch()
    def wait():
        try:
            stream.next()
        except cairn.Error:
            pass
    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.1)
    print("alive", flush=True)
    """,
        node.grpc,
        os.path.dirname(__file__),
        path,
        str(serial()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_an_interpreter_may_end_while_threads_come_back_from_a_wait(node, path, serial):
    """Python ends a daemon thread that asks for the GIL too late: it must not end the process."""
    done = python(
        SETUP
        + """
    def wait(stream):
        while True:
            stream.next(0.0001)
    cairn.client.atexit.unregister(cairn.client._close_clients)
    for _ in range(16):
        threading.Thread(target=wait, args=[client.watch()], daemon=True).start()
    time.sleep(0.1)
    print("alive", flush=True)
    """,
        node.grpc,
        os.path.dirname(__file__),
        path,
        str(serial()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_ctrl_c_interrupts_a_watch(node, path, serial):
    done = python(
        SETUP
        + """
    threading.Timer(0.2, lambda: os.kill(os.getpid(), 2)).start()
    try:
        with client.watch(prompt.namespace) as stream:
            for event in stream:
                pass
    except KeyboardInterrupt:
        print("interrupted")
    """,
        node.grpc,
        os.path.dirname(__file__),
        path,
        str(serial()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


def test_a_fork_is_told_and_harms_nobody(node, path, serial):
    done = python(
        SETUP
        + """
    asked = [client.begin_match(prompt.namespace, prompt.keys, deadline=10) for _ in range(100)]
    child = os.fork()
    if child == 0:
        failed = 0
        for one in asked:  # Those that were not answered before the fork never will be.
            try:
                one.result().lease.release()
            except cairn.FailedPreconditionError as error:
                assert "fork" in error.message, error
        for call in (
            client.stat,
            client.stats,
            lambda: prompt.match(client),
            lambda: client.push(prompt.namespace, prompt.parts()),
            lambda: client.fetch(match.lease, [bytearray(1000), bytearray(1000)]),
            lambda: cairn.Client(Node.grpc),
        ):
            try:
                call()
            except cairn.FailedPreconditionError as error:
                failed += "fork" in error.message
        match.lease.release()
        del match
        client.close()
        del client
        sys.exit(0 if failed == 6 else 1)
    status = os.waitpid(child, 0)[1]
    assert all(one.result().matched_blocks == 2 for one in asked)
    into = [bytearray(1000), bytearray(1000)]
    client.fetch(match.lease, into)
    print(status, into == prompt.data)
    """,
        node.grpc,
        os.path.dirname(__file__),
        path,
        str(serial()),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 True\n", "")


def test_who_forks_before_the_first_client_may_have_one(node):
    done = python(
        """
    import os, sys, cairn
    child = os.fork()
    with cairn.Client(sys.argv[1]) as client:
        client.open_namespace(
            cairn.NamespaceSpec("m", "1", cairn.OpaqueLayout("d", 1), "n"), deadline=10
        )
        client.stat(deadline=10)
    if child != 0:
        print(os.waitpid(child, 0)[1])
    """,
        node.grpc,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
