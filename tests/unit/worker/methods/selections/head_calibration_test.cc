#include "services/worker/methods/selections/head_calibration.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "common/recipe/recipe.h"
#include "common/status/matchers.h"
#include "services/worker/methods/selections/selection_stage.h"
#include "services/worker/session/worker_namespace.h"

namespace cairn::worker {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

constexpr char kWeights[] = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";

std::string Text(const std::string& method = "razor") {
  return "cairn head-scores 1\n# for people\nmethod " + method + "\nweights " + kWeights +
         "\nlayers 2\nkv_heads 3\n0.5 1 0.25\n# again\n0 -1e-3 2\n";
}

TEST(HeadCalibrationTest, ReadsWhatAFileSays) {
  const auto got = ParseHeadCalibration(Text());
  ASSERT_OK(got);
  EXPECT_EQ(got->method, "razor");
  EXPECT_EQ(got->weights.Hex(), kWeights);
  const selections::HeadScores want{2, 3, {0.5f, 1, 0.25f, 0, -1e-3f, 2}};
  EXPECT_EQ(got->scores, want);
}

TEST(HeadCalibrationTest, ErrorsNameTheLine) {
  struct Bad {
    std::string from, to, error;
  };
  const Bad bads[] = {
      {"cairn head-scores 1", "cairn head-scores 2", "line 1: expected 'cairn head-scores 1'"},
      {"method razor", "method", "line 3: expected 'method ...'"},
      {"method razor", "methods razor", "line 3: expected 'method ...'"},
      {kWeights, "0011", "line 4: expected 'weights' and 64 hexadecimal digits"},
      {"layers 2", "layers 0", "line 5: expected 'layers' and a number from 1 to 4096"},
      {"layers 2", "layers 99999999999", "line 5: expected 'layers'"},
      {"kv_heads 3", "kv_heads 3x", "line 6: expected 'kv_heads'"},
      {"kv_heads 3", "kv_heads 2", "line 7: expected 2 finite scores of layer 0"},
      {"0.25", "nan", "line 7: expected 3 finite scores of layer 0"},
      {"0.25", "inf", "line 7"},
      {"0.25", "1e99", "line 7"},
      {"0.25", "0.25 ", "line 7"},
      {"0.5 1", "0.5  1", "line 7"},
      {"layers 2", "layers 3", "line 9: expected 3 finite scores of layer 2"},
      {"layers 2", "layers 1", "line 9: expected the end"},
  };
  for (const Bad& bad : bads) {
    std::string text = Text();
    text.replace(text.find(bad.from), bad.from.size(), bad.to);
    EXPECT_THAT(ParseHeadCalibration(text),
                StatusIs(StatusCode::kInvalidArgument, HasSubstr(bad.error)))
        << bad.to;
  }
  EXPECT_FALSE(ParseHeadCalibration("").ok());
  // No beginning of a file is one.
  for (size_t n = 0; n + 2 < Text().size(); ++n) {
    EXPECT_FALSE(ParseHeadCalibration(Text().substr(0, n)).ok()) << n;
  }
}

// A folder with files under the names of their digests.
class LoadHeadScoresTest : public ::testing::Test {
 protected:
  LoadHeadScoresTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("cairn-heads-" + std::to_string(getpid()) + "-" +
                 std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
  }
  ~LoadHeadScoresTest() override { std::filesystem::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }
  // Returns the first digits of the name.
  std::string Put(const std::string& text) {
    const std::string digest = Sha256::Of(text).Hex();
    Write(digest + ".heads", text);
    return digest.substr(0, 16);
  }
  Result<selections::HeadScores> Load(const std::string& digits) {
    wanted_.digest = std::stoull(digits, nullptr, 16);
    return LoadHeadScores(folder_.string(), wanted_);
  }
  void ExpectRefused(const std::string& digits, const std::string& why) {
    EXPECT_THAT(Load(digits), StatusIs(StatusCode::kFailedPrecondition, HasSubstr(why)));
  }

  const std::filesystem::path folder_;
  HeadCalibrationWanted wanted_ = {.method = "razor",
                                   .weights = *Digest::FromHex(kWeights, "weights"),
                                   .layers = 2,
                                   .kv_heads = 3};
};

TEST_F(LoadHeadScoresTest, FindsAFileByTheBeginningOfItsDigest) {
  Write("README.md", "about these");
  Put(Text("duo"));
  const auto got = Load(Put(Text()));
  ASSERT_OK(got);
  EXPECT_EQ(got->scores.size(), 6u);
}

TEST_F(LoadHeadScoresTest, AMissingFileOrFolderIsNamed) {
  ExpectRefused("0123456789abcdef", "has no file 0123456789abcdef*.heads, which the recipe names");
  Write("0123456789abcdef.txt", "another thing");
  ExpectRefused("0123456789abcdef", "has no file");
  std::filesystem::remove_all(folder_);
  ExpectRefused("0123456789abcdef", "No such file or directory, expected 0123456789abcdef*.heads");
}

TEST_F(LoadHeadScoresTest, DamageIsSeen) {
  const std::string digits = Put(Text());
  const std::string name = Sha256::Of(Text()).Hex() + ".heads";
  std::string text = Text();
  text[text.size() - 2] = '3';
  Write(name, text);
  ExpectRefused(digits, "damaged: its SHA-256 is");
  Write(name, Text().substr(0, 40));
  ExpectRefused(digits, "damaged: its SHA-256 is");
  Write(name, "");
  ExpectRefused(digits, "damaged: its SHA-256 is");
  ExpectRefused(Put("its name is right\n"), "line 1: expected 'cairn head-scores 1'");
}

TEST_F(LoadHeadScoresTest, TwoFilesOfOneBeginningAreRefused) {
  const std::string digits = Put(Text());
  Write(digits + "0.heads", Text());
  ExpectRefused(digits, "both begin with " + digits);
}

TEST_F(LoadHeadScoresTest, AnotherMethodModelOrShapeIsRefused) {
  const std::string digits = Put(Text());
  wanted_.method = "duo";
  ExpectRefused(digits, "made for the selection 'razor', the recipe has 'duo'");
  wanted_.method = "razor";
  wanted_.weights = Sha256::Of("other weights");
  ExpectRefused(digits, std::string("made for weights ") + kWeights + ", the model has ");
  wanted_.weights = *Digest::FromHex(kWeights, "weights");
  wanted_.kv_heads = 4;
  ExpectRefused(digits, "2 layers of 3 KV heads, the model has 2 of 4");
  wanted_.kv_heads = 3;
  wanted_.layers = 30;
  ExpectRefused(digits, "2 layers of 3 KV heads, the model has 30 of 3");
}

TEST(HeadCalibrationTest, TheFilesOfThisRepositoryAreWhole) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator("calibration")) {
    if (entry.path().extension() != ".heads") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_EQ(entry.path().stem(), Sha256::Of(text).Hex());
    EXPECT_OK(ParseHeadCalibration(text));
    ++files;
  }
  EXPECT_GT(files, 0);
}

TEST_F(LoadHeadScoresTest, TheFingerprintHasTheCalibration) {
  NamespaceInputs inputs;
  inputs.model = "toy";
  inputs.weights = wanted_.weights;
  inputs.kv = {.layers = 2, .kv_heads = 3, .head_dim = 64, .block_tokens = 64};
  inputs.numerics = "toy-1";
  inputs.calibration = folder_.string();
  const std::string one = Put(Text()), other = Put(Text() + "# another remark\n");
  inputs.recipe = "razor:keep=0.4,heads=" + one + "+raw";
  const auto made = SelectionOf(*ParseRecipe(inputs.recipe), inputs);
  ASSERT_OK(made);
  EXPECT_EQ((*made)->name(), "razor");
  const Digest fingerprint = WorkerNamespace(inputs)->fingerprint;
  inputs.recipe = "razor:sinks=4,heads=" + one + ",keep=0.400+raw";
  EXPECT_EQ(WorkerNamespace(inputs)->fingerprint, fingerprint);
  inputs.recipe = "razor:keep=0.4,heads=" + other + "+raw";
  ASSERT_OK(SelectionOf(*ParseRecipe(inputs.recipe), inputs));
  EXPECT_NE(WorkerNamespace(inputs)->fingerprint, fingerprint);
  inputs.recipe = "duo:keep=0.4,heads=" + one + "+raw";
  EXPECT_THAT(
      SelectionOf(*ParseRecipe(inputs.recipe), inputs),
      StatusIs(StatusCode::kFailedPrecondition, HasSubstr("made for the selection 'razor'")));
  // Where files are is no part of the name, and who only names a namespace needs none.
  inputs.recipe = "razor:keep=0.4,heads=" + one + "+raw";
  inputs.calibration = "nowhere";
  EXPECT_EQ(WorkerNamespace(inputs)->fingerprint, fingerprint);
  EXPECT_THAT(SelectionOf(*ParseRecipe(inputs.recipe), inputs),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("folder 'nowhere'")));
}

}  // namespace
}  // namespace cairn::worker
