"""Real vLLM servers that publish their events, and a cairn-router that follows these."""

import json

from conftest import BUILD, Server, free_port, wait_until
from serve import Serve


class RoutedEngines:
    """`count` servers of the same model. `block`: the tokens of a block, for both sides."""

    def __init__(
        self, stack, count, model, block, arguments, engine_log, router_log, policy="cost"
    ):
        self.engines, followed = [], []
        for _ in range(count):
            events, replay = free_port(), free_port()
            published = {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{events}",
                "replay_endpoint": f"tcp://*:{replay}",
            }
            engine = Serve(
                [
                    *(model, "--block-size", block, "--enforce-eager"),
                    *("--enable-prompt-tokens-details", *arguments),
                    *("--kv-events-config", json.dumps(published)),
                ],
                engine_log(),
                free_port(),
                wait=False,
                # For reset_prefix_cache.
                environment={"VLLM_SERVER_DEV_MODE": "1"},
            )
            self.engines.append(stack.enter_context(engine))
            followed.append(f"{engine.url}=tcp://127.0.0.1:{events},tcp://127.0.0.1:{replay}")
        for engine in self.engines:
            engine.wait_ready()
        self.router = stack.enter_context(
            Server(
                [
                    BUILD / "bin/cairn-router",
                    *("--listen", "127.0.0.1:0", "--admin.listen", "127.0.0.1:0"),
                    *("--http.listen", "127.0.0.1:0"),
                    *("--workers", ",".join(engine.url for engine in self.engines)),
                    *("--engines.block_tokens", block, "--policy", policy),
                    *("--engines.events", ",".join(followed)),
                ],
                router_log,
            )
        )
        for name in ('workers{condition="ready"}', 'engine_event_streams{condition="connected"}'):
            wait_until(lambda name=name: self.metric(name) == count, 30, name)

    def metric(self, name):
        return self.router.metric("cairn_router_" + name)
