// Frames of a node that may lie: nothing is read or written out of bounds, memory stays bounded, and no slice is delivered whose bytes do
// not have the hash that came with it.

#include <google/protobuf/io/zero_copy_stream_impl_lite.h>

#include <cstdlib>

#include "clients/cpp/src/fetch_frame.h"
#include "clients/cpp/src/slice_assembler.h"
#include "services/common/hash/hash.h"

namespace {

using namespace cairn;

constexpr size_t kMaxSlice = 64 << 10;

class Sink final : public client::FetchSink {
 public:
  explicit Sink(bool own) : own_(own) {}
  std::span<std::byte> Destination(const client::SliceInfo& slice) override {
    // Slices share the room: what one wrote is nothing to the other.
    static std::vector<std::byte> room(
        kMaxSlice);  // Zeroing one for each input took half of the time.
    return own_ || slice.slice_bytes > room.size() ? std::span<std::byte>()
                                                   : std::span(room).first(slice.slice_bytes);
  }
  Status OnSlice(const client::SliceInfo& slice, std::span<const std::byte> data) override {
    if (data.size() != slice.slice_bytes) std::abort();
    if (own_ && Xxh3(data) != slice.xxh3) std::abort();
    return OkStatus();
  }
  void OnBlockFailed(uint32_t block, client::MissReason) override {
    if (block >= 16) std::abort();
  }

 private:
  const bool own_;
};

}  // namespace

// The first byte: how the bytes are cut into buffers, and where the slices go. The rest is cut into frames at 0xf1 0xa3 0x3e.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const int buffer = 1 + (data[0] & 0x3f);
  Sink sink((data[0] & 0x40) != 0);
  client::SliceAssembler assembler(&sink, {.blocks = 16,
                                           .max_slice_bytes = kMaxSlice,
                                           .max_open_bytes = 4 * kMaxSlice,
                                           .max_retries = 4});
  if ((data[0] & 0x80) != 0) assembler.BeginRetry();
  const std::string_view frames(reinterpret_cast<const char*>(data) + 1, size - 1);
  for (size_t at = 0; at <= frames.size();) {
    const size_t end = std::min(frames.find("\xf1\xa3\x3e", at), frames.size());
    google::protobuf::io::ArrayInputStream in(frames.data() + at, static_cast<int>(end - at),
                                              buffer);
    const auto frame = client::ParseFetchFrame(&in);
    if (!frame.ok()) return 0;
    for (const auto& piece : frame->pieces) {
      if (!assembler.Take(piece).ok()) return 0;
    }
    for (const auto& [block, reason] : frame->failed) assembler.Fail(block, reason);
    at = end + 3;
  }
  assembler.BeginRetry();
  assembler.EndRetry();
  return 0;
}
