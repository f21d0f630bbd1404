"""llama.cpp on the same GGUF file: the yardstick for decode.

    llama_bench.py MODEL.gguf [THREADS]

Reads lines like "prefill 512" or "decode 512" and answers each with a JSON line, tokens per second.
"""

import json
import sys
import time

import llama_cpp.llama_cpp as bindings
from llama_cpp import Llama

# Its AMX path reads tiles that it has not configured on its worker threads (an illegal instruction
# on Sapphire Rapids, version 0.3.36). The path is chosen with the weight buffers, so those are the
# ordinary ones here.
_default_params = bindings.llama_model_default_params


def _without_extra_buffers():
    params = _default_params()
    params.use_extra_bufts = False
    return params


bindings.llama_model_default_params = _without_extra_buffers


def main():
    threads = int(sys.argv[2]) if len(sys.argv) > 2 else 2
    model = Llama(
        sys.argv[1],
        n_ctx=4352,
        n_batch=512,
        n_ubatch=512,
        n_threads=threads,
        n_threads_batch=threads,
        logits_all=False,
        verbose=False,
    )
    for line in sys.stdin:
        what, n = line.split()
        n = int(n)
        ids = [(1000 + i * 7919 % 40000) % model.n_vocab() for i in range(n + 64)]
        model.reset()
        start = time.perf_counter()
        model.eval(ids[:n])
        rate = n / (time.perf_counter() - start)
        if what == "decode":
            steps = 64
            start = time.perf_counter()
            for i in range(n, n + steps):
                model.eval(ids[i : i + 1])
            rate = steps / (time.perf_counter() - start)
        print(
            json.dumps(
                {"engine": "llama.cpp", "what": what, "n": n, "value": rate, "unit": "tok/s"}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
