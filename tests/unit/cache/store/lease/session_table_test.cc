#include "services/cache/store/lease/session_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/status/matchers.h"
#include "services/cache/store/tier/testing/fake_tier.h"

namespace cairn::cache {
namespace {

using ::cairn::testing::StatusIs;
using ::testing::HasSubstr;

class SessionTableTest : public ::testing::Test {
 protected:
  ReservationPtr NewReservation(uint32_t bytes) {
    reserved_ += HostRoom(bytes);
    return std::make_shared<Reservation>(&tier_, *tier_.Reserve(bytes), &reserved_);
  }
  TimePoint At(int seconds) { return clock_.Now() + std::chrono::seconds(seconds); }

  FakeClock clock_;
  testing::FakeTier tier_;
  std::atomic<uint64_t> reserved_{0};
  SessionTable table_{2, 2};
};

TEST_F(SessionTableTest, LimitsAreNamed) {
  const SessionId a = *table_.Open("a", "");
  ASSERT_OK(table_.Open("b", ""));
  EXPECT_THAT(table_.Open("c", "").status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("limit is 2")));
  for (int i = 0; i < 2; ++i) ASSERT_OK(table_.AddLease(a, std::make_shared<Lease>(), At(10)));
  EXPECT_THAT(table_.AddLease(a, std::make_shared<Lease>(), At(10)).status(),
              StatusIs(StatusCode::kResourceExhausted, HasSubstr("leases")));
}

TEST_F(SessionTableTest, EverythingEndsWithTheSessionOnce) {
  const SessionId a = *table_.Open("a", "");
  const LeaseId lease = *table_.AddLease(a, std::make_shared<Lease>(), At(10));
  ASSERT_OK(table_.AddReservation(a, NewReservation(100), At(10)));
  {
    const auto ended = table_.Close(a);
    EXPECT_EQ(ended.leases.size(), 1u);
    EXPECT_EQ(ended.reservations.size(), 1u);
    EXPECT_EQ(tier_.GetStats().used_bytes, 100u);
  }
  EXPECT_EQ(tier_.GetStats().used_bytes, 0u);
  EXPECT_EQ(reserved_, 0u);
  EXPECT_EQ(table_.leases() + table_.reservations() + table_.sessions(), 0u);
  EXPECT_TRUE(table_.Close(a).leases.empty());
  EXPECT_TRUE(table_.Expire(At(100)).leases.empty());
  EXPECT_EQ(table_.TakeLease(a, lease), nullptr);
}

TEST_F(SessionTableTest, DeadlinesAndRenewal) {
  const SessionId a = *table_.Open("a", "");
  const LeaseId one = *table_.AddLease(a, std::make_shared<Lease>(), At(10));
  const LeaseId two = *table_.AddLease(a, std::make_shared<Lease>(), At(10));
  ASSERT_OK(table_.RenewLease(a, two, clock_.Now(), At(20)));
  EXPECT_EQ(table_.Expire(At(9)).leases.size(), 0u);
  EXPECT_EQ(table_.Expire(At(10)).leases.size(), 1u);
  EXPECT_THAT(table_.FindLease(a, one, At(10)).status(),
              StatusIs(StatusCode::kNotFound, HasSubstr("lease_id")));
  EXPECT_OK(table_.FindLease(a, two, At(19)));
  EXPECT_FALSE(table_.FindLease(a, two, At(20)).ok());  // Due, though not expired yet.
}

TEST_F(SessionTableTest, OtherSessionsCannotTouchIt) {
  const SessionId a = *table_.Open("a", ""), b = *table_.Open("b", "");
  const LeaseId lease = *table_.AddLease(a, std::make_shared<Lease>(), At(10));
  EXPECT_FALSE(table_.FindLease(b, lease, clock_.Now()).ok());
  EXPECT_EQ(table_.TakeLease(b, lease), nullptr);
  EXPECT_THAT(table_.Check(77), StatusIs(StatusCode::kNotFound, HasSubstr("session")));
}

TEST_F(SessionTableTest, SealingWaitsForWriters) {
  const ReservationPtr reservation = NewReservation(10);
  ASSERT_OK(reservation->BeginWrite(0, 10));
  EXPECT_FALSE(reservation->Seal());
  reservation->EndWrite();
  EXPECT_TRUE(reservation->Seal());
  EXPECT_THAT(reservation->BeginWrite(0, 10),
              StatusIs(StatusCode::kFailedPrecondition, HasSubstr("committed")));
  EXPECT_FALSE(reservation->Seal());
  EXPECT_OK(reservation->CheckWhole());
}

TEST_F(SessionTableTest, WhatWasNotWrittenIsNamed) {
  const ReservationPtr reservation = NewReservation(10);
  reservation->rect = {1, 3, 0, 2};
  for (const auto& [offset, bytes, missing] : {std::tuple(3, 7, 0), {0, 2, 2}, {2, 0, 2}}) {
    ASSERT_OK(reservation->BeginWrite(offset, bytes));
    reservation->EndWrite();
    EXPECT_THAT(reservation->CheckWhole(),
                StatusIs(StatusCode::kFailedPrecondition,
                         HasSubstr(fmt::format("layers [1, 3) and heads [0, 2): byte {} was not "
                                               "written, expected all 10 bytes",
                                               missing))));
  }
  ASSERT_OK(reservation->BeginWrite(1, 2));
  reservation->EndWrite();
  EXPECT_OK(reservation->CheckWhole());
}

}  // namespace
}  // namespace cairn::cache
