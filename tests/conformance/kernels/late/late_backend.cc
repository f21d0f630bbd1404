#include "tests/conformance/kernels/late/late_backend.h"

#include "tests/conformance/kernels/late/late_lists.h"
#include "tests/conformance/kernels/late/late_memory.h"
#include "tests/conformance/kernels/late/late_stream.h"
#include "tests/conformance/kernels/late/reach_arguments.h"

namespace cairn::kernels::testing {
namespace {

LateMemory& TheMemory() {
  static LateMemory memory;
  return memory;
}

// An entry of a table: puts the entry of the reference's table into the queue.
template <auto kReference, auto kEntry>
struct LateOp;

template <typename Table, const Table& (*kReference)(), typename Args,
          void (*Table::*kEntry)(Stream&, const Args&)>
struct LateOp<kReference, kEntry> {
  static inline const char* name = nullptr;

  static void Launch(Stream& stream, const Args& args) {
    dynamic_cast<LateStream&>(stream).Push(name, [copy = Args(args)](Access& access) mutable {
      Reach(access, &copy);
      if (!access.ok()) return;
      InlineStream now;
      (kReference().*kEntry)(now, copy);
    });
  }
};

template <auto kReference, auto kEntry, typename Table>
void Add(Table* table, const char* name) {
  LateOp<kReference, kEntry>::name = name;
  table->*kEntry = LateOp<kReference, kEntry>::Launch;
}

ForwardKernels LateForwardKernels() {
  ForwardKernels k;
  k.name = "late";
  Add<ReferenceForwardKernels, &ForwardKernels::rms_norm>(&k, "rms_norm");
  Add<ReferenceForwardKernels, &ForwardKernels::rope>(&k, "rope");
  Add<ReferenceForwardKernels, &ForwardKernels::swiglu>(&k, "swiglu");
  Add<ReferenceForwardKernels, &ForwardKernels::to_half>(&k, "to_half");
  Add<ReferenceForwardKernels, &ForwardKernels::from_half>(&k, "from_half");
  Add<ReferenceForwardKernels, &ForwardKernels::to_bf16>(&k, "to_bf16");
  Add<ReferenceForwardKernels, &ForwardKernels::arg_max>(&k, "arg_max");
  Add<ReferenceForwardKernels, &ForwardKernels::mat_vec>(&k, "mat_vec");
  Add<ReferenceForwardKernels, &ForwardKernels::gemm_f32>(&k, "gemm_f32");
  Add<ReferenceForwardKernels, &ForwardKernels::gemm_bf16>(&k, "gemm_bf16");
  Add<ReferenceForwardKernels, &ForwardKernels::attention_f32>(&k, "attention_f32");
  Add<ReferenceForwardKernels, &ForwardKernels::attention_bf16>(&k, "attention_bf16");
  Add<ReferenceForwardKernels, &ForwardKernels::attention_part>(&k, "attention_part");
  Add<ReferenceForwardKernels, &ForwardKernels::attention_merge>(&k, "attention_merge");
  return k;
}

CodecKernels LateCodecKernels() {
  CodecKernels k;
  k.name = "late";
  Add<ReferenceCodecKernels, &CodecKernels::count_non_finite>(&k, "count_non_finite");
  Add<ReferenceCodecKernels, &CodecKernels::int8_encode>(&k, "int8_encode");
  Add<ReferenceCodecKernels, &CodecKernels::int8_decode>(&k, "int8_decode");
  Add<ReferenceCodecKernels, &CodecKernels::int4_token_encode>(&k, "int4_token_encode");
  Add<ReferenceCodecKernels, &CodecKernels::int4_token_decode>(&k, "int4_token_decode");
  Add<ReferenceCodecKernels, &CodecKernels::int4_channel_encode>(&k, "int4_channel_encode");
  Add<ReferenceCodecKernels, &CodecKernels::int4_channel_decode>(&k, "int4_channel_decode");
  Add<ReferenceCodecKernels, &CodecKernels::turbo_encode>(&k, "turbo_encode");
  Add<ReferenceCodecKernels, &CodecKernels::turbo_decode>(&k, "turbo_decode");
  Add<ReferenceCodecKernels, &CodecKernels::fp8_encode>(&k, "fp8_encode");
  Add<ReferenceCodecKernels, &CodecKernels::fp8_decode>(&k, "fp8_decode");
  Add<ReferenceCodecKernels, &CodecKernels::lattice_encode>(&k, "lattice_encode");
  Add<ReferenceCodecKernels, &CodecKernels::lattice_decode>(&k, "lattice_decode");
  k.end_streaming = [](Stream&) {};
  return k;
}

SelectionKernels LateSelectionKernels() {
  SelectionKernels k;
  k.name = "late";
  Add<ReferenceSelectionKernels, &SelectionKernels::window_attention>(&k, "window_attention");
  Add<ReferenceSelectionKernels, &SelectionKernels::accumulate_attention>(&k,
                                                                          "accumulate_attention");
  Add<ReferenceSelectionKernels, &SelectionKernels::reduce_rows>(&k, "reduce_rows");
  Add<ReferenceSelectionKernels, &SelectionKernels::pool>(&k, "pool");
  Add<ReferenceSelectionKernels, &SelectionKernels::chunk_means>(&k, "chunk_means");
  Add<ReferenceSelectionKernels, &SelectionKernels::entropy>(&k, "entropy");
  Add<ReferenceSelectionKernels, &SelectionKernels::row_norms>(&k, "row_norms");
  Add<ReferenceSelectionKernels, &SelectionKernels::sum_unit_rows>(&k, "sum_unit_rows");
  Add<ReferenceSelectionKernels, &SelectionKernels::cosines>(&k, "cosines");
  Add<ReferenceSelectionKernels, &SelectionKernels::lag_scores>(&k, "lag_scores");
  Add<ReferenceSelectionKernels, &SelectionKernels::query_moments>(&k, "query_moments");
  Add<ReferenceSelectionKernels, &SelectionKernels::expected_logits>(&k, "expected_logits");
  Add<ReferenceSelectionKernels, &SelectionKernels::softmax>(&k, "softmax");
  Add<ReferenceSelectionKernels, &SelectionKernels::projected_norms>(&k, "projected_norms");
  Add<ReferenceSelectionKernels, &SelectionKernels::count_non_finite>(&k, "count_non_finite");
  Add<ReferenceSelectionKernels, &SelectionKernels::mark_top>(&k, "mark_top");
  Add<ReferenceSelectionKernels, &SelectionKernels::gather_rows>(&k, "gather_rows");
  Add<ReferenceSelectionKernels, &SelectionKernels::turn_rows>(&k, "turn_rows");
  return k;
}

}  // namespace

const Backend& LateBackend() {
  static const ForwardKernels forward = LateForwardKernels();
  static const CodecKernels codecs = LateCodecKernels();
  static const SelectionKernels selections = LateSelectionKernels();
  static const Backend backend{.name = "late",
                               .forward = &forward,
                               .codecs = &codecs,
                               .selections = &selections,
                               .selection_units = &LateSelectionUnitKernels(),
                               .slices = &LateSliceKernels(),
                               .memory = &TheMemory(),
                               .new_stream = []() -> std::unique_ptr<Stream> {
                                 return std::make_unique<LateStream>(&TheMemory());
                               },
                               .is_definition = true};
  return backend;
}

}  // namespace cairn::kernels::testing
