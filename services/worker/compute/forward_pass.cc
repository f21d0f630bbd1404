#include "services/worker/compute/forward_pass.h"

#include <algorithm>
#include <cmath>

#include "services/worker/compute/kv_view.h"

namespace cairn::worker {

using kernels::kPanelRows;

namespace {

bool HasEarlier(const SequenceChunk& chunk) {
  return chunk.earlier != nullptr && chunk.earlier->tokens() > 0;
}

}  // namespace

ForwardPass::ForwardPass(const Setup& setup, kernels::ThreadPool* pool)
    : hp_(setup.model.hp()),
      embedding_(setup.model.token_embedding()),
      weights_(setup.weights),
      kernels_(setup.kernels),
      bf16_gemm_(setup.fast && setup.kernels.gemm_bf16 != nullptr),
      bf16_attention_(setup.fast &&
                      kernels::SupportsBf16Attention(setup.kernels, setup.model.hp().head_dim)),
      integer_decode_(setup.fast && setup.kernels.prepare_activation != nullptr),
      kv_(setup.kv),
      max_rows_(setup.max_rows),
      pool_(*pool),
      ws_(setup.model.hp(), setup.max_rows, pool->threads()) {}

Status ForwardPass::Run(std::span<const SequenceChunk> chunks) {
  if (chunks.empty()) return OkStatus();
  Arrange(chunks);
  for (const SequenceChunk& c : chunks) {
    if (c.reader != nullptr) c.reader->BeginStep();
  }
  for (size_t s = 0; s < slabs_.size(); ++s) {
    Select(s);
    Embed();
  }
  for (int i = 0; i < hp_.layers; ++i) {
    for (size_t s = 0; s < slabs_.size(); ++s) {
      Select(s);
      CAIRN_RETURN_IF_ERROR(Layer(i, s == 0, s + 1 == slabs_.size()));
    }
  }
  Logits();  // The last slab is selected: it has the last token.
  return OkStatus();
}

Status ForwardPass::Layer(int i, bool first_slab, bool last_slab) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  const int64_t kv_width = int64_t{hp_.kv_heads} * hp_.head_dim;
  const PackedLayer& w = weights_.layers[static_cast<size_t>(i)];
  GuessQueries(i + 1, DecodeReader::Guess::kInput);
  Normalise(x_, w.attn_norm.data(), rows_);
  const Output qkv[] = {
      {&w.q, ws_.q.get(), q_width}, {&w.k, ws_.k.get(), kv_width}, {&w.v, ws_.v.get(), kv_width}};
  Products(qkv, &ws_.normed, false);
  RotateAndStore(i);
  for (const Rows& run : runs_) {
    if (!run.chunk->observe) continue;
    run.chunk->observe(
        {i, run.first_position, run.rows, ws_.q.get() + run.first_row * q_width, q_width});
  }
  for (const Rows& run : runs_) {
    if (last_slab && run.chunk->after_layer) run.chunk->after_layer(i);
  }
  for (const Rows& run : runs_) {
    if (first_slab && run.chunk->before_layer) CAIRN_RETURN_IF_ERROR(run.chunk->before_layer(i));
  }
  CAIRN_RETURN_IF_ERROR(Attend(i));
  const Output o[] = {{&w.o, x_, hp_.hidden}};
  Products(o, &ws_.attended, true);
  GuessQueries(i + 1, DecodeReader::Guess::kAfterAttention);
  FeedForward(w);
  return OkStatus();
}

void ForwardPass::ArrangeWide(const SequenceChunk& chunk) {
  const auto total = static_cast<int64_t>(chunk.tokens.size());
  if (wide_rows_ < total) {
    wide_ = std::make_unique<WideRows>(hp_, total);
    wide_rows_ = total;
  }
  for (int64_t begin = 0; begin < total; begin += max_rows_) {
    Slab slab;
    slab.rows = slab.prefill_rows = std::min(max_rows_, total - begin);
    slab.runs.push_back({&chunk, 0, slab.rows, begin, chunk.sequence->length() + begin});
    slab.x = wide_->x.get() + begin * hp_.hidden;
    slab.cosine = wide_->cosine.get() + begin * (hp_.rope_dim / 2);
    slab.sine = wide_->sine.get() + begin * (hp_.rope_dim / 2);
    slabs_.push_back(std::move(slab));
  }
}

void ForwardPass::Arrange(std::span<const SequenceChunk> chunks) {
  slabs_.clear();
  if (std::ssize(chunks[0].tokens) > max_rows_) return ArrangeWide(chunks[0]);
  std::vector<const SequenceChunk*> decodes;
  Slab slab{{}, 0, 0, ws_.x.get(), ws_.cosine.get(), ws_.sine.get()};
  const auto add = [&](const SequenceChunk& c) {
    const auto count = static_cast<int64_t>(c.tokens.size());
    slab.runs.push_back({&c, slab.rows, count, 0, c.sequence->length()});
    slab.rows += count;
  };
  for (const SequenceChunk& c : chunks) {
    if (c.phase == Phase::kPrefill) {
      add(c);
    } else {
      decodes.push_back(&c);
    }
  }
  slab.prefill_rows = slab.rows;
  std::ranges::stable_sort(decodes, [](const SequenceChunk* a, const SequenceChunk* b) {
    return std::ranges::lexicographical_compare(a->sequence->pages(), b->sequence->pages(),
                                                std::less<>());
  });
  for (const SequenceChunk* c : decodes) add(*c);
  slabs_.push_back(std::move(slab));
}

void ForwardPass::Select(size_t slab) {
  runs_ = slabs_[slab].runs;
  rows_ = slabs_[slab].rows;
  prefill_rows_ = slabs_[slab].prefill_rows;
  x_ = slabs_[slab].x;
  cosine_ = slabs_[slab].cosine;
  sine_ = slabs_[slab].sine;
}

void ForwardPass::Embed() {
  const int64_t half = hp_.rope_dim / 2;
  for (const Rows& run : runs_) {
    pool_.ParallelFor(run.rows, [&](int64_t i, int) {
      const int64_t r = run.first_row + i;
      kernels::DequantiseRow(
          embedding_.type,
          embedding_.row(run.chunk->tokens[static_cast<size_t>(run.first_token + i)]),
          x_ + r * hp_.hidden, hp_.hidden);
      for (int64_t p = 0; p < half; ++p) {
        const double exponent = -2.0 * static_cast<double>(p) / hp_.rope_dim;
        const double angle = static_cast<double>(run.first_position + i) *
                             std::pow(static_cast<double>(hp_.rope_base), exponent);
        cosine_[r * half + p] = static_cast<float>(std::cos(angle));
        sine_[r * half + p] = static_cast<float>(std::sin(angle));
      }
    });
  }
}

void ForwardPass::PrepareRows(MatrixInput* input, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    if (r < prefill_rows_) {
      if (bf16_gemm_) kernels_.to_bf16(stream_, {input->row(r), input->bf16_row(r), input->width});
    } else if (integer_decode_) {
      kernels_.prepare_activation(stream_, {input->row(r), input->width, input->activation_row(r)});
    }
  }
}

void ForwardPass::Normalise(const float* x, const float* weight, int64_t rows) {
  constexpr int64_t kPiece = 16;
  pool_.ParallelFor((rows + kPiece - 1) / kPiece, [&](int64_t i, int) {
    const int64_t begin = i * kPiece;
    const int64_t end = std::min(rows, begin + kPiece);
    kernels_.rms_norm(stream_, {x + begin * hp_.hidden, weight, ws_.normed.row(begin), end - begin,
                                hp_.hidden, hp_.hidden, ws_.normed.stride, hp_.rms_eps});
    PrepareRows(&ws_.normed, begin, end);
  });
}

int64_t ForwardPass::PanelsPerPiece(int64_t panels) const {
  // Prefill unpacks pairs of panels and uses them for all rows. A decode piece should stream some
  // 20 KB, yet leave a few pieces to each thread.
  if (prefill_rows_ > 0) return 2;
  const int64_t pieces = int64_t{pool_.threads()} * 6;
  return std::clamp<int64_t>(panels / pieces, 1, 16);
}

void ForwardPass::Product(const Output& out, MatrixInput* input, int64_t begin, int64_t end,
                          bool accumulate, int thread) {
  if (prefill_rows_ > 0) {
    kernels::GemmArgs g;
    g.w = *out.w;
    g.a = input->x.get();
    g.a_bf16 = input->bf16.get();
    g.y = out.y;
    g.rows = prefill_rows_;
    g.a_stride = input->stride;
    g.y_stride = out.y_stride;
    g.panel_begin = begin;
    g.panel_end = end;
    g.accumulate = accumulate;
    g.scratch = ws_.thread_scratch(thread);
    (bf16_gemm_ ? kernels_.gemm_bf16 : kernels_.gemm_f32)(stream_, g);
  }
  if (rows_ > prefill_rows_) {
    kernels::MatVecArgs m;
    m.w = *out.w;
    m.x = input->row(prefill_rows_);
    m.activation = integer_decode_ ? input->activation_row(prefill_rows_) : nullptr;
    m.y = out.y + prefill_rows_ * out.y_stride;
    m.rows = rows_ - prefill_rows_;
    m.x_stride = input->stride;
    m.activation_stride = input->activation_stride;
    m.y_stride = out.y_stride;
    m.panel_begin = begin;
    m.panel_end = end;
    m.accumulate = accumulate;
    kernels_.mat_vec(stream_, m);
  }
}

void ForwardPass::Products(std::span<const Output> outputs, MatrixInput* input, bool accumulate) {
  int64_t panels = 0;
  for (const Output& o : outputs) panels += o.w->panels();
  const int64_t per_piece = PanelsPerPiece(panels);
  int64_t pieces = 0;
  for (const Output& o : outputs) pieces += (o.w->panels() + per_piece - 1) / per_piece;
  pool_.ParallelFor(pieces, [&](int64_t piece, int thread) {
    for (const Output& o : outputs) {
      const int64_t here = (o.w->panels() + per_piece - 1) / per_piece;
      if (piece < here) {
        const int64_t begin = piece * per_piece;
        return Product(o, input, begin, std::min(begin + per_piece, o.w->panels()), accumulate,
                       thread);
      }
      piece -= here;
    }
  });
}

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
        // Of a head with fewer rows nothing: such parts do not count.
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
  a.scratch = p.kept < 0 ? ws_.thread_scratch(thread) : KeptScratch(p);
  a.resume = p.kept >= 0;
  (bf16_attention_ ? kernels_.attention_bf16 : kernels_.attention_f32)(stream_, a);
}

void ForwardPass::AttendWindow(const AttentionPiece& p, const EarlierKv::Window& window,
                               bool first) {
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
  a.scratch = KeptScratch(p);
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
      pool_.ParallelFor(std::ssize(mine), [&](int64_t i, int) {
        AttendWindow(*mine[static_cast<size_t>(i)], window, done == 0);
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
    kept_scratch_ = AlignedArray<std::byte>(static_cast<size_t>(kept_) * ws_.scratch_bytes);
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

void ForwardPass::FeedForward(const PackedLayer& w) {
  Normalise(x_, w.ffn_norm.data(), rows_);
  MatrixInput& act = ws_.activated;
  const Output gate{&w.gate, act.x.get(), act.stride};
  const Output up{&w.up, ws_.up.get(), act.stride};
  // A piece computes the same outputs of both, so that it can go on to their product.
  const int64_t per_piece = PanelsPerPiece(w.gate.panels());
  pool_.ParallelFor((w.gate.panels() + per_piece - 1) / per_piece, [&](int64_t i, int thread) {
    const int64_t begin = i * per_piece;
    const int64_t end = std::min(begin + per_piece, w.gate.panels());
    Product(gate, &ws_.normed, begin, end, false, thread);
    Product(up, &ws_.normed, begin, end, false, thread);
    const int64_t c = begin * kPanelRows;
    const int64_t count = std::min(end * kPanelRows, act.width) - c;
    for (int64_t r = 0; r < rows_; ++r) {
      float* g = act.row(r) + c;
      kernels_.swiglu(stream_, {g, ws_.up.get() + r * act.stride + c, g, count});
      if (r < prefill_rows_ && bf16_gemm_)
        kernels_.to_bf16(stream_, {g, act.bf16_row(r) + c, count});
    }
  });
  pool_.ParallelFor(rows_ - prefill_rows_, [&](int64_t i, int) {
    PrepareRows(&act, prefill_rows_ + i, prefill_rows_ + i + 1);
  });
  const Output down[] = {{&w.down, x_, hp_.hidden}};
  Products(down, &act, true);
}

void ForwardPass::Logits() {
  // A prompt's last row goes the way of a decoded one, through the mat_vec.
  std::vector<LogitsRow> wanted;
  for (const Rows& run : runs_) {
    if (run.chunk->logits == nullptr) continue;
    for (int64_t i = run.chunk->logits_of_every_token ? 0 : run.rows - 1; i < run.rows; ++i) {
      const int64_t place = run.chunk->logits_of_every_token ? i : 0;
      wanted.push_back({run.first_row + i, run.chunk->logits + place * weights_.output.rows()});
    }
  }
  constexpr size_t kMost = Workspace::kLogitsRows;
  for (size_t first = 0; first < wanted.size(); first += kMost) {
    RowLogits(std::span(wanted).subspan(first, std::min(kMost, wanted.size() - first)));
  }
}

void ForwardPass::RowLogits(std::span<const LogitsRow> rows) {
  pool_.ParallelFor(std::ssize(rows), [&](int64_t i, int) {
    float* const normed = ws_.normed.row(i);
    kernels_.rms_norm(
        stream_, {x_ + rows[static_cast<size_t>(i)].row * hp_.hidden, weights_.output_norm.data(),
                  normed, 1, hp_.hidden, hp_.hidden, ws_.normed.stride, hp_.rms_eps});
    if (!integer_decode_) return;
    kernels_.prepare_activation(stream_, {normed, ws_.normed.width, ws_.normed.activation_row(i)});
  });
  const int64_t vocab = weights_.output.rows();
  bool in_place = true;
  for (size_t i = 0; i < rows.size(); ++i) {
    in_place = in_place && rows[i].logits == rows[0].logits + static_cast<int64_t>(i) * vocab;
  }
  if (!in_place) ws_.logits.resize(static_cast<size_t>(Workspace::kLogitsRows * vocab));
  float* const outputs = in_place ? rows[0].logits : ws_.logits.data();
  const int64_t panels = weights_.output.panels();
  constexpr int64_t kPiece = 32;
  pool_.ParallelFor((panels + kPiece - 1) / kPiece, [&](int64_t piece, int) {
    kernels::MatVecArgs m;
    m.w = weights_.output;
    m.x = ws_.normed.row(0);
    m.activation = integer_decode_ ? ws_.normed.activation_row(0) : nullptr;
    m.y = outputs;
    m.rows = std::ssize(rows);
    m.x_stride = ws_.normed.stride;
    m.activation_stride = ws_.normed.activation_stride;
    m.y_stride = vocab;
    m.panel_begin = piece * kPiece;
    m.panel_end = std::min(panels, m.panel_begin + kPiece);
    kernels_.mat_vec(stream_, m);
    if (in_place) return;
    const int64_t begin = m.panel_begin * kPanelRows;
    const int64_t count = std::min(vocab, m.panel_end * kPanelRows) - begin;
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(outputs + static_cast<int64_t>(i) * vocab + begin, count, rows[i].logits + begin);
    }
  });
}

}  // namespace cairn::worker
