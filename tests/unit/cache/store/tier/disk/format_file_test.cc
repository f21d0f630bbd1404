// DISK_FORMAT: only a directory that is new is ever wiped without permission.

#include <fstream>
#include <sstream>

#include "tests/unit/cache/store/tier/disk/disk_fixture.h"

namespace cairn::cache::testing {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class FormatFileTest : public DiskFixture {
 protected:
  std::string Path() const { return directory_.path() + "/DISK_FORMAT"; }
  std::string Read() const {
    std::ostringstream text;
    text << std::ifstream(Path(), std::ios::binary).rdbuf();
    return text.str();
  }
  void Write(const std::string& text) const {
    std::ofstream(Path(), std::ios::binary | std::ios::trunc) << text;
  }
  // A directory with one extent.
  void Fill() {
    const auto tier = Open(Options());
    ASSERT_NE(tier, nullptr);
    kept_ = Put(*tier, 1, 100000);
    id_ = tier->node_id();
  }
  // Without the line that later builds add.
  std::string OfTheBuildBefore() const {
    return "cairn-disk 2\nnode " + id_ + "\nsegment 2097152\nstate ready\n";
  }
  // Opens as it was, or refuses and keeps everything. True: it opened.
  bool OpensWholeOrRefuses() {
    auto tier = DiskTier::Open(Options());
    if (!tier.ok()) {
      EXPECT_THAT(tier.status(), StatusIs(StatusCode::kFailedPrecondition, HasSubstr("disk.path")));
      EXPECT_FALSE(ValueFilesOnDisk().empty()) << "refused and wiped";
      return false;
    }
    std::vector<Extent> found;
    EXPECT_OK((*tier)->Recover([&](const Extent& extent, std::string_view) {
      found.push_back(extent);
      return true;
    }));
    EXPECT_THAT(found, ::testing::ElementsAre(kept_)) << "wiped";
    if (found.size() == 1) ExpectBytes(**tier, 1, kept_);
    return true;
  }

  Extent kept_;
  std::string id_;
};

TEST_F(FormatFileTest, NoFlippedBitWipes) {
  Fill();
  const std::string whole = Read();
  for (size_t bit = 0; bit < 8 * whole.size() && !HasFailure(); ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    Write(damaged);
    EXPECT_FALSE(OpensWholeOrRefuses()) << damaged;
  }
  Write(whole);
  EXPECT_TRUE(OpensWholeOrRefuses());
}

TEST_F(FormatFileTest, NoFlippedBitOfAnOlderFileWipes) {
  Fill();
  const std::string whole = OfTheBuildBefore();
  for (size_t bit = 0; bit < 8 * whole.size() && !HasFailure(); ++bit) {
    SCOPED_TRACE(bit);
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    Write(damaged);
    OpensWholeOrRefuses();  // A number in the file may turn into another that is as good.
  }
}

TEST_F(FormatFileTest, NoCutFileWipes) {
  Fill();
  const std::string whole = Read();
  for (size_t bytes = 0; bytes < whole.size() && !HasFailure(); ++bytes) {
    SCOPED_TRACE(bytes);
    Write(whole.substr(0, bytes));
    OpensWholeOrRefuses();  // Cut before its last line, it is one of the build before.
  }
}

TEST_F(FormatFileTest, AWordOfALaterVersionIsRefused) {
  Fill();
  std::string text = OfTheBuildBefore();
  text.replace(text.find("ready"), 5, "sealed");
  Write(text);
  EXPECT_FALSE(OpensWholeOrRefuses());
}

TEST_F(FormatFileTest, NewWithValueFilesIsRefused) {
  Fill();
  std::string text = OfTheBuildBefore();
  text.replace(text.find("ready"), 5, "new");
  Write(text);
  EXPECT_FALSE(OpensWholeOrRefuses());
}

TEST_F(FormatFileTest, FilesOfTheBuildBeforeOpenAndGetACheckLine) {
  Fill();
  Write(OfTheBuildBefore());
  EXPECT_TRUE(OpensWholeOrRefuses());
  EXPECT_THAT(Read(), ::testing::AllOf(::testing::StartsWith("cairn-disk 2\nnode " + id_ + "\n"),
                                       HasSubstr("\nstate ready\ncheck ")));
  EXPECT_TRUE(OpensWholeOrRefuses());
}

TEST_F(FormatFileTest, PermissionWipesWhatIsDamaged) {
  Fill();
  Write("cairn-disk 2\nnode x\nsegment 2097152\nstate reAdy\n");
  DiskTierOptions options = Options();
  options.wipe_on_mismatch = true;
  std::vector<Extent> found;
  ASSERT_NE(Open(options, &found), nullptr);
  EXPECT_TRUE(found.empty());
}

}  // namespace
}  // namespace cairn::cache::testing
