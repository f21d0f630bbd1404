// A worker that was built without the wing for methods. With it there is nothing to test here.
#ifdef CAIRN_WITHOUT_METHODS

#include "services/worker/engine/option_check.h"
#include "tests/unit/worker/engine/engine_fixture.h"

namespace cairn::worker {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

class WithoutMethodsTest : public EngineFixture {};

TEST_F(WithoutMethodsTest, ARecipeThatSelectsIsRefusedBeforeAnythingIsLoaded) {
  WorkerEngine::Options options = Options();
  options.recipe = "streaming:keep=0.4+raw";
  EXPECT_THAT(CheckOptions(options),
              StatusIs(StatusCode::kUnimplemented,
                       AllOf(HasSubstr("option 'recipe': got 'streaming:keep=0.4"),
                             HasSubstr("built without methods"))));
  options.recipe = "raw";
  options.publish = {"int8", "random:keep=0.3+raw"};
  EXPECT_THAT(CheckOptions(options),
              StatusIs(StatusCode::kUnimplemented, HasSubstr("cache.publish: got 'random:")));
}

TEST_F(WithoutMethodsTest, AReadPolicyIsRefused) {
  WorkerEngine::Options options = Options();
  options.read_policy = "precision";
  EXPECT_THAT(
      CheckOptions(options),
      StatusIs(StatusCode::kUnimplemented, AllOf(HasSubstr("option 'read_policy': got 'precision'"),
                                                 HasSubstr("built without methods"))));
}

TEST_F(WithoutMethodsTest, APromptThatWasTooLongIsComputedWhereItIs) {
  WorkerEngine::Options options = Options();
  options.max_context = 512;
  auto worker = Worker(options);
  GenerateRequest request = Request(600);
  request.drop_oldest = true;
  const GenerateSummary got = Run(*worker, request);
  EXPECT_GT(got.dropped_tokens, 0u);
  EXPECT_EQ(got.turned_tokens, 0u);
  ExpectSameAnswer(got, Run(*WorkerWithoutCache(options), request));
}

}  // namespace
}  // namespace cairn::worker

#endif
