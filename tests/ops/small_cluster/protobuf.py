"""Reads a Secret or Namespace as `kubectl create` sends it: in Kubernetes' envelope of protocol
buffers, which begins with k8s and a zero."""

import base64

MAGIC = b"k8s\0"


def _number(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def _fields(data):
    """(number of the field, its bytes) of a message. Numbers are left out: no text is one."""
    at = 0
    while at < len(data):
        key, at = _number(data, at)
        if key & 7 == 0:
            _, at = _number(data, at)
        elif key & 7 == 2:
            size, at = _number(data, at)
            yield key >> 3, data[at : at + size]
            at += size
        else:
            raise NotImplementedError(f"wire type {key & 7}")


def _texts(data, numbers):
    """{name: text} of the fields whose numbers have names."""
    return {numbers[n]: value.decode() for n, value in _fields(data) if n in numbers}


def _entry(data):
    entry = dict(_fields(data))
    return entry[1].decode(), entry.get(2, b"")


def read(body):
    """The object of a request's body. NotImplementedError: it is another kind."""
    envelope = dict(_fields(body.removeprefix(MAGIC)))
    about = _texts(envelope[1], {1: "apiVersion", 2: "kind"})
    if about not in ({"apiVersion": "v1", "kind": kind} for kind in ("Namespace", "Secret")):
        raise NotImplementedError(f"protocol buffers of {about}")
    made = {**about, "metadata": {}}
    for number, value in _fields(envelope[2]):
        if number == 1:
            made["metadata"] = _texts(value, {1: "name", 3: "namespace"})
        elif about["kind"] == "Namespace":
            continue  # Its spec has finalizers.
        elif number == 2:
            name, data = _entry(value)
            made.setdefault("data", {})[name] = base64.b64encode(data).decode()
        elif number == 3:
            made["type"] = value.decode()
    return made
