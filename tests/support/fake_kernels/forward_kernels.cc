#include "tests/support/fake_kernels/forward_kernels.h"

#include "cairn/common/status.h"
#include "tests/conformance/kernels/emulated/emulated_forward.h"
#include "tests/support/fake_kernels/issue.h"
#include "tests/support/fake_kernels/touched.h"

namespace cairn::kernels::testing {
namespace {

using device::Code;
using device::fake::FakeControl;

// Numbers from the first row's first to the last row's last.
int64_t Span(int64_t rows, int64_t stride, int64_t cols) {
  return rows == 0 ? 0 : (rows - 1) * stride + cols;
}

Touched What(const batch::EmbedArgs& a) {
  return Touched().Reads(a.tokens, a.rows).Writes(a.x, Span(a.rows, a.x_stride, a.cols));
}
Touched What(const batch::DequantiseArgs& a) {
  return Touched()
      .Reads(a.matrix, a.rows * RowBytes(a.type, a.cols))
      .Reads(a.source_rows, a.rows)
      .Writes(a.out, Span(a.rows, a.out_stride, a.cols));
}
Touched What(const batch::RmsNormArgs& a) {
  return Touched()
      .Reads(a.x, a.source_rows == nullptr ? Span(a.rows, a.x_stride, a.cols) : 0)
      .Reads(a.source_rows, a.rows)
      .Reads(a.weight, a.cols)
      .Writes(a.y, Span(a.rows, a.y_stride, a.cols));
}
Touched What(const batch::AddArgs& a) { return Touched().Reads(a.y, a.n).Writes(a.x, a.n); }
Touched What(const batch::SwiGluArgs& a) {
  return Touched()
      .Reads(a.gate, Span(a.rows, a.in_stride, a.cols))
      .Reads(a.up, Span(a.rows, a.in_stride, a.cols))
      .Writes(a.y, Span(a.rows, a.y_stride, a.cols));
}
Touched What(const batch::RotateAndStoreArgs& a) {
  const int64_t width = int64_t{a.heads} * a.head_dim;
  return Touched()
      .Reads(a.q, Span(a.rows, a.in_stride, width))
      .Reads(a.places, a.rows)
      .Writes(a.q_out, a.rows * width);
}
Touched What(const batch::TurnKeysArgs& a) { return Touched().Reads(a.runs, a.count); }
Touched What(const batch::ArgMaxArgs& a) {
  return Touched().Reads(a.x, Span(a.rows, a.stride, a.n)).Writes(a.index, a.rows);
}
Touched What(const batch::DecodeAttentionArgs& a) {
  const int64_t width = int64_t{a.kv.kv_heads} * a.kv.group * a.kv.head_dim;
  return Touched()
      .Reads(a.sequences, a.rows)
      .Reads(a.q, Span(a.rows, a.q_stride, width))
      .Writes(a.out, Span(a.rows, a.out_stride, width))
      .Writes(a.scratch, batch::DecodeScratchFloats(a.rows, a.most_splits, a.kv));
}
Touched What(const batch::PromptAttentionArgs& a) { return Touched().Reads(a.chunks, a.count); }
Touched What(const batch::GemmArgs& a) {
  return Touched()
      .Reads(a.a, Span(a.rows, a.a_stride, a.cols))
      .Reads(a.w, Span(a.outputs, a.w_stride, a.cols))
      .Writes(a.y, Span(a.rows, a.y_stride, a.outputs));
}

template <typename Args>
struct Work {
  batch::Op<Args> op;
  Args args;
};

template <typename Args>
int Issue(void* stream, const char* what, batch::Op<Args> op, const Args& args) {
  const Touched touched = What(args);
  auto* const work = new Work<Args>{op, args};
  const Code code = fake_control->issue(
      stream, what, touched.reads.data(), touched.reads.size(), touched.writes.data(),
      touched.writes.size(),
      [](void* context) {
        const auto* const w = static_cast<Work<Args>*>(context);
        CAIRN_CHECK(w->op(nullptr, w->args) == 0);
      },
      [](void* context) { delete static_cast<Work<Args>*>(context); }, work);
  return static_cast<int>(code);
}

#define CAIRN_FAKE_ENTRY(member)                                          \
  .member = [](void* stream, const auto& args) {                          \
    return Issue(stream, #member, EmulatedForwardKernels().member, args); \
  }

const batch::ForwardKernels kTable = {
    .name = "cuda-emulated",
    CAIRN_FAKE_ENTRY(embed),
    CAIRN_FAKE_ENTRY(dequantise),
    CAIRN_FAKE_ENTRY(rms_norm),
    CAIRN_FAKE_ENTRY(add),
    CAIRN_FAKE_ENTRY(swiglu),
    CAIRN_FAKE_ENTRY(rotate_and_store),
    CAIRN_FAKE_ENTRY(turn_keys),
    CAIRN_FAKE_ENTRY(arg_max),
    CAIRN_FAKE_ENTRY(attend_decode),
    CAIRN_FAKE_ENTRY(attend_prompt),
    CAIRN_FAKE_ENTRY(gemm),
    CAIRN_FAKE_ENTRY(gemm_few_rows),
};

#undef CAIRN_FAKE_ENTRY

}  // namespace

void AddForwardKernels(const FakeControl& of) {
  fake_control = &of;
  of.add_kernels(batch::kForwardTableName, batch::kForwardTableVersion, &kTable);
}

}  // namespace cairn::kernels::testing
