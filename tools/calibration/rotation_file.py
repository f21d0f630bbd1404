"""Writes a calibration file of rotations: docs/methods/calibration.md."""

import hashlib
import pathlib

from head_file import sha256_of


def write(folder, model_path, heads, about):
    """heads: [layers][kv_heads] pairs of directions [dim, dim], one a row, and of what the queries
    say of each, [dim]; torch tensors. about: lines for people. Returns the file's path."""
    lines = [
        "cairn key-rotations 1",
        *("# " + line for line in about),
        f"weights {sha256_of(model_path)}",
        f"layers {len(heads)}",
        f"kv_heads {len(heads[0])}",
        f"head_dim {len(heads[0][0][1])}",
    ]
    body = "".join(line + "\n" for line in lines).encode()
    for layer in heads:
        for directions, queries in layer:
            body += b"".join(
                x.half().numpy().astype("<f2").tobytes() for x in (queries, directions)
            )
    path = pathlib.Path(folder) / (hashlib.sha256(body).hexdigest() + ".rotations")
    path.write_bytes(body)
    return path
