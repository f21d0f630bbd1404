"""LMCache next to Cairn. A group of its own: LMCache is in the environment of the engine tests, and
without it `peers` runs all the same."""

from rows import peers

NAMES = [
    f"lmcache_{what}_{size}_{path}"
    for size in ("64k_x16", "1m_x16", "4m_x16")
    for what in ("get", "put")
    for path in ("grpc", "local")
]


def missing():
    return peers.not_installed("lmcache")


def run(build, _model, repeat, work):
    return peers.compare(build, repeat, work / "peers_lmcache.json", "lmcache")
