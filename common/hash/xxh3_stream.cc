#include "common/hash/xxh3_stream.h"

// The state's layout, to hold it by value.
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>
#if defined(__x86_64__)
// A distribution's plain calls are SSE2; these ask the CPU once.
#include <xxh_x86dispatch.h>
#endif

namespace cairn {

struct Xxh3Stream::State {
  XXH3_state_t xxh3;  // Aligns itself to 64.
};

Xxh3Stream::Xxh3Stream() : state_(std::make_unique<State>()) { Reset(); }
Xxh3Stream::~Xxh3Stream() = default;
Xxh3Stream::Xxh3Stream(Xxh3Stream&&) noexcept = default;
Xxh3Stream& Xxh3Stream::operator=(Xxh3Stream&&) noexcept = default;

void Xxh3Stream::Update(std::span<const std::byte> piece) {
  XXH3_64bits_update(&state_->xxh3, piece.data(), piece.size());
}
uint64_t Xxh3Stream::Digest() const { return XXH3_64bits_digest(&state_->xxh3); }
void Xxh3Stream::Reset() { XXH3_64bits_reset(&state_->xxh3); }

}  // namespace cairn
