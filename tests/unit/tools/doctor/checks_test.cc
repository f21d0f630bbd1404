#include "tools/cairn/doctor/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "tools/cairn/doctor/probe.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
constexpr uint64_t kGiB = 1ULL << 30;

TEST(DoctorTest, ReadsTheFirstProcessor) {
  const CpuInfo cpu = ParseCpuInfo(
      "processor\t: 0\nmodel name\t: Some CPU @ 2GHz\nflags\t\t: fpu avx2 fma f16c\n\n"
      "processor\t: 1\nmodel name\t: Other\nflags\t\t: fpu avx512f\n");
  EXPECT_EQ(cpu.model, "Some CPU @ 2GHz");
  EXPECT_TRUE(cpu.flags.contains("avx2"));
  EXPECT_FALSE(cpu.flags.contains("avx512f"));
}

TEST(DoctorTest, NamesTheInstructionSets) {
  CpuInfo cpu{.model = "X", .flags = {"avx2", "fma", "f16c"}};
  EXPECT_EQ(CheckCpu(cpu).found, "X, AVX2");
  EXPECT_EQ(CheckCpu(cpu).verdict, Verdict::kOk);
  for (const char* flag : {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni",
                           "avx512_bf16", "amx_tile", "amx_bf16"}) {
    cpu.flags.insert(flag);
  }
  EXPECT_EQ(CheckCpu(cpu).found, "X, AVX2, AVX-512, BF16, AMX");
}

TEST(DoctorTest, ProcessorsOfAarch64HaveNeon) {
  const CpuInfo cpu = ParseCpuInfo(
      "processor\t: 0\nBogoMIPS\t: 2000.00\nFeatures\t: fp asimd evtstrm aes\n"
      "CPU implementer\t: 0x41\n");
  EXPECT_EQ(CheckCpu(cpu).found, "unknown, NEON");
  EXPECT_EQ(CheckCpu(cpu).verdict, Verdict::kOk);
}

TEST(DoctorTest, CpuWithoutAvx2IsSlowNotBroken) {
  const Check check = CheckCpu({.model = "X", .flags = {"avx2"}});  // No FMA.
  EXPECT_EQ(check.verdict, Verdict::kWarn);
  EXPECT_THAT(check.fix, Not(IsEmpty()));
}

TEST(DoctorTest, CgroupQuotaBelowTheCpusIsNamed) {
  EXPECT_EQ(CheckCpuCount(2, std::nullopt).verdict, Verdict::kOk);
  EXPECT_EQ(CheckCpuCount(1, std::nullopt).verdict, Verdict::kWarn);
  EXPECT_EQ(CheckCpuCount(2, 2.0).verdict, Verdict::kOk);
  EXPECT_THAT(CheckCpuCount(16, 4.0).fix, HasSubstr("--threads 4"));
}

TEST(DoctorTest, ReadsMemInfo) {
  const char* text = "MemTotal:       16384 kB\nHugePages_Free:       3\nMemAvailable:    100 kB\n";
  EXPECT_EQ(MemInfoValue(text, "MemTotal"), 16384ULL * 1024);
  EXPECT_EQ(MemInfoValue(text, "HugePages_Free"), 3ULL);
  EXPECT_EQ(MemInfoValue(text, "Mem"), std::nullopt);
}

TEST(DoctorTest, WhatLimitsTheProcessCountsNotTheMachine) {
  MachineMemory memory{.machine_total = 64 * kGiB, .machine_available = 60 * kGiB};
  EXPECT_EQ(CheckMemory(memory).verdict, Verdict::kOk);
  memory.group_limit = 4 * kGiB;
  memory.group_available = 2 * kGiB;
  EXPECT_EQ(CheckMemory(memory).verdict, Verdict::kWarn);
  EXPECT_EQ(CheckMemory(memory).found,
            "2.00 GiB available of 4.00 GiB, the limit of the control group");
  memory.group_available = 0;
  EXPECT_EQ(CheckMemory(memory).verdict, Verdict::kFail);
}

TEST(DoctorTest, AMachineThatSaysNothingIsUnknown) {
  EXPECT_THAT(CheckMemory({}).found, HasSubstr("unknown"));
}

TEST(DoctorTest, ReadsTheBracketedChoice) {
  EXPECT_EQ(BracketedChoice("always [madvise] never\n"), "madvise");
  EXPECT_EQ(BracketedChoice("nothing"), "");
}

TEST(DoctorTest, DirectIoRefusalNamesDirectoryAndReason) {
  EXPECT_EQ(CheckDirectIo("/d", "").verdict, Verdict::kOk);
  const Check refused = CheckDirectIo("/d", "Invalid argument");
  EXPECT_EQ(refused.verdict, Verdict::kWarn);
  EXPECT_THAT(refused.found, HasSubstr("/d: Invalid argument"));
}

TEST(DoctorTest, IoUringFixDependsOnTheReason) {
  EXPECT_EQ(CheckIoUring(0, "").verdict, Verdict::kOk);
  EXPECT_THAT(CheckIoUring(ENOSYS, "").fix, HasSubstr("Linux 5.6"));
  EXPECT_THAT(CheckIoUring(EPERM, "2\n").fix, HasSubstr("sysctl"));
  EXPECT_THAT(CheckIoUring(EPERM, "0\n").fix, HasSubstr("seccomp"));
}

TEST(DoctorTest, ModelFileMustBeGguf) {
  EXPECT_EQ(CheckModel("m.gguf", "GGUF", 10).verdict, Verdict::kOk);
  EXPECT_EQ(CheckModel("m.gguf", "PK\x03\x04", 10).verdict, Verdict::kFail);
  const Check missing = CheckModel("m.gguf", std::nullopt, 0);
  EXPECT_EQ(missing.verdict, Verdict::kWarn);
  EXPECT_THAT(missing.fix, HasSubstr("fetch_model.py"));
}

TEST(DoctorTest, CudaIsOptional) {
  EXPECT_EQ(CheckCuda(std::nullopt, 0).verdict, Verdict::kOk);
  EXPECT_EQ(CheckCuda(12040, 2).found, "driver for CUDA 12.4, 2 devices");
  EXPECT_EQ(CheckCuda(12040, 0).verdict, Verdict::kWarn);
}

TEST(DoctorTest, TheDeviceTierIsOptionalAndSaysWhatIsMissing) {
  const Status no_library(StatusCode::kNotFound, "no library of devices");
  const Status old(StatusCode::kFailedPrecondition, "cuda driver: the driver is for CUDA 12.4");
  EXPECT_EQ(CheckDeviceTier(no_library, false, {}).verdict, Verdict::kOk);
  EXPECT_EQ(CheckDeviceTier(old, false, {}).verdict, Verdict::kOk);
  const Check missing = CheckDeviceTier(no_library, true, {});
  EXPECT_EQ(missing.verdict, Verdict::kWarn);
  EXPECT_THAT(missing.fix, HasSubstr("libcairn_cuda.so"));
  const Check driver = CheckDeviceTier(old, true, {});
  EXPECT_THAT(driver.found, HasSubstr("12.4"));
  EXPECT_THAT(driver.fix, HasSubstr("driver"));
  EXPECT_EQ(CheckDeviceTier(OkStatus(), true, {"A", "B"}).found, "A; B");
  EXPECT_EQ(CheckDeviceTier(OkStatus(), true, {}).verdict, Verdict::kWarn);
}

TEST(DoctorTest, LinksAreOptionalAndSayWhatIsOld) {
  const Status none(StatusCode::kNotFound, "no NCCL");
  const Status old(StatusCode::kFailedPrecondition, "got NCCL 2.27.3, expected at least 2.29.2");
  EXPECT_EQ(CheckLinks(std::string("2.29.2"), true).found, "NCCL 2.29.2");
  EXPECT_EQ(CheckLinks(none, true).verdict, Verdict::kOk);
  EXPECT_EQ(CheckLinks(old, false).verdict, Verdict::kOk);
  EXPECT_EQ(CheckLinks(old, true).verdict, Verdict::kWarn);
  EXPECT_THAT(CheckLinks(old, true).found, HasSubstr("2.27.3"));
}

TEST(DoctorTest, WorstVerdictWins) {
  EXPECT_EQ(Worst({}), Verdict::kOk);
  EXPECT_EQ(Worst({{.name = "a"}, {.name = "b", .verdict = Verdict::kFail}, {.name = "c"}}),
            Verdict::kFail);
}

TEST(DoctorTest, ProbesThisMachine) {
  const std::vector<Check> checks =
      ProbeMachine({.model_path = "/nonexistent", .directory = testing::TempDir()});
  EXPECT_GE(checks.size(), 12u);
  for (const Check& check : checks) {
    EXPECT_THAT(check.found, Not(IsEmpty())) << check.name;
    EXPECT_EQ(check.verdict == Verdict::kOk, check.fix.empty()) << check.name;
  }
  EXPECT_THAT(MachineName(), HasSubstr("CPUs"));
}

}  // namespace
}  // namespace cairn::cli
