#include "common/auth/identity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace cairn::auth {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(IdentityTest, OneUriComesBeforeDnsNamesAndTheseBeforeTheCommonName) {
  net::Caller caller;
  caller.common_names = {"engine"};
  EXPECT_THAT(IdentityOf(caller).names, ElementsAre("cn:engine"));
  caller.dns_names = {"A.Example", "b.example"};
  EXPECT_THAT(IdentityOf(caller).names, ElementsAre("dns:a.example", "dns:b.example"));
  caller.uris = {"spiffe://x/y"};
  EXPECT_THAT(IdentityOf(caller).names, ElementsAre("uri:spiffe://x/y"));
}

TEST(IdentityTest, WhatIsAmbiguousProvesNothing) {
  net::Caller caller;
  caller.uris = {"spiffe://x/y", "spiffe://x/z"};
  caller.dns_names = {"a.example"};
  EXPECT_THAT(IdentityOf(caller).names, IsEmpty()) << "not the DNS name instead";
  net::Caller two;
  two.common_names = {"a", "b"};
  EXPECT_FALSE(IdentityOf(two).known());
  EXPECT_FALSE(IdentityOf(net::Caller()).known());
}

// Else the holder of a DNS name could choose a common name that looks like another's URI.
TEST(IdentityTest, NoNamePassesForOneOfAnotherKind) {
  net::Caller caller;
  caller.common_names = {"uri:spiffe://x/y"};
  EXPECT_THAT(IdentityOf(caller).names, ElementsAre("cn:uri:spiffe://x/y"));
  EXPECT_THAT(IdentityOfUser(1000).names, ElementsAre("uid:1000"));
}

}  // namespace
}  // namespace cairn::auth
