#include "tests/conformance/kernels/emulated/emulated_backend.h"

#include "kernels/cuda/head_launches.h"
#include "kernels/cuda/launches.h"
#include "tests/conformance/kernels/emulated/emulated_forward.h"
#include "tests/conformance/kernels/emulated/emulated_selections.h"
#include "tests/conformance/kernels/emulated/run_now.h"
#include "tests/conformance/kernels/heads_as_slices.h"

namespace cairn::kernels::testing {
namespace {

struct Slices {
  static void Encode(Stream&, const SlicesArgs& a) { cuda::LaunchSlices(RunNow(), a, true); }
  static void Decode(Stream&, const SlicesArgs& a) { cuda::LaunchSlices(RunNow(), a, false); }
};

CodecKernels EmulatedCodecKernels() {
  CodecKernels k;
  k.name = "cuda-emulated";
  k.count_non_finite = [](Stream&, const CountNonFiniteArgs& a) {
    RunNow()(cairn_count_non_finite, cuda::kCountNonFiniteShape, a);
  };
  k.end_streaming = [](Stream&) {};
  SetHeadsAsSlices<Slices>(&k);
  k.lattice_encode = [](Stream&, const LatticeEncodeArgs& a) {
    RunNow()(cairn_lattice_encode, cuda::kLatticeEncodeShape, a);
  };
  k.lattice_decode = [](Stream&, const LatticeDecodeArgs& a) {
    RunNow()(cairn_lattice_decode, cuda::kLatticeDecodeShape, a);
  };
  return k;
}

SliceKernels EmulatedSliceKernels() {
  SliceKernels k;
  k.name = "cuda-emulated";
  k.encode_slices = Slices::Encode;
  k.decode_slices = Slices::Decode;
  k.hash_runs = [](Stream&, const HashRunsArgs& a) { cuda::LaunchHashRuns(RunNow(), a); };
  k.gather_pages = [](Stream&, const MovePagesArgs& a) { cuda::LaunchPages(RunNow(), a, true); };
  k.scatter_pages = [](Stream&, const MovePagesArgs& a) { cuda::LaunchPages(RunNow(), a, false); };
  return k;
}

std::unique_ptr<Stream> NewInlineStream() { return std::make_unique<InlineStream>(); }

// Whole codecs call kernels head by head, which takes minutes under a sanitizer. There the suites
// of kernels and of slices are enough: they launch every kernel.
#if defined(CUDA_ON_CPU_ASAN) || defined(CUDA_ON_CPU_TSAN)
constexpr bool kRunsInline = false;
#else
constexpr bool kRunsInline = true;
#endif

}  // namespace

const Backend& EmulatedBackend() {
  static const CodecKernels codecs = EmulatedCodecKernels();
  static const SliceKernels slices = EmulatedSliceKernels();
  static HostMemory memory;
  static const Backend backend{.name = "cuda-emulated",
                               .codecs = &codecs,
                               .selections = &EmulatedSelectionKernels(),
                               .selection_units = &EmulatedSelectionUnitKernels(),
                               .slices = &slices,
                               .batch_forward = &EmulatedForwardKernels(),
                               .memory = &memory,
                               .new_stream = NewInlineStream,
                               .runs_inline = kRunsInline};
  return backend;
}

}  // namespace cairn::kernels::testing
