#include "services/worker/compute/chunk_check.h"

namespace cairn::worker {
namespace {

Status CheckChunk(size_t i, const SequenceChunk& c, bool alone, const ChunkLimits& limits) {
  if (c.sequence == nullptr || !c.sequence->valid()) {
    return InvalidArgument("chunk {}: field 'sequence': got none, expected one of a pool", i);
  }
  if (!(c.sequence->layout() == limits.layout)) {
    return InvalidArgument(
        "chunk {}: the sequence's pool has a layout that differs from the model's", i);
  }
  if (c.reader != nullptr && !limits.takes_earlier) {
    return Errorf(StatusCode::kUnimplemented,
                  "chunk {}: field 'reader': a device attends only to KV in its pages", i);
  }
  const bool elsewhere =
      c.sequence->base() > 0 && c.sequence->prefix() == nullptr && c.earlier == nullptr;
  if (c.reader != nullptr && (!elsewhere || c.phase != Phase::kDecode)) {
    return InvalidArgument(
        "chunk {}: field 'reader': got one, expected one only for decode steps of a sequence whose "
        "first tokens lie elsewhere, without 'earlier'",
        i);
  }
  const auto count = static_cast<int64_t>(c.tokens.size());
  // Logits of every token are of one slab's rows.
  const bool wide = alone && !c.logits_of_every_token && c.earlier == nullptr;
  const int64_t most = c.phase == Phase::kDecode ? 1
                       : wide                    ? limits.max_wide_rows
                                                 : limits.max_rows;
  if (count < 1 || count > most) {
    return InvalidArgument("chunk {}: field 'tokens': got {}, expected 1 to {}", i, count, most);
  }
  const int64_t length = c.sequence->length();
  const int64_t in_pages = length - c.sequence->base();
  if (c.phase == Phase::kPrefill && in_pages % limits.layout.block_tokens != 0) {
    return InvalidArgument(
        "chunk {}: prefill at position {}, expected a multiple of {} (block start)", i, length,
        limits.layout.block_tokens);
  }
  if (c.earlier != nullptr && !limits.takes_earlier) {
    return Errorf(StatusCode::kUnimplemented,
                  "chunk {}: field 'earlier': a device attends only to KV in its pages", i);
  }
  const bool has_prefix = c.sequence->prefix() != nullptr;
  const int64_t earlier = c.earlier == nullptr ? 0 : c.earlier->tokens();
  if (c.earlier != nullptr
          ? has_prefix || earlier != c.sequence->base() || earlier % EarlierKv::kUnitTokens != 0
          : !has_prefix && c.sequence->base() != 0 && c.reader == nullptr) {
    return InvalidArgument(
        "chunk {}: field 'earlier': got {} tokens, expected the {} before the sequence's pages, a "
        "multiple of {}",
        i, earlier, c.sequence->base(), EarlierKv::kUnitTokens);
  }
  if (length + count > limits.max_context) {
    return Errorf(StatusCode::kOutOfRange, "chunk {}: position {} is beyond the context of {}", i,
                  length + count - 1, limits.max_context);
  }
  if (length + count > c.sequence->capacity()) {
    return InvalidArgument("chunk {}: the sequence has room for {} tokens, expected at least {}", i,
                           c.sequence->capacity(), length + count);
  }
  for (const int32_t token : c.tokens) {
    if (token < 0 || token >= limits.vocab) {
      return InvalidArgument("chunk {}: token {}, expected 0 to {}", i, token, limits.vocab - 1);
    }
  }
  return OkStatus();
}

}  // namespace

Status CheckChunks(std::span<const SequenceChunk> chunks, const ChunkLimits& limits) {
  int64_t rows = 0;
  for (size_t i = 0; i < chunks.size(); ++i) {
    CAIRN_RETURN_IF_ERROR(CheckChunk(i, chunks[i], chunks.size() == 1, limits));
    rows += static_cast<int64_t>(chunks[i].tokens.size());
    for (size_t j = 0; j < i; ++j) {
      if (chunks[j].sequence == chunks[i].sequence) {
        return InvalidArgument("chunks {} and {}: the same sequence, expected different ones", j,
                               i);
      }
    }
  }
  if (chunks.size() > 1 && rows > limits.max_rows) {
    return InvalidArgument("forward pass of {} tokens, expected at most {}", rows, limits.max_rows);
  }
  return OkStatus();
}

}  // namespace cairn::worker
