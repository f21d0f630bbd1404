#include "tools/cairn/commands/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tools/cairn/process/programs.h"

namespace cairn::cli {
namespace {

using testing::HasSubstr;

std::vector<CommandSpec> Commands() {
  return {
      {.name = "generate",
       .help = "Answers one prompt",
       .options = {{.name = "--model", .help = "GGUF file", .takes_value = true, .values = {}},
                   {.name = "--arithmetic",
                    .help = "Mode",
                    .takes_value = true,
                    .values = {"fast", "float32"}},
                   {.name = "--json", .help = "One object", .takes_value = false, .values = {}}},
       .arguments = {}},
      {.name = "completion",
       .help = "Scripts",
       .options = {},
       .arguments = {"bash", "zsh", "fish"}}};
}

// The words that bash offers for the words of a command line.
std::string BashOffers(const std::string& words, int index) {
  const std::string script = *CompletionScript("bash", "cairn", Commands());
  const std::string path =
      testing::TempDir() + "/cairn-completion-test." + std::to_string(getpid());
  std::ofstream(path) << script << "COMP_WORDS=(" << words << "); COMP_CWORD=" << index
                      << "; _cairn; echo \"${COMPREPLY[*]}\"\n";
  const Result<std::string> offers = Capture({"bash", path});
  std::filesystem::remove(path);
  return offers.ok() ? *offers : ToString(offers.status());
}

TEST(CompletionTest, BashOffersCommandsOptionsAndValues) {
  EXPECT_EQ(BashOffers("cairn ge", 1), "generate");
  EXPECT_EQ(BashOffers("cairn generate --", 2), "--model --arithmetic --json");
  EXPECT_EQ(BashOffers("cairn generate --arithmetic f", 3), "fast float32");
  EXPECT_EQ(BashOffers("cairn completion z", 2), "zsh");
}

TEST(CompletionTest, ZshAndFishNameEveryOption) {
  const std::string zsh = *CompletionScript("zsh", "cairn", Commands());
  EXPECT_THAT(zsh, HasSubstr("#compdef cairn"));
  EXPECT_THAT(zsh, HasSubstr("'--arithmetic[Mode]:value:(fast float32)'"));
  const std::string fish = *CompletionScript("fish", "cairn", Commands());
  EXPECT_THAT(fish, HasSubstr("-n '__fish_seen_subcommand_from generate' -l json -d 'One object'"));
}

TEST(CompletionTest, AnotherShellIsAnErrorThatNamesTheLegalOnes) {
  EXPECT_THAT(Message(CompletionScript("tcsh", "cairn", Commands()).status()),
              HasSubstr("expected bash, zsh or fish"));
}

}  // namespace
}  // namespace cairn::cli
