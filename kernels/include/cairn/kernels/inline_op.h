#pragma once
// Entries of the tables for kernels that are plain functions of their arguments and run where they
// are called, as those of CPUs do. The stream costs them a register.
//
//   static void RmsNorm(const RmsNormArgs& a);
//   table.rms_norm = InlineOp<RmsNorm>::Run;

#include "cairn/kernels/stream.h"

namespace cairn::kernels {

template <auto kKernel>
struct InlineOp;

template <typename Args, void (*kKernel)(const Args&)>
struct InlineOp<kKernel> {
  static void Run(Stream&, const Args& args) { kKernel(args); }
};

}  // namespace cairn::kernels
