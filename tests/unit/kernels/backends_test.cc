// The list of backends, and what those on CPUs share.

#include <gtest/gtest.h>

#include <set>

#include "cairn/kernels/backend.h"
#include "tests/support/methods.h"

namespace cairn::kernels {
namespace {

TEST(BackendsTest, TheDefinitionComesFirstThenInstructionSetsUpToTheBest) {
  const std::vector<const Backend*> all = Backends();
  ASSERT_GE(all.size(), 2u);
  EXPECT_EQ(all[0]->name, "reference");
  EXPECT_TRUE(all[0]->is_definition);
  EXPECT_EQ(all[1]->name, "portable");
  EXPECT_EQ(BestCpuBackend().name, Name(BestIsa()));
  EXPECT_EQ(BestCpuBackend().codecs, &CpuCodecKernels(BestIsa()));
}

TEST(BackendsTest, TablesOfMethodsAreThereIfMethodsWereBuilt) {
  for (const Backend* backend : {&BestCpuBackend(), FindBackend("reference")}) {
    EXPECT_EQ(backend->selections != nullptr, cairn::testing::kBuiltWithMethods) << backend->name;
    EXPECT_EQ(backend->selection_units != nullptr, cairn::testing::kBuiltWithMethods)
        << backend->name;
    EXPECT_EQ(backend->reading != nullptr, cairn::testing::kBuiltWithMethods) << backend->name;
  }
}

TEST(BackendsTest, EveryInstructionSetIsThereOrMissingWithAReason) {
  std::multiset<std::string_view> names;
  for (const Backend* backend : Backends()) names.insert(backend->name);
  for (const MissingBackend& missing : MissingBackends()) {
    names.insert(missing.name);
    EXPECT_NE(missing.reason, "");
    EXPECT_EQ(FindBackend(missing.name), nullptr);
  }
  for (const Isa isa :
       {Isa::kPortable, Isa::kNeon, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16, Isa::kAmx}) {
    EXPECT_EQ(names.count(Name(isa)), 1u) << Name(isa);
  }
  EXPECT_EQ(FindBackend("avx"), nullptr);
}

TEST(BackendsTest, ARegisteredBackendIsTheLastOne) {
  static Backend mine = BestCpuBackend();
  mine.name = "mine";
  mine.selections = nullptr;
  RegisterBackend(mine);
  EXPECT_EQ(Backends().back(), &mine);
  EXPECT_EQ(FindBackend("mine"), &mine);
  EXPECT_EQ(BestCpuBackend().name, Name(BestIsa())) << "it is never the default";
}

TEST(BackendsTest, MemoryOfCpusIsAlignedAndStreamsRunInsideTheCall) {
  const Backend& cpu = BestCpuBackend();
  ASSERT_TRUE(cpu.runs_inline);
  for (const size_t bytes : {0, 1, 100}) {
    std::byte* const memory = cpu.memory->Allocate(bytes);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory) % 64, 0u);
    cpu.memory->Free(memory);
  }
  cpu.memory->Free(nullptr);
  const std::unique_ptr<Stream> stream = cpu.new_stream();
  const float x = 1.0f;
  float copy = 0.0f;
  uint16_t half = 0;
  stream->CopyIn(&copy, &x, sizeof(x));
  EXPECT_EQ(copy, 1.0f);
  cpu.forward->to_half(*stream, {&copy, &half, 1});
  EXPECT_EQ(half, 0x3c00);
  EXPECT_TRUE(stream->Synchronize());
  EXPECT_EQ(stream->error(), "");
}

}  // namespace
}  // namespace cairn::kernels
