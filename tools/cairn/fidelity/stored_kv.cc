#include "tools/cairn/fidelity/stored_kv.h"

#include <cmath>
#include <utility>

#include "cairn/kernels/forward_kernels.h"
#include "common/format/selected_slice.h"
#include "common/keys/segment_keys.h"

namespace cairn::cli {
namespace {

// A measurement waits for a busy machine.
constexpr std::chrono::seconds kKvCall(60);

class DecodingSink final : public client::FetchSink {
 public:
  DecodingSink(const worker::KvLayout& kv, const worker::KvCodec& codec, StoredKv* out)
      : kv_(kv), codec_(codec), out_(out) {}

  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    const size_t at = slice.block * kv_.page_bytes() + slice.layer * kv_.layer_bytes();
    if (!codec_.Has(slice.codec) || at + kv_.layer_bytes() > out_->pages.size()) {
      return Errorf(StatusCode::kDataLoss, "block {}, layer {}: not of this namespace", slice.block,
                    slice.layer);
    }
    out_->codecs.insert(slice.codec);
    ++slices_;
    return codec_.Decode(slice.codec, static_cast<int>(slice.layer),
                         uint64_t{slice.block} * static_cast<uint64_t>(kv_.block_tokens), data,
                         std::span(out_->pages).subspan(at, kv_.layer_bytes()), scratch_);
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}

  size_t slices() const { return slices_; }

 private:
  const worker::KvLayout& kv_;
  const worker::KvCodec& codec_;
  StoredKv* const out_;
  worker::KvCodec::Scratch scratch_;
  size_t slices_ = 0;
};

// Reads the masks that slices of a selecting recipe begin with.
class MaskSink final : public client::FetchSink {
 public:
  MaskSink(const worker::KvLayout& kv, size_t blocks, StoredKv* out) : kv_(kv), out_(out) {
    const size_t tokens = blocks * static_cast<size_t>(kv.block_tokens);
    out_->kept.assign(static_cast<size_t>(kv.layers) * static_cast<size_t>(kv.kv_heads),
                      std::vector<std::byte>((tokens + 7) / 8));
  }

  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    const auto heads = static_cast<uint32_t>(kv_.kv_heads);
    const auto tokens = static_cast<uint32_t>(kv_.block_tokens);
    CAIRN_ASSIGN_OR_RETURN(const std::vector<uint64_t> masks,
                           format::ReadMasks(data, heads, tokens));
    out_->codecs.insert(slice.codec);
    ++slices_;
    const size_t words = format::MaskWords(tokens);
    for (uint32_t h = 0; h < heads; ++h) {
      std::vector<std::byte>& kept = out_->kept.at(slice.layer * heads + h);
      for (uint32_t t = 0; t < tokens; ++t) {
        const uint64_t bit = masks[h * words + t / 64] >> (t % 64) & 1;
        const size_t token = size_t{slice.block} * tokens + t;
        kept.at(token / 8) |= static_cast<std::byte>(bit << (token % 8));
      }
    }
    return OkStatus();
  }
  void OnBlockFailed(uint32_t, client::MissReason) override {}

  size_t slices() const { return slices_; }

 private:
  const worker::KvLayout& kv_;
  StoredKv* const out_;
  size_t slices_ = 0;
};

// Sums of squares of one plane.
struct Squares {
  double numbers = 0, differences = 0;
  void Add(std::span<const std::byte> exact, std::span<const std::byte> stored,
           std::vector<float>* a, std::vector<float>* b) {
    static const kernels::ForwardKernels& table = kernels::CpuForwardKernels(kernels::BestIsa());
    kernels::InlineStream stream;
    const size_t n = exact.size() / sizeof(uint16_t);
    a->resize(n);
    b->resize(n);
    for (const auto& [from, to] : {std::pair(exact, a), std::pair(stored, b)}) {
      table.from_half(stream, {.x = reinterpret_cast<const uint16_t*>(from.data()),
                               .y = to->data(),
                               .n = static_cast<int64_t>(n)});
    }
    for (size_t i = 0; i < n; ++i) {
      const double x = (*a)[i];
      const double d = x - (*b)[i];
      numbers += x * x;
      differences += d * d;
    }
  }
  double Relative() const { return numbers > 0 ? std::sqrt(differences / numbers) : 0; }
};

}  // namespace

Result<std::unique_ptr<StoredKvReader>> StoredKvReader::Create(client::CacheClient& client,
                                                               const NamespaceSpec& spec) {
  CAIRN_ASSIGN_OR_RETURN(const CheckedNamespace ns, CheckNamespace(spec));
  const auto planes = spec.layout.PlanesOf(0);
  if (planes.size() != 2) {
    return InvalidArgument("namespace of recipe '{}': {} planes, expected k and v", spec.recipe,
                           planes.size());
  }
  const worker::KvLayout kv{.layers = static_cast<int32_t>(spec.layout.Layers()),
                            .kv_heads = static_cast<int32_t>(planes[0].heads),
                            .head_dim = static_cast<int32_t>(planes[0].dim),
                            .block_tokens = static_cast<int32_t>(spec.layout.block_tokens)};
  CAIRN_ASSIGN_OR_RETURN(auto codec, worker::KvCodec::Create(ns, kv, SteadyClock::Get()));
  return std::unique_ptr<StoredKvReader>(
      new StoredKvReader(client, ns.fingerprint, kv, std::move(codec)));
}

StoredKvReader::StoredKvReader(client::CacheClient& client, const Digest& fingerprint,
                               const worker::KvLayout& kv,
                               std::unique_ptr<const worker::KvCodec> codec)
    : client_(client), fingerprint_(fingerprint), kv_(kv), codec_(std::move(codec)) {}

Result<StoredKv> StoredKvReader::Read(std::span<const int32_t> context, bool with_kept) {
  std::vector<BlockKey> keys =
      BlockKeyChain(fingerprint_).Keys(context, static_cast<uint32_t>(kv_.block_tokens));
  if (codec_->selected()) {
    const BlockKey end = keys.back();
    keys = SegmentKeys(fingerprint_).Keys(std::nullopt, end, static_cast<uint32_t>(keys.size()));
  }
  client::MatchOptions ask;
  ask.deadline = kKvCall;
  CAIRN_ASSIGN_OR_RETURN(const client::MatchOutcome match, client_.Match(fingerprint_, keys, ask));
  if (match.matched_blocks != keys.size()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the node has {} of {} blocks of the context, expected all", match.matched_blocks,
                  keys.size());
  }
  StoredKv out;
  out.bytes = match.bytes;
  out.numbers = keys.size() * kv_.page_bytes() / sizeof(uint16_t);
  if (codec_->selected()) {
    if (!with_kept) return out;
    MaskSink sink(kv_, keys.size(), &out);
    CAIRN_RETURN_IF_ERROR(FetchAll(match, keys.size(), sink));
    return out;
  }
  out.pages.resize(keys.size() * kv_.page_bytes());
  DecodingSink sink(kv_, *codec_, &out);
  CAIRN_RETURN_IF_ERROR(FetchAll(match, keys.size(), sink));
  return out;
}

template <typename Sink>
Status StoredKvReader::FetchAll(const client::MatchOutcome& match, size_t blocks, Sink& sink) {
  client::FetchOptions fetch;
  fetch.progress = kKvCall;
  fetch.deadline = kKvCall;
  CAIRN_RETURN_IF_ERROR(client_.Fetch(match.lease, {}, sink, fetch));
  const size_t expected = blocks * static_cast<size_t>(kv_.layers);
  if (sink.slices() != expected) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "the node sent {} of {} slices of the context, expected all", sink.slices(),
                  expected);
  }
  return OkStatus();
}

KvError RelativeError(std::span<const std::byte> exact, std::span<const std::byte> stored,
                      const worker::KvLayout& kv) {
  Squares k, v;
  std::vector<float> a, b;
  for (size_t at = 0; at < exact.size(); at += kv.layer_bytes()) {
    k.Add(exact.subspan(at, kv.plane_bytes()), stored.subspan(at, kv.plane_bytes()), &a, &b);
    const size_t values = at + kv.plane_bytes();
    v.Add(exact.subspan(values, kv.plane_bytes()), stored.subspan(values, kv.plane_bytes()), &a,
          &b);
  }
  return {.k = k.Relative(), .v = v.Relative()};
}

}  // namespace cairn::cli
