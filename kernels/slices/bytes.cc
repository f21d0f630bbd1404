#include "kernels/slices/bytes.h"

#include <xxhash.h>

#include <cstring>

#include "kernels/slices/bfloat16.h"

namespace cairn::kernels {
namespace {

// Calls move(page, block, block's index) for all pieces of all blocks.
template <typename Move>
void ForPieces(const MovePagesArgs& a, Move move) {
  const PageMap& pages = a.pages;
  for (int64_t b = 0; b < pages.blocks; ++b) {
    std::byte* block = a.blocks + static_cast<uint64_t>(b) * a.block_stride;
    for (int64_t p = 0; p < pages.piece_count; ++p, block += pages.piece_bytes) {
      move(pages.pieces[p] + pages.index[b] * pages.stride, block);
    }
  }
}

// Calls convert(number) for all numbers of a piece.
template <typename Convert>
void ConvertPiece(const std::byte* from, std::byte* to, uint32_t bytes, Convert convert) {
  for (uint32_t i = 0; i < bytes; i += 2) {
    uint16_t number;
    std::memcpy(&number, from + i, sizeof(number));
    number = convert(number);
    std::memcpy(to + i, &number, sizeof(number));
  }
}

}  // namespace

void HashRuns(const HashRunsArgs& a) {
  for (int64_t i = 0; i < a.count; ++i) {
    const HashRun& run = a.runs[i];
    const uint64_t hash = XXH3_64bits(run.in, run.bytes);
    if (run.hash != nullptr) *run.hash = hash;
    if (run.faults != nullptr && hash != run.expected) *run.faults |= kHashFault;
  }
}

void GatherPages(const MovePagesArgs& a) {
  const uint32_t bytes = a.pages.piece_bytes;
  bool exact = true;
  ForPieces(a, [&](const std::byte* page, std::byte* block) {
    if (!a.bfloat16_pages) {
      std::memcpy(block, page, bytes);
    } else {
      ConvertPiece(page, block, bytes, [&](uint16_t n) { return HalfOfBfloat16(n, &exact); });
    }
  });
  if (!exact) *a.faults |= kInexactFault;
}

void ScatterPages(const MovePagesArgs& a) {
  const uint32_t bytes = a.pages.piece_bytes;
  ForPieces(a, [&](std::byte* page, const std::byte* block) {
    if (!a.bfloat16_pages) {
      std::memcpy(page, block, bytes);
    } else {
      ConvertPiece(block, page, bytes, Bfloat16OfHalf);
    }
  });
}

}  // namespace cairn::kernels
