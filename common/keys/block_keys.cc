// BlockKeyChain of namespace_spec.h.

#include <cstring>

#include "cairn/common/namespace_spec.h"

namespace cairn {
namespace {

constexpr std::string_view kBlockMagic = "cairn.block.v1";
// A block has at most 256 tokens; longer runs still hash, in pieces.
constexpr size_t kTokensPerUpdate = 256;

}  // namespace

BlockKey BlockKeyChain::Next(const std::optional<BlockKey>& parent, std::span<const int32_t> tokens,
                             std::string_view extra) {
  // One buffer and one call into the hash for the usual block: a call costs as much as hashing 64
  // bytes.
  std::array<std::byte, kBlockMagic.size() + 32 + 32 + 4 + 4 * kTokensPerUpdate + 8> buffer;
  std::byte* at = buffer.data();
  const auto put = [&at](const void* from, size_t n) {
    std::memcpy(at, from, n);
    at += n;
  };
  const auto put_u32 = [&at](uint32_t v) {
    for (int i = 0; i < 4; ++i) *at++ = static_cast<std::byte>(v >> (8 * i));
  };
  put(kBlockMagic.data(), kBlockMagic.size());
  put(fingerprint_.bytes.data(), 32);
  put(parent ? parent->bytes.data() : BlockKey{}.bytes.data(), 32);
  put_u32(static_cast<uint32_t>(tokens.size()));
  while (true) {
    const size_t n = std::min(tokens.size(), kTokensPerUpdate);
    for (int32_t token : tokens.first(n)) put_u32(static_cast<uint32_t>(token));
    tokens = tokens.subspan(n);
    if (tokens.empty()) break;
    sha_.Update(std::span<const std::byte>(buffer.data(), at));
    at = buffer.data();
  }
  const uint64_t extra_size = extra.size();
  put_u32(static_cast<uint32_t>(extra_size));
  put_u32(static_cast<uint32_t>(extra_size >> 32));
  sha_.Update(std::span<const std::byte>(buffer.data(), at));
  if (!extra.empty()) sha_.Update(extra);
  return sha_.Finish();
}

std::vector<BlockKey> BlockKeyChain::Keys(std::span<const int32_t> tokens, uint32_t block_tokens) {
  std::vector<BlockKey> keys;
  if (block_tokens == 0) return keys;
  keys.reserve(tokens.size() / block_tokens);
  std::optional<BlockKey> parent;
  for (size_t at = 0; at + block_tokens <= tokens.size(); at += block_tokens) {
    keys.push_back(Next(parent, tokens.subspan(at, block_tokens)));
    parent = keys.back();
  }
  return keys;
}

}  // namespace cairn
