#include "services/worker/compute/forward_pass.h"

#include <algorithm>
#include <cmath>

namespace cairn::worker {

using kernels::kPanelRows;

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
    wide_.reset();  // Not both at a time.
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
      if (r < prefill_rows_ && bf16_gemm_) {
        kernels_.to_bf16(stream_, {g, act.bf16_row(r) + c, count});
      }
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
