#include "services/worker/compute/device/device_pass.h"

#include <algorithm>
#include <cmath>

#include "services/worker/compute/device/arena.h"
#include "services/worker/compute/device/device_wait.h"

namespace cairn::worker {

namespace {

constexpr int64_t kLogitsRows = 32;  // At a time.

}  // namespace

DevicePass::DevicePass(const Setup& setup)
    : hp_(setup.model.hp()),
      embedding_(setup.model.token_embedding()),
      weights_(setup.weights),
      kernels_(setup.kernels),
      device_(setup.device),
      kv_(setup.kv),
      max_rows_(setup.max_rows),
      mirror_(setup.mirror),
      prefixes_(setup.device),
      lists_(setup.device, setup.kv),
      graphs_(setup.graphs) {}

Result<std::unique_ptr<DevicePass>> DevicePass::Create(const Setup& setup) {
  std::unique_ptr<DevicePass> pass(new DevicePass(setup));
  CAIRN_RETURN_IF_ERROR(pass->Allocate(setup.slices));
  return pass;
}

Status DevicePass::Allocate(const kernels::batch::SliceTable* slices) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  const int64_t kv_width = int64_t{hp_.kv_heads} * hp_.head_dim;
  logits_stride_ = (weights_.output().outputs + 3) / 4 * 4;
  ArenaPlan plan;
  const size_t x = plan.Take<float>(max_rows_ * hp_.hidden);
  const size_t normed = plan.Take<uint16_t>(max_rows_ * hp_.hidden);
  const size_t qkv = plan.Take<float>(max_rows_ * (q_width + 2 * kv_width));
  const size_t q = plan.Take<uint16_t>(max_rows_ * q_width);
  const size_t attended = plan.Take<uint16_t>(max_rows_ * q_width);
  const size_t gate_up = plan.Take<float>(max_rows_ * 2 * hp_.ffn);
  const size_t activated = plan.Take<uint16_t>(max_rows_ * hp_.ffn);
  const size_t last_normed = plan.Take<uint16_t>(kLogitsRows * hp_.hidden);
  const size_t logits = plan.Take<float>(kLogitsRows * logits_stride_);
  CAIRN_ASSIGN_OR_RETURN(activations_, AllocateFor("activations", plan.bytes(), device_));
  const uint64_t base = activations_.address();
  x_ = At<float>(base, x);
  normed_ = At<uint16_t>(base, normed);
  qkv_ = At<float>(base, qkv);
  q_ = At<uint16_t>(base, q);
  attended_ = At<uint16_t>(base, attended);
  gate_up_ = At<float>(base, gate_up);
  activated_ = At<uint16_t>(base, activated);
  last_normed_ = At<uint16_t>(base, last_normed);
  logits_ = At<float>(base, logits);
  CAIRN_ASSIGN_OR_RETURN(
      host_logits_,
      device_->AllocatePinned(static_cast<uint64_t>(kLogitsRows * logits_stride_) * sizeof(float)));
  std::unique_ptr<RowGatherer> gatherer;
  if (slices != nullptr) {
    gatherer = std::make_unique<RowGatherer>(device_, kv_, mirror_.address(), *slices);
  }
  CAIRN_ASSIGN_OR_RETURN(
      downloads_, KvDownloads::Create(device_, kv_, hp_.heads, max_rows_, std::move(gatherer)));
  // Encoding and decoding at the same time as a pass give way to it.
  CAIRN_ASSIGN_OR_RETURN(compute_, device_->NewUrgentStream());
  CAIRN_ASSIGN_OR_RETURN(uploads_, KvUploads::Create(device_, kv_.layer_bytes()));
  CAIRN_ASSIGN_OR_RETURN(logits_ready_, device_->NewEvent());
  CAIRN_ASSIGN_OR_RETURN(ended_, device_->NewEvent());
  return OkStatus();
}

Status DevicePass::Run(std::span<const SequenceChunk> chunks) {
  Status status = RunLayers(chunks);
  if (status.ok()) status = downloads_->Finish();
  if (!status.ok()) downloads_->Abandon();
  const Status drained = Drain();
  if (status.ok()) status = drained;
  mirror_.EndPass(/*failed=*/!status.ok());
  runs_.clear();
  return status;
}

Status DevicePass::RunLayers(std::span<const SequenceChunk> chunks) {
  Arrange(chunks);
  mirror_.BeginPass();
  CAIRN_RETURN_IF_ERROR(HoldPages());
  CAIRN_RETURN_IF_ERROR(MakeLists());
  if (IsPlainDecode()) return Decode();
  CAIRN_RETURN_IF_ERROR(Embed());
  for (int layer = 0; layer < hp_.layers; ++layer) CAIRN_RETURN_IF_ERROR(Layer(layer));
  return Logits();
}

void DevicePass::Arrange(std::span<const SequenceChunk> chunks) {
  runs_.clear();
  wanted_.clear();
  rows_ = prompt_rows_ = prompts_ = 0;
  const int64_t vocab = weights_.output().outputs;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (const SequenceChunk& c : chunks) {
      if (c.phase != phase) continue;
      DeviceRun& run = runs_.emplace_back();
      run.chunk = &c;
      run.first_row = rows_;
      run.rows = std::ssize(c.tokens);
      run.first_position = c.sequence->length();
      rows_ += run.rows;
      if (c.logits == nullptr) continue;
      const int64_t first = c.logits_of_every_token ? 0 : run.rows - 1;
      for (int64_t i = first; i < run.rows; ++i) {
        wanted_.push_back(
            {static_cast<int32_t>(run.first_row + i), c.logits + (i - first) * vocab});
      }
    }
    if (phase == Phase::kPrefill) {
      prompt_rows_ = rows_;
      prompts_ = std::ssize(runs_);
    }
  }
}

Status DevicePass::HoldPages() {
  for (DeviceRun& run : runs_) {
    const int64_t pages = (run.tokens_after() + kv_.block_tokens - 1) / kv_.block_tokens;
    for (int64_t page = 0; page < pages; ++page) {
      CAIRN_ASSIGN_OR_RETURN(KvMirror::Slot* const slot,
                             mirror_.Hold(run.chunk->sequence->PageStamp(page)));
      run.slots.push_back(slot);
    }
  }
  return OkStatus();
}

Status DevicePass::MakeLists() {
  std::vector<int32_t> logits_rows;
  for (const WantedLogits& wanted : wanted_) logits_rows.push_back(wanted.row);
  CAIRN_RETURN_IF_ERROR(lists_.Make(runs_, logits_rows, prefixes_, &compute_));
  splits_ = IsPlainDecode() ? DecodeGraphs::SplitsFor(lists_.most_splits()) : lists_.most_splits();
  const auto floats = kernels::batch::DecodeScratchFloats(rows_ - prompt_rows_, splits_, FormOf(0));
  return scratch_.Grow("attention's scratch memory", static_cast<uint64_t>(floats) * sizeof(float),
                       device_);
}

bool DevicePass::IsPlainDecode() const {
  return graphs_.enabled() && prompt_rows_ == 0 && std::ssize(wanted_) <= kLogitsRows &&
         std::none_of(runs_.begin(), runs_.end(), [](const DeviceRun& run) {
           return run.chunk->before_layer || run.chunk->observe;
         });
}

Status DevicePass::Decode() {
  for (int layer = 0; layer < hp_.layers; ++layer) CAIRN_RETURN_IF_ERROR(AddEarlier(layer));
  CAIRN_RETURN_IF_ERROR(uploads_->OrderBefore(&compute_));
  const auto logits = std::ssize(wanted_);
  CAIRN_RETURN_IF_ERROR(graphs_.Run({.rows = rows_, .splits = splits_, .logits = logits},
                                    lists_.moves() + scratch_.moves(), &compute_,
                                    [this] { return LaunchDecode(); }));
  if (logits > 0) CAIRN_RETURN_IF_ERROR(FetchLogits(logits));
  const int most = downloads_->MostLayers(rows_);
  for (int begin = 0; begin < hp_.layers; begin += most) {
    const int end = std::min<int>(begin + most, hp_.layers);
    CAIRN_RETURN_IF_ERROR(downloads_->Start({begin, end}, runs_, q_, &compute_));
  }
  return logits == 0 ? OkStatus() : TakeLogits(0, logits);
}

Status DevicePass::LaunchDecode() {
  CAIRN_RETURN_IF_ERROR(Embed());
  for (int layer = 0; layer < hp_.layers; ++layer) {
    CAIRN_RETURN_IF_ERROR(Project(layer));
    CAIRN_RETURN_IF_ERROR(Store(layer));
    CAIRN_RETURN_IF_ERROR(Finish(layer));
  }
  return wanted_.empty() ? OkStatus() : ComputeLogits(0, std::ssize(wanted_));
}

Status DevicePass::Embed() {
  return Launched("embedding", kernels_.embed(compute_.native(), {.type = embedding_.type,
                                                                  .table = weights_.embedding(),
                                                                  .tokens = lists_.tokens(),
                                                                  .x = x_,
                                                                  .rows = rows_,
                                                                  .cols = hp_.hidden,
                                                                  .x_stride = hp_.hidden}));
}

Status DevicePass::Normalise(const float* weight, uint16_t* y) {
  return Launched("norm", kernels_.rms_norm(compute_.native(), {.x = x_,
                                                                .source_rows = nullptr,
                                                                .weight = weight,
                                                                .y = y,
                                                                .rows = rows_,
                                                                .cols = hp_.hidden,
                                                                .x_stride = hp_.hidden,
                                                                .y_stride = hp_.hidden,
                                                                .eps = hp_.rms_eps}));
}

Status DevicePass::Product(const uint16_t* a, const DeviceMatrix& w, float* y, bool accumulate) {
  const auto rows = [&](int64_t first, int64_t count) {
    return kernels::batch::GemmArgs{.a = a + first * w.cols,
                                    .w = w.w,
                                    .y = y + first * w.outputs,
                                    .rows = count,
                                    .outputs = w.outputs,
                                    .cols = w.cols,
                                    .a_stride = w.cols,
                                    .w_stride = w.cols,
                                    .y_stride = w.outputs,
                                    .accumulate = accumulate};
  };
  if (prompt_rows_ > 0) {
    CAIRN_RETURN_IF_ERROR(
        Launched("product", kernels_.gemm(compute_.native(), rows(0, prompt_rows_))));
  }
  if (rows_ == prompt_rows_) return OkStatus();
  return Launched("product", kernels_.gemm_few_rows(compute_.native(),
                                                    rows(prompt_rows_, rows_ - prompt_rows_)));
}

kernels::batch::KvForm DevicePass::FormOf(int layer) const {
  kernels::batch::KvForm form;
  form.kv_heads = kv_.kv_heads;
  form.group = hp_.heads / hp_.kv_heads;
  form.head_dim = kv_.head_dim;
  form.block_tokens = kv_.block_tokens;
  form.k_offset = static_cast<size_t>(layer) * kv_.layer_bytes();
  form.v_offset = form.k_offset + kv_.plane_bytes();
  form.head_stride = kv_.head_bytes();
  form.layer = layer;
  form.unit_rows = kv_.ragged_unit_rows();
  form.unit_v_offset = PrefixMirror::UnitValueOffset(kv_);
  return form;
}

Status DevicePass::Layer(int layer) {
  CAIRN_RETURN_IF_ERROR(Project(layer));
  // Whoever observes the last layer's queries reads them while this layer's are computed.
  CAIRN_RETURN_IF_ERROR(downloads_->WaitForQueries(&compute_));
  CAIRN_RETURN_IF_ERROR(Store(layer));
  CAIRN_RETURN_IF_ERROR(downloads_->Start({layer, layer + 1}, runs_, q_, &compute_));
  for (const DeviceRun& run : runs_) {
    if (run.chunk->before_layer) CAIRN_RETURN_IF_ERROR(run.chunk->before_layer(layer));
  }
  CAIRN_RETURN_IF_ERROR(AddEarlier(layer));
  CAIRN_RETURN_IF_ERROR(uploads_->OrderBefore(&compute_));
  CAIRN_RETURN_IF_ERROR(Finish(layer));
  return downloads_->Poll();
}

Status DevicePass::Project(int layer) {
  const DeviceLayer& w = weights_.layer(layer);
  CAIRN_RETURN_IF_ERROR(Normalise(w.attn_norm, normed_));
  return Product(normed_, w.qkv, qkv_, /*accumulate=*/false);
}

Status DevicePass::Store(int layer) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  const int64_t kv_width = int64_t{hp_.kv_heads} * hp_.head_dim;
  const kernels::batch::KvForm form = FormOf(layer);
  return Launched("rotation",
                  kernels_.rotate_and_store(compute_.native(), {.q = qkv_,
                                                                .k = qkv_ + q_width,
                                                                .v = qkv_ + q_width + kv_width,
                                                                .q_out = q_,
                                                                .places = lists_.places(),
                                                                .cosine = weights_.cosine(),
                                                                .sine = weights_.sine(),
                                                                .rows = rows_,
                                                                .in_stride = q_width + 2 * kv_width,
                                                                .heads = hp_.heads,
                                                                .kv_heads = hp_.kv_heads,
                                                                .head_dim = hp_.head_dim,
                                                                .rope_dim = hp_.rope_dim,
                                                                .k_offset = form.k_offset,
                                                                .v_offset = form.v_offset,
                                                                .head_stride = form.head_stride}));
}

Status DevicePass::Finish(int layer) {
  const DeviceLayer& w = weights_.layer(layer);
  CAIRN_RETURN_IF_ERROR(Attend(layer));
  CAIRN_RETURN_IF_ERROR(Product(attended_, w.o, x_, /*accumulate=*/true));
  return FeedForward(w);
}

// Adds, of a page that the chunk goes on with, only the rows before it: the others are being
// computed.
Status DevicePass::AddEarlier(int layer) {
  for (const DeviceRun& run : runs_) {
    for (const size_t page : mirror_.TakeMissing(run.slots, layer)) {
      const KvMirror::Slot& slot = *run.slots[page];
      const auto number = static_cast<int64_t>(page);
      const PageTokens earlier = TokensIn(number, 0, run.tokens_before(), kv_.block_tokens);
      if (earlier.end <= earlier.begin) continue;
      const KvSequence& sequence = *run.chunk->sequence;
      const std::byte* const host = sequence.LayerSlice(number, layer).data() -
                                    kv_.layer_bytes() * static_cast<size_t>(layer);
      Status added = OkStatus();
      ForEachRowRun(kv_, layer, earlier, [&](size_t offset, size_t bytes) {
        if (added.ok()) added = uploads_->Add(slot.address + offset, host + offset, bytes);
      });
      CAIRN_RETURN_IF_ERROR(added);
    }
  }
  return OkStatus();
}

Status DevicePass::Attend(int layer) {
  const int64_t q_width = int64_t{hp_.heads} * hp_.head_dim;
  const kernels::batch::KvForm form = FormOf(layer);
  const float scale = 1.0f / std::sqrt(static_cast<float>(hp_.head_dim));
  if (prompts_ > 0) {
    int64_t most_rows = 0;
    for (int64_t i = 0; i < prompts_; ++i) {
      most_rows = std::max(most_rows, runs_[static_cast<size_t>(i)].rows);
    }
    CAIRN_RETURN_IF_ERROR(
        Launched("attention", kernels_.attend_prompt(compute_.native(), {.kv = form,
                                                                         .chunks = lists_.chunks(),
                                                                         .count = prompts_,
                                                                         .most_rows = most_rows,
                                                                         .q = q_,
                                                                         .out = attended_,
                                                                         .q_stride = q_width,
                                                                         .out_stride = q_width,
                                                                         .scale = scale})));
  }
  if (rows_ == prompt_rows_) return OkStatus();
  return Launched(
      "attention",
      kernels_.attend_decode(compute_.native(), {.kv = form,
                                                 .sequences = lists_.sequences(),
                                                 .q = q_ + prompt_rows_ * q_width,
                                                 .out = attended_ + prompt_rows_ * q_width,
                                                 .rows = rows_ - prompt_rows_,
                                                 .q_stride = q_width,
                                                 .out_stride = q_width,
                                                 .most_splits = splits_,
                                                 .scale = scale,
                                                 .scratch = At<float>(scratch_.address(), 0)}));
}

Status DevicePass::FeedForward(const DeviceLayer& w) {
  CAIRN_RETURN_IF_ERROR(Normalise(w.ffn_norm, normed_));
  CAIRN_RETURN_IF_ERROR(Product(normed_, w.gate_up, gate_up_, /*accumulate=*/false));
  CAIRN_RETURN_IF_ERROR(
      Launched("activation", kernels_.swiglu(compute_.native(), {.gate = gate_up_,
                                                                 .up = gate_up_ + hp_.ffn,
                                                                 .y = activated_,
                                                                 .rows = rows_,
                                                                 .cols = hp_.ffn,
                                                                 .in_stride = 2 * hp_.ffn,
                                                                 .y_stride = hp_.ffn})));
  return Product(activated_, w.down, x_, /*accumulate=*/true);
}

Status DevicePass::Logits() {
  for (int64_t first = 0; first < std::ssize(wanted_); first += kLogitsRows) {
    const int64_t count = std::min<int64_t>(kLogitsRows, std::ssize(wanted_) - first);
    CAIRN_RETURN_IF_ERROR(ComputeLogits(first, count));
    CAIRN_RETURN_IF_ERROR(FetchLogits(count));
    CAIRN_RETURN_IF_ERROR(TakeLogits(first, count));
  }
  return OkStatus();
}

// A prompt's last row goes the way of a decoded one.
Status DevicePass::ComputeLogits(int64_t first, int64_t count) {
  CAIRN_RETURN_IF_ERROR(Launched(
      "norm", kernels_.rms_norm(compute_.native(), {.x = x_,
                                                    .source_rows = lists_.logits_rows() + first,
                                                    .weight = weights_.output_norm(),
                                                    .y = last_normed_,
                                                    .rows = count,
                                                    .cols = hp_.hidden,
                                                    .x_stride = hp_.hidden,
                                                    .y_stride = hp_.hidden,
                                                    .eps = hp_.rms_eps})));
  return Launched("product",
                  kernels_.gemm_few_rows(compute_.native(), {.a = last_normed_,
                                                             .w = weights_.output().w,
                                                             .y = logits_,
                                                             .rows = count,
                                                             .outputs = weights_.output().outputs,
                                                             .cols = hp_.hidden,
                                                             .a_stride = hp_.hidden,
                                                             .w_stride = hp_.hidden,
                                                             .y_stride = logits_stride_,
                                                             .accumulate = false}));
}

Status DevicePass::FetchLogits(int64_t count) {
  const device::CopyTask task{reinterpret_cast<uint64_t>(host_logits_.bytes().data()),
                              reinterpret_cast<uint64_t>(logits_),
                              static_cast<uint64_t>(count * logits_stride_) * sizeof(float)};
  CAIRN_RETURN_IF_ERROR(compute_.Copy("download of logits", {&task, 1}));
  return compute_.Record(logits_ready_);
}

Status DevicePass::TakeLogits(int64_t first, int64_t count) {
  CAIRN_RETURN_IF_ERROR(Await(logits_ready_, "logits"));
  const auto* const logits = reinterpret_cast<const float*>(host_logits_.bytes().data());
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(logits + i * logits_stride_, weights_.output().outputs,
                wanted_[static_cast<size_t>(first + i)].to);
  }
  return OkStatus();
}

Status DevicePass::Drain() {
  const Status uploaded = uploads_->Drain();
  Status computed = compute_.Record(ended_);
  if (computed.ok()) computed = Await(ended_, "the end of a forward pass");
  return uploaded.ok() ? computed : uploaded;
}

}  // namespace cairn::worker
