// docs/operate/cluster.md takes an operator from one node to eight: its commands run as they are
// written.

#include <gmock/gmock.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <regex>

#include "common/status/matchers.h"
#include "tests/integration/cli_support.h"
#include "tests/integration/node_client.h"
#include "tests/support/etcd_cluster.h"

namespace cairn::testing {
namespace {

using std::chrono::seconds;

constexpr char kPage[] = "docs/operate/cluster.md";
constexpr int kNodes = 8;
constexpr seconds kPatience(120);

// The text below a heading of the page, up to the next one.
std::string Section(const std::string& heading) {
  const std::string page = ReadFile(kPage);
  const std::string title = "\n## " + heading + "\n";
  const size_t at = page.find(title);
  EXPECT_NE(at, page.npos) << kPage << " has no section " << heading;
  if (at == page.npos) return "";
  const size_t begin = at + title.size();
  return page.substr(begin, page.find("\n## ", begin) - begin);
}

// The texts in groups 1 of all matches.
std::vector<std::string> All(const std::string& text, const std::regex& pattern) {
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), pattern), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

bool IsFree(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const int on = 1;  // Connections that have ended do not count.
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const bool free = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return free;
}

// A shell for commands of the page, whose programs end with it.
class PageShell {
 public:
  PageShell() {
    std::filesystem::create_directory(directory_.path() + "/bin");
    // Nodes that were started in the background, and whose shell is killed, would go on forever.
    AddProgram("cairn-cache", "setpriv --pdeathsig KILL ");
    AddProgram("cairn", "");
  }

  // A process that runs `script` with "$BASE" as it is, and then waits for the programs that it
  // started. SIGTERM ends all of it in order.
  Result<std::unique_ptr<Process>> Start(const std::string& script, int base) {
    return Process::Start({.argv = {"/bin/bash", "-c",
                                    Path() + "trap 'kill $(jobs -p)' TERM\n" + script +
                                        "\n[ -n \"$(jobs -p)\" ] && echo started\nwait\nwait\n"},
                           .environment = {fmt::format("BASE={}", base)},
                           .directory = directory_.path()});
  }
  CommandResult Run(const std::string& command) {
    CommandResult result;
    const auto process = Process::Start(
        {.argv = {"/bin/bash", "-c", Path() + command}, .directory = directory_.path()});
    EXPECT_OK(process);
    if (!process.ok()) return result;
    const auto exit = (*process)->WaitExit(kPatience);
    EXPECT_OK(exit);
    if (exit.ok()) result.code = exit->exited ? exit->code : 128 + exit->code;
    result.out = (*process)->out();
    result.err = (*process)->err();
    return result;
  }

 private:
  // Not in the environment, where bash takes the last of two equal names.
  std::string Path() const { return fmt::format("PATH='{}/bin':\"$PATH\"\n", directory_.path()); }
  void AddProgram(const std::string& name, const std::string& before) {
    const std::string path = directory_.path() + "/bin/" + name;
    const std::string program = std::filesystem::absolute(Binary(name)).string();
    std::ofstream(path) << "#!/bin/sh\nexec " << before << "'" << program << "' \"$@\"\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }

  const TemporaryDirectory directory_;
};

class ClusterPageTest : public ::testing::Test {
 protected:
  std::string Address(int node) const { return fmt::format("127.0.0.1:{}", base_ + 2 * node); }

  // A command of the page, whose A and B are nodes.
  std::string WithAddresses(const std::string& command) const {
    return std::regex_replace(std::regex_replace(command, std::regex(R"(\bA\b)"), Address(0)),
                              std::regex(R"(\bB\b)"), Address(1));
  }
  // Tries again until all nodes see all others.
  bool WaitUntilWhole() {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (std::chrono::steady_clock::now() < end) {
      const auto result = Cairn({"stat", "--cluster", "--json", "--cache", Address(0)});
      if (result.code == 0 && result.Json()["nodes"].size() == kNodes) return true;
      Pause();
    }
    return false;
  }

  const int base_ = FreePorts(2 * kNodes);  // Two for each node.
  PageShell shell_;
};

TEST_F(ClusterPageTest, EightNodesComeUpAndAreLookedAtAndEnd) {
  const auto blocks = All(Section("From one node to eight"),
                          std::regex("```sh\n([^`]*)```", std::regex::multiline));
  ASSERT_EQ(blocks.size(), 1U);
  const auto nodes = shell_.Start(blocks[0], base_);
  ASSERT_OK(nodes);
  ASSERT_OK((*nodes)->WaitForLine("started", kPatience));
  ASSERT_TRUE(WaitUntilWhole()) << (*nodes)->err();

  // Those of the table that name all that they need.
  const auto commands =
      All(Section("Watch it, and change it"), std::regex("`(cairn (?:stat|cluster) [^`.]*)`"));
  EXPECT_THAT(commands, ::testing::ElementsAre("cairn stat --cluster --cache A,B",
                                               "cairn cluster members --cache A",
                                               "cairn cluster drain --cache A"));
  for (const std::string& command : commands) {
    const CommandResult result = shell_.Run(WithAddresses(command));
    EXPECT_EQ(result.code, 0) << command << "\n" << result.out << result.err;
    if (command.find("drain") != command.npos) continue;
    for (int node = 0; node < kNodes; ++node) {
      EXPECT_THAT(result.out, ::testing::HasSubstr(fmt::format("node-{}", node))) << command;
    }
  }
  // Drained: the others are a cluster without it.
  const auto view = Cairn({"cluster", "members", "--json", "--cache", Address(1)}).Json();
  EXPECT_EQ(view["members"].size(), kNodes - 2U) << view;

  (*nodes)->Signal(SIGTERM);
  const auto exit = (*nodes)->WaitExit(kPatience);
  ASSERT_OK(exit);
  for (int node = 0; node < kNodes; ++node) EXPECT_TRUE(IsFree(base_ + 2 * node)) << node;
}

// Flags that the page names outside of its blocks. A node refuses those that do not exist.
TEST_F(ClusterPageTest, SettingsThatThePageNamesExist) {
  const std::string settings = shell_.Run("cairn-cache --print-config-docs").out;
  const auto named = All(ReadFile(kPage), std::regex("(?:`|--)(cluster\\.[a-z_]+)"));
  EXPECT_GT(named.size(), 10U);
  for (const std::string& name : named) {
    EXPECT_THAT(settings, ::testing::HasSubstr("`" + name + "`"));
  }
}

}  // namespace
}  // namespace cairn::testing
