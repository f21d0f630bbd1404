#include "tools/cairn/bench/block_set.h"

#include <algorithm>
#include <cstring>

namespace cairn::cli::bench {
namespace {

constexpr uint32_t kBlockTokens = 64;
constexpr uint64_t kBytesPerDim = kBlockTokens * 2;  // One head of float16.
constexpr uint64_t kMaxSlice = kBytesPerDim * 65536;
constexpr uint64_t kAlign = 64;

uint64_t Mix(uint64_t x) {  // splitmix64.
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t Stride(uint64_t part_bytes) { return (part_bytes + kAlign - 1) / kAlign * kAlign; }

}  // namespace

Result<std::shared_ptr<const BlockSet>> BlockSet::Make(const Options& options) {
  if (options.layers == 0 || options.block_bytes % (options.layers * kBytesPerDim) != 0 ||
      options.block_bytes == 0 || options.block_bytes / options.layers > kMaxSlice) {
    return InvalidArgument(
        "block of {} bytes in {} layers: expected for each layer a multiple of {} bytes, at most "
        "{}",
        options.block_bytes, options.layers, kBytesPerDim, kMaxSlice);
  }
  std::shared_ptr<BlockSet> set(new BlockSet(options));
  const uint64_t slice = options.block_bytes / options.layers;
  const std::vector<Plane> planes = {{.name = "kv",
                                      .heads = 1,
                                      .dim = static_cast<uint32_t>(slice / kBytesPerDim),
                                      .dtype = DType::kF16}};
  set->spec_.tenant = kTenant;
  set->spec_.model = "bench";
  set->spec_.revision = std::to_string(options.seed);
  set->spec_.layout.block_tokens = kBlockTokens;
  set->spec_.layout.form = NativeLayout{.groups = {{options.layers, planes}}, .kv_heads = 1};
  set->spec_.numerics = "bench";
  CAIRN_RETURN_IF_ERROR(Validate(set->spec_));
  set->fingerprint_ = Fingerprint(set->spec_);

  const std::vector<uint64_t> lengths(options.layers, slice);
  set->header_bytes_ = format::HeaderBytes(options.layers);
  set->part_bytes_ = format::PartBytes(lengths);
  const uint64_t stride = Stride(set->part_bytes_);
  CAIRN_ASSIGN_OR_RETURN(set->bytes_, Buffer::Allocate(stride * options.blocks));
  FillRandom(set->bytes_.bytes(), options.seed);
  for (uint32_t i = 0; i < options.blocks; ++i) {
    format::SealPart(set->bytes_.bytes().subspan(i * stride, set->part_bytes_), format::Codec::kRaw,
                     set->rect(), kBlockTokens, lengths);
  }
  return std::shared_ptr<const BlockSet>(std::move(set));
}

std::span<const std::byte> BlockSet::Part(uint32_t block) const {
  return bytes_.bytes().subspan(block * Stride(part_bytes_), part_bytes_);
}

std::span<const std::byte> BlockSet::Payload(uint32_t block) const {
  return Part(block).subspan(header_bytes_);
}

BlockKey BlockSet::Key(uint64_t generation, uint32_t block) const {
  BlockKey key;
  uint64_t state = Mix(options_.seed) ^ Mix(generation * 0x100000000u + block);
  for (size_t at = 0; at < key.bytes.size(); at += sizeof(state)) {
    state = Mix(state + at);
    std::memcpy(key.bytes.data() + at, &state, sizeof(state));
  }
  return key;
}

std::vector<BlockKey> BlockSet::Keys(uint64_t generation, uint32_t begin, uint32_t end) const {
  std::vector<BlockKey> keys;
  keys.reserve(end - begin);
  for (uint32_t i = begin; i < end; ++i) keys.push_back(Key(generation, i));
  return keys;
}

std::optional<BlockKey> BlockSet::Parent(uint64_t generation, uint32_t block,
                                         uint32_t chain) const {
  if (block % chain == 0) return std::nullopt;
  return Key(generation, block - 1);
}

std::vector<client::PartToPush> BlockSet::ToPush(uint64_t generation, uint32_t begin, uint32_t end,
                                                 uint32_t chain) const {
  std::vector<client::PartToPush> parts(end - begin);
  const auto self = shared_from_this();
  for (uint32_t i = begin; i < end; ++i) {
    client::PartToPush& part = parts[i - begin];
    part.key = Key(generation, i);
    part.parent = Parent(generation, i, chain);
    part.first_position = uint64_t{i % chain} * kBlockTokens;
    part.rect = rect();
    part.bytes = Part(i);
    part.hold = self;
  }
  return parts;
}

std::vector<client::PartToWrite> BlockSet::ToWrite(uint64_t generation, uint32_t begin,
                                                   uint32_t end, uint32_t chain) const {
  std::vector<client::PartToWrite> parts(end - begin);
  for (uint32_t i = begin; i < end; ++i) {
    client::PartToWrite& part = parts[i - begin];
    part.key = Key(generation, i);
    part.parent = Parent(generation, i, chain);
    part.first_position = uint64_t{i % chain} * kBlockTokens;
    part.rect = rect();
    part.bytes = part_bytes_;
  }
  return parts;
}

std::span<std::byte> MemorySink::Destination(const client::SliceInfo& slice) {
  const uint64_t at = slice.block * block_bytes_ + slice.layer * slice.slice_bytes;
  if (at + slice.slice_bytes > memory_.size()) return {};
  return memory_.subspan(at, slice.slice_bytes);
}

Status MemorySink::OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) {
  const std::span<std::byte> place = Destination(slice);
  if (place.size() != data.size()) {
    return Errorf(StatusCode::kInternal, "slice of block {} layer {} has {} bytes", slice.block,
                  slice.layer, data.size());
  }
  if (place.data() != data.data()) std::memcpy(place.data(), data.data(), data.size());
  bytes_ += data.size();
  return OkStatus();
}

Status MemorySink::OnLentSlice(const client::SliceInfo& slice, std::span<const std::byte> data,
                               std::shared_ptr<const client::LentHold> hold) {
  lent_->push_back({slice.block, slice.layer, data, std::move(hold)});
  bytes_ += data.size();
  return OkStatus();
}

void MemorySink::OnBlockFailed(uint32_t block, client::MissReason reason) {
  if (failed_.ok()) {
    failed_ = Errorf(StatusCode::kNotFound, "block {} was not served: {}", block, Name(reason));
  }
}

Status MemorySink::Check(uint64_t expected) const {
  CAIRN_RETURN_IF_ERROR(failed_);
  if (bytes_ == expected) return OkStatus();
  return Errorf(StatusCode::kDataLoss, "{} bytes came, expected {}", bytes_, expected);
}

Status CompareLent(const BlockSet& set, uint32_t first, std::span<const LentSlice> slices) {
  for (const LentSlice& slice : slices) {
    const auto expected = set.Payload(first + slice.block)
                              .subspan(slice.layer * set.slice_bytes(), set.slice_bytes());
    const bool same = slice.bytes.size() == expected.size() &&
                      std::memcmp(slice.bytes.data(), expected.data(), expected.size()) == 0;
    if (!same || !slice.hold->Pinned()) {
      return Errorf(StatusCode::kDataLoss, "block {} layer {} was lent with other bytes",
                    first + slice.block, slice.layer);
    }
  }
  return OkStatus();
}

Status ComparePayload(const BlockSet& set, uint32_t begin, uint32_t end,
                      std::span<const std::byte> memory) {
  for (uint32_t i = begin; i < end; ++i) {
    const std::span<const std::byte> expected = set.Payload(i);
    if (std::memcmp(memory.data() + i * set.block_bytes(), expected.data(), expected.size()) != 0) {
      return Errorf(StatusCode::kDataLoss, "block {} came with other bytes than were stored", i);
    }
  }
  return OkStatus();
}

}  // namespace cairn::cli::bench
