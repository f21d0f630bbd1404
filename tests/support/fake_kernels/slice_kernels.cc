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
std::atomic<uint64_t> decoded = 0;

template <typename T>
Range Of(const T* first, int64_t count) {
  return {reinterpret_cast<uint64_t>(first), static_cast<uint64_t>(count) * sizeof(T)};
}

// Heads lie behind each other where there are no gaps between them, which is all that users have.
Range PlaneOf(const PlaneForm& plane, const uint16_t* numbers, int32_t tokens) {
  return Of(numbers,
            (plane.heads - 1) * plane.head_stride + (tokens - 1) * plane.token_stride + plane.dim);
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
    numbers.push_back(PlaneOf(a.form.k, slice.k, slice.tokens));
    numbers.push_back(PlaneOf(a.form.v, slice.v, slice.tokens));
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

// A launch copies its lists.
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
  if (!encodes) decoded += static_cast<uint64_t>(a.count);
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

// Nothing here moves pages of engines.
int Refuse(void*, const MovePagesArgs&) { return static_cast<int>(Code::kNotSupported); }

const batch::SliceTable kTable = {
    .name = "cuda-emulated",
    .encode_slices = [](void* s, const SlicesArgs& a) { return IssueSlices(s, a, true); },
    .decode_slices = [](void* s, const SlicesArgs& a) { return IssueSlices(s, a, false); },
    .hash_runs = IssueHashes,
    .gather_pages = Refuse,
    .scatter_pages = Refuse,
};

}  // namespace

void AddSliceKernels(const FakeControl& of) {
  control = &of;
  of.add_kernels(batch::kSliceTableName, batch::kSliceTableVersion, &kTable);
}

uint64_t DecodedSlices() { return decoded; }

}  // namespace cairn::kernels::testing
