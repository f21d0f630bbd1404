"""kvpress's presses on captured keys, values and queries, and in torch methods that it lacks: what
Cairn's selections are compared with.

A method is run(layers, ratio) -> masks [layers, kv_heads, tokens] of the rows that stay, with the
layers of one text as Captured and the share of rows that goes. Presses run without hooks: they get
what a hook would give them. kvpress 0.5.5.
"""

import functools
import math
import types

import numpy as np
import torch
import torch.nn.functional as F

from kvpress.presses import expected_attention_press, snapkv_press


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
        """What each row gets from all queries: [heads, tokens]."""
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


def queries_of_capture(module_of_kvpress, queries):
    """Lets presses of that module of kvpress take a Captured layer's queries; other layers compute
    theirs."""
    compute = module_of_kvpress.get_prerope_query_states
    module_of_kvpress.get_prerope_query_states = lambda layer, hidden: (
        queries(layer, hidden) if isinstance(layer, Captured) else compute(layer, hidden)
    )


# The window's queries are captured after RoPE, so the presses rotate them by nothing; the expected
# ones are turned back.
queries_of_capture(snapkv_press, Captured.rotated_queries)
queries_of_capture(expected_attention_press, Captured.plain_queries)


def signatures(rows):
    """A number for each row of bits, [..., dim] -> [...]: equal rows have equal ones."""
    factors = torch.randint(
        -(2**62), 2**62, (rows.shape[-1],), generator=torch.Generator().manual_seed(1)
    )
    return (rows.contiguous().view(torch.int32) * factors).sum(-1)


def kept_by(layer, keys):
    """Mask [kv_heads, tokens] of the rows whose keys [kv_heads, kept, dim] came back, in any order;
    no two rows have the same key."""
    kept = torch.stack([torch.isin(a, b) for a, b in zip(signatures(layer.k), signatures(keys))])
    assert (kept.sum(-1) == keys.shape[1]).all()
    return kept


def all_but(masked, layer):
    """Mask [kv_heads, tokens] without the indices that kvpress's ragged presses leave at a
    module."""
    kept = torch.ones(layer.kv_heads, layer.tokens, dtype=torch.bool)
    _, heads, rows = masked
    kept[heads, rows] = False
    return kept


def with_kvpress(press):
    def run(layers, ratio):
        masks = []
        for layer in layers:
            press.compression_ratio = ratio
            layer.masked_key_indices = None
            no_turn = (
                torch.ones(1, layer.tokens, layer.head_dim),
                torch.zeros(1, layer.tokens, layer.head_dim),
            )
            keys, _ = press.compress(
                layer,
                layer.hidden(),
                layer.k[None],
                layer.v[None],
                None,
                {"position_embeddings": no_turn},
            )
            masks.append(
                kept_by(layer, keys[0])
                if layer.masked_key_indices is None
                else all_but(layer.masked_key_indices, layer)
            )
        return torch.stack(masks)

    return run


def ranked_by_kvpress(press):
    """As with_kvpress, but of equal scores the earlier row is taken: torch leaves that open."""

    def run(layers, ratio):
        press.compression_ratio = ratio
        masks = []
        for layer in layers:
            scores = press.score(layer, layer.hidden(), layer.k[None], layer.v[None], None, {})[0]
            masks.append(torch.stack([top(s, kept_rows(layer, ratio)) for s in scores]))
        return torch.stack(masks)

    return run


# --- Definitions of what kvpress has not, from the papers' formulas ---


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


def defensive_layer(layer, ratio, window, pool, mass, authors=False):
    """Scores and forced marks [kv_heads, tokens]; the window is forced.

    `authors`: stage 1 as in the authors' program: shares of the attention to the ranked rows, one
    share of the window for the layer (of the last ranked rows: the program cuts the window away
    before it looks), and at most int((tokens - window) * keep - window) rows. Else stage 1 is what
    the paper says of it: all attention, of which each head's window has its share.
    """
    rest = layer.tokens - window
    a = layer.last_attention(window)[..., :rest]
    pooled = F.avg_pool1d(a, 2 * pool + 1, 1, pool)
    pooled = pooled * (a.sum(-1, keepdim=True) / pooled.sum(-1, keepdim=True))
    s = layer.by_group(pooled).amax(dim=(1, 2))
    s = torch.maximum(s, s.mean(-1, keepdim=True))
    norm = layer.projected_norm
    s = s * (norm / norm.sum(0, keepdim=True))[:, :rest]
    mean = layer.by_group(a).mean(dim=(1, 2))
    share = 1 - mean.sum(-1)
    most = kept_rows(layer, ratio) - window
    if authors:
        share = a[..., -window:].sum(-1).mean().expand(layer.kv_heads)
        mean = mean / mean.sum(-1, keepdim=True)
        most = max(0, int(round(rest * (1 - ratio), 6) - window))
    forced = torch.zeros(layer.kv_heads, layer.tokens, dtype=torch.bool)
    forced[:, rest:] = True
    for h in range(layer.kv_heads):
        order = torch.sort(mean[h], descending=True, stable=True).indices
        total = mean[h][order].cumsum(0)
        reach = torch.nonzero(total >= mass - share[h])
        count = int(reach[0]) if len(reach) else 0
        forced[h, order[: min(count, most)]] = True
    return F.pad(s, (0, window)), forced


def defensive(window, pool, mass, whole, authors=False):
    """DefensiveKV; `whole`: the budget is one for all layers."""

    def run(layers, ratio):
        scores, forced = zip(
            *(defensive_layer(layer, ratio, window, pool, mass, authors) for layer in layers)
        )
        per_layer = layers[0].kv_heads * kept_rows(layers[0], ratio)
        if whole:
            return top(torch.stack(scores), per_layer * len(layers), torch.stack(forced)).view(
                len(layers), *scores[0].shape
            )
        return torch.stack([top(s, per_layer, f).view(s.shape) for s, f in zip(scores, forced)])

    return run


def window_scores(layer, window, reach, pooling):
    """SnapKV's scores of the rows before the window, [kv_heads, tokens - window].

    `pooling`: "mean"; "max", of each query head before the group's mean; "max-of-group", after it,
    as the programs of Ada-KV and KVCache-Factory have it.
    """
    mean = layer.last_attention(window)[..., : layer.tokens - window].mean(1)
    pool = F.avg_pool1d if pooling == "mean" else F.max_pool1d
    if pooling == "max-of-group":
        return pool(layer.by_group(mean).mean(1), 2 * reach + 1, 1, reach)
    return layer.by_group(pool(mean, 2 * reach + 1, 1, reach)).mean(1)


def best_beside_window(scores, budgets, window):
    """Masks [kv_heads, tokens]: each head's best rows, as many as its budget says, and the
    window."""
    best = torch.stack([top(s, int(n)) for s, n in zip(scores, budgets)])
    return F.pad(best, (0, window), value=True)


def in_whole_rows(thousandths, total):
    """Thousandths of rows, integers, to `total` whole rows by largest remainders; of equal ones the
    first."""
    rows = [t // 1000 for t in thousandths]
    order = sorted(range(len(rows)), key=lambda i: (-(thousandths[i] % 1000), i))
    for i in order[: total - sum(rows)]:
        rows[i] += 1
    return rows


def mixed_budgets(scores, even, alpha):
    """Ada-KV as its authors' program has it: (1 - alpha) of a head's rows among the layer's best,
    and alpha of an even share."""
    best = top(scores, even * len(scores)).view(scores.shape).sum(-1)
    share = [(1000 - alpha) * int(f) + alpha * even for f in best]
    return in_whole_rows(share, even * len(scores))


def pyramid_beside(tokens, layers, kept, window, beta):
    """Rows beside the window of each layer as in the authors' program, whose steps are whole
    rows."""
    mean = kept - window
    least = mean // beta
    most = 2 * mean - least
    if most >= tokens - window:
        most = tokens - window
        least = 2 * mean - most
    step = (most - least) // (layers - 1)
    return [most - layer * step for layer in range(layers)]


def snapkv_of_authors(window, reach, pooling, alpha=None, beta=None):
    """SnapKV in the authors' programs: the window beside the budget. `alpha`: Ada-KV's budgets in
    thousandths; `beta`: PyramidKV's."""

    def run(layers, ratio):
        kept = kept_rows(layers[0], ratio)
        rows = [kept - window] * len(layers)
        if beta is not None:
            rows = pyramid_beside(layers[0].tokens, len(layers), kept, window, beta)
        masks = []
        for layer, even in zip(layers, rows):
            scores = window_scores(layer, window, reach, pooling)
            heads = [even] * layer.kv_heads
            if alpha is not None:
                heads = mixed_budgets(scores, even, alpha)
            masks.append(best_beside_window(scores, heads, window))
        return torch.stack(masks)

    return run


def h2o(recent_share):
    """Sums of the causal softmax over all rows; `recent_share` of the rows are the most recent
    ones."""

    def run(layers, ratio):
        masks = []
        for layer in layers:
            n = kept_rows(layer, ratio)
            recent = int(n * recent_share)
            rest = layer.tokens - recent
            s = layer.by_group(layer.attention_sums).mean(1)
            masks.append(
                torch.stack(
                    [
                        torch.cat(
                            (top(head[:rest], n - recent), torch.ones(recent, dtype=torch.bool))
                        )
                        for head in s
                    ]
                )
            )
        return torch.stack(masks)

    return run


def headkv(window, reach, pooling, beta, scores):
    """HeadKV as its authors' program has it, on KV heads: 1 - 1 / beta of an even budget each, and
    1 / beta of all budgets in proportion to scores [layers, kv_heads]."""

    def run(layers, ratio):
        even = kept_rows(layers[0], ratio) - window
        rest = layers[0].tokens - window
        share = torch.tensor(scores, dtype=torch.float64).flatten()
        share = (share / share.sum() * (even / beta * len(share)) + even * (1 - 1 / beta)).tolist()
        rows = [min(rest, int(s)) for s in share]
        order = sorted(range(len(rows)), key=lambda i: (rows[i] - share[i], i))
        # Fractions first; what full heads cannot use goes round among the others.
        while sum(rows) < even * len(rows):
            for i in order:
                if rows[i] < rest and sum(rows) < even * len(rows):
                    rows[i] += 1
        masks = []
        for i, layer in enumerate(layers):
            budgets = rows[i * layer.kv_heads : (i + 1) * layer.kv_heads]
            best = best_beside_window(window_scores(layer, window, reach, pooling), budgets, window)
            masks.append(best)
        return torch.stack(masks)

    return run


def prefixkv(sinks):
    """PrefixKV with its share of attention found exactly: of all layers' rows, in the order of
    their score within the layer, those before which the smallest share of it lies."""

    def run(layers, ratio):
        tokens, fixed = layers[0].tokens, sinks + 1
        scores = [layer.attention_sums.mean(0) for layer in layers]
        before = []
        for i, score in enumerate(scores):
            ordered = torch.sort(score.double(), descending=True).values
            share = (ordered.cumsum(0) - ordered) / ordered.sum()
            before += [(float(s), i) for s in share[: tokens - fixed]]
        total = (kept_rows(layers[0], ratio) - fixed) * len(layers)
        chosen = [i for _, i in sorted(before)[:total]]
        masks = []
        for i, (layer, score) in enumerate(zip(layers, scores)):
            best = top(score[sinks : tokens - 1], chosen.count(i))
            mask = torch.cat((torch.ones(sinks, dtype=torch.bool), best, torch.ones(1).bool()))
            masks.append(mask.expand(layer.kv_heads, -1))
        return torch.stack(masks)

    return run


def split_mix(seed, of, count):
    """The first numbers of SplitMix64 with a seed of its own for each list of integers, as
    kernels/selections/stages/random_numbers.h draws them: uint64 [count]."""

    def mixed(z):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    gamma = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        state = np.uint64(seed)
        for x in of:
            state = mixed((state ^ np.uint64(x)) + gamma)
        return mixed(state + gamma * np.arange(1, count + 1, dtype=np.uint64))


def nacl(window, lot, seed):
    """NACL: `lot` of the rows beside the window are drawn by the softmax of the proxies' summed
    attention; with Gumbel noise that is taking the best."""

    def run(layers, ratio):
        masks = []
        for i, layer in enumerate(layers):
            scores = window_scores(layer, window, 0, "mean")
            rows = kept_rows(layer, ratio) - window
            best = torch.stack([top(s, rows - int(rows * lot + 1e-9)) for s in scores])
            drawn = []
            for h, score in enumerate(scores):
                u = ((split_mix(seed, (i, h), layer.tokens) >> np.uint64(11)) + 0.5) * 2.0**-53
                noise = torch.from_numpy(-np.log(-np.log(u)))[: len(score)]
                key = (score.double() * window + noise).float()
                drawn.append(top(key, rows, best[h]))
            masks.append(F.pad(torch.stack(drawn), (0, window), value=True))
        return torch.stack(masks)

    return run


def noisy_sums(layer, index, seed):
    """What each row gets from all queries when Gumbel noise is added to the logits: [heads,
    tokens]."""
    bits = 12
    weight = torch.from_numpy(-1 / np.log((np.arange(1 << bits) + 0.5) / (1 << bits))).float()
    sums = torch.zeros(layer.heads, layer.tokens)
    for row in range(layer.tokens):
        attention = layer.attention(row, row + 1)[:, 0]
        for h in range(layer.heads):
            numbers = split_mix(seed, (index, h, row), row // 5 + 1)
            draws = (numbers[:, None] >> (np.arange(5, dtype=np.uint64) * bits)) % (1 << bits)
            noisy = attention[h] * weight[torch.from_numpy(draws.flatten()[: row + 1].astype(int))]
            sums[h, : row + 1] += noisy / noisy.double().sum().float()
    return sums


def keyformer(recent_share, seed):
    """Keyformer at the end of a prompt: sums of the softmax of logits and Gumbel noise, and the
    most recent rows."""

    def run(layers, ratio):
        masks = []
        for layer in layers:
            n = kept_rows(layer, ratio)
            recent = int(n * recent_share + 1e-9)
            rest = layer.tokens - recent
            s = layer.by_group(noisy_sums(layer, layer.layer_idx, seed)).mean(1)
            best = torch.stack([top(head[:rest], n - recent) for head in s])
            masks.append(F.pad(best, (0, recent), value=True))
        return torch.stack(masks)

    return run
