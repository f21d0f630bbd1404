"""Methods that ask the last rows of a segment, from the papers' formulas or the authors' programs,
in torch. captured.py says what a method is.
"""

import numpy as np
import torch
import torch.nn.functional as F
from captured import kept_rows, top
from random_numbers import split_mix


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
    """Rows in addition to the window of each layer as in the authors' program, whose steps are
    whole rows."""
    mean = kept - window
    least = mean // beta
    most = 2 * mean - least
    if most >= tokens - window:
        most = tokens - window
        least = 2 * mean - most
    step = (most - least) // (layers - 1)
    return [most - layer * step for layer in range(layers)]


def snapkv_of_authors(window, reach, pooling, alpha=None, beta=None):
    """SnapKV in the authors' programs: the window outside the budget. `alpha`: Ada-KV's budgets in
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


def nacl(window, lot, seed):
    """NACL: `lot` of the rows outside the window are drawn by the softmax of the proxies' summed
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


def cake(window, pool, gamma, tau_space, tau_time):
    """CAKE: mean and variance of the window's attention; budgets by each layer's preference."""

    def run(layers, ratio):
        rest = layers[0].tokens - window
        scores, taste = [], []
        for layer in layers:
            a = layer.last_attention(window)[..., :rest]
            s = a.mean(1) + gamma * a.var(1)
            scores.append(layer.by_group(F.avg_pool1d(s, 2 * pool + 1, 1, pool)).mean(1))
            entropy = -(a * a.clamp_min(1e-37).log()).sum().double()
            taste.append(entropy ** (1 / tau_space) * a.var(1).sum().double() ** (1 / tau_time))
        taste = torch.stack(taste)
        total = (kept_rows(layers[0], ratio) - window) * len(layers)
        # Floors first; then what a clamp at the top or rounding left, one row a layer in turn.
        budgets = [min(rest, max(1, int(total * float(t / taste.sum())))) for t in taste]
        i = 0
        while sum(budgets) != total:
            step = 1 if sum(budgets) < total else -1
            if 1 <= budgets[i] + step <= rest:
                budgets[i] += step
            i = (i + 1) % len(layers)
        return torch.stack(
            [best_beside_window(s, [budget] * len(s), window) for s, budget in zip(scores, budgets)]
        )

    return run
