#include "common/auth/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "common/status/matchers.h"

namespace cairn::auth {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kTwo[] = R"(rules:
  - identity: uri:spiffe://prod.example/ns/*/sa/engine
    role: writer
    tenants: [acme, team-*]
  - identity: dns:Ops.example
    role: admin
    tenants: ["*"]
)";

Rights RightsOf(const std::string& text, const std::string& name) {
  const auto policy = Policy::Parse(text, "file");
  EXPECT_OK(policy);
  return Rights((*policy)->GrantsOf({.names = {name}}));
}

std::string ErrorOf(const std::string& text) {
  const auto policy = Policy::Parse(text, "policy.yaml");
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument) << text;
  return policy.ok() ? "" : Message(policy.status());
}

TEST(PatternTest, AStarStandsForCharactersOfOnePartOfTheName) {
  const struct {
    const char* pattern;
    char separator;
    const char* name;
    bool matches;
  } rows[] = {
      {"uri:spiffe://a/ns/*/sa/x", '/', "uri:spiffe://a/ns/prod/sa/x", true},
      {"uri:spiffe://a/ns/*/sa/x", '/', "uri:spiffe://a/ns/prod/sa/y/sa/x", false},
      {"uri:spiffe://a/ns/*/sa/x", '/', "uri:spiffe://a/ns//sa/x", true},
      {"uri:spiffe://a/*", '/', "uri:spiffe://a/b", true},
      {"uri:spiffe://a/*", '/', "uri:spiffe://a/b/c", false},
      {"uri:spiffe://a/*", '/', "uri:spiffe://ab", false},
      {"dns:*.example", '.', "dns:a.example", true},
      {"dns:*.example", '.', "dns:a.b.example", false},
      {"dns:*.example", '.', "dns:a.example.evil", false},
      {"cn:a*b*c", 0, "cn:aXXbYYbZZc", true},
      {"cn:a*b*c", 0, "cn:aXXbYYbZZ", false},
      {"cn:plain", 0, "cn:plain", true},
      {"cn:plain", 0, "cn:plainer", false},
      {"cn:plain", 0, "dns:plain", false},
      {"cn:*", 0, "cn:", true},
      {"cn:**", 0, "cn:a", true},
  };
  for (const auto& row : rows) {
    EXPECT_EQ(Pattern(row.pattern, row.separator).Matches(row.name), row.matches)
        << row.pattern << " and " << row.name;
  }
}

// A search that tries every way would not end.
TEST(PatternTest, ManyStarsCostNoMoreThanTheProductOfBothLengths) {
  std::string pattern = "cn:";
  for (int i = 0; i < 300; ++i) pattern += "a*";
  pattern += "b";
  EXPECT_FALSE(Pattern(pattern, 0).Matches("cn:" + std::string(1000, 'a')));
}

TEST(PolicyTest, RulesGrantRolesForTenants) {
  const Rights engine = RightsOf(kTwo, "uri:spiffe://prod.example/ns/blue/sa/engine");
  EXPECT_TRUE(engine.May(Role::kWriter, "acme"));
  EXPECT_TRUE(engine.May(Role::kReader, "team-7"));
  EXPECT_FALSE(engine.May(Role::kReader, "team"));
  EXPECT_FALSE(engine.May(Role::kReader, "acme2"));
  EXPECT_FALSE(engine.May(Role::kOperator));
  EXPECT_FALSE(engine.May(Role::kPeer));
  EXPECT_FALSE(engine.MayForAll(Role::kReader));
  const Rights ops = RightsOf(kTwo, "dns:ops.example");
  EXPECT_TRUE(ops.MayForAll(Role::kAdmin));
  EXPECT_TRUE(ops.May(Role::kOperator, "anybody"));
  EXPECT_FALSE(ops.May(Role::kReader)) << "an administrator reads no prompts";
  EXPECT_FALSE(RightsOf(kTwo, "cn:ops.example").May(Role::kOperator)) << "another kind of name";
  EXPECT_FALSE(Rights((*Policy::Parse(kTwo, "f"))->GrantsOf({})).May(Role::kReader));
}

TEST(PolicyTest, ACallerMayDoWhatAllItsRulesGrantTogether) {
  const std::string text = R"(rules:
  - {identity: "cn:a*", role: reader, tenants: ["*"]}
  - {identity: "cn:ab", role: writer, tenants: [t]}
)";
  const Rights both = RightsOf(text, "cn:ab");
  EXPECT_TRUE(both.May(Role::kReader, "u"));
  EXPECT_FALSE(both.May(Role::kWriter, "u"));
  EXPECT_TRUE(both.May(Role::kWriter, "t"));
  EXPECT_TRUE(both == RightsOf(text, "cn:ab"));
  EXPECT_FALSE(both == RightsOf(text, "cn:ac"));
}

TEST(PolicyTest, EachErrorNamesTheLineTheFieldAndWhatWasExpected) {
  const std::string rule = "rules:\n  - identity: cn:a\n";
  const std::string all = rule + "    role: writer\n    tenants: [a]\n";
  const struct {
    std::string text, line;
    std::vector<std::string> parts;
  } rows[] = {
      {"", "1", {"the policy", "expected a mapping"}},
      {"# nothing yet\n", "1", {"the policy", "expected a mapping"}},
      {"rules:\n", "2", {"rules", "expected a list of 1 to 10000"}},
      {"rules: []\n", "1", {"rules", "expected a list of 1 to 10000"}},
      {"rule:\n  - a\n", "1", {"got 'rule'", "expected rules"}},
      {rule, "2", {"role", "missing"}},
      {rule + "    role: writer\n", "2", {"tenants", "missing"}},
      {rule + "    role: writter\n    tenants: [a]\n",
       "3",
       {"role", "got 'writter'", "reader, writer, operator, admin, peer"}},
      {rule + "    role: writer\n    role: admin\n    tenants: [a]\n", "4", {"role: given twice"}},
      {rule + "    role: writer\n    tenant: [a]\n",
       "4",
       {"got 'tenant'", "identity, role, tenants"}},
      {rule + "    role: writer\n    tenants: a\n", "4", {"tenants", "expected a list"}},
      {rule + "    role: writer\n    tenants: []\n", "4", {"tenants", "expected a list"}},
      {rule + "    role: writer\n    tenants: [a b]\n", "4", {"tenants", "'a b'", "A-Za-z0-9"}},
      {rule + "    role: peer\n    tenants: [a]\n", "4", {"tenants", "a peer has blocks of all"}},
      {"rules:\n  - identity: engine\n    role: writer\n    tenants: [a]\n",
       "2",
       {"identity", "got 'engine'", "uri:, dns: or cn:"}},
      {"rules:\n  - identity: \"cn:\"\n    role: writer\n    tenants: [a]\n",
       "2",
       {"identity", "got 'cn:'"}},
      {"rules:\n  - identity: [cn:a]\n    role: writer\n    tenants: [a]\n",
       "2",
       {"identity", "expected a text"}},
      {"rules:\n  - identity: uid:1000\n    role: writer\n    tenants: [a]\n",
       "2",
       {"identity", "got 'uid:1000'"}},
      {all + "limits: 1\n", "5", {"limits: expected a list"}},
      {all + "limits:\n  - memory: 1GiB\n", "6", {"tenants: missing"}},
      {all + "limits:\n  - tenants: [a]\n", "6", {"limits: an entry without one"}},
      {all + "limits:\n  - tenants: [a]\n    memory: much\n", "7", {"memory: ", "'much'"}},
      {all + "limits:\n  - tenants: [a]\n    memory: -1\n", "7", {"memory: ", "'-1'"}},
      {all + "limits:\n  - tenants: [a]\n    bytes_per_second: 0\n",
       "7",
       {"bytes_per_second: got 0"}},
      {all + "limits:\n  - tenants: [a]\n    sessions: many\n", "7", {"sessions: ", "'many'"}},
      {all + "limits:\n  - tenants: [a]\n    sessions: -1\n", "7", {"sessions: ", "'-1'"}},
      {all + "limits:\n  - tenants: [a]\n    ram: 1GiB\n", "7", {"got 'ram'", "guaranteed_disk"}},
      {all + "limits:\n  - tenants: [a]\n    memory: 1\n    guaranteed_memory: 2\n",
       "8",
       {"guaranteed_memory: got more than memory"}},
      {all + "limits:\n  - tenants: [a]\n    disk: 1\n    guaranteed_disk: 2\n",
       "8",
       {"guaranteed_disk: got more than disk"}},
      {"rules:\n  - - a\n", "2", {"rules", "expected a mapping"}},
      {"rules: [\n", "2", {"not valid YAML"}},
      {"rules: 1\n---\nrules: 2\n", "3", {"second YAML document"}},
  };
  for (const auto& row : rows) {
    const std::string error = ErrorOf(row.text);
    EXPECT_THAT(error, HasSubstr("policy.yaml line " + row.line + ": ")) << row.text;
    for (const std::string& part : row.parts) EXPECT_THAT(error, HasSubstr(part)) << row.text;
  }
}

TEST(PolicyTest, ATenantHasTheLimitsOfTheFirstEntryThatNamesIt) {
  const auto policy = Policy::Parse(
      "rules:\n  - {identity: cn:a, role: writer, tenants: [a]}\n"
      "limits:\n"
      "  - {tenants: [team-x], memory: 1KiB, guaranteed_memory: 512, bytes_per_second: 2MiB, "
      "sessions: 3}\n"
      "  - {tenants: [a, team-*], memory: 4GiB, disk: 1.5GiB, guaranteed_disk: 1GiB}\n"
      "  - {tenants: [\"*\"], disk: 0}\n",
      "policy.yaml");
  ASSERT_OK(policy);
  EXPECT_EQ(
      (*policy)->LimitsOf("team-x"),
      (Limits{
          .memory = 1024, .guaranteed_memory = 512, .bytes_per_second = 2 << 20, .sessions = 3}));
  const Limits second{.memory = 4ull << 30, .disk = 3ull << 29, .guaranteed_disk = 1ull << 30};
  EXPECT_EQ((*policy)->LimitsOf("a"), second);
  EXPECT_EQ((*policy)->LimitsOf("team-y"), second);
  EXPECT_EQ((*policy)->LimitsOf("b"), (Limits{.disk = 0}));
  const auto none =
      Policy::Parse("rules:\n  - {identity: cn:a, role: writer, tenants: [a]}\n", "policy.yaml");
  ASSERT_OK(none);
  EXPECT_EQ((*none)->LimitsOf("a"), Limits());
}

TEST(PolicyTest, AliasesDoNotMakeLongListsOutOfFewBytes) {
  std::string text = "rules:\n  - {identity: cn:a, role: reader, tenants: &all [";
  for (int i = 0; i < 1000; ++i) text += "t" + std::to_string(i) + ", ";
  text += "last]}\n";
  for (int i = 0; i < 200; ++i) text += "  - {identity: cn:a, role: reader, tenants: *all}\n";
  EXPECT_THAT(ErrorOf(text), AllOf(HasSubstr("tenants"), HasSubstr("more than 100000")));
}

TEST(PolicyTest, ATextThatWasCutOffAnywhereIsAnErrorOrGrantsNoMoreThanTheWhole) {
  const std::string whole = kTwo;
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto policy = Policy::Parse(whole.substr(0, size), "f");
    if (!policy.ok()) continue;
    for (const char* name : {"uri:spiffe://prod.example/ns/blue/sa/engine", "dns:ops.example"}) {
      const Rights cut((*policy)->GrantsOf({.names = {name}}));
      const Rights full = RightsOf(whole, name);
      for (const Role role : {Role::kReader, Role::kWriter, Role::kOperator, Role::kAdmin}) {
        for (const char* tenant : {"acme", "ac", "team-7", "other"}) {
          // A name that was cut is another tenant's.
          if (cut.May(role, tenant) && !full.May(role, tenant)) {
            EXPECT_STREQ(tenant, "ac") << whole.substr(0, size);
          }
        }
      }
    }
  }
}

TEST(PolicyTest, RandomChangesOfATextNeverCrash) {
  std::mt19937 random(7);
  constexpr std::string_view kLetters = "rules:identy *[]{}\"'\n -&!|>%@`\t\0#,?";
  for (int i = 0; i < 3000; ++i) {
    std::string text = kTwo;
    for (uint32_t changes = random() % 4 + 1; changes > 0; --changes) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = kLetters[random() % kLetters.size()];
          break;
        case 1:
          text.erase(at, random() % 9);
          break;
        default:
          text.insert(at, text.substr(random() % text.size(), random() % 30));
      }
      if (text.empty()) text = "x";
    }
    const auto policy = Policy::Parse(text, "f");
    if (policy.ok()) (void)(*policy)->GrantsOf({.names = {"cn:a", "dns:ops.example"}});
  }
}

}  // namespace
}  // namespace cairn::auth
