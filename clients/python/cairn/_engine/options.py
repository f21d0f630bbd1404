"""The settings of an adapter. Engines pass them as a dictionary from their own configuration."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from cairn.types import Tls

__all__ = ["TIER_WITHOUT", "Options", "choice"]

_O = TypeVar("_O", bound="Options")
TIER_WITHOUT = (
    "save_buffer",
    "save_generated",
)  # vLLM itself decides what goes to its tiers, and when.
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def choice(default: str, *others: str) -> Any:
    """A field with one of these texts."""
    return dataclasses.field(default=default, metadata={"choices": (default, *others)})


@dataclass(frozen=True)
class Options:
    """Settings that all adapters have. Times in seconds."""

    address: str = "127.0.0.1:7400"
    """The node: host:port or unix:/path. Several with commas between them, or dns:name:port for all
    addresses of a name: one of them is used at a time."""
    host: str = ""
    """This machine, as the nodes' cluster.host call theirs; of several nodes, one there is
    preferred."""
    zone: str = ""
    """This machine's network zone, as the nodes' cluster.zone call theirs."""
    home_key: str = ""
    """If there are several nodes, all processes with the same text prefer the same one, and so must
    all processes of one engine. Empty: the name of the machine."""
    path: Literal["auto", "grpc", "local"] = choice("auto", "local", "grpc")
    """How bytes come: "auto" (shared memory where the node is a neighbour), "local" or "grpc"."""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    tls_server_name: str = ""
    """The name in the node's certificate; empty: that of the address."""
    tenant: str = "default"
    """The tenant that the KV belongs to."""
    salt: str = ""
    """Separates keys of one tenant's groups."""
    revision: str = ""
    """Digest of the weights or exact revision; empty: found out from the model's files."""
    weight_epoch: int = 0
    """Raise it after each update of the weights that the files do not show."""
    block_life: float = 0.0
    """Seconds that a block is served after its last use; 0: as long as the node says."""
    lookup_timeout: float = 0.05
    """After this a look-up is a miss."""
    load_timeout: float = 5.0
    """After this a load has failed and the engine computes."""
    save_timeout: float = 10.0
    """After this a store has failed, which is a later miss."""
    save_buffer: int = 256 << 20
    """Bytes of blocks on their way to the node; more are dropped. In text with a unit: "1GiB"."""
    save_generated: bool = False
    """Store blocks with generated tokens too, not prompts alone."""

    @property
    def tls(self) -> Tls | None:
        """None: no TLS."""
        if not (self.tls_ca or self.tls_cert or self.tls_key):
            return None
        return Tls(
            ca_file=self.tls_ca,
            cert_file=self.tls_cert,
            key_file=self.tls_key,
            server_name=self.tls_server_name,
        )

    @classmethod
    def read(
        cls: type[_O], settings: Mapping[str, Any], prefix: str = "", without: Collection[str] = ()
    ) -> _O:
        """ValueError names a setting that does not exist, or whose value is not valid.

        `prefix`: what users write before the name of a setting, such as
        "kv_connector_extra_config.". `without`: settings that this adapter has no use for.
        """
        fields = {
            field.name: field for field in dataclasses.fields(cls) if field.name not in without
        }
        if not isinstance(settings, Mapping):
            raise ValueError(
                f"setting '{prefix.rstrip('.')}': got {settings!r}, "
                "expected an object with settings"
            )
        values: dict[str, Any] = {}
        for name, value in settings.items():
            if name not in fields:
                raise ValueError(
                    f"setting '{prefix}{name}' does not exist, "
                    f"expected one of {', '.join(sorted(fields))}"
                )
            values[name] = _convert(prefix + name, value, fields[name])
        return cls(**values)


def _convert(name: str, value: Any, field: dataclasses.Field[Any]) -> Any:
    default: Any = field.default
    wanted = type(default)
    if (
        wanted is int
        and isinstance(value, str)
        and (size := re.fullmatch(r"(\d+) ?([KMG]iB|B|)", value))
    ):
        value = int(size[1]) * _UNITS[size[2]]
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not wanted:
        words = {
            str: "a text",
            int: 'an integer, or a text such as "1GiB" for bytes',
            float: "a number",
            bool: "true or false",
        }
        raise ValueError(f"setting '{name}': got {value!r}, expected {words[wanted]}")
    if wanted in (int, float) and not 0 <= value < math.inf:
        raise ValueError(f"setting '{name}': got {value!r}, expected a finite number of at least 0")
    if name.endswith("tenant") and not value:
        raise ValueError(f"setting '{name}': got an empty text, expected a name")
    choices = field.metadata.get("choices")
    if choices and value not in choices:
        *others, last = choices
        raise ValueError(f"setting '{name}': got {value!r}, expected {', '.join(others)} or {last}")
    return value
