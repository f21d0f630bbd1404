"""A vLLM engine in a process of its own, driven by JSON lines: one command in, one answer out.

vllm_engine.py '{"model": "...", "connector": {...}, ...}'     keyword arguments of vllm.LLM, and:
  connector   kv_connector_extra_config of CairnConnector; absent: no connector. Without "fetch",
              every hit is taken, so that hits do not depend on how busy the machine is
  role        kv_role of CairnConnector, kv_both if absent
  offload     kv_connector_extra_config of vLLM's own offloading, with CairnTier below
  on_device   true: the connector takes the engine's pages as if they lay on a GPU
  lmcache     true: LMCache's connector, configured by LMCACHE_CONFIG_FILE
{"prompts": [[1, 2, ...], ...], "tokens": 8, "salts": [...], "transfer": {...},
 "lora": [name, number, path]}   -> one answer for each prompt, which may be, in place of tokens:
                {"embeddings": file of torch.save}, or
                {"text": "...", "sound": file of numpy, "uuid": the caller's name of it, or absent}
{"reset": true}                  -> engine's reset of prefix cache and connector
{"namespace": true}              -> what the KV is stored under, pickled, as hex
{"counters": true}               -> the adapter's counters since the start, by name
"""

import gc
import json
import os
import pickle
import sys
import time

ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # More threads than idle cores wait for each other in every layer.
    "OMP_NUM_THREADS": "1",
    # Else minutes are spent on finding out who we are.
    "VLLM_HOST_IP": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    # Else the first request with log-probabilities compiles C++ for 20 s.
    "TORCHDYNAMO_DISABLE": "1",
}


def transfer_config(connector, offload, lmcache=False, on_device=False, role="kv_both"):
    """The value that users give to --kv-transfer-config."""
    if connector is not None:
        connector = {"fetch": "always", **connector}
    if on_device:
        return {
            "kv_connector": "DeviceConnector",
            "kv_connector_module_path": "device_connector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": connector,
        }
    if lmcache:
        return {
            "kv_connector": "CpuLMCacheConnector",
            "kv_connector_module_path": "cpu_lmcache",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
        }
    if offload is not None:
        return {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": offload,
        }
    return {
        "kv_connector": "CairnConnector",
        "kv_connector_module_path": "cairn.vllm",
        "kv_role": role,
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": connector,
    }


def prompt_of(item):
    """A prompt as vLLM takes it."""
    if isinstance(item, list):
        return {"prompt_token_ids": item}
    if "embeddings" in item:
        import torch

        return {"prompt_embeds": torch.load(item["embeddings"])}
    import numpy

    prompt = {
        "prompt": item["text"],
        "multi_modal_data": {"audio": [(numpy.load(item["sound"]), 16000)]},
    }
    if "uuid" in item:
        prompt["multi_modal_uuids"] = {"audio": [item["uuid"]]}
    return prompt


def answer(output, first, end, turns):
    [out] = output.outputs
    return {
        "ids": list(out.token_ids),
        "logprobs": [
            round(step[token].logprob, 5) for step, token in zip(out.logprobs, out.token_ids)
        ],
        "cached": output.num_cached_tokens,
        "turns": turns,
        "ttft": first,
        "seconds": end,
        "finish": out.finish_reason,
    }


class Driver:
    def __init__(self, options):
        from vllm import LLM

        connector, offload, lmcache, on_device = (
            options.pop("connector", None),
            options.pop("offload", None),
            options.pop("lmcache", False),
            options.pop("on_device", False),
        )
        role = options.pop("role", "kv_both")
        if connector is not None or offload is not None or lmcache:
            options["kv_transfer_config"] = transfer_config(
                connector, offload, lmcache, on_device, role
            )
        text = os.path.exists(os.path.join(options["model"], "tokenizer.json"))
        self.llm = LLM(
            **{
                "dtype": "float32",
                "enforce_eager": True,
                "enable_prefix_caching": False,
                "seed": 0,
                "skip_tokenizer_init": not text,
                **options,
            }
        )
        self.count = 0

    def prompts(self, command):
        from vllm import SamplingParams
        from vllm.lora.request import LoRARequest

        prompts = command["prompts"]
        extra = {"kv_transfer_params": command["transfer"]} if "transfer" in command else None
        sampling = SamplingParams(
            temperature=0,
            max_tokens=command.get("tokens", 8),
            logprobs=0,
            detokenize=False,
            ignore_eos=True,
            extra_args=extra,
        )
        engine, begin, first, last, names = self.llm.llm_engine, time.monotonic(), {}, {}, []
        turns, lora = {}, LoRARequest(*command["lora"]) if command.get("lora") else None
        for item, salt in zip(prompts, command.get("salts") or [None] * len(prompts)):
            self.count += 1
            names.append(str(self.count))
            engine.add_request(
                names[-1],
                {**prompt_of(item), **({"cache_salt": salt} if salt else {})},
                sampling,
                lora_request=lora,
            )
        while engine.has_unfinished_requests():
            for output in engine.step():
                now = time.monotonic() - begin
                if output.outputs and output.outputs[0].token_ids:
                    first.setdefault(output.request_id, now)
                    turns.setdefault(output.request_id, set()).add(len(output.outputs[0].token_ids))
                last[output.request_id] = (output, now)
        return [
            answer(last[name][0], first[name], last[name][1], len(turns[name])) for name in names
        ]

    def reset(self, command):
        return self.llm.llm_engine.reset_prefix_cache(reset_connector=True)

    def stores(self):
        """Of an engine whose scheduler is in this process."""
        from cairn._engine.store import Store

        gc.unfreeze()  # vLLM hides what is there after the start.
        return [item for item in gc.get_objects() if isinstance(item, Store)]

    def namespace(self, command):
        return pickle.dumps(self.stores()[0].spec).hex()

    def counters(self, command):
        totals = [store.counters.totals() for store in self.stores()]
        return {name: sum(one[name] for one in totals) for name in totals[0]}


def main():
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # vLLM writes to standard output; answers must stand alone there.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    driver = Driver(json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        command = json.loads(line)
        names = ("prompts", "reset", "namespace", "counters")
        name = next(name for name in names if name in command)
        print(json.dumps({"answer": getattr(driver, name)(command)}), file=answers)


if __name__ == "__main__":
    main()
