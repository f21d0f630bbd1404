#include "tests/support/fake_kernels/table_kernels.h"

#include "kernels/cuda/forward_launches.h"
#include "kernels/cuda/head_launches.h"
#include "kernels/cuda/unit_launches.h"
#include "tests/support/fake_kernels/issue.h"

namespace cairn::kernels::testing {

void AddTableKernels(const device::fake::FakeControl& control) {
  static const batch::HeadTable heads = cuda::HeadTableOf<IssueKernel>("cuda-emulated");
  static const batch::UnitTable units = cuda::UnitTableOf<IssueKernel>("cuda-emulated");
  static const batch::ForwardKernels pooled =
      cuda::ForwardTable<IssueKernel, true>("cuda-emulated");
  fake_control = &control;
  control.add_kernels(batch::kForwardTable90aName, batch::kForwardTableVersion, &pooled);
  control.add_kernels(batch::kHeadTableName, batch::kHeadTableVersion, &heads);
  control.add_kernels(batch::kUnitTableName, batch::kUnitTableVersion, &units);
}

}  // namespace cairn::kernels::testing
