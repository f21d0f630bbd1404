#include "services/worker/engine/admission.h"

#include <gtest/gtest.h>

#include "common/status/matchers.h"

namespace cairn::worker {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() { terms_.kv.block_tokens = 64; }
  Result<std::shared_ptr<Job>> Admit(const GenerateRequest& request) {
    if (!admission_) {
      admission_.emplace(terms_, queue_, /*look_ahead=*/nullptr, clock_, wakeup_,
                         [this](Job& job, Result<GenerateSummary> outcome) {
                           ended_.push_back(&job);
                           admission_->Over(job);
                           job.Finish(std::move(outcome));
                         });
    }
    PreparedPrompt prompt;
    prompt.tokens.assign(100, 1);
    return admission_->Admit(request, prompt);
  }
  static GenerateRequest From(const std::string& tenant) {
    GenerateRequest request;
    request.tenant = tenant;
    return request;
  }

  FakeClock clock_;
  TenantAccounts accounts_;
  Wakeup wakeup_;
  RequestQueue queue_{{.capacity = 2}, accounts_, "own", clock_, wakeup_};
  Admission::Terms terms_;
  std::optional<Admission> admission_;
  std::vector<const Job*> ended_;
};

TEST_F(AdmissionTest, ARequestIsOpenUntilItIsOver) {
  const auto job = Admit({});
  ASSERT_OK(job);
  EXPECT_EQ(admission_->open(), 1u);
  EXPECT_FALSE(admission_->WaitNone(clock_.Now()));
  EXPECT_EQ(queue_.Take(), *job);
  admission_->Over(**job);
  EXPECT_TRUE(admission_->WaitNone(clock_.Now()));
}

TEST_F(AdmissionTest, ADeadlineInThePastIsAnErrorAndNoRefusal) {
  GenerateRequest request;
  request.deadline = clock_.Now() - seconds(2);
  EXPECT_THAT(Admit(request).status(),
              testing::StatusIs(StatusCode::kInvalidArgument, HasSubstr("field 'deadline'")));
  EXPECT_EQ(admission_->open(), 0u);
  EXPECT_EQ(admission_->GetStats().refused, 0u);
}

TEST_F(AdmissionTest, RolesSayWhichRequestsAreForThisWorker) {
  GenerateRequest prefill;
  prefill.prefill_only = true;
  EXPECT_OK(Admit(prefill));
  terms_.no_prefill_only = "this worker has no cache node to push to";
  admission_.reset();
  EXPECT_THAT(Admit(prefill).status(),
              testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr("has no cache node")));
  terms_.role = model::WorkerRole::kDecode;
  admission_.reset();
  EXPECT_THAT(Admit(prefill).status(),
              testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr("role 'decode'")));
  terms_.role = model::WorkerRole::kPrefill;
  admission_.reset();
  EXPECT_THAT(Admit({}).status(),
              testing::StatusIs(StatusCode::kFailedPrecondition, HasSubstr("role 'prefill'")));
}

TEST_F(AdmissionTest, AFullQueueRefusesAndCounts) {
  ASSERT_OK(Admit({}));
  ASSERT_OK(Admit({}));
  EXPECT_THAT(Admit({}).status(),
              testing::StatusIs(StatusCode::kResourceExhausted, HasSubstr("2 requests wait")));
  EXPECT_EQ(admission_->GetStats().refused, 1u);
  EXPECT_EQ(admission_->open(), 2u);
}

TEST_F(AdmissionTest, RequestsOfNoUseGiveTheirPlacesToNewOnes) {
  const auto gone = Admit({});
  ASSERT_OK(gone);
  ASSERT_OK(Admit({}));
  (*gone)->Cancel();
  EXPECT_OK(Admit({}));
  ASSERT_EQ(ended_, std::vector<const Job*>{gone->get()});
  EXPECT_EQ(admission_->open(), 2u);
  EXPECT_EQ((*gone)->Consume({})->finish_reason, "cancelled");
}

TEST_F(AdmissionTest, WhoLosesItsPlaceIsToldSo) {
  ASSERT_OK(Admit(From("flood")));
  clock_.Advance(seconds(1));
  const auto last = Admit(From("flood"));
  ASSERT_OK(last);
  EXPECT_OK(Admit(From("other")));
  ASSERT_EQ(ended_, std::vector<const Job*>{last->get()});
  EXPECT_THAT((*last)->Consume({}).status(),
              testing::StatusIs(StatusCode::kResourceExhausted, HasSubstr("request queue: full")));
}

TEST_F(AdmissionTest, WhatAnotherWorkerComputesIsNotCountedHere) {
  GenerateRequest request;
  request.await_prefill = seconds(1);
  const auto job = Admit(request);
  ASSERT_OK(job);
  EXPECT_EQ((*job)->claim().prefill_tokens, 64);
}

}  // namespace
}  // namespace cairn::worker
