"""Writes a calibration file of head scores: docs/methods/calibration.md."""

import hashlib
import pathlib


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def write(folder, method, model_path, scores, about):
    """scores: [layers][kv_heads], larger: the head keeps more. about: lines for people. Returns the
    file's path."""
    lines = [
        "cairn head-scores 1",
        *("# " + line for line in about),
        f"method {method}",
        f"weights {sha256_of(model_path)}",
        f"layers {len(scores)}",
        f"kv_heads {len(scores[0])}",
        *(" ".join(f"{s:.5f}" for s in layer) for layer in scores),
    ]
    body = "".join(line + "\n" for line in lines).encode()
    path = pathlib.Path(folder) / (hashlib.sha256(body).hexdigest() + ".heads")
    path.write_bytes(body)
    return path
