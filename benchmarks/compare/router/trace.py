"""Requests of a trace as prompts whose text stands for its blocks (engine_ask.h)."""

import hashlib
import json
import math

BLOCK_TOKENS = 512
BLOCK_CHARS = 64
CHAR_TOKENS = BLOCK_TOKENS // BLOCK_CHARS
# Characters of a token of ordinary text, and so how much shorter these prompts are.
SHORTER = 4 * CHAR_TOKENS
# The formula of benchmarks/model/worker_model.h, without any hit.
PREFILL_RATE, DECODE_SECONDS, CONTEXT_UNIT = 8000, 0.00015, 60_000
LAST_SPAN = 3.0  # Seconds that requests of the last stamp are spread over.


class Request:
    """arrival: seconds since the first one, at the load that read() was asked for."""

    __slots__ = ("arrival", "input_tokens", "output_tokens", "blocks")

    def __init__(self, line):
        self.arrival = line["timestamp"] / 1000
        self.input_tokens = line["input_length"]
        self.output_tokens = line["output_length"]
        self.blocks = line["hash_ids"]

    def work(self):
        prefill = self.input_tokens / PREFILL_RATE * (1 + self.input_tokens / 2 / CONTEXT_UNIT)
        return prefill + self.output_tokens * DECODE_SECONDS * (
            1 + self.input_tokens / CONTEXT_UNIT
        )

    def text(self):
        """64 characters a block, the last one shorter. Blocks differ from the first one on."""
        pieces = [hashlib.sha256(b"%d" % block).hexdigest() for block in self.blocks]
        return "".join(pieces)[: math.ceil(self.input_tokens / CHAR_TOKENS)]


def read(path, count, load, engines):
    """The first `count` requests (0: all).

    Their arrivals are spread evenly over the trace's stamps, and sped up so that their work without
    any hit is `load` times what the engines can do meanwhile.
    """
    requests = []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if 0 < count == len(requests):
                break
            requests.append(Request(json.loads(line)))
    begin = 0
    while begin < len(requests):
        stamp = requests[begin].arrival
        end = begin
        while end < len(requests) and requests[end].arrival == stamp:
            end += 1
        span = requests[end].arrival - stamp if end < len(requests) else LAST_SPAN
        for i in range(begin, end):
            requests[i].arrival = stamp + span * (i - begin) / (end - begin)
        begin = end
    busy = sum(request.work() for request in requests) / engines
    factor = busy / load / requests[-1].arrival
    for request in requests:
        request.arrival *= factor
    return requests
