#include "tests/conformance/kernels/emulated/emulated_backend.h"

#include <algorithm>
#include <limits>

#include "kernels/cuda/launches.h"
#include "tests/conformance/kernels/emulated/emulated_forward.h"
#include "tests/conformance/kernels/emulated/emulated_selections.h"
#include "tests/conformance/kernels/emulated/run_now.h"

namespace cairn::kernels::testing {
namespace {

// ---- single heads: slices of one head ----

template <typename Params>
struct CodingOf;
template <>
struct CodingOf<Int8Params> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt8;
  static int64_t Parameter(const Int8Params& p, int64_t) { return p.group; }
};
template <>
struct CodingOf<Int4TokenParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt4Token;
  static int64_t Parameter(const Int4TokenParams& p, int64_t) { return p.group; }
};
template <>
struct CodingOf<Int4ChannelParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kInt4Channel;
  // All rows of the call are one group.
  static int64_t Parameter(const Int4ChannelParams&, int64_t rows) {
    return std::max<int64_t>(rows, 1);
  }
};
template <>
struct CodingOf<TurboParams> {
  static constexpr HeadCoding kCoding = HeadCoding::kTurbo;
  static int64_t Parameter(const TurboParams& p, int64_t) { return p.bits; }
};
template <>
struct CodingOf<Fp8Params> {
  static constexpr HeadCoding kCoding = HeadCoding::kFp8;
  static int64_t Parameter(const Fp8Params&, int64_t) { return 0; }
};

template <typename Params>
const uint32_t* SignsOf(const Params&) {
  return nullptr;
}
const uint32_t* SignsOf(const TurboParams& params) { return params.signs; }

template <typename Params>
void RunHead(const HalfRows& rows, const Params& params, std::byte* bytes, uint32_t* faults,
             bool encodes) {
  SliceForm form;
  form.k = {CodingOf<Params>::kCoding,
            static_cast<int32_t>(CodingOf<Params>::Parameter(params, rows.rows)),
            1,
            static_cast<int32_t>(rows.dim),
            0,
            rows.stride};
  form.signs = SignsOf(params);
  SliceTask slice;
  slice.encoded = bytes;
  slice.k = const_cast<uint16_t*>(rows.data);
  slice.faults = faults;
  slice.tokens = static_cast<int32_t>(rows.rows);
  slice.bytes = static_cast<uint64_t>(SliceBytes(form, slice));
  cuda::LaunchSlices(RunNow(), {form, &slice, 1}, encodes);
}

template <typename Params>
void EncodeHead(Stream&, const EncodeArgs<Params>& a) {
  RunHead(a.x, a.params, a.out, a.faults, true);
}
template <typename Params>
void DecodeHead(Stream&, const DecodeArgs<Params>& a) {
  RunHead({a.y.data, a.y.rows, a.y.dim, a.y.stride}, a.params, const_cast<std::byte*>(a.in),
          a.faults, false);
}

CodecKernels EmulatedCodecKernels() {
  CodecKernels k;
  k.name = "cuda-emulated";
  k.count_non_finite = [](Stream&, const CountNonFiniteArgs& a) {
    RunNow()(cairn_count_non_finite, {{2, 1, 1}, 256, 0}, a);
  };
  k.end_streaming = [](Stream&) {};
  k.int8_encode = EncodeHead<Int8Params>;
  k.int8_decode = DecodeHead<Int8Params>;
  k.int4_token_encode = EncodeHead<Int4TokenParams>;
  k.int4_token_decode = DecodeHead<Int4TokenParams>;
  k.int4_channel_encode = EncodeHead<Int4ChannelParams>;
  k.int4_channel_decode = DecodeHead<Int4ChannelParams>;
  k.turbo_encode = EncodeHead<TurboParams>;
  k.turbo_decode = DecodeHead<TurboParams>;
  k.fp8_encode = EncodeHead<Fp8Params>;
  k.fp8_decode = DecodeHead<Fp8Params>;
  k.lattice_encode = [](Stream&, const LatticeEncodeArgs& a) {
    RunNow()(cairn_lattice_encode, {{1, 1, 1}, cuda::kLatticeThreads, 80}, a);
  };
  k.lattice_decode = [](Stream&, const LatticeDecodeArgs& a) {
    RunNow()(cairn_lattice_decode, {{2, 1, 1}, 256, 0}, a);
  };
  return k;
}

SliceKernels EmulatedSliceKernels() {
  SliceKernels k;
  k.name = "cuda-emulated";
  k.encode_slices = [](Stream&, const SlicesArgs& a) { cuda::LaunchSlices(RunNow(), a, true); };
  k.decode_slices = [](Stream&, const SlicesArgs& a) { cuda::LaunchSlices(RunNow(), a, false); };
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
