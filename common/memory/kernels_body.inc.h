// Included by kernels_avx512.cc and kernels_avx2.cc, which define Line: 64 bytes in registers.
// Everything here is in an anonymous namespace and inlined, so that no code for one instruction set
// is linked into the rest of the program.

#include <cstring>
#include <type_traits>

namespace cairn::memory {
namespace {

// Several pages at a time, two lines of each in turn: every page is a stream of its own to the
// hardware's prefetcher, which does not look beyond a page. 1.2 x one stream.
void StreamPages(const PageCopy* pages) {
  for (size_t line = 0; line < kPage; line += 2 * kLine) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kStreams; ++i) {
      const std::byte* const from = pages[i].from + line;
      std::byte* const to = pages[i].to + line;
      const Line a = Line::Load(from);
      const Line b = Line::Load(from + kLine);
      a.Stream(to);
      b.Stream(to + kLine);
    }
  }
}

void Stream(std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes; at += kLine) Line::Load(from + at).Stream(to + at);
}

// XXH3 for long inputs (Y. Collet, xxHash specification, doc/xxhash_spec.md, "XXH3 algorithm
// description, long inputs"): blocks of 16 stripes of 64 bytes, scrambled after each, the default
// secret of 192 bytes.
constexpr size_t kStripes = 16;
constexpr size_t kBlock = kStripes * kLine;
constexpr size_t kSecretBytes = sizeof(XXH3_kSecret);
static_assert(kSecretBytes == 192);

template <Store kStore>
inline __attribute__((always_inline)) void Put(const Line& line, std::byte* to) {
  if constexpr (kStore == Store::kCached) line.Save(to);
  if constexpr (kStore == Store::kStreaming) line.Stream(to);
}

// Stores to lines of 64 bytes what comes in lines that lie otherwise (numpy's arrays begin 16 bytes
// into a line): half a line would be read from memory before it is written. As elsewhere here,
// nothing is stored but what was hashed: bytes in shared memory may change meanwhile. Each belongs
// to one call, so to one thread.
class Shifter {
 public:
  explicit Shifter(std::byte* to)
      : to_(to), back_(reinterpret_cast<uintptr_t>(to) % kLine), line_(to - back_) {}

  // The next line, which is number `s` since the last Flush.
  inline __attribute__((always_inline)) void Put(const Line& line, size_t s) {
    line.Save(room_ + (s + 1) * kLine);
  }
  // REQUIRES: 0 < lines <= kStripes were put.
  void Flush(size_t lines) {
    size_t k = 0;
    if (line_ < to_) {  // The first one belongs in part to what lies before `to`.
      std::memcpy(to_, room_ + kLine, kLine - back_);
      k = 1;
    }
    for (; k < lines; ++k) Line::Load(room_ + (k + 1) * kLine - back_).Stream(line_ + k * kLine);
    line_ += lines * kLine;
    Line::Load(room_ + lines * kLine).Save(room_);
  }
  // Stores the bytes that were put and are not stored yet.
  void Finish() { std::memcpy(line_, room_ + kLine - back_, back_); }

 private:
  std::byte* const to_;
  const size_t back_;
  // The line of the first byte that is not stored.
  std::byte* line_;
  alignas(kLine) std::byte room_[(kStripes + 1) * kLine];  // Begins with the last line before.
};

// The same without memory between, where lines can be joined.
class Joiner {
 public:
  explicit Joiner(std::byte* to)
      : to_(to), back_(reinterpret_cast<uintptr_t>(to) % kLine), line_(to - back_), join_(back_) {}

  inline __attribute__((always_inline)) void Put(const Line& line, size_t) {
    if (line_ < to_) [[unlikely]] {
      alignas(kLine) std::byte bytes[kLine];
      line.Save(bytes);
      std::memcpy(to_, bytes, kLine - back_);
    } else {
      join_(before_, line).Stream(line_);
    }
    line_ += kLine;
    before_ = line;
  }
  void Flush(size_t) {}
  // REQUIRES: a line was put.
  void Finish() {
    alignas(kLine) std::byte bytes[kLine];
    before_.Save(bytes);
    std::memcpy(line_, bytes + kLine - back_, back_);
  }

 private:
  std::byte* const to_;
  const size_t back_;
  std::byte* line_;  // The line of the first byte that is not stored.
  const Join join_;
  Line before_{};
};

template <Store kStore>
uint64_t Hash(std::byte* to, const std::byte* from, size_t bytes, const std::byte* next) {
  const auto* secret = reinterpret_cast<const std::byte*>(XXH3_kSecret);
  Accumulator acc;
  const size_t blocks = (bytes - 1) / kBlock;
  constexpr bool kShifted = kStore == Store::kStreamingShifted || kStore == Store::kStreamingJoined;
  using Unaligned = std::conditional_t<kStore == Store::kStreamingJoined, Joiner, Shifter>;
  [[maybe_unused]] std::conditional_t<kShifted, Unaligned, std::byte*> shifter(to);
  // While 8 KiB are hashed, the lines of the next 8 KiB are asked for, by turns from its two pages:
  // the hardware's prefetcher starts again in every page. After the last ones comes `next`.
  constexpr size_t kAhead = 2 * kPage;
  // Bytes that are copied past the caches are not read again either: the copy should leave the
  // caches to the caller, whose own code and data it would push out.
  constexpr int kLocality = kStore == Store::kStreaming || kShifted ? 0 : 3;
  for (size_t block = 0; block < blocks; ++block) {
    const std::byte* const in = from + block * kBlock;
    const size_t ahead_at = block * kBlock / kAhead * kAhead + kAhead;
    const std::byte* const ahead = ahead_at < bytes ? from + ahead_at : next;
#pragma GCC unroll 16
    for (size_t s = 0; s < kStripes; ++s) {
      const size_t i = (block * kStripes + s) % (kAhead / kLine);
      __builtin_prefetch(ahead + (i % 4 / 2) * kPage + (i / 4 * 2 + i % 2) * kLine, 0, kLocality);
      const Line line = Line::Load(in + s * kLine);
      if constexpr (kShifted) {
        shifter.Put(line, s);
      } else if constexpr (kStore != Store::kNone) {
        Put<kStore>(line, to + block * kBlock + s * kLine);
      }
      acc.Add(line, Line::Load(secret + s * 8));
    }
    if constexpr (kShifted) shifter.Flush(kStripes);
    acc.Scramble(Line::Load(secret + kSecretBytes - kLine));
  }
  const size_t done = blocks * kBlock;
  const size_t stripes = (bytes - 1 - done) / kLine;
  for (size_t s = 0; s < stripes; ++s) {
    const Line line = Line::Load(from + done + s * kLine);
    if constexpr (kShifted) {
      shifter.Put(line, s);
    } else if constexpr (kStore != Store::kNone) {
      Put<kStore>(line, to + done + s * kLine);
    }
    acc.Add(line, Line::Load(secret + s * 8));
  }
  // The last 64 bytes, which may have been hashed in part already.
  const Line last = Line::Load(from + bytes - kLine);
  acc.Add(last, Line::Load(secret + kSecretBytes - kLine - 7));
  if constexpr (kShifted) {
    if (stripes > 0) shifter.Flush(stripes);
    shifter.Finish();
  }
  if constexpr (kStore != Store::kNone) last.Save(to + bytes - kLine);
  alignas(kLine) uint64_t lanes[8];
  acc.Save(lanes);
  return XXH3_mergeAccs(lanes, XXH3_kSecret + 11, bytes * 0x9E3779B185EBCA87u);
}

uint64_t HashAny(std::byte* to, const std::byte* from, size_t bytes, Store store,
                 const std::byte* next) {
  switch (store) {
    case Store::kNone:
      return Hash<Store::kNone>(to, from, bytes, next);
    case Store::kCached:
      return Hash<Store::kCached>(to, from, bytes, next);
    case Store::kStreaming:
      return Hash<Store::kStreaming>(to, from, bytes, next);
    case Store::kStreamingShifted:
      if (Join::kWorks && reinterpret_cast<uintptr_t>(to) % 4 == 0) {
        return Hash<Store::kStreamingJoined>(to, from, bytes, next);
      }
      return Hash<Store::kStreamingShifted>(to, from, bytes, next);
    case Store::kStreamingJoined:
      break;  // Nobody asks for it.
  }
  return 0;
}

constexpr Kernels kKernels{StreamPages, Stream, HashAny};

}  // namespace
}  // namespace cairn::memory
