#pragma once
// SliceKernels of a backend that runs inline: one slice after another, with its own CodecKernels.
// Other than most kernels of CPUs these allocate memory. `kTable`: const CodecKernels& (*)().

#include "kernels/slices/bytes.h"
#include "kernels/slices/slice_codec.h"

namespace cairn::kernels {

template <auto kTable>
SliceKernels InlineSlices() {
  SliceKernels k;
  k.name = kTable().name;
  k.encode_slices = [](Stream&, const SlicesArgs& a) { EncodeSlices(kTable(), a, nullptr); };
  k.decode_slices = [](Stream&, const SlicesArgs& a) { DecodeSlices(kTable(), a, nullptr); };
  k.hash_runs = [](Stream&, const HashRunsArgs& a) { HashRuns(a); };
  k.gather_pages = [](Stream&, const MovePagesArgs& a) { GatherPages(a); };
  k.scatter_pages = [](Stream&, const MovePagesArgs& a) { ScatterPages(a); };
  return k;
}

}  // namespace cairn::kernels
