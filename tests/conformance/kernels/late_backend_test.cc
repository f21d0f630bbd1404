// Mistakes of callers that are harmless on a CPU and fatal on a GPU. The late backend must find
// each of them, in every run: so a suite that passes on it makes none.

#include "tests/conformance/kernels/late/late_backend.h"

#include <cmath>
#include <csignal>

#include "tests/conformance/kernels/device.h"

namespace cairn::kernels {
namespace {

using testing::Device;

class LateBackendTest : public ::testing::Test {
 protected:
  const Backend& late_ = testing::LateBackend();
  std::unique_ptr<Stream> stream_ = late_.new_stream();

  float* Allocate(size_t n) {
    return reinterpret_cast<float*>(late_.memory->Allocate(n * sizeof(float)));
  }
  void Free(float* memory) { late_.memory->Free(reinterpret_cast<std::byte*>(memory)); }
};

TEST_F(LateBackendTest, ResultsAreThereAfterSynchronizeOnly) {
  float* const x = Allocate(2);
  const float two[] = {2, 2};
  float got[] = {-1, -1};
  stream_->CopyIn(x, two, sizeof(two));
  late_.forward->swiglu(*stream_, {x, x, x, 2});
  stream_->CopyOut(got, x, sizeof(got));
  EXPECT_EQ(got[0], -1) << "a caller that does not wait reads what was there before";
  ASSERT_TRUE(stream_->Synchronize());
  EXPECT_FLOAT_EQ(got[0], 4.0f / (1.0f + std::exp(-2.0f)));
  EXPECT_EQ(got[1], got[0]);
  Free(x);
}

TEST_F(LateBackendTest, TheArgumentsAreCopiedButNotTheHostsSideOfACopy) {
  float* const x = Allocate(1);
  float source = 1, got = 0;
  stream_->CopyIn(x, &source, sizeof(source));
  SwiGluArgs args{x, x, x, 1};
  late_.forward->swiglu(*stream_, args);
  args = {};
  stream_->CopyOut(&got, x, sizeof(got));
  source = 0;  // Too early: the copy has not run.
  ASSERT_TRUE(stream_->Synchronize());
  EXPECT_EQ(got, 0.0f) << "the copy read the host's bytes when it ran, not when it was launched";
  Free(x);
}

TEST_F(LateBackendTest, OtherStreamsAreNotWaitedFor) {
  float* const x = Allocate(1);
  const float one = 1;
  float got = -1;
  const std::unique_ptr<Stream> other = late_.new_stream();
  stream_->CopyIn(x, &one, sizeof(one));
  stream_->CopyOut(&got, x, sizeof(got));
  ASSERT_TRUE(other->Synchronize());
  EXPECT_EQ(got, -1);
  ASSERT_TRUE(stream_->Synchronize());
  EXPECT_EQ(got, 1);
  Free(x);
}

TEST_F(LateBackendTest, PointersToTheHostAreReportedWithTheOperation) {
  float* const x = Allocate(4);
  float on_host[4] = {};
  late_.forward->swiglu(*stream_, {x, on_host, x, 4});
  late_.forward->swiglu(*stream_, {x, x, x, 4});
  EXPECT_EQ(stream_->error(), "") << "nothing is known before Synchronize";
  EXPECT_FALSE(stream_->Synchronize());
  EXPECT_EQ(stream_->error(),
            "swiglu: an argument points to memory of another backend, or to none");
  EXPECT_FALSE(stream_->Synchronize()) << "the stream stays broken";
  Free(x);
}

TEST_F(LateBackendTest, AHostsPageInAPageTableIsReported) {
  Device device(late_);
  const std::vector<uint16_t> page(2 * 16 * 32);
  const std::vector<const std::byte*> table = {reinterpret_cast<const std::byte*>(page.data())};
  PagedKv kv;
  kv.block_tokens = 16;
  kv.head_dim = 32;
  kv.v_offset = 16 * 32 * 2;
  kv.pages = device.In(table);
  ASSERT_TRUE(device.stream().Synchronize());
  late_.selections->row_norms(*stream_, {{kv, false, 0, 0, 16},
                                         device.Allocate<float>(16),
                                         device.Scratch(SelectionScratchBytes(32, 0))});
  EXPECT_FALSE(stream_->Synchronize());
  EXPECT_EQ(stream_->error(),
            "row_norms: an argument points to memory of another backend, or to none");
}

TEST_F(LateBackendTest, MemoryThatWasFreedIsReported) {
  float* const x = Allocate(1);
  Free(x);
  late_.forward->swiglu(*stream_, {x, x, x, 1});
  EXPECT_FALSE(stream_->Synchronize());
}

using LateBackendDeathTest = LateBackendTest;

TEST_F(LateBackendDeathTest, TheHostDiesWhenItTouchesTheMemory) {
  // In a child by fork: qemu cannot start a program for aarch64 from another one.
  GTEST_FLAG_SET(death_test_style, "fast");
  float* const x = Allocate(1);
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        *static_cast<volatile float*>(x) = 1.0f;
      },
      ::testing::KilledBySignal(SIGSEGV), "");
  Free(x);
}

}  // namespace
}  // namespace cairn::kernels
