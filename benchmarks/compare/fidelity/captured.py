"""One text's attention layers after a prefill: what reference methods choose rows from.

A method is run(layers, ratio) -> masks [layers, kv_heads, tokens] of the rows that stay, with the
layers of one text as Captured and the share of rows that goes.
"""

import functools
import math
import types

import torch


class Captured:
    """One attention layer after a prefill, with what presses read of a module.

    k, v [kv_heads, tokens, dim], q [heads, tokens, dim], k and q after RoPE; projection [hidden,
    heads * dim]; cos and sin of RoPE [positions, dim].
    """

    def __init__(self, index, layers, k, v, q, projection, cos, sin):
        self.k, self.v, self.q = k, v, q
        self.cos, self.sin = cos, sin
        self.kv_heads, self.tokens, self.head_dim = k.shape
        self.heads = q.shape[0]
        self.layer_idx = index
        self.num_key_value_groups = self.heads // self.kv_heads
        self.config = types.SimpleNamespace(
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            hidden_size=projection.shape[0],
            num_hidden_layers=layers,
            _attn_implementation="sdpa",
        )
        self.o_proj = types.SimpleNamespace(weight=projection)
        self.masked_key_indices = None
        # Which tokens are punctuation, [tokens]; only sepllm asks, who has the text says.
        self.separators = None

    def rotary_emb(self, _, positions):
        return self.cos[positions], self.sin[positions]

    # Rows of the hidden state are their numbers: queries come from the capture.
    def hidden(self):
        return torch.arange(self.tokens, dtype=torch.float32).view(1, self.tokens, 1)

    def rotated_queries(self, hidden):
        return self.q[:, hidden[0, :, 0].long()][None]

    def plain_queries(self, hidden):
        rows = hidden[0, :, 0].long()
        q, half = self.q[:, rows], self.head_dim // 2
        turned = torch.cat((q[..., half:], -q[..., :half]), -1)
        return (q * self.cos[rows] + turned * self.sin[rows])[None]

    def by_group(self, x):
        return x.view(self.kv_heads, self.num_key_value_groups, *x.shape[1:])

    def attention(self, begin, end):
        """Causal softmax of the queries `begin` to `end`: [heads, end - begin, end]."""
        k = self.k[:, :end].repeat_interleave(self.num_key_value_groups, 0)
        logits = self.q[:, begin:end] @ k.transpose(1, 2) / math.sqrt(self.head_dim)
        future = torch.arange(end)[None, :] > torch.arange(begin, end)[:, None]
        return logits.masked_fill_(future, -math.inf).softmax(-1)

    def last_attention(self, rows):
        """Causal softmax of the last `rows` queries: [heads, rows, tokens]."""
        return self.attention(self.tokens - rows, self.tokens)

    @functools.cached_property
    def attention_sums(self):
        """The weight that each row gets from all queries: [heads, tokens]."""
        sums = torch.zeros(self.heads, self.tokens)
        for begin in range(0, self.tokens, 128):
            end = min(begin + 128, self.tokens)
            sums[:, :end] += self.attention(begin, end).sum(1)
        return sums

    @functools.cached_property
    def projected_norm(self):
        """L1 norm of each value after the output projection, mean over the group: [kv_heads,
        tokens]."""
        w = self.o_proj.weight.T.reshape(self.heads, self.head_dim, -1)
        v = self.v.repeat_interleave(self.num_key_value_groups, 0)
        return self.by_group((v @ w).abs().sum(-1)).mean(1)


def kept_rows(layer, ratio):
    return max(1, int(layer.tokens * (1 - ratio)))


def top(scores, count, forced=None):
    """Marks of the `count` largest of a flat tensor, the forced ones among them."""
    scores = scores.flatten().clone()
    if forced is not None:
        scores[forced.flatten()] = math.inf
    marks = torch.zeros(scores.numel(), dtype=torch.bool)
    marks[torch.sort(scores, descending=True, stable=True).indices[:count]] = True
    return marks
