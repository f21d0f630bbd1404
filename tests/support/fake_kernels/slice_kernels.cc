#include "tests/support/fake_kernels/slice_kernels.h"

#include <atomic>

#include "kernels/cuda/first_error.h"
#include "kernels/cuda/launches.h"
#include "tests/support/fake_kernels/issue.h"
#include "tests/support/fake_kernels/touched.h"

namespace cairn::kernels::testing {
namespace {

using device::fake::FakeControl;

std::atomic<uint64_t> decoded_slices = 0, encoded_slices = 0;

// A range for each head, or for each token if the heads of a token lie closer together: pages of
// engines may have other blocks in between.
void AddPlane(const PlaneForm& plane, const uint16_t* numbers, int32_t tokens, bool writes,
              Touched* touched) {
  const bool by_head = plane.head_stride >= plane.token_stride;
  const int64_t count = by_head ? plane.heads : tokens, inner = by_head ? tokens : plane.heads;
  const int64_t stride = by_head ? plane.head_stride : plane.token_stride;
  const int64_t inner_stride = by_head ? plane.token_stride : plane.head_stride;
  for (int64_t i = 0; i < count; ++i) {
    const uint16_t* const first = numbers + i * stride;
    const int64_t span = (inner - 1) * inner_stride + plane.dim;
    writes ? touched->Writes(first, span) : touched->Reads(first, span);
  }
}

Touched What(const SlicesArgs& a, bool encodes) {
  Touched touched;
  for (int64_t i = 0; i < a.count; ++i) {
    const SliceTask& slice = a.slices[i];
    const auto bytes = static_cast<int64_t>(slice.bytes);
    encodes ? touched.Writes(slice.encoded, bytes) : touched.Reads(slice.encoded, bytes);
    AddPlane(a.form.k, slice.k, slice.tokens, !encodes, &touched);
    AddPlane(a.form.v, slice.v, slice.tokens, !encodes, &touched);
    touched.Writes(slice.faults, 1);
    if (slice.scratch != nullptr) {
      touched.Writes(slice.scratch, SliceScratchBytes(a.form, slice));
    }
    if (encodes) touched.Writes(slice.encoded_bytes, 1);
  }
  return touched;
}

Touched What(const HashRunsArgs& a) {
  Touched touched;
  for (int64_t i = 0; i < a.count; ++i) {
    const HashRun& run = a.runs[i];
    touched.Reads(run.in, static_cast<int64_t>(run.bytes));
    touched.Writes(run.hash, 1).Writes(run.faults, 1);
  }
  return touched;
}

Touched What(const MovePagesArgs& a, bool gathers) {
  Touched touched;
  for (int64_t block = 0; block < a.pages.blocks; ++block) {
    for (int64_t piece = 0; piece < a.pages.piece_count; ++piece) {
      const std::byte* const at = a.pages.pieces[piece] + a.pages.index[block] * a.pages.stride;
      const auto bytes = static_cast<int64_t>(a.pages.piece_bytes);
      gathers ? touched.Reads(at, bytes) : touched.Writes(at, bytes);
    }
    const std::byte* const flat = a.blocks + static_cast<uint64_t>(block) * a.block_stride;
    const int64_t bytes = a.pages.piece_count * int64_t{a.pages.piece_bytes};
    gathers ? touched.Writes(flat, bytes) : touched.Reads(flat, bytes);
  }
  touched.Writes(a.faults, a.pages.blocks);
  return touched;
}

// Each kernel that body(launch) launches is a piece of work that touches what the operation does.
template <typename Body>
int Issue(void* stream, const char* what, const Touched& touched, Body body) {
  int error = 0;
  body(cuda::UntilError<IssueKernel>{{stream, what, &touched}, &error});
  return error;
}

int IssueSlices(void* stream, const SlicesArgs& a, bool encodes) {
  (encodes ? encoded_slices : decoded_slices) += static_cast<uint64_t>(a.count);
  return Issue(stream, encodes ? "encode_slices" : "decode_slices", What(a, encodes),
               [&](auto launch) { cuda::LaunchSlices(launch, a, encodes); });
}
int IssueHashes(void* stream, const HashRunsArgs& a) {
  return Issue(stream, "hash_runs", What(a), [&](auto launch) { cuda::LaunchHashRuns(launch, a); });
}
int IssuePages(void* stream, const MovePagesArgs& a, bool gathers) {
  return Issue(stream, gathers ? "gather_pages" : "scatter_pages", What(a, gathers),
               [&](auto launch) { cuda::LaunchPages(launch, a, gathers); });
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
  fake_control = &of;
  of.add_kernels(batch::kSliceTableName, batch::kSliceTableVersion, &kTable);
}

uint64_t DecodedSlices() { return decoded_slices; }
uint64_t EncodedSlices() { return encoded_slices; }

}  // namespace cairn::kernels::testing
