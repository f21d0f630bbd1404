#include "tools/cairn/process/programs.h"

#include <gtest/gtest.h>

namespace cairn::cli {
namespace {

TEST(ProgramsTest, AProgramThatIsNotThereIsSaidToBeMissing) {
  const Status ended = RunToEnd({"/nowhere/cairn-router", "--check-config"});
  EXPECT_EQ(ended.code(), StatusCode::kUnavailable);
  EXPECT_EQ(Message(ended), "'/nowhere/cairn-router' is not there: `make build` makes it");
}

TEST(ProgramsTest, WhatAProgramSaysIsTheReason) {
  EXPECT_TRUE(RunToEnd({"/bin/sh", "-c", "exit 0"}).ok());
  const Status ended = RunToEnd({"/bin/sh", "-c", "echo no >&2; exit 2"});
  EXPECT_EQ(ended.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Message(ended), "no");
}

}  // namespace
}  // namespace cairn::cli
