// The attention of a ForwardPass: from the keys and values of a layer's rows to what the rows
// attend to.

#include <algorithm>
#include <cmath>

#include "services/worker/compute/forward_pass.h"
#include "services/worker/compute/kv_view.h"

namespace cairn::worker {
namespace {

bool HasEarlier(const SequenceChunk& chunk) {
  return chunk.earlier != nullptr && chunk.earlier->tokens() > 0;
}

}  // namespace

void ForwardPass::RotateAndStore(int layer) {
  constexpr int64_t kPiece = 8;
  struct Piece {
    const Rows* run;
    int64_t begin;
  };
  std::vector<Piece> pieces;
  for (const Rows& run : runs_) {
    for (int64_t begin = 0; begin < run.rows; begin += kPiece) pieces.push_back({&run, begin});
  }
  pool_.ParallelFor(std::ssize(pieces), [&](int64_t piece, int) {
    const Rows& run = *pieces[static_cast<size_t>(piece)].run;
    const int64_t begin = pieces[static_cast<size_t>(piece)].begin;
    RotateAndStoreRows(run, begin, std::min(run.rows, begin + kPiece), layer);
  });
}

void ForwardPass::RotateAndStoreRows(const Rows& run, int64_t begin, int64_t end, int layer) {
  const int64_t dim = hp_.head_dim;
  const int64_t half = hp_.rope_dim / 2;
  const kernels::PagedKv view = PagesView(*run.chunk->sequence, layer);
  const int64_t first_token = run.first_position - run.chunk->sequence->base();
  for (int64_t i = begin; i < end; ++i) {
    const int64_t r = run.first_row + i;
    float* q = ws_.q.get() + r * hp_.heads * dim;
    float* k = ws_.k.get() + r * hp_.kv_heads * dim;
    const float* v = ws_.v.get() + r * hp_.kv_heads * dim;
    const float* cosine = cosine_ + r * half;
    const float* sine = sine_ + r * half;
    kernels_.rope(stream_, {q, 1, hp_.heads, dim, hp_.rope_dim, 0, cosine, sine});
    kernels_.rope(stream_, {k, 1, hp_.kv_heads, dim, hp_.rope_dim, 0, cosine, sine});
    const int64_t token = first_token + i;
    for (int64_t h = 0; h < hp_.kv_heads; ++h) {
      kernels_.to_half(stream_, {k + h * dim, const_cast<uint16_t*>(view.K(h, token)), dim});
      kernels_.to_half(stream_, {v + h * dim, const_cast<uint16_t*>(view.V(h, token)), dim});
    }
  }
}

ForwardPass::DecodeSpan ForwardPass::SpanOf(const Rows& run, int layer) const {
  const KvSequence& sequence = *run.chunk->sequence;
  DecodeSpan span;
  if (run.chunk->reader != nullptr) return span;
  span.tokens = run.first_position - sequence.base() + 1;
  if (HasEarlier(*run.chunk)) span.prefix_rows = run.chunk->earlier->tokens();
  if (sequence.prefix() == nullptr) return span;
  for (int h = 0; h < hp_.kv_heads; ++h) {
    span.prefix_rows = std::max(span.prefix_rows, sequence.prefix()->rows(layer, h));
  }
  return span;
}

std::span<const ForwardPass::Rows> ForwardPass::DecodeRuns() const {
  const auto first = std::ranges::find_if(
      runs_, [](const Rows& run) { return run.chunk->phase == Phase::kDecode; });
  return runs_.subspan(static_cast<size_t>(first - runs_.begin()));
}

std::vector<ForwardPass::AttentionPiece> ForwardPass::PlanAttention(int layer) {
  std::vector<AttentionPiece> pieces;
  kept_ = 0;
  for (const Rows& run : runs_) {
    if (run.chunk->phase == Phase::kPrefill) PlanPrefill(run, &pieces);
  }
  most_parts_ = 0;
  for (const Rows& run : DecodeRuns()) {
    most_parts_ = std::max(most_parts_, SpanOf(run, layer).parts());
  }
  PlanDecode(layer, &pieces);
  return pieces;
}

void ForwardPass::PlanPrefill(const Rows& run, std::vector<AttentionPiece>* pieces) {
  const int64_t rows_per_piece = prefill_rows_ > Workspace::kAttentionRows
                                     ? Workspace::kAttentionRows
                                     : Workspace::kAttentionRows / 2;
  // Late rows have the most keys: started first, they do not end last.
  for (int64_t b = (run.rows - 1) / rows_per_piece * rows_per_piece; b >= 0; b -= rows_per_piece) {
    for (int64_t h = 0; h < hp_.kv_heads; ++h) {
      pieces->push_back({&run, b, std::min(rows_per_piece, run.rows - b), h});
      if (HasEarlier(*run.chunk)) pieces->back().kept = kept_++;
    }
  }
}

int64_t ForwardPass::SharersOf(std::span<const Rows> decodes, size_t first,
                               std::span<const int64_t> planned) const {
  constexpr int64_t kSplit = Workspace::kSplitTokens;
  const int64_t begin = planned[first];
  // A split may begin or end inside a page.
  const auto pages = [&](const Rows& run) {
    const int64_t page = begin / kv_.block_tokens;
    const int64_t end = (begin + kSplit + kv_.block_tokens - 1) / kv_.block_tokens;
    return run.chunk->sequence->pages().subspan(static_cast<size_t>(page),
                                                static_cast<size_t>(end - page));
  };
  const auto whole = [&](const Rows& run) {
    return run.chunk->sequence->base() == 0 && run.first_position + 1 >= begin + kSplit;
  };
  int64_t sharers = 1;
  if (!whole(decodes[first])) return sharers;
  for (size_t i = first + 1; i < decodes.size() && sharers < Workspace::kSharedRows; ++i) {
    if (planned[i] != begin || !whole(decodes[i]) ||
        !std::ranges::equal(pages(decodes[first]), pages(decodes[i]))) {
      break;
    }
    ++sharers;
  }
  return sharers;
}

void ForwardPass::PlanDecode(int layer, std::vector<AttentionPiece>* pieces) const {
  constexpr int64_t kSplit = Workspace::kSplitTokens;
  const std::span<const Rows> decodes = DecodeRuns();
  std::vector<int64_t> planned(decodes.size());  // Tokens of each run that are in pieces.
  for (size_t i = 0; i < decodes.size(); ++i) {
    const Rows& run = decodes[i];
    const DecodeSpan span = SpanOf(run, layer);
    int64_t part = 0;
    for (int64_t t = 0; t < span.prefix_rows; t += kSplit, ++part) {
      if (HasEarlier(*run.chunk)) continue;  // Those of its windows.
      for (int64_t h = 0; h < hp_.kv_heads; ++h) {
        // A head with fewer rows has nothing there: such parts do not count.
        const int64_t rows = run.chunk->sequence->prefix()->rows(layer, static_cast<int>(h));
        pieces->push_back({&run, t, std::clamp<int64_t>(rows - t, 0, kSplit), h, part, true});
      }
    }
    part += planned[i] / kSplit;
    for (int64_t t = planned[i]; t < span.tokens; t += kSplit, ++part) {
      const int64_t sharers = SharersOf(decodes, i, planned);
      for (size_t other = i; other < i + static_cast<size_t>(sharers); ++other) {
        planned[other] = t + kSplit;
      }
      for (int64_t h = 0; h < hp_.kv_heads; ++h) {
        pieces->push_back({&run, t, std::min(kSplit, span.tokens - t), h, part, false, sharers});
      }
    }
  }
}

void ForwardPass::AttendPrefill(const AttentionPiece& p, int layer, int thread) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  const KvSequence& sequence = *p.run->chunk->sequence;
  const RaggedPrefix* const prefix = sequence.prefix().get();
  const int head = static_cast<int>(p.head);
  kernels::AttentionArgs a;
  a.kv = PagesView(sequence, layer);
  if (prefix != nullptr) {
    a.prefix = PrefixView(*prefix, layer, head);
    a.prefix_rows = prefix->rows(layer, head);
  }
  a.q = ws_.q.get() + (p.run->first_row + p.begin) * q_width;
  a.out = ws_.attended.row(p.run->first_row + p.begin);
  a.rows = p.count;
  a.q_stride = q_width;
  a.out_stride = ws_.attended.stride;
  a.first_position = p.run->first_position - sequence.base() + p.begin;
  a.kv_head = p.head;
  a.group = hp_.heads / hp_.kv_heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));
  a.scratch = ws_.thread_scratch(thread);
  a.state = p.kept < 0 ? nullptr : KeptState(p);
  a.resume = p.kept >= 0;
  (bf16_attention_ ? kernels_.attention_bf16 : kernels_.attention_f32)(stream_, a);
}

void ForwardPass::AttendWindow(const AttentionPiece& p, const EarlierKv::Window& window, bool first,
                               int thread) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  kernels::AttentionArgs a;
  a.prefix = WindowView(kv_, window.slices, p.head);
  a.prefix_rows = window.tokens;
  a.kv.head_dim = kv_.head_dim;
  a.q = ws_.q.get() + (p.run->first_row + p.begin) * q_width;
  a.rows = p.count;
  a.q_stride = q_width;
  a.kv_head = p.head;
  a.group = hp_.heads / hp_.kv_heads;
  a.scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));
  a.scratch = ws_.thread_scratch(thread);
  a.state = KeptState(p);
  a.resume = !first;
  a.more = true;
  (bf16_attention_ ? kernels_.attention_bf16 : kernels_.attention_f32)(stream_, a);
}

void ForwardPass::AttendWindowPart(const Rows& run, const EarlierKv::Window& window, int64_t done,
                                   int64_t i, int thread) {
  constexpr int64_t kSplit = Workspace::kSplitTokens;
  const int64_t head = i % hp_.kv_heads;
  const int64_t part = i / hp_.kv_heads;
  const int64_t group = hp_.heads / hp_.kv_heads;
  kernels::AttentionPartArgs a;
  a.kv = WindowView(kv_, window.slices, head);
  a.q_stride = int64_t{hp_.heads} * hp_.head_dim;
  a.q = ws_.q.get() + run.first_row * a.q_stride;
  a.row_stride = most_parts_ * hp_.heads;
  a.kv_head = head;
  a.group = group;
  a.begin = part * kSplit;
  a.end = std::min(window.tokens, a.begin + kSplit);
  a.scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));
  const int64_t first_head = PartPlace(run, done / kSplit + part) * hp_.heads + head * group;
  a.acc = ws_.part_acc.data() + first_head * hp_.head_dim;
  a.max = ws_.part_max.data() + first_head;
  a.sum = ws_.part_sum.data() + first_head;
  a.scratch = ws_.thread_scratch(thread);
  kernels_.attention_part(stream_, a);
}

Status ForwardPass::AttendEarlier(const Rows& run, std::span<const AttentionPiece> pieces,
                                  int layer) {
  static_assert(EarlierKv::kUnitTokens % Workspace::kSplitTokens == 0 &&
                EarlierKv::kUnitTokens % kernels::kAttentionTile == 0);
  EarlierKv& earlier = *run.chunk->earlier;
  std::vector<const AttentionPiece*> mine;
  for (const AttentionPiece& piece : pieces) {
    if (piece.run == &run && piece.kept >= 0) mine.push_back(&piece);
  }
  CAIRN_RETURN_IF_ERROR(earlier.Begin(layer));
  for (int64_t done = 0; done < earlier.tokens();) {
    CAIRN_ASSIGN_OR_RETURN(const EarlierKv::Window window, earlier.Next());
    CAIRN_CHECK(window.tokens > 0 && window.tokens % EarlierKv::kUnitTokens == 0 &&
                done + window.tokens <= earlier.tokens());
    if (run.chunk->phase == Phase::kPrefill) {
      pool_.ParallelFor(std::ssize(mine), [&](int64_t i, int thread) {
        AttendWindow(*mine[static_cast<size_t>(i)], window, done == 0, thread);
      });
    } else {
      const int64_t parts = (window.tokens + Workspace::kSplitTokens - 1) / Workspace::kSplitTokens;
      pool_.ParallelFor(parts * hp_.kv_heads, [&](int64_t i, int thread) {
        AttendWindowPart(run, window, done, i, thread);
      });
    }
    done += window.tokens;
  }
  return earlier.End();
}

void ForwardPass::AttendDecodePart(const AttentionPiece& p, int layer, int thread) {
  const int64_t group = hp_.heads / hp_.kv_heads;
  const KvSequence& sequence = *p.run->chunk->sequence;
  kernels::AttentionPartArgs a;
  a.kv = p.prefix ? PrefixView(*sequence.prefix(), layer, static_cast<int>(p.head))
                  : PagesView(sequence, layer);
  a.q_stride = int64_t{hp_.heads} * hp_.head_dim;
  a.q = ws_.q.get() + p.run->first_row * a.q_stride;
  a.rows = p.sharers;
  a.row_stride = most_parts_ * hp_.heads;
  a.kv_head = p.head;
  a.group = group;
  a.begin = p.begin;
  a.end = p.begin + p.count;
  a.scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));
  const int64_t first_head = PartPlace(*p.run, p.part) * hp_.heads + p.head * group;
  a.acc = ws_.part_acc.data() + first_head * hp_.head_dim;
  a.max = ws_.part_max.data() + first_head;
  a.sum = ws_.part_sum.data() + first_head;
  a.scratch = ws_.thread_scratch(thread);
  kernels_.attention_part(stream_, a);
}

void ForwardPass::MergeDecodeParts(const Rows& run, int layer) {
  const int64_t place = PartPlace(run, 0);
  // All heads at once: to the merge they are one large group.
  kernels_.attention_merge(
      stream_,
      {ws_.part_acc.data() + place * hp_.heads * hp_.head_dim,
       ws_.part_max.data() + place * hp_.heads, ws_.part_sum.data() + place * hp_.heads,
       ws_.attended.row(run.first_row), SpanOf(run, layer).parts(), hp_.heads, hp_.head_dim});
}

Status ForwardPass::AttendWithReaders(int layer) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  for (const Rows& run : DecodeRuns()) {
    if (run.chunk->reader == nullptr) continue;
    const KvSequence& sequence = *run.chunk->sequence;
    CAIRN_RETURN_IF_ERROR(run.chunk->reader->Attend(
        layer, ws_.q.get() + run.first_row * q_width, PagesView(sequence, layer),
        run.first_position - sequence.base() + 1, ws_.attended.row(run.first_row), pool_));
  }
  return OkStatus();
}

void ForwardPass::GuessQueries(int layer, DecodeReader::Guess now) {
  if (layer >= hp_.layers) return;
  const PackedLayer& w = weights_.layers[static_cast<size_t>(layer)];
  for (const Rows& run : DecodeRuns()) {
    DecodeReader* const reader = run.chunk->reader;
    if (reader == nullptr || reader->guess() != now) continue;
    if (guess_input_ == nullptr) {
      guess_input_ = std::make_unique<MatrixInput>(1, hp_.hidden);
      guess_q_.resize(static_cast<size_t>(int64_t{hp_.heads} * hp_.head_dim));
    }
    MatrixInput& input = *guess_input_;
    kernels_.rms_norm(stream_, {x_ + run.first_row * hp_.hidden, w.attn_norm.data(), input.row(0),
                                1, hp_.hidden, hp_.hidden, input.stride, hp_.rms_eps});
    if (integer_decode_) {
      kernels_.prepare_activation(stream_, {input.row(0), input.width, input.activation_row(0)});
    }
    constexpr int64_t kPiece = 4;
    const int64_t panels = w.q.panels();
    pool_.ParallelFor((panels + kPiece - 1) / kPiece, [&](int64_t piece, int) {
      kernels::MatVecArgs m;
      m.w = w.q;
      m.x = input.row(0);
      m.activation = integer_decode_ ? input.activation_row(0) : nullptr;
      m.y = guess_q_.data();
      m.rows = 1;
      m.x_stride = input.stride;
      m.activation_stride = input.activation_stride;
      m.y_stride = std::ssize(guess_q_);
      m.panel_begin = piece * kPiece;
      m.panel_end = std::min(panels, m.panel_begin + kPiece);
      kernels_.mat_vec(stream_, m);
    });
    const int64_t half = hp_.rope_dim / 2;
    kernels_.rope(stream_, {guess_q_.data(), 1, hp_.heads, hp_.head_dim, hp_.rope_dim, 0,
                            cosine_ + run.first_row * half, sine_ + run.first_row * half});
    reader->Expect(layer, guess_q_.data(), pool_);
  }
}

Status ForwardPass::Attend(int layer) {
  const std::vector<AttentionPiece> pieces = PlanAttention(layer);
  if (kept_ > kept_room_) {
    kept_state_ = AlignedArray<std::byte>(static_cast<size_t>(kept_) * KeptBytes());
    kept_room_ = kept_;
  }
  const int64_t heads = (rows_ - prefill_rows_) * most_parts_ * hp_.heads;
  ws_.part_acc.resize(static_cast<size_t>(heads * hp_.head_dim));
  ws_.part_max.resize(static_cast<size_t>(heads));
  ws_.part_sum.resize(static_cast<size_t>(heads));
  for (const Rows& run : runs_) {
    if (HasEarlier(*run.chunk)) CAIRN_RETURN_IF_ERROR(AttendEarlier(run, pieces, layer));
  }
  pool_.ParallelFor(std::ssize(pieces), [&](int64_t i, int thread) {
    const AttentionPiece& piece = pieces[static_cast<size_t>(i)];
    if (piece.run->chunk->phase == Phase::kPrefill) {
      AttendPrefill(piece, layer, thread);
    } else {
      AttendDecodePart(piece, layer, thread);
    }
  });
  CAIRN_RETURN_IF_ERROR(AttendWithReaders(layer));
  const std::span<const Rows> decodes = DecodeRuns();
  pool_.ParallelFor(std::ssize(decodes), [&](int64_t i, int) {
    const Rows& run = decodes[static_cast<size_t>(i)];
    if (run.chunk->reader == nullptr) MergeDecodeParts(run, layer);
    PrepareRows(&ws_.attended, run.first_row, run.first_row + 1);
  });
  constexpr int64_t kPiece = 16;
  pool_.ParallelFor((prefill_rows_ + kPiece - 1) / kPiece, [&](int64_t i, int) {
    PrepareRows(&ws_.attended, i * kPiece, std::min(prefill_rows_, (i + 1) * kPiece));
  });
  return OkStatus();
}

}  // namespace cairn::worker
