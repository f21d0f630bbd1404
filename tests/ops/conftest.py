"""Shared fixtures. CAIRN_BUILD names the build directory with the programs (default
build/release)."""

import os
import pathlib
import signal

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# A shell starts what it runs in the background with SIGINT ignored, and each program hands that
# down: those that tests interrupt would not notice.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def root():
    return ROOT


@pytest.fixture(scope="session")
def programs():
    """Folder with cairn, cairn-cache, cairn-worker and cairn-router."""
    folder = pathlib.Path(os.environ.get("CAIRN_BUILD", ROOT / "build/release")) / "bin"
    assert (folder / "cairn-cache").exists(), f"{folder}/cairn-cache is not built"
    return folder


@pytest.fixture(scope="session")
def networks():
    """This machine lets us make network namespaces; otherwise the test is skipped."""
    from small_cluster.network import make_namespace

    try:
        os.close(make_namespace())
    except OSError as error:
        pytest.skip(f"no network namespaces: {error}")


@pytest.fixture(scope="module")
def chart(root):
    from rendered_chart import Chart

    return Chart(root / "helm/cairn")


@pytest.fixture(scope="module")
def mounted(tmp_path_factory):
    """Files where pods would have them, and programs that read them."""
    from mounted_files import MountedFiles

    return MountedFiles(tmp_path_factory.mktemp("mounted"))


@pytest.fixture
def release(networks, chart, programs, tmp_path):
    """The chart in a small cluster, before anything is installed."""
    from cairn_cluster import start

    made = start(chart, tmp_path, programs)
    yield made
    made.cluster.close()
