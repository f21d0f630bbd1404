#include "tests/support/fake_kernels/slice_kernels.h"

#include <atomic>
#include <vector>

#include "cairn/kernels/stream.h"
#include "tests/conformance/kernels/emulated/emulated_backend.h"

namespace cairn::kernels::testing {
namespace {

using device::Code;
using device::fake::FakeControl;
using device::fake::Range;

const FakeControl* control = nullptr;
std::atomic<uint64_t> decoded_slices = 0, encoded_slices = 0;

template <typename T>
Range Of(const T* first, int64_t count) {
  return {reinterpret_cast<uint64_t>(first), static_cast<uint64_t>(count) * sizeof(T)};
}

// A range for each head, or for each token if the heads of a token lie closer together: pages of
// engines may have other blocks in between.
void AddPlane(const PlaneForm& plane, const uint16_t* numbers, int32_t tokens,
              std::vector<Range>* ranges) {
  const bool by_head = plane.head_stride >= plane.token_stride;
  const int64_t count = by_head ? plane.heads : tokens, inner = by_head ? tokens : plane.heads;
  const int64_t stride = by_head ? plane.head_stride : plane.token_stride;
  const int64_t inner_stride = by_head ? plane.token_stride : plane.head_stride;
  for (int64_t i = 0; i < count; ++i) {
    ranges->push_back(Of(numbers + i * stride, (inner - 1) * inner_stride + plane.dim));
  }
}

struct Touched {
  std::vector<Range> reads, writes;
};

Touched What(const SlicesArgs& a, bool encodes) {
  Touched touched;
  for (int64_t i = 0; i < a.count; ++i) {
    const SliceTask& slice = a.slices[i];
    auto& encoded = encodes ? touched.writes : touched.reads;
    auto& numbers = encodes ? touched.reads : touched.writes;
    encoded.push_back(Of(slice.encoded, static_cast<int64_t>(slice.bytes)));
    AddPlane(a.form.k, slice.k, slice.tokens, &numbers);
    AddPlane(a.form.v, slice.v, slice.tokens, &numbers);
    touched.writes.push_back(Of(slice.faults, 1));
    if (slice.scratch != nullptr) {
      touched.writes.push_back(Of(slice.scratch, SliceScratchBytes(a.form, slice)));
    }
    if (encodes && slice.encoded_bytes != nullptr) {
      touched.writes.push_back(Of(slice.encoded_bytes, 1));
    }
  }
  return touched;
}

Touched What(const HashRunsArgs& a) {
  Touched touched;
  for (int64_t i = 0; i < a.count; ++i) {
    const HashRun& run = a.runs[i];
    touched.reads.push_back(Of(run.in, static_cast<int64_t>(run.bytes)));
    if (run.hash != nullptr) touched.writes.push_back(Of(run.hash, 1));
    if (run.faults != nullptr) touched.writes.push_back(Of(run.faults, 1));
  }
  return touched;
}

Touched What(const MovePagesArgs& a, bool gathers) {
  Touched touched;
  auto& pages = gathers ? touched.reads : touched.writes;
  auto& blocks = gathers ? touched.writes : touched.reads;
  for (int64_t block = 0; block < a.pages.blocks; ++block) {
    for (int64_t piece = 0; piece < a.pages.piece_count; ++piece) {
      pages.push_back(
          Of(a.pages.pieces[piece] + a.pages.index[block] * a.pages.stride, a.pages.piece_bytes));
    }
    blocks.push_back(Of(a.blocks + static_cast<uint64_t>(block) * a.block_stride,
                        a.pages.piece_count * int64_t{a.pages.piece_bytes}));
  }
  if (a.faults != nullptr) touched.writes.push_back(Of(a.faults, a.pages.blocks));
  return touched;
}

// A launch copies its lists.
struct PagesWork {
  SliceOp<MovePagesArgs> op;
  MovePagesArgs args;
  std::vector<std::byte*> pieces;
  std::vector<uint32_t> index;
};
struct SlicesWork {
  SliceOp<SlicesArgs> op;
  SlicesArgs args;
  std::vector<SliceTask> slices;
};
struct HashWork {
  HashRunsArgs args;
  std::vector<HashRun> runs;
};

template <typename Work>
int Issue(void* stream, const char* what, const Touched& touched, Work* work,
          void (*run)(void* context)) {
  return static_cast<int>(control->issue(
      stream, what, touched.reads.data(), touched.reads.size(), touched.writes.data(),
      touched.writes.size(), run, [](void* context) { delete static_cast<Work*>(context); }, work));
}

int IssueSlices(void* stream, const SlicesArgs& a, bool encodes) {
  const SliceKernels& kernels = *EmulatedBackend().slices;
  auto* const work = new SlicesWork{
      encodes ? kernels.encode_slices : kernels.decode_slices, a, {a.slices, a.slices + a.count}};
  work->args.slices = work->slices.data();
  (encodes ? encoded_slices : decoded_slices) += static_cast<uint64_t>(a.count);
  return Issue(stream, encodes ? "encode_slices" : "decode_slices", What(a, encodes), work,
               [](void* context) {
                 const auto* const w = static_cast<SlicesWork*>(context);
                 InlineStream inline_stream;
                 w->op(inline_stream, w->args);
               });
}

int IssueHashes(void* stream, const HashRunsArgs& a) {
  auto* const work = new HashWork{a, {a.runs, a.runs + a.count}};
  work->args.runs = work->runs.data();
  return Issue(stream, "hash_runs", What(a), work, [](void* context) {
    const auto* const w = static_cast<HashWork*>(context);
    InlineStream inline_stream;
    EmulatedBackend().slices->hash_runs(inline_stream, w->args);
  });
}

int IssuePages(void* stream, const MovePagesArgs& a, bool gathers) {
  const SliceKernels& kernels = *EmulatedBackend().slices;
  auto* const work = new PagesWork{gathers ? kernels.gather_pages : kernels.scatter_pages,
                                   a,
                                   {a.pages.pieces, a.pages.pieces + a.pages.piece_count},
                                   {a.pages.index, a.pages.index + a.pages.blocks}};
  work->args.pages.pieces = work->pieces.data();
  work->args.pages.index = work->index.data();
  return Issue(stream, gathers ? "gather_pages" : "scatter_pages", What(a, gathers), work,
               [](void* context) {
                 const auto* const w = static_cast<PagesWork*>(context);
                 InlineStream inline_stream;
                 w->op(inline_stream, w->args);
               });
}

const batch::SliceTable kTable = {
    .name = "cuda-emulated",
    .encode_slices = [](void* s, const SlicesArgs& a) { return IssueSlices(s, a, true); },
    .decode_slices = [](void* s, const SlicesArgs& a) { return IssueSlices(s, a, false); },
    .hash_runs = IssueHashes,
    .gather_pages = [](void* s, const MovePagesArgs& a) { return IssuePages(s, a, true); },
    .scatter_pages = [](void* s, const MovePagesArgs& a) { return IssuePages(s, a, false); },
};

}  // namespace

void AddSliceKernels(const FakeControl& of) {
  control = &of;
  of.add_kernels(batch::kSliceTableName, batch::kSliceTableVersion, &kTable);
}

uint64_t DecodedSlices() { return decoded_slices; }
uint64_t EncodedSlices() { return encoded_slices; }

}  // namespace cairn::kernels::testing
